"""The browser of one session: acts on its pages, and reports after each what changed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from playwright.async_api import BrowserContext, Error, FilePayload, Frame, Locator, Response
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolcrib.browser.page_facts import (
    DRAW_MARKS,
    ELEMENT_FACTS,
    FOCUSED_ELEMENT,
    IMAGES,
    PASSWORDS,
    REMOVE_MARKS,
    REST,
    SCROLL,
    TEXT,
    ElementFacts,
)
from toolcrib.browser.proxy import REFUSED_HEADER, GuardProxy
from toolcrib.browser.snapshot import PageSnapshot, SnapshotNode, changes, given_ref, read_snapshot, without_boxes
from toolcrib.browser.tabs import DialogOpened, Tab, TabSet, host_of
from toolcrib.config.browser_settings import BrowserSettings
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject

T = TypeVar("T")

ELEMENT_SECONDS = 5.0
"""How long an element may take to become usable; a covered or disabled one rarely does."""
PROBE_SECONDS = 3.0
REST_MS = 10
"""How long a page must stay as it is after an act."""
LOADED_REST_MS = 60
"""The same, if it loaded something: scripts need a moment to show it."""
MAX_ELEMENTS = 150_000
"""Larger pages cannot be read as a tree within a bearable time."""
MAX_TEXT_CHARS = 4_000
MAX_REPORTED = 5
MAX_IMAGES = 100
MAX_MARKS = 100
MAX_FRAMES = 20
ALLOWED_SCHEMES = ("http:", "https:", "about:", "blob:", "data:", "chrome-error:")
TAB_ADDRESS = re.compile(r"tab:(\d+)")
_NUMBERED = re.compile(r"(.*\S)\s*#(\d+)", re.DOTALL)


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


class PageState(msgspec.Struct, frozen=True):
    """What a page says about itself when it rests."""

    title: str = ""
    height: int = 800
    top: int = 0
    total: int = 0
    elements: int = 0
    state: str = "complete"
    passwords: tuple[str, ...] = ()
    changes: int = 0
    """How often the page changed while it was looked at."""
    controls: tuple[tuple[tuple[int, int, int, int], ElementFacts], ...] | None = None
    """The controls of the main frame, each with its place; None if there are too many."""


SaveText = Callable[[str, str], str]
"""Saves the full text of a page (its address, the text); returns the path, or why there is none."""


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
        self.tabs = TabSet(browser.context, settings, can_answer=can_answer)
        self._settings = settings
        self._save = save
        self._proxy = proxy
        self._snapshots: dict[Tab, PageSnapshot] = {}
        self._shown: dict[Tab, tuple[str, list[str]]] = {}
        """What the model saw last of each tab: its address and lines."""
        self._states: dict[Tab, PageState] = {}
        self._trees: dict[Tab, str] = {}
        """What the last snapshot of each tab was made of."""
        self._facts: dict[tuple[int, str], ElementFacts] = {}
        self._reads = 0
        self.upload_ref = ""
        """The element whose click opened a file chooser."""

    @property
    def is_lost(self) -> bool:
        return self.tabs.is_closed or not self.browser.is_alive

    @property
    def host(self) -> str:
        """The host of the current page, for effects."""
        tab = self.tabs.current
        return _host(tab.page.url) if tab is not None else ""

    async def close(self, *, is_hung: bool = False) -> None:
        self.tabs.stop()
        try:
            await (self.browser.kill() if is_hung else self.browser.close())
        finally:
            if self._proxy is not None:
                await self._proxy.close()

    # Acts

    async def navigate(self, url: str, seconds: float) -> JsonObject:
        """Open an address in the current tab."""
        tab = self._tab() if self.tabs.tabs else await self._new_tab()
        if tab.has_crashed or self.tabs.dialogs:
            # A page may open the next dialog as soon as one is answered, without end; a new tab does not wait for it.
            tab = await self._replace_tab(tab)
        self._begin(tab)
        self.tabs.dismisses_all = True
        try:
            response = await self._go(tab, url, seconds)
        finally:
            self.tabs.dismisses_all = False
            self.tabs.navigated()
        report = await self._report(tab, whole=True)
        if response is not None and response.status >= 400:
            report["status"] = response.status
        return report

    async def _go(self, tab: Tab, url: str, seconds: float) -> Response | None:
        try:
            response = await self._bounded(
                tab.page.goto(url, wait_until="domcontentloaded", timeout=seconds * 1_000), seconds
            )
        except PlaywrightTimeout:
            await self._require_answer(tab)
            raise ActFailed(
                f"{_host(url)!r} did not answer within {seconds:g} seconds; try again, or another page"
            ) from None
        except Error as error:
            if self.tabs.downloads:
                return None
            raise ActFailed(self._why_not(url, error)) from error
        if response is not None and REFUSED_HEADER in response.headers:
            reason = (await response.text())[:500]
            raise ActFailed(f"{_host(response.url)!r} is out of reach: {reason}")
        return response

    async def switch(self, number: int) -> JsonObject:
        """Make another tab the current one."""
        found = next((tab for tab in self.tabs.tabs if tab.number == number), None)
        if found is None:
            raise ActFailed(f"there is no tab:{number}; open are {', '.join(tab.id for tab in self.tabs.tabs)}")
        self.tabs.current = found
        self._begin(found)
        await self._bounded(found.page.bring_to_front(), PROBE_SECONDS)
        return await self._report(found, whole=True)

    async def back(self, seconds: float) -> JsonObject:
        """Go back; from the first page of a tab, to the tab before."""
        tab = self._ready_tab()
        before = tab.page.url
        went = await self._bounded(tab.page.go_back(wait_until="domcontentloaded", timeout=seconds * 1_000), seconds)
        if went is None and tab.page.url == before:
            if len(self.tabs.tabs) == 1:
                raise ActFailed("there is no earlier page in this tab")
            await self._bounded(tab.page.close(), PROBE_SECONDS)
        return await self._report(self._tab(), whole=True)

    async def click(self, target: str, seconds: float) -> JsonObject:
        tab = self._ready_tab()
        locator = await self._locate(tab, target)
        facts = await self._element_facts(tab, target, locator)
        tab.forget_chooser()
        count = len(self.tabs.tabs)

        async def work() -> None:
            await locator.click(timeout=_element_ms(seconds))
            if facts.opens_window:
                await self.tabs.another(count, self._settings.settle_timeout)

        report = await self._act(tab, work(), f"click {target!r}")
        if tab.chooser is not None:
            self.upload_ref = target
            report["file_chooser"] = (
                f"the page asks for a file; call browser_type with ref {target!r} and the path of the file as text"
            )
        return report

    async def type(self, target: str, text: str, seconds: float) -> JsonObject:
        """Replace the text of a field, or choose an option of a list."""
        tab = self._ready_tab()
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
        tab = self._ready_tab()
        if tab.chooser is not None and target == self.upload_ref:
            work = tab.chooser.set_files(list(files), timeout=seconds * 1_000)
            tab.chooser = None
        else:
            locator = await self._locate(tab, target)
            work = locator.set_input_files(list(files), timeout=seconds * 1_000)
        return await self._act(tab, work, f"upload to {target!r}")

    async def press(self, key: str, seconds: float) -> JsonObject:
        tab = self._ready_tab()
        return await self._act(tab, tab.page.keyboard.press(key), f"press {key!r}")

    async def scroll(self, direction: str) -> JsonObject:
        tab = self._ready_tab()
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
        await self._bounded(self.tabs.answer(held, accept=accept, text=text), PROBE_SECONDS)
        if suspended is not None and await self.tabs.finishes(suspended):
            tab.suspended = None
            with contextlib.suppress(Error):
                suspended.result()
        return await self._report(tab)

    async def _act(self, tab: Tab, work: Coroutine[Any, Any, Any], what: str) -> JsonObject:
        """Do something to the page, wait until it rests, and report."""
        self._begin(tab)
        task = asyncio.get_running_loop().create_task(work)
        try:
            async with asyncio.timeout(self._settings.command_timeout + PROBE_SECONDS):
                is_done = await self.tabs.finishes(task)
            if is_done:
                task.result()
            else:
                tab.suspended = task
        except (PlaywrightTimeout, TimeoutError) as error:
            task.cancel()
            await self._require_answer(tab)
            raise ActFailed(f"could not {what}: {_reason(error)}", **await self._fresh(tab)) from error
        except Error as error:
            self._require_page(tab, error)
            raise ActFailed(f"could not {what}: {_reason(error)}", **await self._fresh(tab)) from error
        return await self._report(tab)

    # Reading

    async def snapshot(self, *, full: bool) -> JsonObject:
        tab = self._ready_tab()
        if not tab.is_loading and await self._is_unchanged(tab):
            state, snapshot = self._states[tab], self._snapshots[tab]
            return self._with_events(tab, self._described(tab, state, snapshot, whole=True, full=full))
        return await self._report(tab, whole=True, full=full, is_still=True)

    async def images(self) -> list[JsonObject]:
        tab = self._ready_tab()
        found: list[JsonObject] = []
        for frame in tab.page.frames:
            with contextlib.suppress(Error):
                found += await self._read(tab, frame.evaluate(IMAGES, MAX_IMAGES))
        return [{**one, "src": _short_source(one["src"])} for one in found[:MAX_IMAGES]]

    def console(self, *, clear: bool) -> JsonObject:
        tab = self._tab()
        messages = [{"type": entry.kind, "text": entry.text} for entry in tab.log if entry.kind != "exception"]
        errors = [entry.text for entry in tab.log if entry.kind == "exception"]
        if clear:
            tab.log.clear()
        return {"console_messages": messages, "js_errors": errors}

    async def evaluate(self, expression: str, seconds: float) -> tuple[Any, JsonObject]:
        """The value of a script, and the report after it."""
        tab = self._ready_tab()
        value: list[Any] = []

        async def work() -> None:
            value.append(await tab.page.evaluate(expression))

        report = await self._act(tab, work(), "run the expression")
        return (value[0] if value else None), report

    async def screenshot(self, seconds: float, *, annotate: bool) -> tuple[bytes, JsonObject]:
        """A picture of the visible part, and what its numbered marks stand for."""
        tab = self._ready_tab()
        marks: list[SnapshotNode] = []
        if annotate:
            tab, _, snapshot = await self._settled(tab, 0)
            marks = snapshot.marked()[:MAX_MARKS]
            boxes = [[number, *(node.box or ())] for number, node in enumerate(marks, 1)]
            await self._read(tab, tab.page.evaluate(DRAW_MARKS, boxes))
        try:
            picture = tab.page.screenshot(type="png", scale="css", timeout=seconds * 1_000)
            data = await self._read(tab, picture)
        finally:
            if marks:
                with contextlib.suppress(Error, DialogOpened):
                    await self._read(tab, tab.page.evaluate(REMOVE_MARKS))
        return data, {str(number): f"{node.ref} {node.role} {node.label[:80]}" for number, node in enumerate(marks, 1)}

    async def content(self) -> tuple[str, str]:
        """The address and HTML of the current page, as it is now."""
        tab = self._ready_tab()
        return tab.page.url, await self._read(tab, tab.page.content())

    async def facts(self, target: str) -> ElementFacts:
        """What is known about an element; without a target, about the one that has the focus."""
        tab = self._ready_tab()
        key = (self._reads, target)
        if key not in self._facts:
            if target:
                facts = await self._element_facts(tab, target, await self._locate(tab, target))
            else:
                facts = await self._focused_facts(tab)
            self._facts[key] = facts
        return self._facts[key]

    async def _focused_facts(self, tab: Tab) -> ElementFacts:
        frame: Frame | None = tab.page.main_frame
        while frame is not None:
            handle = await self._read(tab, frame.evaluate_handle(FOCUSED_ELEMENT))
            element = handle.as_element()
            inner = await self._read(tab, element.content_frame()) if element is not None else None
            if inner is None:
                break
            frame = inner
        raw = await self._read(tab, handle.evaluate(ELEMENT_FACTS))
        return msgspec.convert(raw, ElementFacts)

    async def _element_facts(self, tab: Tab, target: str, locator: Locator) -> ElementFacts:
        key = (self._reads, target)
        if key not in self._facts and (known := self._known_facts(tab, target)) is not None:
            self._facts[key] = known
        if key not in self._facts:
            raw = await self._read(tab, locator.evaluate(ELEMENT_FACTS, timeout=ELEMENT_SECONDS * 1_000))
            self._facts[key] = msgspec.convert(raw, ElementFacts)
        return self._facts[key]

    def known_facts(self, target: str) -> ElementFacts | None:
        """The facts about an element, as far as they are known without asking the page. Quick, on any thread."""
        tab = self.tabs.current
        return None if tab is None or self.tabs.dialogs else self._known_facts(tab, target)

    def _known_facts(self, tab: Tab, target: str) -> ElementFacts | None:
        """The facts that came with the last snapshot, if they are sure to be about this element."""
        node = self._snapshots[tab].refs.get(given_ref(target)) if tab in self._snapshots else None
        state = self._states.get(tab)
        if node is None or node.in_frame or node.box is None or state is None or state.controls is None:
            return None
        same = [facts for box, facts in state.controls if box == node.box]
        if not same and node.role == "link":
            return ElementFacts(tag="a", label=node.label, host=_host(tab.page.url))
        return same[0] if len(same) == 1 else None

    # Elements

    async def _locate(self, tab: Tab, target: str) -> Locator:
        """The element with this ref, or with this visible text; raises ActFailed with a fresh snapshot."""
        ref = given_ref(target)
        if ref:
            snapshot = self._snapshots.get(tab)
            if snapshot is None or ref not in snapshot.refs:
                known = (
                    "there is no snapshot of this page yet" if snapshot is None else "the last snapshot has no such ref"
                )
                raise ActFailed(f"the ref {ref!r} is unknown: {known}; here is the page now", **await self._fresh(tab))
            return tab.page.get_by_ref(ref)
        return await self._by_text(tab, target.strip().removeprefix("text=").strip())

    async def _by_text(self, tab: Tab, text: str) -> Locator:
        number = 0
        if numbered := _NUMBERED.fullmatch(text):
            text, number = numbered[1], int(numbered[2])
        text = text.strip("\"'")
        if not text:
            raise ActFailed(
                "pass a ref of the last snapshot, or the visible text of an element", **await self._fresh(tab)
            )
        for exact in (True, False):
            found: list[Locator] = []
            for frame in tab.page.frames:
                with contextlib.suppress(Error):
                    matches = frame.get_by_text(text, exact=exact).filter(visible=True)
                    found += await self._read(tab, matches.all())
            if number and len(found) >= number:
                return found[number - 1]
            if len(found) == 1:
                return found[0]
            if found:
                raise ActFailed(
                    f"{len(found)} elements show the text {text!r}; use a ref, or say which: {text + ' #1'!r}",
                    **await self._fresh(tab),
                )
        raise ActFailed(
            f"no element has the ref or shows the text {text!r}; here is the page now", **await self._fresh(tab)
        )

    # Waiting and reporting

    def _begin(self, tab: Tab) -> None:
        tab.begin()
        if self._proxy is not None:
            self._proxy.refusals.clear()

    async def _report(self, tab: Tab, *, whole: bool = False, full: bool = False, is_still: bool = False) -> JsonObject:
        """What the page shows now, and what happened on the way. `is_still`: nothing was done to it."""
        try:
            tab, state, snapshot = await self._settled(tab, 0 if is_still else REST_MS)
        except DialogOpened:
            return self._with_events(self._tab(), {"success": True, "url": self._tab().page.url})
        return self._with_events(tab, self._described(tab, state, snapshot, whole=whole, full=full))

    def _described(self, tab: Tab, state: PageState, snapshot: PageSnapshot, *, whole: bool, full: bool) -> JsonObject:
        report: JsonObject = {"success": True, "url": tab.page.url, "title": state.title[:200]}
        if state.total > state.height + 1:
            report["scroll_position"] = f"{state.top} of {max(0, state.total - state.height)} pixels"
        return report | self._shown_part(tab, snapshot, state, whole=whole, full=full)

    def _shown_part(self, tab: Tab, snapshot: PageSnapshot, state: PageState, *, whole: bool, full: bool) -> JsonObject:
        text, left_out = snapshot.cut(self._settings.snapshot_chars, full=full)
        lines = text.splitlines()
        before = self._shown.get(tab)
        self._shown[tab] = (tab.page.url, lines)
        part: JsonObject = {"element_count": len(snapshot.refs)}
        if left_out:
            path = self._save(tab.page.url, "\n".join(snapshot.lines(full=True)))
            part["left_out"] = f"{left_out} lines that are not visible or did not fit; scroll, or read them in {path}"
        if not whole and before is not None and before[0] == tab.page.url:
            found = changes(before[1], lines)
            if found is not None:
                added, gone = found
                if not added and not gone:
                    return {**part, "changed": "nothing on the page changed"}
                return {**part, "changed": "\n".join(added) or "(nothing new)", "lines_gone": gone}
        return {**part, "snapshot": text or _empty_page(state)}

    def _with_events(self, tab: Tab, report: JsonObject) -> JsonObject:
        """The report with what happened besides."""
        errors: list[str] = []
        for note in self.tabs.take_notes():
            if note["kind"] == "console_error":
                errors.append(note["text"])
            elif note["kind"] == "new_tab":
                report.setdefault("new_tabs", []).append(f"{note['tab'].id} {note['tab'].page.url}")
            else:
                report.setdefault("events", []).append(f"{note['kind']}: {note['text']}")
        if errors:
            report["console_errors"] = errors[:MAX_REPORTED]
            if len(errors) > MAX_REPORTED:
                report["more_console_errors"] = len(errors) - MAX_REPORTED
        if self._proxy is not None and self._proxy.refusals:
            # Chromium itself calls home, too, and nobody needs to know that it did not get through.
            wanted = {host for one in self.tabs.tabs for host in one.hosts}
            refused = list(dict.fromkeys(reason for host, reason in self._proxy.refusals if host in wanted))
            if refused:
                report["blocked_requests"] = refused[:MAX_REPORTED]
        if self.tabs.dialogs:
            report["pending_dialogs"] = [held.as_json() for held in self.tabs.dialogs.values()]
            report["hint"] = "the page waits; answer with browser_dialog, or navigate away"
        if len(self.tabs.tabs) > 1:
            report["tabs"] = [
                f"{one.id}{' (current)' if one is tab else ''} {one.page.url[:200]}" for one in self.tabs.tabs
            ]
        return report

    async def _settled(self, tab: Tab, wait_ms: int) -> tuple[Tab, PageState, PageSnapshot]:
        """The tab to show, at rest: a new one, if the act opened one."""
        state, snapshot = await self._settle(tab, wait_ms)
        current = self._tab()
        if current is not tab:
            with contextlib.suppress(PlaywrightTimeout):
                timeout = self._settings.settle_timeout * 1_000
                await self._read(current, current.page.wait_for_load_state("domcontentloaded", timeout=timeout or 1))
            tab = current
            state, snapshot = await self._settle(tab, wait_ms)
        if not tab.page.url.startswith(ALLOWED_SCHEMES):
            refused = tab.page.url.partition(":")[0]
            await self._bounded(tab.page.goto("about:blank"), PROBE_SECONDS)
            raise ActFailed(f"pages of the scheme {refused!r} are out of reach")
        if snapshot is None:
            snapshot = await self._take(tab, state)
        return tab, state, snapshot

    async def _settle(self, tab: Tab, wait_ms: int) -> tuple[PageState, PageSnapshot | None]:
        """Wait until the page rests: loaded, no request that it waits for, no change. Bounded.

        The snapshot is taken meanwhile, and holds if nothing changed since.
        """
        deadline = time.monotonic() + self._settings.settle_timeout
        state = PageState()
        while tab in self.tabs.tabs:
            await self._unless_dialog(tab, tab.loaded(deadline))
            is_small = tab in self._states and self._states[tab].elements <= MAX_ELEMENTS
            rest_ms = LOADED_REST_MS if wait_ms and tab.has_asked else wait_ms
            try:
                raw_state, raw = await self._read(tab, self._look(tab, rest_ms, with_tree=is_small))
            except Error as error:
                # A navigation replaced the page meanwhile.
                self._require_page(tab, error)
            else:
                state = self._states[tab] = _read_state(raw_state)
                if not tab.is_loading and state.state != "loading":
                    if not raw or state.changes or state.elements > MAX_ELEMENTS:
                        return state, None
                    return state, await self._keep(tab, state, raw)
            if time.monotonic() >= deadline:
                tab.forget_requests()
                break
        return state, None

    async def _look(self, tab: Tab, wait_ms: int, *, with_tree: bool) -> tuple[str, str]:
        """What the page says about itself and, in the same breath, its tree."""
        if not with_tree:
            return str(await tab.page.evaluate(REST, wait_ms)), ""
        found: list[str | BaseException] = await asyncio.gather(
            tab.page.evaluate(REST, wait_ms), self._tree(tab), return_exceptions=True
        )
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return str(found[0]), str(found[1])

    async def _tree(self, tab: Tab) -> str:
        return await tab.page.aria_snapshot(mode="ai", boxes=True, timeout=self._timeout_ms)

    async def _take(self, tab: Tab, state: PageState) -> PageSnapshot:
        if state.elements <= MAX_ELEMENTS:
            return await self._keep(tab, state, await self._read(tab, self._tree(tab)))
        text = await self._read(tab, tab.page.evaluate(TEXT, MAX_TEXT_CHARS))
        note = f"the page has {state.elements} elements, too many for a snapshot; its text begins:"
        lines = "\n".join(f"- text: {line}" for line in [note, *text.splitlines()])
        return await self._keep(tab, state, lines)

    async def _is_unchanged(self, tab: Tab) -> bool:
        """Whether the last snapshot still holds; False if boxes decided what it shows, because they take time."""
        if self._trees.get(tab) is None or self._snapshots[tab].cut(self._settings.snapshot_chars)[1]:
            return False
        tree = await self._read(tab, tab.page.aria_snapshot(mode="ai", timeout=self._timeout_ms))
        return tree == without_boxes(self._trees[tab])

    async def _keep(self, tab: Tab, state: PageState, tree: str) -> PageSnapshot:
        """Remember the snapshot, so that its refs are known."""
        self._reads += 1
        self._facts.clear()
        snapshot = read_snapshot(tree, state.height).without(await self._passwords(tab, state))
        self._trees[tab] = tree
        for kept in (self._snapshots, self._shown, self._states, self._trees):
            for gone in [one for one in kept if one not in self.tabs.tabs]:
                del kept[gone]
        self._snapshots[tab] = snapshot
        return snapshot

    async def _passwords(self, tab: Tab, state: PageState) -> set[str]:
        """What stands in password fields, which nobody sees on a screen either."""
        found = set(state.passwords)
        for frame in tab.page.frames[1:MAX_FRAMES]:
            with contextlib.suppress(Error):
                found.update(await self._read(tab, frame.evaluate(PASSWORDS)))
        return found

    async def _fresh(self, tab: Tab) -> JsonObject:
        """A new snapshot, for an error that needs one."""
        try:
            return await self._report(tab if tab in self.tabs.tabs else self._tab(), whole=True)
        except (ActFailed, Error):
            return {}

    # Tabs and trouble

    @property
    def _timeout_ms(self) -> float:
        return self._settings.command_timeout * 1_000

    def _tab(self) -> Tab:
        if self.tabs.current is None:
            if self.is_lost:
                raise BrowserLost("the browser died")
            raise ActFailed("no page is open; call browser_navigate first")
        return self.tabs.current

    def _ready_tab(self) -> Tab:
        """The current tab, if it can be used now."""
        tab = self._tab()
        if tab.has_crashed:
            raise ActFailed("the page crashed; open it again with browser_navigate")
        if self.tabs.dialogs:
            dialogs = [held.as_json() for held in self.tabs.dialogs.values()]
            raise ActFailed(
                "a dialog is open and the page waits for it; answer with browser_dialog, or navigate away",
                pending_dialogs=dialogs,
            )
        return tab

    async def _new_tab(self) -> Tab:
        await self._bounded(self.tabs.context.new_page(), PROBE_SECONDS)
        self.tabs.take_notes()
        return self._tab()

    async def _replace_tab(self, tab: Tab) -> Tab:
        new = await self._new_tab()
        await self._bounded(tab.page.close(), PROBE_SECONDS)
        self.tabs.current = new
        self.tabs.take_notes()
        return new

    async def _read(self, tab: Tab, waiting: Awaitable[T]) -> T:
        """What a page answers; raises DialogOpened, and BrowserLost if it does not answer at all."""
        try:
            async with asyncio.timeout(self._settings.command_timeout):
                return await self._unless_dialog(tab, _as_coroutine(waiting))
        except TimeoutError:
            raise BrowserLost("the page hangs") from None

    async def _unless_dialog(self, tab: Tab, waiting: Coroutine[Any, Any, T]) -> T:
        """What was waited for; a page that is gone ends the wait as a dialog does, and is not taken for one."""
        try:
            return await self.tabs.unless_dialog(waiting)
        except DialogOpened as interrupted:
            self._require_page(tab, interrupted)
            raise

    async def _bounded(self, waiting: Awaitable[T], seconds: float) -> T:
        """What the browser answers; one that does not answer within the time of its own is lost."""
        try:
            async with asyncio.timeout(seconds + PROBE_SECONDS):
                return await waiting
        except TimeoutError:
            raise BrowserLost("the browser hangs") from None

    async def _require_answer(self, tab: Tab) -> None:
        """Raises BrowserLost if the page does not even answer a trivial question."""
        if tab.has_crashed or self.tabs.dialogs:
            return
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await tab.page.evaluate("1")
        except TimeoutError:
            raise BrowserLost("the page hangs") from None
        except Error as error:
            self._require_page(tab, error)

    def _require_page(self, tab: Tab, error: Exception) -> None:
        """Raises BrowserLost if the browser is gone, and ActFailed if the page is."""
        if self.is_lost or "Connection closed" in str(error):
            raise BrowserLost("the browser died") from error
        if tab.has_crashed:
            raise ActFailed("the page crashed; open it again with browser_navigate") from error

    def _why_not(self, url: str, error: Error) -> str:
        if self.is_lost or "Connection closed" in str(error):
            raise BrowserLost("the browser died") from error
        if self._proxy is not None and self._proxy.refusals:
            host, reason = next(
                (one for one in reversed(self._proxy.refusals) if one[0] == host_of(url)), self._proxy.refusals[-1]
            )
            return f"{host!r} is out of reach: {reason}"
        return f"{_host(url)!r} could not be opened: {_reason(error)}"


def _read_state(text: str) -> PageState:
    """What the page says about itself; a hostile one may say anything."""
    try:
        return msgspec.json.decode(text, type=PageState)
    except msgspec.MsgspecError:
        return PageState()


async def _as_coroutine(waiting: Awaitable[T]) -> T:
    return await waiting


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


def _element_ms(seconds: float) -> float:
    return min(seconds, ELEMENT_SECONDS) * 1_000


def _host(url: str) -> str:
    return re.sub(r"^[a-z]+://([^/?#]*).*", r"\1", url, flags=re.DOTALL).rpartition("@")[2][:200]


def _reason(error: BaseException) -> str:
    """The reason in playwright's words, without its logs, except for what stood in the way."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    if not lines:
        return "it took too long"
    first = re.sub(r"^[A-Za-z]+\.[a-z_]+: ", "", lines[0])
    why = [line for line in lines[1:] if re.search(r"intercepts pointer|not (visible|enabled|stable|editable)", line)]
    return "; ".join([first, *why[-1:]])[:500]


def _short_source(source: str) -> str:
    if source.startswith("data:"):
        return f"{source[:40]}… (inline, {len(source)} characters)"
    return source[:1_000]


def _empty_page(state: PageState) -> str:
    return f"(the page is empty; {state.elements} elements)"
