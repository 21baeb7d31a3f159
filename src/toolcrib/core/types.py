"""The values that travel through the runtime: effects, entries, calls, results, verdicts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from toolcrib.core.origins import DelicateRole, OriginDeclaration, ValueFinding

if TYPE_CHECKING:
    from toolcrib.core.approvals import Danger

JsonObject = dict[str, Any]
Handler = Callable[..., Any]
CheckFn = Callable[[], Any]
SchemaOverrides = Callable[[], Any]

EffectKind = Literal[
    "exec", "read", "write", "delete", "remote", "network", "publish", "spend", "secret", "schedule", "interactive",
    "changed", "process", "record",
]  # fmt: skip
"""`process`: the end of a process that this session started, or of its input; it needs no approval.
`remote`: a record of a service (a message, ticket, object in a bucket); never a file, whatever its id looks like.
`record`: an entry that toolcrib itself keeps, such as a card of the board; people see it and can change it back, so it
needs no approval.
`changed`: the tool itself changed since it was approved; the target says how."""


class ShellSession(msgspec.Struct, frozen=True):
    """The shell text that restores a session: its folder, exported variables, functions and aliases."""

    first: str
    """As it was when the session began."""
    now: str


class Effect(msgspec.Struct, frozen=True):
    """One thing a call does outside itself.

    `target` is the command for exec, the path for read, write and delete, the host for network, the id or address of
    the record for remote. A read, write or delete of anything with a URI scheme counts as remote, except `file:`.
    """

    kind: EffectKind
    target: str = ""
    cwd: str = ""
    """The folder that a command would run in, if the tool knows better than the call's context."""
    backend: str = ""
    """Where a command would run; empty means this machine."""
    isolated: bool = False
    """Whether the command's effects stay inside its backend, except over the network."""
    workspace: str = ""
    """With `backend`: the session's working folder there, if specified."""
    caution: str = ""
    """For exec, write and delete: a warning for the user. An effect with a warning needs approval."""
    service: str = ""
    """For remote: the service that holds the record; by default the host or scheme of the target."""
    action: str = ""
    """For remote: what happens to the record (`create`, `update`, `delete` …). `read` needs no approval."""
    delicate: Mapping[str, DelicateRole] | None = None
    """The arguments that decide what the effect reaches: JSON pointers and their roles; None if it names none."""
    session: ShellSession | None = None
    """For exec: what the shell that runs the command knows from earlier ones."""


EffectsFn = Callable[[JsonObject, Any], tuple[Effect, ...]]
"""Computes a call's effects from its arguments and ToolContext. Pure and quick."""
EffectsDeclaration = tuple[Effect, ...] | EffectsFn
Preview = Callable[[JsonObject, Any], Awaitable[str]]
"""Shows what a call would change, from its arguments and ToolContext: a unified diff, or a sentence."""

SourceKind = Literal["builtin", "user", "plugin", "mcp", "code"]


class Source(msgspec.Struct, frozen=True):
    """Who declared something. `tools explain` shows it, and it decides which tools a plugin may change."""

    kind: SourceKind
    name: str
    """The plugin's or server's name, or the module for everything else."""
    path: str = ""
    may_override: bool = False
    """Whether the operator lets this plugin replace tools from other sources."""
    tool: str = ""
    """The server's own name for the tool, if ours is derived from it; safe to display."""

    def __str__(self) -> str:
        behind = self.path or self.tool
        return f"{self.kind} {self.name}" + (f" ({behind})" if behind else "")


CODE = Source("code", "python")

AGENT_LOOP_TOOLS = frozenset({"todo", "memory", "session_search", "delegate_task"})
"""Tools that need the state of a running agent; without an agent, calling one returns an error."""

TOOL_SEARCH, TOOL_DESCRIBE, TOOL_CALL = "tool_search", "tool_describe", "tool_call"
SEARCH_TOOLS = frozenset({TOOL_SEARCH, TOOL_DESCRIBE, TOOL_CALL})
"""The three tools that give access to tools which are not offered by name."""


