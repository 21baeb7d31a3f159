"""What the file tools need of an environment: lines, guarded changes, no way around a link; natively and by script."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from toolcrib.core.environments import BackendPath, OnOutput, TerminalSize
from toolcrib.core.errors import PathChanged
from toolcrib.environments import host_files
from toolcrib.environments.files import BackendFiles
from toolcrib.environments.host_files import HostFiles
from toolcrib.environments.host_process import HostProcess, spawn_on_host

Files = BackendFiles | HostFiles
NO_HANG_SECONDS = 20.0
AT_FDCWD, RENAME_EXCHANGE = -100, 2


class Programs:
    """Programs of this machine, as an engine hands them out."""

    kind = "programs"
    isolated = False
    shell = "bash"
    shell_pool_size = 0
    temporary = BackendPath("/tmp")

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> HostProcess:
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        return await spawn_on_host(argv, on_output=on_output, environ=environ, terminal=terminal)

    def address(self) -> Mapping[str, str]:
        return {}


def made(kind: str, folder: Path) -> Files:
    start = BackendPath(str(folder))
    return BackendFiles(Programs(), lambda: start) if kind == "programs" else HostFiles(lambda: start)


@pytest.fixture(params=["programs", "direct"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return made(request.param, tmp_path)


def inside(path: Path | str) -> BackendPath:
    return BackendPath(str(path))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


LINES = st.lists(st.sampled_from([b"", b"a", b"bb\r", b"\xff\0", b"longer line " * 5]), max_size=12)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=LINES, ends=st.booleans(), first=st.integers(1, 14), count=st.integers(1, 14), max_bytes=st.integers(1, 300)
)
@example(lines=[b"a", b""], ends=False, first=2, count=1, max_bytes=10)
@pytest.mark.parametrize("kind", ["programs", "direct"])
async def test_lines_are_those_of_the_file(
    kind: str, tmp_path: Path, lines: list[bytes], ends: bool, first: int, count: int, max_bytes: int
) -> None:
    """Any lines of any file: whole, in order, cut at the most bytes, and the end is told."""
    content = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    (tmp_path / "f").write_bytes(content)
    everything = [*(line + b"\n" for line in content.split(b"\n")[:-1]), content.split(b"\n")[-1]]
    if not everything[-1]:
        everything.pop()
    asked = b"".join(everything[first - 1 : first - 1 + count])

    found = await made(kind, tmp_path).read_lines(inside("f"), first=first, count=count, max_bytes=max_bytes)

    assert found.data == asked[:max_bytes]
    assert found.at_end == (len(asked) <= max_bytes and first - 1 + count >= len(everything))
    assert found.total_lines in (None, len(everything))
    assert (found.first, found.status.size) == (first, len(content))


@pytest.mark.parametrize("first", [2**63, 10**30])
async def test_a_line_beyond_all_numbers_is_behind_the_end(files: Files, tmp_path: Path, first: int) -> None:
    """What a shell cannot count to is no line, and what it says about that is no content."""
    (tmp_path / "f").write_text("one\ntwo\n")

    part = await files.read_lines(BackendPath(str(tmp_path / "f")), first=first, count=10**30, max_bytes=10**30)

    assert (part.data, part.at_end) == (b"", True)


@pytest.mark.services
@pytest.mark.parametrize("first", [2, 5_000_000, 8_999_999, 9_000_001])
def test_a_large_file_gives_the_same_lines_with_and_without_tail(tmp_path: Path, first: int) -> None:
    """Where the system's tail passes over lines, what comes is what our own count finds."""
    path = tmp_path / "large"
    block = b"".join(b"%07d\n" % number for number in range(1_000_000))
    with path.open("wb") as file:
        for _ in range(9):
            file.write(block)
    assert path.stat().st_size > host_files.LARGE_BYTES

    descriptor = os.open(path, os.O_RDONLY)
    try:
        by_tail = host_files.take_lines(descriptor, first, 3, 1000)
    finally:
        os.close(descriptor)

    numbers = range(first - 1, min(first + 2, 9_000_000))
    assert by_tail == (b"".join(b"%07d\n" % (number % 1_000_000) for number in numbers), first + 2 >= 9_000_000)


async def test_a_kernel_file_without_an_end_is_given_up(files: Files) -> None:
    """A file that says no size and never ends costs a bounded time."""
    async with asyncio.timeout(NO_HANG_SECONDS):
        found = await files.read_lines(inside("/proc/self/status"), first=1, count=1, max_bytes=1000)
        assert found.data.startswith(b"Name:")
        assert found.total_lines is None or found.total_lines > 10


