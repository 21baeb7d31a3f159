"""A real web server on loopback that records what it is asked."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Page = tuple[int, Mapping[str, str], bytes]


@dataclass(frozen=True)
class SiteRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Site:
    """The pages of a server, by path with query, and the requests that it got."""

    port: int = 0
    pages: dict[str, Page | Callable[[SiteRequest], Page]] = field(default_factory=dict)
    requests: list[SiteRequest] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    """Set when the test is over; a page that waits for it never answers in time."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, asked: SiteRequest) -> Page:
        self.requests.append(asked)
        page = self.pages.get(asked.path) or self.pages.get(asked.path.partition("?")[0])
        if page is None:
            return 404, {"content-type": "text/plain"}, b"no such page"
        return page(asked) if callable(page) else page


@contextmanager
def serve(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A server on a free port of 127.0.0.1."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = SiteRequest(self.command, self.path, headers, self.rfile.read(length))
            status, headers, body = site.answer(asked)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if not any(name.lower() in ("content-length", "transfer-encoding") for name in headers):
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names that the server looks for

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    site.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
