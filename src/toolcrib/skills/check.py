"""Checks skills: the format, their links, and what they would make an agent do.

Later sessions read a skill as instructions, so it is scanned before it is written. What no session may do (instructions
that override the model's own, commands that are never allowed) is refused. Commands that need approval are reported, so
that the person is asked when the skill is written, too; each of them is judged again when it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolcrib.approval.analyse import analyse
from toolcrib.approval.shell.findings import Finding
from toolcrib.config.yaml_text import Document
from toolcrib.core.errors import ConfigError
from toolcrib.sessions.injection_scan import standing_order_in, threat_in
from toolcrib.skills.skill import (
    FRONT_MATTER_MARK,
    MAX_NAME_CHARS,
    NAME_RULE,
    SKILL_FILE,
    Skill,
    SkillError,
    SkillText,
    is_valid_name,
    list_files,
    parse_front_matter,
    read_text,
    split_front_matter,
)

MAX_DESCRIPTION_CHARS = 1024
MAX_COMPATIBILITY_CHARS = 500
MAX_TEXT_CHARS = 100_000
MAX_BODY_LINES = 500
KNOWN_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")

_BROKEN_AT = re.compile(r"SKILL\.md:(\d+):\d+: ")
_LINK = re.compile(
    r"\]\(\s{0,4}(?!\w+:|[#/<~])([^)\s]{1,200})[^)\n]{0,100}\)|`((?:scripts|references|assets)/[\w./-]{1,150})`"
)


class SkillProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem with a skill."""

    message: str
    """What is wrong, and what to write instead."""
    rule: str
    line: int = 1
    severity: Literal["error", "warning"] = "error"
    file: str = SKILL_FILE


def find_problems(skill: Skill) -> list[SkillProblem]:
    """All problems of a skill on disk, including its files."""
    if skill.problem:
        return [SkillProblem(rule="readable", message=skill.problem, file=skill.file.name)]
    files = list_files(skill)
    found = []
    if skill.file.name not in (SKILL_FILE, *([skill.file.name] if skill.is_single_file else [])):
        message = f"it is named {skill.file.name!r}; rename it to {SKILL_FILE!r}, which other programs look for"
        found.append(SkillProblem(rule="file-name", severity="warning", message=message, file=skill.file.name))
    found += _text_problems(skill, skill.file.name)
    if not skill.is_single_file:
        found += _missing_files(read_text(skill.folder, skill.file.name), {file.path for file in files}, skill.folder)
    for file in files:
        if file.problem:
            found.append(
                SkillProblem(rule="plain-files", message=f"{file.problem}; replace it with a copy", file=file.path)
            )
        else:
            found += _text_problems(skill, file.path)
    return sorted(found, key=lambda problem: (problem.file != skill.file.name, problem.file, problem.line))


def _text_problems(skill: Skill, path: str) -> Iterator[SkillProblem]:
    try:
        text = read_text(skill.folder, path)
    except SkillError as error:
        if path == skill.file.name:
            yield SkillProblem(rule="readable", message=str(error), file=path)
        return
    if path == skill.file.name:
        yield from format_problems(text, skill.folder.name)
    for concern in find_concerns(text, text_kind(path, text)):
        severity: Literal["error", "warning"] = "error" if concern.severity == "refuse" else "warning"
        rule = "safe" if severity == "error" else "asks"
        yield SkillProblem(rule=rule, severity=severity, line=concern.line, message=concern.message, file=path)


def format_problems(text: str, folder_name: str) -> list[SkillProblem]:
    """The problems of a SKILL.md in a folder with this name."""
    found = []
    if len(text) > MAX_TEXT_CHARS:
        message = f"it has {len(text):,} characters; keep it under {MAX_TEXT_CHARS:,} and move the rest to references/"
        found.append(SkillProblem(rule="size", message=message))
    parts = split_front_matter(text)
    if parts.front is None:
        mark = FRONT_MATTER_MARK
        example = f"{mark} / name: {folder_name} / description: What it does and when to use it. / {mark}"
        message = f"it does not start with front matter between two {mark!r} lines; write, one per line: {example}"
        return [*found, SkillProblem(rule="front-matter", message=message)]
    return [*found, *_front_matter_problems(parts.front, folder_name), *_body_problems(parts)]


