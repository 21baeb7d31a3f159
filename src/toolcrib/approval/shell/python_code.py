"""Finds the calls in Python code that delete, run commands, fetch code or touch secrets, using `ast`."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import replace

from toolcrib.approval.shell.judge import judge_write
from toolcrib.approval.shell.local_services import judge_service_code
from toolcrib.approval.shell.model import MAX_PATH, UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.paths import ENV_FILE, is_protected, is_secret, place, reached
from toolcrib.approval.shell.python_constants import ConstantReader
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.script_code import BARE_SHELL
from toolcrib.approval.shell.secret_files import is_workspace, may_name_secret, secret_below
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
READS_PASSWORDS = re.compile(
    r"(?:keyring|browser_cookie3?|pycookiecheat|secretstorage|win32crypt|lazagne|pypykatz|mimikatz|pynput|keyboard|pyautogui|pyperclip"
    r"|mss|pyscreenshot|sounddevice|pyaudio)(?:\.|$)"
)
GETS_KEYS = name_set("get_credentials get_frozen_credentials get_session_token get_secret_value assume_role")
CLOUD_KITS = name_set("boto3 botocore aioboto3 aiobotocore")
MAX_CODE = 40_000
MAX_NESTING = 60
SUSPICIOUS = re.compile(
    r"\b(?:system|popen|subprocess|rmtree|exec|eval|socket|fork|urlopen|requests|unlink|remove|kill|__import__)\b"
)
SHELL_CALLS = name_set(
    "os.system os.popen os.popen2 os.popen3 os.popen4 subprocess.getoutput subprocess.getstatusoutput "
    "commands.getoutput "
    "commands.getstatusoutput pty.spawn asyncio.create_subprocess_shell asyncio.subprocess.create_subprocess_shell "
    "pexpect.spawn pexpect.run pexpect.runu pexpect.popen_spawn.PopenSpawn invoke.run platform.popen "
    "IPython.get_ipython.system posix.system nt.system"
)
PROCESS_CALLS = frozenset({f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")})
EXEC_NAMES = name_set(
    "execv execve execvp execvpe execl execlp execle execlpe spawnl spawnle spawnlp spawnlpe spawnv "
    "spawnve spawnvp spawnvpe "
    "posix_spawn posix_spawnp"
)
EXEC_CALLS = frozenset(f"{module}.{name}" for module in ("os", "posix") for name in EXEC_NAMES) | name_set(
    "asyncio.create_subprocess_exec asyncio.subprocess.create_subprocess_exec"
)
DELETE_CALLS = frozenset({"shutil.rmtree", "os.removedirs", "distutils.dir_util.remove_tree", "send2trash.send2trash"})
PASSED_ON = (
    SHELL_CALLS
    | PROCESS_CALLS - {"subprocess.Popen"}
    | EXEC_CALLS
    | DELETE_CALLS
    | name_set("exec eval os.unlink os.remove")
)
"""Functions that must not be passed to other functions, which would call them with values that nobody sees."""
NATIVE = re.compile(r"(?:ctypes|_ctypes|cffi)(?:\.|$)")
LOADS_FILE = name_set(
    "runpy.run_path runpy.run_module imp.load_source imp.load_module importlib.util.spec_from_file_location "
    "importlib.machinery.SourceFileLoader execfile"
)
CHANGES_FOLDER = name_set("os.chdir os.fchdir contextlib.chdir posix.chdir")
UNPACKS_OVER = frozenset({"root", "home", "system_root", "system", "home_config", "secret"})
UNPACKS = name_set("pickle.load pickle.loads marshal.loads dill.load cloudpickle.load")
COPIES = name_set(
    "shutil.move shutil.copy shutil.copyfile shutil.copy2 shutil.copytree os.rename os.replace os.symlink os.link"
)
WRITING = re.compile(r"^[rwax+bt]*[wax+]")
CONSOLES = name_set(
    "code.interact code.InteractiveConsole code.InteractiveInterpreter code.compile_command codeop.compile_command "
    "IPython.embed IPython.start_ipython"
)
TIMED = name_set("timeit.timeit timeit.repeat timeit.Timer cProfile.run profile.run pdb.run pdb.runeval")
"""Functions that run the code in their strings."""
READS = re.compile(
    r"(?:^|\.)(?:open|read\w*|exists|lexists|is\w+|l?stat|listdir|scandir|walk|r?glob|iterdir|join"
    r"|expanduser|expandvars"
    r"|abspath|realpath|resolve|absolute|dirname|basename|relpath|normpath|split\w*|print|pprint|str|repr"
    r"|len|format|fspath"
    r"|Path|PosixPath|PurePath|load\w*|parse\w*|getsize|getmtime|append|startswith|endswith|replace_"
    r"|with_\w+|get|getenv"
    r"|setdefault|connect|config|Popen|run|call|check_call|check_output|system|popen|close|add_argument"
    r"|samefile|loads"
    r"|readlines|from_file|ConfigParser|input|sorted|list|set|tuple|dict|isinstance|fullmatch|match"
    r"|search|compile|sha\w+"
    r"|md5|home|cwd|getcwd)$"
)
"""Calls that leave the files named by their arguments as they are, or that are judged elsewhere."""
FETCHES = re.compile(
    r"(?:^|\.)(?:urlopen|urlretrieve)$|^(?:requests|httpx|urllib3|aiohttp)\.\w+|"
    r"^socket\.(?:socket|create_connection)$|^http\.client\.\w+"
)
SENDS = re.compile(
    r"^(?:requests|httpx)\.(?:post|put|request|patch|get)$|urlopen$|Request$|\.sendall?$|\.storbinary$|\.sendmail$|^webbrowser\.open"
)


WALKS = re.compile(r"\bwalk\b|rglob|glob\(|listdir|scandir|iterdir|fwalk")
WALKS_FOLDER = re.compile(r"(?:^|\.)(?:walk|fwalk|r?glob|iglob|listdir|scandir|iterdir)$")
TAKES_FOLDER = name_set("shutil.make_archive shutil.copytree tarfile.TarFile.add shutil._make_tarball")
OPENS = re.compile(
    r"\bopen|read|input|load|get|cop(?:y|ies)|move|rename|send|archive|\badd\b|write|link|mmap|urlopen|spawn|from\w*file"
)
"""What code that takes the content of a file contains."""
ONLY_LOOKS = re.compile(
    r"(?:^|\.)(?:l?exists|is\w+|l?stat|print|pprint|getsize|getmtime|basename|dirname|startswith|endswith|add_argument|join"
    r"|expanduser|abspath|realpath|resolve|absolute|relpath|normpath|str|len|repr|Path|PosixPath|PurePath|append|joinpath"
    r"|with_\w+|format|split\w*|mkdir|makedirs|chmod|touch|error|info|debug|warning|exit|replace|match|search|compile|home)$"
)
"""Calls that name a file without taking its content."""


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
    judge_service_code(runner, code, call, site)
    reader = _Reader(runner, call, site, walks=WALKS.search(code) is not None, opens=OPENS.search(code) is not None)
    try:
        reader.visit(tree)
    except RecursionError:
        runner.report("unknown_code", "runs Python code that is nested too deeply", site)
    runner.spend(reader.looks // 20)


class _Reader(ConstantReader):
    def __init__(self, runner: Runner, call: CommandCall, site: CommandLocation, *, walks: bool, opens: bool) -> None:
        super().__init__(call.state.home)
        self.opens = opens
        """Whether the code takes the content of files."""
        self.walks = walks
        """Whether the code goes through the files of a folder."""
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
        elif READS_PASSWORDS.match(name):
            self.report("credential", f"uses {name}, which reads stored passwords or records the person")

    def visit_Assign(self, node: ast.Assign) -> None:  # noqa: N802 - the name that ast calls
        plain = isinstance(node.value, ast.Name | ast.Attribute) and all(
            isinstance(one, ast.Name) for one in node.targets
        )
        if not plain:
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
                if dotted and not dotted.startswith("."):
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
        self.judge_lookup(name, node)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in GETS_KEYS and not self.names.keys().isdisjoint(CLOUD_KITS):
            self.report("credential", f"calls {method}, which gets the keys of an account")
        imported = self.constant(node.args[0]) if name in IMPORTS and node.args else None
        if isinstance(imported, str):
            self.judge_import("toolcrib.__main__" if (name, imported) == ("runpy.run_module", "toolcrib") else imported)
        self.follow_folder(name, node)
        self.judge_call(name, node)
        self.judge_unpacking(name, node)
        self.judge_passed_on(node)
        if not READS.search(name):
            self.judge_protected(node)
        if self.opens:
            self.judge_secrets(name, node)
        self.generic_visit(node)
        self.depth -= 1

    def visit_Constant(self, node: ast.Constant) -> None:  # noqa: N802 - the name that ast calls
        if self.opens and isinstance(node.value, str) and "/" in node.value:
            self.judge_secret(node.value)

    def judge_secrets(self, name: str, node: ast.Call) -> None:
        """Report a secret that a function gets, whatever its name, and a walk through a folder that holds one."""
        own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        values = [self.constant(each) for each in (*node.args, *own, *(keyword.value for keyword in node.keywords))]
        if not ONLY_LOOKS.search(name):
            for value in values:
                for each in value if isinstance(value, list) else [value]:
                    self.judge_secret(each.decode("utf-8", "replace") if isinstance(each, bytes) else each)
        takes = name in TAKES_FOLDER or (name.endswith(".add") and "tarfile" in self.names)
        if takes or (self.walks and WALKS_FOLDER.search(name)):
            self.judge_walk(name, [value for value in values if isinstance(value, str)])

    def judge_secret(self, value: object) -> None:
        if not isinstance(value, str) or not 3 < len(value) < MAX_PATH or self.secret:
            return
        path = self.path(value.removeprefix("file://"))
        if path[:1] == "/" and is_secret(path) and not is_workspace(path, self.call.state):
            self.secret = True
            shown = path.replace(UNKNOWN, "…")
            self.runner.report("credential", f"may read the secret {shown}", self.site, paths=(path,))

    def judge_walk(self, name: str, given: list[str]) -> None:
        pattern = given[0] if name.endswith("glob") and given else ""
        if pattern and pattern[0] not in "/~" and not may_name_secret(pattern):
            return
        for each in given:
            folder = ExpandedWord(self.path(each), glob="*" in each or "?" in each)
            found = secret_below(folder, self.call.state) if folder.text[:1] == "/" else ""
            if found:
                self.runner.report("credential", f"may read every file in {found}, which holds secrets", self.site)
                return

    def follow_folder(self, name: str, node: ast.Call) -> None:
        """Follow a change of the current folder, which later relative paths are relative to."""
        if name not in CHANGES_FOLDER or not node.args:
            return
        folder = self.constant(node.args[0])
        state = self.call.state.copy()
        state.cwd_known = isinstance(folder, str) and UNKNOWN not in folder
        state.cwd = self.path(folder) if isinstance(folder, str) else state.cwd
        self.call = replace(self.call, state=state)

    def judge_unpacking(self, name: str, node: ast.Call) -> None:
        """Report an archive that is unpacked where its files may replace what the user's programs run."""
        if not name.endswith((".extractall", ".unpack_archive")):
            return
        given = node.args[1:2] if name == "shutil.unpack_archive" else node.args[:1]
        named = [each.value for each in node.keywords if each.arg in ("path", "extract_dir")]
        folder = self.constant((given or named)[0]) if given or named else "."
        path = self.path(folder) if isinstance(folder, str) else ""
        if path and place(path, self.call.state) in UNPACKS_OVER:
            self.runner.report("system_config", f"unpacks files of any name into {path}", self.site, paths=(path,))

    def judge_lookup(self, name: str, node: ast.Call) -> None:
        """Report functions that are looked up in a way that hides which one is called."""
        if name.endswith((".__subclasses__", ".__globals__", ".__builtins__", ".__getattribute__")):
            self.report("unknown_code", "looks up functions in a way that cannot be followed")
        if name == "getattr" and len(node.args) > 1 and self.constant(node.args[1]) is None:
            module = self.dotted(node.args[0])
            if module in ("os", "subprocess", "shutil", "builtins", "pty", "ctypes", "posix", "sys"):
                self.report("unknown_code", f"calls a function of {module} that is only known at run time")

    def visit_Subscript(self, node: ast.Subscript) -> None:  # noqa: N802 - the name that ast calls
        if self.dotted(node.value).endswith(("__builtins__", "__builtins__.__dict__", "builtins.__dict__")):
            self.report("unknown_code", "looks up functions in a way that cannot be followed")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:  # noqa: N802 - the name that ast calls
        if node.attr == "TIOCSTI":
            self.report("unknown_code", "types into a terminal")
        self.generic_visit(node)

    def judge_passed_on(self, node: ast.Call) -> None:
        """Report a dangerous function among the arguments of another: `map(os.system, …)`."""
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(argument, ast.Name | ast.Attribute) and self.dotted(argument) in PASSED_ON:
                self.report("unknown_code", f"passes on {self.dotted(argument)}, to be called with other values")

    def judge_protected(self, node: ast.Call) -> None:
        """Report a protected path that a call may change: among its arguments, or the path whose method it is."""
        given: list[ast.expr] = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call | ast.BinOp | ast.Name):
            given.append(node.func.value)
        for each in given:
            value = self.constant(each)
            path = self.path(value) if isinstance(value, str) and 1 < len(value) < MAX_PATH else ""
            if path and is_protected(path, self.call.state):
                self.runner.report(
                    "system_config",
                    f"may change {path.replace(UNKNOWN, '…')}, which the user's programs run or read commands from",
                    self.site,
                    paths=(path,),
                )

    def judge_code(self, name: str, node: ast.Call, first: object) -> None:
        """Judge calls that load or run code other than a command."""
        state = self.call.state
        if NATIVE.match(name):
            self.report("unknown_code", "calls native code, which cannot be analysed")
        elif name in LOADS_FILE:
            self.load_file(node)
        elif name in ("pip.main", "pip._internal.main", "pip._internal.cli.main.main") and isinstance(first, list):
            words = [ExpandedWord(str(word)) for word in ("pip", *first)]
            self.runner.invoke(words, state.copy(), None, self.site)
        elif name == "webbrowser.get" and isinstance(first, str) and " " in first:
            self.runner.run_text(first, state.copy(), None, self.site)
        elif name in UNPACKS and any(
            isinstance(inner, ast.Attribute) and self.dotted(inner).startswith("sys.stdin") for inner in ast.walk(node)
        ):
            self.report("unknown_code", "unpacks objects from its input, which may run code")
        elif name == "fileinput.input" and any(each.arg == "inplace" for each in node.keywords):
            self.judge_protected(node)
        elif name in TIMED:
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                code = self.constant(each)
                if isinstance(code, str):
                    judge_python(self.runner, code, self.call, self.site)
        elif name in CONSOLES:
            self.report("unknown_code", "reads code from its input and runs it")
        elif name in ("sys.path.insert", "sys.path.append", "site.addsitedir"):
            self.search_path(node)

    def judge_call(self, name: str, node: ast.Call) -> None:
        first = self.constant(node.args[0]) if node.args else None
        self.judge_code(name, node, first)
        if name in ("__import__", "importlib.import_module", "runpy.run_module") and isinstance(first, str):
            self.judge_import("toolcrib.__main__" if name.startswith("runpy") and first == "toolcrib" else first)
        if name in SHELL_CALLS or name in PROCESS_CALLS or name in EXEC_CALLS:
            self.run_command(name, node)
        elif name in ("exec", "eval", "compile", "builtins.exec", "builtins.eval"):
            self.run_python(name, node)
        elif name in DELETE_CALLS or name.endswith(".rmtree"):
            self.delete(first)
        elif name == "os.open" and len(node.args) > 1 and self.dotted(node.args[1]) != "os.O_RDONLY":
            self.write(first)
        elif name.endswith(".open") and isinstance(node.func, ast.Attribute) and WRITING.search(str(first or "")):
            self.write(self.constant(node.func.value))
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
        elif name in COPIES and len(node.args) > 1:
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

    def load_file(self, node: ast.Call) -> None:
        """Report a file that is loaded as code although it is neither the project's nor installed."""
        for argument in node.args:
            value = self.constant(argument)
            is_path = isinstance(value, str) and value.startswith(("/", "~"))
            if is_path and place(self.path(str(value)), self.call.state) in ("temporary", "outside"):
                self.report("unknown_code", f"runs the file {value}")

    def search_path(self, node: ast.Call) -> None:
        folder = self.constant(node.args[-1]) if node.args else None
        if isinstance(folder, str) and place(self.path(folder) + "/x", self.call.state) == "temporary":
            self.report("unknown_code", f"loads code from {folder}, where anybody may put it")

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
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in ("args", "cmd", "command"))]
        if ".spawn" in name and name.startswith(("os.", "posix.")):
            # The first argument says how to wait.
            given = given[1:]
        if given:
            self.run_given(name, given)

    def run_given(self, name: str, given: list[ast.expr]) -> None:
        value = self.constant(given[0])
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if name == "pty.spawn":
            self.report("remote_code" if self.sockets else "unknown_code", "opens a shell on a terminal of its own")
        if name == "pty.spawn" and self.sockets:
            return
        if isinstance(value, str):
            if BARE_SHELL.match(value):
                self.report("unknown_code", "opens a shell from inside Python")
            self.runner.run_text(value, self.call.state.copy(), None, self.site)
        elif isinstance(value, list):
            if self.sockets and BARE_SHELL.match(" ".join(map(str, value))):
                self.report("remote_code", "connects a shell to the network")
            self.runner.invoke(
                [ExpandedWord(str(word)) for word in value], self.call.state.copy(), None, self.site
            ) if value else None
        elif name in EXEC_CALLS and len(given) > 1:
            words = [self.constant(each) for each in given]
            if isinstance(words[-1], list):
                self.runner.invoke(
                    [ExpandedWord(str(word)) for word in words[-1]], self.call.state.copy(), None, self.site
                )
        elif self.is_fetched(given[0]):
            self.report("remote_code", "runs a command that was fetched or decoded")
        else:
            self.report("unknown_code", "runs a command from Python that is only known at run time")
        if name in EXEC_CALLS and isinstance(value, str) and len(given) > 1:
            listed = self.constant(given[1])
            words = listed if isinstance(listed, list) else [self.constant(each) for each in given[1:]]
            fields = [ExpandedWord(UNKNOWN if word is None else str(word)) for word in words]
            if fields:
                self.runner.invoke([ExpandedWord(value), *fields[1:]], self.call.state.copy(), None, self.site)

    def run_python(self, name: str, node: ast.Call) -> None:
        if not node.args:
            return
        value = self.constant(node.args[0])
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
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
        elif self.walks:
            self.report("recursive_delete", "deletes many files")

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
