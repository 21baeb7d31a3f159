"""Programs in a sandbox: they run as anywhere else."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.environments.engine_runs import bash, run
from tests.environments.sandboxes import (
    MECHANISMS,
    OpenSandbox,
    UserFolders,
    make_folders,
    opening,
    running,
    skip_without,
)
from toolcrib.core.environments import TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.sandbox import SandboxEngine, probe

# Both mechanisms go through the same code of ours; what each keeps apart is in test_sandbox_walls.
pytestmark = pytest.mark.quick_rows(2)


@pytest.fixture
def folders(tmp_path: Path) -> UserFolders:
    return make_folders(tmp_path)


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return str(request.param)


@pytest.fixture
async def opened(folders: UserFolders, mechanism: str) -> AsyncIterator[OpenSandbox]:
    async with opening(folders, mechanism) as open_sandbox:
        yield open_sandbox


@pytest.fixture
async def sandbox(opened: OpenSandbox) -> SandboxEngine:
    return await opened()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
async def test_the_exit_code_comes_through(sandbox: SandboxEngine, script: str, code: int) -> None:
    """A program's exit code is its own, or 128 and the signal that ended it."""
    assert await run(sandbox, sandbox.shell, "-c", script) == (code, b"")


async def test_bytes_go_in_and_come_out_unchanged(sandbox: SandboxEngine) -> None:
    """Standard input and output carry any bytes, more than a pipe holds, in both directions at once."""
    data = os.urandom(3_000_000)

    assert await run(sandbox, "cat", typed=data) == (0, data)


async def test_output_and_errors_arrive_in_order(sandbox: SandboxEngine) -> None:
    """Standard output and standard error are one stream."""
    assert await bash(sandbox, "echo 1; echo 2 >&2; echo 3") == "1\n2\n3\n"


async def test_large_output_takes_no_memory(sandbox: SandboxEngine) -> None:
    """Output is handed on as it arrives, never collected."""
    sizes = {"bytes": 0}

    def count(data: bytes) -> None:
        sizes["bytes"] += len(data)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    process = await sandbox.spawn(["head", "-c", "200M", "/dev/zero"], on_output=count)
    code = await process.wait()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert (code, sizes["bytes"]) == (0, 200 * 1024 * 1024)
    assert grown < 20 * 1024


async def test_writing_to_a_program_that_ended_is_an_error(sandbox: SandboxEngine) -> None:
    """Input that nobody will read is refused, also when the program ends while it is being written."""
    process = await sandbox.spawn([sandbox.shell, "-c", "read -r line"], on_output=lambda _: None)

    async with asyncio.timeout(20):
        with pytest.raises(BrokenPipeError):
            await process.write(b"line\n" + bytes(1_000_000))
        assert await process.wait() == 0
        with pytest.raises(BrokenPipeError):
            await process.write(b"more")


async def test_the_end_does_not_wait_for_children_that_hold_the_output(sandbox: SandboxEngine) -> None:
    """A program has ended when it has, whoever still holds its output; what it printed has arrived."""
    mark = f"8{secrets.randbelow(10**7)}"

    async with asyncio.timeout(20):
        code, printed = await run(sandbox, sandbox.shell, "-c", f"sleep {mark} & echo done")

    assert (code, printed) == (0, b"done\n")
    async with asyncio.timeout(20):
        # The child was forked before the end, but may still be on its way to becoming `sleep`.
        while len(running(mark)) != 1:  # noqa: ASYNC110 - nobody tells when another process begins
            await asyncio.sleep(0)


async def test_programs_live_on_and_see_each_other(sandbox: SandboxEngine) -> None:
    """What one program leaves running, and leaves in /tmp, the next one finds."""
    await bash(sandbox, 'sleep 1000 >/dev/null 2>&1 & echo $! >"$TMPDIR/pid"')

    seen = await bash(sandbox, 'pid=$(<"$TMPDIR/pid"); kill -0 $pid && kill $pid && echo ended')

    assert seen == "ended\n"


async def test_programs_run_side_by_side(sandbox: SandboxEngine) -> None:
    """Many programs run at the same time, each with streams of its own."""
    texts = [f"text {number}".encode() for number in range(40)]

    ended = await asyncio.gather(*(run(sandbox, "cat", typed=text) for text in texts))

    assert ended == [(0, text) for text in texts]


async def test_a_program_leads_its_own_session(sandbox: SandboxEngine) -> None:
    """Session and process group have the number of the program, so that its tree can be found."""
    pid, group, session = (await bash(sandbox, "echo $$; ps -o pgid=,sid= -p $$")).split()

    assert pid == group == session


async def test_arguments_of_any_kind_arrive(sandbox: SandboxEngine) -> None:
    """Arguments keep quotes, line ends, bytes that are no text, and great length."""
    arguments = ["", "a b", "'\"$x`\\", "two\nlines", "gr\u00fc\u00df", "\udcff", *["x" * 50_000] * 10]

    code, printed = await run(sandbox, "printf", "%s\\0", *arguments)

    assert (code, printed) == (0, b"".join(os.fsencode(argument) + b"\0" for argument in arguments))


