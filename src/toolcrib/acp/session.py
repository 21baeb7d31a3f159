"""One session in an editor: its prompts, what the editor sees of the work, its mode and its model."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

from acp import RequestError, update_agent_message_text, update_agent_thought_text
from acp.schema import (
    AllowedOutcome,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    PermissionOption,
    PromptResponse,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionInfoUpdate,
    SessionMode,
    SessionModeState,
    StopReason,
    ToolCallUpdate,
    UsageUpdate,
)
from msgspec import Struct

from toolcrib.acp.approvals import EditorApprover, EditorTrust
from toolcrib.acp.commands import EditorCommands
from toolcrib.acp.editor import EditorConnection, EditorRefused, Outbox
from toolcrib.acp.editor_files import BufferTexts, EditorFiles
from toolcrib.acp.editor_terminals import EditorTerminalRunner, EditorTerminals
from toolcrib.acp.prompts import prompt_message, spoken_words
from toolcrib.acp.tool_calls import text_content
from toolcrib.acp.updates import EventTranslator, plan_update, replay, turn_usage, usage_update
from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, MessageAdded, OnEvent, RunResult
from toolcrib.agent.host import AgentHost
from toolcrib.agent.loop import REFUSED
from toolcrib.core.approvals import MODES, Mode
from toolcrib.core.environments import Environment
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.core.messages import Message, user_message
from toolcrib.core.models import Usage
from toolcrib.environments.shell import EnvironmentFiles
from toolcrib.environments.specs import ON_THIS_MACHINE
from toolcrib.providers.model_options import chosen_model, model_choices
from toolcrib.terminal.call import TerminalCall

logger = logging.getLogger(__name__)

MODE_TEXTS: dict[Mode, str] = {
    "ask": "Edits of files and dangerous commands need your approval.",
    "auto-edit": "Files of the workspace are edited without asking; commands follow the approval policy.",
    "plan": "Only tools that read; the agent ends with a plan for you to accept.",
}
MODE, MODEL = "mode", "model"
BUSY, FAILED = -32600, -32603
PLAN_ACCEPTED = "The plan is accepted. Carry it out."
PLAN_OPTIONS = (
    PermissionOption(option_id="auto-edit", name="Yes, and edit files without asking", kind="allow_always"),
    PermissionOption(option_id="ask", name="Yes, and ask before each edit", kind="allow_once"),
    PermissionOption(option_id="plan", name="No, keep planning", kind="reject_once"),
)


RunPrompt = Callable[["EditorSession", Message, OnEvent], Awaitable[RunResult]]


class OpenedHost(Struct, frozen=True, kw_only=True):
    """Where an agent of an editor works, and what the editor may change about it."""

    host: AgentHost
    approver: EditorApprover | None = None
    """Asks in the editor; None if approvals are given elsewhere."""
    problems: tuple[str, ...] = ()
    """What the person should know, as sentences."""
    modes: tuple[Mode, ...] = MODES
    """The modes that the editor may choose."""
    chooses_models: bool = True
    run: RunPrompt | None = None
    """Works on a prompt instead of the agent itself."""
    counted: Callable[[Agent], AbstractAsyncContextManager[None]] | None = None
    """While a command works that may ask the model; raises ToolcribError if the limits don't allow it."""


