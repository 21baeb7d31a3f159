"""Holds a command against the rules, and against the places that it writes to."""

from __future__ import annotations

from toolcrib.approval.shell.flow import judge_write
from toolcrib.approval.shell.model import UNKNOWN, Field, NotUnderstood
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import Call
from toolcrib.approval.shell.rules.other_tools import ANY_UNLISTED
from toolcrib.approval.shell.rules.table import BY_PROGRAM, TAKES_SUBCOMMAND
from toolcrib.approval.shell.runner import Runner, Site
from toolcrib.approval.shell.writes import written_paths

MAX_WRITTEN = 400


def help_only(call: Call) -> bool:
    """True for a command that only prints its help or version."""
    return any(word.text in ("--help", "--version", "--usage") for word in call.words[-1:] + call.words[:1]) or (
        [word.text for word in call.words] in (["-V"], ["help"], ["version"], ["-v"])
    )


def judge(runner: Runner, call: Call, site: Site, *, handled: bool) -> None:
    """Report every rule that the command matches; one that has neither rows nor a handler is judged by its words."""
    rules = BY_PROGRAM.get(call.program) or BY_PROGRAM.get(call.program.partition(".")[0] + ".*")
    if rules is None:
        rules = () if handled else BY_PROGRAM[ANY_UNLISTED]
    blocked = False
    for rule in rules:
        if not rule.matches(call):
            continue
        severity = rule.severity if call.known else "ask"
        if rule.severity == "block" and not call.known:
            continue
        blocked = blocked or severity == "block"
        runner.report(rule.key, rule.reason, site, severity=severity, paths=touched(call))
    if call.program in TAKES_SUBCOMMAND:
        judge_unknown_subcommand(runner, call, site)
    written = written_paths(call)
    if len(written) > MAX_WRITTEN:
        raise NotUnderstood("a command writes to more files than can be looked at")
    for path, target in written:
        judge_write(runner, path, target, call.state, site)


def judge_unknown_subcommand(runner: Runner, call: Call, site: Site) -> None:
    operands = call.arguments.operands
    if operands and UNKNOWN in operands[0].text[:1]:
        runner.report("unknown_command", f"which sub-command of {call.program} runs is only known at run time", site)


def touched(call: Call) -> tuple[str, ...]:
    """The paths among the operands of a file command, for the person and for the scope of a grant."""
    if call.program not in FILE_PROGRAMS:
        return ()
    operands: list[Field] = call.arguments.operands
    if call.program in ("chmod", "chown", "chgrp"):
        operands = operands[1:]
    return tuple(resolve(each, call.state) for each in operands[:32] if each.text)


FILE_PROGRAMS = frozenset(
    ("rm", "chmod", "chown", "chgrp", "shred", "unlink", "truncate", "rmdir", "srm", "wipe", "dd", "tee", "cp", "mv")
)
