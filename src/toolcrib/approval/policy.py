"""Decides allow, ask or deny: one pure function for run time, `toolcrib approvals test`, and "always allow"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from toolcrib.approval.calls import CommandReading, ReadCommand
from toolcrib.approval.git_repositories import changed_since
from toolcrib.approval.grants import DangerScopes, Grant, path_scope
from toolcrib.approval.line_repositories import made_in_line
from toolcrib.approval.paths import PathScope, SensitivePaths, follow_links
from toolcrib.approval.user_rules import (
    ToolArguments,
    UserRule,
    find_command_rule,
    find_denied_pattern,
    has_tool_rule,
    is_allowed_by,
)
from toolcrib.core.approvals import DEFAULT_MODE, PLAN_KINDS, PLAN_MODE, UNTRUSTED_VALUE, Danger, EntryPoint, Mode
from toolcrib.core.origins import ValueFinding, ValueOrigin
from toolcrib.core.remote_records import FILE_KINDS, address_of, is_record_id, located, service_of
from toolcrib.core.types import Effect, EffectKind, JsonObject, Verdict

Outcome = Literal["allow", "ask", "deny"]
ProvenanceMode = Literal["decide", "show", "off"]
"""Whether the origins of values decide calls, or are only shown in questions."""

# Dangers that an isolated backend contains; all others reach outside, wherever they run.
STAYS_INSIDE = frozenset(
    "recursive_delete disk_write format kill system_power fork_bomb permissions system_config service remote_code "  # noqa: SIM905
    "credential container own_program unknown_code unknown_command not_understood".split()
)
# A kernel sandbox on this machine: anything that can damage or read the session's own folder still needs approval.
STAYS_IN_SANDBOX = STAYS_INSIDE - {"recursive_delete", "permissions", "credential"}
SQL_PROGRAMS = frozenset({"sqlite3", "sqlite", "litecli"})
MAX_QUOTED = 120
RECORD_DELETES = frozenset({"delete", "remove", "destroy", "purge", "trash", "drop", "erase"})
READS_ONLY = frozenset({"credential", "exfiltration"})
PLAN_TOOLS = frozenset({"todo", "session_search", "delegate_task"})
"""Built-in tools that change nothing but the session; subagents work in the mode of their agent."""
PLAN_ONLY = "plan mode allows only tools and commands that read; put what you want to do into your plan"

ASK_EFFECTS: dict[EffectKind, tuple[str, str]] = {
    "publish": ("publishing", "publishes something"),
    "spend": ("spending money", "spends money"),
    "secret": ("use of a secret", "uses a secret"),
    "changed": ("tool that has changed", "has changed since it was approved:"),
    "schedule": ("work at a later time", "changes what runs later, unattended:"),
}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a decision depends on, besides the call and the grants. Fixed when a Runtime is created."""

    sensitive: SensitivePaths
    workspace: str
    """Tools may write here without approval."""
    home: str
    """The user's home folder."""
    mode: Literal["manual", "smart", "off"] = "manual"
    entry_point: EntryPoint = "library"
    session_mode: Mode = DEFAULT_MODE
    """How much the session of the call may do on its own."""
    answer: Literal["ask", "allow", "deny"] = "ask"
    """How the entry point answers dangers."""
    attended: bool = True
    """Someone can be asked."""
    yolo: bool = False
    rules: tuple[UserRule, ...] = ()
    deny: tuple[str, ...] = ()
    backend: str = "local"
    isolated: bool = False
    """The backend cannot reach the host."""
    workspace_follows_cwd: bool = False
    """The caller set no workspace, so the working folder of each call is used."""
    provenance: ProvenanceMode = "off"
    provenance_limit: float = 0.0
    """Amounts up to this need no known origin."""
    started_at: float = 0.0
    """When the session's process began; git must not run unasked what changed since. 0 means that it may."""

    def folders(self, cwd: str = "") -> PathScope:
        workspace = cwd if cwd and self.workspace_follows_cwd else self.workspace
        # Resolve the links of each path once per decision.
        return PathScope(cwd=cwd or self.workspace, workspace=workspace, home=self.home, real=cache(follow_links))


