"""What every source of weights is told, and how it says that it has none."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from toolcrib.core.context import CancelToken
from toolcrib.core.models import ModelError
from toolcrib.providers.embedded.catalog import EmbeddedModel

Progress = Callable[[int, int, str], None]
"""Called with the bytes that are there, the bytes of the whole file, and what is being done, in a few words."""

CHUNK_BYTES = 1 << 20
SPARE_BYTES = 50_000_000


class SourceFailed(Exception):
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
