"""The service behind the browser tools: one browser for each session, closed when it is idle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from playwright.async_api import Error, FilePayload, Playwright, async_playwright

from toolcrib.browser import devtools
from toolcrib.browser.chromium import BrowserFailed, ChromiumLedger, connect, is_remote, launch
from toolcrib.browser.files import DownloadSaver, read_upload
from toolcrib.browser.open_pages import ActFailed, BrowserLost
from toolcrib.browser.page_facts import ElementFacts, click_effects, press_effects, type_effects
from toolcrib.browser.proxy import GuardProxy
from toolcrib.browser.session import TAB_ADDRESS, BrowserSession
from toolcrib.browser.tabs import DialogOpened
from toolcrib.config.page_files import PageFiles
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.ports import WebGuard
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry.results import error_in, sendable, tool_error, tool_result
from toolcrib.service_loop import ServiceLoop
from toolcrib.sessions.owners import calling_owner

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 20.0
FACTS_SECONDS = 3.0
CONNECTION_FACTOR = 10
"""How much more than the largest download one connection may bring."""
RENDER_KEY = "web_extract"
REPLACED = "a fresh one takes its place, without its pages and cookies; open the page again with browser_navigate"
KEYS = {
    "enter": "Enter", "return": "Enter", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": "Space",
    "backspace": "Backspace", "delete": "Delete", "del": "Delete", "up": "ArrowUp", "down": "ArrowDown",
    "left": "ArrowLeft", "right": "ArrowRight", "arrowup": "ArrowUp", "arrowdown": "ArrowDown",
    "arrowleft": "ArrowLeft", "arrowright": "ArrowRight", "pageup": "PageUp", "pagedown": "PageDown", "home": "Home",
    "end": "End", "ctrl": "Control", "control": "Control", "cmd": "Meta", "meta": "Meta", "alt": "Alt",
    "shift": "Shift", "insert": "Insert",
}  # fmt: skip

Admit = Callable[[ToolContext, JsonObject, tuple[Effect, ...]], Awaitable[str]]
"""Asks the gate about effects that a call turns out to have; returns why they are denied, or an empty text."""
Work = Callable[[BrowserSession, float], Awaitable[Any]]


class SessionSlot:
    """The place for a session's browser; the browser in it comes and goes."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.browser: BrowserSession | None = None
        self.lock = asyncio.Lock()
        self.notice = ""
        """What the model should know before its next act."""
        self.idle: asyncio.TimerHandle | None = None
        self.waiting = 0