def _front_matter_problems(front: str, folder_name: str) -> Iterator[SkillProblem]:
    try:
        document = parse_front_matter(front)
    except ConfigError as error:
        where = _BROKEN_AT.match(str(error))
        message = _BROKEN_AT.sub("", str(error))
        if "not valid YAML" in message:
            message = f"{message.partition(';')[0]}; put the value in quotes"
        yield SkillProblem(rule="front-matter", line=int(where[1]) if where else 1, message=message)
        return
    for line, message in document.problems:
        yield SkillProblem(rule="front-matter", line=line, message=message)
    if not isinstance(document.data, dict):
        yield SkillProblem(
            rule="front-matter", message="its front matter is not a mapping; write one line `name: …` per field"
        )
        return
    yield from _name_problems(document, folder_name)
    yield from _description_problems(document)
    yield from _optional_problems(document)


def _name_problems(document: Document, folder_name: str) -> Iterator[SkillProblem]:
    name, line = document.data.get("name"), document.line_of(("name",))
    if not isinstance(name, str) or not name:
        yield SkillProblem(rule="name", line=line, message=f"it has no name; write `name: {folder_name}`")
    elif not is_valid_name(name):
        message = f"{name[:80]!r} is not a valid name; use at most {MAX_NAME_CHARS} {NAME_RULE}"
        yield SkillProblem(rule="name", line=line, message=message)
    elif name != folder_name:
        message = f"its name {name!r} differs from its folder, {folder_name!r}; make them the same"
        yield SkillProblem(rule="name", line=line, message=message)


def _description_problems(document: Document) -> Iterator[SkillProblem]:
    text, line = document.data.get("description"), document.line_of(("description",))
    if not isinstance(text, str) or not text.strip():
        message = "it has no description; write `description:` with what it does and when to use it"
        yield SkillProblem(rule="description", line=line, message=message)
    elif len(text) > MAX_DESCRIPTION_CHARS:
        message = f"its description has {len(text):,} characters; at most {MAX_DESCRIPTION_CHARS:,} are allowed"
        yield SkillProblem(rule="description", line=line, message=message)


def _optional_problems(document: Document) -> Iterator[SkillProblem]:
    data = document.data
    compatibility: Any = data.get("compatibility", "")
    if not isinstance(compatibility, str) or len(compatibility) > MAX_COMPATIBILITY_CHARS:
        message = f"`compatibility` must be a text of at most {MAX_COMPATIBILITY_CHARS} characters"
        yield SkillProblem(rule="compatibility", line=document.line_of(("compatibility",)), message=message)
    if "metadata" in data and not isinstance(data["metadata"], dict):
        message = "`metadata` must be a mapping of names to texts"
        yield SkillProblem(rule="metadata", line=document.line_of(("metadata",)), message=message)
    for key in ("license", "allowed-tools"):
        if key in data and not isinstance(data[key], str):
            message = f"`{key}` should be a text" + ("; separate the tools by spaces" if key[0] == "a" else "")
            yield SkillProblem(rule=key, severity="warning", line=document.line_of((key,)), message=message)
    for key in data:
        if key not in KNOWN_KEYS:
            message = f"{key!r} is not a field of the format; other programs may ignore it, so put it under `metadata:`"
            yield SkillProblem(rule="fields", severity="warning", line=document.line_of((key,)), message=message)


def _body_problems(parts: SkillText) -> Iterator[SkillProblem]:
    if not parts.body.strip():
        yield SkillProblem(
            rule="body", line=parts.body_line, message="it has no text after its front matter; write down the steps"
        )
    lines = parts.body.rstrip().count("\n") + 1
    if lines > MAX_BODY_LINES:
        message = f"its text has {lines} lines; move what is not always needed to references/"
        yield SkillProblem(rule="body", severity="warning", line=parts.body_line, message=message)


def _missing_files(text: str, present: set[str], folder: Path) -> Iterator[SkillProblem]:
    for at, line in enumerate(text.split("\n"), start=1):
        for found in _LINK.finditer(line):
            path = (found[1] or found[2]).partition("#")[0].removeprefix("./").rstrip("/")
            if path and path not in present and path != SKILL_FILE and not (folder / path).is_dir():
                message = f"it refers to the file {path!r}, which does not exist"
                yield SkillProblem(rule="links", severity="warning", line=at, message=message)


