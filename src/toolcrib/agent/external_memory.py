"""The external memory provider: recalls before a turn, remembers after it, and offers its own tools.

It is foreign code over a network, so it may fail or hang at any time, and no conversation may suffer from that: every
call has a time limit, turns are remembered in the background, and after several failures it rests for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from toolcrib.config.environment import environment
from toolcrib.config.redact import redact
from toolcrib.core.attempt import attempt, attempt_async, notify
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.core.types import Effect, JsonObject, Source
from toolcrib.memory_providers.honcho import HonchoMemory
from toolcrib.registry.results import tool_error, untrusted
from toolcrib.runtime import Runtime
from toolcrib.sessions.memory import EntryChange

logger = logging.getLogger(__name__)

START_SECONDS = 5.0
TOOL_SECONDS = 60.0
REMEMBER_SECONDS = 60.0
CLOSE_SECONDS = 5.0
MAX_FAILURES = 3
REST_SECONDS = 120.0
MAX_WAITING = 100
BUNDLED = ("honcho", "mem0")
NOTE = "What your memory knows about this, as data; it may be out of date:"


class UnknownMemory(UnknownName):
    kind = "memory provider"


class ExternalMemory:
    """The configured memory of a vendor, for all sessions of a host. Does nothing without `memory.provider`."""

    def __init__(
        self, runtime: Runtime, subagents: Collection[str], messages: Callable[[str], list[JsonObject]]
    ) -> None:
        """`messages` gives the messages of a session; the sessions in `subagents` have no memory."""
        self._runtime = runtime
        self._settings = runtime.settings.memory
        self._subagents = subagents
        self._messages = messages
        self._provider: Any = None
        self._is_attached = False
        self._sessions: dict[str, int] = {}
        """By session: how many turns it had."""
        self._delegations: dict[str, str] = {}
        """By session of a subagent: its task."""
        self._failures = 0
        self._rests_until = 0.0
        self._waiting: queue.Queue[Callable[[], Any] | None] = queue.Queue(MAX_WAITING)
        self._worker: threading.Thread | None = None
        self.problem = ""
        """Why the configured memory is not used, as a sentence."""

    def attach(self) -> None:
        """Choose the provider and add its tools, once the plugins are loaded."""
        if self._is_attached or not self._settings.provider:
            return
        self._is_attached = True
        try:
            self._provider = self._chosen(self._settings.provider.strip().lower())
        except ToolcribError as error:
            self._give_up(str(error))
            return
        hooks, source = self._runtime.hooks, Source("plugin", f"memory provider {self._name}")
        hooks.register("pre_llm_call", self._before_turn, source=source)
        hooks.register("post_llm_call", self._after_turn, source=source)
        hooks.register("on_session_finalize", self._session_ended, source=source)
        hooks.register("on_session_reset", self._session_reset, source=source)
        hooks.register("subagent_start", self._delegated, source=source)
        hooks.register("subagent_stop", self._subagent_reported, source=source)
        self._add_tools()

    def prompt_block(self) -> str:
        """What the provider adds to the system prompt; empty if it fails or takes too long."""
        if self._provider is None or not hasattr(self._provider, "system_prompt_block"):
            return ""
        text = _on_thread(self._provider.system_prompt_block, START_SECONDS)
        return text if isinstance(text, str) else ""

    async def close(self) -> None:
        """Remember what still waits, with a limit, and let the provider end."""
        if self._provider is None:
            return
        if self._worker is not None:
            self._waiting.put_nowait(None)
            await asyncio.to_thread(self._worker.join, CLOSE_SECONDS)
        await self._call(self._provider.shutdown, seconds=CLOSE_SECONDS)
        self._provider = None

    @property
    def _name(self) -> str:
        return str(self._provider.name)

    def _give_up(self, why: str) -> None:
        self.problem = f"the memory provider {self._settings.provider!r} is not used: {why}"
        logger.warning("%s", self.problem)

    # Choosing

    def _chosen(self, wanted: str) -> Any:
        found = find_memory(self._runtime, wanted)
        if found is None:
            raise UnknownMemory(wanted, memory_names(self._runtime), advice="correct memory.provider in the config")
        missing, error = attempt(lambda: "" if found.is_available() else getattr(found, "missing", str)())
        if error is not None or not found.is_available():
            raise ToolcribError(str(missing or "it is not available") if error is None else type(error).__name__)
        return found

    # Around a turn

    async def _before_turn(self, *, session_id: str, user_message: str, platform: str = "", **more: Any) -> str | None:
        if not self._serves(session_id):
            return None
        if session_id not in self._sessions:
            self._sessions[session_id] = 0
            options = {"platform": platform, "hermes_home": str(self._runtime.settings.home.root)}
            await self._call(self._provider.initialize, session_id, seconds=START_SECONDS, **options)
        self._sessions[session_id] += 1
        said, seconds = redact(user_message), self._settings.recall_seconds
        if hasattr(self._provider, "on_turn_start"):
            about = {"session_id": session_id, "platform": platform, "model": more.get("model", "")}
            await self._call(self._provider.on_turn_start, self._sessions[session_id], said, seconds=seconds, **about)
        recalled = await self._call(self._provider.prefetch, said, seconds=seconds, session_id=session_id)
        text = _fresh(recalled, more.get("conversation_history") or (), self._settings.recall_chars)
        return f"{NOTE}\n{untrusted(text, self._name)}" if text else None

    def _after_turn(self, *, session_id: str, user_message: str, assistant_response: str = "", **_: Any) -> None:
        if not self._serves(session_id) or not assistant_response.strip():
            return
        said, answered = redact(user_message), redact(assistant_response)
        self._later(lambda: self._provider.sync_turn(said, answered, session_id=session_id))
        # Some prepare the next recall while nobody waits for it.
        self._notify("queue_prefetch", said, session_id=session_id)

    # Around a session

    def _session_ended(self, *, session_id: str, **_: Any) -> None:
        if self._sessions.pop(session_id, 0) and hasattr(self._provider, "on_session_end"):
            messages = self._messages(session_id)
            self._later(lambda: self._provider.on_session_end(messages))

    def _session_reset(self, *, old_session_id: str, new_session_id: str, **_: Any) -> None:
        self.switched(new_session_id, old_session_id, reset=True)

    def switched(self, session_id: str, parent_id: str, **how: bool) -> None:
        """A conversation goes on in another session (`reset`: empty), or without its latest messages (`rewound`)."""
        if self._serves(session_id):
            self._notify("on_session_switch", session_id, parent_session_id=parent_id, **how)

    async def before_compressing(self, session_id: str, messages: Sequence[JsonObject]) -> str:
        """What a summary of these messages must not lose; empty if the provider has nothing to say."""
        if not self._serves(session_id) or not hasattr(self._provider, "on_pre_compress"):
            return ""
        told = await self._call(self._provider.on_pre_compress, list(messages), seconds=self._settings.recall_seconds)
        return told.strip()[: self._settings.recall_chars] if isinstance(told, str) else ""

    def memory_written(self, session_id: str, target: str, changes: Sequence[EntryChange]) -> None:
        """The built-in memory changed."""
        if not self._serves(session_id):
            return
        for one in changes:
            told = redact(one.after or one.before)
            self._notify("on_memory_write", one.kind, target, told)

    def _delegated(self, *, parent_session_id: str, child_session_id: str, child_goal: str = "", **_: Any) -> None:
        if self._serves(parent_session_id):
            self._delegations[child_session_id] = child_goal

    def _subagent_reported(self, *, child_session_id: str, child_summary: str = "", **_: Any) -> None:
        goal = self._delegations.pop(child_session_id, None)
        if goal is not None:
            told, result = redact(goal), redact(child_summary)
            self._notify("on_delegation", told, result, child_session_id=child_session_id)

    def _notify(self, method: str, *arguments: Any, **options: Any) -> None:
        """Tell the provider in the background, if it wants to know."""
        told = getattr(self._provider, method, None)
        if told is not None:
            self._later(lambda: told(*arguments, **options))

    def _serves(self, session_id: str) -> bool:
        if self._provider is None or session_id in self._subagents:
            return False
        return time.monotonic() >= self._rests_until

    # Its tools

    def _add_tools(self) -> None:
        schemas, error = attempt(self._provider.get_tool_schemas)
        if error is not None:
            logger.warning("the memory provider %r has no tools (%s)", self._name, type(error).__name__)
        host = str(getattr(self._provider, "host", "") or "")
        for schema in schemas or ():
            name = str(schema.get("name", ""))
            if not name or self._runtime.registry.get_entry(name) is not None:
                logger.error("the memory provider %r offers the tool %r, which exists already", self._name, name)
                continue
            self._runtime.registry.register(
                name=name,
                toolset=self._name,
                schema=schema,
                handler=self._handler(name),
                is_async=True,
                emoji="🧠",
                effects=(Effect("network", host),),
            )

    def _handler(self, name: str) -> Callable[..., Any]:
        async def handle(args: JsonObject, **_: Any) -> str:
            try:
                async with asyncio.timeout(TOOL_SECONDS):
                    answer, error = await _attempted(self._provider.handle_tool_call, name, args)
            except TimeoutError:
                return tool_error(f"{self._name} did not answer within {TOOL_SECONDS:g} seconds", success=False)
            if isinstance(error, ToolcribError):
                return tool_error(error, success=False)
            if error is not None:
                logger.error("the tool %r failed", name, exc_info=error)
                return tool_error(f"{self._name} failed ({type(error).__name__})", success=False)
            return answer if isinstance(answer, str) else tool_error(f"{self._name} gave no text", success=False)

        return handle

    # Calling foreign code

    async def _call(self, method: Callable[..., Any], *arguments: Any, seconds: float, **options: Any) -> Any:
        """The answer, or None: a failure is logged and counted, and never raised."""
        try:
            async with asyncio.timeout(seconds):
                answer, error = await _attempted(method, *arguments, **options)
        except TimeoutError:
            answer, error = None, TimeoutError(f"it took longer than {seconds:g} seconds")
        self._count(error)
        return answer

    def _count(self, error: BaseException | None) -> None:
        if error is None:
            self._failures = 0
            return
        self._failures += 1
        reason = str(error) if isinstance(error, (ToolcribError, TimeoutError)) else type(error).__name__
        logger.warning("the memory provider %r failed: %s", self._settings.provider, reason)
        if self._failures >= MAX_FAILURES:
            self._failures, self._rests_until = 0, time.monotonic() + REST_SECONDS
            logger.warning("the memory provider %r rests for %g seconds", self._settings.provider, REST_SECONDS)

    def _later(self, work: Callable[[], Any]) -> None:
        """Do it in the background, one after the other; nobody waits for it."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="toolcrib-memory", daemon=True)
            self._worker.start()
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            logger.warning("the memory provider %r is too slow; a turn is not remembered", self._settings.provider)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            _, error = attempt(_finished, work)
            self._count(error)


