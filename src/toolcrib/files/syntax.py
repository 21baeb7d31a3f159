"""Syntax checks for written files, without running any of their code.

Python, JSON, YAML and TOML are checked by parsers of this process; shell, JavaScript, Ruby, PHP and Go by programs that
are installed in the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import re
import sys
import threading
import tomllib
import warnings
from collections.abc import Callable

from toolcrib.core.attempt import attempt
from toolcrib.core.environments import Environment
from toolcrib.core.errors import ToolcribError
from toolcrib.core.lazy import ruamel_yaml

MAX_CHECKED_CHARS = 1_000_000
MAX_YAML_CHARS = 100_000
MAX_YAML_DEPTH = 200
"""The YAML parser takes seconds for more."""

PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
"""The version whose grammar is used; a file may be meant for another one."""
_BRACKET = re.compile(r"[\[\]{}]")
_SCRIPTS = {"python": ".py", "python3": ".py", "sh": ".sh", "bash": ".bash", "node": ".js"}
_SHEBANG = re.compile(r"#!\s*(?:/\S*/)?(?:env\s+(?:-S\s+)?)?(python3?|bash|sh|node)(?:[ \t].*)?$", re.MULTILINE)
# Warning filters belong to the whole process: two threads that change them at once would leave them changed.
_WARNINGS = threading.Lock()
# JSON files of programs that allow comments in them.
_JSON_WITH_COMMENTS = re.compile(
    r"(?:.*/)?(?:\.vscode/.*|\.devcontainer/.*|(?:[jt]sconfig[^/]*|devcontainer|api-extractor[^/]*|\.eslintrc|\.babelrc)\.json)",
    re.IGNORECASE,
)


def with_language_suffix(path: str, text: str) -> str:
    """The path with the suffix of its language; the first line of a script without a suffix names it."""
    if posixpath.splitext(path)[1]:
        return path
    shebang = _SHEBANG.match(text)
    return path if shebang is None else path + _SCRIPTS[shebang[1]]


async def find_problem(path: str, text: str, environment: Environment) -> str:
    """What is wrong with the text of a file that was written; empty when nothing is, or nothing can be said."""
    if len(text) > MAX_CHECKED_CHARS:
        return ""
    path = with_language_suffix(path, text)
    suffix = posixpath.splitext(path)[1].lower()
    if suffix in _PROGRAMS:
        return await problem_by_program(path, text, environment)
    if suffix not in _CHECKS:
        return ""
    # The edit has been made: a parser that fails must not make it look as if it had not.
    problem, error = await asyncio.to_thread(attempt, problem_in, path, text)
    return f"not checked: {type(error).__name__}" if error is not None else problem or ""


def problem_in(path: str, text: str) -> str:
    """What a parser says is wrong with the text of a file, with the line; empty when nothing is."""
    check = _CHECKS.get(posixpath.splitext(path)[1].lower())
    if check is None or (check is _json and _JSON_WITH_COMMENTS.fullmatch(path)):
        return ""
    try:
        return check(text)
    except (RecursionError, MemoryError):
        return "not checked: it is nested too deeply"


def _python(text: str) -> str:
    try:
        with _WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "file", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{PYTHON}: {error.msg}" + (f" (line {error.lineno})" if error.lineno else "")
    except ValueError as error:
        return f"{PYTHON}: {error}"
    return ""


def _json(text: str) -> str:
    try:
        # Numbers stay text: Python refuses to convert very long ones.
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        return f"JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    return ""


def _json_lines(text: str) -> str:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                json.loads(line, parse_int=str, parse_float=str)
            except json.JSONDecodeError as error:
                return f"JSON: {error.msg} (line {number}, column {error.colno})"
    return ""


def _toml(text: str) -> str:
    try:
        tomllib.loads(text)
    except ValueError as error:
        return f"TOML: {error}"
    return ""


def _yaml(text: str) -> str:
    if len(text) > MAX_YAML_CHARS:
        return ""
    if _depth(text) > MAX_YAML_DEPTH:
        raise RecursionError
    try:
        # Composed, not constructed: tags need not be known, and aliases are not expanded.
        for _ in ruamel_yaml.YAML(typ="safe", pure=True).compose_all(text):
            pass
    except ruamel_yaml.error.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        return f"YAML: {' '.join(filter(None, (error.context, error.problem)))}{where}"
    except ruamel_yaml.error.YAMLError as error:
        return f"YAML: {' '.join(str(error).split())}"
    return ""


def _depth(text: str) -> int:
    """How deep brackets are nested, including those in strings and comments."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


