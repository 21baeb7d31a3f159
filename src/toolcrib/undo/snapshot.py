"""Takes down what is at the paths that a call may touch, and keeps the contents."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from toolcrib.undo.area import GIT, Area, How, Target
from toolcrib.undo.packs import PackWriter
from toolcrib.undo.states import MISSING, FileState

RACY_NS = 50_000_000
"""A file that changed so short a time ago may change again without a new time."""
LARGE_BYTES = 256_000
"""From here on, the time that a digest takes is worth saving."""
GUESSED_FILES = 500
GUESSED_BYTES = 16_000_000
HASHED_AFTERWARDS_BYTES = 64_000_000
"""Beyond so much, what a call left is known by its time alone."""
ORDER: dict[How, int] = {"tree": 0, "path": 1, "modes": 2, "guess": 3}
HEAVY_FOLDERS = frozenset({"node_modules", ".venv", "venv", "__pycache__", "target", ".tox", ".mypy_cache"})
"""Not looked into where it is a guess that something in them is touched: they can be made again."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of one call is kept."""

    max_file_bytes: int
    max_bytes: int
    """For all files of the call together."""
    max_files: int = 20_000
    seconds: float = 10.0


Kept = dict[str, tuple[str, int]]
"""Contents that are kept already, by their digest: the pack and where in it."""


