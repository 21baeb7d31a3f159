"""Reads a command line with the analyser, and records the commands that it comes across."""

from __future__ import annotations

from collections.abc import Sequence

from toolcrib.approval.analyse import assess
from toolcrib.approval.calls import (
    UNKNOWN_TEXT,
    CommandReading,
    FindingKey,
    ProgramCall,
    Stack,
)
from toolcrib.approval.named_files import NamedFiles
from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.file_lookup import FileLookup
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, Severity, StreamData
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import Redirection, Script
from toolcrib.core.types import ShellSession

MAX_CALLS = 2_000


def read_command(
    command: str | Script,
    *,
    cwd: str = "",
    home: str = "",
    own: tuple[str, ...] = (),
    here: bool = False,
    session: ShellSession | None = None,
) -> CommandReading:
    """Read a command line without running it."""
    evaluator = RecordingEvaluator(is_here=here)
    script = parse(command) if isinstance(command, str) else command
    view = FileLookup(home, own) if here else None
    assessment = assess(evaluator, script, cwd=cwd, home=home, own=own, view=view, session=session)
    hides = any(finding.rule in ("unknown_code", "unknown_command") for finding in assessment.findings)
    complete = not assessment.not_understood and not hides and len(evaluator.seen) <= MAX_CALLS
    if not complete:
        evaluator.files.may_hide_more()
    return CommandReading(
        assessment=assessment,
        script=script,
        calls=tuple(evaluator.seen[:MAX_CALLS]),
        stands_on={key: tuple(stacks) for key, stacks in evaluator.standing.items()},
        complete=complete,
        files=evaluator.files,
    )


class RecordingEvaluator(Evaluator):
    """An evaluator that also records the commands it comes across."""

    def __init__(self, *, is_here: bool) -> None:
        super().__init__()
        self.seen: list[ProgramCall] = []
        self.standing: dict[FindingKey, list[Stack]] = {}
        self.files = NamedFiles(is_here)
        self._stack: list[ProgramCall] = []

    def targets(self, redirections: Sequence[Redirection], state: ShellState) -> list[tuple[Redirection, ExpandedWord]]:
        targets = super().targets(redirections, state)
        for redirection, target in targets:
            self.files.redirect(redirection, target, state)
        return targets

    def invoke(
        self, words: list[ExpandedWord], state: ShellState, stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        program = words[0].text.rpartition("/")[2].removesuffix(".exe")
        met = CommandCall(program, words[1:], state, stdin, site.text, site.span)
        call = _seen(met)
        self.files.look_at(met)
        if len(self.seen) <= MAX_CALLS:
            self.seen.append(call)
        self._stack.append(call)
        try:
            return super().invoke(words, state, stdin, site)
        finally:
            self._stack.pop()

    def report(
        self, key: str, reason: str, site: CommandLocation, *, severity: Severity = "ask", paths: tuple[str, ...] = ()
    ) -> None:
        super().report(key, reason, site, severity=severity, paths=paths)
        shown = tuple(path.replace(UNKNOWN, UNKNOWN_TEXT) for path in paths)
        # Record repeated findings, too: the same words may run under another wrapper.
        stacks = self.standing.setdefault((key, site.text[:500], site.span, shown, reason), [])
        if len(stacks) < MAX_CALLS:
            stacks.append(tuple(self._stack))


def _seen(call: CommandCall) -> ProgramCall:
    given, state = call.arguments, call.state
    places = [*given.operands, *(value for _, value in given.options if value is not None)]
    return ProgramCall(
        program=_shown(call.program),
        words=tuple(_shown(word.text) for word in call.words),
        options=frozenset(name for name, _ in given.options),
        operands=tuple(_shown(word.text) for word in given.operands),
        paths=tuple(_shown(resolve(_home_path(each, state), state)) for each in places if each.text),
        cwd=_shown(state.cwd) if state.cwd_known and not (state.container or state.remote) else "",
        git_dir=_shown("".join(word.text for word in state.variables.get("GIT_DIR", ()))),
    )


def _home_path(word: ExpandedWord, state: ShellState) -> ExpandedWord:
    """`--file=~/x` and the like keep their tilde; in a path it means the home folder."""
    return word.with_text(state.home + word.text[1:]) if word.text.startswith("~/") else word


def _shown(text: str) -> str:
    return text.replace(UNKNOWN, UNKNOWN_TEXT)