def memory_names(runtime: Runtime) -> list[str]:
    """The providers that can be named: those of the loaded plugins, and those that come with toolcrib."""
    return sorted({*_declared(runtime), *BUNDLED})


def find_memory(runtime: Runtime, name: str) -> Any:
    """The provider with this name, a plugin's first; None if there is none."""
    declared = _declared(runtime)
    if name in declared or name not in BUNDLED:
        return declared.get(name)
    if name == "honcho":
        return HonchoMemory(environment())
    # It brings an HTTP client, and few homes use it.
    from toolcrib.memory_providers.mem0 import Mem0Memory  # noqa: PLC0415

    return Mem0Memory(environment(), lambda: runtime.services.web.client)


def _declared(runtime: Runtime) -> dict[str, Any]:
    declarations = [one for plugin in runtime.loaded_plugins for one in plugin.declarations]
    given = [(*one.arguments, *one.options.values()) for one in declarations if one.kind == "memory_provider"]
    return {str(getattr(one[0], "name", "")).lower(): one[0] for one in given if one}


async def _attempted(method: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, BaseException | None]:
    """The answer of a method, sync or async, or what it raised. A sync one that is given up ends on its own thread."""
    if inspect.iscoroutinefunction(method):
        return await attempt_async(method(*arguments, **options))
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def deliver(answer: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((answer, error))

    def run() -> None:
        outcome = attempt(method, *arguments, **options)
        # The loop may be gone.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, *outcome)

    # A daemon, because a thread that hangs must not keep the program from ending.
    threading.Thread(target=run, name="toolcrib-memory-call", daemon=True).start()
    return await done


def _finished(work: Callable[[], Any]) -> None:
    answer = work()
    if inspect.isawaitable(answer):
        asyncio.run(_bounded(answer))


async def _bounded(answer: Any) -> None:
    async with asyncio.timeout(REMEMBER_SECONDS):
        await answer


def _on_thread(method: Callable[[], Any], seconds: float) -> Any:
    """What a sync method gives within a time; None otherwise."""
    found: list[Any] = []
    options = {"name": "the memory provider"}
    thread = threading.Thread(target=notify, args=(lambda: found.append(method()),), kwargs=options, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _fresh(recalled: Any, history: Sequence[Any], max_chars: int) -> str:
    """What was recalled, without lines that the conversation contains already, and not longer than allowed."""
    if not isinstance(recalled, str) or not recalled.strip():
        return ""
    known = "\n".join(_texts(history))
    lines = [line for line in dict.fromkeys(recalled.strip().splitlines()) if not line.strip() or line not in known]
    return "\n".join(lines).strip()[:max_chars]


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
