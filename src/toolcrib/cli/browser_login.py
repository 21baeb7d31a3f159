"""Logs in with a browser: shows the address, and takes the redirect from here or from another machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import webbrowser
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import parse_qs, urlsplit

from toolcrib.cli.output import is_interactive, note, print_line
from toolcrib.config.environment import environment
from toolcrib.web.redirect_listener import RedirectListener, has_state
from toolcrib.web.token_store import LoginFailed

MAX_LINE_BYTES = 64 * 1024
LOGIN_SECONDS = 300.0


class BrowserLogin:
    """Shows the login address, and waits for the browser's redirect or for a pasted address."""

    def __init__(self, listener: RedirectListener, *, opens_browser: bool, seconds: float, advice: str = "") -> None:
        """`advice` completes what is said when nobody logs in."""
        self._listener = listener
        self._opens_browser = opens_browser
        self._seconds = seconds
        self._advice = advice

    async def __call__(self, address: str) -> str:
        """The address that the browser was redirected to."""
        state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        print_line(f"Log in here: {address}")
        sys.stdout.flush()
        has_opened = self._opens_browser and is_interactive() and _open(address)
        is_pasting = is_interactive() and sys.platform != "win32"
        if has_opened:
            note("Opened your browser; waiting for the login.")
        if is_pasting:
            note("If you log in on another machine, the last page will not load; paste its address here.")
        waiting = [asyncio.ensure_future(self._listener.answer(state))]
        if is_pasting:
            waiting.append(asyncio.ensure_future(_pasted(state)))
        try:
            done, _ = await asyncio.wait(waiting, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if not done:
            raise LoginFailed(f"no login within {self._seconds:g} seconds; try again{self._advice}")
        return done.pop().result()


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether there is a graphical browser."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in environ
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY") or environ.get("BROWSER"))


def _open(address: str) -> bool:
    # Whatever the browser does, the address is on the screen.
    if not has_browser(environment()):
        return False
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False


async def _pasted(state: str) -> str:
    """The first typed line that is an address with this state."""
    async with contextlib.aclosing(_lines()) as lines:
        async for line in lines:
            text = line.strip()
            if has_state(text, state):
                return text
            if text:
                note("That address does not belong to this login; paste the whole address of the last page.")
    # Input has ended, but the browser may still be redirected.
    forever: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await forever


async def _lines() -> AsyncGenerator[str, None]:
    """The typed lines."""
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
