"""The events of a run as an async iterator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from toolcrib.agent.events import AnyEvent

OnEvent = Callable[[AnyEvent], None]


async def streamed(run: Callable[[OnEvent], Coroutine[Any, Any, Any]]) -> AsyncGenerator[AnyEvent, None]:
    """What `run` tells the watcher that it is given, until it ends. Leaving the loop ends the run."""
    events: asyncio.Queue[AnyEvent | None] = asyncio.Queue()
    loop, home_thread = asyncio.get_running_loop(), threading.get_ident()

    def put(event: AnyEvent) -> None:
        if threading.get_ident() == home_thread:
            events.put_nowait(event)
        else:
            # What a tool in a thread says must also wake the loop.
            loop.call_soon_threadsafe(events.put_nowait, event)

    task = asyncio.ensure_future(run(put))
    task.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
