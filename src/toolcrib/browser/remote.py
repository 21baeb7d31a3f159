"""Browsers that run elsewhere, over the DevTools protocol: one that the user started, or one of a cloud provider."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from playwright.async_api import Browser, BrowserContext, Error, Playwright

from toolcrib.browser.chromium import CLOSE_SECONDS, VIEWPORT_HEIGHT, VIEWPORT_WIDTH, BrowserFailed
from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import nearest_names

CONNECT_SECONDS = 30.0
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
            await asyncio.to_thread(attempt, self.release)

    async def kill(self) -> None:
        await self.close()


def is_remote(settings: Settings) -> bool:
    return bool(settings.browser.cdp_url or settings.browser.cloud_provider)


async def connect(driver: Playwright, settings: Settings, plugins: Sequence[Any], task: str) -> RemoteBrowser:
    """A browser by its address, or from a provider; raises BrowserFailed."""
    browser = settings.browser
    release: Callable[[], object]
    if browser.cdp_url:
        address, release, reuses = _with_variables(browser.cdp_url), _nothing, browser.cdp_reuse_context
    else:
        provider = _provider(browser.cloud_provider, plugins)
        address, release = await asyncio.to_thread(_start_session, provider, task)
        reuses = True
    try:
        connected = await driver.chromium.connect_over_cdp(address, timeout=CONNECT_SECONDS * 1_000)
    except Error as error:
        await asyncio.to_thread(attempt, release)
        # The address may contain a key, and playwright quotes it.
        raise BrowserFailed(
            "the remote browser cannot be reached; check browser.cdp_url"
            if browser.cdp_url
            else f"the browser of {browser.cloud_provider!r} cannot be reached"
        ) from error
    own = not (reuses and connected.contexts)
    viewport = {"width": VIEWPORT_WIDTH, "height": VIEWPORT_HEIGHT}
    context = await connected.new_context(viewport=viewport) if own else connected.contexts[0]  # type: ignore[arg-type]
    return RemoteBrowser(browser=connected, context=context, is_own_context=own, release=release)


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
    provider = offered[name]
    available, error = attempt(provider.is_available)
    if error is not None or not available:
        raise BrowserFailed(f"the browser provider {name!r} is not available now; check its key")
    return provider


def _start_session(provider: Any, task: str) -> tuple[str, Callable[[], object]]:
    """The address of a new browser, and what gives it back."""
    answer, error = attempt(provider.create_session, task)
    if error is not None:
        raise BrowserFailed(f"the browser provider failed to start a browser: {type(error).__name__}")
    details: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
    address = str(details.get("cdp_url") or "")
    session = str(details.get("session_id") or details.get("bb_session_id") or details.get("session_name") or "")

    def release() -> None:
        ended, failure = attempt(provider.close_session, session)
        if failure is not None or ended is False:
            attempt(provider.emergency_cleanup, session)

    if not address:
        release()
        raise BrowserFailed("the browser provider gave no address (cdp_url) for its browser")
    return address, release