REMOTE_HOME = "/home/…"
"""A placeholder for the home folder on another machine."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is about to do."""

    tool: str
    effects: tuple[Effect, ...] | None
    mcp_server: str = ""
    """The MCP server of the tool, if it has one: grants for its tools don't apply to tools of other servers."""
    is_builtin: bool = False
    """The tool is built in, so its name tells what it does."""
    title: str = ""
    """The tool's display name, if it differs from its name."""
    cwd: str = ""
    arguments: JsonObject = msgspec.field(default_factory=dict)
    findings: tuple[ValueFinding, ...] | None = None
    """The origins of the call's delicate values; None if it names none."""
    origin_of: Callable[[str], ValueOrigin | None] | None = None
    """Looks up where a value comes from, for rules with conditions."""

    @property
    def command(self) -> str:
        """The commands that would run; empty if the call runs none."""
        return "\n".join(effect.target for effect in self.effects or () if effect.kind == "exec")

    @property
    def tool_arguments(self) -> ToolArguments:
        return ToolArguments(arguments=self.arguments, origin_of=self.origin_of)

    @property
    def backend(self) -> str:
        """The backend where the call would act; empty for this machine."""
        return next((effect.backend for effect in self.effects or () if effect.backend), "")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's decision about one call, and its basis."""

    outcome: Outcome
    decided_by: str = ""
    """nothing, block, user_rule, sensitive_path, grant, provenance, yolo, mode, backend, entry_point or nobody.

    Empty for ask.
    """
    dangers: tuple[Danger, ...] = ()
    """The dangers to ask about, the ones allowed anyway, or the reasons for a deny."""
    reasons: tuple[str, ...] = ()
    command: str = ""
    backend: str = ""
    findings: tuple[ValueFinding, ...] = ()

    def verdict(self) -> Verdict:
        return Verdict(
            self.outcome, self.reasons, self.decided_by, self.dangers, self.command, self.backend, self.findings
        )


class _Risks(msgspec.Struct):
    """The risks of one call found so far."""

    dangers: list[Danger] = msgspec.field(default_factory=list)
    refusals: list[tuple[str, Danger]] = msgspec.field(default_factory=list)
    """Who refuses, and why."""
    contained: list[Danger] = msgspec.field(default_factory=list)
    """Dangers that the backend contains."""
    vouched: list[Danger] = msgspec.field(default_factory=list)
    """Outside effects whose delicate values all come from the person or from trusted sources."""
    may_hide_denied: bool = False


def decide(policy: Policy, action: Action, grants: Iterable[Grant], read: ReadCommand) -> Decision:
    """Allow, ask or deny. Blocks and the user's deny rules come first, and nothing overrides them."""
    decision = _decide(policy, action, grants, read)
    if action.backend or action.findings:
        return replace(decision, backend=action.backend, findings=action.findings or ())
    return decision


def _decide(policy: Policy, action: Action, grants: Iterable[Grant], read: ReadCommand) -> Decision:
    if policy.session_mode == "plan" and (beyond := _beyond_reading(policy, action, read)):
        danger = _tool_danger(PLAN_MODE, "plan mode", action.tool, beyond)
        return _decision("deny", PLAN_MODE, (danger,), action.command, PLAN_ONLY)
    risks, command = _examine(policy, action, read), action.command
    if risks.refusals:
        refused_by = risks.refusals[0][0]
        more = ("no approval can allow it",) if refused_by == "block" else ()
        return _decision("deny", refused_by, tuple(danger for _, danger in risks.refusals), command, *more)
    granted = tuple(grants)
    open_dangers = tuple(
        danger for danger in risks.dangers if not any(grant.covers(danger, command) for grant in granted)
    )
    if not open_dangers:
        if risks.dangers:
            return _decision("allow", "grant", tuple(risks.dangers), command)
        if risks.vouched:
            return _decision("allow", "provenance", tuple(risks.vouched), command)
        return _decision("allow", "backend" if risks.contained else "nothing", tuple(risks.contained), command)
    return answer_dangers(policy, open_dangers, command, may_hide_denied=risks.may_hide_denied)


