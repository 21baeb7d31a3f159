"""Opens browsers: the Chromium of this system, or one elsewhere over its DevTools address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from playwright.async_api import Browser, BrowserContext, Error, Playwright, ProxySettings
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolcrib.config.browser_settings import BrowserSettings, find_chromium
from toolcrib.config.environment import child_environment, environment
from toolcrib.config.files import make_folder
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt, notify
from toolcrib.core.errors import ToolcribError, nearest_names
from toolcrib.process_identity import PROC, Identity, identity_of, is_alive, own_identity
from toolcrib.processes.ledger import Ledger
from toolcrib.processes.orphan_cleanup import COMMAND_ID_VARIABLE, end_tree, processes_of

PROVIDER_SECONDS = 60.0
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


class RemoteBrowser(msgspec.Struct, kw_only=True):
    """A connection to a browser that is not ours to end, except for what we opened in it."""

    browser: Browser
    context: BrowserContext
    is_own_context: bool
    release: Callable[[], object]
    """Gives the browser back to whoever started it."""

    @property
    def is_alive(self) -> bool:
        return self.browser.is_connected()

    async def close(self) -> None:
        try:
            with contextlib.suppress(Error, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    if self.is_own_context:
                        await self.context.close()
                    await self.browser.close()
        finally:
            await _in_thread(attempt, self.release)

    async def kill(self) -> None:
        await self.close()


def is_remote(settings: Settings) -> bool:
    return bool(settings.browser.cdp_url or settings.browser.cloud_provider)


async def connect(
    driver: Playwright, settings: Settings, plugins: Sequence[Any], task: str, ledger: ChromiumLedger
) -> RemoteBrowser:
    """A browser by its address, or from a provider; raises BrowserFailed."""
    browser = settings.browser
    release: Callable[[], object]
    if browser.cdp_url:
        address, release, reuses = _with_variables(browser.cdp_url), _nothing, browser.cdp_reuse_context
    else:
        provider = _available(_provider(browser.cloud_provider, plugins), browser.cloud_provider)
        address, release = await asyncio.to_thread(_start_session, provider, browser.cloud_provider, task, ledger)
        reuses = True
    try:
        connected = await driver.chromium.connect_over_cdp(address, timeout=browser.command_timeout * 1_000)
    except Error as error:
        await asyncio.to_thread(attempt, release)
        raise _no_connection(browser, error) from error
    own = not (reuses and connected.contexts)
    viewport = {"width": VIEWPORT_WIDTH, "height": VIEWPORT_HEIGHT}
    context = await connected.new_context(viewport=viewport) if own else connected.contexts[0]  # type: ignore[arg-type]
    return RemoteBrowser(browser=connected, context=context, is_own_context=own, release=release)


def _no_connection(browser: BrowserSettings, error: Error) -> BrowserFailed:
    # The address may contain a key, and playwright quotes it.
    which = "the remote browser" if browser.cdp_url else f"the browser of {browser.cloud_provider!r}"
    if isinstance(error, PlaywrightTimeout):
        # playwright waits until each tab that is there already has begun to load.
        reason = "a tab in it that does not load may be the reason: close it"
        return BrowserFailed(f"{which} did not answer within {browser.command_timeout:g} seconds; {reason}")
    return BrowserFailed(f"{which} cannot be reached" + ("; check browser.cdp_url" if browser.cdp_url else ""))


def _nothing() -> None:
    pass


def _with_variables(address: str) -> str:
    environ = environment()

    def value(found: re.Match[str]) -> str:
        if not environ.get(found[1]):
            raise BrowserFailed(f"browser.cdp_url needs the variable {found[1]}, which is not set; put it in .env")
        return environ[found[1]]

    return _VARIABLE.sub(value, address)


def _provider(name: str, plugins: Sequence[Any]) -> Any:
    offered = {
        str(getattr(declaration.arguments[0], "name", declaration.name)): declaration.arguments[0]
        for plugin in plugins
        for declaration in plugin.declarations
        if declaration.kind == "browser_provider" and declaration.arguments
    }
    if name not in offered:
        near = nearest_names(name, offered)
        hint = f"; did you mean {near[0]!r}?" if near else "; enable the plugin that offers it"
        raise BrowserFailed(f"there is no browser provider {name!r} (browser.cloud_provider){hint}")
    return offered[name]


def _available(provider: Any, name: str) -> Any:
    available, error = attempt(provider.is_available)
    if error is not None or not available:
        raise BrowserFailed(f"the browser provider {name!r} is not available now; check its key")
    return provider


def _start_session(provider: Any, name: str, task: str, ledger: ChromiumLedger) -> tuple[str, Callable[[], object]]:
    """The address of a new browser, and what gives it back. It is on record until then, because it costs money."""
    answer, error = attempt(provider.create_session, task)
    if error is not None:
        raise BrowserFailed(f"the browser provider failed to start a browser: {type(error).__name__}")
    details: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
    address = str(details.get("cdp_url") or "")
    session = str(details.get("session_id") or details.get("bb_session_id") or details.get("session_name") or "")

    entry = {"provider": name, "session": session}
    if session:
        ledger.opened(entry)

    def release() -> None:
        _end_session(provider, session)
        ledger.closed(entry)

    if not address:
        release()
        raise BrowserFailed("the browser provider gave no address (cdp_url) for its browser")
    return address, release


def _end_session(provider: Any, session: str) -> None:
    ended, failure = attempt(provider.close_session, session)
    if failure is not None or ended is False:
        notify(provider.emergency_cleanup, session, name="the cleanup of the browser provider")


LAUNCH_SECONDS = 60.0
CLOSE_SECONDS = 5.0
GRACE_SECONDS = 0.5
VIEWPORT_WIDTH, VIEWPORT_HEIGHT = 1280, 800
DESKTOP_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS")
ARGUMENTS = (
    # Chromium calls home otherwise, and nobody asked it to.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-domain-reliability",
    "--no-first-run",
    "--disable-breakpad",
    "--disable-crash-reporter",
    # Its updater and its sign-in ask their servers all the same. Chromium itself connects to nothing on this port.
    "--component-updater=url-source=http://127.0.0.1:9/",
    "--gaia-url=http://127.0.0.1:9/",
    # Everything that does not go through the proxy.
    "--disable-quic",
    "--dns-prefetch-disable",
    # The proxy looks names up. WebRTC would ask the system's resolver for its servers, so that a page could tell them
    # anything.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    # The second name is the one that newer versions know.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
PREFERENCES = {
    # Services of the browser's vendor that would see what a session does.
    "autofill": {"profile_enabled": False, "credit_card_enabled": False},
    "credentials_enable_service": False,
    "profile": {"password_manager_enabled": False},
    "signin": {"allowed": False, "allowed_on_next_startup": False},
    "safebrowsing": {"enabled": False},
    "search": {"suggest_enabled": False},
    "alternate_error_pages": {"enabled": False},
    "translate": {"enabled": False},
}
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class BrowserFailed(ToolcribError):
    """The browser could not be started or reached; the message says what to do."""


class ChromiumLedger:
    """The browsers on record: ours, and those that dead toolcrib processes left."""

    def __init__(self, folder: Path) -> None:
        self._ledger = Ledger(folder / "browsers", own_identity())

    def opened(self, address: Mapping[str, str]) -> None:
        self._ledger.environment_opened(address)

    def closed(self, address: Mapping[str, str]) -> None:
        self._ledger.environment_closed(address)

    async def end_orphans(self, plugins: Sequence[Any]) -> int:
        """End the browsers of toolcrib processes that are dead; returns how many entries there were."""
        orphans = self._ledger.take_orphans().environments
        for address in orphans:
            if "provider" in address:
                # Without its plugin the entry stays, for a start that has it.
                with contextlib.suppress(BrowserFailed):
                    provider = _provider(address["provider"], plugins)
                    await asyncio.to_thread(_end_session, provider, address["session"])
                    self.closed(address)
            elif await end_tree(address["command_id"], None, GRACE_SECONDS):
                _remove_folder(address["temporary"])
                self.closed(address)
        return len(orphans)


class Chromium(msgspec.Struct, kw_only=True):
    """A browser that we started, with its one context."""

    context: BrowserContext
    command_id: str
    leader: Identity | None
    address: dict[str, str]
    ledger: ChromiumLedger

    @property
    def is_alive(self) -> bool:
        return self.leader is None or is_alive(self.leader)

    async def close(self) -> None:
        """End it, whatever it takes."""
        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.context.close()
        await self.kill()

    async def kill(self) -> None:
        """End all its processes without asking it first."""
        if await end_tree(self.command_id, self.leader, GRACE_SECONDS):
            await _in_thread(_remove_folder, self.address["temporary"])
            self.ledger.closed(self.address)


async def launch(driver: Playwright, settings: Settings, proxy: str, ledger: ChromiumLedger) -> Chromium:
    """Start Chromium behind the proxy; raises BrowserFailed."""
    browser = settings.browser
    executable = find_chromium(browser.executable)
    if not executable:
        raise BrowserFailed(
            f"there is no browser {browser.executable!r}; correct browser.executable"
            if browser.executable
            else "there is no Chromium on this machine; run `apt install chromium`"
        )
    temporary = "" if browser.profile else tempfile.mkdtemp(prefix="toolcrib-browser-")
    folder = Path(temporary) if temporary else profile_folder(settings)
    address = {"command_id": f"browser-{uuid.uuid4().hex}", "temporary": temporary}
    _write_preferences(folder)
    # On record before it starts, so that no crash leaves it unknown.
    ledger.opened(address)
    try:
        context = await driver.chromium.launch_persistent_context(
            folder,
            executable_path=executable,
            headless=not browser.headed,
            chromium_sandbox=browser.sandbox == "auto" and os.geteuid() != 0,
            args=list(ARGUMENTS),
            # Pages open windows only when somebody clicks, as in any browser.
            ignore_default_args=["--disable-popup-blocking"],
            proxy=ProxySettings(server=proxy),
            env=_environ(address["command_id"]),  # type: ignore[arg-type]
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            accept_downloads=True,
            viewport={"width": VIEWPORT_WIDTH, "height": VIEWPORT_HEIGHT},
            permissions=[],
            service_workers="allow",
            timeout=LAUNCH_SECONDS * 1_000,
        )
    except BaseException as error:
        await end_tree(address["command_id"], None, GRACE_SECONDS)
        _remove_folder(temporary)
        ledger.closed(address)
        if isinstance(error, Error):
            raise _explained(error, settings) from error
        raise
    leader = await asyncio.to_thread(_find_leader, address["command_id"])
    return Chromium(context=context, command_id=address["command_id"], leader=leader, address=address, ledger=ledger)


def profile_folder(settings: Settings) -> Path:
    """The folder of the named profile; raises BrowserFailed for a name that is none."""
    name = settings.browser.profile
    if not _PROFILE_NAME.fullmatch(name):
        raise BrowserFailed(f"browser.profile is {name!r}; use letters, digits, dots and dashes")
    folder = settings.home.browser_profiles_dir / name
    make_folder(folder)
    return folder


def _write_preferences(folder: Path) -> None:
    """Chromium adds its own to these; a profile that has some keeps them."""
    preferences = folder / "Default" / "Preferences"
    if not preferences.exists():
        make_folder(preferences.parent)
        preferences.write_bytes(msgspec.json.encode(PREFERENCES))


def _environ(command_id: str) -> dict[str, str]:
    extra = {COMMAND_ID_VARIABLE: command_id}
    return child_environment(os.environ, passthrough=DESKTOP_VARIABLES, extra=extra)


def _find_leader(command_id: str) -> Identity | None:
    """The main process of the browser: the first of its session."""
    for pid in processes_of(command_id, None):
        with contextlib.suppress(OSError):
            if os.getsid(pid) == pid and b"crashpad" not in (PROC / str(pid) / "cmdline").read_bytes():
                return identity_of(pid)
    return None


async def _in_thread(work: Callable[..., object], *arguments: object) -> None:
    """Run what raises nothing beside the loop; at the exit of Python, which starts no more threads, on it."""
    try:
        await asyncio.to_thread(work, *arguments)
    except RuntimeError:
        work(*arguments)


def _remove_folder(folder: str) -> None:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _explained(error: Error, settings: Settings) -> BrowserFailed:
    text = str(error)
    if "ProcessSingleton" in text or "profile appears to be in use" in text or "SingletonLock" in text:
        return BrowserFailed(f"the browser profile {settings.browser.profile!r} is in use by another browser; close it")
    if "sandbox" in text.lower() and "No usable" in text:
        return BrowserFailed(
            "Chromium cannot use its sandbox here; allow user namespaces, or set browser.sandbox to off"
        )
    if settings.browser.headed and ("display" in text.lower() or "ozone" in text.lower()):
        return BrowserFailed("there is no desktop to show the browser on; set browser.headed to false")
    lines = [line for line in text.splitlines() if line.strip()]
    return BrowserFailed(f"the browser did not start: {lines[0][:300] if lines else 'no reason given'}")
