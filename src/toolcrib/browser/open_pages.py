"""The open pages of one browser: which one is current, and waiting for pages that hang, crash or open dialogs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

from playwright.async_api import BrowserContext, Error

from toolcrib.browser.proxy import GuardProxy
from toolcrib.browser.tabs import DialogOpened, Tab, TabSet, host_of
from toolcrib.config.browser_settings import BrowserSettings
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject

T = TypeVar("T")

PROBE_SECONDS = 3.0
MAX_ADDRESS_CHARS = 2_000


class ActFailed(ToolcribError):
    """An act that did not happen; `details` may have a fresh snapshot."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details: JsonObject = details


class BrowserLost(ToolcribError):
    """The browser died or hangs, and must be replaced."""


class OpenBrowser(Protocol):
    """A browser that runs here or elsewhere."""

    @property
    def context(self) -> BrowserContext: ...

    @property
    def is_alive(self) -> bool: ...

    async def close(self) -> None: ...

    async def kill(self) -> None: ...


class OpenPages:
    """The tabs of one browser. Calls come one at a time."""

    def __init__(
        self, browser: OpenBrowser, settings: BrowserSettings, proxy: GuardProxy | None, *, can_answer: bool
    ) -> None:
        self.browser = browser
        self.settings = settings
        self.proxy = proxy
        self.tabs = TabSet(browser.context, settings, can_answer=can_answer)

    @property
    def is_lost(self) -> bool:
        return self.tabs.is_closed or not self.browser.is_alive

    async def close(self, *, is_hung: bool = False) -> None:
        self.tabs.stop()
        try:
            await (self.browser.kill() if is_hung else self.browser.close())
        finally:
            for tab in self.tabs.tabs:
                tab.closed()
            if self.proxy is not None:
                await self.proxy.close()

    @property
    def answer_ms(self) -> float:
        """How long a page may take to answer."""
        return self.settings.command_timeout * 1_000

    def begin(self, tab: Tab) -> None:
        """An act begins; what happened before does not count."""
        tab.begin()
        if self.proxy is not None:
            self.proxy.refusals.clear()

    def current(self) -> Tab:
        """The tab that the model works with; raises BrowserLost, or ActFailed if there is none."""
        if self.tabs.current is None:
            if self.is_lost:
                raise BrowserLost("the browser died")
            raise ActFailed("no page is open; call browser_navigate first")
        return self.tabs.current

    def ready(self) -> Tab:
        """The current tab, if it can be used now."""
        tab = self.current()
        if tab.has_crashed:
            raise ActFailed("the page crashed; open it again with browser_navigate")
        if self.tabs.dialogs:
            dialogs = [held.as_json() for held in self.tabs.dialogs.values()]
            raise ActFailed(
                "a dialog is open and the page waits for it; answer with browser_dialog, or navigate away",
                pending_dialogs=dialogs,
            )
        return tab

    async def new_tab(self) -> Tab:
        await self.bounded(self.tabs.context.new_page(), PROBE_SECONDS)
        self.tabs.take_notes()
        return self.current()

    async def replace(self, tab: Tab) -> Tab:
        """A new tab in the place of one that cannot be used any more."""
        new = await self.new_tab()
        self.tabs.drop(tab)
        self.tabs.current = new
        self.tabs.take_notes()
        return new

    async def read(self, tab: Tab, waiting: Awaitable[T]) -> T:
        """What a page answers; raises DialogOpened, and BrowserLost if it does not answer at all."""
        try:
            async with asyncio.timeout(self.settings.command_timeout):
                return await self.unless_dialog(tab, _as_coroutine(waiting))
        except TimeoutError:
            raise BrowserLost("the page hangs") from None

    async def unless_dialog(self, tab: Tab, waiting: Coroutine[Any, Any, T]) -> T:
        """What was waited for; a page that is gone ends the wait as a dialog does, and is not taken for one."""
        try:
            return await self.tabs.unless_dialog(waiting)
        except DialogOpened as interrupted:
            self.require_page(tab, interrupted)
            raise

    async def bounded(self, waiting: Awaitable[T], seconds: float) -> T:
        """What the browser answers; one that does not answer within the time of its own is lost."""
        try:
            async with asyncio.timeout(seconds + PROBE_SECONDS):
                return await waiting
        except TimeoutError:
            raise BrowserLost("the browser hangs") from None

    async def require_answer(self, tab: Tab) -> None:
        """Raises BrowserLost if the page does not even answer a trivial question."""
        if tab.has_crashed or self.tabs.dialogs:
            return
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await tab.page.evaluate("1")
        except TimeoutError:
            raise BrowserLost("the page hangs") from None
        except Error as error:
            self.require_page(tab, error)

    def require_page(self, tab: Tab, error: Exception) -> None:
        """Raises BrowserLost if the browser is gone, and ActFailed if the page is."""
        if self.is_lost or "Connection closed" in str(error):
            raise BrowserLost("the browser died") from error
        if tab.has_crashed:
            raise ActFailed("the page crashed; open it again with browser_navigate") from error

    def why_not(self, url: str, error: Error) -> str:
        """Why an address could not be opened; raises BrowserLost."""
        if self.is_lost or "Connection closed" in str(error):
            raise BrowserLost("the browser died") from error
        # With an invalid certificate, a refused request was another one: Chromium looks for the issuer's.
        if self.proxy is not None and self.proxy.refusals and "ERR_CERT" not in str(error):
            host, reason = next(
                (one for one in reversed(self.proxy.refusals) if one[0] == host_of(url)), self.proxy.refusals[-1]
            )
            return f"{host!r} is out of reach: {reason}"
        return f"{site_of(url)!r} could not be opened: {reason_of(error)}"


async def _as_coroutine(waiting: Awaitable[T]) -> T:
    return await waiting


def site_of(url: str) -> str:
    """The host of an address with its port, as effects and messages name it."""
    return re.sub(r"^[a-z]+://([^/?#]*).*", r"\1", url, flags=re.DOTALL).rpartition("@")[2][:200]


def shown_address(url: str) -> str:
    """An address in a report; pages can make theirs as long as they like."""
    return url if len(url) <= MAX_ADDRESS_CHARS else f"{url[:MAX_ADDRESS_CHARS]}…"


def reason_of(error: BaseException) -> str:
    """The reason in playwright's words, without its logs, except for what stood in the way."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    if not lines:
        return "it took too long"
    first = re.sub(r"^[A-Za-z]+\.[a-z_]+: ", "", lines[0])
    why = [line for line in lines[1:] if re.search(r"intercepts pointer|not (visible|enabled|stable|editable)", line)]
    return "; ".join([first, *why[-1:]])[:500]
