"""`tools.process_registry`: the background processes of the default runtime, for callers that are not async.

What runs a command, or types into one, goes through the gate as the tools do.
"""

from __future__ import annotations

import json
import queue
import shlex
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.approval.gate import DEFAULT_SESSION
from toolcrib.compat.session_environment import SessionEnvironment, run_terminal
from toolcrib.compat.tools_approval import check_all_command_guards
from toolcrib.compat.tools_environments import BaseEnvironment
from toolcrib.core.environments import BackendPath, CommandRequest
from toolcrib.core.types import JsonObject
from toolcrib.environments.bash_runner import BashRunnerEngine
from toolcrib.environments.shell import SessionOptions, ShellEnvironment
from toolcrib.processes.events import ProcessEvent
from toolcrib.processes.process import TrackedProcess, UnknownProcess
from toolcrib.processes.registry import ProcessRegistry as OurRegistry
from toolcrib.terminal.service import TerminalService

READER = "completion_queue"
SOURCE = "process_registry"
LOCAL_TASK = "process-registry-local"
EVENTS_IN_WORDS = frozenset(
    {"completion", "watch_match", "watch_disabled", "watch_overflow_tripped", "watch_overflow_released"}
)


@dataclass(frozen=True, kw_only=True)
class ProcessSession:
    """A snapshot of a background process."""

    id: str
    command: str
    task_id: str = ""
    session_key: str = ""
    pid: int | None = None
    cwd: str | None = None
    started_at: float = 0.0
    exited: bool = False
    exit_code: int | None = None
    completion_reason: str = ""
    termination_source: str = ""
    output_buffer: str = ""
    notify_on_complete: bool = False
    watch_patterns: tuple[str, ...] = ()