def answer_dangers(
    policy: Policy, dangers: tuple[Danger, ...], command: str = "", *, may_hide_denied: bool = False
) -> Decision:
    """How this session answers dangers without a grant."""
    # A command we can't read may be one that a rule denies, so not even yolo allows it without asking.
    if not may_hide_denied:
        if policy.yolo:
            return _decision("allow", "yolo", dangers, command)
        if policy.mode == "off":
            return _decision("allow", "mode", dangers, command)
        if policy.answer == "allow":
            return _decision("allow", "entry_point", dangers, command)
    if policy.answer == "deny":
        return _decision("deny", "entry_point", dangers, command, "no one is available to approve it")
    if not policy.attended:
        return _decision("deny", "nobody", dangers, command, "no one is available to approve it")
    return _decision("ask", "", dangers, command)


def _decision(outcome: Outcome, decided_by: str, dangers: tuple[Danger, ...], command: str, *more: str) -> Decision:
    reasons = (
        () if outcome == "allow" else (*dict.fromkeys(describe_danger(danger, command) for danger in dangers), *more)
    )
    return Decision(outcome=outcome, decided_by=decided_by, dangers=dangers, reasons=reasons, command=command)


def describe_danger(danger: Danger, command: str) -> str:
    """The danger in one sentence that quotes the words that cause it."""
    if danger.span is None or danger.rule == "user_rule" or not command:
        return danger.reason
    words = " ".join(command[danger.span[0] : danger.span[1]].split())
    return f"`{words if len(words) <= MAX_QUOTED else words[:MAX_QUOTED] + '…'}` {danger.reason}"


def _examine(policy: Policy, action: Action, read: ReadCommand) -> _Risks:
    risks = _Risks()
    folders = policy.folders(action.cwd)
    _examine_tool(policy, action, risks, folders)
    if action.effects is None and action.mcp_server:
        reason = f"only its server knows what {action.title or action.tool} does"
        risks.dangers.append(
            _tool_danger("mcp_undeclared", f"tool of the MCP server {action.mcp_server}", action.tool, reason)
        )
    for effect in map(located, action.effects or ()):
        there, where = _scope_of(policy, folders, effect)
        if effect.kind == "exec":
            _examine_command(there, effect, risks, where, read)
        elif effect.kind == "remote" or _is_unnamed_record(action, effect, where):
            danger = _record_danger(action, effect)
            if danger is not None:
                (risks.vouched if _is_vouched(policy, action, effect) else risks.dangers).append(danger)
        elif effect.kind in ("write", "delete"):
            _examine_write(policy, action, effect, risks, where)
        elif effect.kind == "read" and effect.target and policy.sensitive.is_secret(effect.target, where):
            # A handler runs on this machine whatever backend commands use, unless it says otherwise.
            (risks.contained if effect.isolated else risks.dangers).append(_secret_read(action, effect, where))
        elif effect.kind in ASK_EFFECTS:
            description, does = ASK_EFFECTS[effect.kind]
            reason = f"{action.title or action.tool} {does} {effect.target}".rstrip()
            danger = _tool_danger(effect.kind, description, action.tool, reason)
            (risks.vouched if _is_vouched(policy, action, effect) else risks.dangers).append(danger)
    _examine_values(policy, action, risks)
    return _without_allowed_tool(policy, action, risks, folders)


def _beyond_reading(policy: Policy, action: Action, read: ReadCommand) -> str:
    """What a call does besides reading, as a sentence; empty if it only reads."""
    tool = action.title or action.tool
    if action.effects is None:
        return "" if action.is_builtin and action.tool in PLAN_TOOLS else f"{tool} does not say that it only reads"
    folders = policy.folders(action.cwd)
    for effect in map(located, action.effects):
        if effect.kind in PLAN_KINDS or (effect.kind == "remote" and effect.action == "read"):
            continue
        if effect.kind == "exec":
            reading = _read(*_scope_of(policy, folders, effect), effect, read)
            if reading.files.reads_only and not effect.caution:
                continue
            return f"{tool} runs a command that may change something"
        does = {"write": f"writes to {effect.target}", "delete": f"deletes {effect.target}"}
        return f"{tool} {does.get(effect.kind, 'changes something')}"
    return ""


