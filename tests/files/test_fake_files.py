"""The files of the environment that tests use keep the promises that tests rely on."""

from __future__ import annotations

import hashlib
import shlex

import pytest

from toolcrib.core.environments import BackendPath
from toolcrib.core.errors import PathChanged
from toolcrib.testing.environments import FakeEnvironment, ScriptedReply

FILE, LINK = BackendPath("/work/a/file"), BackendPath("/work/link")


async def test_contents_are_guarded_by_what_is_expected() -> None:
    """A write or removal with another expectation than what is there raises, as in a real place."""
    place = FakeEnvironment()
    digest = hashlib.sha256(b"one").hexdigest()

    await place.write_file(FILE, b"one", expected="")

    with pytest.raises(PathChanged):
        await place.write_file(FILE, b"two", expected="")
    with pytest.raises(PathChanged):
        await place.remove_file(FILE, expected="0" * 64)
    await place.write_file(FILE, b"two", expected=digest)
    assert await place.read_file(FILE) == b"two"


async def test_folders_are_there_because_something_is_in_them() -> None:
    """Names are listed, full folders are not removed, and what a folder is not is refused."""
    place = FakeEnvironment()
    await place.write_file(FILE, b"")
    await place.make_folder(BackendPath("/work/empty"))

    assert await place.list_folder(BackendPath("/work")) == ["a", "empty"]
    with pytest.raises(OSError, match="not empty"):
        await place.remove_folder(BackendPath("/work/a"))
    await place.remove_folder(BackendPath("/work/empty"))
    with pytest.raises(FileNotFoundError):
        await place.list_folder(BackendPath("/work/empty"))
    with pytest.raises(IsADirectoryError):
        await place.read_file(BackendPath("/work/a"))


async def test_a_link_is_refused_where_there_was_none() -> None:
    """With `plain` nothing happens behind a link, and a link can be looked at and removed as such."""
    place = FakeEnvironment()
    await place.make_link(LINK, "a")

    with pytest.raises(PathChanged):
        await place.write_file(BackendPath("/work/link/file"), b"", plain=True)
    status = await place.status(LINK, follow_links=False)
    assert status is not None
    assert (status.kind, status.link) == ("link", "a")
    await place.remove_file(LINK)
    assert await place.status(LINK, follow_links=False) is None


async def test_lines_are_cut_as_in_a_real_place() -> None:
    """The first line, the number of lines and of bytes, and whether something follows."""
    place = FakeEnvironment()
    await place.write_file(FILE, b"one\ntwo\nthree")

    middle = await place.read_lines(FILE, first=2, count=1, max_bytes=100)
    end = await place.read_lines(FILE, first=2, count=9, max_bytes=6)

    assert (middle.data, middle.at_end, middle.total_lines) == (b"two\n", False, 3)
    assert (end.data, end.at_end) == (b"two\nth", False)


async def test_programs_answer_from_the_script() -> None:
    """A program prints and ends as its arguments, written as a shell line, are told to."""
    place = FakeEnvironment({shlex.join(["rg", "a b"]): ScriptedReply(output="found\n", exit_code=3)})
    heard: list[bytes] = []

    process = await place.spawn(["rg", "a b"], on_output=heard.append)

    assert (await process.wait(), heard, place.programs) == (3, [b"found\n"], ["rg 'a b'"])
