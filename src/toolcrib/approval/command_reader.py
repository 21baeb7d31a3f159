"""Reads a command line with the analyser, and records the commands that it comes across."""

from __future__ import annotations

from collections.abc import Sequence

from toolcrib.approval.analyse import assess
from toolcrib.approval.calls import (
    UNKNOWN_TEXT,
    CommandReading,
    EvaluatedCommand,
    EvaluatedRedirection,
    EvaluationTrace,
    FindingKey,
    ProgramCall,
    Stack,
)
from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.expansion import Expander
from toolcrib.approval.shell.file_lookup import FileLookup
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, Severity, StreamData
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import LoopCommand, Redirection, Script, Word
from toolcrib.core.types import ShellSession

MAX_CALLS = 2_000
MAX_TRACE_STEPS = 64
"""Each step holds a copy of the shell's state; whoever needs to know more evaluates a longer command line again."""


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
    evaluator = RecordingEvaluator()
    script = parse(command) if isinstance(command, str) else command
    view = FileLookup() if here else None
    assessment = assess(evaluator, script, cwd=cwd, home=home, own=own, view=view, session=session)
    hides = any(finding.rule in ("unknown_code", "unknown_command") for finding in assessment.findings)
    return CommandReading(
        assessment=assessment,
        script=script,
        calls=tuple(evaluator.seen[:MAX_CALLS]),
        stands_on={key: tuple(stacks) for key, stacks in evaluator.standing.items()},
        complete=not assessment.not_understood and not hides and len(evaluator.seen) <= MAX_CALLS,
        trace=None if assessment.not_understood else evaluator.trace(cwd, home),
    )


class PatternNoticer(Expander):
    """Notices patterns: what they expand to depends on the files that exist."""

    noticed = False

    def fields(self, words: Sequence[Word], state: ShellState) -> list[ExpandedWord]:
        found = super().fields(words, state)
        if not self.noticed:
            for one in found:
                self.noticed = self.noticed or one.glob
        return found


class RecordingEvaluator(Evaluator):
    """An evaluator that also records the commands it comes across."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[ProgramCall] = []
        self.standing: dict[FindingKey, list[Stack]] = {}
        self.expander = self._patterns = PatternNoticer(self.run_substitution, self.spend)
        self._stack: list[ProgramCall] = []
        self._steps: list[EvaluatedCommand | EvaluatedRedirection] = []
        self._reads_lines = False

    def trace(self, cwd: str, home: str) -> EvaluationTrace | None:
        """Every command and redirection in order; None if a part of them depends on the files that exist."""
        if self._patterns.noticed or self._reads_lines or len(self._steps) > MAX_TRACE_STEPS:
            return None
        return EvaluationTrace(cwd=cwd, home=home, steps=tuple(self._steps))

    def loop(self, node: LoopCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        self._reads_lines = self._reads_lines or (node.condition is not None and stdin is not None)
        return super().loop(node, state, stdin)

    def targets(self, redirections: Sequence[Redirection], state: ShellState) -> list[tuple[Redirection, ExpandedWord]]:
        targets = super().targets(redirections, state)
        if len(self._steps) <= MAX_TRACE_STEPS and targets:
            before = state.copy()
            self._steps += [EvaluatedRedirection(redirection, target, before) for redirection, target in targets]
        return targets

    def invoke(
        self, words: list[ExpandedWord], state: ShellState, stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        program = words[0].text.rpartition("/")[2].removesuffix(".exe")
        is_traced = len(self._steps) <= MAX_TRACE_STEPS
        met = CommandCall(program, words[1:], state.copy() if is_traced else state, stdin, site.text, site.span)
        call = _seen(met)
        if is_traced:
            self._steps.append(EvaluatedCommand(words[0], met))
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