def _is_vouched(policy: Policy, action: Action, effect: Effect) -> bool:
    """Whether the origins of its delicate values speak for an effect, so that nobody needs to be asked."""
    if policy.provenance != "decide" or effect.delicate is None or action.findings is None:
        return False
    return all(finding.vouched for finding in action.findings)


def _examine_values(policy: Policy, action: Action, risks: _Risks) -> None:
    """Ask about delicate values that nothing vouches for; a policy that only shows them asks no extra question."""
    if policy.provenance == "decide" or (policy.provenance == "show" and risks.dangers):
        for finding in action.findings or ():
            if not finding.vouched:
                risks.dangers.append(
                    Danger(
                        rule=UNTRUSTED_VALUE,
                        description="value of unknown or untrusted origin",
                        reason=str(finding),
                        scope=f"{finding.pointer} = {finding.value} in {action.tool}",
                    )
                )


def _scope_of(policy: Policy, folders: PathScope, effect: Effect) -> tuple[Policy, PathScope]:
    """The policy and paths that apply where the effect would happen."""
    if not effect.backend:
        return policy, replace(folders, cwd=effect.cwd) if effect.cwd else folders
    # Another machine has its own folders: the workspace is where its session started, and links are unknown.
    there = PathScope(cwd=effect.cwd or "/", workspace=effect.workspace, home=REMOTE_HOME, real=_as_written)
    return replace(policy, backend=effect.backend, isolated=effect.isolated, home=REMOTE_HOME), there


def _as_written(path: str) -> str:
    return path


def _examine_tool(policy: Policy, action: Action, risks: _Risks, folders: PathScope) -> None:
    """Apply the user's rules that name the tool."""
    paths, call = _paths(action), action.tool_arguments
    if has_tool_rule(policy.rules, "deny", action.tool, paths, folders, call):
        risks.refusals.append(
            ("user_rule", _tool_danger("user_rule", "your rule", action.tool, _rule_reason(action.tool)))
        )
    elif has_tool_rule(policy.rules, "ask", action.tool, paths, folders, call):
        risks.dangers.append(
            _tool_danger("user_rule", "your rule", action.tool, _rule_reason(action.tool, "requires approval"))
        )


def _without_allowed_tool(policy: Policy, action: Action, risks: _Risks, folders: PathScope) -> _Risks:
    """An allow rule covers a tool unless it runs commands; those need rules of their own."""
    if action.command or any(danger.rule == "user_rule" for danger in risks.dangers):
        return risks
    if has_tool_rule(policy.rules, "allow", action.tool, _paths(action), folders, action.tool_arguments):
        risks.dangers.clear()
    return risks


def _examine_command(policy: Policy, effect: Effect, risks: _Risks, folders: PathScope, read: ReadCommand) -> None:
    command, stays_inside = effect.target, _stays_inside(policy, effect)
    if effect.caution:
        scope = f"typed into {command.partition(chr(10))[0].removeprefix('{ ')}"
        risks.dangers.append(Danger(rule="typed_input", description="typed input", reason=effect.caution, scope=scope))
    reading = _read(policy, folders, effect, read)
    findings, scopes = reading.assessment.findings, DangerScopes(reading, command, folders)
    for finding in findings:
        if finding.severity == "block":
            risks.refusals += [("block", one) for one in scopes.dangers_of(finding)]
    _refuse_denied(policy, command, reading, risks, folders)
    asking = find_command_rule(policy.rules, "ask", reading, folders)
    if asking is not None:
        risks.dangers.append(_command_danger(f"the rule `{asking}` requires approval", command, str(asking)))
    if not reading.complete and (policy.deny or any(rule.action == "deny" for rule in policy.rules)):
        risks.may_hide_denied = True
    if policy.started_at and not (effect.backend or effect.isolated):
        _examine_git(policy, reading, risks, folders)
    for finding in findings:
        if finding.severity == "block" or (asking is None and is_allowed_by(policy.rules, finding, reading, folders)):
            continue
        inside = finding.rule in stays_inside and not risks.may_hide_denied
        (risks.contained if inside else risks.dangers).extend(scopes.dangers_of(finding))