_CHECKS: dict[str, Callable[[str], str]] = {
    ".py": _python,
    ".pyi": _python,
    ".json": _json,
    ".ipynb": _json,
    ".geojson": _json,
    ".webmanifest": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".toml": _toml,
    ".yaml": _yaml,
    ".yml": _yaml,
}


CHECK_SECONDS = 10.0
MAX_SAID_BYTES = 16 * 1024
MAX_LINES = 6
MISSING = 127
_NO_VERDICT = (9, 124, 125, 126, 137)
"""An old node does not know an option; the program took too long; it cannot be started."""

_PROGRAMS: dict[str, tuple[tuple[str, ...], ...]] = {
    ".sh": (("bash", "-n"),),
    ".bash": (("bash", "-n"),),
    ".mjs": (("node", "--check", "--input-type=module", "-"),),
    ".cjs": (("node", "--check", "--input-type=commonjs", "-"),),
    # Which of the two a .js file is depends on its folder.
    ".js": (("node", "--check", "--input-type=commonjs", "-"), ("node", "--check", "--input-type=module", "-")),
    ".rb": (("ruby", "-c"),),
    ".php": (("php", "-l"),),
    ".go": (("gofmt", "-e", "-l"),),
}
_RUN = """
command -v "$1" > /dev/null 2>&1 || exit 127
if command -v timeout > /dev/null 2>&1; then exec timeout "$0" "$@"; fi
exec "$@"
"""
_OTHER_SHELL = re.compile(r"#!.*\b(?:zsh|fish|csh|tcsh|python\d?|perl|expect|nu)\b")
_NOISE = re.compile(r"^(?:\s*at .*|Node\.js v.*|\s*|Errors parsing .*|No syntax errors detected.*|Syntax OK)$")
_WHERE = re.compile(r"^(?:\[stdin\]:|-:|bash: line |<standard input>:)(?=\d)")


async def problem_by_program(path: str, text: str, environment: Environment) -> str:
    """What an installed parser says about the text; empty when it finds nothing wrong.

    The text goes to its standard input, because it need not be in any file.
    """
    suffix = posixpath.splitext(path)[1].lower()
    if suffix in (".sh", ".bash") and _OTHER_SHELL.match(text):
        return ""
    said: list[str] = []
    for argv in _PROGRAMS.get(suffix, ()):
        try:
            code, output = await _run(argv, text.encode("utf-8", "replace"), environment)
        except (ToolcribError, OSError, TimeoutError) as error:
            return f"not checked: {argv[0]} gave no answer ({error or 'it took too long'})"
        if code == MISSING:
            return f"not checked: {argv[0]} is not installed"
        if code in _NO_VERDICT:
            return f"not checked: {argv[0]} could not check it"
        if code == 0:
            return ""
        said.append(f"{argv[0]}: {_shortened(output)}")
    # When a text may be one of two things, report the likelier one.
    is_module = len(said) > 1 and re.search(r"^(?:import|export)\b", text, re.MULTILINE)
    return (said[-1] if is_module else said[0]) if said else ""


async def _run(argv: tuple[str, ...], data: bytes, environment: Environment) -> tuple[int, str]:
    said = bytearray()

    def keep(output: bytes) -> None:
        said.extend(output[: MAX_SAID_BYTES - len(said)])

    async with asyncio.timeout(CHECK_SECONDS):
        process = await environment.spawn(["sh", "-c", _RUN, f"{CHECK_SECONDS:g}", *argv], on_output=keep)
        try:
            # A program that has seen enough, or is missing, does not read to the end.
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                await process.write(data)
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                await process.close_input()
            code = await process.wait()
        finally:
            await process.abandon()
    return code, said.decode(errors="replace")


def _shortened(output: str) -> str:
    lines = [_WHERE.sub("line ", line).rstrip() for line in output.splitlines() if not _NOISE.match(line)]
    return "\n".join(lines[:MAX_LINES]) or "it reports an error"