class CompatProcessRegistry:
    """Delegates to the current Runtime; stores only events that were not fetched yet."""

    def __init__(self) -> None:
        self.completion_queue = CompletionQueue(self._new_events)
        self.pending_watchers: list[JsonObject] = []
        """Always empty: the session that started a process always gets its events."""
        self._seen_ended: set[str] = set()

    # Starting

    def spawn_local(
        self,
        command: str,
        cwd: str | None = None,
        task_id: str = "",
        session_key: str = "",
        env_vars: Mapping[str, str] | None = None,
        use_pty: bool = False,
    ) -> ProcessSession:
        """Run a command on this machine in the background; raises PermissionError if it is not allowed."""
        exported = "".join(f"export {name}={shlex.quote(value)}; " for name, value in (env_vars or {}).items())
        arguments: JsonObject = {"command": exported + command, "background": True, "pty": use_pty}
        if cwd:
            arguments["workdir"] = cwd
        task = task_id
        if default_runtime().settings.terminal.backend != "local":
            # A separate task, because the session's other commands run elsewhere.
            task = LOCAL_TASK
            _terminal().set_override(task, {"backend": "local"})
        result = run_terminal(arguments, task, session_key or task_id)
        answer = json.loads(result.content) if isinstance(result.content, str) else {}
        if "session_id" not in answer:
            raise PermissionError(answer.get("error") or result.error_message)
        return _session(self._tracked(answer["session_id"]))

    def spawn_via_env(
        self,
        env: BaseEnvironment,
        command: str,
        cwd: str | None = None,
        task_id: str = "",
        session_key: str = "",
        timeout: float = 10,
    ) -> ProcessSession:
        """Run a command in the caller's environment in the background; raises PermissionError if it is not allowed."""
        allowed = check_all_command_guards(command, "local")
        if not allowed["approved"]:
            raise PermissionError(str(allowed["message"]))
        request = CommandRequest(command=command, cwd=BackendPath(cwd) if cwd else None)
        key = session_key or task_id or DEFAULT_SESSION
        return _session(_run(_start_in(_registry(), env, request, key, task_id)))

    # Asking

    def get(self, session_id: str) -> ProcessSession | None:
        try:
            return _session(self._tracked(session_id))
        except UnknownProcess:
            return None

    def poll(self, session_id: str) -> JsonObject:
        answer = _act(action="poll", session_id=session_id, reader=SOURCE)
        if "exit_code" in answer:
            self._seen_ended.add(session_id)
        return answer

    def read_log(self, session_id: str, offset: int = 0, limit: int = 200) -> JsonObject:
        return _act(action="log", session_id=session_id, limit=limit, **({"offset": offset} if offset else {}))

    def wait(self, session_id: str, timeout: float | None = None) -> JsonObject:
        return _act(action="wait", session_id=session_id, timeout=timeout, reader=SOURCE)

    def list_sessions(self, task_id: str | None = None, session_key: str | None = None) -> list[JsonObject]:
        """The processes of a task and a session (None: of all), oldest first."""
        listed: list[JsonObject] = _run(_terminal().processes.act({"action": "list"}, session_key or None))["processes"]
        return [one for one in listed if not task_id or self._tracked(one["session_id"]).record.task_id == task_id]

    def count_running(self) -> int:
        return _registry().count_running()

    def has_active_processes(self, task_id: str) -> bool:
        return any(one.is_running and task_id in _owners(one) for one in _registry().list(None))

    def has_active_for_session(self, session_key: str) -> bool:
        return _registry().has_active(session_key)

    # Typing and ending

    def write_stdin(self, session_id: str, data: str) -> JsonObject:
        return self._type("write", session_id, data)

    def submit_stdin(self, session_id: str, data: str = "") -> JsonObject:
        return self._type("submit", session_id, data)

    def close_stdin(self, session_id: str) -> JsonObject:
        return _act(action="close", session_id=session_id)

    def kill_process(self, session_id: str, *, source: str = SOURCE, consume_output: bool = True) -> JsonObject:
        """End a process with its children. With `consume_output` its end is not told any more."""
        try:
            tracked = self._tracked(session_id)
        except UnknownProcess as error:
            return {"status": "not_found", "error": str(error)}
        was_running = _run(_registry().kill(tracked, source=source))
        if consume_output and tracked.record.notify_on_complete:
            _registry().notifier.store.consume(tracked.record.session_key, session_id)
        answer = _act(action="poll", session_id=session_id, reader=SOURCE)
        return answer if was_running or "error" in answer else {**answer, "status": "already_exited"}

    def kill_all(self, task_id: str | None = None) -> int:
        """End all processes, or those of a task; says how many were running."""
        if task_id is None:
            count: int = _run(_registry().kill_all(source=SOURCE))
            return count
        mine = [one for one in _registry().list(None) if one.is_running and task_id in _owners(one)]
        return sum(_run(_registry().kill(one, source=SOURCE)) for one in mine)

    # What happened

    def drain_notifications(
        self,
        session_key: str = "",
        owns_event: Callable[[JsonObject], bool] | None = None,
        *,
        skip_poll_observed: bool = True,
    ) -> list[tuple[JsonObject, str]]:
        """Events that were not fetched yet, each with its text; what belongs to others stays for them."""
        taken: list[tuple[JsonObject, str]] = []
        others: list[JsonObject] = []
        while not self.completion_queue.empty():
            event = self.completion_queue.get_nowait()
            if (session_key and event.get("session_key") != session_key) or (owns_event and not owns_event(event)):
                others.append(event)
            elif not (skip_poll_observed and event["type"] == "completion" and self._has_seen(event)):
                text = format_process_notification(event)
                taken += [(event, text)] if text else []
        for event in others:
            self.completion_queue.put(event)
        return taken

    def recover_from_checkpoint(self) -> int:
        """Find what an earlier process of ours left running, once; says how many go on."""
        return len(_terminal().recover().adopted)

    def _has_seen(self, event: JsonObject) -> bool:
        return event.get("session_id") in self._seen_ended

    def _new_events(self) -> list[JsonObject]:
        registry = _registry()
        found: list[JsonObject] = []
        for key in {one.record.session_key for one in registry.list(None)}:
            events = _run(_terminal().processes.unread_events(key, READER))
            found += [event.as_json() for event in events]
            _run(_terminal().processes.acknowledge(key, READER, events))
        return found

    def _type(self, action: str, session_id: str, data: str) -> JsonObject:
        try:
            owner = self._tracked(session_id).record.session_key
        except UnknownProcess as error:
            return {"status": "not_found", "error": str(error)}
        runtime = default_runtime()
        arguments = {"action": action, "session_id": session_id, "data": data}
        result = runtime.call_sync("process", arguments, runtime.context(tool_name="process", session_id=owner))
        answer: JsonObject = json.loads(result.text)
        return answer

    def _tracked(self, session_id: str) -> TrackedProcess:
        return _registry().get(session_id, None)


