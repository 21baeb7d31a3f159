"""One call to a server, on its way from the caller's loop to the loop of the hub and back."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import copy_context
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import JsonObject
from toolcrib.mcp.failures import ConnectionLost, RequestFailed, ServerFailed
from toolcrib.mcp.owner import ServerOwner, Work
from toolcrib.mcp.untrusted_text import one_line
from toolcrib.registry.results import safe_error_text, tool_error

PROGRESS_CHARS = 300


class Call:
    """Made on the caller's loop; run, and cancelled, on the loop of the hub."""

    __slots__ = ("_around", "_caller", "ctx", "is_cancelled", "owner", "task", "work")

    def __init__(self, owner: ServerOwner, work: Work, ctx: ToolContext) -> None:
        self.owner = owner
        self.work = work
        self.ctx = ctx
        self.task: asyncio.Task[Any] | None = None
        self.is_cancelled = False
        self._caller = asyncio.get_running_loop()
        # Who watches several calls at once tells them apart by the current context.
        self._around = copy_context()

    def cancel_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody waits any more: the server is told, on the loop of the hub."""
        with contextlib.suppress(RuntimeError):  # A hub that is closed has ended the call.
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self.is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    def tell(self, progress: float, total: float | None, message: str | None) -> None:
        """Tells the caller, on its own loop, how far the server is."""
        share = f"{_number(progress)} of {_number(total)}" if total else _number(progress)
        text = f"{one_line(message, PROGRESS_CHARS)} ({share})" if message else share
        with contextlib.suppress(RuntimeError):  # The caller's loop may be closed by now.
            self._caller.call_soon_threadsafe(self.ctx.progress, text, context=self._around)


async def answered(call: Call) -> str | JsonObject:
    """The answer to a call, in the form of a handler's; every failure is an answer too."""
    if call.is_cancelled:
        raise asyncio.CancelledError
    call.task = asyncio.current_task()
    server, settings = call.owner.server.name, call.owner.server.settings
    tell = call.tell if call.ctx.on_progress is not None else None
    try:
        return await call.owner.call(call.work, call.ctx, tell)
    except TimeoutError:
        seconds = settings.timeout
        return _error(f"the MCP server {server!r} gave no answer within {seconds:g} seconds; the call was cancelled")
    except ConnectionLost as error:
        return _error(
            f"the connection to the MCP server {server!r} was lost during the call ({error}); it is not known whether "
            "the call was carried out, so look before you repeat it"
        )
    except ServerFailed as error:
        return _error(f"the MCP server {server!r} cannot be used now, and nothing was sent to it: {error}")
    except RequestFailed as error:
        return _error(f"the MCP server {server!r} did not carry out the call: {error}")


def _number(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return "much"  # An integer may have thousands of digits.


def _error(message: str) -> str:
    return tool_error(safe_error_text(message))
