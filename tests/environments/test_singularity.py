"""Instances of apptainer: what is asked of it, and what comes of it in real ones."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.environments import engines
from tests.environments.engine_runs import bash, run
from toolcrib.core.environments import TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.singularity import (
    SingularityEngine,
    SingularityOptions,
    leftovers,
    probe,
    remove,
    start_arguments,
)

Open = Callable[..., Any]


@pytest.fixture
def options(apptainer: engines.Apptainer, tmp_path: Path) -> SingularityOptions:
    """How an instance of the test image is started, with a home for the client of its own."""
    (tmp_path / "client").mkdir()
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "client")}
    image = str(apptainer.sif or apptainer.image)
    return SingularityOptions(image=image, binary=str(apptainer.program), environ=environ, network=False)


@pytest.fixture
async def opened(options: SingularityOptions) -> AsyncIterator[Open]:
    """Opens engines with changed options, and closes them at the end."""
    async with AsyncExitStack() as stack:

        async def open_engine(**changes: Any) -> SingularityEngine:
            engine = SingularityEngine(replace(options, **changes))
            await engine.open()
            stack.push_async_callback(engine.close)
            return engine

        yield open_engine


def test_an_instance_is_contained(tmp_path: Path) -> None:
    """Nothing of this machine is visible unasked, and changes go to memory or to the overlay."""
    options = SingularityOptions(image=str(tmp_path), network=False, memory_mb=100)

    text = " ".join(start_arguments(options, "toolcrib-x"))
    kept = start_arguments(replace(options, overlay=tmp_path / "kept"), "toolcrib-x")

    assert "instance start --containall --no-home" in text
    assert "--writable-tmpfs" in text
    assert "--net --network none" in text
    assert "--memory 100M --pids-limit 256" in text
    assert "--writable-tmpfs" not in kept
    assert str(tmp_path / "kept") in kept


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"image": ""}, "set terminal.singularity.image"),
        ({"image": "/no/such.sif"}, "'/no/such.sif' not found"),
        ({"binds": ("/no/such/folder:/data",)}, "does not exist"),
        ({"binds": ("relative:/data",)}, "must have the form"),
        ({"binds": ("/tmp",)}, "must have the form"),
    ],
)
def test_what_cannot_be_started_is_named(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    """A missing image or folder is said before the engine is asked."""
    options = replace(SingularityOptions(image=str(tmp_path)), **changes)

    with pytest.raises(EnvironmentFailed, match=complaint):
        start_arguments(options, "toolcrib-x")


@pytest.mark.parametrize(
    ("changes", "isolated"),
    [
        ({}, True),
        ({"binds": ("/srv:/srv:ro",)}, True),
        ({"binds": ("/srv:/srv",)}, False),
        ({"extra_args": ("--nv",)}, False),
        ({"instance": "toolcrib-x"}, False),
    ],
)
def test_isolation_ends_where_this_machine_can_be_changed(changes: dict[str, Any], isolated: bool) -> None:
    """A writable folder of this machine, or an argument that may open the instance, ends isolation."""
    assert SingularityEngine(SingularityOptions(image="docker://debian", **changes)).isolated is isolated


async def test_a_missing_client_is_named(tmp_path: Path) -> None:
    """Where neither apptainer nor singularity is installed, status and error say so and what to do."""
    environ = {"PATH": str(tmp_path)}

    status = await probe("", environ)

    assert not status.usable
    assert "apptainer and singularity are not installed" in status.detail
    assert "install" in status.remedy
    assert await leftovers("", environ) == []
    with pytest.raises(EnvironmentFailed, match="apptainer and singularity are not installed"):
        await SingularityEngine(SingularityOptions(image="docker://debian", environ=environ)).open()


@pytest.mark.services
@pytest.mark.may_skip
class TestRealInstances:
    async def test_exit_codes_and_bytes_pass_unchanged(self, opened: Open) -> None:
        """A program's bytes, both ways and in order, and its exit code are its own."""
        engine = await opened()
        everything = bytes(range(256)) * 1000

        assert await run(engine, "bash", "-c", "echo out; echo err >&2; exit 3") == (3, b"out\nerr\n")
        assert await run(engine, "cat", typed=everything) == (0, everything)
        assert await run(engine, "bash", "-c", "kill -9 $$") == (137, b"")

    async def test_a_terminal_has_its_size_from_the_start(self, opened: Open) -> None:
        """A program on a terminal sees the size that was asked for, and what is typed once."""
        engine = await opened()

        code, printed = await run(
            engine,
            *("bash", "-c", "stty size; read -r word; echo got $word; exit 4"),
            typed=b"hello\n",
            terminal=TerminalSize(rows=31, columns=101),
        )

        assert code == 4
        assert b"31 101\r\n" in printed
        assert printed.count(b"hello") == 2
        assert printed.endswith(b"got hello\r\n")

    async def test_a_program_leads_its_session(self, opened: Open) -> None:
        """What a program starts can be found by its session id."""
        engine = await opened()

        text = await bash(engine, 'read -r stat </proc/$$/stat; set -- ${stat##*)}; echo "$(( $$ == $3 && $$ == $4 ))"')

        assert text == "1\n"

    async def test_nothing_of_this_machine_is_seen(self, opened: Open, options: SingularityOptions) -> None:
        """Neither our variables nor our files are there; the home is empty, and can be written to."""
        engine = await opened(environ={**options.environ, "TOP_SECRET": "hidden"})

        text = await bash(
            engine, f"env | grep -c SECRET; ls -A ~; [ -e {options.environ['HOME']} ] || echo none; touch ~/x"
        )

        assert text == "0\nnone\n"

    async def test_root_inside_has_few_privileges(self, opened: Open) -> None:
        """Whoever starts it, a program inside holds no more than it needs to own files and end programs."""
        engine = await opened()

        text = await bash(engine, "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status")

        assert text.split() == ["CapEff:", "00000000000000eb" if os.getuid() == 0 else "0" * 16, "NoNewPrivs:", "1"]

    async def test_folders_are_mounted_as_asked(self, opened: Open, tmp_path: Path) -> None:
        """A bound folder is where it was asked for, with the rights that were asked for."""
        (tmp_path / "data").mkdir()
        (tmp_path / "out").mkdir()
        engine = await opened(binds=(f"{tmp_path}/data:/mnt/data:ro", f"{tmp_path}/out:/mnt/out"))

        text = await bash(engine, "touch /mnt/data/x 2>/dev/null || echo refused; echo made >/mnt/out/x")

        assert text == "refused\n"
        assert (tmp_path / "out" / "x").read_text() == "made\n"

    async def test_an_overlay_keeps_what_was_changed(self, opened: Open, tmp_path: Path) -> None:
        """What one instance wrote is there for the next one with the same overlay."""
        (tmp_path / "overlay").mkdir()
        first = await opened(overlay=tmp_path / "overlay")
        await bash(first, "echo kept >/opt/file")
        await first.close()

        again = await opened(overlay=tmp_path / "overlay")

        assert await bash(again, "cat /opt/file") == "kept\n"

    async def test_a_stopped_instance_is_noticed(self, opened: Open, options: SingularityOptions) -> None:
        """Starting a program in an instance that somebody stopped fails as an environment that went away."""
        engine = await opened()
        await bash(engine, "true")
        (found,) = await leftovers(options.binary, options.environ)

        await remove(found, options.binary, options.environ)

        assert found.name == engine.address()["instance"]
        assert found.owner_alive
        with pytest.raises(EnvironmentFailed, match="is gone"):
            await engine.spawn(["true"], on_output=lambda data: None)

    async def test_closing_leaves_nothing(self, opened: Open, options: SingularityOptions) -> None:
        """After closing, also twice, there is no instance, no client and no log of it."""
        engine = await opened()
        waiting = await engine.spawn(["cat"], on_output=lambda data: None)

        await engine.close()
        await engine.close()

        assert await asyncio.wait_for(waiting.wait(), 60) != 0
        assert await leftovers(options.binary, options.environ) == []
        left = await asyncio.to_thread(lambda: [*Path(options.environ["HOME"]).rglob("toolcrib-*")])
        assert [path for path in left if path.is_file()] == []

    async def test_an_instance_without_its_owner_is_a_leftover(self, opened: Open, options: SingularityOptions) -> None:
        """An instance whose maker has ended has lost its owner; it can still be taken over."""
        engine = await opened(owner=f"{os.getpid()}:1")
        await bash(engine, "echo kept >/opt/file")

        (found,) = await leftovers(options.binary, options.environ)
        heir = await opened(instance=engine.address()["instance"])

        assert not found.owner_alive
        assert await bash(heir, "cat /opt/file") == "kept\n"

    async def test_an_image_that_cannot_be_started_is_named(self, options: SingularityOptions, tmp_path: Path) -> None:
        """An image that is none, or that has no bash, is named, and nothing stays."""
        (tmp_path / "empty.sif").write_text("no image")

        with pytest.raises(EnvironmentFailed, match=r"empty\.sif.*terminal\.singularity\.image"):
            await SingularityEngine(replace(options, image=str(tmp_path / "empty.sif"))).open()

        assert await leftovers(options.binary, options.environ) == []

    async def test_status_names_the_engine(self, options: SingularityOptions) -> None:
        """A usable engine is named with its version."""
        status = await probe(options.binary, options.environ)

        assert status.usable
        assert "version" in status.detail
