"""Text typed into a running program, as the gate judges it: in the language of the program that reads it.

The text becomes the standard input of that program in a command line (`{ python3 -i; } <<'TYPED'`), which the gate
reads like any other: as shell text for a shell, as Python for Python, as SQL for a database client. Text that was sent
earlier and not yet run belongs to it. What nobody can predict (keys that edit the line, an unknown program) needs
approval.
"""

from __future__ import annotations

import codeop
import re
import warnings
from functools import lru_cache
from typing import Literal

from toolcrib.approval.calls import ProgramCall
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.shell.findings import Finding
from toolcrib.approval.shell.handlers.interpreters import INLINE, SAME, SHELLS
from toolcrib.approval.shell.model import name_set
from toolcrib.approval.shell.parser import parse
from toolcrib.core.environments import TypingTarget
from toolcrib.core.types import Effect

Language = Literal["shell", "python", "sql", "lines", "data"]

PYTHON = re.compile(r"(?:i?python|pypy)(?:\d[\d.]*)?$")
SQL_CLIENTS = name_set("psql mysql mariadb sqlite3 duckdb mycli pgcli litecli clickhouse-client")
LINE_READERS = frozenset({*INLINE, *SAME, "redis-cli", "mongosh", "mongo", "ftp", "sftp"}) - {"gdb", "lldb", "emacs"}
"""Interpreters whose text the analyser knows, one line at a time."""
DATA_READERS = name_set(
    "cat tac tee grep rg sort uniq wc head tail tr cut jq nl rev base64 sha256sum read mapfile readarray"
)
"""Programs that only pass on, filter or count what they read."""
READ_NOTHING = name_set("echo printf cd export set true false : test [ [[ (( sleep clear stty mkdir ls date pwd exit")
"""Programs around the one that reads."""
RUNS_SOMETHING_GIVEN = frozenset({"-c", "-m", "-e", "-E", "-f", "-r", "--command", "--execute", "--eval", "--file"})
MAX_UNFINISHED = 8_000
EDITING_KEYS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
TAB = "\t"
DROP_LINE, SEND_LINE = ("\x03", "\x1c"), "\x04"
"""Ctrl-C and Ctrl-\\ drop the line, Ctrl-D sends it."""
NEW_LINE_KEYS = re.compile(r"[\x03\x04\x1c]")
HISTORY = re.compile(r"(?:^|[^\\$\w'])!(?=[\w!?$^*:#-])|^\^", re.MULTILINE)
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
UNFINISHED = ("not closed", "ends too early", "nothing follows")
"""How the parser says that more lines must follow."""


def typed_effects(target: TypingTarget, data: str, *, ends_line: bool) -> tuple[Effect, ...]:
    """What typing this text would run: one command for each program that may read it."""
    if data in DROP_LINE:
        return ()
    if data == SEND_LINE or ends_line:
        data = data.removesuffix(SEND_LINE) + "\n"
    readers = {command: language_of(command) for command in target.readers or (target.command,)}
    unknown = [command for command, language in readers.items() if language is None]
    if unknown:
        readers = {target.command: language_of(target.command)}
    effects = []
    for command, language in readers.items():
        text = unfinished(target.typed, language or "lines") + data.replace("\r\n", "\n").replace("\r", "\n")
        caution = _caution(target, language, text, unknown)
        if not text.strip() or (not caution and "\n" not in text and not is_finished(text, language or "lines")):
            continue
        earlier, approved = settled(command, target.typed, language)
        if approved:
            earlier, caution = _with_approved(command, earlier, approved, text, caution)
        effects.append(Effect("exec", as_input(command, earlier + text), cwd=target.cwd, caution=caution))
    return tuple(effects)


def _with_approved(command: str, earlier: str, approved: str, text: str, caution: str) -> tuple[str, str]:
    """What to judge the text with, and why to ask, if lines that a person approved give it another meaning."""
    before = {_key(finding) for finding in _findings(as_input(command, approved))}
    new = [each for each in _findings(as_input(command, approved + text)) if _key(each) not in before]
    if any(finding.severity == "block" for finding in new):
        return approved, caution
    return earlier, caution or (f"after what was typed before: {new[0].reason}" if new else "")


def _caution(target: TypingTarget, language: Language | None, text: str, unknown: list[str]) -> str:
    """Why nobody can tell what the text will do; empty if one can."""
    if unknown:
        return f"types into {unknown[0].split()[0][:80]!r}, and toolcrib cannot tell what that does with it"
    if EDITING_KEYS.search(text) or (TAB in text and target.has_terminal):
        return "types keys that edit or complete the line"
    if language == "shell" and target.has_terminal and HISTORY.search(text):
        return "repeats an earlier command from the history"
    if target.forgot_typed and language in REMEMBERS:
        return "so much was typed before that toolcrib has forgotten what names and folders mean"
    if len(text) > MAX_UNFINISHED:
        return "types more than can be analysed as one command"
    return ""


