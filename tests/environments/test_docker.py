"""Containers of docker and podman: what is asked of the engine, and what comes of it in real ones."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.environments import engines
from tests.environments.engine_runs import bash, run
from toolcrib.core.environments import Leftover, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.docker import DockerEngine, DockerOptions, leftovers, probe, remove, run_arguments
from toolcrib.environments.containers import ContainerClient, find_program, is_alive, this_process

Open = Callable[..., Any]


@pytest.fixture(params=["docker", "podman"])
def options(request: pytest.FixtureRequest) -> DockerOptions:
    """How a container of the test image is made with either engine."""
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    if request.param == "docker":
        environ["DOCKER_HOST"] = request.getfixturevalue("docker_host")
        return DockerOptions(image=engines.IMAGE, binary="docker", environ=environ, network=False)
    program = str(request.getfixturevalue("podman").program)
    return DockerOptions(image=engines.IMAGE, binary=program, environ=environ, network=False)


@pytest.fixture
async def opened(options: DockerOptions) -> AsyncIterator[Open]:
    """Opens engines with changed options, and closes them at the end."""
    async with AsyncExitStack() as stack:

        async def open_engine(**changes: Any) -> DockerEngine:
            engine = DockerEngine(replace(options, **changes))
            await engine.open()
            stack.push_async_callback(engine.close)
            return engine

        yield open_engine


async def containers(options: DockerOptions) -> list[str]:
    return [found.name for found in await leftovers(options.binary, options.environ, kept=True)]


def test_a_container_starts_without_privileges() -> None:
    """All capabilities are dropped but a few, no program gains any, and limits and scratch folders are set."""
    arguments = run_arguments(DockerOptions(image="debian", network=False, memory_mb=100), "toolcrib-x")

    text = " ".join(arguments)
    assert "--cap-drop ALL" in text
    assert "--security-opt no-new-privileges" in text
    assert "--network none" in text
    assert "--memory 100m" in text
    assert "--pids-limit 256" in text
    assert [part.split(":")[0] for part in arguments if part.startswith("/")] == ["/tmp", "/var/tmp", "/run"]


def test_nothing_of_this_machine_is_mounted_unasked() -> None:
    """Without volumes and a workspace, no folder of this machine is visible in the container."""
    arguments = run_arguments(DockerOptions(image="debian"), "toolcrib-x")

    assert not {"--volume", "--mount", "-v"} & set(arguments)


@pytest.mark.parametrize(
    ("changes", "isolated"),
    [
        ({}, True),
        ({"volumes": ("cache:/cache",)}, True),
        ({"volumes": ("/srv:/srv:ro",)}, True),
        ({"volumes": ("/srv:/srv",)}, False),
        ({"volumes": ("~/data:/data:rw",)}, False),
        ({"workspace": Path("/srv/project")}, False),
        ({"extra_args": ("--shm-size=1g",)}, True),
        ({"extra_args": ("--privileged",)}, False),
        ({"extra_args": ("-v", "/:/host")}, False),
        ({"container": "0123456789ab"}, False),
    ],
)
def test_isolation_ends_where_this_machine_can_be_changed(changes: dict[str, Any], isolated: bool) -> None:
    """A writable folder of this machine, or an argument that may open the container, ends isolation."""
    assert DockerEngine(DockerOptions(image="debian", **changes)).isolated is isolated


def test_the_home_folder_is_not_a_workspace(tmp_path: Path) -> None:
    """Whoever starts in their home does not thereby hand all of it to a container."""
    options = DockerOptions(image="debian", workspace=tmp_path, environ={"HOME": str(tmp_path)})

    with pytest.raises(EnvironmentFailed, match="too broad to mount"):
        run_arguments(options, "toolcrib-x")


@pytest.mark.parametrize(
    ("volume", "complaint"),
    [
        ("/no/such/folder:/data", "does not exist"),
        ("data", "must have the form"),
        ("data/set:/data", "must start with / or ~"),
        ("/tmp:relative", "must have the form"),
    ],
)
def test_a_volume_that_cannot_be_mounted_is_refused(volume: str, complaint: str) -> None:
    """The engine would make a missing folder as root's, so it is never asked to."""
    with pytest.raises(EnvironmentFailed, match=complaint):
        run_arguments(DockerOptions(image="debian", volumes=(volume,)), "toolcrib-x")


async def test_a_missing_client_is_named(tmp_path: Path) -> None:
    """Where neither docker nor podman is installed, status and error say so and what to do."""
    environ = {"PATH": str(tmp_path)}

    status = await probe("", environ)

    assert not status.usable
    assert "docker and podman are not installed" in status.detail
    assert "install" in status.remedy
    assert await leftovers("", environ) == []
    with pytest.raises(EnvironmentFailed, match="docker and podman are not installed"):
        await DockerEngine(DockerOptions(image="debian", environ=environ)).open()


def test_a_process_is_known_by_its_start_time_too() -> None:
    """A process id that was given to somebody else does not keep the first one's things alive."""
    pid = os.getpid()

    assert is_alive(this_process())
    assert not is_alive(f"{pid}:1")
    assert not is_alive("")


