"""What is wrong with a skill: against the rules of the format, in its links, and in what it would have done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolcrib.config.yaml_text import Document
from toolcrib.core.errors import ConfigError
from toolcrib.skills.front_matter import MARK, Parts, fields_of, split
from toolcrib.skills.reading import files_of, read_text
from toolcrib.skills.scan import concerns_in, kind_of
from toolcrib.skills.skill import MAX_NAME_CHARS, NAME_RULE, SKILL_FILE, Skill, SkillError, is_valid_name

MAX_DESCRIPTION_CHARS = 1024
MAX_COMPATIBILITY_CHARS = 500
MAX_TEXT_CHARS = 100_000
MAX_BODY_LINES = 500
KNOWN_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")

_BROKEN_AT = re.compile(r"SKILL\.md:(\d+):\d+: ")
_LINK = re.compile(
    r"\]\(\s{0,4}(?!\w+:|[#/<~])([^)\s]{1,200})[^)\n]{0,100}\)|`((?:scripts|references|assets)/[\w./-]{1,150})`"
)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a skill."""

    message: str
    """A sentence: what is wrong, and what to write instead."""
    rule: str
    line: int = 1
    severity: Literal["error", "warning"] = "error"
    file: str = SKILL_FILE


def problems_of(skill: Skill) -> list[Problem]:
    """Everything that is wrong with a skill on the disk, its files included."""
    if skill.problem:
        return [Problem(rule="readable", message=skill.problem, file=skill.file.name)]
    files = files_of(skill)
    found = []
    if skill.file.name not in (SKILL_FILE, *([skill.file.name] if skill.is_alone else [])):
        message = f"it is called {skill.file.name!r}; call it {SKILL_FILE!r}, which is what others look for"
        found.append(Problem(rule="file-name", severity="warning", message=message, file=skill.file.name))
    found += _problems_of_text(skill, skill.file.name)
    if not skill.is_alone:
        found += _missing_files(read_text(skill.folder, skill.file.name), {file.path for file in files}, skill.folder)
    for file in files:
        if file.problem:
            found.append(Problem(rule="plain-files", message=f"{file.problem}; put a copy there", file=file.path))
        else:
            found += _problems_of_text(skill, file.path)
    return sorted(found, key=lambda problem: (problem.file != skill.file.name, problem.file, problem.line))


def _problems_of_text(skill: Skill, path: str) -> Iterator[Problem]:
    try:
        text = read_text(skill.folder, path)
    except SkillError as error:
        if path == skill.file.name:
            yield Problem(rule="readable", message=str(error), file=path)
        return
    if path == skill.file.name:
        yield from format_problems(text, skill.folder.name)
    for concern in concerns_in(text, kind_of(path, text)):
        severity: Literal["error", "warning"] = "error" if concern.severity == "refuse" else "warning"
        rule = "safe" if severity == "error" else "asks"
        yield Problem(rule=rule, severity=severity, line=concern.line, message=concern.message, file=path)


def format_problems(text: str, folder_name: str) -> list[Problem]:
    """What is wrong with the text of a SKILL.md that stands in a folder of this name."""
    found = []
    if len(text) > MAX_TEXT_CHARS:
        message = f"it has {len(text):,} characters; keep it under {MAX_TEXT_CHARS:,} and move the rest to references/"
        found.append(Problem(rule="size", message=message))
    parts = split(text)
    if parts.front is None:
        example = f"{MARK} / name: {folder_name} / description: What it does and when to use it. / {MARK}"
        message = f"it does not begin with a head between two lines {MARK!r}; write, a line each: {example}"
        return [*found, Problem(rule="front-matter", message=message)]
    return [*found, *_in_front(parts.front, folder_name), *_in_body(parts)]


