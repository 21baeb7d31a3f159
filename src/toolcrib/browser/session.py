"""The browser of one session: acts on its pages, and reports what changed after each action."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
from playwright.async_api import Error, FilePayload, Locator, Response
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolcrib.browser.open_pages import PROBE_SECONDS, ActFailed, OpenBrowser, OpenPages, reason_of, site_of
from toolcrib.browser.page_facts import (
    DRAW_MARKS,
    ELEMENT_FACTS,
    FOCUSED_ELEMENT,
    FOCUSED_FACTS,
    IMAGES,
    REMOVE_MARKS,
    SCROLL,
    ElementFacts,
)
from toolcrib.browser.page_observer import PageObserver, SaveText
from toolcrib.browser.proxy import REFUSED_HEADER, GuardProxy
from toolcrib.browser.snapshot import SnapshotNode, given_ref
from toolcrib.browser.tabs import DialogOpened, Tab, TabSet
from toolcrib.config.browser_settings import BrowserSettings
from toolcrib.core.types import JsonObject

ELEMENT_SECONDS = 5.0
"""How long an element may take to become usable; a covered or disabled one rarely does."""
DOWNLOADS = "Download is starting"
INTERRUPTED = "is interrupted by another navigation"
"""What playwright says about a navigation that became something else."""
MAX_IMAGES = 100
MAX_ALT_CHARS = 300
MAX_MARKS = 100
TAB_ADDRESS = re.compile(r"tab:(\d+)")
_NUMBERED = re.compile(r"(.*\S)\s*#(\d+)", re.DOTALL)


class BrowserSession:
    """One browser with its tabs. Calls come one at a time."""

    def __init__(
        self,
        browser: OpenBrowser,
        settings: BrowserSettings,
        save: SaveText,
        *,
        proxy: GuardProxy | None = None,
        can_answer: bool = True,
    ) -> None:
        self.browser = browser
        self._pages = OpenPages(browser, settings, proxy, can_answer=can_answer)
        self._observer = PageObserver(self._pages, save)
        self.upload_ref = ""
        """The element whose click opened a file chooser."""

    @property
    def tabs(self) -> TabSet:
        return self._pages.tabs

    @property
    def is_lost(self) -> bool:
        return self._pages.is_lost

    @property
    def host(self) -> str:
        """The host of the current page, for effects."""
        tab = self.tabs.current
        return site_of(tab.page.url) if tab is not None else ""

    async def close(self, *, is_hung: bool = False) -> None:
        await self._pages.close(is_hung=is_hung)

    def known_facts(self, target: str) -> ElementFacts | None:
        """The facts about an element, as far as they are known without asking the page. Quick, on any thread."""
        return self._observer.known_facts(target)

    # Acts

    async def navigate(self, url: str, seconds: float) -> JsonObject:
        """Open an address in the current tab."""
        tab = self._pages.current() if self.tabs.tabs else await self._pages.new_tab()
        if tab.has_crashed or tab.never_stops or self.tabs.dialogs:
            # A page may open the next dialog as soon as one is answered, without end; a new tab does not wait for it.
            tab = await self._pages.replace(tab)
        self._pages.begin(tab)
        self.tabs.dismisses_all = True
        try:
            try:
                response = await self._go(tab, url, seconds)
            except ActFailed as failed:
                if INTERRUPTED not in str(failed):
                    raise
                # The page before navigates without end; a new tab does not have it.
                tab = await self._pages.replace(tab)
                response = await self._go(tab, url, seconds)
        finally:
            self.tabs.dismisses_all = False
            self.tabs.navigated()
        report = await self._observer.report(tab, whole=True)
        if response is not None and response.status >= 400:
            report["status"] = response.status
        return report

    async def _go(self, tab: Tab, url: str, seconds: float) -> Response | None:
        try:
            loading = tab.page.goto(url, wait_until="domcontentloaded", timeout=seconds * 1_000)
            response = await self._pages.bounded(self._pages.unless_dialog(tab, loading), seconds)
        except DialogOpened:
            await self._pages.replace(tab)
            raise ActFailed(f"{site_of(url)!r} opens one dialog after the other, so its page was closed") from None
        except PlaywrightTimeout:
            tab.timed_out()
            await self._pages.require_answer(tab)
            raise ActFailed(
                f"{site_of(url)!r} did not answer within {seconds:g} seconds; try again, or another page"
            ) from None
        except Error as error:
            if DOWNLOADS in str(error):
                # The event may arrive later than the end of the navigation.
                await self.tabs.download_begins(PROBE_SECONDS)
            if self.tabs.downloads:
                return None
            raise ActFailed(self._pages.why_not(url, error)) from error
        if response is not None and REFUSED_HEADER in response.headers:
            reason = (await response.text())[:500]
            raise ActFailed(f"{site_of(response.url)!r} is out of reach: {reason}")
        return response

    async def switch(self, number: int) -> JsonObject:
        """Make another tab the current one."""
        found = next((tab for tab in self.tabs.tabs if tab.number == number), None)
        if found is None:
            raise ActFailed(f"there is no tab:{number}; open are {', '.join(tab.id for tab in self.tabs.tabs)}")
        self.tabs.current = found
        self._pages.begin(found)
        await self._pages.bounded(found.page.bring_to_front(), PROBE_SECONDS)
        return await self._observer.report(found, whole=True)

    async def back(self, seconds: float) -> JsonObject:
        """Go back; from the first page of a tab, to the tab before."""
        tab = self._pages.ready()
        self._pages.begin(tab)
        if await self._pages.read(tab, self._has_earlier_page(tab)):
            work = tab.page.go_back(wait_until="domcontentloaded", timeout=seconds * 1_000)
            await self._pages.bounded(work, seconds)
        elif len(self.tabs.tabs) == 1:
            raise ActFailed("there is no earlier page in this tab")
        else:
            await self._pages.bounded(tab.page.close(), PROBE_SECONDS)
        return await self._observer.report(self._pages.current(), whole=True)

    async def _has_earlier_page(self, tab: Tab) -> bool:
        """Whether there is one; the empty page that every tab begins with is none."""
        channel = await self.tabs.context.new_cdp_session(tab.page)
        try:
            history = await channel.send("Page.getNavigationHistory")
        finally:
            self.tabs.spawn(channel.detach())
        return any(entry["url"] != "about:blank" for entry in history["entries"][: history["currentIndex"]])

    async def click(self, target: str, seconds: float) -> JsonObject:
        tab = self._pages.ready()
        locator = await self._locate(tab, target)
        facts = await self._element_facts(tab, target, locator)
        tab.forget_chooser()
        count = len(self.tabs.tabs)

        async def work() -> None:
            await locator.click(timeout=_element_ms(seconds))
            if facts.opens_window:
                await self.tabs.another(count, self._pages.settings.settle_timeout)

        report = await self._act(tab, work(), f"click {target!r}")
        if tab.chooser is not None:
            self.upload_ref = target
            report["file_chooser"] = (
                f"the page asks for a file; call browser_type with ref {target!r} and the path of the file as text"
            )
        return report

    async def type(self, target: str, text: str, seconds: float) -> JsonObject:
        """Replace the text of a field, or choose an option of a list."""
        tab = self._pages.ready()
        locator = await self._locate(tab, target)
        facts = await self._element_facts(tab, target, locator)
        wait = _element_ms(seconds)
        if facts.tag == "select":
            work: Coroutine[Any, Any, Any] = _choose(locator, text, wait)
        elif facts.editable:
            work = locator.fill(text, timeout=wait)
        else:
            work = _type_by_keys(locator, text, wait)
        return await self._act(tab, work, f"type into {target!r}")

    async def upload(self, target: str, files: Sequence[FilePayload], seconds: float) -> JsonObject:
        tab = self._pages.ready()
        if tab.chooser is not None and target == self.upload_ref:
            work = tab.chooser.set_files(list(files), timeout=seconds * 1_000)
            tab.chooser = None
        else:
            locator = await self._locate(tab, target)
            work = locator.set_input_files(list(files), timeout=seconds * 1_000)
        return await self._act(tab, work, f"upload to {target!r}")

    async def press(self, key: str, seconds: float) -> JsonObject:
        tab = self._pages.ready()
        return await self._act(tab, tab.page.keyboard.press(key), f"press {key!r}")

    async def scroll(self, direction: str) -> JsonObject:
        tab = self._pages.ready()
        moved: JsonObject = {}

        async def work() -> None:
            moved.update(await tab.page.evaluate(SCROLL, 1 if direction == "down" else -1))

        report = await self._act(tab, work(), "scroll")
        at_end = bool(moved.get("at_end"))
        shown = {
            "moved_pixels": moved.get("moved", 0),
            "position": moved.get("top", 0),
            "height": moved.get("total", 0),
        }
        return {**report, "scroll": {**shown, "at_end": at_end}}

    async def answer_dialog(self, dialog_id: str, *, accept: bool, text: str | None) -> JsonObject:
        """Answer a dialog, and wait for what it held up."""
        waiting = self.tabs.dialogs
        held = waiting.get(dialog_id) if dialog_id else next(iter(waiting.values()), None)
        if held is None:
            known = ", ".join(waiting) or "none"
            raise ActFailed(
                f"there is no dialog {dialog_id!r} to answer; open are: {known}" if dialog_id else "no dialog is open"
            )
        tab, suspended = held.tab, held.tab.suspended
        await self._pages.bounded(self.tabs.answer(held, accept=accept, text=text), PROBE_SECONDS)
        if suspended is not None and await self.tabs.finishes(suspended):
            tab.suspended = None
            with contextlib.suppress(Error):
                suspended.result()
        return await self._observer.report(tab)

    async def _act(self, tab: Tab, work: Coroutine[Any, Any, Any], what: str) -> JsonObject:
        """Do something to the page, wait until it rests, and report."""
        self._pages.begin(tab)
        task = asyncio.get_running_loop().create_task(work)
        try:
            async with asyncio.timeout(self._pages.settings.command_timeout + PROBE_SECONDS):
                is_done = await self.tabs.finishes(task)
            if is_done:
                task.result()
            else:
                tab.suspended = task
                # Its page may go away before anybody asks.
                task.add_done_callback(_outcome_seen)
        except (PlaywrightTimeout, TimeoutError) as error:
            task.cancel()
            await self._pages.require_answer(tab)
            raise ActFailed(f"could not {what}: {reason_of(error)}", **await self._observer.fresh(tab)) from error
        except Error as error:
            self._pages.require_page(tab, error)
            raise ActFailed(f"could not {what}: {reason_of(error)}", **await self._observer.fresh(tab)) from error
        return await self._observer.report(tab)

    # Reading

    async def snapshot(self, *, full: bool) -> JsonObject:
        tab = self._pages.ready()
        return await self._observer.look(tab, full=full)

    async def images(self) -> list[JsonObject]:
        tab = self._pages.ready()
        found: list[JsonObject] = []
        for frame in tab.page.frames:
            with contextlib.suppress(Error):
                found += await self._pages.read(tab, frame.evaluate(IMAGES, MAX_IMAGES))
        return [
            {**one, "src": _short_source(one["src"]), "alt": one["alt"][:MAX_ALT_CHARS]} for one in found[:MAX_IMAGES]
        ]

    def console(self, *, clear: bool) -> JsonObject:
        tab = self._pages.current()
        messages = [{"type": entry.kind, "text": entry.text} for entry in tab.log if entry.kind != "exception"]
        errors = [entry.text for entry in tab.log if entry.kind == "exception"]
        if clear:
            tab.log.clear()
        return {"console_messages": messages, "js_errors": errors}

    async def evaluate(self, expression: str, seconds: float) -> tuple[Any, JsonObject]:
        """The value of a script, and the report after it."""
        tab = self._pages.ready()
        value: list[Any] = []

        async def work() -> None:
            value.append(await tab.page.evaluate(expression))

        report = await self._act(tab, work(), "run the expression")
        return (value[0] if value else None), report

    async def screenshot(self, seconds: float, *, annotate: bool) -> tuple[bytes, JsonObject]:
        """A picture of the visible part, and what its numbered marks stand for."""
        tab = self._pages.ready()
        marks: list[SnapshotNode] = []
        if annotate:
            tab, state, _ = await self._observer.settled(tab, 0)
            marks = (await self._observer.with_boxes(tab, state)).marked()[:MAX_MARKS]
            boxes = [[number, *(node.box or ())] for number, node in enumerate(marks, 1)]
            await self._pages.read(tab, tab.page.evaluate(DRAW_MARKS, boxes))
        try:
            picture = tab.page.screenshot(type="png", scale="css", timeout=seconds * 1_000)
            data = await self._pages.read(tab, picture)
        finally:
            if marks:
                with contextlib.suppress(Error, DialogOpened):
                    await self._pages.read(tab, tab.page.evaluate(REMOVE_MARKS))
        return data, {str(number): f"{node.ref} {node.role} {node.label[:80]}" for number, node in enumerate(marks, 1)}

    async def content(self) -> tuple[str, str]:
        """The address and HTML of the current page, as it is now."""
        tab = self._pages.ready()
        return tab.page.url, await self._pages.read(tab, tab.page.content())

    async def facts(self, target: str) -> ElementFacts:
        """What is known about an element; without a target, about the one that has the focus."""
        tab = self._pages.ready()
        known = self._observer.facts
        if target not in known:
            if target:
                facts = await self._element_facts(tab, target, await self._locate(tab, target))
            else:
                facts = await self._focused_facts(tab)
            known[target] = facts
        return known[target]

    async def _focused_facts(self, tab: Tab) -> ElementFacts:
        frame = tab.page.main_frame
        if (found := await self._pages.read(tab, frame.evaluate(FOCUSED_FACTS))) is not None:
            return msgspec.convert(found, ElementFacts)
        while True:
            handle = await self._pages.read(tab, frame.evaluate_handle(FOCUSED_ELEMENT))
            try:
                element = handle.as_element()
                inner = await self._pages.read(tab, element.content_frame()) if element is not None else None
                if inner is None:
                    raw = await self._pages.read(tab, handle.evaluate(ELEMENT_FACTS))
                    return msgspec.convert(raw, ElementFacts)
                frame = inner
            finally:
                self.tabs.spawn(handle.dispose())

    async def _element_facts(self, tab: Tab, target: str, locator: Locator) -> ElementFacts:
        known = self._observer.facts
        if target not in known:
            facts = self._observer.known_facts(target)
            if facts is None:
                raw = await self._pages.read(tab, locator.evaluate(ELEMENT_FACTS, timeout=ELEMENT_SECONDS * 1_000))
                facts = msgspec.convert(raw, ElementFacts)
            known[target] = facts
        return known[target]

    # Elements

    async def _locate(self, tab: Tab, target: str) -> Locator:
        """The element with this ref, or with this visible text; raises ActFailed with a fresh snapshot."""
        ref = given_ref(target)
        if ref:
            snapshot = self._observer.last_snapshot(tab)
            if snapshot is None or ref not in snapshot.refs:
                known = (
                    "there is no snapshot of this page yet" if snapshot is None else "the last snapshot has no such ref"
                )
                raise ActFailed(
                    f"the ref {ref!r} is unknown: {known}; here is the page now", **await self._observer.fresh(tab)
                )
            return tab.page.get_by_ref(ref)
        return await self._by_text(tab, target.strip().removeprefix("text=").strip())

    async def _by_text(self, tab: Tab, text: str) -> Locator:
        number = 0
        if numbered := _NUMBERED.fullmatch(text):
            text, number = numbered[1], int(numbered[2])
        text = text.strip("\"'")
        if not text:
            raise ActFailed(
                "pass a ref of the last snapshot, or the visible text of an element", **await self._observer.fresh(tab)
            )
        for exact in (True, False):
            found: list[Locator] = []
            for frame in tab.page.frames:
                with contextlib.suppress(Error):
                    matches = frame.get_by_text(text, exact=exact).filter(visible=True)
                    found += await self._pages.read(tab, matches.all())
            if number and len(found) >= number:
                return found[number - 1]
            if len(found) == 1:
                return found[0]
            if found:
                raise ActFailed(
                    f"{len(found)} elements show the text {text!r}; use a ref, or say which: {text + ' #1'!r}",
                    **await self._observer.fresh(tab),
                )
        raise ActFailed(
            f"no element has the ref or shows the text {text!r}; here is the page now",
            **await self._observer.fresh(tab),
        )


async def _choose(locator: Locator, text: str, wait: float) -> None:
    """Choose the option with this label, or this value."""
    try:
        await locator.select_option(label=text, timeout=min(wait, 1_000))
    except PlaywrightTimeout:
        await locator.select_option(text, timeout=wait)


async def _type_by_keys(locator: Locator, text: str, wait: float) -> None:
    """For what is not a field, but takes keys."""
    await locator.click(timeout=wait)
    await locator.press_sequentially(text, timeout=wait)


def _outcome_seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _element_ms(seconds: float) -> float:
    return min(seconds, ELEMENT_SECONDS) * 1_000


def _short_source(source: str) -> str:
    if source.startswith("data:"):
        return f"{source[:40]}… (inline, {len(source)} characters)"
    return source[:1_000]
