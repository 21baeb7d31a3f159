"""What a docstring says: its first paragraph and its parameters, in Google, NumPy or Sphinx style."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import msgspec

_PARAMETER_SECTIONS = frozenset(
    {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters", "attributes"}
)
_OTHER_SECTIONS = frozenset(
    {
        *("return", "returns", "yield", "yields", "raise", "raises", "warns", "warning", "warnings", "note", "notes"),
        *("example", "examples", "see also", "references", "todo", "receives", "methods"),
    }
)
_FIELD = re.compile(r"^[:@](\w+)([^:]*):\s*(.*)$")
_PARAMETER_FIELDS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var"})
_GOOGLE_ENTRY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?:\(.*?\))?\s*:(?:\s+(.*)|)$")
_NUMPY_ENTRY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


class Docs(msgspec.Struct, frozen=True):
    """What a docstring says before its sections, and a description for each parameter it names."""

    summary: str = ""
    """The first paragraph, on one line."""
    description: str = ""
    """The first paragraph on one line, and the paragraphs after it as they were written."""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


def parse_docstring(docstring: str | None) -> Docs:
    """The summary and the parameter descriptions of a docstring; styles may be mixed."""
    lines = _dedented(docstring or "")
    parameters: dict[str, str] = {}
    for names, words in _entries(lines):
        text = " ".join(" ".join(words).split())
        for name in names:
            if text and name not in parameters:
                parameters[name] = text
    summary = _summary(lines)
    return Docs(summary, f"{summary}\n\n{_further(lines)}".strip(), parameters)


def _dedented(docstring: str) -> list[str]:
    first, _, rest = docstring.expandtabs().strip("\n").partition("\n")
    return [first.strip(), *textwrap.dedent(rest).split("\n")]


def _summary(lines: list[str]) -> str:
    words: list[str] = []
    for index, line in enumerate(lines):
        text = line.strip()
        if words and not text:
            break
        if _section(lines, index) is not None or _is_field(text):
            break
        words.append(text)
    return " ".join(" ".join(words).split())


def _further(lines: list[str]) -> str:
    """What stands between the first paragraph and the first section."""
    blank = next((index for index, line in enumerate(lines) if index and not line.strip()), len(lines))
    kept: list[str] = []
    for index in range(blank, len(lines)):
        if _section(lines, index) is not None or _is_field(lines[index].strip()):
            break
        kept.append(lines[index].rstrip())
    return "\n".join(kept).strip()


def _is_field(text: str) -> bool:
    found = _FIELD.match(text)
    return found is not None and found[1] in {
        *_PARAMETER_FIELDS,
        "type",
        "return",
        "returns",
        "rtype",
        "raise",
        "raises",
    }


def _section(lines: list[str], index: int) -> str | None:
    """The lower-case name of the section that starts on this line, if one does."""
    text = lines[index].strip()
    underlined = index + 1 < len(lines) and re.fullmatch(r"-{3,}|={3,}", lines[index + 1].strip()) is not None
    if not (underlined or text.endswith(":")):
        return None
    name = text.rstrip(":").strip().lower()
    return name if name in _PARAMETER_SECTIONS or name in _OTHER_SECTIONS else None


def _entries(lines: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    index = 0
    while index < len(lines):
        text = lines[index].strip()
        if _is_field(text):
            yield from _field_entry(lines, index)
        elif _section(lines, index) in _PARAMETER_SECTIONS:
            underlined = not text.endswith(":")
            body = _body(lines, index + (2 if underlined else 1), _indent(lines[index]), underlined=underlined)
            yield from _section_entries(body, _NUMPY_ENTRY if underlined else _GOOGLE_ENTRY)
        index += 1


def _field_entry(lines: list[str], index: int) -> Iterator[tuple[list[str], list[str]]]:
    """One Sphinx or Epytext field, with the deeper lines that continue it."""
    found = _FIELD.match(lines[index].strip())
    if not found or found[1] not in _PARAMETER_FIELDS or not found[2].split():
        return
    words = [found[3]]
    for line in lines[index + 1 :]:
        if not line.strip() or _indent(line) <= _indent(lines[index]):
            break
        words.append(line.strip())
    yield [found[2].split()[-1].lstrip("*")], words


def _body(lines: list[str], start: int, indent: int, *, underlined: bool) -> list[str]:
    """The lines that belong to a section: the indented ones, or for NumPy all up to the next heading."""
    body: list[str] = []
    for index in range(start, len(lines)):
        line = lines[index]
        ends = _section(lines, index) is not None and _indent(line) <= indent
        if ends or (line.strip() and not underlined and _indent(line) <= indent):
            break
        body.append(line)
    return body


def _section_entries(body: list[str], pattern: re.Pattern[str]) -> Iterator[tuple[list[str], list[str]]]:
    filled = [line for line in body if line.strip()]
    if not filled:
        return
    margin = _indent(filled[0])
    names: list[str] = []
    words: list[str] = []
    for line in filled:
        found = pattern.match(line.strip()) if _indent(line) <= margin else None
        if not found:
            words.append(line.strip())
            continue
        yield names, words
        names = [name.strip().lstrip("*") for name in found[1].split(",")]
        words = [found[2] or ""] if pattern is _GOOGLE_ENTRY else []
    yield names, words


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
