"""`browser_cdp`: single commands of the DevTools protocol, as far as they stay inside the session's pages.

The protocol can do more than a page may: read files, change where downloads go, leave the proxy. Commands for that are
refused, and there are other tools for what must be approved.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from playwright.async_api import CDPSession, Error

from toolcrib.browser.open_pages import ActFailed
from toolcrib.browser.session import BrowserSession
from toolcrib.core.ports import WebGuard
from toolcrib.core.types import Effect, JsonObject

DOMAINS = frozenset(
    "Accessibility Animation Audits Browser CSS CacheStorage Console DOM DOMDebugger DOMSnapshot DOMStorage Emulation "  # noqa: SIM905
    "IndexedDB Input LayerTree Log Media Memory Network Overlay Page Performance PerformanceTimeline Profiler Runtime "
    "Schema ServiceWorker Storage Target".split()
)
ALONE = {
    "Browser": frozenset({"getVersion", "getWindowForTarget", "getWindowBounds", "setWindowBounds"}),
    "Target": frozenset({"getTargets", "getTargetInfo", "activateTarget", "closeTarget", "createTarget"}),
}
"""Of these domains, only some commands: the others reach outside the session."""
REFUSED = {
    "DOM.setFileInputFiles": "upload files with browser_type",
    "DOM.getFileInfo": "it reads files of this machine",
    "Page.setDownloadBehavior": "downloads go where toolcrib puts them",
    "Page.setInterceptFileChooserDialog": "toolcrib answers file choosers; see browser_type",
    "Page.handleJavaScriptDialog": "answer dialogs with browser_dialog",
    "Page.crash": "it would only crash the page",
    "Page.close": "close a tab with browser_back, or Target.closeTarget",
    "Network.loadNetworkResource": "open addresses with browser_navigate",
    "Network.setCertificateTransparency": "certificates stay checked",
    "Runtime.terminateExecution": "it would break the page",
    "Storage.setStorageBucketTracking": "it outlives the session",
}
SECRETS = frozenset(
    {
        "Network.getCookies", "Network.getAllCookies", "Storage.getCookies", "Page.getCookies",
        "Network.getResponseBody", "Network.getRequestPostData", "CacheStorage.requestCachedResponse",
        "DOMStorage.getDOMStorageItems", "IndexedDB.requestData",
    }
)  # fmt: skip
READING = ("get", "describe", "query", "search", "capture", "resolve", "request", "print", "collect")
HARMLESS = frozenset({"enable", "disable", "bringToFront", "reload", "activateTarget", "scrollIntoViewIfNeeded"})
MAX_SECONDS = 300.0


def refusal(method: str, params: JsonObject) -> str:
    """Why a command is refused; empty if it is not."""
    domain, dot, name = method.partition(".")
    if not dot or not name:
        return f"{method!r} is not a DevTools method; write Domain.method, for example Page.getFrameTree"
    if domain not in DOMAINS or (domain in ALONE and name not in ALONE[domain]):
        return f"{method} reaches outside the pages of this session"
    if method in REFUSED:
        return f"{method} is not available: {REFUSED[method]}"
    if name == "createTarget" and "browserContextId" in params:
        return "a target belongs to the context of this session; leave out browserContextId"
    return ""


def cdp_effects(method: str, host: str) -> tuple[Effect, ...]:
    """Reading is network; cookies and answers of servers are secrets; the rest controls the page as a script does."""
    name = method.partition(".")[2]
    network = Effect("network", host)
    if method in SECRETS:
        return (
            network,
            Effect(
                "secret", f"with {method}, which reads cookies, stored data or private answers of {host or 'a site'}"
            ),
        )
    if name.startswith(READING) or name in HARMLESS:
        return (network,)
    return (network, Effect("remote", method, service=host or "the page", action="control"))


async def send(session: BrowserSession, guard: WebGuard, args: JsonObject) -> JsonObject:
    """The answer of the browser to one command; raises ActFailed."""
    method, params = str(args["method"]), dict(args.get("params") or {})
    if why := refusal(method, params):
        raise ActFailed(why)
    if "url" in params and str(params["url"]) != "about:blank":
        # Raises for what must not be reached, such as file: and private addresses.
        guard.check(str(params["url"]))
    seconds = min(MAX_SECONDS, float(args.get("timeout") or 30.0))
    channel, extra = await _channel(session, str(args.get("target_id") or ""), str(args.get("frame_id") or ""), method)
    try:
        async with asyncio.timeout(seconds):
            answer = await channel.send(method, {**extra, **params})
    except TimeoutError:
        raise ActFailed(f"{method} did not answer within {seconds:g} seconds") from None
    except Error as error:
        raise ActFailed(f"{method} failed: {str(error).splitlines()[0][:500]}") from error
    finally:
        with contextlib.suppress(Error):
            await channel.detach()
    return answer if isinstance(answer, dict) else {}


async def _channel(session: BrowserSession, target: str, frame: str, method: str) -> tuple[CDPSession, JsonObject]:
    """A session with the page, and the parameters that select a frame in it."""
    context = session.tabs.context
    current = session.tabs.current
    pages = [tab.page for tab in session.tabs.tabs] if target else ([current.page] if current is not None else [])
    for page in pages:
        channel = await context.new_cdp_session(page)
        if target and (await channel.send("Target.getTargetInfo"))["targetInfo"]["targetId"] != target:
            await channel.detach()
            continue
        if not frame:
            return channel, {}
        if _has_frame((await channel.send("Page.getFrameTree"))["frameTree"], frame):
            return channel, await _in_frame(channel, frame, method)
        for one in page.frames[1:]:
            # Only frames of other sites have a session of their own.
            with contextlib.suppress(Error):
                inner = await context.new_cdp_session(one)
                if (await inner.send("Page.getFrameTree"))["frameTree"]["frame"]["id"] == frame:
                    return inner, {}
        raise ActFailed(f"there is no frame {frame!r}; Page.getFrameTree lists them")
    raise ActFailed(
        f"there is no tab with the target id {target!r}; Target.getTargets lists them"
        if target
        else "no page is open; call browser_navigate first"
    )


def _has_frame(tree: Any, frame: str) -> bool:
    return tree["frame"]["id"] == frame or any(_has_frame(one, frame) for one in tree.get("childFrames", ()))


async def _in_frame(channel: CDPSession, frame: str, method: str) -> JsonObject:
    """Scripts run in a world of the frame; other commands take the frame's id themselves."""
    if method != "Runtime.evaluate":
        return {"frameId": frame} if method in ("Page.navigate", "Accessibility.getFullAXTree") else {}
    world = await channel.send("Page.createIsolatedWorld", {"frameId": frame})
    return {"contextId": world["executionContextId"]}