def _in_front(front: str, folder_name: str) -> Iterator[Problem]:
    try:
        document = fields_of(front)
    except ConfigError as error:
        where = _BROKEN_AT.match(str(error))
        message = _BROKEN_AT.sub("", str(error))
        if "not valid YAML" in message:
            message = f"{message.partition(';')[0]}; put the value into quotes"
        yield Problem(rule="front-matter", line=int(where[1]) if where else 1, message=message)
        return
    for line, message in document.problems:
        yield Problem(rule="front-matter", line=line, message=message)
    if not isinstance(document.data, dict):
        yield Problem(rule="front-matter", message="its head is no mapping; write a line `name: …` for each field")
        return
    yield from _name_problems(document, folder_name)
    yield from _description_problems(document)
    yield from _optional_problems(document)


def _name_problems(document: Document, folder_name: str) -> Iterator[Problem]:
    name, line = document.data.get("name"), document.line_of(("name",))
    if not isinstance(name, str) or not name:
        yield Problem(rule="name", line=line, message=f"it has no name; write `name: {folder_name}`")
    elif not is_valid_name(name):
        message = f"{name[:80]!r} cannot be a name; use at most {MAX_NAME_CHARS} {NAME_RULE}"
        yield Problem(rule="name", line=line, message=message)
    elif name != folder_name:
        message = f"its name {name!r} is not that of its folder, {folder_name!r}; make them the same"
        yield Problem(rule="name", line=line, message=message)


def _description_problems(document: Document) -> Iterator[Problem]:
    text, line = document.data.get("description"), document.line_of(("description",))
    if not isinstance(text, str) or not text.strip():
        message = "it has no description; write `description:` with what it does and when to use it"
        yield Problem(rule="description", line=line, message=message)
    elif len(text) > MAX_DESCRIPTION_CHARS:
        message = f"its description has {len(text):,} characters; {MAX_DESCRIPTION_CHARS:,} are allowed"
        yield Problem(rule="description", line=line, message=message)


def _optional_problems(document: Document) -> Iterator[Problem]:
    data = document.data
    compatibility: Any = data.get("compatibility", "")
    if not isinstance(compatibility, str) or len(compatibility) > MAX_COMPATIBILITY_CHARS:
        message = f"`compatibility` must be a text of at most {MAX_COMPATIBILITY_CHARS} characters"
        yield Problem(rule="compatibility", line=document.line_of(("compatibility",)), message=message)
    if "metadata" in data and not isinstance(data["metadata"], dict):
        message = "`metadata` must be a mapping of names to texts"
        yield Problem(rule="metadata", line=document.line_of(("metadata",)), message=message)
    for key in ("license", "allowed-tools"):
        if key in data and not isinstance(data[key], str):
            message = f"`{key}` should be a text" + ("; separate the tools by spaces" if key[0] == "a" else "")
            yield Problem(rule=key, severity="warning", line=document.line_of((key,)), message=message)
    for key in data:
        if key not in KNOWN_KEYS:
            message = f"{key!r} is no field of the format; others may not read it, put it under `metadata:`"
            yield Problem(rule="fields", severity="warning", line=document.line_of((key,)), message=message)


def _in_body(parts: Parts) -> Iterator[Problem]:
    if not parts.body.strip():
        yield Problem(rule="body", line=parts.body_line, message="it says nothing after its head; write down the steps")
    lines = parts.body.rstrip().count("\n") + 1
    if lines > MAX_BODY_LINES:
        message = f"its text has {lines} lines; move what is not always needed to references/"
        yield Problem(rule="body", severity="warning", line=parts.body_line, message=message)


def _missing_files(text: str, present: set[str], folder: Path) -> Iterator[Problem]:
    for at, line in enumerate(text.split("\n"), start=1):
        for found in _LINK.finditer(line):
            path = (found[1] or found[2]).partition("#")[0].removeprefix("./").rstrip("/")
            if path and path not in present and path != SKILL_FILE and not (folder / path).is_dir():
                message = f"it names the file {path!r}, which is not there"
                yield Problem(rule="links", severity="warning", line=at, message=message)
