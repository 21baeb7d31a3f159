"""The `.env` file: secrets as KEY=VALUE lines, readable only by their owner.

Values are literal: nothing is expanded. Single quotes support the escapes \\\\ and \\', double quotes also
\\n, \\r, \\t, \\", \\$ and \\`. A value is on one line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

import msgspec

from toolcrib.config.files import OWNER_FILE, replace_file, writing
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.config.paths import Home
from toolcrib.core.errors import ConfigError
from toolcrib.core.lazy import lazy_pattern, shlex

BOM = "\ufeff"
_KEY = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = lazy_pattern(r"\s*(?:export\s+)?(?P<key>[^=\s]*)\s*=[ \t]*(?P<value>.*)", re.DOTALL)
_QUOTED = lazy_pattern(r"""(?P<quote>['"])(?P<body>(?:\\.|(?!(?P=quote)).)*)(?P=quote)\s*(?:\#.*)?""", re.DOTALL)
_SAFE = lazy_pattern(r"[A-Za-z0-9_./:@%+,=-]*")
_DOUBLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "`": "`", "'": "'"}
_SINGLE_ESCAPES = {"'": "'", "\\": "\\"}


class EnvLine(msgspec.Struct, frozen=True):
    """One line of the file. A comment or a blank line has no key; a broken one has a problem."""

    text: str
    key: str = ""
    value: str = ""
    problem: str = ""


def parse_env(text: str) -> list[EnvLine]:
    """Every line of an `.env` text, in order, each with its line end."""
    pieces = text.removeprefix(BOM).split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
    return [_parse_line(line) for line in lines]


def load_env_file(home: Home, environ: MutableMapping[str, str]) -> list[str]:
    """Copy the values of `.env` into `environ`, except those already set; returns a sentence for each broken line."""
    try:
        lines = parse_env(read_env_text(home.env_file))
    except ConfigError as error:
        return [str(error)]
    for key, value in _values(lines).items():
        environ.setdefault(key, value)
    return [f"{home.env_file}:{at}: {line.problem}" for at, line in enumerate(lines, 1) if line.problem]


def fill_environment(home: Home) -> list[str]:
    """Load the values of `.env` into this process, where tools read them with `os.getenv`; returns problems."""
    return load_env_file(home, os.environ)


def read_env_file(path: Path) -> dict[str, str]:
    """The values of an `.env` file; the last line wins if a key occurs twice."""
    return _values(parse_env(read_env_text(path)))


def get_env_value(home: Home, key: str, environ: Mapping[str, str]) -> str | None:
    """The value of a variable: from the environment, else from `.env`."""
    return environ[key] if key in environ else read_env_file(home.env_file).get(key)


def save_env_value(home: Home, key: str, value: str) -> None:
    """Write one value to `.env`, which only its owner may read; all other lines stay unchanged."""
    save_env_values(home, {key: value})


def save_env_values(home: Home, values: Mapping[str, str]) -> None:
    """Write several values to `.env` in one step."""
    rendered = {_valid_key(key): f"{key}={_quoted(key, value)}" for key, value in values.items()}

    def change(lines: list[EnvLine], newline: str) -> list[str]:
        last = {line.key: at for at, line in enumerate(lines) if line.key in rendered}
        texts = [line.text for line in lines]
        if texts and not texts[-1].endswith("\n"):
            texts[-1] += newline
        for key, text in rendered.items():
            if key not in last:
                texts.append(text + newline)
                continue
            export = "export " if lines[last[key]].text.lstrip().startswith("export") else ""
            texts[last[key]] = export + text + newline
        return texts

    _rewrite(home, change)


def remove_env_value(home: Home, key: str) -> None:
    """Remove a variable from `.env`; does nothing if it is missing."""
    _valid_key(key)
    if home.env_file.exists():
        _rewrite(home, lambda lines, _: [line.text for line in lines if line.key != key])


def exposure(home: Home) -> str:
    """Warns that others may read `.env` and says what to do; empty if only its owner may, or there is no file."""
    try:
        mode = home.env_file.stat().st_mode
    except OSError:
        return ""
    if not mode & 0o077:
        return ""
    path = str(home.env_file)
    return f"other users of this machine may read {path!r}; run `chmod 600 {shlex.quote(path)}`"


def _rewrite(home: Home, change: Callable[[list[EnvLine], str], list[str]]) -> None:
    with writing(home.env_file) as target:
        before = read_env_text(home.env_file)
        mark = BOM if before.startswith(BOM) else ""
        after = "".join(change(parse_env(before), "\r\n" if "\r\n" in before else "\n"))
        try:
            content = (mark + after).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ConfigError("the value is not valid text; type it again in UTF-8") from error
        replace_file(target, content, mode=OWNER_FILE)


def read_env_text(path: Path) -> str:
    """The text of an `.env` file; empty if there is none."""
    try:
        # Bytes that are not UTF-8 pass through unchanged, as in os.environ.
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(explain_os_error(error, "read", path, otherwise=ANOTHER_HOME)) from error


def _values(lines: list[EnvLine]) -> dict[str, str]:
    return {line.key: line.value for line in lines if line.key}


def _parse_line(text: str) -> EnvLine:
    content = text.rstrip("\r\n")
    if not content.strip() or content.lstrip().startswith("#"):
        return EnvLine(text)
    match = _ASSIGNMENT.fullmatch(content)
    if match is None:
        what = "has no `=`" if "=" not in content else "is not KEY=VALUE"
        return EnvLine(text, problem=f"this line {what}; write KEY=VALUE without spaces in KEY, or put a # before it")
    key, raw = match["key"], match["value"]
    if not _KEY.fullmatch(key):
        return EnvLine(text, problem=f"{key!r} is not a variable name; use letters, digits and _")
    if "\0" in raw:
        return EnvLine(text, problem=f"the value of {key} contains a NUL character; write it again")
    if raw[:1] not in ("'", '"'):
        return EnvLine(text, key, re.split(r"(?:^|\s)#", raw, maxsplit=1)[0].strip())
    quoted = _QUOTED.fullmatch(raw)
    if quoted is None:
        return EnvLine(
            text, problem=f"the quotes of {key} are not closed, or something follows them; keep the value on one line"
        )
    escapes = _DOUBLE_ESCAPES if quoted["quote"] == '"' else _SINGLE_ESCAPES
    return EnvLine(
        text, key, re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[0]), quoted["body"], flags=re.S)
    )


def _valid_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{key!r} is not a variable name; use letters, digits and _, for example WEATHER_API_KEY")
    return key


def _quoted(key: str, value: str) -> str:
    """A value quoted so that it reads back the same, here and in a shell that sources the file."""
    if "\0" in value:
        raise ConfigError(f"the value of {key} contains a NUL character, which no variable can hold; type it again")
    if _SAFE.fullmatch(value):
        return value
    if not re.search(r"['\\\n\r]", value):
        return f"'{value}'"
    escaped = re.sub(r'(["\\$`])', r"\\\1", value)
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'