TextKind = Literal["markdown", "shell", "python", "text"]

WINDOW_CHARS = 16_000
OVERLAP_CHARS = 2_000
MAX_LOOSE_COMMANDS = 400
MAX_LOOSE_CHARS = 500
SHELL_NAMES = frozenset({"bash", "sh", "shell", "zsh", "ksh", "fish"})
SESSION_NAMES = frozenset({"console", "shell-session", "shellsession", "terminal"})
PYTHON_NAMES = frozenset({"python", "py", "python3"})
# These apply to half of all examples with placeholders; the actual command is judged when it runs.
IGNORED_RULES = frozenset({"not_understood", "unknown_command", "package"})
# Clear enough even in a text that may not be a command at all.
UNAMBIGUOUS_RULES = frozenset({"remote_code", "exfiltration", "disk_write", "format", "fork_bomb"})

_FENCE = re.compile(r"[ \t>]{0,12}(`{3,}|~{3,})[ \t]*\{?\.?([\w+-]{0,30})[^`\n]{0,200}")
_INLINE = re.compile(r"(`{1,2})(?!`)([^`\n]{2,500})\1(?!`)")
# `<name>` in an example, which the shell would parse as two redirections.
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .|/-]{0,40}>")
_HEREDOC_END = "END_OF_THE_CODE_OF_A_SKILL"


class SafetyConcern(msgspec.Struct, frozen=True):
    """Something in a text that is refused or needs approval."""

    line: int
    severity: Literal["refuse", "ask"]
    message: str
    """A clause that starts with "it"."""

    def __str__(self) -> str:
        return f"{self.message} (line {self.line})"


class CodeSnippet(msgspec.Struct, frozen=True):
    """A piece of text that is, or may be, code."""

    line: int
    text: str
    language: Literal["shell", "python", "loose"]


def text_kind(path: str, text: str) -> TextKind:
    """The kind of a skill's file, by its name and first line."""
    name = path.lower().rpartition("/")[2]
    suffix = name.rpartition(".")[2] if "." in name else ""
    first = text[:200].partition("\n")[0]
    if suffix in ("py", "pyw") or (first.startswith("#!") and "python" in first):
        return "python"
    if suffix in SHELL_NAMES or (first.startswith("#!") and re.search(r"\b(?:ba|z|k|da)?sh\b", first)):
        return "shell"
    return "markdown" if suffix in ("md", "markdown", "txt", "rst") else "text"


# The gate and the handler both scan the same call.
@lru_cache(maxsize=8)
def find_concerns(text: str, kind: TextKind) -> tuple[SafetyConcern, ...]:
    """All concerns about a text, sorted by line."""
    found = [*_find_threats(text), *(concern for code in _find_code(text, kind) for concern in _find_dangers(code))]
    lines = {concern.line for concern in found}
    if kind not in ("shell", "python"):
        found += [order for order in _find_orders(text) if order.line not in lines]
    refused = {concern.line for concern in found if concern.severity == "refuse"}
    telling = [concern for concern in found if concern.severity == "refuse" or concern.line not in refused]
    return tuple(sorted(dict.fromkeys(telling), key=lambda concern: concern.line))


def _find_threats(text: str) -> Iterator[SafetyConcern]:
    start = 0
    while start < len(text):
        window = text[start : start + WINDOW_CHARS]
        reason = threat_in(window)
        if reason:
            line = text.count("\n", 0, start) + _line_of(window, threat_in)
            yield SafetyConcern(line, "refuse", reason)
            return
        if start + WINDOW_CHARS >= len(text):
            return
        start += WINDOW_CHARS - OVERLAP_CHARS
        # Start at a nearby line start, so that a combining mark is not separated from its letter.
        start = text.rfind("\n", start - 500, start) + 1 or start


def _find_orders(text: str) -> Iterator[SafetyConcern]:
    """Orders about approvals and secrets; to name tools is what a skill is for."""
    reason = standing_order_in(text, may_name_tools=True)
    if reason:
        line = _line_of(text, lambda part: standing_order_in(part, may_name_tools=True))
        yield SafetyConcern(line, "ask", reason)


