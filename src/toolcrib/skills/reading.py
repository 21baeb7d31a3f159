"""The files of a skill: which there are, and their text. Nothing outside its folder, and nothing that is no file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from toolcrib.skills.skill import Skill, SkillError

MAX_HEAD_BYTES = 64_000
MAX_FILE_BYTES = 2_000_000
MAX_LISTED_FILES = 200
MAX_LISTED_DEPTH = 6


class SkillFile(msgspec.Struct, frozen=True):
    """One file of a skill beside its SKILL.md."""

    path: str
    """From the skill's folder."""
    size: int
    problem: str = ""
    """Why it cannot be read; empty when it can."""


def read_text(folder: Path, relative: str, *, exact: bool = False) -> str:
    """The whole text of a file in a skill's folder; raises SkillError for what is no text of that folder.

    With `exact` also for what is not UTF-8, which could not be written again as it was.
    """
    data = _read(folder, relative, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise SkillError(f"{relative!r} is larger than {MAX_FILE_BYTES:,} bytes; look at it with the terminal tool")
    if b"\0" in data[:8_000]:
        raise SkillError(f"{relative!r} is a binary file of {len(data):,} bytes in {str(folder)!r}, not a text")
    try:
        return data.decode("utf-8", "strict" if exact else "replace").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise SkillError(f"{relative!r} is not UTF-8 text, so it is not changed; convert it first") from error


def read_head(folder: Path, relative: str) -> str:
    """The beginning of a file, long enough for the head of any skill."""
    return _read(folder, relative, MAX_HEAD_BYTES).decode("utf-8", "replace")


def real_file(folder: Path, relative: str) -> str:
    """Where a file of a skill really is, as a path from the real folder; raises SkillError when that is outside."""
    clean = relative.strip()
    if not clean or "\0" in clean or clean.startswith(("/", "~", "\\")):
        raise SkillError(f"{relative!r} is no path inside the skill; name a file as in 'references/notes.md'")
    root = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(root, clean))  # noqa: PTH118 - text only
    if not real.startswith(root.rstrip("/") + "/"):
        raise SkillError(f"{relative!r} leads out of the skill's folder; only files inside it can be read")
    return real[len(root.rstrip("/")) + 1 :]


def files_of(skill: Skill) -> list[SkillFile]:
    """The files beside a skill's SKILL.md, in order; at most a few hundred are looked at."""
    if skill.is_alone:
        return []
    found: list[SkillFile] = []
    for path in _walk(skill.folder, 0):
        relative = path.relative_to(skill.folder).as_posix()
        if relative != skill.file.name:
            found.append(_described(skill.folder, path, relative))
        if len(found) == MAX_LISTED_FILES:
            break
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if os.path.isdir(entry) and not entry.is_symlink():  # noqa: PTH112 - raises for nothing
            if depth < MAX_LISTED_DEPTH:
                yield from _walk(entry, depth + 1)
        else:
            yield entry


def _described(folder: Path, path: Path, relative: str) -> SkillFile:
    try:
        real_file(folder, relative)
        found = path.stat()
    except (SkillError, OSError):
        return SkillFile(relative, 0, "it is a link that leads out of the skill, or nowhere")
    if not stat.S_ISREG(found.st_mode):
        return SkillFile(relative, 0, "it is no ordinary file")
    return SkillFile(relative, found.st_size)


def _read(folder: Path, relative: str, limit: int) -> bytes:
    """The bytes of a file, opened step by step from its folder, so that no link put there meanwhile is followed."""
    parts = real_file(folder, relative).split("/")
    if os.open not in os.supports_dir_fd:
        return _read_simply(folder.joinpath(*parts), relative, limit)
    opened = -1
    try:
        opened = os.open(os.path.realpath(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for at, part in enumerate(parts):
            kind = os.O_DIRECTORY if at < len(parts) - 1 else os.O_NONBLOCK
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=opened)
            os.close(opened)
            opened = inner
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise SkillError(f"{relative!r} is a folder or a device, not a file that can be read")
        return _whole(opened, limit)
    except OSError as error:
        raise SkillError(f"{relative!r} cannot be read in {str(folder)!r} ({error.strerror})") from error
    finally:
        if opened >= 0:
            os.close(opened)


def _read_simply(path: Path, relative: str, limit: int) -> bytes:
    """The same on a system that cannot open step by step."""
    try:
        if not path.is_file():
            raise SkillError(f"{relative!r} is not a file that can be read")
        with path.open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise SkillError(f"{relative!r} cannot be read in {str(path.parent)!r} ({error.strerror})") from error


def _whole(opened: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    while left > 0 and (piece := os.read(opened, min(left, 1_000_000))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
