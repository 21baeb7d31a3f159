"""Finds the calls in Python code that delete, run commands, fetch code or touch secrets, using `ast`."""

from __future__ import annotations

import ast
import re
import warnings

from toolcrib.approval.shell.judge import judge_write
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord
from toolcrib.approval.shell.paths import ENV_FILE, is_secret, place, reached
from toolcrib.approval.shell.python_constants import ConstantReader
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.sql import sql_danger

OUR_CONTROLS = re.compile(
    r"toolcrib\.(?:__main__|cli|config\.(?:edit|secrets|files)|approval\.grants|skills\.authorship|cron|undo"
    r"|mcp\.(?:trust|login)|compat\.(?:tools_approval|approval_sessions))(?:\.|$)|hermes_cli(?:\.|$)|tools\.approval(?:\.|$)"
)
"""Modules that change settings, grants, schedules or history."""
OUR_HARMLESS_PARTS = re.compile(
    r"toolcrib(?:\.(?:version|registry|testing|core|definitions|toolsets|__version__|tool|Effect|ToolContext|ToolResult"
    r"|get_tool_definitions|get_all_tool_names|tool_result|tool_error)(?:\.|$)|$)"
)
IMPORTS = frozenset({"__import__", "importlib.import_module", "runpy.run_module"})
MAX_CODE = 40_000
MAX_NESTING = 60
SUSPICIOUS = re.compile(
    r"\b(?:system|popen|subprocess|rmtree|exec|eval|socket|fork|urlopen|requests|unlink|remove|kill|__import__)\b"
)
SHELL_CALLS = frozenset(
    {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput", "pty.spawn"}
)
PROCESS_CALLS = frozenset({f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")})
EXEC_CALLS = frozenset(
    f"os.{name}"
    for name in (
        "execv",
        "execve",
        "execvp",
        "execvpe",
        "execl",
        "execlp",
        "execle",
        "spawnl",
        "spawnv",
        "spawnlp",
        "spawnvp",
        "posix_spawn",
    )
)
FETCHES = re.compile(
    r"(?:^|\.)(?:urlopen|urlretrieve)$|^(?:requests|httpx|urllib3|aiohttp)\.\w+|"
    r"^socket\.(?:socket|create_connection)$|^http\.client\.\w+"
)
SENDS = re.compile(
    r"^(?:requests|httpx)\.(?:post|put|request|patch|get)$|urlopen$|Request$|\.sendall?$|\.storbinary$|\.sendmail$"
)


def judge_python(runner: Runner, code: str, call: CommandCall, site: CommandLocation) -> None:
    """Report what Python code would do; code that does not parse is reported if it looks dangerous."""
    if code.strip() == UNKNOWN or len(code) > MAX_CODE:
        runner.report("unknown_code", "runs Python code that cannot be analysed", site)
        return
    runner.spend(len(code) // 40)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code.replace(UNKNOWN, "_unknown_"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if SUSPICIOUS.search(code):
            runner.report("unknown_code", "runs Python code that cannot be analysed", site)
        return
    reader = _Reader(runner, call, site)
    try:
        reader.visit(tree)
    except RecursionError:
        runner.report("unknown_code", "runs Python code that is nested too deeply", site)
    runner.spend(reader.looks // 20)


class _Reader(ConstantReader):
    def __init__(self, runner: Runner, call: CommandCall, site: CommandLocation) -> None:
        super().__init__(call.state.home)
        self.runner = runner
        self.call = call
        self.site = site
        self.fetched: set[str] = set()
        self.secret = False
        self.depth = 0
        self.sockets = False

    def visit_Import(self, node: ast.Import) -> None:  # noqa: N802 - the name that ast calls
        super().visit_Import(node)
        for alias in node.names:
            self.judge_import(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802 - the name that ast calls
        super().visit_ImportFrom(node)
        for alias in node.names:
            self.judge_import(f"{node.module}.{alias.name}")

    def judge_import(self, name: str) -> None:
        """Report code that uses toolcrib itself for more than declaring and listing tools."""
        if OUR_CONTROLS.match(name):
            self.report("own_program", "would change what this session or a later one is allowed to do")
        elif name.startswith("toolcrib") and not OUR_HARMLESS_PARTS.match(name):
            self.report("unknown_code", "uses toolcrib outside this session")

    def visit_Assign(self, node: ast.Assign) -> None:  # noqa: N802 - the name that ast calls
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                value = self.constant(node.value)
                if value is not None:
                    self.values[target.id] = value
                else:
                    self.values.pop(target.id, None)
                if self.is_fetched(node.value):
                    self.fetched.add(target.id)
                dotted = self.dotted(node.value)
                if dotted:
                    self.names[target.id] = dotted

    def visit_While(self, node: ast.While) -> None:  # noqa: N802 - the name that ast calls
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        forks = any(
            isinstance(inner, ast.Call) and self.dotted(inner.func) in ("os.fork", "multiprocessing.Process")
            for inner in self.inside(node)
        )
        if forks and (endless or any(isinstance(inner, ast.Call) for inner in ast.walk(node.test))):
            self.report("fork_bomb", "forks endlessly", block=True)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:  # noqa: N802 - the name that ast calls
        self.look_for_forks(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:  # noqa: N802 - the name that ast calls
        self.look_for_forks(node)

    def look_for_forks(self, node: ast.AST) -> None:
        if any(isinstance(inner, ast.Call) and self.dotted(inner.func) == "os.fork" for inner in self.inside(node)):
            self.report("fork_bomb", "forks many times")
        self.generic_visit(node)

    def inside(self, node: ast.AST) -> list[ast.AST]:
        """A loop and everything in it; nested loops are walked once from every level."""
        nodes = list(ast.walk(node))
        self.look(len(nodes) // 4)
        return nodes

    def visit_Call(self, node: ast.Call) -> None:  # noqa: N802 - the name that ast calls
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise RecursionError
        name = self.dotted(node.func)
        imported = self.constant(node.args[0]) if name in IMPORTS and node.args else None
        if isinstance(imported, str):
            self.judge_import("toolcrib.__main__" if (name, imported) == ("runpy.run_module", "toolcrib") else imported)
        self.judge_call(name, node)
        self.generic_visit(node)
        self.depth -= 1

    def judge_call(self, name: str, node: ast.Call) -> None:
        first = self.constant(node.args[0]) if node.args else None
        if name in SHELL_CALLS or name in PROCESS_CALLS or name in EXEC_CALLS:
            self.run_command(name, node)
        elif name in ("exec", "eval", "compile", "runpy.run_path", "builtins.exec", "builtins.eval"):
            self.run_python(name, node)
        elif name in (
            "shutil.rmtree",
            "os.removedirs",
            "distutils.dir_util.remove_tree",
            "send2trash.send2trash",
        ) or name.endswith(".rmtree"):
            self.delete(first)
        elif name in ("os.remove", "os.unlink", "os.rmdir", "os.truncate", "pathlib.Path.unlink") or name.endswith(
            (".unlink", ".rmdir")
        ):
            self.remove_file(first, node)
        elif name in ("os.kill", "os.killpg"):
            self.kill(node)
        elif name in ("os.chmod", "pathlib.Path.chmod") or name.endswith(".chmod"):
            mode = self.constant(node.args[-1]) if node.args else None
            if isinstance(mode, int) and mode & 0o002:
                self.report("permissions", "makes a file world-writable")
        elif name in ("open", "io.open", "builtins.open", "pathlib.Path", "codecs.open"):
            self.open_file(first, node)
        elif (
            name
            in (
                "shutil.move",
                "shutil.copy",
                "shutil.copyfile",
                "shutil.copy2",
                "os.rename",
                "os.replace",
                "os.symlink",
                "shutil.copytree",
            )
            and len(node.args) > 1
        ):
            self.write(self.constant(node.args[1]))
            self.read(first)
        elif name.endswith((".write_text", ".write_bytes")) and isinstance(node.func, ast.Attribute):
            self.write(self.constant(node.func.value))
        elif name == "os.dup2" and self.sockets:
            self.report("remote_code", "connects a shell to the network")
        if name.endswith((".execute", ".executescript", ".executemany", ".execute_sql", ".read_sql")) and isinstance(
            first, str
        ):
            reason = sql_danger(first)
            if reason:
                self.report("sql", reason)
        if name.endswith(
            (".all.delete", ".objects.delete", ".drop_all", ".dropDatabase", ".drop_database", ".flushall", ".flushdb")
        ):
            self.report("sql", "deletes every row of a table")
        if name in ("socket.socket", "socket.create_connection"):
            self.sockets = True
        if SENDS.search(name) and self.sends_secret(node):
            self.report("exfiltration", "sends a secret over the network")

    def sends_secret(self, node: ast.Call) -> bool:
        if self.secret and not name_is_plain_get(node):
            return True
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and self.dotted(inner.func) == "open" and inner.args:
                path = self.constant(inner.args[0])
                if isinstance(path, str) and (is_secret(self.path(path)) or ENV_FILE.search(path)):
                    return True
            if (
                isinstance(inner, ast.Attribute)
                and self.dotted(inner) == "os.environ"
                and not isinstance(inner.ctx, ast.Store)
                and self.whole_environment(node, inner)
            ):
                return True
        return False

    def whole_environment(self, node: ast.Call, environment: ast.Attribute) -> bool:
        """True when all of `os.environ` is passed, not just one variable."""
        return not any(
            isinstance(inner, ast.Subscript) and inner.value is environment for inner in ast.walk(node)
        ) and not any(isinstance(inner, ast.Attribute) and inner.value is environment for inner in ast.walk(node))

    def run_command(self, name: str, node: ast.Call) -> None:
        if not node.args:
            return
        value = self.constant(node.args[0])
        if name == "pty.spawn" and self.sockets:
            self.report("remote_code", "connects a shell to the network")
        elif isinstance(value, str):
            self.runner.run_text(value, self.call.state.copy(), None, self.site)
        elif isinstance(value, list):
            self.runner.invoke(
                [ExpandedWord(str(word)) for word in value], self.call.state.copy(), None, self.site
            ) if value else None
        elif name in EXEC_CALLS and len(node.args) > 1:
            words = [self.constant(each) for each in node.args]
            if isinstance(words[-1], list):
                self.runner.invoke(
                    [ExpandedWord(str(word)) for word in words[-1]], self.call.state.copy(), None, self.site
                )
        elif self.is_fetched(node.args[0]):
            self.report("remote_code", "runs a command that was fetched or decoded")
        else:
            self.report("unknown_code", "runs a command from Python that is only known at run time")
        if name in EXEC_CALLS and isinstance(value, str) and len(node.args) > 1:
            listed = self.constant(node.args[1])
            words = listed if isinstance(listed, list) else [self.constant(each) for each in node.args[1:]]
            fields = [ExpandedWord(UNKNOWN if word is None else str(word)) for word in words]
            if fields:
                self.runner.invoke([ExpandedWord(value), *fields[1:]], self.call.state.copy(), None, self.site)

    def run_python(self, name: str, node: ast.Call) -> None:
        if not node.args:
            return
        value = self.constant(node.args[0])
        if isinstance(value, str):
            judge_python(self.runner, value, self.call, self.site)
        elif self.is_fetched(node.args[0]):
            self.report("remote_code", "evaluates code that was fetched or decoded")
        elif name not in ("compile",):
            self.report("unknown_code", "evaluates code that is only known at run time")

    def is_fetched(self, node: ast.expr) -> bool:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and (
                FETCHES.search(self.dotted(inner.func))
                or re.search(r"b64decode|decompress|fromhex|unhexlify|loads$", self.dotted(inner.func))
            ):
                return True
            if isinstance(inner, ast.Name) and inner.id in self.fetched:
                return True
        return False

    def delete(self, path: object) -> None:
        shown = path if isinstance(path, str) else UNKNOWN
        resolved = self.path(shown)
        block = isinstance(path, str) and place(resolved, self.call.state) in ("root", "home", "system_root")
        self.runner.report(
            "recursive_delete",
            f"deletes {resolved.replace(UNKNOWN, '…')} and everything in it",
            self.site,
            severity="block" if block else "ask",
            paths=(resolved,),
        )

    def remove_file(self, path: object, node: ast.Call) -> None:
        if isinstance(path, str):
            self.write(path)
        elif isinstance(node.func, ast.Attribute) and self.constant(node.func.value) is not None:
            self.write(self.constant(node.func.value))
        elif self.in_loop(node):
            self.report("recursive_delete", "deletes many files")

    def in_loop(self, _node: ast.Call) -> bool:
        return re.search(r"os\.walk|rglob|glob\(|listdir|scandir", self.call.text) is not None

    def kill(self, node: ast.Call) -> None:
        target = self.constant(node.args[0]) if node.args else None
        if target == -1:
            self.report("kill", "kills every process", block=True)
        elif target in (0, 1):
            self.report("kill", "kills processes that belong to others")

    def open_file(self, path: object, node: ast.Call) -> None:
        if not isinstance(path, str):
            return
        mode = (
            self.constant(node.args[1])
            if len(node.args) > 1
            else next((self.constant(k.value) for k in node.keywords if k.arg == "mode"), "r")
        )
        if isinstance(mode, str) and re.search(r"[wax+]", mode):
            self.write(path)
        else:
            self.read(path)

    def write(self, path: object) -> None:
        if isinstance(path, str):
            judge_write(self.runner, self.path(path), ExpandedWord(path), self.call.state, self.site)

    def read(self, path: object) -> None:
        if isinstance(path, str) and is_secret(self.path(path)):
            self.secret = True
            self.runner.report("credential", f"reads the secret {path}", self.site, paths=(self.path(path),))

    def path(self, text: str) -> str:
        if text == "~" or text.startswith("~/"):
            text = self.call.state.home + text[1:]
        return reached(text, self.call.state)

    def report(self, key: str, reason: str, *, block: bool = False) -> None:
        self.runner.report(key, reason, self.site, severity="block" if block else "ask")


def name_is_plain_get(node: ast.Call) -> bool:
    """True for a request whose only argument is a literal URL."""
    return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and not node.keywords
