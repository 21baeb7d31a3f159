"""One client of an SDK for each event loop: connections that one loop has made cannot be used on another."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

CLOSE_SECONDS = 1.0
"""How long another loop is waited for, which may be busy."""


class Closable(Protocol):
    """A client that holds connections."""

    async def close(self) -> Any: ...


ClientT = TypeVar("ClientT", bound=Closable)


class LoopClients(Generic[ClientT]):
    """Makes a client when a loop first asks for one, and gives it the same one again."""

    def __init__(self, make: Callable[[], ClientT], package: str) -> None:
        self._make = make
        self._package = package
        self._by_loop: dict[asyncio.AbstractEventLoop, ClientT] = {}

    async def current(self) -> ClientT:
        """The client of the loop that runs here."""
        if self._package not in sys.modules:
            # Half a second or more, in which whoever watches this loop must not stand still.
            await asyncio.to_thread(_load, self._package)
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            for ended in [one for one in list(self._by_loop) if one.is_closed()]:
                self._by_loop.pop(ended, None)
            found = self._by_loop[loop] = self._make()
        return found

    async def close(self) -> None:
        """Close all connections, each on the loop that made it; those of a loop that is over are gone with it."""
        opened, self._by_loop = self._by_loop, {}
        here = asyncio.get_running_loop()
        for loop, client in opened.items():
            if loop is here:
                await client.close()
            elif loop.is_running():
                there = asyncio.run_coroutine_threadsafe(client.close(), loop)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(there), CLOSE_SECONDS)


def _load(package: str) -> None:
    """Import an SDK; whoever makes a client with it says what is wrong when it is missing."""
    with contextlib.suppress(ImportError):
        importlib.import_module(package)
