"""Runs Python like `python`, with the reference system's module names available.

python -m toolcrib.compat script.py ARG …
python -m toolcrib.compat -m pytest tests/
python -m toolcrib.compat -c 'from tools.registry import registry'
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import runpy
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from toolcrib.registry import compat_imports

USAGE = "usage: python -m toolcrib.compat [python options] [-c CODE | -m MODULE | SCRIPT | -] [ARG …]"
# Options of the interpreter itself, which a process can only be started with; those in the second line take a value.
_FLAGS = re.compile(r"-(?P<flags>[bBdEiIOPqsSuvVx]+)(?P<rest>[cm].*)?", re.DOTALL)
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def main(arguments: list[str]) -> None:
    """Run what the arguments name, in this process."""
    if not arguments or arguments[0] in ("-h", "--help"):
        stream = sys.stdout if arguments else sys.stderr
        stream.write(USAGE + "\n")
        raise SystemExit(0 if arguments else 2)
    options, rest = split_options(arguments)
    if options:
        restart_with(options, rest)
    compat_imports.install()
    sys.excepthook = _show_without_our_frames
    first, following = rest[0], rest[1:]
    if first.startswith("-c"):
        run_code(*_value_of("-c", first, following))
    elif first.startswith("-m"):
        run_module(*_value_of("-m", first, following))
    elif first == "-":
        run_source(sys.stdin.read(), "<stdin>", ["-", *following])
    elif first.startswith("-"):
        _stop(2, f"unknown option {first!r}; {USAGE}")
    else:
        run_script(first, following)


def split_options(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The interpreter's own options in front, and the rest; `-um pytest` is taken apart."""
    options: list[str] = []
    rest = list(arguments)
    while rest:
        flags = _FLAGS.fullmatch(rest[0])
        if flags is not None:
            options.append("-" + flags["flags"])
            rest[:1] = ["-" + flags["rest"]] if flags["rest"] else []
        elif rest[0] in _WITH_VALUE:
            options += rest[:2]
            del rest[:2]
        elif rest[0].startswith(("-W", "-X")):
            options.append(rest.pop(0))
        else:
            break
    return options, rest


def restart_with(options: list[str], rest: list[str]) -> NoReturn:
    """Restart the interpreter with its own options."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *options, "-m", "toolcrib.compat", *rest])


def run_code(code: str, arguments: list[str]) -> None:
    run_source(code, "<string>", ["-c", *arguments])


def run_source(source: str, name: str, argv: list[str]) -> None:
    """Run a text, as `-c` and `-` do."""
    sys.argv[:] = argv
    _set_first_path("")
    _run(compile(source, name, "exec", dont_inherit=True), {"__spec__": None})


def run_module(name: str, arguments: list[str]) -> None:
    """Run a module, or the `__main__` of a package, as `-m` does."""
    sys.argv[:] = ["-m", *arguments]
    _set_first_path(str(Path.cwd()))
    spec = _find_module(name)
    # A module without its own code, such as the compatibility modules themselves.
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        _stop(1, f"No code object available for {name}")
    sys.argv[0] = spec.origin or name
    _run(code, {"__spec__": spec, "__file__": spec.origin, "__cached__": spec.cached, "__package__": spec.parent})


def run_script(path: str, arguments: list[str]) -> None:
    """Run a file, or a folder or archive with a `__main__.py` in it."""
    sys.argv[:] = [path, *arguments]
    file = os.path.abspath(path)  # noqa: PTH100 - as Python itself does, without looking at the disk
    if not Path(file).exists():
        _stop(2, f"can't open file {file!r}: [Errno 2] No such file or directory")
    if not _is_source(file):
        _drop_first_path()
        runpy.run_path(path, run_name="__main__")
        return
    _set_first_path(str(Path(file).resolve().parent))
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    loader = SourceFileLoader("__main__", file)
    _run(code, {"__spec__": None, "__file__": file, "__cached__": None, "__loader__": loader})


def _run(code: CodeType, names: dict[str, object]) -> None:
    """Run code as the program: in its own module `__main__`, which stays until the process ends."""
    program = ModuleType("__main__")
    program.__dict__.update({"__builtins__": __builtins__, "__package__": None, **names})
    sys.modules["__main__"] = program
    exec(code, program.__dict__)


def _find_module(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            inner = importlib.util.find_spec(f"{name}.__main__")
            if inner is None:
                _stop(1, f"No module named {name}.__main__; {name!r} is a package and cannot be directly executed")
            return inner
    except ModuleNotFoundError as error:
        # Raised for the parent of a dotted name; anything else is an error inside that parent.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        _stop(1, f"Error while finding module specification for {name!r} (ModuleNotFoundError: {error})")
    if spec is None:
        _stop(1, f"No module named {name}")
    return spec


def _value_of(option: str, argument: str, following: list[str]) -> tuple[str, list[str]]:
    """The value of `-c` or `-m`, which may be joined to it, and what comes after."""
    if argument != option:
        return argument.removeprefix(option), following
    if not following:
        _stop(2, f"Argument expected for the {option} option; {USAGE}")
    return following[0], following[1:]


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _drop_first_path() -> None:
    # `runpy.run_path` puts the folder or archive there itself.
    if not sys.flags.safe_path:
        del sys.path[0]


def _is_source(path: str) -> bool:
    """A plain file that is neither an archive nor compiled."""
    return Path(path).is_file() and b"\0" not in Path(path).read_bytes()[:1024]


def _stop(status: int, message: str) -> NoReturn:
    sys.stderr.write(f"{sys.executable}: {message}\n")
    raise SystemExit(status)


def _show_without_our_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback that starts with the program, as if `python` itself had started it."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        own = own.tb_next
    sys.__excepthook__(kind, error.with_traceback(own), own)


if __name__ == "__main__":
    main(sys.argv[1:])
