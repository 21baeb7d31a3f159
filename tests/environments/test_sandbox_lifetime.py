"""The life of a sandbox: who can end it, what its end does, and that nothing stays."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
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
    wait_until_gone,
)
from toolcrib.core.environments import TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.sandbox import SandboxEngine, SandboxOptions, leftovers, remove

# Both mechanisms go through the same code of ours; what each keeps apart is in test_sandbox_walls.
pytestmark = pytest.mark.quick_rows(2)

OWNER = """
import asyncio, sys
from pathlib import Path
from toolcrib.environments.backends.sandbox import SandboxEngine, SandboxOptions

async def main():
    use, workspace, temporary, mark = sys.argv[1:]
    engine = SandboxEngine(SandboxOptions(workspace=Path(workspace), use=use, temporary=Path(temporary)))
    await engine.open()
    script = f"(setsid env -i bash -c 'trap : TERM HUP; sleep {mark}; :' &) ; sleep {mark} & echo; wait"
    heard = asyncio.Event()
    await engine.spawn([engine.shell, "-c", script], on_output=lambda _: heard.set())
    await heard.wait()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


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


async def test_the_end_of_the_sandbox_is_told_and_the_next_program_gets_a_new_one(
    opened: OpenSandbox, mechanism: str
) -> None:
    """When the sandbox itself is killed, whoever waits is told; files in /tmp stay, and programs go on."""
    mark = f"6{secrets.randbelow(10**7)}"
    sandbox = await opened()
    await bash(sandbox, 'echo kept >"$TMPDIR/file"')
    waiting = await sandbox.spawn(["sleep", mark], on_output=lambda _: None)
    sleeping = running(mark)
    keeper = next(pid for pid in running(Path(sandbox.address()["scratch"]).name) if _parent(pid) == os.getpid())

    os.kill(keeper, signal.SIGKILL)

    async with asyncio.timeout(20):
        with pytest.raises(EnvironmentFailed, match="ended"):
            await waiting.wait()
    assert wait_until_gone(sleeping) == []
    assert await bash(sandbox, 'cat "$TMPDIR/file"') == "kept\n"


async def test_programs_cannot_end_a_bubblewrap_sandbox(folders: UserFolders) -> None:
    """The spawner is the first process of its namespace, which nobody inside can kill or stop."""
    skip_without("bubblewrap")
    sandbox = SandboxEngine(folders.options(use="bubblewrap"))
    await sandbox.open()
    try:
        await bash(sandbox, "for name in KILL STOP TERM INT HUP SEGV; do kill -$name 1; done; true")
        assert await bash(sandbox, "echo on") == "on\n"
    finally:
        await sandbox.close()


async def test_a_program_that_kills_the_landlock_sandbox_ends_with_it(folders: UserFolders) -> None:
    """Without processes of its own a sandbox can be killed from inside; all of it ends, and the next one works."""
    skip_without("landlock")
    mark = f"5{secrets.randbelow(10**7)}"
    sandbox = SandboxEngine(folders.options(use="landlock"))
    await sandbox.open()
    try:
        async with asyncio.timeout(20):
            with pytest.raises(EnvironmentFailed, match="ended"):
                await run(sandbox, sandbox.shell, "-c", f"setsid sleep {mark} & kill -KILL $PPID; wait")
        assert await bash(sandbox, "echo on") == "on\n"
        assert running(mark) == []
    finally:
        await sandbox.close()


async def test_closing_leaves_nothing(opened: OpenSandbox, tmp_path: Path) -> None:
    """No process of a closed sandbox runs, however it hid, and its folder is gone; closing twice is fine."""
    mark = f"9{secrets.randbelow(10**7)}"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sandbox = await opened(temporary=scratch)
    hidden = f"(setsid env -i bash -c 'trap : TERM HUP; sleep {mark}; :' >/dev/null 2>&1 &)"
    await bash(
        sandbox, f'{hidden}; mkdir -p "$TMPDIR/locked/in"; chmod 0 "$TMPDIR/locked"; sleep {mark} >/dev/null 2>&1 &'
    )
    pids = running(mark)
    assert pids

    await sandbox.close()
    await sandbox.close()

    assert running(mark) == []
    assert list(scratch.iterdir()) == []


async def test_descriptors_are_given_back(opened: OpenSandbox) -> None:
    """Programs that have ended, and closed sandboxes, hold no descriptor of ours."""
    sandbox = await opened()
    await bash(sandbox, "true")
    before = _open_descriptors()

    for _ in range(20):
        await bash(sandbox, "true")
        await run(sandbox, "true", terminal=TerminalSize())

    assert _open_descriptors() == before


async def test_nothing_survives_the_death_of_the_owner(folders: UserFolders, mechanism: str, tmp_path: Path) -> None:
    """When our process is killed, every program in its sandbox ends, and its folder is found and removed."""
    mark = f"7{secrets.randbelow(10**7)}"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with _start_owner(mechanism, folders.workspace, scratch, mark) as owner:
        pids = [pid for pid in running(mark) if pid != owner.pid]
        in_use = await leftovers(scratch)
        owner.kill()
    assert len(pids) >= 2
    assert [found.owner_alive for found in in_use] == [True]

    assert wait_until_gone(pids) == []

    found = await leftovers(scratch)
    assert [one.owner_alive for one in found] == [False]
    await remove(found[0])
    assert await leftovers(scratch) == []


async def test_the_next_sandbox_removes_folders_whose_owners_were_killed(
    folders: UserFolders, mechanism: str, tmp_path: Path
) -> None:
    """Only those: one in use stays, and so does one that is being made."""
    scratch = tmp_path / "scratch-of-all"
    scratch.mkdir()
    for name, age in (("old", 3600), ("new", 0)):
        abandoned = scratch / f"toolcrib-sandbox-{name}"
        (abandoned / "tmp").mkdir(parents=True)
        os.utime(abandoned, (time.time() - age, time.time() - age))
    options = SandboxOptions(workspace=folders.workspace, use=mechanism, temporary=scratch)  # type: ignore[arg-type]
    first, second = SandboxEngine(options), SandboxEngine(options)
    await first.open()
    own = first.address()["scratch"]
    os.utime(own, (0, 0))

    await second.open()
    await second.close()

    left = {path.name for path in scratch.iterdir()}
    await first.close()
    assert left == {"toolcrib-sandbox-new", Path(own).name}


async def test_a_folder_in_use_is_not_removed(opened: OpenSandbox, tmp_path: Path) -> None:
    """Only a folder whose owner has gone can be removed."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sandbox = await opened(temporary=scratch)

    for found in await leftovers(scratch):
        await remove(found)

    assert await bash(sandbox, 'touch "$TMPDIR/file"; echo on') == "on\n"


async def test_a_closed_sandbox_starts_nothing(folders: UserFolders, mechanism: str) -> None:
    """Before it is opened and after it is closed, a sandbox says so."""
    sandbox = SandboxEngine(SandboxOptions(workspace=folders.workspace, use=mechanism))  # type: ignore[arg-type]

    with pytest.raises(EnvironmentFailed, match="not open"):
        await run(sandbox, "true")


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _start_owner(mechanism: str, workspace: Path, scratch: Path, mark: str) -> subprocess.Popen[bytes]:
    """Another process of ours with a sandbox, in which programs run that show `mark`."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", OWNER, mechanism, str(workspace), str(scratch), mark]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    return owner


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
