"""What the model of a session has seen of files: so that a repeat is short, and no unseen change is overwritten."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

MAX_VIEWS = 4_096
"""The oldest are forgotten; then a file counts as not seen."""

_Key = tuple[str, Hashable, str]


@dataclass(frozen=True, slots=True)
class FileView:
    """What was last seen of one file."""

    stamp: str
    """The `stamp` of its FileStatus then."""
    whole: bool
    """All of it was seen, not only some lines."""
    digest: str = ""
    """The SHA-256 in hex of its content then, where all of it was at hand."""

    def is_of(self, stamp: str, digest: str = "") -> bool:
        """Whether the file, as it is now, is what was seen: by its content where that is known, else by its stamp."""
        if self.digest and digest:
            return self.digest == digest
        return bool(stamp) and self.stamp == stamp


class FileViews:
    """Of each session, place and real path the last view. Bounded; in memory; safe from any thread.

    A place is named by anything hashable that tells it from others: its EnvironmentSpec.
    """

    def __init__(self, max_views: int = MAX_VIEWS) -> None:
        self._max_views = max_views
        self._views: OrderedDict[_Key, FileView] = OrderedDict()
        self._shown: OrderedDict[tuple[_Key, str, Hashable], int] = OrderedDict()
        self._lock = threading.Lock()

    def seen(
        self, session_key: str, place_key: Hashable, real_path: str, stamp: str, whole: bool, digest: str = ""
    ) -> None:
        """Take down that the model knows this version; a part of one that it has seen whole takes nothing away.

        What it wrote itself has no stamp yet: the next one that is seen is taken for it.
        """
        key = (session_key, place_key, real_path)
        with self._lock:
            old = self._views.pop(key, None)
            if old is not None and stamp and old.stamp in (stamp, ""):
                whole, digest = whole or old.whole, digest or (old.digest if old.stamp else "")
            self._views[key] = FileView(stamp, whole, digest)
            _drop_oldest(self._views, self._max_views)

    def last(self, session_key: str, place_key: Hashable, real_path: str) -> FileView | None:
        """What the session last saw of the file; None when it has not seen it."""
        with self._lock:
            return self._views.get((session_key, place_key, real_path))

    def forget(self, session_key: str, place_key: Hashable, real_path: str) -> None:
        """Let the file count as not seen."""
        with self._lock:
            self._views.pop((session_key, place_key, real_path), None)

    def times_shown(self, session_key: str, place_key: Hashable, real_path: str, stamp: str, part: Hashable) -> int:
        """How often this part of this very version was asked for before this time; each question counts."""
        key = ((session_key, place_key, real_path), stamp, part)
        with self._lock:
            times = self._shown.pop(key, 0)
            self._shown[key] = times + 1
            _drop_oldest(self._shown, self._max_views)
            return times


def digest_of(data: bytes) -> str:
    """The SHA-256 in hex, as `FileView.digest` and `Environment.write_file(expected=…)` take it."""
    return hashlib.sha256(data).hexdigest()


def _drop_oldest(kept: OrderedDict[_Key, FileView] | OrderedDict[tuple[_Key, str, Hashable], int], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
