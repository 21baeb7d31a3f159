"""Approval requests and answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from toolcrib.core.origins import ValueFinding

EntryPoint = Literal["interactive", "gateway", "cron", "batch", "library"]
"""Where a call comes from; this decides who can approve it."""

Mode = Literal["ask", "auto-edit", "plan"]
"""How much a session may do on its own; a front end switches it at any time.

`ask`: edits of files need approval. `auto-edit`: edits in the workspace run, commands by policy. `plan`: only reading.
"""
MODES: tuple[Mode, ...] = ("ask", "auto-edit", "plan")
DEFAULT_MODE: Mode = "auto-edit"
USER_DENIED = "the user denied it"
"""How the reason begins that the model gets when the person said no."""
PLAN_KINDS = frozenset({"read", "network", "interactive"})
"""The kinds of effects that plan mode allows, besides reading a remote record."""
PLAN_MODE = "plan_mode"
"""What decided a call that plan mode refused, and the error type of its result."""

Choice = Literal["once", "session", "always", "deny", "timeout", "cancelled"]
"""`session` and `always` also cover later calls with the same dangers in the same scopes."""


class Danger(msgspec.Struct, frozen=True, kw_only=True):
    """One reason to ask for approval. A grant covers one rule in one scope."""

    rule: str
    """A stable key: recursive_delete, write_outside_workspace, plugin_rule:…"""
    description: str
    """A short, readable name for the danger, such as "recursive delete"."""
    reason: str
    """One sentence about this call."""
    scope: str = ""
    """The range that a grant covers, such as "inside the workspace" or "this host"."""
    span: tuple[int, int] | None = None
    """The part of the command that triggers it."""
    paths: tuple[str, ...] = ()
    """What it would touch, as absolute paths."""

    @property
    def pattern_key(self) -> str:
        """The name under which the reference system stores the danger."""
        return self.rule if self.rule.startswith("plugin_rule:") else self.description


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an approver needs to decide."""

    id: str
    tool: str
    command: str
    """Exactly what would run; displayed escaped, never interpreted."""
    dangers: tuple[Danger, ...]
    title: str = ""
    """The tool's display name, if it differs from its name; for a server's tool it includes the server's name."""
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
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """The arguments of the call, as they were checked."""
    findings: tuple[ValueFinding, ...] = ()
    """What provenance found out about the delicate values among them."""
    diff: str = ""
    """What the call would change in files, as a unified diff, or why that is not shown. Never logged."""

    @property
    def can_be_edited(self) -> bool:
        """Whether the person may change the command before it runs."""
        return bool(self.command) and self.arguments.get("command") == self.command

    @property
    def description(self) -> str:
        """The dangers in one line."""
        return "; ".join(dict.fromkeys(danger.description for danger in self.dangers))


UNTRUSTED_VALUE = "untrusted_value"
"""The danger, and the error type of a denied call, if nothing vouches for a delicate value."""

PENDING = "pending"
"""`decided_by` of a deny that answers only the call: the request stays open on record and can still be answered."""


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The decision, and who made it."""

    choice: Choice
    reason: str = ""
    """The reason that the approver gave for a denial."""
    decided_by: str = ""
    """user, smart, policy, grant, timeout …"""
    every_scope: bool = False
    """With `session` or `always`: the grant covers these rules in every scope, not only in this one."""
    command: str = ""
    """With `once`: run this command instead, as the person edited it."""

    @property
    def allows(self) -> bool:
        return self.choice in ("once", "session", "always")
