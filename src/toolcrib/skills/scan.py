"""What a text of a skill would talk the model into: injected orders, hidden text, keys, and dangerous commands.

A skill is read by later sessions as an instruction, so that it is looked at before it is written. What no session
may do (orders against the model's instructions, commands that are never allowed) is refused. Commands that a person
would be asked about are named, so that the person is asked when the skill is written, too; each of them is judged
again when somebody runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal

import msgspec

from toolcrib.approval.analyse import analyse
from toolcrib.approval.shell.model import Finding
from toolcrib.sessions.injection_scan import threat_in

TextKind = Literal["markdown", "shell", "python", "text"]

WINDOW_CHARS = 16_000
OVERLAP_CHARS = 2_000
MAX_LOOSE_COMMANDS = 400
MAX_LOOSE_CHARS = 500
SHELL_NAMES = frozenset({"bash", "sh", "shell", "zsh", "ksh", "fish"})
SESSION_NAMES = frozenset({"console", "shell-session", "shellsession", "terminal"})
PYTHON_NAMES = frozenset({"python", "py", "python3"})
# Said of half of all examples, with their placeholders, and judged at the run by what stands there then.
NOT_WORTH_ASKING = frozenset({"not_understood", "unknown_command", "package"})
# What is clear enough even in a text that may be no command at all.
CLEAR_ANYWHERE = frozenset({"remote_code", "exfiltration", "disk_write", "format", "fork_bomb"})

_FENCE = re.compile(r"[ \t>]{0,12}(`{3,}|~{3,})[ \t]*\{?\.?([\w+-]{0,30})[^`\n]{0,200}")
_INLINE = re.compile(r"(`{1,2})(?!`)([^`\n]{2,500})\1(?!`)")
# `<name>` in an example; read as the shell reads it, it would be two redirections.
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .|/-]{0,40}>")
_HEREDOC_END = "END_OF_THE_CODE_OF_A_SKILL"


class Concern(msgspec.Struct, frozen=True):
    """One thing in a text that is refused, or that a person is asked about."""

    line: int
    severity: Literal["refuse", "ask"]
    message: str
    """Half a sentence that begins with "it"."""

    def __str__(self) -> str:
        return f"{self.message} (line {self.line})"


class Code(msgspec.Struct, frozen=True):
    """A piece of a text that is, or may be, a program."""

    line: int
    text: str
    language: Literal["shell", "python", "loose"]


def kind_of(path: str, text: str) -> TextKind:
    """What a file of a skill holds, by its name and its first line."""
    name = path.lower().rpartition("/")[2]
    suffix = name.rpartition(".")[2] if "." in name else ""
    first = text[:200].partition("\n")[0]
    if suffix in ("py", "pyw") or (first.startswith("#!") and "python" in first):
        return "python"
    if suffix in SHELL_NAMES or (first.startswith("#!") and re.search(r"\b(?:ba|z|k|da)?sh\b", first)):
        return "shell"
    return "markdown" if suffix in ("md", "markdown", "txt", "rst") else "text"


# One call is looked at by the gate and then by the handler.
@lru_cache(maxsize=8)
def concerns_in(text: str, kind: TextKind) -> tuple[Concern, ...]:
    """All that is wrong with a text, by line."""
    found = [*_threats(text), *(concern for code in _code_in(text, kind) for concern in _dangers(code))]
    refused = {concern.line for concern in found if concern.severity == "refuse"}
    telling = [concern for concern in found if concern.severity == "refuse" or concern.line not in refused]
    return tuple(sorted(dict.fromkeys(telling), key=lambda concern: concern.line))


def _threats(text: str) -> Iterator[Concern]:
    start = 0
    while start < len(text):
        window = text[start : start + WINDOW_CHARS]
        reason = threat_in(window)
        if reason:
            line = text.count("\n", 0, start) + _line_of(window, threat_in)
            yield Concern(line, "refuse", reason)
            return
        if start + WINDOW_CHARS >= len(text):
            return
        start += WINDOW_CHARS - OVERLAP_CHARS
        # At the start of a line, if one is near: a mark that belongs to the letter before it must not lose that.
        start = text.rfind("\n", start - 500, start) + 1 or start


def _line_of(window: str, is_found: Callable[[str], str]) -> int:
    """The line with the end of what is found, counted from 1: the shortest beginning of the text that has it."""
    lines = window.split("\n")
    low, high = 1, len(lines)
    while low < high:
        middle = (low + high) // 2
        if is_found("\n".join(lines[:middle])):
            high = middle
        else:
            low = middle + 1
    return low


def _code_in(text: str, kind: TextKind) -> Iterator[Code]:
    if kind == "markdown":
        yield from _code_of_markdown(text.split("\n"))
    elif kind in ("shell", "python"):
        yield Code(1, text, "shell" if kind == "shell" else "python")


def _code_of_markdown(lines: list[str]) -> Iterator[Code]:
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
                    yield Code(at, span.strip().removeprefix("$ "), "loose")
    if fence:
        yield from _fenced(lines[begin:], language, begin + 1)


def _fenced(lines: list[str], language: str, begin: int) -> Iterator[Code]:
    if language in PYTHON_NAMES:
        yield Code(begin, "\n".join(lines), "python")
    elif language in SESSION_NAMES or any(line.lstrip().startswith("$ ") for line in lines):
        typed = [line.lstrip()[2:] if line.lstrip().startswith(("$ ", "# ", "> ")) else "" for line in lines]
        yield Code(begin, "\n".join(typed), "shell")
    elif language in SHELL_NAMES:
        yield Code(begin, "\n".join(lines), "shell")
    elif not language:
        yield Code(begin, "\n".join(lines), "loose")


def _dangers(code: Code) -> Iterator[Concern]:
    if code.language == "python":
        script = f"python3 - <<'{_HEREDOC_END}'\n{code.text}\n{_HEREDOC_END}"
        findings = [(code.line, script, finding) for finding in analyse(script).findings]
    else:
        findings = list(_in_shell(_PLACEHOLDER.sub("PLACEHOLDER", code.text), code.line))
    for line, command, finding in findings:
        severity = _severity(finding, code)
        if severity is not None:
            yield Concern(line, severity, _in_words(finding, command, code))


def _in_shell(text: str, begin: int) -> Iterator[tuple[int, str, Finding]]:
    """Line, command and finding; a text that is not understood as a whole is read again line by line."""
    found = analyse(text)
    if not found.not_understood or "\n" not in text:
        yield from ((begin + text.count("\n", 0, finding.span[0]), text, finding) for finding in found.findings)
        return
    for at, line in enumerate(text.split("\n")[:MAX_LOOSE_COMMANDS]):
        yield from ((begin + at, line, finding) for finding in analyse(line).findings if line.strip())
    for finding in found.findings:
        if finding.severity == "block":
            yield begin, text, finding


def _severity(finding: Finding, code: Code) -> Literal["refuse", "ask"] | None:
    if finding.severity == "block":
        return "refuse"
    if code.language == "loose":
        return "ask" if finding.rule in CLEAR_ANYWHERE else None
    if code.language == "python" and finding.rule == "unknown_code":
        return None
    return None if finding.rule in NOT_WORTH_ASKING else "ask"


def _in_words(finding: Finding, command: str, code: Code) -> str:
    if code.language == "python":
        return f"it has Python code that {finding.reason}"
    # The whole line: what is dangerous about `curl … | sh` is not seen in `sh`.
    begin = command.rfind("\n", 0, finding.span[0]) + 1
    words = " ".join(command[begin:].partition("\n")[0].split())
    quoted = words if len(words) <= 80 else words[:79] + "…"
    return f"it has the command `{quoted}`, which {finding.reason}"
