"""The web page: its files, and how a browser logs in and out."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolcrib.config.settings import Settings
from toolcrib.http_server import error_response, host_name
from toolcrib.serve.guard import LOGIN_PATH, SlidingWindow
from toolcrib.serve.login import BROWSER_SECONDS, PageLogins, cookie_name, cookie_of

SCREENS = frozenset(
    {"", "login", "sessions", "approvals", "board", "jobs", "processes", "tools", "memory", "costs", "settings"}
)
"""The first part of the addresses that the page shows; it decides itself what to show there."""
SCREENS_OF_ONE = frozenset({"chat", "files", "runs"})
"""Those that are followed by the id of what they show."""
ASSETS = "/page/"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    # The browser asks whether its copy is current: a new version of the server is a new page.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
MAX_LOGIN_BYTES = 1000
WRONG_CODES_PER_MINUTE = 20


def page_url(request: Request, settings: Settings) -> str:
    """The address of the page for who makes a request; the guard has seen that the host is ours."""
    host = request.headers.get("host", "")
    is_behind_proxy = host_name(host) in {name.lower() for name in settings.serve.proxy_names}
    return f"{'https' if is_behind_proxy else request.url.scheme}://{host}"


class LoginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /login`."""

    code: str


class PageFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the page, ready to be sent."""

    content: bytes
    compressed: bytes
    media_type: str
    tag: str


class PageRoutes:
    """`/`, the other screens, `/page/…`, `/login` and `/logout`."""

    def __init__(self, logins: PageLogins, settings: Settings) -> None:
        self._logins = logins
        self._settings = settings
        self._wrong_codes = SlidingWindow()
        self._files: dict[str, PageFile] = {}

    def routes(self) -> list[Route]:
        screens = [Route(f"/{name}", self.screen, methods=["GET"]) for name in sorted(SCREENS)]
        screens += [Route(f"/{name}/{{id}}", self.screen, methods=["GET"]) for name in sorted(SCREENS_OF_ONE)]
        return [
            *screens,
            Route(f"{ASSETS}{{path:path}}", self.asset, methods=["GET"]),
            Route(LOGIN_PATH, self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
        ]

    async def screen(self, request: Request) -> Response:
        return self._send(request, "index.html")

    async def asset(self, request: Request) -> Response:
        return self._send(request, request.path_params["path"])

    def _send(self, request: Request, path: str) -> Response:
        if not self._files:
            self._files = {name: _page_file(name, found) for name, found in _walk(files("toolcrib.serve") / "page")}
        found = self._files.get(path)
        if found is None:
            return error_response(404, f"the page has no file {path!r}")
        headers = {**PAGE_HEADERS, "ETag": found.tag}
        if found.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(found.content, media_type=found.media_type, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(found.compressed, media_type=found.media_type, headers=headers)

    async def log_in(self, request: Request) -> Response:
        """Exchange a code for the cookie and the key of a browser."""
        if "origin" not in request.headers:
            return error_response(403, "only the page of this server may log in; programs use a token")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_LOGIN_BYTES:
                return error_response(413, "the request is too large")
        made = await asyncio.to_thread(self._logins.redeem, msgspec.json.decode(body, type=LoginRequest).code)
        if made is None:
            # A right code always works: otherwise anybody could keep the owner from logging in.
            if self._wrong_codes.is_full(WRONG_CODES_PER_MINUTE):
                return error_response(429, "too many wrong codes; wait a minute", {"Retry-After": "60"})
            self._wrong_codes.add()
            message = "this code is wrong, was used or has expired; `toolcrib serve login` prints a new one"
            return error_response(401, message)
        response = JSONResponse({"key": made.key, "name": made.name})
        self._set_cookie(request, response, made.cookie, int(BROWSER_SECONDS))
        return response

    async def log_out(self, request: Request) -> Response:
        await asyncio.to_thread(self._logins.log_out, cookie_of(request.headers))
        response = JSONResponse({"logged_out": True})
        self._set_cookie(request, response, "", 0)
        return response

    def _set_cookie(self, request: Request, response: Response, value: str, seconds: int) -> None:
        host = request.headers.get("host", "")
        is_encrypted = page_url(request, self._settings).startswith("https:")
        response.set_cookie(
            cookie_name(host), value, max_age=seconds, httponly=True, samesite="strict", secure=is_encrypted
        )


def is_page(path: str) -> bool:
    """Whether a path shows the page or belongs to its files."""
    first, _, rest = path.lstrip("/").partition("/")
    return path.startswith(ASSETS) or (first in SCREENS and not rest) or (first in SCREENS_OF_ONE and bool(rest))


def _walk(folder: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for one in folder.iterdir():
        found += _walk(one, f"{prefix}{one.name}/") if one.is_dir() else [(prefix + one.name, one)]
    return found


def _page_file(name: str, found: Traversable) -> PageFile:
    content = found.read_bytes()
    return PageFile(
        content=content,
        compressed=gzip.compress(content, mtime=0),
        media_type=MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream"),
        tag=f'"{hashlib.sha256(content).hexdigest()[:20]}"',
    )
