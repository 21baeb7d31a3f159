"""Downloads weights from the model hub and resumes broken transfers."""

from __future__ import annotations

import http.client
import queue
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from toolcrib.providers.embedded.download import CHUNK_BYTES, Download, DownloadFailed

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
MAX_RESUMES = 5
"""How often to resume a transfer that broke after some bytes."""


def fetch_from_hub(download: Download, hub_address: str) -> Path:
    """Download the file from the hub, unchecked. Raises DownloadFailed; keeps what arrived so far."""
    wanted = download.model.hub
    address = f"{hub_address}/{wanted.repository}/resolve/{wanted.revision}/{wanted.file}"
    target = download.folder / "hub.part"
    for _ in range(MAX_RESUMES):
        before = _size(target)
        if before == download.model.bytes:
            break
        download.need_room(download.model.bytes - before)
        _fetch_rest(download, address, target)
        if _size(target) == before:
            break
    if _size(target) != download.model.bytes:
        raise DownloadFailed(f"the transfer from {_host(address)} broke off at {_size(target):,} bytes")
    return target


def _fetch_rest(download: Download, address: str, target: Path) -> None:
    have = _size(target)
    with _open(address, {"Range": f"bytes={have}-"} if have else {}) as response:
        if response.status != http.client.PARTIAL_CONTENT:
            have = 0
        length = response.headers.get("Content-Length")
        if length is not None and have + int(length) != download.model.bytes:
            target.unlink(missing_ok=True)
            raise DownloadFailed(f"{_host(address)} has a different file under that name")
        with target.open("ab" if have else "wb") as file:
            _copy(download, response, file, have)


def _copy(download: Download, response: IO[bytes], file: IO[bytes], done: int) -> None:
    """Append what arrives until the transfer ends or breaks; the size of the file tells which."""
    while done < download.model.bytes:
        download.report(done, f"downloading {download.model.title}")
        try:
            chunk = response.read(min(CHUNK_BYTES, download.model.bytes - done))
        except (OSError, http.client.HTTPException):
            return
        if not chunk:
            return
        file.write(chunk)
        done += len(chunk)
    download.report(done, f"downloading {download.model.title}")


def _open(address: str, headers: Mapping[str, str]) -> Any:
    """The hub's response. Opened on a separate thread, because name lookup has no timeout."""
    connected = threading.Event()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    opener = urllib.request.build_opener(_Http(connected), _Https(connected))
    request = urllib.request.Request(address, headers={"User-Agent": "toolcrib", **headers})

    def work() -> None:
        try:
            answer.put(opener.open(request, timeout=CONNECT_SECONDS))
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer.put(error)

    threading.Thread(target=work, name="model-hub", daemon=True).start()
    try:
        response = answer.get(timeout=CONNECT_SECONDS)
    except queue.Empty:
        if not connected.is_set():
            raise DownloadFailed(f"cannot reach {_host(address)} within {CONNECT_SECONDS:.0f} seconds") from None
        response = _wait_for_response(answer, address)
    if isinstance(response, HTTPError):
        response.close()
        raise DownloadFailed(f"{_host(address)} answered {response.code} {response.reason}")
    if isinstance(response, Exception):
        raise DownloadFailed(f"cannot reach {_host(address)} ({getattr(response, 'reason', response)})")
    return response


def _wait_for_response(answer: queue.SimpleQueue[Any], address: str) -> Any:
    try:
        return answer.get(timeout=READ_SECONDS)
    except queue.Empty:
        raise DownloadFailed(f"{_host(address)} did not answer within {READ_SECONDS:.0f} seconds") from None


class _PatientConnection:
    """A connection with a short timeout to connect and a long one to read."""

    def __init__(self, connected: threading.Event) -> None:
        super().__init__()
        self._connected = connected

    def making(self, kind: type[http.client.HTTPConnection]) -> Any:
        connected = self._connected

        class Connection(kind):  # type: ignore[misc, valid-type]
            def connect(self) -> None:
                super().connect()
                self.sock.settimeout(READ_SECONDS)
                connected.set()

        return Connection


class _Http(_PatientConnection, urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self.making(http.client.HTTPConnection), req)


class _Https(_PatientConnection, urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self.making(http.client.HTTPSConnection), req)


def _host(address: str) -> str:
    return urlsplit(address).hostname or address


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