class ToolEntry(msgspec.Struct, frozen=True):
    """One registered tool. Entries are immutable; a new registration makes a new entry."""

    name: str
    toolset: str
    schema: JsonObject
    handler: Handler
    check_fn: CheckFn | None = None
    requires_env: list[str] = msgspec.field(default_factory=list)
    is_async: bool = False
    description: str = ""
    emoji: str = ""
    max_result_size_chars: int | float | None = None
    dynamic_schema_overrides: SchemaOverrides | None = None
    effects: EffectsDeclaration | None = None
    """None: not declared (trusted as effect-free, run in order). An empty tuple: declared free of effects."""
    source: Source = CODE
    takes_context: bool = False
    """Whether the handler has a `ctx` parameter."""
    keywords: frozenset[str] | None = None
    """The keyword arguments that the handler accepts besides `args`; None if it accepts any."""
    origin: OriginDeclaration = ""
    """Where its results come from; empty: it follows from the effects, and without these they are untrusted."""
    preview: Preview | None = None
    """Shows what a call would change, for the question before it."""

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema for the arguments."""
        parameters = self.schema.get("parameters")
        return parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}

    @property
    def is_ours(self) -> bool:
        return self.source.kind == "builtin"

    @property
    def title(self) -> str:
        """The tool's display name; for a server's tool it includes the server's name."""
        return f"{self.source.name}: {self.source.tool}" if self.source.tool else self.name


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call as a model requested it. `arguments` may still be the model's raw JSON text."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str


ResultStatus = Literal["ok", "error", "blocked", "cancelled", "timeout"]


# Every call makes one of these, and a msgspec Struct costs a sixth of a frozen dataclass.
class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call: always well formed, whatever the handler did."""

    content: str | JsonObject
    """The text for the model, or `{"_multimodal": True, "content": [...]}`."""
    status: ResultStatus = "ok"
    error_type: str = ""
    """Why it is not ok, in one word: tool_error, invalid_arguments, unknown_tool, plugin_block, denied …"""
    error_message: str = ""
    call_id: str = ""
    name: str = ""
    duration_ms: float = 0.0
    handle: str = ""
    """Where the whole text can be read, if `content` is only a preview of it."""
    effects: tuple[Effect, ...] | None = None
    """The effects that were approved; None if the call was not admitted or its tool declares no effects."""
    origin: OriginDeclaration = ""
    """Where the content comes from; empty for an error of toolcrib itself."""
    edited: str = ""
    """The command that ran, if the person changed it first."""
    notices: tuple[str, ...] = ()
    """What the person should know about the call, such as deletions that undo has not recorded."""
    finding: ValueFinding | None = None
    """For a call denied as `untrusted_value`: the value, its argument, and where the value first appeared."""

    @property
    def is_error(self) -> bool:
        return self.status != "ok"

    @property
    def text(self) -> str:
        """The content as text; for a multimodal result, its text parts."""
        if isinstance(self.content, str):
            return self.content
        parts = self.content.get("content", [])
        return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


class Unavailable(msgspec.Struct, frozen=True):
    """A `check_fn` may return this instead of False, to give a reason and a remedy."""

    reason: str
    remedy: str = ""

    def __bool__(self) -> bool:
        return False


class Verdict(msgspec.Struct, frozen=True):
    """Policy's verdict on a call. `reasons` are sentences for the user."""

    decision: Literal["allow", "ask", "deny"]
    reasons: tuple[str, ...] = ()
    rule: str = ""
    """What decided it, or what needs approval: a gate rule, plugin_rule:…, approval_timeout …"""
    dangers: tuple[Danger, ...] = ()
    """Each danger that needs approval."""
    command: str = ""
    """The command line that contains the dangers, if the call runs one."""
    backend: str = ""
    """Where that command would run; empty means this machine."""
    findings: tuple[ValueFinding, ...] = ()
    """What provenance found out about the delicate values of the call."""
    edited: str = ""
    """The command as the person changed it; the call has to be judged again with it."""

    def joined(self, other: Verdict) -> Verdict:
        """The stricter of two verdicts; two asks merge into one with both reasons."""
        rank = {"allow": 0, "ask": 1, "deny": 2}
        if self.decision == other.decision and self.decision != "deny":
            dangers, command = self.dangers + other.dangers, self.command or other.command
            rule, backend = self.rule or other.rule, self.backend or other.backend
            findings = self.findings + other.findings
            return Verdict(self.decision, self.reasons + other.reasons, rule, dangers, command, backend, findings)
        return other if rank[other.decision] > rank[self.decision] else self


ALLOW = Verdict("allow")