@pytest.mark.parametrize("name", ["pipe", "link", "socket", "/dev/zero", "/dev/tty"])
async def test_nothing_waits_for_what_is_no_file(files: Files, tmp_path: Path, name: str) -> None:
    """Pipes without a writer, sockets and devices are refused at once, for reading and for writing."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(tmp_path):
        listening.bind("socket")
        async with asyncio.timeout(NO_HANG_SECONDS):
            with pytest.raises(OSError):
                await files.read_file(inside(name))
            with pytest.raises(OSError):
                await files.read_lines(inside(name), first=1, count=1, max_bytes=10)
            with pytest.raises(OSError):
                await files.write_file(inside(name), b"x")


@contextlib.contextmanager
def swapping(folder: Path) -> Iterator[Callable[[], int]]:
    """Somebody who puts a link to `outside` in the place of `inside` and back, as fast as he can; gives his rounds."""
    stop, rounds = threading.Event(), [0]

    (folder / "link").symlink_to("outside")
    names = (os.fsencode(folder / "inside"), os.fsencode(folder / "link"))
    exchange = ctypes.CDLL(None, use_errno=True).renameat2

    def swap() -> None:
        while not stop.is_set():
            assert exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
            rounds[0] += 1
        if rounds[0] % 2:
            exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield lambda: rounds[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.services
@pytest.mark.parametrize(("kind", "tries"), [("direct", 300), ("programs", 25)])
async def test_no_race_leads_through_a_link(kind: str, tries: int, tmp_path: Path) -> None:
    """A folder that is swapped for a link at any moment never lets a write, read or removal happen behind the link."""
    files = made(kind, tmp_path)
    for name, content in (("inside", b"mine"), ("outside", b"SECRET")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(content)
    path = inside(tmp_path / "inside/file")
    done = 0

    with swapping(tmp_path) as rounds:
        for number in range(tries):
            with contextlib.suppress(PathChanged, FileNotFoundError, NotADirectoryError):
                assert await files.read_file(path, plain=True) != b"SECRET"
                done += 1
            with contextlib.suppress(PathChanged, FileNotFoundError, NotADirectoryError):
                await files.write_file(path, b"mine %d" % number, plain=True)
                done += 1
            with contextlib.suppress(PathChanged, FileNotFoundError, NotADirectoryError):
                await files.remove_file(path, plain=True)
        assert rounds() > 0

    assert done > 0
    assert names_in(tmp_path / "outside") == ["file"]
    assert (tmp_path / "outside/file").read_bytes() == b"SECRET"


async def test_the_end_of_a_path_is_no_way_around_either(files: Files, tmp_path: Path) -> None:
    """A file that was swapped for a link is neither read nor written through, and the error says where it leads."""
    (tmp_path / "secret").write_text("s")
    (tmp_path / "file").symlink_to("secret")

    for attempt in (
        files.read_file(inside(tmp_path / "file"), plain=True),
        files.write_file(inside(tmp_path / "file"), b"new", plain=True),
        files.remove_file(inside(tmp_path / "file"), expected=digest(b"s"), plain=True),
    ):
        with pytest.raises(PathChanged):
            await attempt

    assert (tmp_path / "secret").read_text() == "s"
    with pytest.raises(PathChanged, match=str(tmp_path / "secret")):
        await files.read_file(inside(tmp_path / "file"), plain=True)


async def test_of_many_writers_with_one_expectation_one_wins(files: Files, tmp_path: Path) -> None:
    """A file that must not be there yet is made by exactly one of those who try at the same time."""
    attempts = [files.write_file(inside("new"), b"%d" % number, expected="") for number in range(6)]

    outcomes = await asyncio.gather(*attempts, return_exceptions=True)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", *["PathChanged"] * 5]
    assert (tmp_path / "new").read_bytes() == b"%d" % outcomes.index(None)
    assert names_in(tmp_path) == ["new"]


async def test_a_refused_change_leaves_everything_as_it_was(files: Files, tmp_path: Path) -> None:
    """What is not the expected content stays, with its mode, and nothing is left beside it."""
    (tmp_path / "f").write_bytes(b"theirs")
    (tmp_path / "f").chmod(0o640)

    with pytest.raises(PathChanged, match="changed"):
        await files.write_file(inside("f"), b"mine", expected=digest(b"what was read"))
    with pytest.raises(PathChanged, match="removed"):
        await files.write_file(inside("gone"), b"mine", expected=digest(b"what was read"))

    assert (tmp_path / "f").read_bytes() == b"theirs"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
    assert names_in(tmp_path) == ["f"]


async def test_attributes_of_a_file_are_kept(files: Files, tmp_path: Path) -> None:
    """Access lists and other extended attributes of an old file are those of the new one."""
    (tmp_path / "f").write_bytes(b"old")
    try:
        os.setxattr(tmp_path / "f", "user.toolcrib", b"kept")
    except OSError:
        pytest.skip("the file system of the tests has no attributes")

    await files.write_file(inside("f"), b"new")

    assert os.getxattr(tmp_path / "f", "user.toolcrib") == b"kept"


async def test_an_access_list_of_the_folder_does_not_open_an_old_file(files: Files, tmp_path: Path) -> None:
    """A new file in a folder may get a list that lets others in; one that takes the place of an old file has its."""
    # Version 2; owner, one more user, group, mask and others, all of whom may read and write.
    entries = [(1, 6, -1), (2, 6, 1234), (4, 6, -1), (16, 6, -1), (32, 0, -1)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "f").chmod(0o640)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", access)
    except OSError:
        pytest.skip("the file system of the tests has no access lists")

    await files.write_file(inside("f"), b"new")

    assert os.listxattr(tmp_path / "f") == []
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


WRITER = """
import asyncio, sys
from toolcrib.environments.host_files import HostFiles
async def main():
    files = HostFiles(lambda: "/")
    print("begun", flush=True)
    for number in range(10**6):
        await files.write_file(sys.argv[1], b"%d" % (number % 10) * 300_000)
