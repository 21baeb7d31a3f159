"""Folds constant expressions in Python code, and resolves names through imports."""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import re
from posixpath import join

from toolcrib.approval.shell.model import MAX_DATA_CHARS, UNKNOWN, name_set

MAX_LOOKS = 40_000
CHARACTERS_IN_A_LOOK = 64
ITEM = 50
"""What one list item counts in addition to its characters."""


FROM_STAR = {
    "os": name_set(
        "system popen remove unlink rmdir removedirs rename replace kill killpg chmod truncate symlink fork "
        "chdir fchdir "
        "execv execve "
        "execvp execvpe execl execlp execle spawnl spawnv spawnlp spawnvp posix_spawn environ"
    ),
    "subprocess": name_set("run call check_call check_output Popen getoutput getstatusoutput"),
    "shutil": name_set("rmtree move copy copy2 copyfile copytree unpack_archive"),
    "pathlib": name_set("Path PosixPath"),
    "ctypes": name_set("CDLL cdll PyDLL"),
    "pty": name_set("spawn"),
}
"""What `from module import *` brings, of the names that matter here."""


class ConstantReader(ast.NodeVisitor):
    """Knows the values of constants and the full names of called functions."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.names: dict[str, str] = {}
        self.values: dict[str, object] = {}
        self.looks = 0

    def look(self, count: int = 1) -> None:
        """Count visits to expressions: nested calls are visited once from every level above them."""
        self.looks += count
        if self.looks > MAX_LOOKS:
            raise RecursionError

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.names.update({name: f"{node.module}.{name}" for name in FROM_STAR.get(node.module or "", ())})
            self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def dotted(self, node: ast.expr) -> str:
        """The full name of the called function, through imports, `__import__` and `getattr`."""
        self.look()
        parts: list[str] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                if node.attr != "__dict__":
                    parts.append(node.attr)
                node = node.value
                continue
            # `os.__dict__["system"]`, `vars(os)["system"]`, `sys.modules["os"]`
            key = self.constant(node.slice) if not isinstance(node.slice, ast.Slice) else None
            holder = self.holder(node.value)
            if not isinstance(key, str) or holder is None:
                break
            parts.append(key)
            if not holder:
                return ".".join(reversed(parts))
            parts.append(holder)
            return ".".join(reversed(parts))
        if isinstance(node, ast.Name):
            parts.append(self.names.get(node.id, node.id))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = self.dotted(node.func)
            argument = self.constant(node.args[0]) if node.args else None
            if name in ("__import__", "importlib.import_module") and isinstance(argument, str):
                parts.append(argument)
            elif name == "getattr" and len(node.args) > 1:
                parts.append(f"{self.dotted(node.args[0])}.{self.constant(node.args[1])}")
            else:
                parts.append(name)
        else:
            # The method of a value: `.write_text` of a path that an expression makes.
            parts.append("")
        return ".".join(reversed(parts))

    def holder(self, node: ast.expr) -> str | None:
        """What a name is looked up in: a module, nothing for all modules, None for an ordinary value."""
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return self.dotted(node.value)
        if isinstance(node, ast.Call) and self.dotted(node.func) in ("vars", "builtins.vars") and node.args:
            return self.dotted(node.args[0])
        if isinstance(node, ast.Call) and self.dotted(node.func) in ("globals", "locals"):
            return ""
        return "" if isinstance(node, ast.Attribute) and self.dotted(node) == "sys.modules" else None

    def constant(self, node: ast.expr | None) -> object:
        """The value of an expression made of literals; None when it cannot be known or grows too large."""
        value = self.folded(node)
        size = weight(value)
        self.look(1 + size // CHARACTERS_IN_A_LOOK)
        return value if size <= MAX_DATA_CHARS else None

    def folded(self, node: ast.expr | None) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.values.get(node.id)
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.constant(item) for item in node.elts]
            return [UNKNOWN if item is None or is_nested(item) else item for item in items]
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self.letters(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.constant(node.operand)
            return -value if isinstance(value, int) else None
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.JoinedStr):
            pieces = [
                self.constant(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values
            ]
            return "".join(UNKNOWN if piece is None else str(piece) for piece in pieces)
        if isinstance(node, ast.Call):
            return self.called(node)
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            of_home = self.constant(node.slice) == "HOME" and self.dotted(node.value) == "os.environ"
            return self.home if of_home else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            value = self.constant(node.value)
            step = self.constant(node.slice.step) if node.slice.step else 1
            return value[::-1] if isinstance(value, str) and step == -1 and node.slice.lower is None else None
        return None

    def letters(self, node: ast.ListComp | ast.GeneratorExp) -> object:
        """The letters of `chr(code) for code in […]`; None for any other comprehension."""
        element, source = node.elt, self.constant(node.generators[0].iter)
        if len(node.generators) > 1 or not isinstance(element, ast.Call) or self.dotted(element.func) != "chr":
            return None
        return [chr(code) for code in codes_in(source)] or None

    def binary(self, node: ast.BinOp) -> object:
        left, right = self.constant(node.left), self.constant(node.right)
        if isinstance(node.op, ast.Add) and (isinstance(left, str) or isinstance(right, str)):
            return (UNKNOWN if left is None else str(left)) + (UNKNOWN if right is None else str(right))
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return [*left, *right]
        if isinstance(node.op, ast.Div) and isinstance(left, str) and isinstance(right, str):
            return join(left, right)
        if isinstance(node.op, ast.Mod) and isinstance(left, str):
            values = right if isinstance(right, list) else [right]
            return re.sub(
                r"%[sdr]", lambda _: str(values.pop(0)) if values and values[0] is not None else UNKNOWN, left
            )
        return None

    def called(self, node: ast.Call) -> object:
        name = self.dotted(node.func)
        arguments = [self.constant(argument) for argument in node.args]
        base = self.constant(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if name.endswith("b64decode") and arguments and isinstance(arguments[0], str | bytes):
            try:
                return base64.b64decode(arguments[0])
            except (ValueError, binascii.Error):
                return None
        if name == "bytes.fromhex" and arguments and isinstance(arguments[0], str):
            try:
                return bytes.fromhex(arguments[0])
            except ValueError:
                return None
        if name in ("bytes", "bytearray") and len(arguments) == 1 and (codes := codes_in(arguments[0], 256)):
            return bytes(codes)
        if name == "map" and len(node.args) == 2 and self.dotted(node.args[0]) == "chr":
            return [chr(code) for code in codes_in(arguments[1])] or None
        if name == "site.getusersitepackages":
            return f"{self.home}/.local/lib/python3/site-packages"
        if name == "codecs.decode" and len(arguments) == 2 and isinstance(arguments[0], str):
            return codecs.decode(arguments[0], "rot13") if arguments[1] in ("rot13", "rot_13") else None
        if name.endswith(".replace") and isinstance(base, str) and [type(each) for each in arguments] == [str, str]:
            return base.replace(str(arguments[0]), str(arguments[1]))
        if name.endswith(".decode") and isinstance(base, bytes):
            return base.decode("utf-8", "replace")
        if name.endswith(".split") and isinstance(base, str) and not arguments:
            return base.split()
        if name == "shlex.split" and arguments and isinstance(arguments[0], str):
            return arguments[0].split()
        if name.endswith(".join") and isinstance(base, str) and arguments and isinstance(arguments[0], list):
            return base.join(str(item) for item in arguments[0])
        if name == "chr" and arguments and isinstance(arguments[0], int) and 0 <= arguments[0] < 0x110000:
            return chr(arguments[0])
        if (
            name in ("os.path.expanduser", "pathlib.Path", "str", "os.path.abspath", "os.fspath", "pathlib.PosixPath")
            and arguments
        ):
            return arguments[0]
        if name in ("os.getenv", "os.environ.get") and arguments[:1] == ["HOME"]:
            return self.home
        if name.endswith(".joinpath") and isinstance(base, str) and all(isinstance(each, str) for each in arguments):
            return join(base, *[str(each) for each in arguments])
        if name.endswith((".expanduser", ".resolve", ".absolute")) and isinstance(base, str):
            return base
        if name in ("pathlib.Path.home", "os.path.expandvars"):
            return self.home if name.endswith("home") else expand_home(arguments[0], self.home) if arguments else None
        if name == "os.path.join" and all(isinstance(argument, str) for argument in arguments):
            return join(*[str(argument) for argument in arguments]) if arguments else None
        return None


def expand_home(value: object, home: str) -> object:
    return re.sub(r"\$\{?HOME\}?", lambda _: home, value) if isinstance(value, str) else value


def codes_in(value: object, below: int = 0x110000) -> list[int]:
    """The numbers of letters in a list or in bytes; none if something else is in it."""
    codes = list(value) if isinstance(value, list | bytes) else []
    return codes if all(isinstance(each, int) and 0 <= each < below for each in codes) else []


def is_nested(value: object) -> bool:
    """True for a list of lists; nesting these again and again would grow endlessly."""
    return isinstance(value, list) and any(isinstance(item, list) for item in value)


def weight(value: object) -> int:
    """Roughly how many characters a value contains."""
    if isinstance(value, list):
        return sum(ITEM + (len(item) if isinstance(item, str | bytes | list) else 0) for item in value)
    return len(value) if isinstance(value, str | bytes) else 0
