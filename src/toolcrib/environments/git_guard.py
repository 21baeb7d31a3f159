"""Keeps sandboxed programs from leaving anything that git runs outside: hooks, settings, other repositories.

A sandbox lets its programs write in the workspace, and git trusts what it finds there. So what decides what git runs
is compared before and after, in every repository of the workspace, and put back; a new repository keeps its objects,
refs and harmless settings, but none that start a program. Objects, refs and the index are never touched.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from toolcrib.core.git_metadata import (
    HOOKS,
    SAMPLE,
    SETTINGS_FILES,
    STRUCTURE,
    GitSetting,
    harmful_settings,
    harmless_settings,
    starts_nothing,
)

MOST_FOLDERS = 20_000
"""Looked at when a workspace is first used, the outer ones first; what was there beyond them is never looked at."""
MOST_NEW_FOLDERS = 200_000
"""Looked at later, in addition. A program could make more than any number, so it is told to the person."""
SETTLED_NS = 50_000_000
"""A folder that changed this recently may have changed again without a new time."""
OBJECT_FOLDER = re.compile(r"[0-9a-f]{2}")
WORKTREES = "worktrees"
GIT = ".git"
COMMON = "commondir"
LINKED = frozenset({"HEAD", COMMON})
"""The names that make a folder a repository whose objects and settings are elsewhere."""
ATTRIBUTES = "info/attributes"
TODO = "rebase-merge/git-rebase-todo"
EXEC_LINE = re.compile(rb"[ \t]*(?:exec|x)[ \t].*", re.IGNORECASE)
"""What an unfinished rebase runs when it goes on."""
LARGEST = 4_000_000
MOST_INCLUDED = 20
USABLE = 0o700
POINTER = b"gitdir:"
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class _Folder(Struct, frozen=True):
    """One folder as it was listed."""

    changed_ns: int
    subfolders: tuple[str, ...]
    repositories: tuple[str, ...]


class RepositoryFinder:
    """Finds the repositories of a workspace by their structure, and lists again only the folders that changed."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = str(workspace)
        self._folders: dict[str, _Folder] = {}
        self._beyond: frozenset[str] | None = None
        """The folders behind the limit when the workspace was first used; None before that."""
        self.unseen = 0
        """How many new folders were not looked at the last time."""

    def find(self) -> list[Path]:
        """Every `.git`, whatever it is, and every folder that git would take for a repository."""
        before, self._folders = self._folders, {}
        found: dict[str, None] = {}
        waiting = deque([self._workspace])
        beyond = self._beyond or frozenset()
        for _ in range(MOST_FOLDERS + (MOST_NEW_FOLDERS if self._beyond is not None else 0)):
            if not waiting:
                break
            path = waiting.popleft()
            try:
                changed = os.stat(path, follow_symlinks=False).st_ctime_ns  # noqa: PTH116 - thousands of times
                folder = before.get(path)
                if folder is None or folder.changed_ns != changed:
                    folder = _listed(path, changed)
            except PermissionError:
                _make_usable(Path(path))
                continue
            except OSError:
                continue
            if changed < time.time_ns() - SETTLED_NS:
                self._folders[path] = folder
            found.update(dict.fromkeys(folder.repositories))
            waiting += [each for each in folder.subfolders if each not in beyond]
        if self._beyond is None:
            self._beyond = frozenset(waiting)
            waiting.clear()
        self.unseen = len(waiting)
        return [Path(path) for path in found]


def _listed(path: str, changed_ns: int) -> _Folder:
    with os.scandir(path) as entries:
        folders = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    repositories = [f"{path}/{GIT}"] if GIT in folders else []
    subfolders = [name for name, is_folder in folders.items() if is_folder]
    parent, _, name = path.rpartition("/")
    keys = folders.keys()
    if keys >= STRUCTURE or keys >= LINKED or name == GIT or parent.endswith(f"/{WORKTREES}"):
        repositories.append(path)
    if name == "objects":
        subfolders = [each for each in subfolders if not OBJECT_FOLDER.fullmatch(each)]
    return _Folder(changed_ns, tuple(f"{path}/{name}" for name in sorted(subfolders)), tuple(repositories))


class _File(Struct, frozen=True):
    mode: int
    size: int
    data: bytes
    """Its content, up to the largest size that is kept, or the target of a link."""


