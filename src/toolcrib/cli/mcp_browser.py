"""A login in the browser of the person at this terminal, or of anybody who is given the address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import webbrowser
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import parse_qs, urlsplit

from toolcrib.cli.output import note, person_present, print_line
from toolcrib.config.environment import environment
from toolcrib.core.attempt import attempt
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.redirect_listener import RedirectListener, has_state

MAX_LINE_BYTES = 64 * 1024


class BrowserLogin:
    """Shows where to log in, and waits until the browser comes back or its last address is pasted."""

    def __init__(self, server: str, listener: RedirectListener, *, opens_browser: bool, seconds: float) -> None:
        self._server = server
        self._listener = listener
        self._opens_browser = opens_browser
        self._seconds = seconds

    async def __call__(self, address: str) -> str:
        """The address that the browser was sent back to."""
        state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        print_line(f"Log in here: {address}")
        sys.stdout.flush()
        has_opened = self._opens_browser and person_present() and _open(address)
        is_pasting = person_present() and sys.platform != "win32"
        if has_opened:
            note("Your browser has been opened. Waiting for it to come back.")
        if is_pasting:
            note("On another machine the last page will not load; paste its address here and press Enter.")
        waiting = [asyncio.ensure_future(self._listener.answer(state))]
        if is_pasting:
            waiting.append(asyncio.ensure_future(_pasted(state)))
        try:
            done, _ = await asyncio.wait(waiting, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if not done:
            raise ServerFailed(
                f"no login came within {self._seconds:g} seconds; try again, after "
                f"`toolcrib mcp logout {shlex.quote(self._server)}` if the page did not know toolcrib"
            )
        return done.pop().result()


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether a browser can be opened that does not take this terminal."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in environ
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY") or environ.get("BROWSER"))


def _open(address: str) -> bool:
    # Whatever browsers there are, and however they fail: the address stands on the screen.
    return has_browser(environment()) and bool(attempt(webbrowser.open, address).value)


async def _pasted(state: str) -> str:
    """The first line typed that is an address with this state."""
    async with contextlib.aclosing(_lines()) as lines:
        async for line in lines:
            text = line.strip()
            if has_state(text, state):
                return text
            if text:
                note("That address does not belong to this login; paste all of the one that the browser ended at.")
    # Nothing more is typed, but the browser may still come.
    forever: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await forever


async def _lines() -> AsyncGenerator[str, None]:
    """What is typed, line by line."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        piece = b""
        with contextlib.suppress(OSError):
            piece = os.read(descriptor, MAX_LINE_BYTES)
        if not piece:
            loop.remove_reader(descriptor)
        pieces.put_nowait(piece)

    loop.add_reader(descriptor, read)
    try:
        while piece := await pieces.get():
            yield piece.decode("utf-8", "replace")
    finally:
        loop.remove_reader(descriptor)