class EditorSession:
    """A session that an editor has open. Closing the host with it is up to the owner."""

    def __init__(self, editor: EditorConnection, agent: Agent, opened: OpenedHost) -> None:
        self.agent = agent
        self.host: AgentHost = agent.host
        self._editor = editor
        self._opened = opened
        approver = self._approver = opened.approver
        self.outbox = Outbox(editor, agent.session_id)
        self._texts = BufferTexts()
        self._terminals = EditorTerminals(editor, agent.session_id)
        is_here = self.host.settings.terminal.backend in ON_THIS_MACHINE
        self._translator = EventTranslator(
            agent.cwd,
            self._texts.read if is_here else None,
            lambda: self.host.todo.store(agent.session_id).read(),
            self._texts.replaced,
        )
        self.commands = self._own_commands()
        self._work: asyncio.Task[PromptResponse] | None = None
        self._is_cancelled = False
        self._problems = [*opened.problems, *agent.warnings, *_moved(agent)]
        self._told_usage: UsageUpdate | None = None
        self._asks_for_trust = agent.is_first_run and approver is not None
        if approver is not None:
            approver.session_id = agent.session_id
            approver.find_call = self._translator.show

    def use_editor(self) -> None:
        """Work with the editor's files and terminals, as far as it offers them and the settings say so."""
        chosen, editor = self.host.settings.acp, self._editor
        has_files = chosen.files == "editor" and (editor.reads_files or editor.writes_files)
        has_terminals = chosen.terminal == "editor" and editor.has_terminals
        if has_terminals:
            self.host.runtime.services.provide("front_end_terminals", self._terminals)
        if has_files or has_terminals:
            self.host.runtime.terminal.decorator = _Decorator(self, has_files=has_files, has_terminals=has_terminals)

    # What the editor asks for

    async def prompt(self, blocks: Sequence[Any]) -> PromptResponse:
        """Answer a prompt; a cancel on the way gives the stop reason `cancelled`."""
        if self._work is not None or self.agent.is_running:
            raise RequestError(BUSY, "this session is working on another prompt; cancel that first, or wait for it")
        self._is_cancelled = False
        self._work = asyncio.ensure_future(self._answer(blocks))
        try:
            return await self._work
        except asyncio.CancelledError:
            if not self._is_cancelled:
                # The connection is closing.
                self._work.cancel()
                raise
            return PromptResponse(stop_reason="cancelled")
        finally:
            self._work = None
            self._report_state()
            await self.outbox.flush()

    def cancel(self) -> None:
        """Stop the current prompt, wherever it is."""
        if self._work is None:
            return
        self._is_cancelled = True
        if self.agent.is_running:
            self.agent.interrupt("cancelled in the editor")
        else:
            self._work.cancel()

    def use_mode(self, mode_id: str) -> None:
        """Switch the mode, also while the agent works; raises UsageError for an unknown one."""
        modes = self._opened.modes
        mode = next((one for one in modes if one == mode_id), None)
        if mode is None:
            raise UsageError(f"there is no mode {mode_id!r}; the modes are {', '.join(modes)}")
        self.agent.mode = mode
        self.outbox.add(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode))
        self._report_options()

    async def use_option(self, option_id: str, value: str) -> list[SessionConfigOptionSelect]:
        """Set an option; returns all options as they are now. Raises UsageError."""
        if option_id == MODE:
            self.use_mode(value)
        elif option_id == MODEL and self._opened.chooses_models:
            option = chosen_model(self.host.settings, value)
            # Creating a provider may import its SDK.
            await asyncio.to_thread(self.agent.use_model, option.model, option.provider)
            self._report_options()
        else:
            known = " and ".join(one.id for one in self.options())
            raise UsageError(f"there is no option {option_id!r}; the options are {known}")
        return self.options()

    async def close(self) -> None:
        """Stop the work; the session stays in the store."""
        self.cancel()
        work = self._work
        if work is not None:
            with suppress(asyncio.CancelledError, RequestError):
                await asyncio.wait([work])
        await self.agent.close()
        await self._terminals.release_all()
        self.outbox.close()

    # What the editor shows

    def modes(self) -> SessionModeState:
        return SessionModeState(
            current_mode_id=self.agent.mode,
            available_modes=[
                SessionMode(id=mode, name=mode, description=MODE_TEXTS[mode]) for mode in self._opened.modes
            ],
        )

    def options(self) -> list[SessionConfigOptionSelect]:
        mode = SessionConfigOptionSelect(
            id=MODE,
            name="Mode",
            category="mode",
            type="select",
            current_value=self.agent.mode,
            options=[
                SessionConfigSelectOption(value=mode, name=mode, description=MODE_TEXTS[mode])
                for mode in self._opened.modes
            ],
        )
        return [mode, self._model_option()] if self._opened.chooses_models else [mode]

    def _model_option(self) -> SessionConfigOptionSelect:
        agent = self.agent
        current = f"{agent.provider.name}/{agent.model}" if agent.model else agent.provider.name
        choices = [(one.name, one.about) for one in model_choices(self.host.settings)]
        if current not in dict(choices):
            choices.insert(0, (current, ""))
        return SessionConfigOptionSelect(
            id=MODEL,
            name="Model",
            category="model",
            type="select",
            current_value=current,
            options=[
                SessionConfigSelectOption(value=name, name=name, description=about or None) for name, about in choices
            ],
        )

    def announce(self) -> None:
        """Offer the commands once the answer to the request is on the way: editors drop what comes before it."""
        asyncio.get_running_loop().call_soon(lambda: self.outbox.add(self.commands.update()))

    def tell(self, text: str) -> None:
        """Show a note that is no part of the conversation."""
        self.outbox.add(update_agent_thought_text(text))

    async def replay(self) -> None:
        """Show the whole conversation again, including what a summary replaced for the model."""
        stored = self.host.store.messages(self.agent.session_id, states=("live", "folded"))
        # Relative paths in it mean the folder in which it took place.
        self.outbox.add(*replay([one.message for one in stored], self.agent.session.cwd or self.agent.cwd))
        plan = self.host.todo.store(self.agent.session_id).read()
        if plan:
            self.outbox.add(plan_update(plan))
        self._report_state()
        await self.outbox.flush()

    def _report_state(self) -> None:
        """The title, the time and the usage."""
        try:
            session = self.agent.session
        except ToolcribError as error:
            # The session was deleted, or cannot be read now.
            logger.warning("cannot report the state of %s: %s", self.agent.session_id, error)
            return
        updated = datetime.fromtimestamp(session.updated_at, UTC).isoformat().replace("+00:00", "Z")
        if session.title:
            self.outbox.add(
                SessionInfoUpdate(session_update="session_info_update", title=session.title, updated_at=updated)
            )
        self._report_usage(session.usage)

    def _report_usage(self, usage: Usage) -> None:
        update = usage_update(self.agent.context_tokens, self.agent.profile.context_window, usage)
        if update != self._told_usage:
            self._told_usage = update
            self.outbox.add(update)

    def _report_options(self) -> None:
        options: list[Any] = list(self.options())
        self.outbox.add(ConfigOptionUpdate(session_update="config_option_update", config_options=options))

    # The work

    async def _answer(self, blocks: Sequence[Any]) -> PromptResponse:
        message = prompt_message(blocks)
        problems, self._problems = self._problems, []
        for problem in problems:
            self.outbox.add(update_agent_message_text(f"Note: {problem}.\n\n"))
        await self._ask_for_trust()
        command = self.commands.find(spoken_words(blocks))
        if command is not None:
            counted = self._opened.counted
            async with counted(self.agent) if counted is not None else nullcontext():
                answer = await command[0].run(self.agent, command[1])
            if answer.text:
                self.outbox.add(update_agent_message_text(answer.text))
            if not answer.question:
                return PromptResponse(stop_reason="end_turn")
            message = user_message(answer.question)
        result = await self._run(message)
        while result.is_plan and await self._is_plan_accepted():
            result = await self._run(user_message(PLAN_ACCEPTED))
        return PromptResponse(stop_reason=self._stop_reason(result), usage=turn_usage(result.usage))

    async def _ask_for_trust(self) -> None:
        """Before the first prompt of a session, because editors show questions only while they wait for an answer."""
        asks, self._asks_for_trust = self._asks_for_trust, False
        if asks and await EditorTrust(self._editor, self.host.settings).ask(self.agent.session_id, self.agent.cwd):
            await asyncio.to_thread(self.agent.renew_prompt)
            self.commands = self._own_commands()
            self.outbox.add(self.commands.update())

    def _own_commands(self) -> EditorCommands:
        return EditorCommands(self.host, self.agent.cwd, has_plugins=self._approver is not None)

    def _stop_reason(self, result: RunResult) -> StopReason:
        """How the turn ended for the editor; raises RequestError if there is no answer that it could show."""
        if result.outcome in ("interrupted", "budget"):
            return "cancelled" if result.outcome == "interrupted" else "max_turn_requests"
        if result.problem == REFUSED:
            return "refusal"
        if result.outcome == "answered":
            return "max_tokens" if result.is_incomplete else "end_turn"
        # Calls that were denied or failed are shown, and the model has said what it makes of them.
        if result.outcome == "failed" and (result.is_incomplete or not result.answer):
            raise RequestError(FAILED, result.problem or "the agent failed")
        if not result.answer:
            self.outbox.add(update_agent_message_text(result.problem))
        return "end_turn"

    async def _run(self, message: Message) -> RunResult:
        if self._opened.run is not None:
            return await self._opened.run(self, message, self._on_event)
        return await self.agent.run(message, on_event=self._on_event)

    def _on_event(self, event: AnyEvent) -> None:
        self.outbox.add(*self._translator.of(event))
        if isinstance(event, MessageAdded) and event.usage is not None:
            self._report_usage(self.agent.usage)

    async def _is_plan_accepted(self) -> bool:
        """Ask whether to carry out the plan; a yes switches the mode."""
        if self._approver is None:
            return False
        asked = self._editor.client.request_permission(
            session_id=self.agent.session_id,
            tool_call=ToolCallUpdate(
                tool_call_id=f"plan-{self.agent.session.message_count}",
                title="Carry out this plan?",
                kind="switch_mode",
                status="pending",
                content=[text_content("The agent changes to the mode that you choose, and carries out its plan.")],
            ),
            options=list(PLAN_OPTIONS),
        )
        try:
            outcome = (await self._editor.request(asked, self.host.settings.acp.approval_timeout)).outcome
        except EditorRefused:
            return False
        if not isinstance(outcome, AllowedOutcome) or outcome.option_id not in ("auto-edit", "ask"):
            return False
        self.use_mode(outcome.option_id)
        return True

    # Used by the environments, on their loop

    def files(self, inner: EnvironmentFiles) -> EnvironmentFiles:
        return EditorFiles(inner, self._editor, self.agent.session_id, self.agent.cwd, self._texts)

    def runner(self, environment: Environment, call: TerminalCall) -> Environment:
        def created(terminal_id: str) -> None:
            self.outbox.add(self._translator.in_terminal(call.call_id, terminal_id))

        return EditorTerminalRunner(environment, self._terminals, created).as_environment()


def _moved(agent: Agent) -> list[str]:
    """What to know about a session that goes on in another folder than it began in."""
    began_in = agent.session.cwd
    if agent.is_first_run or not began_in or os.path.realpath(began_in) == os.path.realpath(agent.cwd):
        return []
    return [f"this session began in {began_in} and continues in {agent.cwd}"]


class _Decorator:
    """What a session's environments get from its editor."""

    def __init__(self, session: EditorSession, *, has_files: bool, has_terminals: bool) -> None:
        self._session = session
        self._has_files = has_files
        self._has_terminals = has_terminals

    def files(self, files: EnvironmentFiles) -> EnvironmentFiles:
        return self._session.files(files) if self._has_files else files

    def runner(self, environment: Environment, call: TerminalCall) -> Environment:
        return self._session.runner(environment, call) if self._has_terminals else environment
