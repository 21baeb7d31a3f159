"""Finds tool files by their syntax, and imports those that declare tools.

A file declares tools if it has a top-level `registry.register(...)` statement or a top-level function decorated with
`@tool`. A file that cannot be imported is reported with the reason; the others still load.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import msgspec

import toolcrib.registry.compat_imports as compat_imports
from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.core.attempt import attempt_everything
from toolcrib.core.types import Source
from toolcrib.registry.compat_imports import explain_missing_module, explain_missing_name, missing_internals
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.install_guard import refusing_installs
from toolcrib.registry.registration import BUILTIN_NAMESPACE, SOURCE_ATTRIBUTE
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import message_of

logger = logging.getLogger(__name__)

NOT_TOOL_FILES = frozenset({"__init__.py", "registry.py", "mcp_tool.py"})
# Increase this when the rule for what declares a tool changes, to invalidate cached verdicts.
SCAN_RULE = 1


class LoadedFile(msgspec.Struct, frozen=True):
    """The outcome of loading one tool file."""

    path: Path
    module: str
    tools: list[str] = msgspec.field(default_factory=list)
    problem: str = ""
    """Why it could not be loaded, as a sentence; empty on success."""
    traceback: str = ""
    """Where its own code raised, for the author."""


class ScanCache:
    """Caches which files declare tools, by modification time and size, to avoid parsing them at every start."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._changed = False
        self._verdicts: dict[str, list[int]] = {}
        if file is not None:
            with suppress(OSError, ValueError, RecursionError):
                known = json.loads(file.read_bytes())
                self._verdicts = known if isinstance(known, dict) else {}

    def declares_tools(self, path: Path) -> bool:
        """Whether the file declares tools; True if it cannot be read or parsed, because importing it shows why."""
        try:
            stat = path.stat()
        except OSError:
            return declares_tools(path)
        stamp = [SCAN_RULE, stat.st_mtime_ns, stat.st_size]
        known = self._verdicts.get(str(path))
        if isinstance(known, list) and known[:3] == stamp and len(known) == 4:
            return bool(known[3])
        verdict = declares_tools(path)
        # Not cached: whether a file can be read depends on more than its time and size.
        if os.access(path, os.R_OK):
            self._verdicts[str(path)] = [*stamp, int(verdict)]
            self._changed = True
        return verdict

    def save(self) -> None:
        if self._file is None or not self._changed:
            return
        # Without a cache, the next start only takes longer.
        with suppress(OSError):
            make_folder(self._file.parent)
            temporary = self._file.with_suffix(f".{os.getpid()}.tmp")
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE), "w") as file:
                json.dump(self._verdicts, file)
            temporary.replace(self._file)
            self._changed = False


