"""Watches pages: waits until they settle, takes snapshots, and reports what changed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
from playwright.async_api import Error
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolcrib.browser.open_pages import PROBE_SECONDS, ActFailed, OpenPages, shown_address, site_of
from toolcrib.browser.page_facts import PASSWORDS, REST, TEXT, ElementFacts
from toolcrib.browser.snapshot import PageSnapshot, changes, given_ref, read_snapshot, without_boxes
from toolcrib.browser.tabs import DialogOpened, Tab
from toolcrib.core.types import JsonObject

REST_MS = 10
"""How long a page must stay as it is after an act."""
LOADED_REST_MS = 60
"""The same, if it loaded something: scripts need a moment to show it."""
REST_SECONDS = 3.0
"""How long a page may take to come to rest, or to say that it does not."""
MAX_ELEMENTS = 150_000
"""Larger pages cannot be read as a tree within a bearable time."""
MAX_FRAMES = 100
"""The same, for pages of many frames: each is asked on its own."""
MAX_TEXT_CHARS = 4_000
MAX_REPORTED = 5
MAX_EVENTS = 20
ALLOWED_SCHEMES = ("http:", "https:", "about:", "blob:", "data:", "chrome-error:")


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


class PageObserver:
    """Remembers what the model has seen of each tab."""

    def __init__(self, pages: OpenPages, save: SaveText) -> None:
        self._pages = pages
        self._save = save
        self.facts: dict[str, ElementFacts] = {}
        """What was found out about elements since the last snapshot."""
        self._snapshots: dict[Tab, PageSnapshot] = {}
        self._shown: dict[Tab, tuple[str, list[str]]] = {}
        """What the model saw last of each tab: its address and lines."""
        self._states: dict[Tab, PageState] = {}
        self._trees: dict[Tab, str] = {}
        """What the last snapshot of each tab was made of, without boxes."""
        self._texts: dict[Tab, tuple[str, int]] = {}
        """The last snapshot of each tab within the limit, and how many lines are left out."""

    def last_snapshot(self, tab: Tab) -> PageSnapshot | None:
        return self._snapshots.get(tab)

    async def report(self, tab: Tab, *, whole: bool = False, full: bool = False, is_still: bool = False) -> JsonObject:
        """What the page shows now, and what happened on the way. `is_still`: nothing was done to it."""
        try:
            tab, state, snapshot = await self.settled(tab, 0 if is_still else REST_MS)
        except DialogOpened:
            tab = self._pages.current()
            return self._with_events(tab, {"success": True, "url": shown_address(tab.page.url)})
        return self._with_events(tab, self._described(tab, state, snapshot, whole=whole, full=full))

    async def look(self, tab: Tab, *, full: bool) -> JsonObject:
        """What the page shows now, if nothing was done to it."""
        if not tab.is_loading and await self._is_unchanged(tab):
            state, snapshot = self._states[tab], self._snapshots[tab]
            return self._with_events(tab, self._described(tab, state, snapshot, whole=True, full=full))
        return await self.report(tab, whole=True, full=full, is_still=True)

    def _described(self, tab: Tab, state: PageState, snapshot: PageSnapshot, *, whole: bool, full: bool) -> JsonObject:
        report: JsonObject = {"success": True, "url": shown_address(tab.page.url), "title": state.title[:200]}
        if state.total > state.height + 1:
            report["scroll_position"] = f"{state.top} of {max(0, state.total - state.height)} pixels"
        return report | self._shown_part(tab, snapshot, state, whole=whole, full=full)

    def _shown_part(self, tab: Tab, snapshot: PageSnapshot, state: PageState, *, whole: bool, full: bool) -> JsonObject:
        limit = self._pages.settings.snapshot_chars
        text, left_out = snapshot.cut(limit, full=True) if full else self._texts[tab]
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
        events: list[str] = []
        for note in self._pages.tabs.take_notes():
            if note["kind"] == "console_error":
                errors.append(note["text"])
            elif note["kind"] == "new_tab":
                report.setdefault("new_tabs", []).append(f"{note['tab'].id} {shown_address(note['tab'].page.url)}")
            else:
                events.append(f"{note['kind']}: {note['text']}")
        if events:
            report["events"] = list(dict.fromkeys(events))[:MAX_EVENTS]
        if errors:
            report["console_errors"] = errors[:MAX_REPORTED]
            if len(errors) > MAX_REPORTED:
                report["more_console_errors"] = len(errors) - MAX_REPORTED
        if self._pages.proxy is not None and self._pages.proxy.refusals:
            # Chromium itself calls home, too, and nobody needs to know that it did not get through.
            wanted = {host for one in self._pages.tabs.tabs for host in one.hosts}
            refused = list(dict.fromkeys(reason for host, reason in self._pages.proxy.refusals if host in wanted))
            if refused:
                report["blocked_requests"] = refused[:MAX_REPORTED]
        if self._pages.tabs.dialogs:
            report["pending_dialogs"] = [held.as_json() for held in self._pages.tabs.dialogs.values()]
            report["hint"] = "the page waits; answer with browser_dialog, or navigate away"
        if len(self._pages.tabs.tabs) > 1:
            report["tabs"] = [
                f"{one.id}{' (current)' if one is tab else ''} {one.page.url[:200]}" for one in self._pages.tabs.tabs
            ]
        return report

    async def settled(self, tab: Tab, wait_ms: int) -> tuple[Tab, PageState, PageSnapshot]:
        """The tab to show, at rest: a new one, if the act opened one."""
        state, snapshot = await self._settle(tab, wait_ms)
        current = self._pages.current()
        if current is not tab:
            with contextlib.suppress(PlaywrightTimeout):
                timeout = self._pages.settings.settle_timeout * 1_000
                await self._pages.read(
                    current, current.page.wait_for_load_state("domcontentloaded", timeout=timeout or 1)
                )
            tab = current
            state, snapshot = await self._settle(tab, wait_ms)
        if not tab.page.url.startswith(ALLOWED_SCHEMES):
            refused = tab.page.url.partition(":")[0]
            await self._pages.bounded(tab.page.goto("about:blank"), PROBE_SECONDS)
            raise ActFailed(f"pages of the scheme {refused!r} are out of reach")
        if snapshot is None:
            snapshot = await self._take(tab, state)
        return tab, state, snapshot

    async def _settle(self, tab: Tab, wait_ms: int) -> tuple[PageState, PageSnapshot | None]:
        """Wait until the page rests: loaded, no request that it waits for, no change. Bounded.

        The snapshot is taken meanwhile, and holds if nothing changed since.
        """
        deadline = time.monotonic() + self._pages.settings.settle_timeout
        state = PageState()
        while tab in self._pages.tabs.tabs:
            await self._pages.unless_dialog(tab, tab.loaded(deadline))
            is_small = tab in self._states and not _too_many(tab, self._states[tab])
            rest_ms = _rest(wait_ms, tab.asked)
            try:
                raw_state, raw = await self._pages.read(tab, self._ask(tab, rest_ms, with_tree=is_small))
            except Error as error:
                # A navigation replaced the page meanwhile.
                self._pages.require_page(tab, error)
            else:
                state = self._states[tab] = _read_state(raw_state)
                if not tab.is_loading and state.state != "loading":
                    if not raw or state.changes or _too_many(tab, state):
                        return state, None
                    return state, await self._keep(tab, state, raw)
            if time.monotonic() >= deadline:
                tab.forget_requests()
                break
        return state, None

    async def _ask(self, tab: Tab, rest_ms: list[int], *, with_tree: bool) -> tuple[str, str]:
        """What the page says about itself and, in the same breath, its tree."""
        if not with_tree:
            return await self._rested(tab, rest_ms), ""
        said, tree = await asyncio.gather(self._rested(tab, rest_ms), self._tree(tab), return_exceptions=True)
        for one in (said, tree):
            if isinstance(one, BaseException):
                raise one
        return str(said), str(tree)

    async def _rested(self, tab: Tab, rest_ms: list[int]) -> str:
        """What the page says about itself when it rests; one that replaced the timers is asked without them."""
        try:
            async with asyncio.timeout(REST_SECONDS):
                return str(await tab.page.evaluate(REST, rest_ms))
        except TimeoutError:
            return str(await tab.page.evaluate(REST, [0, 0]))

    async def _tree(self, tab: Tab) -> str:
        return await tab.page.aria_snapshot(mode="ai", boxes=True, timeout=self._pages.answer_ms)

    async def _take(self, tab: Tab, state: PageState) -> PageSnapshot:
        too_many = _too_many(tab, state)
        if not too_many:
            return await self._keep(tab, state, await self._pages.read(tab, self._tree(tab)))
        text = await self._pages.read(tab, tab.page.evaluate(TEXT, MAX_TEXT_CHARS))
        note = f"the page has {too_many}, too many for a snapshot; its text begins:"
        lines = "\n".join(f"- text: {line}" for line in [note, *text.splitlines()])
        return await self._keep(tab, state, lines)

    async def _is_unchanged(self, tab: Tab) -> bool:
        """Whether the last snapshot still holds; False if boxes decided what it shows, because they take time."""
        if tab not in self._trees or self._texts[tab][1]:
            return False
        tree = await self._pages.read(tab, tab.page.aria_snapshot(mode="ai", timeout=self._pages.answer_ms))
        return tree == self._trees[tab]

    async def _keep(self, tab: Tab, state: PageState, tree: str) -> PageSnapshot:
        """Remember the snapshot, so that its refs are known."""
        self.facts.clear()
        snapshot = read_snapshot(tree, state.height).without(await self._passwords(tab, state))
        self._trees[tab] = without_boxes(tree)
        self._texts[tab] = snapshot.cut(self._pages.settings.snapshot_chars)
        for kept in (self._snapshots, self._shown, self._states, self._trees, self._texts):
            for gone in [one for one in kept if one not in self._pages.tabs.tabs]:
                del kept[gone]
        self._snapshots[tab] = snapshot
        return snapshot

    async def _passwords(self, tab: Tab, state: PageState) -> set[str]:
        """What stands in password fields, which nobody sees on a screen either."""
        found = set(state.passwords)
        frames = [] if _too_many(tab, state) else tab.page.frames[1:]
        for frame in frames:
            with contextlib.suppress(Error):
                found.update(await self._pages.read(tab, frame.evaluate(PASSWORDS)))
        return found

    async def fresh(self, tab: Tab) -> JsonObject:
        """A new snapshot, for an error that needs one."""
        try:
            return await self.report(tab if tab in self._pages.tabs.tabs else self._pages.current(), whole=True)
        except (ActFailed, Error):
            return {}

    def known_facts(self, target: str) -> ElementFacts | None:
        """The facts about an element, as far as they are known without asking the page. Quick, on any thread."""
        tab = self._pages.tabs.current
        if tab is None or tab not in self._snapshots or self._pages.tabs.dialogs:
            return None
        # Those that came with the last snapshot, if they are sure to be about this element.
        node, state = self._snapshots[tab].refs.get(given_ref(target)), self._states.get(tab)
        if node is None or node.in_frame or node.box is None or state is None or state.controls is None:
            return None
        same = [facts for box, facts in state.controls if box == node.box]
        if not same and node.role == "link":
            return ElementFacts(tag="a", label=node.label, host=site_of(tab.page.url))
        return same[0] if len(same) == 1 else None


def _too_many(tab: Tab, state: PageState) -> str:
    """What the page has too much of to be read as a tree; empty if it can be."""
    if len(tab.page.frames) > MAX_FRAMES:
        return f"{len(tab.page.frames)} frames"
    return f"{state.elements} elements" if state.elements > MAX_ELEMENTS else ""


def _rest(wait_ms: int, asked: set[str]) -> list[int]:
    """How long a page must stay as it is: without scripts, and with some."""
    if not wait_ms or not asked:
        return [wait_ms, wait_ms]
    return [wait_ms if asked <= {"document", "stylesheet"} else LOADED_REST_MS, LOADED_REST_MS]


def _read_state(text: str) -> PageState:
    """What the page says about itself; a hostile one may say anything."""
    try:
        return msgspec.json.decode(text, type=PageState)
    except msgspec.MsgspecError:
        return PageState()


def _empty_page(state: PageState) -> str:
    return f"(the page is empty; {state.elements} elements)"
