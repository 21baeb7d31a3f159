"""Tells an event loop that a process has ended: by its pidfd on Linux, by kqueue elsewhere; never by a thread."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable


def on_exit(pid: int, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` on the running loop when the process has ended (soon, if it has already).

    Works for any process of this machine, not only for children. Returns what stops watching.
    """
    loop = asyncio.get_running_loop()
    try:
        watched = _Watched(pid)
    except ProcessLookupError:
        handle = loop.call_soon(callback)
        return handle.cancel

    def stop() -> None:
        if watched.is_open:
            loop.remove_reader(watched.descriptor)
            watched.close()

    def ended() -> None:
        stop()
        callback()

    loop.add_reader(watched.descriptor, ended)
    return stop


class _Watched:
    """A descriptor that becomes readable when a process ends."""

    def __init__(self, pid: int) -> None:
        self.is_open = True
        if sys.platform == "linux":
            self.descriptor = os.pidfd_open(pid)
            self._close: Callable[[], None] = lambda: os.close(self.descriptor)
        else:
            queue = select.kqueue()
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            try:
                queue.control([event], 0, 0)
            except OSError:
                queue.close()
                raise
            self.descriptor = queue.fileno()
            self._close = queue.close

    def close(self) -> None:
        self.is_open = False
        self._close()
