"""The agent loop: query the model, run its tool calls, return the results, until it answers.

run → step → query → execute
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from toolcrib.agent.compress import cut_results, fit_messages
from toolcrib.agent.conversation import Conversation, estimate_text_tokens, hear_person
from toolcrib.agent.events import (
    AnyEvent,
    Compressed,
    MessageAdded,
    Notified,
    Outcome,
    RunEnded,
    RunResult,
    RunStarted,
    Steered,
    SteeringDropped,
    TurnStarted,
)
from toolcrib.agent.hooks import RunHooks
from toolcrib.agent.host import AgentHost
from toolcrib.agent.model_request import Interrupted, ModelRequestSender, RequestIds
from toolcrib.agent.tool_calls import BatchRequest, CallBatch, Guardrails
from toolcrib.agent.tool_selection import SelectedTools, ToolSelection
from toolcrib.approval.provenance import Provenance
from toolcrib.core.approvals import PLAN_MODE, UNTRUSTED_VALUE, Mode
from toolcrib.core.cancel import CancelToken
from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Message, RequestedCall, spoken_text, user_message
from toolcrib.core.models import ModelError, ModelProfile, ModelRequest, ModelResponse, Provider, Usage
from toolcrib.core.types import ToolResult
from toolcrib.cron.delivery import Inbox

logger = logging.getLogger(__name__)

T = TypeVar("T")

WRAP_UP = (
    "[The budget for this question is used up, and no tool can be called any more. "
    "Say what was done and found so far, and what remains to be done.]"
)
EMPTY_ANSWER = "the model returned an empty answer; ask again, or choose another model with `toolcrib model use`"
OUTPUT_LIMIT = (
    "the answer is incomplete: it reached the output limit; ask the model to continue, "
    "or raise the limit with `toolcrib config set model.max_output_tokens NUMBER`"
)
REFUSED = "the model refused to answer; word the question differently or choose another model"
PLAN_NOTE = (
    "\n\nPlan mode is on: look around with tools and commands that read, and change nothing. End with a plan: numbered "
    "steps that name the files and commands. The user accepts, edits or rejects it before you carry it out. To a mere "
    "question, answer without numbered steps."
)
PLAN_STEP = re.compile(r"^[ \t>#*_-]*(?:step )?\d+[.):]", re.MULTILINE | re.IGNORECASE)
MIN_ANSWER_TOKENS = 256
CLOSING_SECONDS = 5.0
"""How long the end hooks of an interrupted run may take."""
DENIALS = ("denied", "approval_timeout", UNTRUSTED_VALUE)


class RunnableAgent(Protocol):
    """The part of an agent that one of its runs uses."""

    host: AgentHost
    conversation: Conversation
    tool_selection: ToolSelection
    model: str
    system_prompt: str
    max_turns: int
    max_calls: int
    dry_run: bool
    mode: Mode
    steering: deque[Message]
    is_first_run: bool

    @property
    def provider(self) -> Provider: ...

    @property
    def profile(self) -> ModelProfile: ...

    @property
    def cwd(self) -> str: ...

    def changed_paths(self) -> list[str]: ...

    def drop_steering(self) -> list[str]: ...

    async def summarise(self, topic: str = "") -> Compressed | None: ...


class AgentRun:
    """One run: from a question to its answer. However it ends, every call in the conversation has one result."""

    def __init__(
        self, agent: RunnableAgent, question: Message, watch: Callable[[AnyEvent], None], cancel: CancelToken
    ) -> None:
        self._agent = agent
        self._host = agent.host
        self._conversation = agent.conversation
        self._question = question
        self.emit = watch
        self._cancel = cancel
        self._mode = agent.mode
        self._guardrails = Guardrails(self._host.settings.tool_loop_guardrails)
        self._turn_id = secrets.token_hex(6)
        self._turns = 0
        self._calls = 0
        self._out_of_calls = False
        self._usage = Usage()
        self._last_results: list[ToolResult] = []
        self._called: dict[str, None] = {}
        self._announced: set[str] = set()
        self._hooks = RunHooks(
            hooks=self._host.runtime.hooks,
            conversation=self._conversation,
            model=self._agent.model,
            platform=self._host.platform,
            turn_id=self._turn_id,
            changed_paths=self._agent.changed_paths,
        )
        self._allowed: frozenset[str] = frozenset()

    async def run(self) -> RunResult:
        """Work until there is an answer, a failure, an interrupt or an empty budget."""
        try:
            result = await self._worked_on()
            await self.stored()
        except ModelError as error:
            result = await self._broken_off(error)
        except ToolcribError as error:
            # Sessions that cannot be written, for example.
            result = self._result("failed", problem=str(error))
        await self._close(result)
        return result

    async def _worked_on(self) -> RunResult:
        try:
            await self._open()
            return await self._until_done()
        except Interrupted as interrupted:
            # What was stopped may still be writing.
            await self.stored()
            await self._keep_partial(interrupted.text)
            return self._result(
                "interrupted",
                answer=interrupted.text,
                problem="it was interrupted",
                is_incomplete=bool(interrupted.text.strip()),
            )

    async def _broken_off(self, error: ModelError) -> RunResult:
        """The result if the model cannot be reached any more; keeps what has arrived of its answer."""
        problem = str(error)
        if error.partial_text:
            problem = f"the answer is incomplete: {problem}"
            try:
                await self._keep_partial(error.partial_text)
            except ToolcribError as unsaved:
                problem = f"{problem}; {unsaved}"
        return self._result(
            "failed", answer=error.partial_text, problem=problem, is_incomplete=bool(error.partial_text)
        )

    async def _until_done(self) -> RunResult:
        while self._turns < self._agent.max_turns and not self._out_of_calls:
            ended = await self.step()
            if ended is not None:
                return ended
        if self._cancel.cancelled:
            raise Interrupted
        return await self._wrap_up()

    async def step(self) -> RunResult | None:
        """One request and the calls it asks for; returns the result if the run has ended."""
        if self._cancel.cancelled:
            raise Interrupted
        await self._hear()
        await self.stored()
        await self._heed_servers()
        offered = self._offered()
        await self._make_room(offered)
        response = await self.query(offered)
        if response.message.tool_calls:
            return await self.execute(response.message.tool_calls)
        return await self._answered(response)

    async def query(self, offered: SelectedTools) -> ModelResponse:
        """Query the model; if the request is too long, shorten it and try once more."""
        self._turns += 1
        self.emit(TurnStarted(turn=self._turns))
        try:
            return await self._ask(offered)
        except ModelError as error:
            if error.kind != "too_long" or not await self._make_room(offered, forced=True):
                raise
            return await self._ask(offered)

    async def _ask(self, offered: SelectedTools | None) -> ModelResponse:
        request = ModelRequest(
            model=self._agent.model,
            messages=self._fitting_messages(offered),
            system=self._agent.system_prompt + (PLAN_NOTE if self._agent.mode == "plan" else ""),
            tools=offered.tools if offered else (),
            definitions=offered.definitions if offered else (),
            max_output_tokens=self._host.settings.model.max_output_tokens or None,
            temperature=self._host.settings.model.temperature,
            reasoning_effort=self._host.settings.model.reasoning_effort,
            timeout_seconds=self._host.settings.model.timeout,
            cache_key=self._conversation.session_id,
        )
        ids = RequestIds(
            session_id=self._conversation.session_id,
            turn_id=self._turn_id,
            api_request_id=self._request_id,
            api_call_count=self._turns,
        )
        query = ModelRequestSender(self._agent.provider, self._host.runtime.hooks, ids, self.emit, self._cancel)
        response = await query.send(request)
        message = self._conversation.with_fresh_call_ids(response.message)
        self._usage += response.usage
        if message.text.strip() or message.tool_calls or message.images:
            self.add(message, usage=response.usage)
            await self._stored_whatever_happens()
        return ModelResponse(
            message=message, usage=response.usage, stop=response.stop, model=response.model, provider=response.provider
        )

    async def execute(self, calls: Sequence[RequestedCall]) -> RunResult | None:
        """Run the calls of one answer; every call gets a result, whatever happens."""
        batch = self._batch(calls, calls_left=self._agent.max_calls - self._calls)
        self._last_results = await batch.run()
        self._calls += batch.run_count
        self._out_of_calls = batch.out_of_budget
        self._called |= dict.fromkeys(call.name for call in calls)
        if self._cancel.cancelled:
            raise Interrupted
        if self._agent.dry_run:
            return self._result("answered", answer="")
        if self._guardrails.is_hopeless(all_stopped=batch.all_stopped):
            return self._result("failed", problem="the model kept repeating calls that do not help, so it was stopped")
        return None

    def _batch(self, calls: Sequence[RequestedCall], calls_left: int) -> CallBatch:
        session_id = self._conversation.session_id
        ctx = self._host.runtime.context(
            session_id=session_id,
            task_id=session_id,
            turn_id=self._turn_id,
            api_request_id=self._request_id,
            user_task=self._question.text,
            cwd=self._agent.cwd,
            cancel=self._cancel,
            allowed_tools=self._allowed,
            mode=self._agent.mode,
        )
        request = BatchRequest(calls=calls, ctx=ctx, calls_left=calls_left, dry_run=self._agent.dry_run)
        return CallBatch(self._host.runtime, self._guardrails, self, request)

    async def _answered(self, response: ModelResponse) -> RunResult | None:
        text = response.message.text
        if response.stop == "refused" and not text.strip():
            return self._result("failed", problem=REFUSED)
        if not text.strip() and not response.message.images:
            # If the model has nothing to say after a denial, the outcome is the denial.
            outcome, problem = self._ending()
            if outcome == "answered":
                return self._result("failed", problem=EMPTY_ANSWER)
            return self._result(outcome, problem=problem)
        if self._agent.steering:
            return None  # The user sent a message while the model was answering.
        wanted = await self._stoppable(self._hooks.verified(text))
        if wanted:
            self.add(user_message(wanted))
            return None
        if response.stop == "length":
            self.emit(Notified(kind="length", message=OUTPUT_LIMIT))
        outcome, problem = self._ending()
        told = await self._stoppable(self._hooks.transformed(text))
        return self._result(outcome, answer=told, problem=problem, last=response)

    def _ending(self) -> tuple[Outcome, str]:
        """The outcome of an answer: denied or failed if the model's last calls were, otherwise answered."""
        # That plan mode refused a call is no failure: the answer is the plan.
        results = [result for result in self._last_results if result.error_type != PLAN_MODE]
        denied = next((result for result in results if result.error_type in DENIALS), None)
        if denied is not None:
            return "denied", denied.error_message
        if results and all(result.is_error for result in results):
            return "failed", results[-1].error_message
        return "answered", ""

    async def _wrap_up(self) -> RunResult:
        """Out of budget: ask for a last answer, without tools, about the progress so far."""
        what = f"{self._agent.max_calls} calls" if self._out_of_calls else f"{self._agent.max_turns} turns"
        problem = f"the budget of {what} is used up; continue in the same session, or raise it (max_turns, max_calls)"
        self.emit(Notified(kind="budget", message=problem))
        self.add(user_message(WRAP_UP))
        await self.stored()
        self._turns += 1
        try:
            response = await self._ask(None)
        except ModelError as error:
            await self._keep_partial(error.partial_text)
            return self._result(
                "budget", answer=error.partial_text, problem=problem, is_incomplete=bool(error.partial_text)
            )
        if response.message.tool_calls:
            # Some models call tools that they are no longer offered.
            await self._batch(response.message.tool_calls, calls_left=0).run()
        return self._result("budget", answer=response.message.text, problem=problem, last=response)

    async def _hear(self) -> None:
        """Add user messages, background process events and job results that arrived since the last request."""
        while self._agent.steering:
            message = self._agent.steering.popleft()
            if message.origin == "person":
                self._provenance.add_person(message.text, follow_up=True)
            self.add(message)
            await self.stored()
            self.emit(Steered(text=message.text))
        session_id = self._conversation.session_id
        inbox = Inbox(self._host.settings.home.cron_file, session_id)
        notices = await asyncio.to_thread(inbox.waiting) if inbox.exists else []
        if notices:
            await self._tell("\n\n".join(notice.text for notice in notices), source="a scheduled job")
            await asyncio.to_thread(inbox.fetched, notices)
        if not self._host.runtime.has_terminal:
            return
        processes = self._host.runtime.terminal.processes
        events = await processes.unread_events(session_id, "agent")
        if events:
            await self._tell("\n\n".join(f"[{event.describe()}]" for event in events), source="a background process")
            await processes.acknowledge(session_id, "agent", events)

    async def _tell(self, text: str, source: str) -> None:
        """Add a message that no person wrote."""
        self._provenance.add_untrusted(text, source)
        self.add(msgspec.structs.replace(user_message(text), origin="untrusted"))
        await self.stored()

    @property
    def _provenance(self) -> Provenance:
        return self._host.runtime.provenance(self._conversation.session_id)

    async def _heed_servers(self) -> None:
        """Sync MCP servers with the config file, and let the first request wait a moment for their tools."""
        problem = await self._stoppable(self._host.servers.before_request())
        if problem:
            self.emit(Notified(kind="config", message=problem))

    async def _make_room(self, offered: SelectedTools, *, forced: bool = False) -> bool:
        """Compress the conversation if it no longer fits; True if that made room."""
        profile = self._agent.profile
        self._conversation.fixed_tokens = estimate_text_tokens(self._agent.system_prompt) + offered.tokens
        if profile.max_prompt_tokens is not None or not (self._host.settings.compression.enabled or forced):
            return False
        limit = int(profile.context_window * self._host.settings.compression.threshold_pct / 100)
        if not forced and self._conversation.tokens <= limit:
            return False
        event = await self._stoppable(self._agent.summarise())
        if event is not None:
            self.emit(event)
        if event is None or self._conversation.tokens > limit:
            return bool(await self._conversation.change(cut_results, self._conversation)) or event is not None
        return True

    def _offered(self) -> SelectedTools:
        # Compute them again: servers may have become ready or changed their tools.
        self._allowed = self._agent.tool_selection.allowed
        offered = self._agent.tool_selection.current(
            self._agent.profile,
            self._agent.provider.dialect,
            spoken_text(self._question.text),
            self._called,
            mode=self._agent.mode,
        )
        for tool in offered.set_aside:
            if tool.name not in self._announced:
                self._announced.add(tool.name)
                message = f"the tool {tool.name} is left out: {tool.reason}"
                self.emit(Notified(kind="tool_set_aside", tool=tool.name, message=message))
        return offered

    def _fitting_messages(self, offered: SelectedTools | None) -> Sequence[Message]:
        profile = self._agent.profile
        if profile.max_prompt_tokens is None:
            return tuple(self._conversation.messages)
        used = estimate_text_tokens(self._agent.system_prompt) + (offered.tokens if offered else 0)
        return fit_messages(self._conversation.messages, max(MIN_ANSWER_TOKENS, profile.max_prompt_tokens - used))

    def add(self, message: Message, usage: Usage | None = None) -> int:
        """Add a message and return its position; watchers see it once it is on disk, after `stored` at the latest."""
        added = MessageAdded(message=message, usage=usage)
        return self._conversation.add(message, turn_id=self._turn_id, usage=usage, on_stored=lambda: self.emit(added))

    async def stored(self) -> None:
        """Wait until the messages so far are on disk."""
        await self._conversation.stored()

    async def _stored_whatever_happens(self) -> None:
        """Like `stored`, but a cancellation takes effect at the next wait: calls that were just added get their results
        only from the batch that would run them."""
        try:
            await self.stored()
        except asyncio.CancelledError:
            await self.stored()
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            task.cancel()

    async def replace(self, position: int, message: Message) -> None:
        """Replace a message with a shorter version."""
        await self._conversation.change(self._conversation.replace, position, message)

    @property
    def _request_id(self) -> str:
        return f"{self._turn_id}-{self._turns}"

    async def _keep_partial(self, text: str) -> None:
        """Add the text of an answer that was interrupted or broke off to the conversation."""
        if text.strip():
            self.add(Message(role="assistant", content=text))
            await self.stored()

    async def _stoppable(self, work: Coroutine[Any, Any, T]) -> T:
        return await ModelRequestSender.stoppable(work, self._cancel)

    async def _open(self) -> None:
        session_id, provider = self._conversation.session_id, self._agent.provider.name
        self.emit(RunStarted(session_id=session_id, model=self._agent.model, provider=provider))
        await self._conversation.change(self._conversation.refresh)
        if self._question.origin == "person":
            hear_person(self._provenance, self._question.text)
        opening = self._hooks.opened(self._question, is_first=self._agent.is_first_run)
        self._agent.is_first_run = False
        try:
            self._question = await self._stoppable(opening)
        finally:
            self.add(self._question)

    async def _close(self, result: RunResult) -> None:
        with suppress(ToolcribError):
            await self.stored()
        closing = self._hooks.closed(result, self._request_id)
        try:
            if self._cancel.cancelled:
                await asyncio.wait_for(closing, CLOSING_SECONDS)
            else:
                await self._stoppable(closing)
        except (Interrupted, TimeoutError):
            logger.warning("abandoned an end hook of a run because it took too long")
        for text in self._agent.drop_steering():
            self.emit(SteeringDropped(text=text))
        self.emit(RunEnded(result=result))

    def _result(
        self,
        outcome: Outcome,
        *,
        answer: str = "",
        problem: str = "",
        is_incomplete: bool = False,
        last: ModelResponse | None = None,
    ) -> RunResult:
        # A run that began in another mode was not asked for a plan.
        plans = outcome == "answered" and self._mode == self._agent.mode == "plan"
        return RunResult(
            outcome=outcome,
            answer=answer,
            is_plan=plans and ("todo" in self._called or PLAN_STEP.search(answer) is not None),
            problem=problem,
            is_incomplete=is_incomplete or (last is not None and last.stop == "length"),
            images=last.message.images if last is not None else (),
            session_id=self._conversation.session_id,
            turns=self._turns,
            calls=self._calls,
            usage=self._usage,
        )


async def run_question(
    agent: RunnableAgent, question: Message, watch: Callable[[AnyEvent], None], cancel: CancelToken
) -> RunResult:
    """Work on one question. Cancelling the task that awaits this leaves a conversation that can be resumed."""
    try:
        return await AgentRun(agent, question, watch, cancel).run()
    except asyncio.CancelledError:
        cancel.cancel("the run was cancelled")
        with suppress(ToolcribError):
            await agent.conversation.stored()
        raise