@pytest.mark.services
class TestRealContainers:
    async def test_exit_codes_and_bytes_pass_unchanged(self, opened: Open) -> None:
        """A program's bytes, both ways and in order, and its exit code are its own."""
        engine = await opened()
        everything = bytes(range(256)) * 1000
        many = "for n in {1..200}; do echo out $n; echo err $n >&2; done; exit 3"

        code, printed = await run(engine, "bash", "-c", many)

        assert code == 3
        assert printed.decode().splitlines() == [f"{kind} {n}" for n in range(1, 201) for kind in ("out", "err")]
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
        assert printed.startswith((b"31 101\r\n", b"hello\r\n31 101\r\n"))
        assert printed.count(b"hello") == 2
        assert printed.endswith(b"got hello\r\n")

    async def test_a_new_size_reaches_a_program_that_has_just_started(self, opened: Open) -> None:
        """A terminal that is resized as soon as its program speaks has the new size in the end."""
        engine = await opened()
        printed = bytearray()
        spoken, resized = asyncio.Event(), asyncio.Event()

        def on_output(data: bytes) -> None:
            printed.extend(data)
            spoken.set()
            if b"50 99" in printed:
                resized.set()

        script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
        process = await engine.spawn(["bash", "-c", script], on_output=on_output, terminal=TerminalSize())
        async with asyncio.timeout(10):
            await spoken.wait()
            await process.resize(TerminalSize(rows=50, columns=99))
            await resized.wait()

    async def test_a_program_leads_its_session(self, opened: Open) -> None:
        """What a program starts can be found by its session id."""
        engine = await opened()

        text = await bash(engine, 'read -r stat </proc/$$/stat; set -- ${stat##*)}; echo "$(( $$ == $3 && $$ == $4 ))"')

        assert text == "1\n"

    async def test_privileges_inside_are_few(self, opened: Open) -> None:
        """Root inside may own files and end programs, and no program gains more."""
        engine = await opened()

        text = await bash(engine, "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; touch /tmp/x /var/tmp/x /run/x")

        assert text.split() == ["CapEff:", "00000000000000eb", "NoNewPrivs:", "1"]

    async def test_the_container_outlives_a_kill_of_everything_and_reaps_orphans(self, opened: Open) -> None:
        """Nothing that runs inside can end the container, and no dead process stays."""
        engine = await opened()
        await run(engine, "bash", "-c", "(sleep 300 & sleep 300 &); kill -9 -1")

        text = await bash(engine, "for each in /proc/[0-9]*; do cat $each/comm; done")

        assert "sleep" not in text

    async def test_limits_that_the_engine_cannot_keep_do_not_stop_it(self, opened: Open) -> None:
        """A disk limit on storage without quotas, or more processors than there are, is left out."""
        engine = await opened(cpus=4096, disk_mb=1000, memory_mb=200)

        assert await bash(engine, "echo here") == "here\n"

    async def test_folders_are_mounted_as_asked(self, opened: Open, tmp_path: Path) -> None:
        """The workspace is /workspace and where programs start; a read-only volume cannot be written to."""
        workspace = tmp_path / 'a folder, "quoted"'
        workspace.mkdir()
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "in").write_text("kept\n")
        engine = await opened(workspace=workspace, volumes=(f"{tmp_path}/data:/data:ro",))

        text = await bash(engine, "pwd; cat /data/in; touch /data/out 2>/dev/null || echo refused; echo made >here")

        assert text == "/workspace\nkept\nrefused\n"
        assert (workspace / "here").read_text() == "made\n"

    async def test_files_made_as_the_host_user_are_theirs(self, opened: Open, tmp_path: Path) -> None:
        """With the host user's ids, files in mounts belong to them, and there is a home to write to."""
        (tmp_path / "work").mkdir()
        engine = await opened(workspace=tmp_path / "work", run_as_host_user=True)

        await bash(engine, "touch ~/.cache-file made && [ -O made ]")

        status = (tmp_path / "work" / "made").stat()
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())

    async def test_a_removed_container_is_noticed(self, opened: Open, options: DockerOptions) -> None:
        """Starting a program in a container that somebody removed fails as an environment that went away."""
        engine = await opened()
        await bash(engine, "true")
        waiting = await engine.spawn(["cat"], on_output=lambda data: None)
        (found,) = [
            one for one in await leftovers(options.binary, options.environ) if one.name == engine.address()["container"]
        ]

        await remove(found, options.binary, options.environ)

        assert await asyncio.wait_for(waiting.wait(), 10) != 0
        with pytest.raises(EnvironmentFailed, match="is gone"):
            await engine.spawn(["true"], on_output=lambda data: None)

    async def test_closing_removes_the_container(self, opened: Open, options: DockerOptions) -> None:
        """After closing, also twice, the engine has no container of that name, and clients have ended."""
        engine = await opened()
        container = engine.address()["container"]
        waiting = await engine.spawn(["cat"], on_output=lambda data: None)

        await engine.close()
        await engine.close()

        assert container not in await containers(options)
        assert await asyncio.wait_for(waiting.wait(), 60) != 0
        with pytest.raises(EnvironmentFailed, match="not open"):
            await engine.spawn(["true"], on_output=lambda data: None)

    async def test_a_container_without_its_owner_is_a_leftover(self, opened: Open, options: DockerOptions) -> None:
        """A container whose maker has ended has lost its owner, until another process takes it over."""
        engine = await opened(owner=f"{os.getpid()}:1")
        container = engine.address()["container"]
        await bash(engine, "echo kept >/root/file")

        async def owner_alive() -> bool:
            found = await leftovers(options.binary, options.environ)
            return next(one.owner_alive for one in found if one.name == container)

        assert not await owner_alive()
        heir = await opened(container=container)
        assert await owner_alive()
        assert await bash(heir, "cat /root/file") == "kept\n"

    async def test_a_persistent_container_keeps_its_files(self, opened: Open, options: DockerOptions) -> None:
        """Closing stops it; the next engine with the same options goes on with its files."""
        session = f"kept-{os.getpid()}-{options.binary[-6:]}"
        first = await opened(persistent=True, session=session)
        await bash(first, "echo kept >/root/file")
        await first.close()

        again = await opened(persistent=True, session=session)
        try:
            assert await bash(again, "cat /root/file") == "kept\n"
        finally:
            kept = [
                one
                for one in await leftovers(options.binary, options.environ, kept=True)
                if one.detail.startswith(again.address()["container"])
            ]
            await remove(kept[0], options.binary, options.environ)

    async def test_an_image_that_is_nowhere_is_named(self, options: DockerOptions) -> None:
        """An image that can neither be found nor fetched is named, with what to run."""
        wanted = "localhost:1/nobody/nothing:9"

        with pytest.raises(EnvironmentFailed, match=f"image '{wanted}' not found"):
            await DockerEngine(replace(options, image=wanted, pull=False)).open()
        with pytest.raises(EnvironmentFailed, match=f"pulling it failed.*pull {wanted}"):
            await DockerEngine(replace(options, image=wanted)).open()

    async def test_an_image_without_bash_is_refused(self, options: DockerOptions, tmp_path: Path) -> None:
        """Where there is no bash nothing can run; the person is told so and nothing stays."""
        empty = tmp_path / "empty.tar"
        tarfile.open(empty, "w").close()
        client = ContainerClient(find_program([options.binary], options.environ) or "", options.environ)
        image = f"toolcrib-test-empty-{os.getpid()}:latest"
        await client.ask("import", str(empty), image)

        with pytest.raises(EnvironmentFailed, match="has no bash"):
            await DockerEngine(replace(options, image=image)).open()

        # An image that a container was left of could not be removed.
        assert (await client.ask("rmi", image)).exit_code == 0

    async def test_a_cancelled_start_leaves_no_container(self, options: DockerOptions, tmp_path: Path) -> None:
        """Whoever gives up while the container is being made finds none afterwards."""
        engine = DockerEngine(replace(options, labels={"toolcrib.test": str(tmp_path)}))
        opening = asyncio.ensure_future(engine.open())
        await asyncio.wait([opening], timeout=0.01)

        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

        client = ContainerClient(find_program([options.binary], options.environ) or "", options.environ)
        assert (await client.ask("ps", "-aq", "--filter", f"label=toolcrib.test={tmp_path}")).text == ""

    async def test_podman_takes_the_place_of_a_docker_that_is_down(
        self, docker_host: str, podman: engines.Podman, tmp_path: Path
    ) -> None:
        """Where neither is asked for by name, the one that answers is used."""
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "podman").symlink_to(podman.program)
        environ = {"PATH": f"{programs}:{os.environ['PATH']}", "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}

        down = await probe("", environ)
        up = await probe("", {**environ, "DOCKER_HOST": docker_host})

        assert "podman" in down.detail
        assert "Docker" in up.detail

    async def test_an_engine_that_does_not_answer_has_removed_nothing(self, docker_host: str, tmp_path: Path) -> None:
        """A container counts as removed only when the engine says that it has none."""
        environ = {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
        leftover = Leftover(kind="docker container", name="0" * 64, detail="", owner_alive=False)

        with pytest.raises(EnvironmentFailed, match="daemon does not answer"):
            await remove(leftover, "docker", environ)

        await remove(leftover, "docker", {**environ, "DOCKER_HOST": docker_host})

    async def test_status_names_the_engine(self, options: DockerOptions) -> None:
        """A usable engine is named with its version."""
        status = await probe(options.binary, options.environ)

        assert status.usable
        assert "version" in status.detail

    async def test_an_engine_that_is_down_is_said_to_be(self, docker_host: str, tmp_path: Path) -> None:
        """Without a daemon behind the client, status and error say how to start one."""
        environ = {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}

        status = await probe("docker", environ)

        assert not status.usable
        assert "systemctl start docker" in status.remedy
        with pytest.raises(EnvironmentFailed, match="daemon does not answer"):
            await DockerEngine(DockerOptions(image="debian", binary="docker", environ=environ)).open()
