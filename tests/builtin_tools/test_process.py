"""The process tool, called as a model calls it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.core.environments import CommandRequest
from toolcrib.processes.registry import ProcessRegistry
from toolcrib.processes.service import ProcessService, session_key_of
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover
from toolcrib.testing.environments import FakeEnvironment, ScriptedReply
from toolcrib.tools.process import effects_of

MakeRuntime = Callable[..., Runtime]


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[ProcessRegistry]:
    registry = ProcessRegistry(tmp_path / "processes")
    yield registry
    await registry.close()


def runtime_with(make_runtime: MakeRuntime, processes: ProcessRegistry, **options: Any) -> Runtime:
    service = ProcessService(processes, asyncio.get_running_loop())
    return make_runtime(services={"processes": service}, registry=ToolRegistry(parent=default_registry), **options)


async def call(runtime: Runtime, session: str = "s", **args: Any) -> Any:
    result = await runtime.call("process", args, ctx=runtime.context(session_id=session))
    return json.loads(result.text)


async def test_a_process_is_polled_and_killed(make_runtime: MakeRuntime, processes: ProcessRegistry) -> None:
    """The tool reaches the processes of its session through the runtime's service."""
    fake = FakeEnvironment(default=ScriptedReply(output="up\n", exit_code=None))
    record = await processes.start(fake, CommandRequest(command="serve"), session_key="s")
    runtime = runtime_with(make_runtime, processes)

    polled = await call(runtime, action="poll", session_id=record.id)
    killed = await call(runtime, action="kill", session_id=record.id)

    assert (polled["output"], polled["status"]) == ("up\n", "running")
    assert killed["status"] == "killed"


async def test_another_session_gets_the_error_for_an_unknown_process(
    make_runtime: MakeRuntime, processes: ProcessRegistry
) -> None:
    """Whose process it is cannot be found out."""
    fake = FakeEnvironment(default=ScriptedReply(exit_code=None))
    record = await processes.start(fake, CommandRequest(command="serve"), session_key="s")
    runtime = runtime_with(make_runtime, processes)

    others = await call(runtime, "other", action="kill", session_id=record.id)
    unknown = await call(runtime, "other", action="kill", session_id="proc_0123456789ab")

    assert "error" in others
    assert str(others).replace(record.id, "ID") == str(unknown).replace("proc_0123456789ab", "ID")
    assert processes.has_active("s")


async def test_a_dangerous_line_for_a_running_shell_is_asked_about(
    make_runtime: MakeRuntime, processes: ProcessRegistry
) -> None:
    """What is typed into a process passes the same gate as a command; denied, it never arrives."""
    fake = FakeEnvironment(default=ScriptedReply(exit_code=None))
    record = await processes.start(fake, CommandRequest(command="bash"), session_key="s")
    approver = ScriptedApprover("deny", "once")
    runtime = runtime_with(make_runtime, processes, approver=approver)
    line = {"action": "submit", "session_id": record.id, "data": "rm -rf /srv/data"}

    denied = await call(runtime, **line)
    written = fake.executions[record.id].written
    allowed = await call(runtime, **line)

    assert "error" in denied
    assert written == b""
    assert allowed["status"] == "ok"
    assert fake.executions[record.id].written == b"rm -rf /srv/data\n"
    assert len(approver.asked) == 2


def test_only_typing_counts_as_running_something() -> None:
    """Looking and waiting have no effect; ending is one on the session's own processes, which plan mode refuses."""
    for action in ("list", "poll", "log", "wait"):
        assert effects_of({"action": action, "data": "rm -rf /"}, None) == ()  # type: ignore[arg-type]


def test_the_session_is_the_one_of_the_call(make_runtime: MakeRuntime) -> None:
    """A call without a session belongs to its task, and one without either to the default session."""
    runtime = make_runtime()

    assert session_key_of(runtime.context(session_id="a", task_id="b")) == "a"
    assert session_key_of(runtime.context(task_id="b")) == "b"
    assert session_key_of(runtime.context()) == "default"


async def test_arguments_are_checked_before_anything_happens(
    make_runtime: MakeRuntime, processes: ProcessRegistry
) -> None:
    """An unknown action, or a negative number, is refused with the field's name."""
    runtime = runtime_with(make_runtime, processes)

    for args in ({"action": "dance"}, {"action": "log", "session_id": "x", "offset": -1}, {}):
        result = await runtime.call("process", args)
        assert result.is_error
