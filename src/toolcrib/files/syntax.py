"""Whether a text is what its name says: Python, JSON, YAML and TOML, read by parsers that run nothing of it."""

from __future__ import annotations

import json
import posixpath
import re
import sys
import threading
import tomllib
import warnings
from collections.abc import Callable

MAX_CHECKED_BYTES = 1_000_000
MAX_YAML_CHARS = 100_000
MAX_YAML_DEPTH = 200
"""The YAML parser takes seconds for more."""

PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
"""Whose grammar is asked; a file may be for another one."""
_BRACKET = re.compile(r"[\[\]{}]")
_SCRIPTS = {"python": ".py", "python3": ".py", "sh": ".sh", "bash": ".bash", "node": ".js"}
_SHEBANG = re.compile(r"#!\s*(?:/\S*/)?(?:env\s+(?:-S\s+)?)?(python3?|bash|sh|node)(?:[ \t].*)?$", re.MULTILINE)
# The filters of warnings belong to the whole process: two who change them at once would leave them changed.
_WARNINGS = threading.Lock()
# Names that are read by programs which allow comments in JSON.
_JSON_WITH_COMMENTS = re.compile(
    r"(?:.*/)?(?:\.vscode/.*|\.devcontainer/.*|(?:[jt]sconfig[^/]*|devcontainer|api-extractor[^/]*|\.eslintrc|\.babelrc)\.json)",
    re.IGNORECASE,
)


def known_by_name(path: str, text: str) -> str:
    """The path with the ending that tells its language: of a script without one, by its first line."""
    if posixpath.splitext(path)[1]:
        return path
    shebang = _SHEBANG.match(text)
    return path if shebang is None else path + _SCRIPTS[shebang[1]]


def is_checked(path: str) -> bool:
    return posixpath.splitext(path)[1].lower() in _CHECKS


def problem_in(path: str, text: str) -> str:
    """What is wrong with the text of a file, in one sentence with the line; empty where nothing is, or is known."""
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
        # Numbers are left as they stand: reading a very long one is refused.
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
    # Costs 10 ms to import, and few files are YAML.
    from ruamel.yaml import YAML  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    try:
        # Composed and not constructed: tags need not be known, and aliases are not spelled out.
        for _ in YAML(typ="safe", pure=True).compose_all(text):
            pass
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        return f"YAML: {' '.join(filter(None, (error.context, error.problem)))}{where}"
    except YAMLError as error:
        return f"YAML: {' '.join(str(error).split())}"
    return ""


def _depth(text: str) -> int:
    """How deep brackets are nested, those in texts and comments included."""
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