def declares_tools(path: Path) -> bool:
    """Whether the file declares tools, or cannot be read or parsed (importing it shows why)."""
    if path.exists() and not path.is_file():
        return False
    try:
        return _declares_tools(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True


# Further runtimes of a process with other homes, and other scan caches, find the same files.
@lru_cache(maxsize=64)
def _declares_tools(source: bytes) -> bool:
    tree = ast.parse(source)
    names = _names_of_the_decorator(tree)
    return any(_is_register_call(node) or _is_decorated(node, names) for node in tree.body)


def _is_register_call(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "register"
        and (
            (isinstance(function.value, ast.Name) and function.value.id == "registry")
            or (isinstance(function.value, ast.Attribute) and function.value.attr == "registry")
        )
    )


def _names_of_the_decorator(tree: ast.Module) -> frozenset[str]:
    """The names by which this file can refer to `@tool`, including import aliases."""
    names = {"tool", "toolcrib.tool"}
    for node in tree.body:
        if isinstance(node, ast.Import):
            names.update(f"{item.asname}.tool" for item in node.names if item.asname and item.name == "toolcrib")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "toolcrib":
            names.update(item.asname for item in node.names if item.asname and item.name == "tool")
    return frozenset(names)


def _is_decorated(node: ast.stmt, names: frozenset[str]) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    used = (decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in node.decorator_list)
    return any(isinstance(target, (ast.Name, ast.Attribute)) and ast.unparse(target) in names for target in used)


def tool_files(folder: Path, cache: ScanCache) -> list[Path]:
    """The files of a folder that declare tools, sorted by name."""
    if not folder.is_dir():
        return []
    candidates = sorted(path for path in folder.glob("*.py") if is_candidate(path))
    return [path for path in candidates if cache.declares_tools(path)]


def is_candidate(path: Path) -> bool:
    """Whether the file name qualifies; hidden files are leftovers of editors and file managers."""
    return path.name not in NOT_TOOL_FILES and not path.name.startswith(".")


def load_builtin_tools(cache: ScanCache | None = None) -> list[LoadedFile]:
    """Imports the built-in tool files; their tools go to the default registry."""
    folder = Path(importlib.import_module(BUILTIN_NAMESPACE).__path__[0])
    reports = []
    for path in tool_files(folder, cache or ScanCache()):
        name = f"{BUILTIN_NAMESPACE}.{path.stem}"
        source = Source("builtin", name, str(path))
        reports.append(_load(path, name, source, default_registry, partial(importlib.import_module, name)))
    return reports


def load_tool_folder(folder: Path, registry: ToolRegistry, cache: ScanCache | None = None) -> list[LoadedFile]:
    """Imports a user's tool files; their tools go to `registry`."""
    try:
        files = tool_files(folder, cache or ScanCache())
    except OSError as error:
        return [LoadedFile(folder, folder.name, [], explain_os_error(error, "read", otherwise=ANOTHER_HOME))]
    return [load_tool_file(path, registry) for path in files]


def load_tool_file(path: Path, registry: ToolRegistry) -> LoadedFile:
    """Imports one tool file again, with the reference system's module names available."""
    compat_imports.install(path.parent).forget(path.stem)
    name = f"{compat_imports.USER_TOOLS_NAMESPACE}.{path.stem}"
    source = Source("user", path.name, str(path))
    return _load(path, name, source, registry, lambda: import_file(name, path, source))


def import_file(name: str, path: Path, source: Source) -> ModuleType:
    """A new module from a file, added to `sys.modules` as `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    setattr(module, SOURCE_ATTRIBUTE, source)
    with ExitStack() as on_failure:
        # A partially loaded module must not keep the name; restore the previous one.
        on_failure.callback(_put_module, name, sys.modules.get(name))
        sys.modules[name] = module
        spec.loader.exec_module(module)
        on_failure.pop_all()
    return module


def _put_module(name: str, module: ModuleType | None) -> None:
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module


def discover_builtin_tools(tools_dir: str | Path | None = None) -> list[str]:
    """Imports the tool files of a folder (the built-in ones by default) and returns their module names."""
    if tools_dir is None:
        loaded: Iterable[LoadedFile] = load_builtin_tools()
    else:
        loaded = load_tool_folder(Path(tools_dir).absolute(), default_registry)
    return [report.module for report in loaded if not report.problem]


def _load(
    path: Path, name: str, source: Source, registry: ToolRegistry, import_module: Callable[[], object]
) -> LoadedFile:
    problem = ""
    with registry.loading(source) as loading, refusing_installs() as installs:
        _, error = attempt_everything(import_module)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error is not None:
            # The contract: report a failing file and load the rest. Undo its registrations: they may need what failed.
            registry.take_back(loading)
            refused = installs.attempts[-1].sentence() if installs.attempts else ""
            problem = refused or explain_import_error(error, path)
        elif loading.replaced_builtins:
            problem = _why_set_aside(path, loading.replaced_builtins)
            if problem:
                registry.take_back(loading)
        if problem:
            logger.warning("skipped tool file %s: %s", path, problem)
        elif installs.attempts:
            logger.warning("tool file %s: %s", path, installs.attempts[-1].sentence())
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    return LoadedFile(path, name, [] if problem else list(dict.fromkeys(loading.registered)), problem, trace)


def _why_set_aside(path: Path, replaced: list[str]) -> str:
    """Why a file may not replace built-in tools: it needs what only the reference system has; "" if it may."""
    missing = missing_internals(path)
    if not missing:
        return ""
    names = ", ".join(map(repr, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    tools = ", ".join(map(repr, dict.fromkeys(replaced)))
    return (
        f"it would replace the built-in {tools}, but it needs {names}, which Hermes Agent has and toolcrib does not "
        "provide; the built-in stays, so you can delete the file"
    )


def explain_import_error(error: BaseException, path: Path | None = None) -> str:
    """Why a file could not be imported, and what to do about it; with its path, also on which line it failed."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return explain_missing_module(error.name)
    if isinstance(error, ImportError) and (missing := explain_missing_name(error)):
        return missing
    if isinstance(error, SyntaxError):
        where = "" if error.lineno is None else f"line {error.lineno}: "
        return f"{where}{error.msg}; correct the file and save it"
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}) while it is imported; move that under `if __name__ == '__main__':`"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {message_of(error)}"
