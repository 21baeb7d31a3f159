"""The tabs of one browser, and what happens in them: dialogs, downloads, file choosers, console messages, requests.

Everything runs on the loop of the browser service. Whatever a page does at a bad moment (an alert while it is read, a
flood of windows) ends up here as an event that the next report tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from playwright.async_api import (
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Download,
    Error,
    FileChooser,
    Page,
    Request,
    WebError,
)

from toolcrib.config.browser_settings import BrowserSettings
from toolcrib.core.types import JsonObject

T = TypeVar("T")

KEPT_MESSAGES = 200
KEPT_NOTES = 200
KEPT_REQUESTS = 200
"""So many requests that ended may pile up before they are released."""
MANY_DOCUMENTS = 10
"""A page that loads more than that before it is there, frames included, is not just slow."""
MAX_MESSAGE_CHARS = 500
MAX_HELD_DOWNLOADS = 10
FLOOD_DIALOGS = 30
"""So many dialogs in a row are a flood; then they are dismissed until the next navigation."""
_HOST = re.compile(r"[a-z]+://(?:[^/?#]*@)?(\[[^\]]*\]|[^/?#:]*).*", re.DOTALL)
_ICON = "/favicon.ico"
AWAITED_TYPES = frozenset({"document", "xhr", "fetch", "script", "stylesheet"})
"""Requests that a page waits for, as far as anyone can tell."""


class DialogOpened(Exception):
    """A dialog opened while something waited for the page, which stands still until the dialog is answered."""


class HeldDialog(msgspec.Struct, kw_only=True):
    """A dialog that waits for an answer."""

    id: str
    dialog: Dialog
    tab: Tab
    timer: asyncio.TimerHandle

    def as_json(self) -> JsonObject:
        shown: JsonObject = {
            "id": self.id,
            "type": self.dialog.type,
            "message": self.dialog.message[:MAX_MESSAGE_CHARS],
        }
        default = self.dialog.default_value[:MAX_MESSAGE_CHARS]
        return {**shown, "default_value": default} if self.dialog.type == "prompt" else shown


class LogEntry(msgspec.Struct, frozen=True):
    """One console message or script error of a page."""

    kind: str
    text: str


class ReleasedObject:
    """Takes the place of an object of playwright that nobody needs any more, until the driver drops it, too.

    playwright keeps every request of a page with its response, about 15 KB, until the page is closed or there are
    10,000; it has no way to give them back. A message of the driver about an object that is unknown would be an error.
    """

    __slots__ = ("_names", "_places")

    def __init__(self, names: Sequence[str], *places: dict[str, Any]) -> None:
        """`names` are its own and those of what belongs to it: the driver drops these without a word."""
        self._names = names
        self._places = places
        for place in places:
            place[names[0]] = self

    def _dispose(self, _reason: str | None) -> None:
        """The driver dropped it, or the page is closed."""
        for place in self._places:
            for name in self._names:
                place.pop(name, None)


class Tab:
    """One page, and what is known about it."""

    def __init__(self, number: int, page: Page) -> None:
        self.number = number
        self.page = page
        self.log: deque[LogEntry] = deque(maxlen=KEPT_MESSAGES)
        self.chooser: FileChooser | None = None
        self.has_crashed = False
        self.suspended: asyncio.Task[Any] | None = None
        """An act that a dialog interrupted; it goes on when the dialog is answered."""
        self.hosts: set[str] = set()
        """The hosts that its pages asked for since the last act."""
        self.asked: set[str] = set()
        """The kinds of requests since then that it waits for."""
        self._documents = 0
        self.never_stops = False
        """Whether it navigated without end until the time was up."""
        self._awaited: set[Request] = set()
        self._ended: list[Request] = []
        self._released: dict[str, ReleasedObject] = {}
        self._changed = asyncio.Event()

    @property
    def id(self) -> str:
        return f"tab:{self.number}"

    def forget_chooser(self) -> None:
        self.chooser = None

    def request_started(self, request: Request) -> None:
        self.hosts.add(host_of(request.url))
        self._documents += request.is_navigation_request()
        if request.resource_type in AWAITED_TYPES:
            self.asked.add(request.resource_type)
            self._awaited.add(request)

    def request_ended(self, request: Request) -> None:
        self._awaited.discard(request)
        self._changed.set()
        self._ended.append(request)
        if len(self._ended) > KEPT_REQUESTS:
            # The newest may still be the beginning of a redirect.
            self._release(KEPT_REQUESTS // 2)

    def forget_requests(self) -> None:
        """Some never end, or end unnoticed in a page that is gone."""
        self._awaited.clear()

    def _release(self, count: int) -> None:
        """Free the oldest requests that ended, with their responses."""
        for request in self._ended[:count]:
            kept: Any = request._impl_obj
            objects = kept._connection._objects
            names = [kept._guid, *kept._objects]
            # Otherwise its page is closed.
            if kept._guid in objects:
                kept._dispose("gc")
                ReleasedObject(names, objects, self._released)
                for name in names[1:]:
                    ReleasedObject([name], objects, self._released)
        del self._ended[:count]

    def closed(self) -> None:
        """The page is gone; the driver says nothing about its requests any more."""
        for one in list(self._released.values()):
            one._dispose(None)
        self._ended.clear()
        self._awaited.clear()

    def begin(self) -> None:
        """An act begins; what happened before it does not count."""
        self.forget_requests()
        self._release(len(self._ended))
        self.hosts.clear()
        self.asked.clear()
        self._documents = 0

    def timed_out(self) -> None:
        """A navigation did not come to its end."""
        self.never_stops = self._documents > MANY_DOCUMENTS

    @property
    def is_loading(self) -> bool:
        return bool(self._awaited)

    async def loaded(self, deadline: float) -> bool:
        """Wait until no request is awaited; False at the deadline."""
        while self._awaited:
            self._changed.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return True


class TabSet:
    """Listens to a browser context."""

    def __init__(self, context: BrowserContext, settings: BrowserSettings, *, can_answer: bool = True) -> None:
        """`can_answer`: whether the model has a tool to answer dialogs."""
        self.context = context
        self.can_answer = can_answer
        self.tabs: list[Tab] = []
        self.current: Tab | None = None
        self.dialogs: dict[str, HeldDialog] = {}
        self.downloads: list[Download] = []
        self.dismisses_all = False
        """While navigating away, no dialog may stand in the way."""
        self._settings = settings
        self._numbers = itertools.count(1)
        self._dialog_numbers = itertools.count(1)
        self._dialogs_in_a_row = 0
        self._notes: list[JsonObject] = []
        self._interrupts: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_closed = False
        self._added = asyncio.Event()
        self._downloading = asyncio.Event()
        for page in context.pages:
            self._add(page)
        self._listen()

    def _listen(self) -> None:
        self.context.on("page", self._add)
        self.context.on("console", self._on_console)
        self.context.on("weberror", self._on_error)
        self.context.on("dialog", self._on_dialog)
        self.context.on("close", self._on_close)

    def stop(self) -> None:
        """Forget everything; the browser is gone or about to be."""
        self.is_closed = True
        for held in self.dialogs.values():
            held.timer.cancel()
        self.dialogs.clear()
        for task in list(self._tasks):
            task.cancel()
        self._interrupt()

    # Notes for the next report

    def note(self, **what: Any) -> None:
        # A page may do anything any number of times before somebody looks.
        if len(self._notes) < KEPT_NOTES and what not in self._notes[-1:]:
            self._notes.append(what)

    def take_notes(self) -> list[JsonObject]:
        taken, self._notes = self._notes, []
        return taken

    # Waiting for the page, unless a dialog stops it

    async def unless_dialog(self, waiting: Coroutine[Any, Any, T]) -> T:
        """The result of what waits for the page; raises DialogOpened when a dialog makes that pointless."""
        task = asyncio.get_running_loop().create_task(waiting)
        try:
            if not await self.finishes(task):
                raise DialogOpened
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def finishes(self, task: asyncio.Task[Any]) -> bool:
        """Wait for a task or a dialog; returns whether the task is done."""
        if self.dialogs and not task.done():
            # It may need no script of the page; give it a chance to start.
            await asyncio.sleep(0)
        interrupt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._interrupts.add(interrupt)
        try:
            if not self.dialogs:
                await asyncio.wait({task, interrupt}, return_when=asyncio.FIRST_COMPLETED)
            return task.done()
        finally:
            self._interrupts.discard(interrupt)
            interrupt.cancel()

    def _interrupt(self) -> None:
        for waiting in self._interrupts:
            if not waiting.done():
                waiting.set_result(None)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something about an event, without anybody waiting for it."""
        task = asyncio.get_running_loop().create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Tabs

    def _add(self, page: Page) -> None:
        if len(self.tabs) >= self._settings.max_tabs:
            self.note(kind="window_closed", text=f"a page opened more than {self._settings.max_tabs} tabs")
            self.spawn(page.close())
            return
        tab = Tab(next(self._numbers), page)
        self.tabs.append(tab)
        if self.current is not None:
            self.note(kind="new_tab", tab=tab)
        self.current = tab
        self._added.set()
        page.on("request", tab.request_started)
        page.on("requestfinished", tab.request_ended)
        page.on("requestfailed", tab.request_ended)
        page.on("download", self._on_download)
        page.on("filechooser", self._on_chooser)
        page.on("crash", lambda _: self._on_crash(tab))
        page.on("close", lambda _: self._remove(tab))

    async def another(self, count: int, seconds: float) -> None:
        """Wait until there are more tabs than this; not longer than some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self.tabs) <= count:
                    self._added.clear()
                    await self._added.wait()

    async def download_begins(self, seconds: float) -> None:
        """Wait until a download is known; not longer than some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.downloads:
                    self._downloading.clear()
                    await self._downloading.wait()

    def drop(self, tab: Tab) -> None:
        """Close a tab without waiting for it: a page that is busy without end takes its time."""
        self._remove(tab)
        self.spawn(tab.page.close())

    def _remove(self, tab: Tab) -> None:
        if tab not in self.tabs:
            return
        self.tabs.remove(tab)
        tab.closed()
        for held in [one for one in self.dialogs.values() if one.tab is tab]:
            self._release(held)
        if self.current is tab:
            self.current = self.tabs[-1] if self.tabs else None
            self.note(kind="tab_closed", text=tab.id)

    def _on_crash(self, tab: Tab) -> None:
        tab.has_crashed = True
        self._interrupt()

    def _on_close(self, _: BrowserContext) -> None:
        self.is_closed = True
        self._interrupt()

    def of(self, page: Page | None) -> Tab | None:
        return next((tab for tab in self.tabs if tab.page == page), None)

    # Dialogs

    def _on_dialog(self, dialog: Dialog) -> None:
        tab = self.of(dialog.page)
        self._dialogs_in_a_row += 1
        policy = self._settings.dialog_policy
        if self.dismisses_all and tab is not None and self._dialogs_in_a_row > FLOOD_DIALOGS:
            # A page like that never finishes loading. Holding the dialog tells whoever navigates, who closes the page.
            self._hold(dialog, tab)
            return
        if dialog.type == "beforeunload" or (policy == "auto_accept" and not self.dismisses_all):
            # Leaving was decided already.
            answer: Callable[[], Awaitable[None]] = dialog.accept
        elif self.dismisses_all or tab is None or policy == "auto_dismiss" or not self.can_answer:
            answer = dialog.dismiss
        elif self._dialogs_in_a_row > FLOOD_DIALOGS:
            answer = dialog.dismiss
            if self._dialogs_in_a_row == FLOOD_DIALOGS + 1:
                self.note(kind="dialog_flood", text="the page opens one dialog after the other; navigate away from it")
        else:
            self._hold(dialog, tab)
            return
        if self._dialogs_in_a_row <= FLOOD_DIALOGS and dialog.type != "beforeunload":
            how = "accepted" if answer == dialog.accept else "dismissed"
            self.note(kind="dialog", text=f"{dialog.type} {dialog.message[:MAX_MESSAGE_CHARS]!r} was {how}")
        self.spawn(_answered(answer))

    def _hold(self, dialog: Dialog, tab: Tab) -> None:
        dialog_id = f"d{next(self._dialog_numbers)}"
        timer = asyncio.get_running_loop().call_later(self._settings.dialog_timeout_s, self._expire, dialog_id)
        self.dialogs[dialog_id] = HeldDialog(id=dialog_id, dialog=dialog, tab=tab, timer=timer)
        self._interrupt()

    def _expire(self, dialog_id: str) -> None:
        held = self.dialogs.get(dialog_id)
        if held is not None:
            self.note(kind="dialog", text=f"{held.dialog.type} was dismissed, because nobody answered it")
            self.spawn(self.answer(held, accept=False))

    async def answer(self, held: HeldDialog, *, accept: bool, text: str | None = None) -> None:
        if self._release(held):
            if not accept:
                await held.dialog.dismiss()
            elif text is None:
                await held.dialog.accept()
            else:
                await held.dialog.accept(text)

    def _release(self, held: HeldDialog) -> bool:
        held.timer.cancel()
        return self.dialogs.pop(held.id, None) is not None

    def navigated(self) -> None:
        """A new page may open dialogs again."""
        self._dialogs_in_a_row = 0

    # Other events

    def _on_download(self, download: Download) -> None:
        if len(self.downloads) >= MAX_HELD_DOWNLOADS:
            self.note(kind="download_cancelled", text=download.suggested_filename[:100])
            self.spawn(download.cancel())
            return
        self.downloads.append(download)
        self._downloading.set()

    def _on_chooser(self, chooser: FileChooser) -> None:
        tab = self.of(chooser.page)
        if tab is not None:
            tab.chooser = chooser

    def _on_console(self, message: ConsoleMessage) -> None:
        for handle in message.args:
            # The driver would keep them, and the values that they stand for.
            self.spawn(handle.dispose())
        tab = self.of(message.page)
        text, where = message.text, str(message.location.get("url", ""))
        if text.startswith("Failed to load resource"):
            text = f"{text} {where[:200]}"
        # Browsers ask every site for an icon by themselves.
        if tab is not None and not text.endswith(_ICON):
            self._log(tab, message.type, text)

    def _on_error(self, error: WebError) -> None:
        tab = self.of(error.page)
        if tab is not None:
            self._log(tab, "exception", str(error.error))

    def _log(self, tab: Tab, kind: str, text: str) -> None:
        entry = LogEntry(kind, text[:MAX_MESSAGE_CHARS])
        tab.log.append(entry)
        if kind in ("error", "exception"):
            self.note(kind="console_error", text=entry.text)


def host_of(url: str) -> str:
    """The host of an address, without its port."""
    return _HOST.sub(r"\1", url).strip("[]").lower()


async def _quietly(work: Awaitable[Any]) -> None:
    # The page or the browser may be gone by now, and with it the reason.
    with contextlib.suppress(Error):
        await work


async def _answered(answer: Callable[[], Awaitable[None]]) -> None:
    await answer()