class CompletionQueue:
    """The events as a `queue.Queue` shows them; each is given out once."""

    def __init__(self, fetch: Callable[[], list[JsonObject]]) -> None:
        self._fetch = fetch
        self._events: deque[JsonObject] = deque()

    def get_nowait(self) -> JsonObject:
        if self.empty():
            raise queue.Empty
        return self._events.popleft()

    def put(self, event: JsonObject) -> None:
        self._events.append(event)

    def empty(self) -> bool:
        return self.qsize() == 0

    def qsize(self) -> int:
        self._events.extend(self._fetch())
        return len(self._events)


def format_process_notification(evt: Mapping[str, Any]) -> str | None:
    """An event as a message to the session that started the process; None for what is nothing to tell."""
    fields = dict(evt)
    kind = fields.pop("type", "completion")
    return ProcessEvent(0, kind, fields).describe() if kind in EVENTS_IN_WORDS else None


def _terminal() -> TerminalService:
    return default_runtime().terminal


def _registry() -> OurRegistry:
    return _terminal().processes.registry


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return _terminal().run(coroutine)


def _act(**arguments: Any) -> JsonObject:
    answer: JsonObject = _run(_terminal().processes.act(arguments, None))
    return answer


def _owners(tracked: TrackedProcess) -> tuple[str, str]:
    """The names that callers know as the task of a process."""
    return tracked.record.task_id, tracked.record.session_key


def _session(tracked: TrackedProcess) -> ProcessSession:
    record = tracked.record
    return ProcessSession(
        id=record.id,
        command=record.command,
        task_id=record.task_id,
        session_key=record.session_key,
        pid=record.pid,
        cwd=record.cwd,
        started_at=record.started_at,
        exited=not record.is_running,
        exit_code=record.exit_code,
        completion_reason=record.completion_reason,
        termination_source=record.termination_source,
        output_buffer=tracked.output.tail(tracked.output.rolling.end),
        notify_on_complete=record.notify_on_complete,
        watch_patterns=record.watch_patterns,
    )


class _UnownedEnvironment:
    """An environment that its owner releases."""

    def __init__(self, env: BaseEnvironment) -> None:
        self._run_bash = env._run_bash
        self.get_temp_dir = env.get_temp_dir

    def cleanup(self) -> None:
        """Do nothing: it is not ours."""


async def _start_in(
    registry: OurRegistry, env: BaseEnvironment, request: CommandRequest, session_key: str, task_id: str
) -> TrackedProcess:
    """Start a command in one of our own environments, or in a wrapper of the caller's that closes with the command."""
    if isinstance(env, SessionEnvironment):
        record = await registry.start(env.environment, request, session_key=session_key, task_id=task_id)
        return registry.get(record.id, None)
    environment = ShellEnvironment(
        BashRunnerEngine(_UnownedEnvironment(env), "environment"), SessionOptions(cwd=env.cwd)
    )
    await environment.open()
    async with AsyncExitStack() as on_error:
        on_error.push_async_callback(environment.close)
        record = await registry.start(environment, request, session_key=session_key, task_id=task_id)
        on_error.pop_all()
    tracked = registry.get(record.id, None)

    async def close_at_the_end() -> None:
        await tracked.done.wait()
        await environment.close()

    registry.run_chore(close_at_the_end())
    return tracked


ProcessRegistry = CompatProcessRegistry
process_registry = CompatProcessRegistry()
