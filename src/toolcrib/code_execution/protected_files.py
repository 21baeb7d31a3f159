"""Files of a project that scripts must not touch: `.env` files are hidden, git hooks and settings are restored."""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

DEEPEST = 3
MOST_FOLDERS = 400
"""Scanned before every script, so deeply nested files and files in very large trees are not found."""
NOT_OF_THE_PROJECT = frozenset({"node_modules", "venv", "__pycache__"})
HARMLESS_ENDINGS = ("example", "sample", "template", "dist", "test")


def secret_files(project: Path) -> dict[str, str]:
    """The secret files that can be found quickly: the path below the project, and the identity of the file.

    A file that replaces one of them is another file, which hiding the first does not hide.
    """
    found: dict[str, str] = {}
    for entry in project_entries(project):
        if entry.name.startswith(".env") and not entry.name.endswith(HARMLESS_ENDINGS):
            try:
                status = entry.stat()
            except OSError:
                continue
            found[os.path.relpath(entry.path, project)] = f"{status.st_dev}.{status.st_ino}"
    return found


def project_entries(project: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of the project's folders, breadth first, as far as that is quick."""
    folders = deque([(str(project), 1)])
    for _ in range(MOST_FOLDERS):
        if not folders:
            return
        folder, depth = folders.popleft()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            yield entry
            is_ordinary = not entry.name.startswith(".") and entry.name not in NOT_OF_THE_PROJECT
            if depth < DEEPEST and is_ordinary and entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, depth + 1))


SETTINGS = ("config", "config.worktree")
HOOKS = "hooks"
SAMPLE = ".sample"
"""Git never runs a hook with this suffix."""
LARGEST = 4_000_000
USABLE = 0o700


class _File(Struct, frozen=True):
    mode: int
    size: int
    data: bytes
    """Its content, up to the largest size that is kept, or the target of a link."""


class _Repository(Struct, frozen=True):
    path: Path
    """The path of `.git`, usually a folder."""
    identity: tuple[int, int, int]
    files: dict[Path, _File]


class GitGuards:
    """Guards for the projects in which scripts run now; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._around: dict[Path, tuple[GitGuard, int]] = {}

    def enter(self, project: Path) -> None:
        """A script is about to run in the project. Concurrent scripts share one guard: what the first one wrote
        must not count as the state before the second."""
        with self._lock:
            guard, scripts = self._around.get(project) or (GitGuard(project), 0)
            self._around[project] = guard, scripts + 1

    def leave(self, project: Path) -> str:
        """A script has ended. When the last one has, restore the files and return a message about it."""
        with self._lock:
            guard, scripts = self._around.pop(project)
            if scripts > 1:
                self._around[project] = guard, scripts - 1
                return ""
            return guard.restore()


class GitGuard:
    """The repositories of a project, as they were when the guard was created."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._before = [_inspect(Path(entry.path)) for entry in project_entries(project) if entry.name == ".git"]

    def restore(self) -> str:
        """Undo what has changed since, and return a message, empty if nothing did. Nothing else may write meanwhile."""
        changed: list[str] = []
        for repository in self._before:
            try:
                changed += self._restore(repository)
            except OSError as error:
                changed.append(f"{self._shown(repository.path)} (as far as possible: {error.strerror or error})")
        if not changed:
            return ""
        return (
            f"the script's changes to {', '.join(changed)} were undone, because git would run them outside the "
            "sandbox; use the terminal tool for that"
        )

    def _restore(self, before: _Repository) -> list[str]:
        now = _identity(before.path)
        if now != before.identity:
            return [self._set_aside(before.path)] if now[0] else []
        if stat.S_ISDIR(now[0]):
            _make_usable(before.path)
            _make_usable(before.path / HOOKS)
        files = _inspect(before.path).files
        # Folders come first: a hook cannot be restored into a link.
        changed = sorted(path for path in {*before.files, *files} if before.files.get(path) != files.get(path))
        for path in changed:
            self._restore_file(path, before.files.get(path))
        return [self._shown(path) for path in changed]

    def _restore_file(self, path: Path, before: _File | None) -> None:
        now = _identity(path)[0]
        if before is not None and stat.S_ISDIR(before.mode) and stat.S_ISDIR(now):
            path.chmod(stat.S_IMODE(before.mode))
            return
        if stat.S_ISDIR(now) or (before is not None and before.size > LARGEST):
            # Not deleted: it may contain something valuable.
            self._set_aside(path)
        elif now:
            path.unlink()
        if before is None or before.size > LARGEST:
            return
        if stat.S_ISLNK(before.mode):
            path.symlink_to(os.fsdecode(before.data))
        elif stat.S_ISDIR(before.mode):
            path.mkdir(stat.S_IMODE(before.mode))
        elif stat.S_ISREG(before.mode):
            path.write_bytes(before.data)
            path.chmod(stat.S_IMODE(before.mode))

    def _set_aside(self, path: Path) -> str:
        """Rename what is where git looks; returns both names."""
        aside = next(
            other
            for number in itertools.count(1)
            if not os.path.lexists(other := path.with_name(f"{path.name}.of-script-{number}"))
        )
        path.rename(aside)
        return f"{self._shown(path)} (now {aside.name})"

    def _shown(self, path: Path) -> str:
        return os.path.relpath(path, self._project)


def _inspect(path: Path) -> _Repository:
    """The files that git runs, or that tell it what to run; `.git` itself if it is not a folder."""
    identity = _identity(path)
    if not stat.S_ISDIR(identity[0]):
        return _Repository(path, identity, _files([path]))
    hooks = path / HOOKS
    names = [path / name for name in SETTINGS] + [hooks]
    if stat.S_ISDIR(_identity(hooks)[0]):
        names += [hook for hook in _inside(hooks) if hook.suffix != SAMPLE]
    return _Repository(path, identity, _files(names))


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _files(paths: list[Path]) -> dict[Path, _File]:
    found = {}
    for path in paths:
        try:
            found[path] = _read(path)
        except OSError:
            continue
    return found


def _read(path: Path) -> _File:
    status = path.lstat()
    mode, size, data = status.st_mode, 0, b""
    if stat.S_ISLNK(mode):
        data = os.fsencode(path.readlink())
    elif stat.S_ISREG(mode):
        size = status.st_size
        with path.open("rb") as file:
            data = file.read(LARGEST)
    return _File(mode, size, data)


def _identity(path: Path) -> tuple[int, int, int]:
    """File type, device and inode; zeros if nothing is there."""
    try:
        status = path.lstat()
    except OSError:
        return 0, 0, 0
    return stat.S_IFMT(status.st_mode), status.st_dev, status.st_ino


def _make_usable(folder: Path) -> None:
    """Make a folder accessible: an inaccessible one could hide its content until later."""
    status = folder.lstat() if os.path.lexists(folder) else None
    if status is not None and stat.S_ISDIR(status.st_mode) and status.st_mode & USABLE != USABLE:
        folder.chmod(stat.S_IMODE(status.st_mode) | USABLE)
