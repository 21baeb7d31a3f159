"""The user's rules: allow, ask or deny by program, sub-command, flags and path; and patterns to deny."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

import msgspec

from toolcrib.approval.calls import UNKNOWN_TEXT, CommandReading, ProgramCall
from toolcrib.approval.grants import TRANSPARENT
from toolcrib.approval.json_pointers import values_at
from toolcrib.approval.paths import GLOB_CHARACTERS, PathScope, is_at_or_inside
from toolcrib.approval.shell.findings import Finding
from toolcrib.config.approval_entries import AND, TOOL, WHERE, conditions_of, rule_text
from toolcrib.core.origins import ValueOrigin
from toolcrib.core.remote_records import is_uri
from toolcrib.core.types import JsonObject

Action = Literal["allow", "ask", "deny"]
WORKSPACE = "workspace"
NOWHERE = "nowhere"
"""The origin of a value that the session has not seen."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the values of one argument of a tool."""

    pointer: str
    comparison: Literal["equals", "matches", "in", "from"]
    value: str

    def __str__(self) -> str:
        return f"{self.pointer} {self.comparison} {self.value}"

    def holds(self, action: Action, call: ToolArguments) -> bool:
        """Whether it holds: for allow, of every value of the argument and at least one; otherwise, of any."""
        found = [
            self._accepts(value, call) for _, value in values_at(call.arguments, self.pointer) if value is not None
        ]
        return bool(found) and (all(found) if action == "allow" else any(found))

    def _accepts(self, value: Any, call: ToolArguments) -> bool:
        text = str(value).strip()
        if self.comparison == "matches":
            return fnmatchcase(text.casefold(), self.value.casefold())
        if self.comparison == "from":
            origin = None if call.origin_of is None else call.origin_of(text)
            return (origin.level if origin is not None else NOWHERE) == self.value
        wanted = [self.value] if self.comparison == "equals" else self.value.split(",")
        return text.casefold() in {one.strip().casefold() for one in wanted}


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What rules with conditions look at."""

    arguments: JsonObject = msgspec.field(default_factory=dict)
    origin_of: Callable[[str], ValueOrigin | None] | None = None


NO_ARGUMENTS = ToolArguments()


class UserRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. Empty parts match anything."""

    action: Action
    program: str
    """A program name with wildcards, or `tool:` and the name of a tool that is not a command."""
    words: tuple[str, ...] = ()
    """The operands that the command must start with: its sub-command."""
    flags: tuple[str, ...] = ()
    """All must be present; `--force|-f` means either one."""
    location: str = ""
    """`workspace`, a path with wildcards, or the address of remote records (`s3://bucket`, `crm:`)."""
    conditions: tuple[Condition, ...] = ()
    """For a rule about a tool: conditions on its arguments; all must hold."""

    def __str__(self) -> str:
        parts = [self.action, self.program, *self.words, *self.flags]
        text = " ".join([*parts, "in", self.location] if self.location else parts)
        return f"{text} {WHERE} {f' {AND} '.join(map(str, self.conditions))}" if self.conditions else text

    def matches_tool(self, name: str) -> bool:
        return self.program.startswith(TOOL) and fnmatchcase(name, self.program[len(TOOL) :])

    def matches_command(self, call: ProgramCall) -> bool:
        """Compare program, sub-command and flags; `is_about` compares paths."""
        if self.program.startswith(TOOL) or not fnmatchcase(call.program, self.program):
            return False
        if len(call.operands) < len(self.words):
            return False
        if not all(fnmatchcase(given, word) for given, word in zip(call.operands, self.words, strict=False)):
            return False
        given = call.options | frozenset(call.words)
        return all(any(name in given for name in flag.split("|")) for flag in self.flags)

    def is_about(self, path: str, folders: PathScope) -> bool:
        """Whether the rule applies to this path."""
        if UNKNOWN_TEXT in path:
            return False
        if is_uri(path) or is_uri(self.location):
            return _is_record_in(path, self.location)
        if self.location == WORKSPACE:
            return folders.in_workspace(path)
        wanted = folders.absolute(self.location)
        if any(character in wanted for character in GLOB_CHARACTERS):
            return any(
                fnmatchcase(one, wanted) or fnmatchcase(one, wanted + "/*") for one in folders.written_and_real(path)
            )
        return any(is_at_or_inside(one, folders.real(wanted)) for one in folders.written_and_real(path))