def as_input(command: str, text: str) -> str:
    """A command line that runs the program with this input."""
    end = "TYPED"
    while end in text:
        end += "_"
    body = text if text.endswith("\n") else f"{text}\n"
    return f"{{ {command}\n}} <<'{end}'\n{body}{end}\n"


@lru_cache(maxsize=64)
def language_of(command: str) -> Language | None:
    """The language in which the program of a command line reads its input; None if that is not known."""
    reading = read_command(command)
    calls = [call for call in reading.calls if call.program not in READ_NOTHING]
    return _language(calls[-1]) if calls and reading.complete else None


def _language(call: ProgramCall) -> Language | None:
    program = call.program.removeprefix("-")
    given = bool(RUNS_SOMETHING_GIVEN & call.options)
    if program in SHELLS:
        return "shell" if not given and (not call.operands or "-s" in call.options) else None
    if PYTHON.match(program):
        return "python" if (not given and not call.operands) or "-i" in call.options else None
    if program in SQL_CLIENTS:
        return None if given else "sql"
    if program in LINE_READERS:
        return "lines" if not given and (not call.operands or program not in {*INLINE, *SAME}) else None
    if program in ("ssh", "mosh"):
        return "shell" if len(call.operands) == 1 else None
    return "data" if program in DATA_READERS else None


def unfinished(typed: str, language: Language) -> str:
    """The end of what was typed that the program has not run yet: a part of a line, or an open block."""
    text = ""
    for line in NEW_LINE_KEYS.split(typed)[-1].replace("\r\n", "\n").replace("\r", "\n").splitlines(keepends=True):
        text += line
        if line.endswith("\n") and (len(text) > MAX_UNFINISHED or is_finished(text, language)):
            text = ""
    return text


def settled(command: str, typed: str, language: Language | None) -> tuple[str, str]:
    """What was typed before and has run: it decides what names and folders mean now.

    The first text leaves out what was asked about, because nobody wants to answer for it again with every line; the
    second has that, too, and is empty if nothing was.
    """
    if language not in REMEMBERS:
        return "", ""
    kept = whole = text = ""
    for line in NEW_LINE_KEYS.sub("\n", typed).replace("\r\n", "\n").replace("\r", "\n").splitlines(keepends=True):
        text += line
        if line.endswith("\n") and is_finished(text, language):
            if matters(text, language):
                whole += text
                if not _findings(as_input(command, kept + text)):
                    kept += text
            text = ""
    return kept, whole if whole != kept else ""


def matters(text: str, language: Language) -> bool:
    """Whether a finished text may change what later text means, instead of only doing something."""
    return language not in LASTING or LASTING[language].search(text) is not None


REMEMBERS = ("shell", "python", "lines")
"""Languages in which one line gives names a meaning for the next."""
LASTING: dict[str, re.Pattern[str]] = {
    "shell": re.compile(
        r"=|\(\)|\b(?:cd|pushd|popd|set|shopt|alias|function|read|mapfile|readarray|printf|getopts|exec|source|hash"
        r"|export|declare|typeset|trap|eval|enable)\b|(?:^|[;&|\s])\.\s|[<>]",
    ),
    "python": re.compile(r"=|\b(?:import|def|class|for|with|exec|eval|chdir|global|setattr|setdefault|update)\b"),
}


@lru_cache(maxsize=256)
def _findings(command: str) -> tuple[Finding, ...]:
    return read_command(command).assessment.findings


def _key(finding: Finding) -> tuple[str, str, tuple[str, ...], str]:
    return finding.rule, finding.reason, finding.paths, finding.severity


def is_finished(text: str, language: Language) -> bool:
    """Whether the program would run this text when its last line ends, instead of waiting for more lines."""
    if language == "shell":
        return _is_finished_shell(text)
    if language == "python":
        return _is_finished_python(text)
    if language == "sql":
        return not text.strip() or text.rstrip().endswith((";", "\\g", "\\G")) or text.lstrip()[:1] in ("\\", ".")
    return True


def _is_finished_shell(text: str) -> bool:
    if text.rstrip("\n").endswith("\\"):
        return False
    lines = text.splitlines()
    if any(match.group(2) not in map(str.strip, lines) for match in HEREDOC.finditer(text)):
        return False
    error = parse(text).error or ""
    return not any(phrase in error for phrase in UNFINISHED)


def _is_finished_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(text.removesuffix("\n")) is not None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        # The program reports it and starts again.
        return True
