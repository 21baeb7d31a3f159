"""Approvals and questions in the editor: each permission request carries the exact command, its scope and reasons.

Also asked there: whether a project's instructions and commands may count as the person's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ElicitationFormSessionMode,
    ElicitationSchema,
    ElicitationStringPropertySchema,
    PermissionOption,
    ToolCallLocation,
    ToolCallUpdate,
)

from toolcrib.acp.editor import EditorConnection, EditorRefused
from toolcrib.acp.tool_calls import Content, ShownCall, fenced, kind_of, text_content
from toolcrib.agent.prompt import FolderTrust, TrustQuestion, find_project_file, limited, trust_questions
from toolcrib.agent.prompt_commands import project_commands
from toolcrib.approval.approvers.escape import visible
from toolcrib.approval.approvers.question import describe_grant, describe_scopes
from toolcrib.approval.grants import suggest
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice
from toolcrib.core.context import NO_ANSWER, ToolContext

ONCE, SESSION, ALWAYS, DENY = "once", "session", "always", "deny"
CHOICES: dict[str, Choice] = {ONCE: "once", SESSION: "session", ALWAYS: "always", DENY: "deny"}
SKIP = "skip"
TRUST, DATA = "trust", "data"
TRUST_OPTIONS = (
    PermissionOption(option_id=TRUST, name="Yes, I trust this folder", kind="allow_always"),
    PermissionOption(option_id=DATA, name="No", kind="reject_always"),
)
SHOWN_FILE_CHARS = 2_000
"""Of a project's file, in the question whether to trust it."""
ANSWER = "answer"

FindCall = Callable[[str], ShownCall | None]


