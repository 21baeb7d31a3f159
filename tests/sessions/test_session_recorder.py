"""Calls with effects that run through the pipeline are recorded in their session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, ToolCall
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore

READS = (Effect("read", "/tmp/notes"),)


async def test_a_call_is_on_record_while_it_runs(
    make_runtime: Callable[..., Runtime], add_tool: Callable[..., None], store: SessionStore
) -> None:
    """The handler finds its own start recorded; afterwards the record has its end."""
    seen: list[str] = []
    session = store.create()

    def notes(args: dict[str, Any], **_: Any) -> str:
        seen.extend(f"{call.tool} {call.status} {call.arguments}" for call in store.calls(session.id))
        return "noted"

    runtime = make_runtime(recorder=store.recorder())
    add_tool(runtime, "notes", notes, effects=READS)
    ctx = msgspec.structs.replace(runtime.context(), session_id=session.id)

    await runtime.call_many([ToolCall(id="c1", name="notes", arguments='{"n": 1}')], ctx=ctx)

    assert seen == ["notes started {'n': 1}"]
    (call,) = store.calls(session.id)
    assert (call.call_id, call.status, call.effects) == ("c1", "ok", READS)
    assert call.result is not None
    assert call.result.text == "noted"


async def test_calls_of_a_batch_and_calls_that_tools_make_have_their_own_records(
    make_runtime: Callable[..., Runtime], add_tool: Callable[..., None], store: SessionStore
) -> None:
    """Each call finishes its own record, even if several share an id or run at once."""
    session = store.create()

    async def outer(args: dict[str, Any], *, ctx: ToolContext, **_: Any) -> str:
        return (await ctx.services.call(ctx, "inner", {})).text

    runtime = make_runtime(recorder=store.recorder())
    add_tool(runtime, "outer", outer, effects=READS, is_async=True)
    add_tool(runtime, "inner", lambda args, **_: "inside", effects=READS)
    ctx = msgspec.structs.replace(runtime.context(), session_id=session.id)

    await runtime.call_many([ToolCall(id=f"c{n}", name="outer", arguments={}) for n in range(5)], ctx=ctx)

    recorded = [(call.call_id, call.tool, call.status) for call in store.calls(session.id)]
    assert sorted(recorded) == [(f"c{n}", tool, "ok") for n in range(5) for tool in ("inner", "outer")]


async def test_an_effect_does_not_run_when_its_start_cannot_be_written(
    make_runtime: Callable[..., Runtime], add_tool: Callable[..., None], store: SessionStore
) -> None:
    """A store that cannot write refuses the call before anything happens."""
    ran: list[str] = []
    session = store.create()
    runtime = make_runtime(recorder=store.recorder())
    add_tool(runtime, "notes", lambda args, **_: ran.append("ran") or "ran", effects=READS)
    ctx = msgspec.structs.replace(runtime.context(), session_id=session.id)
    with store.database.read() as connection:
        connection.execute("PRAGMA query_only = ON")

    result = await runtime.call("notes", {}, ctx=ctx)

    assert result.is_error
    assert "cannot write" in result.error_message
    assert ran == []
