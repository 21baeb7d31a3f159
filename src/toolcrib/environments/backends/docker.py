"""Containers of docker or podman, through their command-line client: one hardened container an environment."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from toolcrib.core.environments import BackendPath, BackendStatus, EngineProcess, Leftover, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed, PlaceGone
from toolcrib.environments.backends.containers import (
    PROBE_SECONDS,
    Answer,
    Client,
    Witnesses,
    find_program,
    finished,
    is_alive,
    this_machine,
    this_process,
)
from toolcrib.environments.backends.docker_options import (
    WHERE_THE_ENGINE_IS,
    DockerOptions,
    is_closed,
    lasting_name,
    run_arguments,
)

__all__ = ["DockerEngine", "DockerOptions", "leftovers", "probe", "remove"]

PULL_SECONDS = 1800.0
REMOVE_SECONDS = 30.0
LAST_BREATH_SECONDS = 0.5
"""How long our own programs in a container may take to be gone."""
# What an engine says of a limit that it cannot keep. More processors than there are would be no limit anyway.
REFUSES_DISK = re.compile("storage.?opt", re.IGNORECASE)
REFUSES_CPUS = re.compile("Range of CPUs")
# Clients carry output and errors side by side, and mix up their order; so the two become one inside.
IN_ORDER = 'exec "$@" 2>&1'
# Some engines tell a terminal its size only after the program has started to look at it.
IN_A_SIZED_TERMINAL = 'stty rows "$1" columns "$2" 2>/dev/null; shift 2; exec "$@"'
NO_SUCH_CONTAINER = re.compile("no such container", re.IGNORECASE)
ADOPTED_BY = re.compile(r"-of-(\d+)-(\d*)$")
MARK = "toolcrib|"
REACH = ("ps", "-q", "--filter", "label=toolcrib.none")
"""A question that costs nothing, and that only an engine that works answers."""


class DockerEngine:
    """A container; see Engine."""

    kind = "docker"
    shell = "bash"
    spare_shells = 1
    temporary = BackendPath("/tmp")

    def __init__(self, options: DockerOptions) -> None:
        self._options = options
        self._container = ""
        self._program = options.binary
        self._is_new = False
        self._is_kept = options.persistent
        self._witnesses = Witnesses()
        self.isolated = is_closed(options)

    async def open(self) -> None:
        self._client = await _client(self._options.binary, self._options.environ)
        self._program = self._client.program
        if self._options.container:
            await self._take_over()
        elif not (self._options.persistent and await self._go_on()):
            await self._create()
        self._is_new = True

    async def close(self) -> None:
        container, self._container = self._container, ""
        if not container:
            return
        try:
            if not self._is_kept:
                await _remove(self._client, container)
            elif not (self._options.container and await self._is_used(container)):
                await self._client.ask("stop", "-t", "0", container, limit_seconds=REMOVE_SECONDS)
        finally:
            await self._witnesses.release()

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> EngineProcess:
        await self._make_sure_it_runs()
        if terminal is None:
            arguments = ["exec", "-i", self._container, self.shell, "-c", IN_ORDER, self.shell, *argv]
        else:
            size = (str(terminal.rows), str(terminal.columns))
            sized = (self.shell, "-c", IN_A_SIZED_TERMINAL, self.shell, *size)
            arguments = ["exec", "-i", "-t", self._container, *sized, *argv]
        process = await self._client.spawn(arguments, on_output=on_output, terminal=terminal)
        self._witnesses.add(process)
        return process

    def address(self) -> Mapping[str, str]:
        where = {name.lower(): self._options.environ.get(name, "") for name in WHERE_THE_ENGINE_IS}
        return {"container": self._container, "binary": self._program, **where}

    async def snapshot(self, image: str) -> None:
        """Keep the files of the container, mounts and scratch folders aside, as an image of that name."""
        answer = await self._client.ask("commit", self._container, image, limit_seconds=PULL_SECONDS)
        if answer.exit_code:
            raise EnvironmentFailed(f"no image {image!r} could be made of the container: {answer.last_line()}")

    async def _make_sure_it_runs(self) -> None:
        if not self._container:
            raise EnvironmentFailed("the container is not open")
        if self._is_new or self._witnesses.any():
            self._is_new = False
            return
        state = await _state(self._client, self._container)
        if state != "running":
            raise EnvironmentFailed(f"the container {self._container[:12]!r} is gone ({state or 'removed'})")

    async def _start(self, container: str) -> bool:
        """Whether there is such a container; afterwards it runs."""
        state = await _state(self._client, container)
        if not state:
            return False
        if state != "running":
            answer = await self._client.ask("unpause" if state == "paused" else "start", container)
            if answer.exit_code:
                raise EnvironmentFailed(f"the container {container[:12]!r} cannot be started: {answer.last_line()}")
        return True

    async def _take_over(self) -> None:
        container = self._options.container
        if not await self._start(container):
            raise PlaceGone(f"there is no container {container[:12]!r} any more; start a new environment")
        self._container = container
        kept = MARK + '{{index .Config.Labels "toolcrib.kept"}}'
        self._is_kept = "1" in (await self._client.ask("container", "inspect", "--format", kept, container)).lines(MARK)
        if self._is_kept:
            # Its session finds it by its name.
            return
        # Labels of a container cannot change, so its name tells whose it is now.
        owner = (self._options.owner or this_process()).replace(":", "-")
        await self._client.ask("rename", container, f"toolcrib-{secrets.token_hex(4)}-of-{owner}")

    async def _is_used(self, container: str) -> bool:
        """Whether the session of a kept container has gone on in it by now: programs run besides the one that waits."""
        for seconds in (0.0, LAST_BREATH_SECONDS):
            await asyncio.sleep(seconds)
            answer = await self._client.ask("top", container)
            if answer.exit_code or len(answer.text.splitlines()) <= len(("heading", "the one that waits")):
                return False
        return True

    async def _go_on(self) -> bool:
        name = lasting_name(self._options)
        if not await self._start(name):
            return False
        self._container = name
        return True

    async def _create(self) -> None:
        options = self._options
        if not options.image:
            raise EnvironmentFailed("no docker image is chosen; set terminal.docker.image")
        name = lasting_name(options) if options.persistent else f"toolcrib-{secrets.token_hex(6)}"
        try:
            answer = await finished(self._run(name, options))
            if answer.exit_code and options.pull and not await self._has_image():
                await self._pull()
                answer = await finished(self._run(name, options))
            if answer.exit_code:
                raise await self._failure(answer)
        except BaseException:
            # A container whose program could not be started is there all the same.
            await self._client.ask("rm", "-f", "-v", name, limit_seconds=REMOVE_SECONDS)
            raise
        ids = re.findall(r"^[0-9a-f]{64}$", answer.text, re.M)
        self._container = ids[-1] if ids else name

    async def _run(self, name: str, options: DockerOptions) -> Answer:
        """Make the container, without the limits that this engine says it cannot keep."""
        is_podman = "podman" in self._client.name
        answer = await self._client.ask(*run_arguments(options, name, is_podman=is_podman))
        if answer.exit_code and options.disk_mb and REFUSES_DISK.search(answer.text):
            return await self._run(name, replace(options, disk_mb=0))
        if answer.exit_code and options.cpus and REFUSES_CPUS.search(answer.text):
            return await self._run(name, replace(options, cpus=0))
        return answer

    async def _has_image(self) -> bool:
        answer = await self._client.ask("image", "inspect", "--format", "{{.Id}}", self._options.image)
        return answer.exit_code == 0

    async def _pull(self) -> None:
        await _reach(self._client)
        answer = await self._client.ask("pull", "-q", self._options.image, limit_seconds=PULL_SECONDS)
        if answer.exit_code:
            image = self._options.image
            raise EnvironmentFailed(
                f"{self._client.name} image {image!r} not found here, and fetching it failed: {answer.last_line()}; "
                f"check the name (terminal.docker.image), or run `{self._client.name} pull {image}`"
            )

    async def _failure(self, answer: Answer) -> EnvironmentFailed:
        """Why no container could be made, for the person who wants one."""
        await _reach(self._client)
        image, name = self._options.image, self._client.name
        if not await self._has_image():
            return EnvironmentFailed(f"{name} image {image!r} not found; run `{name} pull {image}`")
        if answer.exit_code == 127:
            return EnvironmentFailed(f"{name} image {image!r} has no bash; choose one that has (terminal.docker.image)")
        return EnvironmentFailed(f"{name} could not make a container of {image!r}: {answer.last_line()}")


async def _client(binary: str, environ: Mapping[str, str]) -> Client:
    """The client that was asked for; where none was, docker where that answers, else podman."""
    found = [program for name in _names(binary) if (program := find_program([name], environ))]
    if not found:
        missing = f"{binary!r} is not" if binary else "neither docker nor podman is"
        raise EnvironmentFailed(f"{missing} installed, or on PATH; install docker or podman")
    first = Client(found[0], environ)
    if len(found) == 1 or await _answers(first):
        return first
    return Client(found[1], environ)


def _names(binary: str) -> tuple[str, ...]:
    return (binary,) if binary else ("docker", "podman")


async def _answers(client: Client) -> bool:
    try:
        answer = await client.ask(*REACH, limit_seconds=PROBE_SECONDS / 2)
    except EnvironmentFailed:
        return False
    return answer.exit_code == 0


def _unreachable(name: str, answer: Answer) -> tuple[str, str]:
    """What is wrong with an engine that does not answer, and what to do."""
    if "permission denied" in answer.text.lower():
        return (
            f"{name} may not be used by this user",
            "run `sudo usermod -aG docker $USER` and log in again, or use podman",
        )
    if "podman" in name:
        return f"podman does not work: {answer.last_line()}", "run `podman info` to see why"
    return (
        f"the docker daemon does not answer: {answer.last_line()}",
        "start it (`sudo systemctl start docker`, or open Docker Desktop), or check DOCKER_HOST",
    )


async def _reach(client: Client) -> None:
    """Raise EnvironmentFailed when the engine behind the client does not answer."""
    answer = await client.ask(*REACH)
    if answer.exit_code:
        raise EnvironmentFailed("; ".join(_unreachable(client.name, answer)))


async def _state(client: Client, container: str) -> str:
    """What the engine says of a container: running, exited, paused …; empty when it has none of that name."""
    answer = await client.ask("container", "inspect", "--format", MARK + "{{.State.Status}}", container)
    if answer.exit_code and not NO_SUCH_CONTAINER.search(answer.text):
        await _reach(client)
        raise EnvironmentFailed(f"{client.name} cannot say how the container is: {answer.last_line()}")
    return next(iter(answer.lines(MARK)), "")


async def probe(binary: str, environ: Mapping[str, str]) -> BackendStatus:
    """Whether containers can be made here, within a second."""
    try:
        client = await _client(binary, environ)
        version, answer = await asyncio.gather(
            client.ask("--version", limit_seconds=PROBE_SECONDS),
            client.ask(*REACH, limit_seconds=PROBE_SECONDS),
        )
    except EnvironmentFailed as error:
        detail, _, remedy = str(error).partition("; ")
        return BackendStatus(kind="docker", usable=False, detail=detail, remedy=remedy)
    if answer.exit_code:
        detail, remedy = _unreachable(client.name, answer)
        return BackendStatus(kind="docker", usable=False, detail=detail, remedy=remedy)
    return BackendStatus(kind="docker", usable=True, detail=version.last_line())


async def leftovers(binary: str, environ: Mapping[str, str], *, kept: bool = False) -> list[Leftover]:
    """Containers of ours that are still there; with `kept`, also those that were kept on purpose."""
    if find_program(_names(binary), environ) is None:
        return []
    client = await _client(binary, environ)
    answer = await client.ask("ps", "-aq", "--no-trunc", "--filter", "label=toolcrib=1")
    if answer.exit_code:
        raise EnvironmentFailed("; ".join(_unreachable(client.name, answer)))
    ids = re.findall(r"^[0-9a-f]{64}$", answer.text, re.M)
    if not ids:
        return []
    shown = MARK + "{{.Id}}|{{.Name}}|{{.Config.Image}}|{{.State.Status}}|{{json .Config.Labels}}"
    details = await client.ask("container", "inspect", "--format", shown, *ids)
    found = (_leftover(line, kept) for line in details.lines(MARK))
    return [leftover for leftover in found if leftover]


def _leftover(line: str, kept: bool) -> Leftover | None:
    identity, name, image, state, labels_text = line.split("|", 4)
    labels: Mapping[str, str] = json.loads(labels_text)
    is_kept = bool(labels.get("toolcrib.kept"))
    if is_kept and not kept:
        return None
    adopted = ADOPTED_BY.search(name)
    owner = f"{adopted[1]}:{adopted[2]}" if adopted else labels.get("toolcrib.owner", "")
    is_elsewhere = labels.get("toolcrib.machine", this_machine()) != this_machine()
    what = "kept for reuse" if is_kept else "of another machine" if is_elsewhere else f"made by process {owner}"
    return Leftover(
        kind="docker container",
        name=identity,
        detail=f"{name.lstrip('/')}, image {image}, {state}, {what}",
        # Who runs on another machine cannot be seen from here, so that counts as alive.
        owner_alive=is_elsewhere or is_alive(owner),
    )


async def remove(leftover: Leftover, binary: str, environ: Mapping[str, str]) -> None:
    """Remove a container, whatever runs in it; raises EnvironmentFailed when it is still there afterwards."""
    await _remove(await _client(binary, environ), leftover.name)


async def _remove(client: Client, container: str) -> None:
    answer = await client.ask("rm", "-f", "-v", container, limit_seconds=REMOVE_SECONDS)
    if await _state(client, container):
        raise EnvironmentFailed(
            f"the container {container[:12]!r} could not be removed: {answer.last_line()}; "
            f"run `{client.name} rm -f {container[:12]}`"
        )