class EditorApprover:
    """Asks in the editor. Whatever is not a yes denies: a closed question, an unknown answer, a lost connection."""

    has_own_timeout = True

    def __init__(self, editor: EditorConnection, timeout_seconds: float) -> None:
        self._editor = editor
        self._timeout_seconds = timeout_seconds
        self.session_id = ""
        """The session that the editor knows; it also shows the questions of subagents."""
        self.find_call: FindCall = lambda _: None
        """Finds a call that the editor already shows."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        asked = self._editor.client.request_permission(
            session_id=self.session_id,
            tool_call=permission_call(request, self.find_call(request.call_id)),
            options=permission_options(request),
        )
        try:
            outcome = (await self._editor.request(asked, self._timeout_seconds)).outcome
        except EditorRefused as error:
            if isinstance(error.__cause__, TimeoutError):
                return ApprovalAnswer(choice="timeout", reason="no one answered in time", decided_by="timeout")
            return ApprovalAnswer(choice="deny", reason=f"nobody could be asked: {error}", decided_by="policy")
        if not isinstance(outcome, AllowedOutcome):
            return ApprovalAnswer(choice="cancelled", reason="the question was closed", decided_by="user")
        offered = {option.option_id for option in permission_options(request)}
        choice = CHOICES[outcome.option_id] if outcome.option_id in offered else "deny"
        return ApprovalAnswer(choice=choice, decided_by="user")


def permission_options(request: ApprovalRequest) -> list[PermissionOption]:
    """The answers that a call allows; "always" adds one of our grants to the config."""
    scopes = describe_scopes(request)
    options = [PermissionOption(option_id=ONCE, name="Allow once", kind="allow_once")]
    if request.dangers:
        name = f"Allow {scopes} for this session"
        options.append(PermissionOption(option_id=SESSION, name=name, kind="allow_always"))
    written = suggest(request)
    if request.may_be_permanent and written:
        name = f"Always allow: {'; '.join(map(visible, written))}"
        options.append(PermissionOption(option_id=ALWAYS, name=name, kind="allow_always"))
    return [*options, PermissionOption(option_id=DENY, name="Deny", kind="reject_once")]


def permission_call(request: ApprovalRequest, shown: ShownCall | None) -> ToolCallUpdate:
    """The call in question: exactly what would run, where, and why that needs a yes."""
    tool = request.title or request.tool
    command = request.command or (shown.title if shown is not None else "")
    title = shown.title if shown is not None else " ".join(visible(request.command or tool).split())[:200]
    locations = list(shown.locations) if shown is not None else []
    paths = dict.fromkeys(path for danger in request.dangers for path in danger.paths)
    return ToolCallUpdate(
        tool_call_id=request.call_id or f"approval-{request.id}",
        title=title,
        kind=shown.kind if shown is not None else kind_of(request.tool),
        status="pending",
        content=[*_explanation(request), *(shown.opening() if shown is not None and shown.diffs else ())],
        locations=locations or [ToolCallLocation(path=path) for path in paths if path.startswith("/")],
        raw_input={**request.arguments, "command": command, "tool": request.tool, "cwd": request.cwd},
    )


def _explanation(request: ApprovalRequest) -> list[Content]:
    lines = []
    if request.command:
        lines.append(fenced(_shown_command(request.command), "sh" if request.can_be_edited else ""))
    place = "" if request.backend in ("", "local") else f" in the {request.backend} environment"
    if request.cwd:
        lines.append(f"In {visible(request.cwd)}{place}.")
    lines += [f"- {describe_grant(danger)}: {visible(danger.reason)}" for danger in request.dangers]
    return [text_content("\n\n".join(lines[:2]) + "".join(f"\n{line}" for line in lines[2:]))] if lines else []


def _shown_command(command: str) -> str:
    """The command line by line, with whatever would hide or reorder parts of it spelled out."""
    return "\n".join(visible(line) for line in command.split("\n"))


class EditorTrust:
    """Asks in the editor whether the files of a project count; without an answer they stay data."""

    def __init__(self, editor: EditorConnection, settings: Settings) -> None:
        self._editor = editor
        self._settings = settings

    async def ask(self, session_id: str, cwd: str) -> bool:
        """Ask what the person has not answered before; whether something is trusted now that was not."""
        home, is_changed = self._settings.home, False
        if not self._settings.agent.project_files:
            return False
        for number, one in enumerate(trust_questions(home, find_project_file(cwd), project_commands(cwd))):
            asked = self._editor.client.request_permission(
                session_id=session_id, tool_call=_trust_call(number, one), options=list(TRUST_OPTIONS)
            )
            try:
                outcome = (await self._editor.request(asked, self._settings.acp.approval_timeout)).outcome
            except EditorRefused:
                return is_changed
            if not isinstance(outcome, AllowedOutcome) or outcome.option_id not in (TRUST, DATA):
                return is_changed
            FolderTrust(home).remember(one.file, is_trusted=outcome.option_id == TRUST)
            is_changed = is_changed or outcome.option_id == TRUST
        return is_changed


def _trust_call(number: int, one: TrustQuestion) -> ToolCallUpdate:
    file = one.file
    lines = [
        f"{file.name} in {visible(file.folder)} has {one.has}.",
        *([f"Note that {file.order}."] if file.order else ()),
        one.question,
        fenced(_shown_command(limited(file.text, SHOWN_FILE_CHARS)), ""),
    ]
    return ToolCallUpdate(
        tool_call_id=f"trust-{number}",
        title=f"Trust {file.name} in {visible(file.folder)}?",
        kind="other",
        status="pending",
        content=[text_content("\n\n".join(lines))],
        raw_input={"file": file.name, "folder": file.folder},
    )


class EditorAsker:
    """Asks the person a question of the model: as a form where the editor has forms, else as a choice."""

    def __init__(self, approver: EditorApprover, editor: EditorConnection, timeout_seconds: float) -> None:
        self._approver = approver
        self._editor = editor
        self._timeout_seconds = timeout_seconds

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        try:
            if self._editor.has_forms:
                return await self._ask_by_form(ctx, question, choices)
            if choices:
                return await self.choose(ctx.call_id or f"question-{id(ctx)}", question, choices)
        except EditorRefused:
            return NO_ANSWER
        return f"{NO_ANSWER[:-1]}, because this editor cannot ask for a text; ask in your answer instead)"

    async def choose(self, call_id: str, question: str, choices: Sequence[str]) -> str:
        """One of the choices; raises EditorRefused."""
        options = [
            PermissionOption(option_id=str(number), name=choice, kind="allow_once")
            for number, choice in enumerate(choices)
        ]
        asked = self._editor.client.request_permission(
            session_id=self._approver.session_id,
            tool_call=ToolCallUpdate(
                tool_call_id=call_id,
                title=question,
                kind="other",
                status="pending",
                content=[text_content(question)],
                raw_input={"question": question, "choices": list(choices)},
            ),
            options=[*options, PermissionOption(option_id=SKIP, name="No answer", kind="reject_once")],
        )
        outcome = (await self._editor.request(asked, self._timeout_seconds)).outcome
        chosen = outcome.option_id if isinstance(outcome, AllowedOutcome) else SKIP
        return choices[int(chosen)] if chosen.isdecimal() and int(chosen) < len(choices) else NO_ANSWER

    async def _ask_by_form(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        text = ElicitationStringPropertySchema(type="string", title="Answer", enum=list(choices) or None)
        mode = ElicitationFormSessionMode(
            session_id=self._approver.session_id,
            tool_call_id=ctx.call_id or None,
            requested_schema=ElicitationSchema(properties={ANSWER: text}, required=[ANSWER]),
        )
        asked = self._editor.client.create_elicitation(message=question, mode=mode)
        given = await self._editor.request(asked, self._timeout_seconds)
        if not isinstance(given, AcceptElicitationResponse):
            return NO_ANSWER
        answer = (given.content or {}).get(ANSWER)
        return answer if isinstance(answer, str) and answer.strip() else NO_ANSWER