asyncio.run(main())
"""


@pytest.mark.services
def test_a_killed_writer_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    """Whenever a process is killed in the middle of writing, the file is one whole version."""
    path = tmp_path / "f"
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            seen: set[int] = set()
            while len(seen) < 3:
                with contextlib.suppress(FileNotFoundError):
                    seen.add(path.stat().st_ino)
            process.send_signal(signal.SIGKILL)

        content = path.read_bytes()

        assert len(content) == 300_000
        assert len(set(content)) == 1


FEW_PROGRAMS = "bash cat chmod chown env head ln ls mkdir mv pwd readlink rm rmdir tail wc".split()  # noqa: SIM905


def place_with(programs: Sequence[str], folder: Path) -> BackendFiles:
    """Files of an environment that has only these programs, as a small image has."""
    found = folder / "bin"
    found.mkdir()
    for name in programs:
        (found / name).symlink_to(shutil.which(name) or "/nonexistent")

    class Few(Programs):
        shell = str(found / "bash")

        async def spawn(
            self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
        ) -> HostProcess:
            return await spawn_on_host(argv, on_output=on_output, environ={"PATH": str(found), "HOME": "/"})

    return BackendFiles(Few(), lambda: inside(folder))


async def test_an_environment_without_stat_or_dd_has_files_too(tmp_path: Path) -> None:
    """What only better images have is done without: modes and sizes come from ls, and there is no stamp."""
    files = place_with(FEW_PROGRAMS, tmp_path)

    await files.write_file(inside("f"), b"one\ntwo\n", mode=0o640, expected="", plain=True)
    await files.write_file(inside(tmp_path / "f"), b"three\ntwo\n", plain=True)
    part = await files.read_lines(inside(tmp_path / "f"), first=2, count=5, max_bytes=100, plain=True)
    await files.make_link(inside("link"), "f")
    link = await files.status(inside("link"), follow_links=False)

    assert (part.data, part.at_end, part.total_lines) == (b"two\n", True, 2)
    assert (part.status.size, part.status.mode, part.status.stamp) == (10, 0o640, "")
    assert link is not None
    assert (link.kind, link.link) == ("link", "f")
    assert names_in(tmp_path) == ["bin", "f", "link"]


@pytest.mark.parametrize("program", ["sha256sum", "shasum", "openssl"])
async def test_any_of_the_usual_programs_compares_contents(tmp_path: Path, program: str) -> None:
    """An expected content is checked by whatever the environment has for that."""
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    files = place_with([*FEW_PROGRAMS, program, "perl"], tmp_path)
    (tmp_path / "f").write_bytes(b"old")

    with pytest.raises(PathChanged):
        await files.write_file(inside("f"), b"new", expected=digest(b"other"))
    await files.write_file(inside("f"), b"new", expected=digest(b"old"))

    assert (tmp_path / "f").read_bytes() == b"new"


async def test_an_environment_that_cannot_compare_says_what_is_missing(tmp_path: Path) -> None:
    """Nothing is overwritten on good faith."""
    files = place_with(FEW_PROGRAMS, tmp_path)
    (tmp_path / "f").write_bytes(b"old")

    with pytest.raises(OSError, match="install coreutils"):
        await files.write_file(inside("f"), b"new", expected=digest(b"old"))

    assert (tmp_path / "f").read_bytes() == b"old"