def _read(policy: Policy, folders: PathScope, effect: Effect, read: ReadCommand) -> CommandReading:
    own = () if effect.backend else policy.sensitive.protected_paths(folders)
    return read(
        effect.target, cwd=folders.cwd, home=policy.home, own=own, here=not effect.backend, session=effect.session
    )


def _examine_git(policy: Policy, reading: CommandReading, risks: _Risks, folders: PathScope) -> None:
    """Ask before git runs hooks or settings that appeared in its repository during the session."""
    for number, call in enumerate(reading.calls):
        if call.program != "git":
            continue
        given = (f"--git-dir={call.git_dir}",) if call.git_dir else ()
        reason = changed_since(folders.absolute(call.cwd), (*given, *call.words), policy.started_at) or made_in_line(
            call, reading.calls[:number], reading.files.certain, policy.started_at, folders.absolute("")
        )
        if reason:
            danger = Danger(rule="git_executes", description="program that a repository names", reason=reason)
            risks.dangers.append(replace(danger, scope=f"in {folders.absolute(call.cwd)}"))


def _stays_inside(policy: Policy, effect: Effect) -> frozenset[str]:
    """The dangers that the environment of a command contains."""
    if policy.isolated:
        return STAYS_INSIDE
    return STAYS_IN_SANDBOX if effect.isolated else frozenset()


def _refuse_denied(policy: Policy, command: str, reading: CommandReading, risks: _Risks, folders: PathScope) -> None:
    pattern = find_denied_pattern(policy.deny, command, reading)
    if pattern is not None:
        risks.refusals.append(("user_rule", _command_danger(f"the pattern {pattern!r} denies it", command)))
    rule = find_command_rule(policy.rules, "deny", reading, folders)
    if rule is not None:
        risks.refusals.append(("user_rule", _command_danger(f"the rule `{rule}` denies it", command)))
    if policy.isolated:
        return
    for call in reading.calls:
        # We don't read what SQL does to a file, and our databases determine what runs later.
        if call.program in SQL_PROGRAMS and any(
            policy.sensitive.is_ours(p, folders) for p in map(folders.real, call.paths)
        ):
            reason = "it opens a database that belongs to toolcrib itself, and no tool may change it"
            risks.refusals.append(("sensitive_path", _command_danger(reason, command)))
    for finding in reading.assessment.findings:
        if finding.rule == "own_program":
            risks.refusals.append(("sensitive_path", _command_danger(f"it {finding.reason}", command)))
        ours = [
            p
            for p in finding.paths
            if any(policy.sensitive.is_ours(one, folders) for one in folders.written_and_real(p))
        ]
        if ours and finding.rule not in READS_ONLY:
            reason = f"{ours[0]} belongs to toolcrib itself, and no tool may change it"
            risks.refusals.append(("sensitive_path", _command_danger(reason, command)))


def _is_unnamed_record(action: Action, effect: Effect, folders: PathScope) -> bool:
    """Whether the target of a write or delete is an id rather than a file: our own tools always name paths."""
    if action.is_builtin or effect.kind not in ("write", "delete") or effect.backend or not effect.target:
        return False
    if "/" in effect.target or effect.target[0] in "~.":
        return False
    is_id = is_record_id(effect.target) or (effect.kind == "delete" and "." not in effect.target)
    return is_id and not folders.exists(effect.target)