def _line_of(window: str, contains: Callable[[str], str]) -> int:
    """The line where the match ends, counted from 1: the shortest prefix of the text that contains it."""
    lines = window.split("\n")
    low, high = 1, len(lines)
    while low < high:
        middle = (low + high) // 2
        if contains("\n".join(lines[:middle])):
            high = middle
        else:
            low = middle + 1
    return low


def _find_code(text: str, kind: TextKind) -> Iterator[CodeSnippet]:
    if kind == "markdown":
        yield from _markdown_code(text.split("\n"))
    elif kind in ("shell", "python"):
        yield CodeSnippet(1, text, "shell" if kind == "shell" else "python")


def _markdown_code(lines: list[str]) -> Iterator[CodeSnippet]:
    fence, language, begin = "", "", 0
    loose = 0
    for at, line in enumerate(lines, start=1):
        mark = _FENCE.fullmatch(line)
        if fence:
            if mark is not None and mark[1].startswith(fence) and not mark[2]:
                yield from _fenced(lines[begin : at - 1], language, begin + 1)
                fence = ""
        elif mark is not None:
            fence, language, begin = mark[1], mark[2].lower(), at
        else:
            spans = [found[2] for found in _INLINE.finditer(line)] or (
                [line] if line.startswith(("    ", "\t")) else []
            )
            for span in spans:
                loose += 1
                if loose <= MAX_LOOSE_COMMANDS and len(span) <= MAX_LOOSE_CHARS:
                    yield CodeSnippet(at, span.strip().removeprefix("$ "), "loose")
    if fence:
        yield from _fenced(lines[begin:], language, begin + 1)


def _fenced(lines: list[str], language: str, begin: int) -> Iterator[CodeSnippet]:
    if language in PYTHON_NAMES:
        yield CodeSnippet(begin, "\n".join(lines), "python")
    elif language in SESSION_NAMES or any(line.lstrip().startswith("$ ") for line in lines):
        typed = [line.lstrip()[2:] if line.lstrip().startswith(("$ ", "# ", "> ")) else "" for line in lines]
        yield CodeSnippet(begin, "\n".join(typed), "shell")
    elif language in SHELL_NAMES:
        yield CodeSnippet(begin, "\n".join(lines), "shell")
    elif not language:
        yield CodeSnippet(begin, "\n".join(lines), "loose")


def _find_dangers(code: CodeSnippet) -> Iterator[SafetyConcern]:
    if code.language == "python":
        script = f"python3 - <<'{_HEREDOC_END}'\n{code.text}\n{_HEREDOC_END}"
        findings = [(code.line, script, finding) for finding in analyse(script).findings]
    else:
        findings = list(_shell_findings(_PLACEHOLDER.sub("PLACEHOLDER", code.text), code.line))
    for line, command, finding in findings:
        severity = _severity(finding, code)
        if severity is not None:
            yield SafetyConcern(line, severity, _describe(finding, command, code))


def _shell_findings(text: str, begin: int) -> Iterator[tuple[int, str, Finding]]:
    """Line, command and finding; a text that cannot be parsed as a whole is analysed line by line."""
    found = analyse(text)
    if not found.not_understood or "\n" not in text:
        yield from ((begin + text.count("\n", 0, finding.span[0]), text, finding) for finding in found.findings)
        return
    for at, line in enumerate(text.split("\n")[:MAX_LOOSE_COMMANDS]):
        yield from ((begin + at, line, finding) for finding in analyse(line).findings if line.strip())
    for finding in found.findings:
        if finding.severity == "block":
            yield begin, text, finding


def _severity(finding: Finding, code: CodeSnippet) -> Literal["refuse", "ask"] | None:
    if finding.severity == "block":
        return "refuse"
    if code.language == "loose":
        return "ask" if finding.rule in UNAMBIGUOUS_RULES else None
    if code.language == "python" and finding.rule == "unknown_code":
        return None
    return None if finding.rule in IGNORED_RULES else "ask"


def _describe(finding: Finding, command: str, code: CodeSnippet) -> str:
    if code.language == "python":
        return f"it contains Python code that {finding.reason}"
    # Quote the whole line: `sh` alone does not show what is dangerous about `curl … | sh`.
    begin = command.rfind("\n", 0, finding.span[0]) + 1
    words = " ".join(command[begin:].partition("\n")[0].split())
    quoted = words if len(words) <= 80 else words[:79] + "…"
    return f"it contains the command `{quoted}`, which {finding.reason}"
