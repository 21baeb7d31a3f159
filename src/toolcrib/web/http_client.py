"""The guarded HTTP client: fetches what a model names, and nothing else.

It connects only to addresses that the guard resolved and checked, and verifies TLS against the host name. It follows
redirects itself, each checked like the first address. Sizes (after decompression), times, redirects and requests per
host are limited. It ignores the proxy variables of the environment, keeps no cookies, and never sends the headers of a
provider to another origin.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cached_property
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urljoin

import httpcore2
import msgspec

from toolcrib.config.settings import Settings
from toolcrib.core.errors import ConfigError, ToolcribError
from toolcrib.version import __version__
from toolcrib.web.addresses import DEFAULT_PORTS, AddressRefused, WebAddress, address_kind, parse_address
from toolcrib.web.guard import AddressGuard, AddressRules, HostNotFound

USER_AGENT = f"toolcrib/{__version__} (web tools for language models)"
CONNECT_SECONDS = 10.0
MAX_HEADERS = 200
MAX_ENCODINGS = 2
CHUNK_BYTES = 65_536
REDIRECTS = frozenset({301, 302, 303, 307, 308})

FailureKind = Literal["unreachable", "timeout", "tls", "too_large", "malformed", "redirect"]


class FetchFailed(ToolcribError):
    """A request without a usable answer; the message says why, as a sentence about the host."""

    def __init__(self, message: str, kind: FailureKind = "unreachable") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int = 10_000_000
    seconds: float = 30.0
    max_redirects: int = 5


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. With `same_origin`, a redirect to another origin fails, so keys in it stay with their owner."""

    url: str | WebAddress
    method: str = "GET"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    limits: FetchLimits = FetchLimits()
    same_origin: bool = False


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """The address that answered, after all redirects."""
    status: int
    headers: Mapping[str, str]
    """With names in lower case; repeated ones are joined by commas."""
    body: bytes
    is_private: bool = False
    """Whether it came from a private address."""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class GuardedClient:
    """Sends requests through one guard. Has no connections of its own between requests, so it needs no closing."""

    def __init__(
        self,
        guard: AddressGuard,
        *,
        proxy: str = "",
        user_agent: str = "",
        max_per_host: int = 2,
        tls: Callable[[], ssl.SSLContext] = httpcore2.default_ssl_context,
    ) -> None:
        self.guard = guard
        self._proxy = proxy
        self._user_agent = user_agent or USER_AGENT
        self._max_per_host = max_per_host
        self._make_tls = tls
        self._hosts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = (
            weakref.WeakKeyDictionary()
        )

    @staticmethod
    def from_settings(settings: Settings, guard: AddressGuard | None = None) -> GuardedClient:
        web = settings.web
        guard = guard or AddressGuard(AddressRules.from_settings(settings))
        return GuardedClient(guard, proxy=web.proxy, user_agent=web.user_agent, max_per_host=web.max_per_host)

    def with_guard(self, guard: AddressGuard, *, use_proxy: bool = True) -> GuardedClient:
        """The same client behind another guard."""
        return GuardedClient(
            guard,
            proxy=self._proxy if use_proxy else "",
            user_agent=self._user_agent,
            max_per_host=self._max_per_host,
            tls=lambda: self.tls,
        )

    @cached_property
    def tls(self) -> ssl.SSLContext:
        # Reading the certificates of the system takes longer than most requests.
        return self._make_tls()

    async def send(self, request: HttpRequest) -> HttpResponse:
        """The response, whatever its status; raises AddressRefused, HostNotFound or FetchFailed."""
        address = request.url if isinstance(request.url, WebAddress) else parse_address(request.url)
        self.guard.check_host(address.host, address.port)
        seconds = request.limits.seconds
        try:
            async with asyncio.timeout(seconds), self._pool() as pool:
                return await self._follow(pool, request, address)
        except TimeoutError:
            raise FetchFailed(f"{address.host!r} took longer than {seconds:g} seconds", "timeout") from None

    async def _follow(
        self, pool: httpcore2.AsyncConnectionPool, request: HttpRequest, address: WebAddress
    ) -> HttpResponse:
        first, seen = address, {str(address)}
        for _ in range(request.limits.max_redirects + 1):
            async with self._turn(address.host):
                response = await self._exchange(pool, request, address)
            location = response.headers.get("location", "")
            if response.status not in REDIRECTS or not location:
                return response
            address = self._next_address(request, address, location)
            if request.same_origin and address.origin != first.origin:
                raise FetchFailed(f"{first.host!r} redirects to another host", "redirect")
            if str(address) in seen and response.status != 303:
                raise FetchFailed(f"{address.host!r} redirects in a circle", "redirect")
            seen.add(str(address))
            if response.status in (301, 302, 303) and request.method != "HEAD":
                request = msgspec.structs.replace(request, method="GET", body=b"")
        raise FetchFailed(f"{address.host!r} redirects more than {request.limits.max_redirects} times", "redirect")

    def _next_address(self, request: HttpRequest, address: WebAddress, location: str) -> WebAddress:
        try:
            return self.guard.check(urljoin(str(address), location))
        except AddressRefused as error:
            raise AddressRefused(
                f"{address.host!r} redirects to an address that is refused: {error}", by_policy=error.by_policy
            ) from error
        except ValueError:
            raise FetchFailed(f"{address.host!r} redirects to an invalid address", "redirect") from None

    async def _exchange(
        self, pool: httpcore2.AsyncConnectionPool, request: HttpRequest, address: WebAddress
    ) -> HttpResponse:
        try:
            async with pool.stream(
                request.method,
                httpcore2.URL(
                    scheme=address.scheme.encode(),
                    host=address.host.encode(),
                    port=None if address.port == DEFAULT_PORTS[address.scheme] else address.port,
                    target=address.target.encode(),
                ),
                headers=self._headers(request, address),
                content=request.body or None,
                extensions={"timeout": {"connect": CONNECT_SECONDS, "read": request.limits.seconds}},
            ) as response:
                headers = _joined_headers(response.headers)
                is_redirect = response.status in REDIRECTS and "location" in headers
                body = b"" if is_redirect else await _read_body(response, headers, request.limits, address.host)
                return HttpResponse(
                    url=str(address),
                    status=response.status,
                    headers=headers,
                    body=body,
                    is_private=not self._proxy and _came_from_private(response),
                )
        except httpcore2.TimeoutException:
            raise FetchFailed(f"{address.host!r} does not answer in time", "timeout") from None
        except (httpcore2.ProtocolError, httpcore2.UnsupportedProtocol) as error:
            raise FetchFailed(f"{address.host!r} sent an invalid answer ({_cause(error)})", "malformed") from error
        except (httpcore2.NetworkError, httpcore2.ProxyError) as error:
            raise _network_failure(error, address.host) from error

    def _headers(self, request: HttpRequest, address: WebAddress) -> list[tuple[bytes, bytes]]:
        headers = {
            "user-agent": self._user_agent,
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
            "connection": "keep-alive",
        }
        headers |= {name.lower(): value for name, value in request.headers.items()}
        headers["host"] = address.origin.partition("://")[2]
        if request.body:
            headers["content-length"] = str(len(request.body))
        return [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in headers.items()]

    def _pool(self) -> httpcore2.AsyncConnectionPool:
        if not self._proxy:
            return httpcore2.AsyncConnectionPool(
                ssl_context=self.tls, network_backend=GuardedBackend(self.guard), http2=False, retries=0
            )
        if not self._proxy.startswith(("http://", "https://")):
            raise ConfigError(f"web.proxy is {self._proxy!r}; write it as http://host:port")
        return httpcore2.AsyncHTTPProxy(proxy_url=self._proxy, ssl_context=self.tls, http2=False)

    def _turn(self, host: str) -> asyncio.Semaphore:
        """A place among the requests that may be sent to this host at the same time."""
        hosts = self._hosts.setdefault(asyncio.get_running_loop(), {})
        if len(hosts) > 1_000:
            for name in [name for name, turn in hosts.items() if not turn.locked()]:
                del hosts[name]
        return hosts.setdefault(host, asyncio.Semaphore(self._max_per_host))


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections only to addresses that the guard has just resolved and checked."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = HostNotFound(f"there is no host {host!r}")
        for address in await self._guard.resolve(host, port):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _network_failure(error: Exception, host: str) -> FetchFailed:
    if isinstance(error.__context__, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return FetchFailed(f"the certificate of {host!r} is not valid ({_cause(error)})", "tls")
    return FetchFailed(f"{host!r} cannot be reached ({_cause(error)})")


def _cause(error: BaseException) -> str:
    """The reason in a few words, without numbers and class names of the libraries."""
    inner = error.__cause__ or error.__context__
    if isinstance(inner, ssl.SSLCertVerificationError):
        return inner.verify_message
    while isinstance(inner, BaseException) and not (isinstance(inner, OSError) and inner.strerror):
        inner = inner.__cause__ or inner.__context__
    text = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(error)
    return text[:200] or type(error).__name__


def _came_from_private(response: httpcore2.Response) -> bool:
    stream = response.extensions.get("network_stream")
    peer = stream.get_extra_info("server_addr") if stream is not None else None
    # Without an address, assume the worse.
    return peer is None or address_kind(ip_address(peer[0])) != "public"


def _joined_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for count, (name, value) in enumerate(raw):
        if count >= MAX_HEADERS:
            raise FetchFailed(f"the answer has more than {MAX_HEADERS} headers", "malformed")
        key = name.decode("ascii", "replace").lower()
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        if key == "location" and key in headers:
            raise FetchFailed("the answer redirects to two addresses at once", "malformed")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


async def _read_body(response: httpcore2.Response, headers: Mapping[str, str], limits: FetchLimits, host: str) -> bytes:
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_bytes:
        raise _too_large(host, limits)
    pieces: list[bytes] = []
    total = 0
    chunks = response.aiter_stream()
    try:
        async for piece in _decoded(chunks, headers.get("content-encoding", ""), limits, host):
            total += len(piece)
            if total > limits.max_bytes:
                raise _too_large(host, limits)
            pieces.append(piece)
    except zlib.error as error:
        raise FetchFailed(f"the compressed answer of {host!r} is damaged", "malformed") from error
    return b"".join(pieces)


async def _decoded(
    chunks: AsyncIterator[bytes], encodings: str, limits: FetchLimits, host: str
) -> AsyncIterator[bytes]:
    """The body without its encodings, in bounded pieces, so that a small answer cannot fill the memory."""
    names = [name.strip().lower() for name in encodings.split(",") if name.strip().lower() not in ("", "identity")]
    if len(names) > MAX_ENCODINGS or any(name not in ("gzip", "x-gzip", "deflate") for name in names):
        raise FetchFailed(f"{host!r} answers in an encoding that is not supported: {encodings[:60]!r}", "malformed")
    decoders = [_Inflater(is_gzip=name != "deflate") for name in reversed(names)]
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        if received > limits.max_bytes:
            raise _too_large(host, limits)
        for piece in _through(decoders, chunk):
            yield piece


def _through(decoders: list[_Inflater], data: bytes) -> Iterable[bytes]:
    if not decoders:
        yield data
        return
    for piece in decoders[0].pieces(data):
        yield from _through(decoders[1:], piece)


class _Inflater:
    """Decompresses gzip (also several members in a row) or deflate (with or without its header)."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._bits = zlib.MAX_WBITS | 16 if is_gzip else zlib.MAX_WBITS
        self._is_fresh = True
        self._inner = zlib.decompressobj(self._bits)

    def pieces(self, data: bytes) -> Iterable[bytes]:
        while data:
            if self._inner.eof:
                # Padding after the last member is not another one.
                if not data.startswith(b"\x1f\x8b"):
                    return
                self._inner = zlib.decompressobj(self._bits)
            piece = self._step(data)
            self._is_fresh = False
            if piece:
                yield piece
            data = self._inner.unconsumed_tail or self._inner.unused_data
            if not piece and not self._inner.eof:
                return

    def _step(self, data: bytes) -> bytes:
        try:
            return self._inner.decompress(data, CHUNK_BYTES)
        except zlib.error:
            if not self._is_fresh or self._bits != zlib.MAX_WBITS:
                raise
            # Some servers send deflate without the header that the standard asks for.
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._inner.decompress(data, CHUNK_BYTES)


def _too_large(host: str, limits: FetchLimits) -> FetchFailed:
    return FetchFailed(
        f"the answer of {host!r} is larger than {limits.max_bytes / 1_000_000:g} MB (web.max_page_mb)", "too_large"
    )