class BrowserService:
    """The browsers of one runtime. Their state lives on a loop of its own; calls come from any loop."""

    def __init__(self, settings: Settings, services: Services, *, guard: Callable[[], WebGuard], admit: Admit) -> None:
        self._settings = settings
        self._services = services
        self._find_guard = guard
        self._admit = admit
        self._loop = ServiceLoop("toolcrib-browser")
        self._slots: dict[str, SessionSlot] = {}
        self._driver: Playwright | None = None
        self._driver_lock: asyncio.Lock | None = None
        self._ledger = ChromiumLedger(settings.home.processes_dir)
        self._files = PageFiles(
            settings.home.browser_dir,
            int(settings.browser.max_cache_mb * 1_000_000),
            lambda: calling_owner(settings.home),
        )
        self._saver = DownloadSaver(services, admit, settings.browser.max_download_mb)
        self._guard: WebGuard | None = None
        self._process = os.getpid()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def guard(self) -> WebGuard:
        if self._guard is None:
            self._guard = self._find_guard()
        return self._guard

    # The tools

    async def navigate(self, args: JsonObject, ctx: ToolContext) -> str:
        url = str(args["url"]).strip()
        tab = TAB_ADDRESS.fullmatch(url)
        if tab is not None:
            return await self._run(ctx, lambda session, _: session.switch(int(tab[1])))
        if "://" not in url and not url.startswith(("about:", "data:", "file:", "javascript:")):
            url = f"https://{url}"
        try:
            address = self.guard.check(url)
            if is_remote(self._settings):
                # No proxy of ours stands in front of that browser.
                await self.guard.resolve(address.host, address.port)
        except ToolcribError as error:
            return tool_error(error, success=False)
        return await self._run(ctx, lambda session, seconds: session.navigate(url, seconds), opens=True)

    async def snapshot(self, args: JsonObject, ctx: ToolContext) -> str:
        return await self._run(ctx, lambda session, _: session.snapshot(full=bool(args.get("full"))))

    async def click(self, args: JsonObject, ctx: ToolContext) -> str:
        ref = str(args["ref"])

        async def work(session: BrowserSession, seconds: float) -> JsonObject:
            _require_approved(click_effects(await session.facts(ref)), ctx)
            return {"clicked": ref, **await session.click(ref, seconds)}

        return await self._run(ctx, work)

    async def type(self, args: JsonObject, ctx: ToolContext) -> str:
        ref, text = str(args["ref"]), str(args["text"])
        files: list[FilePayload] = []
        if self._is_upload(ref, ctx):
            try:
                files = [await read_upload(one, ctx, self._settings.browser.max_download_mb) for one in _reads(ctx)]
            except (ToolcribError, OSError) as error:
                return tool_error(error, success=False)

        async def work(session: BrowserSession, seconds: float) -> JsonObject:
            facts = await session.facts(ref)
            if files:
                return {"uploaded": [one["name"] for one in files], **await session.upload(ref, files, seconds)}
            if facts.is_upload:
                raise ActFailed("this field takes a file; pass the path of a file that exists as text")
            _require_approved(type_effects(facts, text), ctx)
            return {"typed_into": ref, **await session.type(ref, text, seconds)}

        return await self._run(ctx, work)

    async def scroll(self, args: JsonObject, ctx: ToolContext) -> str:
        return await self._run(ctx, lambda session, _: session.scroll(str(args["direction"])))

    async def back(self, args: JsonObject, ctx: ToolContext) -> str:
        return await self._run(ctx, lambda session, seconds: session.back(seconds))

    async def press(self, args: JsonObject, ctx: ToolContext) -> str:
        key = key_name(str(args["key"]))

        async def work(session: BrowserSession, seconds: float) -> JsonObject:
            _require_approved(press_effects(await session.facts(""), key), ctx)
            return {"pressed": key, **await session.press(key, seconds)}

        return await self._run(ctx, work)

    async def get_images(self, args: JsonObject, ctx: ToolContext) -> str:
        async def work(session: BrowserSession, _: float) -> JsonObject:
            found = await session.images()
            return {"success": True, "count": len(found), "images": found}

        return await self._run(ctx, work)

    async def console(self, args: JsonObject, ctx: ToolContext) -> str:
        expression = str(args.get("expression") or "")

        async def work(session: BrowserSession, seconds: float) -> JsonObject:
            if not expression:
                return {"success": True, **session.console(clear=bool(args.get("clear")))}
            value, report = await session.evaluate(expression, seconds)
            shown = {"result": _as_json(value), **report}
            return {**shown, **session.console(clear=True)} if args.get("clear") else shown

        return await self._run(ctx, work)

    async def vision(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject:
        """A picture of the page: shown to the model if it sees, or described by another."""
        picture: list[bytes] = []

        async def work(session: BrowserSession, seconds: float) -> JsonObject:
            data, marks = await session.screenshot(seconds, annotate=bool(args.get("annotate")))
            picture.append(data)
            url = session.tabs.current.page.url if session.tabs.current is not None else ""
            path = self._save_file(url + str(time.monotonic()), data, ".png")
            found: JsonObject = {"success": True, "url": url, "screenshot_path": path}
            return {**found, "marks": marks} if args.get("annotate") else found

        about = await self._run(ctx, work)
        if not picture:
            return about
        facts = json.loads(about)
        answer = await ctx.services.vision.analyze(picture, str(args["question"]), ctx, facts=facts)
        # Without a model that sees, the file and the marks are still of use.
        return tool_error(error, **{**facts, "success": False}) if (error := _error_of(answer)) else answer

    async def cdp(self, args: JsonObject, ctx: ToolContext) -> str:
        async def work(session: BrowserSession, _: float) -> JsonObject:
            return {"success": True, "method": args["method"], "result": await devtools.send(session, self.guard, args)}

        return await self._run(ctx, work)

    async def dialog(self, args: JsonObject, ctx: ToolContext) -> str:
        accept = args["action"] == "accept"
        text = args.get("prompt_text")

        async def work(session: BrowserSession, _: float) -> JsonObject:
            said = str(text) if text is not None and accept else None
            return await session.answer_dialog(str(args.get("dialog_id") or ""), accept=accept, text=said)

        return await self._run(ctx, work)

    async def render(self, url: str, seconds: float) -> tuple[str, str] | None:
        """The address and HTML of a page after its scripts ran, for `web_extract`; None if there is no browser."""

        async def work(session: BrowserSession, limit: float) -> tuple[str, str]:
            try:
                await session.navigate(url, min(seconds, limit))
                return await session.content()
            finally:
                await session.tabs.context.clear_cookies()

        try:
            found, _ = await self._on_loop(
                self._use(RENDER_KEY, RENDER_KEY, work, seconds, opens=True, can_answer=False)
            )
        except (ToolcribError, Error, DialogOpened):
            return None
        return found if isinstance(found, tuple) else None

    # Effects

    def page_effects(self, ctx: ToolContext) -> tuple[Effect, ...]:
        """Reading the current page, and whatever its scripts load."""
        return (Effect("network", self._host(ctx)),)

    def navigate_effects(self, args: JsonObject) -> tuple[Effect, ...]:
        try:
            return (Effect("network", self.guard.check(str(args.get("url"))).host),)
        except ToolcribError:
            # Nothing is sent; the tool says why.
            return (Effect("network"),)

    def click_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return self._element_effects(str(args.get("ref")), ctx, click_effects)

    def press_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        key = key_name(str(args.get("key")))
        return self._element_effects("", ctx, lambda facts: press_effects(facts, key))

    def type_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        ref, text = str(args.get("ref")), str(args.get("text"))
        if not self._is_upload(ref, ctx):
            return self._element_effects(ref, ctx, lambda facts: type_effects(facts, text))
        host = self._host(ctx)
        paths = [line.strip() for line in text.splitlines() if line.strip()]
        reads: list[Effect] = []
        with contextlib.suppress(ToolcribError):
            reads = [one for path in paths for one in self._services.files.read_effects({"path": path}, ctx)]
        names = ", ".join(Path(path).name for path in paths)
        return (Effect("network", host), *reads, Effect("publish", f"{names} to {host}"))

    def console_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        network = Effect("network", self._host(ctx))
        if not args.get("expression"):
            return (network,)
        return (network, Effect("remote", "a script", service=network.target or "the page", action="run"))

    def cdp_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        return devtools.cdp_effects(str(args.get("method")), self._host(ctx))

    def _element_effects(
        self, ref: str, ctx: ToolContext, effects: Callable[[ElementFacts], tuple[Effect, ...]]
    ) -> tuple[Effect, ...]:
        facts = self._facts(ref, ctx)
        # Without facts there is no such element, or the call refuses what nobody approved.
        return (Effect("network", self._host(ctx)),) if facts is None else effects(facts)

    def _facts(self, ref: str, ctx: ToolContext) -> ElementFacts | None:
        slot = self._slots.get(_key(ctx))
        session = slot.browser if slot is not None else None
        if session is None or session.is_lost or self._loop.is_current:
            return None
        if (known := session.known_facts(ref)) is not None:
            return known
        try:
            return self._loop.run_sync(session.facts(ref), FACTS_SECONDS)
        except (ToolcribError, Error, DialogOpened, TimeoutError):
            return None

    def _is_upload(self, ref: str, ctx: ToolContext) -> bool:
        slot = self._slots.get(_key(ctx))
        if slot is None or slot.browser is None:
            return False
        tab = slot.browser.tabs.current
        if tab is not None and tab.chooser is not None and slot.browser.upload_ref == ref:
            return True
        facts = self._facts(ref, ctx)
        return facts is not None and facts.is_upload

    def _host(self, ctx: ToolContext) -> str:
        slot = self._slots.get(_key(ctx))
        return slot.browser.host if slot is not None and slot.browser is not None else ""

    # Running a call

    async def _run(self, ctx: ToolContext, work: Work, *, opens: bool = False) -> str:
        limit = self._settings.browser.command_timeout
        seconds = limit if ctx.deadline is None else max(1.0, min(limit, ctx.deadline - time.monotonic() - 1))
        can_answer = ctx.allowed_tools is None or "browser_dialog" in ctx.allowed_tools
        key = _key(ctx)
        try:
            report, notice = await self._on_loop(
                self._use(key, ctx.session_id, work, seconds, opens=opens, can_answer=can_answer)
            )
        except ActFailed as error:
            return sendable(tool_error(error, **{**error.details, "success": False}))
        except ToolcribError as error:
            return tool_error(error, success=False)
        except DialogOpened:
            return tool_error("a dialog opened meanwhile; answer it with browser_dialog", success=False)
        except Error as error:
            return tool_error(f"the browser refused: {str(error).splitlines()[0][:300]}", success=False)
        slot = self._slots.get(key)
        held = slot.browser.tabs.downloads if slot is not None and slot.browser is not None else []
        if held:
            taken, held[:] = list(held), []
            report["downloads"] = [await self._saver.save(one, ctx, self._on_loop) for one in taken]
        return sendable(tool_result({**({"browser_notice": notice} if notice else {}), **report}))

    async def _on_loop(self, coroutine: Any) -> Any:
        if self._process != os.getpid():
            # What a fork inherited belongs to the parent.
            self._process, self._slots, self._driver, self._driver_lock = os.getpid(), {}, None, None
        return await self._loop.run(coroutine)

    async def _use(
        self, key: str, session_id: str, work: Work, seconds: float, *, opens: bool, can_answer: bool
    ) -> tuple[Any, str]:
        """The result of work on a session's browser, and what the model should know besides."""
        slot = self._slots.setdefault(key, SessionSlot(session_id))
        slot.waiting += 1
        if slot.idle is not None:
            slot.idle.cancel()
        try:
            async with slot.lock:
                session = await self._ready(slot, key, opens=opens, can_answer=can_answer)
                try:
                    result = await work(session, seconds)
                except BrowserLost as error:
                    slot.browser = None
                    await session.close(is_hung=True)
                    raise BrowserLost(f"{error}; {REPLACED}") from error
                notice, slot.notice = slot.notice, ""
                return result, notice
        finally:
            slot.waiting -= 1
            self._start_idle_timer(slot, key)

    async def _ready(self, slot: SessionSlot, key: str, *, opens: bool, can_answer: bool) -> BrowserSession:
        if slot.browser is not None and slot.browser.is_lost:
            await slot.browser.close(is_hung=True)
            slot.browser, slot.notice = None, f"the browser had died; {REPLACED}"
        if slot.browser is None:
            if not opens:
                notice, slot.notice = slot.notice, ""
                raise ActFailed(notice or "no page is open; call browser_navigate first")
            slot.browser = await self._open(key, can_answer=can_answer)
        slot.browser.tabs.can_answer = can_answer
        return slot.browser

    async def _open(self, key: str, *, can_answer: bool) -> BrowserSession:
        driver = await self._started_driver()

        def save(url: str, text: str) -> str:
            return self._save_file(url, text.encode("utf-8", "replace"), ".txt")

        settings = self._settings.browser
        if is_remote(self._settings):
            browser = await connect(driver, self._settings, self._services.plugins, key, self._ledger)
            return BrowserSession(browser, settings, save, can_answer=can_answer)
        most = int(settings.max_download_mb * CONNECTION_FACTOR * 1_000_000)
        proxy = GuardProxy(self.guard, self._settings.web.proxy, most)
        try:
            chromium = await launch(driver, self._settings, await proxy.start(), self._ledger)
        except BaseException as error:
            await proxy.close()
            if isinstance(error, BrowserFailed) and "Connection closed" in str(error):
                self._driver = None
            raise
        return BrowserSession(chromium, settings, save, proxy=proxy, can_answer=can_answer)

    async def _started_driver(self) -> Playwright:
        if self._driver_lock is None:
            self._driver_lock = asyncio.Lock()
        async with self._driver_lock:
            if self._driver is None:
                await self._ledger.end_orphans(self._services.plugins)
                self._driver = await async_playwright().start()
            return self._driver

    def _start_idle_timer(self, slot: SessionSlot, key: str) -> None:
        """Close the browser when nobody has used it for a while; never while a call runs or waits."""
        if slot.waiting or slot.browser is None:
            return
        seconds = self._settings.browser.inactivity_timeout
        slot.idle = asyncio.get_running_loop().call_later(seconds, self._close_idle, slot, seconds)

    def _close_idle(self, slot: SessionSlot, seconds: float) -> None:
        task = asyncio.get_running_loop().create_task(self._close_unused(slot, seconds))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_unused(self, slot: SessionSlot, seconds: float) -> None:
        async with slot.lock:
            if slot.waiting or slot.browser is None:
                return
            session, slot.browser = slot.browser, None
            slot.notice = f"the browser was closed after {seconds:g} seconds without use; open the page again"
            await session.close()

    # Ending

    async def end_session(self, session_id: str) -> None:
        """Close the browsers of a session that ended."""
        keys = [key for key, slot in self._slots.items() if slot.session_id == session_id]
        if keys:
            await self._on_loop(self._close_slots(keys))

    async def _close_slots(self, keys: list[str]) -> None:
        slots = [self._slots.pop(key) for key in keys if key in self._slots]
        for slot in slots:
            if slot.idle is not None:
                slot.idle.cancel()
        open_ones = [slot.browser for slot in slots if slot.browser is not None]
        await asyncio.gather(*(one.close() for one in open_ones), return_exceptions=True)

    async def _close_all(self) -> None:
        await self._close_slots(list(self._slots))
        if self._driver is not None:
            driver, self._driver = self._driver, None
            with contextlib.suppress(Error):
                await driver.stop()

    def close(self) -> None:
        """End every browser and the driver."""
        if self._loop.is_started and self._process == os.getpid():
            try:
                self._loop.run_sync(self._close_all(), CLOSE_SECONDS)
            except TimeoutError:
                logger.warning("a browser did not end in time; the next start ends it")
        self._loop.close()

    def _save_file(self, url: str, data: bytes, suffix: str) -> str:
        """The path of a new file in the cache, or why there is none."""
        try:
            return str(self._files.save("page", url, data, suffix))
        except OSError as error:
            return f"(not saved: {error.strerror or error})"


def _key(ctx: ToolContext) -> str:
    """A session has one browser, as has each of its tasks with an environment of its own. Subagents are sessions."""
    task = "" if ctx.task_id == ctx.session_id else ctx.task_id
    return f"{ctx.session_id or 'default'}/{task}"


def _require_approved(needed: tuple[Effect, ...], ctx: ToolContext) -> None:
    """Raises ActFailed if the page changed since the call was admitted, so that it would now do more."""
    approved = {(effect.kind, effect.service) for effect in ctx.effects or ()}
    missing = [one for one in needed if one.kind != "network" and (one.kind, one.service) not in approved]
    if ctx.effects is not None and missing:
        raise ActFailed("the page changed while the call was checked; look at a new snapshot and try again")


def _reads(ctx: ToolContext) -> list[Effect]:
    return [effect for effect in ctx.effects or () if effect.kind == "read"]


def _error_of(answer: str | JsonObject) -> str:
    return error_in(answer) if isinstance(answer, str) else ""


def key_name(text: str) -> str:
    """A key as playwright names it, also in a combination such as `ctrl+a`."""
    if text in ("+", " "):
        return "Space" if text == " " else text
    parts = [part for part in text.replace(" ", "").split("+") if part] or [text]
    return "+".join(KEYS.get(part.lower(), part) for part in parts)


def _as_json(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