def _is_record_in(address: str, location: str) -> bool:
    """Whether a remote record is at or below an address: `s3://bucket`, `crm:`, `https://*.example.com/*`."""
    if any(character in location for character in GLOB_CHARACTERS):
        return fnmatchcase(address, location)
    below = location if location.endswith((":", "/")) else f"{location}/"
    # `..` and encoded characters may mean another place than the text says.
    is_plain = not any(text in address for text in ("/../", "/./", "%", "\\")) and not address.endswith(("/..", "/."))
    return is_uri(location) and (address == location or (is_plain and address.startswith(below)))


def parse_rule(text: str) -> UserRule:
    """Parse one line; raises ValueError with the expected form."""
    action, program, *rest = rule_text(text).split()
    location = ""
    if WHERE in rest:
        conditions = conditions_of(rest[rest.index(WHERE) + 1 :])
        return UserRule(
            action=cast("Action", action),
            program=program,
            conditions=tuple(
                Condition(pointer=pointer, comparison=cast("Any", comparison), value=value)
                for pointer, comparison, value in conditions
            ),
        )
    if "in" in rest:
        at = rest.index("in")
        rest, location = rest[:at], " ".join(rest[at + 1 :])
    return UserRule(
        action=cast("Action", action),
        program=program,
        words=tuple(word for word in rest if not word.startswith("-")),
        flags=tuple(word for word in rest if word.startswith("-")),
        location=location,
    )


def find_command_rule(
    rules: tuple[UserRule, ...], action: Action, reading: CommandReading, folders: PathScope
) -> UserRule | None:
    """The first rule with this action (ask or deny) that matches any command of the line."""
    touched = {path for finding in reading.assessment.findings for path in finding.paths}
    for rule in rules:
        if rule.action != action:
            continue
        calls = [call for call in reading.calls if rule.matches_command(call)]
        if calls and not rule.location:
            return rule
        # A redirection belongs to no program; it counts for rules about any program and for rules that match.
        paths = {path for call in calls for path in call.paths} | (touched if calls or rule.program == "*" else set())
        if rule.location and any(rule.is_about(path, folders) for path in paths):
            return rule
    return None


def has_tool_rule(
    rules: tuple[UserRule, ...],
    action: Action,
    name: str,
    paths: tuple[str, ...],
    folders: PathScope,
    call: ToolArguments = NO_ARGUMENTS,
) -> bool:
    """Whether a rule with this action matches the tool, its paths and its arguments."""
    for rule in rules:
        if rule.action != action or not rule.matches_tool(name):
            continue
        if not all(condition.holds(action, call) for condition in rule.conditions):
            continue
        if not rule.location:
            return True
        about = [rule.is_about(path, folders) for path in paths]
        if about and (all(about) if action == "allow" else any(about)):
            return True
    return False


def is_allowed_by(rules: tuple[UserRule, ...], finding: Finding, reading: CommandReading, folders: PathScope) -> bool:
    """Whether allow rules cover a finding: its command and every wrapper around it must be allowed."""
    stacks = reading.stacks(finding)
    allowing = [rule for rule in rules if rule.action == "allow"]
    if not allowing or not stacks or not all(stacks):
        return False
    return all(
        any(_allows(rule, stack[-1], finding, folders) for rule in allowing)
        and all(
            wrapper.program in TRANSPARENT
            or any(rule.matches_command(wrapper) and not rule.location for rule in allowing)
            for wrapper in stack[:-1]
        )
        for stack in stacks
    )


def _allows(rule: UserRule, call: ProgramCall, finding: Finding, folders: PathScope) -> bool:
    if not rule.matches_command(call):
        return False
    if not rule.location:
        return True
    paths = (*finding.paths, *call.paths)
    return bool(paths) and all(rule.is_about(path, folders) for path in paths)


def find_denied_pattern(patterns: tuple[str, ...], command: str, reading: CommandReading) -> str | None:
    """The first pattern that matches the line or any command in it, ignoring case."""
    texts = {" ".join(command.split()), *(finding.subcommand for finding in reading.assessment.findings)}
    texts.update(call.text for call in reading.calls)
    lowered = [text.lower() for text in texts]
    for pattern in patterns:
        wanted = " ".join(pattern.lower().split())
        if any(fnmatchcase(text, wanted) for text in lowered):
            return pattern
    return None
