"""The question that a person is asked about a call, and the answer."""

from __future__ import annotations

from typing import Literal

import msgspec

EntryPoint = Literal["interactive", "gateway", "cron", "batch", "library"]
"""Where a call comes from, which decides who can be asked."""

Choice = Literal["once", "session", "always", "deny", "timeout", "cancelled"]
"""`session` and `always` also cover later calls with the same dangers in the same scopes."""


class Danger(msgspec.Struct, frozen=True, kw_only=True):
    """One reason to ask. A grant covers a rule in a scope, never another rule or scope."""

    rule: str
    """A stable key: recursive_delete, write_outside_workspace, plugin_rule:…"""
    description: str
    """The class of danger in a few words, as people name it: "recursive delete"."""
    reason: str
    """One sentence about this call."""
    scope: str = ""
    """As wide as a person means it: "inside the workspace", "this host"."""
    span: tuple[int, int] | None = None
    """The words of the command that it stands on."""
    paths: tuple[str, ...] = ()
    """What it would touch, made absolute."""


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the one who answers needs to know."""

    id: str
    tool: str
    command: str
    """What would be run or done, exactly; shown escaped, never interpreted."""
    dangers: tuple[Danger, ...]
    title: str = ""
    """What people know the tool by, where that is not its name: of a tool of a server, the names of both."""
    session_key: str = ""
    call_id: str = ""
    turn_id: str = ""
    cwd: str = ""
    backend: str = "local"
    entry_point: EntryPoint = "library"
    asked_at: float = 0.0
    """Seconds since the epoch."""
    may_be_permanent: bool = True
    """Whether "always" is offered."""

    @property
    def description(self) -> str:
        """The dangers in one line."""
        return "; ".join(dict.fromkeys(danger.description for danger in self.dangers))


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, by whom."""

    choice: Choice
    reason: str = ""
    """Why it was denied, in the words of the one who denied it."""
    decided_by: str = ""
    """user, smart, policy, grant, timeout …"""
    every_scope: bool = False
    """With `session` or `always`: dangers of these kinds are agreed to in every scope, not only in this one."""

    @property
    def allows(self) -> bool:
        return self.choice in ("once", "session", "always")
