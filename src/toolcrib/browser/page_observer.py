"""Watches pages: waits until they settle, takes snapshots, and reports what changed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
from playwright.async_api import Error, Frame
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
NAMED = frozenset({"button", "link", "textbox", "searchbox", "combobox", "checkbox", "radio", "switch", "spinbutton"})
"""Roles of controls whose facts are known by their names."""
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
    controls: tuple[tuple[str | None, ElementFacts], ...] | None = None
    """The controls of the main frame, each with its name if that is sure; None if there are too many."""


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
            boxes = self._is_cut(tab)
            try:
                raw_state, raw = await self._pages.read(tab, self._ask(tab, rest_ms, is_small=is_small, boxes=boxes))
            except Error as error:
                # A navigation replaced the page meanwhile.
                self._pages.require_page(tab, error)
            else:
                state = self._states[tab] = _read_state(raw_state)
                if not tab.is_loading and state.state != "loading":
                    if not raw or state.changes or _too_many(tab, state):
                        return state, None
                    return state, await self._keep(tab, state, raw, boxes=boxes)
            if time.monotonic() >= deadline:
                tab.forget_requests()
                break
        return state, None

    async def _ask(self, tab: Tab, rest_ms: list[int], *, is_small: bool, boxes: bool) -> tuple[str, str]:
        """What the page says about itself and, in the same breath, the tree of a small one."""
        if not is_small:
            return await self._rested(tab, rest_ms), ""
        asked = self._rested(tab, rest_ms), self._tree(tab, boxes=boxes)
        said, tree = await asyncio.gather(*asked, return_exceptions=True)
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

    async def _tree(self, tab: Tab, *, boxes: bool) -> str:
        """The tree of a page. Its boxes take a third more time, so it has them only if something must be left out."""
        return await tab.page.aria_snapshot(mode="ai", boxes=boxes, timeout=self._pages.answer_ms)

    def _is_cut(self, tab: Tab) -> bool:
        """Whether the last snapshot of the tab did not fit."""
        return tab in self._texts and self._texts[tab][1] > 0

    async def _take(self, tab: Tab, state: PageState) -> PageSnapshot:
        too_many = _too_many(tab, state)
        if not too_many:
            boxes = self._is_cut(tab)
            tree = await self._pages.read(tab, self._tree(tab, boxes=boxes))
            return await self._keep(tab, state, tree, boxes=boxes)
        text = await self._pages.read(tab, tab.page.evaluate(TEXT, MAX_TEXT_CHARS))
        note = f"the page has {too_many}, too many for a snapshot; its text begins:"
        lines = "\n".join(f"- text: {line}" for line in [note, *text.splitlines()])
        return await self._keep(tab, state, lines, boxes=True)

    async def with_boxes(self, tab: Tab, state: PageState) -> PageSnapshot:
        """A snapshot with the places of its elements."""
        tree = await self._pages.read(tab, self._tree(tab, boxes=True))
        return await self._keep(tab, state, tree, boxes=True)

    async def _is_unchanged(self, tab: Tab) -> bool:
        """Whether the last snapshot still holds; False if boxes decided what it shows, because they take time."""
        if tab not in self._trees or self._is_cut(tab):
            return False
        return await self._pages.read(tab, self._tree(tab, boxes=False)) == self._trees[tab]

    async def _keep(self, tab: Tab, state: PageState, tree: str, *, boxes: bool) -> PageSnapshot:
        """Remember the snapshot, so that its refs are known."""
        self.facts.clear()
        last = self._snapshots.get(tab)
        if last is not None and tree == self._trees.get(tab) and not state.passwords and not last.has_filled_frames:
            return last
        limit = self._pages.settings.snapshot_chars
        snapshot = read_snapshot(tree, state.height, with_boxes=boxes)
        text = snapshot.cut(limit)
        if text[1] and not boxes:
            return await self.with_boxes(tab, state)
        masked = snapshot.without(await self._passwords(tab, state, snapshot))
        self._trees[tab] = without_boxes(tree) if boxes else tree
        self._texts[tab] = text if masked is snapshot else masked.cut(limit)
        for kept in (self._snapshots, self._shown, self._states, self._trees, self._texts):
            for gone in [one for one in kept if one not in self._pages.tabs.tabs]:
                del kept[gone]
        self._snapshots[tab] = masked
        return masked

    async def _passwords(self, tab: Tab, state: PageState, snapshot: PageSnapshot) -> set[str]:
        """What stands in password fields, which nobody sees on a screen either."""
        found = set(state.passwords)
        if not snapshot.has_filled_frames:
            return found

        async def of(frame: Frame) -> list[str]:
            # A frame that is gone shows nothing either.
            with contextlib.suppress(Error):
                return list(await frame.evaluate(PASSWORDS))
            return []

        asked = asyncio.gather(*(of(frame) for frame in tab.page.frames[1:]))
        return found.union(*await self._pages.read(tab, asked))

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
        # Those that came with the last snapshot, if they are sure to be about this element: nothing else is called so.
        snapshot, state = self._snapshots[tab], self._states.get(tab)
        node = snapshot.refs.get(given_ref(target))
        if node is None or node.in_frame or not node.name or node.role not in NAMED or state is None:
            return None
        alike = [one for one in snapshot.nodes if one.name == node.name and one.role in NAMED]
        if state.controls is None or len(alike) > 1:
            return None
        label = " ".join(node.label.split())
        same = [facts for name, facts in state.controls if name is not None and " ".join(name.split()) == label]
        if not same and node.role == "link" and all(name is not None for name, _ in state.controls):
            return ElementFacts(tag="a", label=node.label, host=site_of(tab.page.url))
        return same[0] if len(same) == 1 and _plays(node.role, same[0]) else None


def _plays(role: str, facts: ElementFacts) -> bool:
    """Whether such an element usually has this role."""
    tags = {"button": ("button", "input", "summary"), "link": ("a",), "textbox": ("input", "textarea")}
    return facts.tag in tags.get(role, (facts.tag,))


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