class _Repository(Struct, frozen=True):
    path: Path
    """The folder of the repository, or a `.git` that is none."""
    identity: tuple[int, int, int]
    files: dict[Path, _File]
    hook_folders: tuple[Path, ...] = ()
    """Where git looked for hooks at first, inside the workspace. Never taken from settings that a program wrote:
    whatever lies in a folder that it names would be taken for new hooks, and removed."""
    included: tuple[Path, ...] = ()
    """The settings files inside the workspace that those of the repository included at first."""


class GitGuards:
    """Guards for the workspaces in which sandboxed programs run now; may be used from any thread."""

    def __init__(self, who: str) -> None:
        self._who = who
        """Whose changes are undone, for the message."""
        self._lock = threading.Lock()
        self._around: dict[Path, tuple[GitGuard, int]] = {}
        self._finders: dict[Path, RepositoryFinder] = {}

    def enter(self, workspace: Path) -> None:
        """A program is about to run in the workspace. Concurrent ones share a guard: what the first one wrote
        must not count as the state before the second."""
        with self._lock:
            finder = self._finders.setdefault(workspace, RepositoryFinder(workspace))
            guard, programs = self._around.get(workspace) or (GitGuard(workspace, self._who, finder), 0)
            self._around[workspace] = guard, programs + 1

    def check(self, workspace: Path) -> str:
        """Restore the files while programs run, and return a message about it."""
        with self._lock:
            return self._around[workspace][0].restore() if workspace in self._around else ""

    def leave(self, workspace: Path) -> str:
        """A program has ended. Restore the files and return a message about it."""
        with self._lock:
            guard, programs = self._around.pop(workspace)
            if programs > 1:
                self._around[workspace] = guard, programs - 1
            return guard.restore()


