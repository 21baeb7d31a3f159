"""Several files written together: all, or as before; what somebody else did is left alone."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolcrib.core.environments import BackendPath
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.environments.shell import SessionOptions
from toolcrib.files.editing import EditRefused, FileEdit, FileVersion, commit, put


class RacingEnvironment:
    """A place in which something happens before each write and removal: `before(number, path)`."""

    def __init__(self, place: LocalShellEnvironment, before: Callable[[int, str], Awaitable[None]]) -> None:
        self._place, self._before, self._count = place, before, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    async def write_file(self, path: BackendPath, data: bytes, **options: Any) -> None:
        self._count += 1
        await self._before(self._count, path)
        await self._place.write_file(path, data, **options)

    async def remove_file(self, path: BackendPath, **options: Any) -> None:
        self._count += 1
        await self._before(self._count, path)
        await self._place.remove_file(path, **options)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[LocalShellEnvironment]:
    own = tmp_path / "own"
    own.mkdir()
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environment = LocalShellEnvironment(environ, SessionOptions(cwd=str(tmp_path), folder=str(own)))
    await environment.open()
    yield environment
    await environment.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir()
    for name in "abc":
        (made / name).write_text(f"old {name}\n")
        (made / name).chmod(0o640)
    return made


def step(path: Path, new: str | None, mode: int | None = None) -> FileEdit:
    data = path.read_bytes() if path.exists() else None
    now = path.stat().st_mode & 0o777 if path.exists() else None
    before = FileVersion(path=BackendPath(str(path)), data=data, mode=now)
    return FileEdit(before, replace(before, data=None if new is None else new.encode()), mode)


def overwrite(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("somebody else's\n")


def state(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def steps(folder: Path) -> list[FileEdit]:
    return [
        step(folder / "c", None),
        step(folder / "a", "new a\n"),
        step(folder / "b", "new b\n"),
        step(folder / "n/d", "d\n"),
    ]


AFTER = {"a": "new a\n", "b": "new b\n", "d": "d\n"}
BEFORE = {name: f"old {name}\n" for name in "abc"}


async def test_all_steps_are_done(place: LocalShellEnvironment, folder: Path) -> None:
    """Files are written, made and removed; a mode is kept unless another is asked for."""
    await commit([*steps(folder)[:2], step(folder / "b", "new b\n", 0o755), step(folder / "n/d", "d\n")], place)

    assert state(folder) == AFTER
    assert (folder / "a").stat().st_mode & 0o777 == 0o640
    assert (folder / "b").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_file_that_changes_meanwhile_stops_everything(
    place: LocalShellEnvironment, folder: Path, number: int
) -> None:
    """The edits are undone, and the change by another program stays."""
    disturbed = ""

    async def change(count: int, path: str) -> None:
        nonlocal disturbed
        if count == number:
            disturbed = Path(path).name
            await asyncio.to_thread(overwrite, Path(path))

    with pytest.raises(EditRefused) as caught:
        await commit(steps(folder), RacingEnvironment(place, change))  # type: ignore[arg-type]

    assert state(folder) == {**BEFORE, disturbed: "somebody else's\n"}
    assert "another program" in str(caught.value)
    assert (folder / "a").stat().st_mode & 0o777 == 0o640


async def test_a_full_disk_takes_everything_back(place: LocalShellEnvironment, folder: Path) -> None:
    """An error of the system in the middle leaves the files as before, new folders removed."""

    async def fail(count: int, path: str) -> None:
        if count == 4:
            raise OSError(28, "No space left on device")

    with pytest.raises(EditRefused, match="No space left") as caught:
        await commit(steps(folder), RacingEnvironment(place, fail))  # type: ignore[arg-type]

    assert "all files of the patch are as before" in str(caught.value)
    assert set(caught.value.details["files"].values()) == {"as before"}  # type: ignore[attr-defined]
    assert state(folder) == BEFORE
    assert not (folder / "n").exists()


async def test_a_mode_is_taken_back_as_well(place: LocalShellEnvironment, folder: Path) -> None:
    """A step that changes only the mode is undone, too."""

    async def fail(count: int, path: str) -> None:
        if count == 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(EditRefused):
        await commit([step(folder / "a", "old a\n", 0o755), step(folder / "b", "x")], RacingEnvironment(place, fail))  # type: ignore[arg-type]

    assert (folder / "a").stat().st_mode & 0o777 == 0o640


async def test_what_cannot_be_restored_is_named(place: LocalShellEnvironment, folder: Path) -> None:
    """The state of each file is told, also when even the way back is blocked."""

    async def fail(count: int, path: str) -> None:
        if count >= 3:
            raise OSError(28, "No space left on device")

    with pytest.raises(EditRefused) as caught:
        await commit(steps(folder), RacingEnvironment(place, fail))  # type: ignore[arg-type]

    told = {Path(path).name: said for path, said in caught.value.details["files"].items()}  # type: ignore[attr-defined]
    assert told["c"] == told["d"] == "as before"
    assert "could not be restored" in told["a"]
    assert state(folder) == {**BEFORE, "a": "new a\n", "b": "new b\n"}


async def test_a_file_that_somebody_changed_after_us_is_left_alone(place: LocalShellEnvironment, folder: Path) -> None:
    """Taking back is guarded as well: only what we wrote ourselves is replaced."""

    async def change(count: int, path: str) -> None:
        if count == 2:
            (folder / "a").write_text("after us\n")
            raise OSError(28, "No space left on device")

    with pytest.raises(EditRefused, match="changed by another program"):
        await commit(steps(folder), RacingEnvironment(place, change))  # type: ignore[arg-type]

    assert state(folder) == {**BEFORE, "a": "after us\n"}


async def test_a_cancelled_commit_is_brought_to_its_end(place: LocalShellEnvironment, folder: Path) -> None:
    """Whoever stops the call does not stop it between two files."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait(count: int, path: str) -> None:
        if count == 2:
            reached.set()
            await go_on.wait()

    task = asyncio.ensure_future(commit(steps(folder), RacingEnvironment(place, wait)))  # type: ignore[arg-type]
    await asyncio.wait_for(reached.wait(), 10)
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)

    assert state(folder) == AFTER


@pytest.mark.parametrize("edit", ["commit", "put", "remove"])
@pytest.mark.parametrize("swapped", ["folder", "file"])
async def test_a_link_that_turns_up_at_the_last_moment_is_not_followed(
    place: LocalShellEnvironment, folder: Path, edit: str, swapped: str
) -> None:
    """Between the look at a file and the write to it nobody can lead the write elsewhere."""
    elsewhere = folder.parent / "elsewhere"
    await asyncio.to_thread(shutil.copytree, folder, elsewhere)
    planned = step(folder / "a", None if edit == "remove" else "new\n")

    async def swap(count: int, path: str) -> None:
        if count == 1:
            moved = folder if swapped == "folder" else folder / "a"
            moved.rename(folder.parent / "moved")
            moved.symlink_to(elsewhere if swapped == "folder" else elsewhere / "a")

    there: Any = RacingEnvironment(place, swap)
    work = (
        put(planned.before, replace(planned.before, data=b"new\n"), there)
        if edit == "put"
        else commit([planned], there)
    )
    with pytest.raises(EditRefused):
        await work

    assert state(elsewhere) == BEFORE


def test_the_digest_of_nothing_is_empty(folder: Path) -> None:
    """As the places want it: a hash of the content, or nothing for no file."""
    assert step(folder / "none", "x").before.digest == ""
    assert step(folder / "a", None).before.digest == hashlib.sha256(b"old a\n").hexdigest()