def _record_danger(action: Action, effect: Effect) -> Danger | None:
    """Every change of a remote record needs approval; the grant covers the same change in the same service."""
    does = effect.action if effect.kind == "remote" else effect.kind
    if does == "read":
        return None
    service = service_of(effect) or f"the service behind {action.tool}"
    noun = "delete" if does in RECORD_DELETES else "change"
    record = f" {effect.target}" if effect.target else ""
    return Danger(
        rule=f"remote_{noun}",
        description=f"remote {noun}",
        reason=f"{action.title or action.tool} wants to {does or 'change'}{record} in {service}",
        scope=f"in {service}",
    )


def _examine_write(policy: Policy, action: Action, effect: Effect, risks: _Risks, folders: PathScope) -> None:
    tool = action.tool
    verb, noun = ("writes to", "write") if effect.kind == "write" else ("deletes", "delete")
    if not effect.target:
        reason = f"{tool} {verb} a path that it does not name"
        risks.dangers.append(_tool_danger(f"{noun}_somewhere", f"{noun} at an unknown place", tool, reason))
        return
    why = policy.sensitive.reason_to_deny_write(effect.target, folders)
    reason = f"{tool} {verb} {effect.target}"
    if why:
        danger = Danger(
            rule="sensitive_path", description="protected file", reason=f"{reason}: {why}", paths=(effect.target,)
        )
        if effect.backend and effect.isolated:
            risks.contained.append(danger)
        else:
            risks.refusals.append(("sensitive_path", danger))
        return
    delicate = effect.caution or policy.sensitive.reason_to_ask(effect.target, folders)
    if folders.in_workspace(effect.target) and not delicate:
        if policy.session_mode == "ask":
            risks.dangers.append(
                Danger(
                    rule="workspace_edit",
                    description="file edit" if noun == "write" else "file deletion",
                    reason=reason,
                    scope="in the workspace",
                    paths=(folders.absolute(effect.target),),
                )
            )
        return
    if action.is_builtin and not effect.caution and policy.sensitive.is_managed_by(tool, effect.target, folders):
        return
    danger = Danger(
        rule=f"{noun}_delicate" if delicate else f"{noun}_outside_workspace",
        description=f"{noun} of a delicate file" if delicate else f"{noun} outside the workspace",
        reason=f"{reason}: {delicate}" if delicate else reason,
        scope=_path_scope(effect, folders) if delicate or noun == "delete" else _folder_scope(effect, folders),
        paths=(folders.absolute(effect.target),),
    )
    (risks.contained if effect.isolated and not delicate else risks.dangers).append(danger)


def _path_scope(effect: Effect, folders: PathScope) -> str:
    """This path; with a caution, only for the same caution, because another text carries other risks."""
    return f"in {folders.written_and_real(effect.target)[1]}" + (f": {effect.caution}" if effect.caution else "")


def _folder_scope(effect: Effect, folders: PathScope) -> str:
    """Allowing one write in a folder allows the folder, unless that is the root or the home."""
    real = folders.written_and_real(effect.target)[1]
    folder = real.rpartition("/")[0]
    return f"in {real if folder in ('', folders.home) else folder}"


def _secret_read(action: Action, effect: Effect, folders: PathScope) -> Danger:
    return Danger(
        rule="credential",
        description="secret is read",
        reason=f"{action.tool} reads the secret {effect.target}",
        scope=path_scope(effect.target, folders),
        paths=(folders.absolute(effect.target),),
    )


def _tool_danger(rule: str, description: str, tool: str, reason: str) -> Danger:
    return Danger(rule=rule, description=description, reason=reason, scope=f"by {tool}")


def _rule_reason(tool: str, what: str = "denies it") -> str:
    return f"your rule about {tool} {what}"


def _command_danger(reason: str, command: str, scope: str = "") -> Danger:
    return Danger(rule="user_rule", description="your rule", reason=reason, scope=scope, span=(0, len(command)))


def _paths(action: Action) -> tuple[str, ...]:
    effects = [located(effect) for effect in action.effects or ()]
    return tuple(
        address_of(effect) if effect.kind == "remote" else effect.target
        for effect in effects
        if effect.kind in FILE_KINDS or effect.kind == "remote"
    )