class Snapshot:
    """What was at the paths of one call. Contents go into the pack, unless there is none."""

    def __init__(
        self,
        area: Area,
        limits: Limits,
        *,
        pack: PackWriter | None = None,
        kept: Kept | None = None,
        earlier: Snapshot | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.states: dict[str, FileState] = {}
        self.notes: dict[str, None] = {}
        self.newly_kept: Kept = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._area, self._files, self._limits = area, area.files, limits
        self._pack, self._kept = pack, kept if kept is not None else {}
        self._earlier = earlier
        self.began_ns = time.time_ns()
        self._clock = clock
        self._ends = clock() + limits.seconds
        self._bytes = 0
        self._is_full = False
        self._guesses = [GUESSED_FILES, GUESSED_BYTES]

    def take_all(self, targets: Iterable[Target], folder: str) -> None:
        """Take down everything that the targets name; what fails is noted."""
        # What is known for sure goes first: a guess must not use up what is left for it.
        ordered = sorted(targets, key=lambda one: ORDER[one.how])
        self._fetch([one.path for one in ordered if one.how in ("path", "tree")], folder)
        for target in ordered:
            try:
                self._take(target, folder)
            except OSError as error:
                self.note(target.path, error.strerror or str(error))

    def knew_missing(self, path: str) -> bool:
        """Whether nothing was at a path that was not taken down itself; False where that is not certain."""
        while path:
            above, _, name = path.rpartition("/")
            if above in self.states and self.states[above].kind != "folder":
                return True
            if above in self._listed:
                return name not in self._listed[above]
            path = above
        return False

    def _fetch(self, paths: Sequence[str], folder: str) -> None:
        if not self._files.is_far:
            return
        try:
            placed = [self._area.placed(path, folder) for path in paths if path and "\0" not in path]
            self._files.fetch([path for path in placed if self._area.holds(path)], self._limits.max_bytes)
        except OSError as error:
            self.notes[f"not kept: {error}"] = None

    def take_paths(self, paths: Iterable[str]) -> None:
        """Take down what is at paths that were looked at before; behind a link nothing is at the path itself."""
        wanted = list(paths)
        self._fetch(wanted, "")
        real: dict[str, str] = {}
        for path in wanted:
            above = path.rpartition("/")[0] or "/"
            try:
                if above not in real:
                    real[above] = self._files.real(above)
                if real[above] != above:
                    self.states[path] = MISSING
                    continue
                self._take_missing_above(path)
                self._walk(path, "path")
            except OSError as error:
                self.note(path, error.strerror or str(error))

    def note(self, path: str, reason: str) -> None:
        self.notes[f"not kept: {path}: {reason}"] = None

    def _take(self, target: Target, folder: str) -> None:
        if "\0" in target.path or not target.path:
            return
        path = self._area.placed(target.path, folder)
        if not self._area.may_enter(path):
            if GIT in path.split("/"):
                self.note(path, "what git keeps is not touched by undo")
            return
        self._take_missing_above(path)
        self._walk(path, target.how)
        state = self.states.get(path)
        if state is not None and state.kind == "link" and self._earlier is None:
            # What is written goes through the link, and what lies outside is not ours to copy.
            real = self._files.real(path)
            if self._area.holds(real) and real != path:
                self._walk(real, "path")

    def _take_missing_above(self, path: str) -> None:
        for above in self._area.missing_above(path):
            self.states.setdefault(above, MISSING)

    def _walk(self, path: str, how: How) -> None:
        if not self._area.may_enter(path):
            if path.endswith(f"/{GIT}"):
                self.note(path, "what git keeps is not touched by undo")
            return
        is_guess = how == "guess"
        if not self._has_time(path) or (is_guess and self._guesses[0] <= 0):
            return
        state = self._files.look(path)
        if is_guess and state.kind == "file" and (state.size > self._guesses[1] or path in self.states):
            return
        if self._area.holds(path) and path not in self.states:
            self.states[path] = self._completed(path, state, how)
            if is_guess:
                self._guesses[0] -= 1
                self._guesses[1] -= state.size
        if state.kind == "folder" and how != "path" and not (is_guess and path.rpartition("/")[2] in HEAVY_FOLDERS):
            names = self._files.names(path)
            self._listed[path] = frozenset(names)
            for name in names:
                self._walk(f"{path.rstrip('/')}/{name}", how)

    def _has_time(self, path: str) -> bool:
        if len(self.states) >= self._limits.max_files:
            reason = f"the call touches more than {self._limits.max_files} files"
        elif self._clock() > self._ends:
            reason = "it would have taken too long"
        else:
            return True
        if not self._is_full:
            self._is_full = True
            self.note(f"{path} and what comes after it", reason)
        return False

    def _completed(self, path: str, state: FileState, how: How) -> FileState:
        """The state with the digest of a file, and where its content is kept."""
        if state.kind != "file" or how == "modes":
            return state
        known = self._known(path, state)
        if known:
            return replace(state, digest=known)
        if self._pack is None and (self._is_new(path, state) or self._bytes + state.size > HASHED_AFTERWARDS_BYTES):
            return state
        if state.size > self._limits.max_file_bytes:
            limit = self._limits.max_file_bytes / 1_000_000
            return replace(state, not_kept=f"it was larger than {limit:g} MB, so that no copy was kept")
        if self._pack is not None and self._bytes + state.size > self._limits.max_bytes:
            return replace(state, not_kept="there was no room for another copy")
        try:
            content = self._files.read(path, self._limits.max_file_bytes)
        except OSError:
            return replace(state, not_kept="it could not be read, so that no copy was kept")
        if content is None:
            return replace(state, not_kept="it grew while it was looked at")
        return self._with_content(state, content)

    def _known(self, path: str, state: FileState) -> str:
        """The digest of a file that is certainly the one that was read earlier; "" where it must be read again."""
        earlier = self._earlier.states.get(path) if self._earlier is not None else None
        if self._earlier is None or earlier is None or not state.touched_ns:
            return ""
        same = (state.stamp, state.touched_ns, state.size) == (earlier.stamp, earlier.touched_ns, earlier.size)
        # Right after a change, the clock of the disk is too coarse to tell the next one.
        return earlier.digest if same and self._earlier.began_ns - state.touched_ns > RACY_NS else ""

    def _is_new(self, path: str, state: FileState) -> bool:
        """Whether a large file is certainly not what it was, so that its time alone says what the call left."""
        if self._earlier is None or state.size < LARGE_BYTES or not state.stamp:
            return False
        earlier = self._earlier.states.get(path)
        return earlier is None or earlier.kind != "file" or earlier.stamp != state.stamp

    def _with_content(self, state: FileState, content: bytes) -> FileState:
        digest = hashlib.sha256(content).hexdigest()
        self._bytes += len(content)
        if self._pack is None:
            return replace(state, digest=digest, size=len(content))
        place = self._kept.get(digest) or self.newly_kept.get(digest)
        if place is None or not self._pack.is_there(place[0]):
            place = self.newly_kept[digest] = self._pack.name, self._pack.add(content)
        return replace(state, digest=digest, size=len(content), pack=place[0], offset=place[1])