async def test_a_program_that_does_not_exist_is_named(sandbox: SandboxEngine) -> None:
    """A program that cannot be started raises, and the sandbox goes on."""
    with pytest.raises(EnvironmentFailed, match="no-such-program"):
        await run(sandbox, "no-such-program")

    assert await bash(sandbox, "echo on") == "on\n"


async def test_a_terminal_is_real_and_changes_its_size(sandbox: SandboxEngine) -> None:
    """With a terminal, a program has a controlling one of the asked size, and hears of a new size."""
    printed = bytearray()
    heard = asyncio.Event()

    def listen(data: bytes) -> None:
        printed.extend(data)
        if b"ready" in printed:
            heard.set()

    script = "stty size; tty; trap 'stty size >/dev/tty; exit 5' WINCH; sleep 1000 & echo ready; wait"
    process = await sandbox.spawn(
        [sandbox.shell, "-c", script], on_output=listen, terminal=TerminalSize(rows=11, columns=70)
    )
    async with asyncio.timeout(20):
        await heard.wait()
        await process.resize(TerminalSize(rows=22, columns=99))
        code = await process.wait()
    await process.abandon()

    lines = printed.decode().split("\r\n")
    assert lines[0] == "11 70"
    assert lines[1].startswith("/dev/pts/")
    assert (lines[3], code) == ("22 99", 5)


async def test_a_terminal_takes_what_is_typed(sandbox: SandboxEngine) -> None:
    """What is written to a terminal is typed; closing the input types the end of the file."""
    printed = bytearray()
    process = await sandbox.spawn(["cat"], on_output=printed.extend, terminal=TerminalSize())

    async with asyncio.timeout(20):
        await process.write(b"typed\n")
        await process.close_input()
        assert await process.wait() == 0

    assert printed.decode() == "typed\r\ntyped\r\n"


async def test_the_workspace_is_the_same_inside_and_its_files_are_ours(
    sandbox: SandboxEngine, folders: UserFolders
) -> None:
    """Programs start in the workspace, under its own path; what they write there belongs to us."""
    assert await bash(sandbox, "pwd; echo text >new; mkdir -p deep/er; mv new deep/er/; chmod 750 deep") == (
        f"{folders.workspace}\n"
    )

    written = folders.workspace / "deep/er/new"
    assert written.read_text() == "text\n"
    assert (written.stat().st_uid, (folders.workspace / "deep").stat().st_mode & 0o777) == (os.geteuid(), 0o750)


async def test_granted_folders_can_be_written_or_only_read(opened: OpenSandbox, tmp_path: Path) -> None:
    """Folders besides the workspace are given by name, to write or to read."""
    shared, library = tmp_path / "shared", tmp_path / "library"
    shared.mkdir()
    library.mkdir()
    (library / "book").write_text("words\n")
    sandbox = await opened(writable=(shared,), readable=(library,))

    assert (
        await bash(sandbox, f"cat {library}/book; echo x >{shared}/new; ! echo y 2>/dev/null >{library}/new")
        == "words\n"
    )

    assert (shared / "new").read_text() == "x\n"
    assert not (library / "new").exists()


async def test_variables_are_those_given(opened: OpenSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs get the variables of the options and the sandbox's own, nothing of ours."""
    monkeypatch.setenv("OUR_OWN_SECRET", "hidden")
    sandbox = await opened(environ={"GIVEN": "yes", "HOME": "/elsewhere"})

    names = await bash(sandbox, "env")

    assert "GIVEN=yes\n" in names
    assert "OUR_OWN_SECRET" not in names
    assert "HOME=/elsewhere" not in names


async def test_home_and_temporary_folder_are_empty_and_usable(sandbox: SandboxEngine) -> None:
    """HOME and TMPDIR are folders of the sandbox itself, to write to."""
    assert await bash(sandbox, 'touch ~/.cache "$TMPDIR/t" && ls -A ~/.cache && echo $TMPDIR') == (
        await bash(sandbox, "echo ~/.cache") + f"{sandbox.temporary}\n"
    )


async def test_programs_can_share_memory(sandbox: SandboxEngine) -> None:
    """What programs use to work together within the sandbox is there."""
    script = "import multiprocessing as m; print(m.Pool(2).map(abs, [-1, -2])); m.Semaphore()"

    assert await run(sandbox, "/usr/bin/env", "python3", "-c", script) == (0, b"[1, 2]\n")


async def test_limits_are_set(opened: OpenSandbox) -> None:
    """No core is dumped, and files and memory are limited as asked."""
    sandbox = await opened(max_file_bytes=10_240, max_memory_bytes=4 * 1024**3)

    assert await bash(sandbox, "ulimit -c; ulimit -f; ulimit -v") == "0\n10\n4194304\n"
    assert (await run(sandbox, sandbox.shell, "-c", "head -c 20000 /dev/zero >large"))[0] != 0


async def test_what_is_in_force_is_said(sandbox: SandboxEngine, mechanism: str) -> None:
    """The engine names the mechanism and what it covers."""
    assert sandbox.description.lower().startswith(mechanism)
    assert "no network" in sandbox.description
    assert "seccomp" in sandbox.description


async def test_the_probe_names_the_mechanism(folders: UserFolders, mechanism: str) -> None:
    """A probe says what would be in force."""
    status = await probe(folders.options(use=mechanism))

    assert status.usable
    assert status.detail.lower().startswith(mechanism)
