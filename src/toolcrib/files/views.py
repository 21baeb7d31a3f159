"""What a session's model has seen of files: keeps repeats short, and unseen changes from being overwritten."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

MAX_VIEWS = 4_096
"""Beyond this the oldest are forgotten, and their files count as unseen."""

_Key = tuple[str, Hashable, str]


@dataclass(frozen=True, slots=True)
class FileView:
    """What the model last saw of one file."""

    stamp: str
    """The `stamp` of its FileStatus at that time."""
    whole: bool
    """Whether the model saw all of it, not only some lines."""
    digest: str = ""
    """The SHA-256 of its content at that time, in hex, if all of it was read."""

    def is_of(self, stamp: str, digest: str = "") -> bool:
        """Whether the current file is the one that was seen: by content if known, else by stamp."""
        if self.digest and digest:
            return self.digest == digest
        return bool(stamp) and self.stamp == stamp


class FileViews:
    """The last view for each session, environment and real path. Bounded, in memory, thread-safe.

    An environment is identified by anything hashable: its EnvironmentSpec.
    """

    def __init__(self, max_views: int = MAX_VIEWS) -> None:
        self._max_views = max_views
        self._views: OrderedDict[_Key, FileView] = OrderedDict()
        self._shown: OrderedDict[tuple[_Key, str, Hashable], int] = OrderedDict()
        self._lock = threading.Lock()

    def seen(
        self, session_key: str, place_key: Hashable, real_path: str, stamp: str, whole: bool, digest: str = ""
    ) -> None:
        """Record that the model knows this version; seeing a part of a version that it has seen whole changes nothing.

        A version that it wrote itself has no stamp yet; the next stamp that is seen is assumed to be its own.
        """
        key = (session_key, place_key, real_path)
        with self._lock:
            old = self._views.pop(key, None)
            if old is not None and stamp and old.stamp in (stamp, ""):
                whole, digest = whole or old.whole, digest or (old.digest if old.stamp else "")
            self._views[key] = FileView(stamp, whole, digest)
            _drop_oldest(self._views, self._max_views)

    def last(self, session_key: str, place_key: Hashable, real_path: str) -> FileView | None:
        """What the session last saw of the file; None if it has not seen it."""
        with self._lock:
            return self._views.get((session_key, place_key, real_path))

    def forget(self, session_key: str, place_key: Hashable, real_path: str) -> None:
        """Make the file count as unseen."""
        with self._lock:
            self._views.pop((session_key, place_key, real_path), None)

    def times_shown(self, session_key: str, place_key: Hashable, real_path: str, stamp: str, part: Hashable) -> int:
        """How often this part of this version was requested before; each call counts."""
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
