"""Which files Python code would write or delete, as far as its text shows."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field

from toolcrib.approval.shell.model import UNKNOWN
from toolcrib.approval.shell.python_constants import ConstantReader

MAX_CODE = 200_000
MAX_CONSTANTS = 200
MAX_PATH_CHARS = 400

# Which arguments are paths that the function writes or removes.
FUNCTIONS: dict[str, tuple[int, ...]] = {
    "os.remove": (0,),
    "os.unlink": (0,),
    "os.rmdir": (0,),
    "os.removedirs": (0,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.mkdir": (0,),
    "os.makedirs": (0,),
    "os.rename": (0, 1),
    "os.renames": (0, 1),
    "os.replace": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
    "shutil.copy": (1,),
    "shutil.copy2": (1,),
    "shutil.copyfile": (1,),
    "shutil.copymode": (1,),
    "shutil.copytree": (1,),
    "shutil.unpack_archive": (1,),
}
METHODS = frozenset(
    "write_text write_bytes unlink rmdir touch chmod mkdir rename replace symlink_to hardlink_to".split()  # noqa: SIM905
)
OPENERS = frozenset({"open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile"})
CHANGES = re.compile(
    r"\b(?:open|write\w*|remove\w*|unlink|rmtree|rmdir|rename\w*|replace|move|copy\w*|truncate|chmod|touch|symlink\w*|"
    r"to_csv|to_json|to_parquet|to_excel|save\w*|dump|savefig|system|subprocess|extractall|unpack_archive|"
    r"unlinkSync|rm|rmSync|rmdirSync|renameSync|appendFile\w*|delete|file_put_contents)\b"
)


@dataclass(slots=True)
class CodeFiles:
    """What the code says about files."""

    paths: dict[str, None] = field(default_factory=dict)
    trees: dict[str, None] = field(default_factory=dict)
    """Folders that are removed or created as a whole."""
    mentioned: dict[str, None] = field(default_factory=dict)
    """Strings in code that changes files; they may name one of them."""
    hidden: bool = False
    """Whether a path is only known when the code runs."""


def files_of_code(code: str, home: str) -> CodeFiles:
    """The files that the code names."""
    found = CodeFiles()
    if not CHANGES.search(code):
        return found
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code[:MAX_CODE].replace(UNKNOWN, "_unknown_"))
        reader = _Reader(home, found)
        reader.visit(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found.hidden = True
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_be_path(node.value):
            found.mentioned[node.value] = None
            if len(found.mentioned) >= MAX_CONSTANTS:
                break
    return found


def _may_be_path(text: str) -> bool:
    return 0 < len(text) <= MAX_PATH_CHARS and "\n" not in text and "\0" not in text and text not in (".", "..", "/")


class _Reader(ConstantReader):
    def __init__(self, home: str, found: CodeFiles) -> None:
        super().__init__(home)
        self._found = found

    def visit_Assign(self, node: ast.Assign) -> None:  # noqa: N802 - the name that ast calls
        self.generic_visit(node)
        value = self.constant(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                if value is not None:
                    self.values[target.id] = value
                else:
                    self.values.pop(target.id, None)

    def visit_Call(self, node: ast.Call) -> None:  # noqa: N802
        self.generic_visit(node)
        name = self.dotted(node.func)
        if name in FUNCTIONS:
            whole = name in ("shutil.rmtree", "shutil.move", "os.rename", "os.replace", "shutil.copytree")
            for number in FUNCTIONS[name]:
                if number < len(node.args):
                    self._add(node.args[number], whole)
        elif name in OPENERS and node.args:
            if self._writes(node):
                self._add(node.args[0], whole=False)
        elif isinstance(node.func, ast.Attribute):
            self._method(node, node.func)

    def _method(self, node: ast.Call, method: ast.Attribute) -> None:
        if method.attr not in METHODS and not (method.attr == "open" and self._writes(node, position=0)):
            return
        owner = self.constant(method.value)
        if isinstance(owner, str):
            self._add(method.value, whole=method.attr in ("rename", "replace"))
            if method.attr in ("rename", "replace") and len(node.args) == 1:
                self._add(node.args[0], whole=False)
        elif method.attr != "replace":  # `replace` is usually `str.replace`.
            self._found.hidden = True

    def _writes(self, node: ast.Call, position: int = 1) -> bool:
        given = node.args[position] if len(node.args) > position else None
        given = given or next((one.value for one in node.keywords if one.arg == "mode"), None)
        mode = self.constant(given) if given is not None else "r"
        return not isinstance(mode, str) or re.search(r"[wax+]", mode) is not None

    def _add(self, node: ast.expr, whole: bool) -> None:
        path = self.constant(node)
        if not isinstance(path, str) or UNKNOWN in path or not path:
            self._found.hidden = True
            return
        path = self.home + path[1:] if path == "~" or path.startswith("~/") else path
        (self._found.trees if whole else self._found.paths)[path] = None