class GitGuard:
    """The repositories of a workspace, as they were when the guard was created."""

    def __init__(self, workspace: Path, who: str, finder: RepositoryFinder) -> None:
        self._workspace = workspace
        self._who = who
        self._finder = finder
        self._top = os.path.realpath(workspace)
        self._before = {
            path: _inspect(path, _hook_folders(path, workspace), _included(path, workspace)) for path in finder.find()
        }

    def restore(self) -> str:
        """Undo what has changed since, and return a message, empty if nothing did."""
        changed: list[str] = []
        for repository in self._before.values():
            changed += self._attempt(repository.path, self._restore(repository))
        for path in self._finder.find():
            if path not in self._before:
                changed += self._attempt(path, self._defuse(path))
        notes = []
        if changed:
            notes.append(
                f"{self._who} changes to {', '.join(dict.fromkeys(changed))} were undone, because git would run them "
                "outside the sandbox"
            )
        if self._finder.unseen:
            notes.append(
                f"{self._who} new folders are too many to look at ({self._finder.unseen:,} were not): do not use git "
                "in them, it may run what was put there"
            )
        return "; ".join(notes)

    def _attempt(self, path: Path, steps: Iterator[str]) -> list[str]:
        done: list[str] = []
        try:
            done += steps
        except OSError as error:
            link = self._link_above(path)
            if link is not None:
                return [*done, self._set_aside(link)]
            done.append(f"{self._shown(path)} (as far as possible: {error.strerror or error})")
        return done

    def _link_above(self, path: Path) -> Path | None:
        """The link that was put in place of a folder above a path."""
        if not path.is_relative_to(self._workspace):
            return None
        folders = [each for each in reversed(path.parents) if each != self._workspace]
        return next((each for each in folders if each.is_relative_to(self._workspace) and each.is_symlink()), None)

    def _is_harmless(self, file: Path, setting: GitSetting) -> bool:
        """Whether a setting of a file starts nothing and keeps the work tree inside the workspace."""
        if setting.name == "core.worktree":
            tree = os.path.realpath(file.parent / Path(setting.value).expanduser())
            return Path(tree).is_relative_to(self._top)
        return starts_nothing(setting)

    def _starts_the_same(self, path: Path, before: _File | None, now: _File | None, *, is_settings: bool) -> bool:
        """Whether two versions of a file make git run the same: a new branch or remote is harmless."""
        if now is None or not stat.S_ISREG(now.mode) or now.size > LARGEST:
            return False
        if before is not None and (not stat.S_ISREG(before.mode) or before.size > LARGEST):
            return False
        if path.match(TODO):
            return _exec_lines(now) <= (_exec_lines(before) if before is not None else frozenset())
        if not is_settings:
            return False

        def is_harmless(setting: GitSetting) -> bool:
            return self._is_harmless(path, setting)

        earlier = harmful_settings(_text(before), is_harmless) if before is not None else frozenset()
        return earlier is not None and harmful_settings(_text(now), is_harmless) == earlier

    def _restore(self, before: _Repository) -> Iterator[str]:
        now = _identity(before.path)
        if now != before.identity:
            if now[0]:
                yield self._set_aside(before.path)
            return
        if stat.S_ISDIR(now[0]):
            _make_usable(before.path)
            _make_usable(before.path / HOOKS)
        files = _inspect(before.path, before.hook_folders, before.included).files
        # Folders come first: a hook cannot be restored into a link.
        for path in sorted({*before.files, *files}):
            earlier, later = before.files.get(path), files.get(path)
            is_settings = path.name in SETTINGS_FILES or path in before.included
            if earlier != later and not self._starts_the_same(path, earlier, later, is_settings=is_settings):
                if later is not None and path.match(TODO) and stat.S_ISREG(later.mode):
                    yield self._without_exec(path, later)
                    continue
                if later is not None and not path.is_relative_to(before.path):
                    # A file of the work tree is somebody's work, so it is not deleted.
                    self._set_aside(path)
                self._restore_file(path, earlier)
                yield self._shown(path)

    def _without_exec(self, path: Path, file: _File) -> str:
        """Keep the rest of an unfinished rebase, but none of the commands that it would run."""
        aside = self._set_aside(path)
        lines = file.data.splitlines(keepends=True)
        with self._folder_of(path) as folder:
            kept = b"".join(line for line in lines if not EXEC_LINE.match(line))
            _create(path.name, kept, file.mode, folder)
        return aside

    def _restore_file(self, path: Path, before: _File | None) -> None:
        now = _identity(path)[0]
        is_same_folder = before is not None and stat.S_ISDIR(before.mode) and stat.S_ISDIR(now)
        if not is_same_folder and (stat.S_ISDIR(now) or (before is not None and before.size > LARGEST)):
            # Not deleted: it may contain something valuable.
            self._set_aside(path)
            now = 0
        with self._folder_of(path) as folder:
            if now and not is_same_folder:
                os.unlink(path.name, dir_fd=folder)
            if before is None or before.size > LARGEST:
                return
            if stat.S_ISLNK(before.mode):
                os.symlink(before.data, path.name, dir_fd=folder)
            elif stat.S_ISDIR(before.mode):
                if not is_same_folder:
                    os.mkdir(path.name, dir_fd=folder)
                _set_mode(path.name, OPEN_FOLDER, before.mode, folder)
            elif stat.S_ISREG(before.mode):
                _create(path.name, before.data, before.mode, folder)

    def _defuse(self, path: Path) -> Iterator[str]:
        """Take out of a new repository what git would run; yields what was set aside."""
        kind = _identity(path)[0]
        if not stat.S_ISDIR(kind):
            if kind and not self._points_inside(path, kind):
                yield self._set_aside(path)
            return
        _make_usable(path)
        _make_usable(path / HOOKS)
        # One that was only moved keeps what it had.
        moved = next((one for one in self._before.values() if one.identity == _identity(path)), None)
        for file, content in _inspect(path, (path / HOOKS,)).files.items():
            if moved is not None and moved.files.get(moved.path / file.relative_to(path)) == content:
                continue
            if stat.S_ISDIR(content.mode) and file.name == HOOKS:
                continue
            if file.name in SETTINGS_FILES and stat.S_ISREG(content.mode):
                is_harmless = functools.partial(self._is_harmless, file)
                if harmful_settings(_text(content), is_harmless) != frozenset():
                    yield self._set_aside(file)
                    with self._folder_of(file) as folder:
                        harmless = harmless_settings(_text(content), is_harmless).encode("utf-8", "surrogateescape")
                        _create(file.name, harmless, content.mode, folder)
            elif file.match(TODO) and stat.S_ISREG(content.mode):
                if _exec_lines(content):
                    yield self._without_exec(file, content)
            elif file.name == COMMON and path.parent.name == WORKTREES and content.data.strip() == b"../..":
                continue
            else:
                yield self._set_aside(file)

    def _points_inside(self, path: Path, kind: int) -> bool:
        """Whether a new `.git` that is a file leads to a repository of the workspace, where the guard looks."""
        if not stat.S_ISREG(kind):
            return False
        content = _read(path).data
        if not content.startswith(POINTER):
            return False
        target = Path(os.path.realpath(path.parent / os.fsdecode(content.removeprefix(POINTER).strip())))
        return target.is_relative_to(os.path.realpath(self._workspace)) and target in [
            Path(os.path.realpath(found)) for found in self._finder.find()
        ]

    def _set_aside(self, path: Path) -> str:
        """Rename what is where git looks; returns both names."""
        with self._folder_of(path) as folder:
            taken = set(os.listdir(folder))  # noqa: PTH208 - of a descriptor
            names = (f"{path.name}.of-script-{number}" for number in itertools.count(1))
            aside = next(name for name in names if name not in taken)
            os.rename(path.name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        return f"{self._shown(path)} (now {aside})"

    @contextmanager
    def _folder_of(self, path: Path) -> Iterator[int]:
        """The folder that contains a path, opened from the workspace on without following links.

        Programs may still run and put a link in its place at any moment. Whatever is changed is changed in the opened
        folder, so nothing outside the workspace ever is.
        """
        real = Path(os.path.realpath(self._workspace))
        top = self._workspace if path.is_relative_to(self._workspace) else real
        if not path.is_relative_to(top):
            raise OSError(errno.ELOOP, "it leads out of the workspace")
        folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in path.relative_to(top).parts[:-1]:
                inner = os.open(name, OPEN_FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _shown(self, path: Path) -> str:
        return os.path.relpath(path, self._workspace)


def _create(name: str, data: bytes, mode: int, folder: int) -> None:
    """A new file; fails if anything is in its place."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, stat.S_IMODE(mode))


def _set_mode(name: str, flags: int, mode: int, folder: int) -> None:
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        os.fchmod(descriptor, stat.S_IMODE(mode))
    finally:
        os.close(descriptor)


def _exec_lines(file: _File) -> frozenset[bytes]:
    return frozenset(line.strip() for line in file.data.splitlines() if EXEC_LINE.match(line))


def _text(file: _File) -> str:
    return file.data.decode("utf-8", "surrogateescape")


def _inspect(path: Path, hook_folders: tuple[Path, ...], included: tuple[Path, ...] = ()) -> _Repository:
    """The files that git runs, or that tell it what to run; `.git` itself if it is not a folder."""
    identity = _identity(path)
    if not stat.S_ISDIR(identity[0]):
        return _Repository(path, identity, _files([path]), hook_folders, included)
    names = [path / name for name in sorted(SETTINGS_FILES)]
    names += [path / name for name in (COMMON, ATTRIBUTES, HOOKS, TODO)] + list(included)
    for folder in hook_folders:
        names += [hook for hook in _inside(folder) if hook.suffix != SAMPLE and ".of-script-" not in hook.name]
    return _Repository(path, identity, _files(names), hook_folders, included)


def _hook_folders(path: Path, workspace: Path) -> tuple[Path, ...]:
    """The usual folder for hooks, and those that `core.hooksPath` names inside the workspace, below its top."""
    top, found = os.path.realpath(workspace), [path / HOOKS]
    for file in _files([path / name for name in sorted(SETTINGS_FILES)]).values():
        for setting in harmful_settings(_text(file)) or ():
            if setting.name == "core.hookspath":
                folder = Path(os.path.realpath(path.parent / setting.value))
                is_work_tree = Path(os.path.realpath(path.parent)).is_relative_to(folder)
                if folder.is_relative_to(top) and not is_work_tree:
                    found.append(folder)
    return tuple(found)


def _included(path: Path, workspace: Path) -> tuple[Path, ...]:
    """The files inside the workspace that the settings of a repository include, directly or through others."""
    top, found, waiting = os.path.realpath(workspace), list[Path](), [path / name for name in sorted(SETTINGS_FILES)]
    while waiting and len(found) < MOST_INCLUDED:
        file = waiting.pop()
        for content in _files([file]).values():
            for setting in harmful_settings(_text(content)) or ():
                if setting.section.lower() not in ("include", "includeif"):
                    continue
                inner = Path(os.path.realpath(file.parent / Path(setting.value).expanduser()))
                if inner.is_relative_to(top) and inner not in found:
                    found.append(inner)
                    waiting.append(inner)
    return tuple(found)


def _inside(folder: Path) -> list[Path]:
    """What a folder contains; nothing if it is a link, which would lead to files of others."""
    try:
        # Opened without following, so that nobody can put a link in its place in between.
        descriptor = os.open(folder, OPEN_FOLDER)
    except OSError:
        return []
    try:
        return [folder / name for name in os.listdir(descriptor)]  # noqa: PTH208 - of a descriptor
    finally:
        os.close(descriptor)


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
