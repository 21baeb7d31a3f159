"""The `docker` backend: one hardened container per environment, through the client of docker or podman."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.config.environment import child_environment
from toolcrib.core.environments import BackendPath, BackendStatus, EngineProcess, Leftover, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed, EnvironmentGone
from toolcrib.environments.backend import Backend, EnvironmentRequest, writable_sources
from toolcrib.environments.containers import (
    PROBE_SECONDS,
    ROOT_CAPABILITIES,
    WAIT_FOREVER,
    ClientOutput,
    ContainerClient,
    RunningClients,
    find_program,
    is_alive,
    run_to_end,
    this_machine,
    this_process,
)
from toolcrib.environments.host_process import HostProcess
from toolcrib.environments.shell import ShellEnvironment
from toolcrib.environments.shell_pool import SentinelReader

WORKSPACE = "/workspace"
# How a client finds its engine. None of it reaches a container.
CLIENT_VARIABLES = ("DOCKER_*", "CONTAINER_*", "CONTAINERS_*", "PODMAN_*", "REGISTRY_AUTH_FILE")
ENGINE_VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT")
"""The variables that select the engine; a container can only be found again in the same one."""
HOME_OF_HOST_USER = "/home/toolcrib"
TERMINAL_TYPE = "TERM=xterm-256color"
SCRATCH_FOLDERS = {"/tmp": "mode=1777,size=512m", "/var/tmp": "mode=1777,size=512m", "/run": "mode=755,size=64m"}
# Extra arguments that do not weaken the isolation of a container; any other may.
HARMLESS_ARGUMENT = re.compile(
    r"^--(?:add-host|annotation|cpuset-cpus|dns|env|gpus|hostname|init|label|platform|read-only|shm-size|ulimit)(?:=|$)"
)


class DockerOptions(Struct, frozen=True, kw_only=True):
    """How containers are created. A limit of 0 means none."""

    image: str = ""
    binary: str = ""
    """A name or path; empty means docker, or podman where there is no docker."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The client's variables (PATH, HOME, DOCKER_HOST …); none of them reach the container."""
    volumes: tuple[str, ...] = ()
    """`source:target[:ro]`: a folder of this machine, or the name of a volume of the engine."""
    workspace: Path | None = None
    """A folder of this machine, mounted at /workspace."""
    network: bool = True
    cpus: float = 0
    memory_mb: int = 0
    disk_mb: int = 0
    """Enforced only if the engine's storage driver supports it."""
    pids_limit: int = 256
    run_as_host_user: bool = False
    """Run programs with our user and group id, so that we own what they create in mounted folders."""
    pull: bool = True
    """Pull a missing image."""
    extra_args: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    owner: str = ""
    """Process id and start time, `pid:start`; empty means this process."""
    persistent: bool = False
    """Closing stops the container and keeps its files; the next engine with the same session and options resumes it.
    Meant for one process at a time."""
    container: str = ""
    """An existing container, as named by `address()`: take it over instead of creating one."""


def run_arguments(options: DockerOptions, name: str, *, is_podman: bool = False) -> list[str]:
    """The client's arguments that create and start a container of that name."""
    return [
        *("run", "-d", "--pull", "never", "--name", name, "--stop-signal", "SIGKILL", "--entrypoint", "bash"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--env", TERMINAL_TYPE),
        *_user(options, is_podman),
        *_labels(options),
        *_limit_arguments(options),
        *(part for folder, how in SCRATCH_FOLDERS.items() for part in _scratch(folder, how)),
        *_mounts(options),
        *options.extra_args,
        options.image,
        *("-c", WAIT_FOREVER),
    ]


def is_isolated(options: DockerOptions) -> bool:
    """Whether nothing of this machine can be changed from inside: no writable mount, no weakened container."""
    if options.container or options.workspace is not None:
        return False
    mounts_folders = any(volume.startswith(("/", "~", ".")) and not _is_read_only(volume) for volume in options.volumes)
    return not mounts_folders and all(map(HARMLESS_ARGUMENT.match, options.extra_args))


def _user(options: DockerOptions, is_podman: bool) -> Iterator[str]:
    uid, gid = os.getuid(), os.getgid()
    if not options.run_as_host_user or uid == 0:
        yield from (f"--cap-add={capability}" for capability in ROOT_CAPABILITIES)
    if options.run_as_host_user:
        yield from ("--user", f"{uid}:{gid}", "--env", f"HOME={HOME_OF_HOST_USER}")
        yield from _scratch(HOME_OF_HOST_USER, "mode=0777")
        if is_podman and uid:
            yield "--userns=keep-id"


def _scratch(folder: str, how: str) -> tuple[str, str]:
    return "--tmpfs", f"{folder}:rw,exec,nosuid,nodev,{how}"


def _labels(options: DockerOptions) -> Iterator[str]:
    labels = {
        **options.labels,
        "toolcrib": "1",
        "toolcrib.owner": options.owner or this_process(),
        "toolcrib.machine": this_machine(),
        "toolcrib.session": options.session,
        "toolcrib.kept": "1" if options.persistent else "",
    }
    for label, value in labels.items():
        yield from ("--label", f"{label}={value}")


def _limit_arguments(options: DockerOptions) -> Iterator[str]:
    if not options.network:
        yield from ("--network", "none")
    if options.cpus:
        yield from ("--cpus", f"{options.cpus:g}")
    if options.memory_mb:
        yield from ("--memory", f"{options.memory_mb}m", "--memory-swap", f"{options.memory_mb}m")
    if options.pids_limit:
        yield from ("--pids-limit", str(options.pids_limit))
    if options.disk_mb:
        yield from ("--storage-opt", f"size={options.disk_mb}m")


def _mounts(options: DockerOptions) -> Iterator[str]:
    for volume in options.volumes:
        source = _source(volume, options)
        yield from ("--volume", volume if source is None else f"{source}:{volume.partition(':')[2]}")
    if options.workspace is None:
        return
    folder = options.workspace.resolve()
    if folder in (Path("/"), Path(options.environ.get("HOME") or "/").resolve()):
        raise EnvironmentFailed(
            f"{str(folder)!r} is too broad to mount as the workspace; start in a project folder, "
            "or list what to mount in terminal.docker.volumes"
        )
    _check_folder(folder, options)
    source_field = f"source={folder}".replace('"', '""')
    yield from ("--mount", f'type=bind,"{source_field}",target={WORKSPACE}', "--workdir", WORKSPACE)


def _source(volume: str, options: DockerOptions) -> Path | None:
    """The folder of this machine that a volume names; None for a named volume of the engine."""
    source, _, target = volume.partition(":")
    if not target.startswith("/"):
        raise EnvironmentFailed(f"the volume {volume!r} must have the form 'source:/target' or 'source:/target:ro'")
    if source.startswith("~"):
        source = options.environ.get("HOME", "~") + source[1:]
    if not source.startswith("/"):
        if "/" in source or source.startswith("."):
            raise EnvironmentFailed(f"the folder of the volume {volume!r} must start with / or ~")
        return None
    _check_folder(Path(source), options)
    return Path(source)


def _check_folder(folder: Path, options: DockerOptions) -> None:
    """Refuse a missing folder: the engine would create it as root. A remote engine has folders that we cannot see."""
    is_remote = options.environ.get("DOCKER_HOST", "").startswith(("tcp:", "ssh:", "http"))
    if not is_remote and not folder.exists():
        raise EnvironmentFailed(f"{str(folder)!r} cannot be mounted because it does not exist; create it first")


def _is_read_only(volume: str) -> bool:
    return "ro" in ",".join(volume.split(":")[2:]).split(",")


def persistent_name(options: DockerOptions) -> str:
    """A name that is the same for equal options: how an engine finds the container an earlier one kept."""
    same = replace(options, environ={}, labels={}, owner="", container="")
    return f"toolcrib-kept-{hashlib.sha256(repr(same).encode()).hexdigest()[:16]}"


__all__ = ["DockerEngine", "DockerOptions", "leftovers", "probe", "remove"]

PULL_SECONDS = 1800.0
REMOVE_SECONDS = 30.0
SETTLE_SECONDS = 0.5
"""How long our own programs in a container may take to end."""
# What an engine says about a limit it cannot enforce. More CPUs than the machine has would be no limit anyway.
REFUSES_DISK = re.compile("storage.?opt", re.IGNORECASE)
REFUSES_CPUS = re.compile("Range of CPUs")
# Clients transfer output and errors separately and lose their order, so the two are merged inside.
# podman loses the output of a program that ends while input is on its way to it ("connection reset by peer"). There the
# end is first reported on standard error; then we end the input, and what is left of it is read before the exit.
IN_ORDER = """
marker=$1; shift
[[ -e /run/.containerenv || ${container-} == podman ]] || exec "$@" 2>&1
exec {errors}>&2 2>/dev/null
# The program leads a session here, too: by that its processes are found.
leader=(setsid --wait); "${leader[@]}" true || leader=()
"${leader[@]}" "$@" 2>&1 {errors}>&-
code=$?
printf '\\0%s\\0done\\0%d\\0' "$marker" "$code" >&"$errors"
while LC_ALL=C IFS= read -r -d '' -N 65536 _; do :; done
exit "$code"
"""
# Some engines set the size of a terminal only after the program has started to read it.
IN_A_SIZED_TERMINAL = 'stty rows "$1" columns "$2" 2>/dev/null; shift 2; exec "$@"'
NO_SUCH_CONTAINER = re.compile("no such container", re.IGNORECASE)
ADOPTED_BY = re.compile(r"-of-(\d+)-(\d*)$")
MARK = "toolcrib|"
REACH = ("ps", "-q", "--filter", "label=toolcrib.none")
"""A cheap command that only a working engine answers."""


class DockerEngine:
    """A container; see Engine."""

    kind = "docker"
    shell = "bash"
    shell_pool_size = 1
    temporary = BackendPath("/tmp")

    def __init__(self, options: DockerOptions) -> None:
        self._options = options
        self._container = ""
        self._program = options.binary
        self._is_new = False
        self._is_kept = options.persistent
        self._witnesses = RunningClients()
        self.isolated = is_isolated(options)

    async def open(self) -> None:
        self._client = await _client(self._options.binary, self._options.environ)
        self._program = self._client.program
        if self._options.container:
            await self._take_over()
        elif not (self._options.persistent and await self._resume()):
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
        await self._check_running()
        if terminal is None:
            process = await self._spawn_in_order(argv, on_output)
        else:
            size = (str(terminal.rows), str(terminal.columns))
            sized = (self.shell, "-c", IN_A_SIZED_TERMINAL, self.shell, *size)
            arguments = ["exec", "-i", "-t", self._container, *sized, *argv]
            process = await self._client.spawn(arguments, on_output=on_output, terminal=terminal)
        self._witnesses.add(process)
        return process

    async def _spawn_in_order(self, argv: Sequence[str], on_output: OnOutput) -> HostProcess:
        marker = secrets.token_hex(16)
        arguments = ["exec", "-i", self._container, self.shell, "-c", IN_ORDER, self.shell, marker, *argv]
        # Apart from the end of the program, only the client itself prints on standard error.
        errors = SentinelReader(marker, on_output, lambda _: process.end_input())
        process = await self._client.spawn(arguments, on_output=on_output, on_error=errors.feed)
        return process

    def address(self) -> Mapping[str, str]:
        where = {name.lower(): self._options.environ.get(name, "") for name in ENGINE_VARIABLES}
        return {"container": self._container, "binary": self._program, **where}

    async def snapshot(self, image: str) -> None:
        """Save the files of the container, except mounts and scratch folders, as an image of that name."""
        answer = await self._client.ask("commit", self._container, image, limit_seconds=PULL_SECONDS)
        if answer.exit_code:
            raise EnvironmentFailed(f"could not save the container as image {image!r}: {answer.last_line()}")

    async def _check_running(self) -> None:
        if not self._container:
            raise EnvironmentFailed("the container is not open")
        if self._is_new or self._witnesses.any():
            self._is_new = False
            return
        state = await _state(self._client, self._container)
        if state != "running":
            raise EnvironmentFailed(f"the container {self._container[:12]!r} is gone ({state or 'removed'})")

    async def _start(self, container: str) -> bool:
        """Start a container if it exists; returns whether it does."""
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
            raise EnvironmentGone(f"the container {container[:12]!r} no longer exists; start a new environment")
        self._container = container
        kept = MARK + '{{index .Config.Labels "toolcrib.kept"}}'
        self._is_kept = "1" in (await self._client.ask("container", "inspect", "--format", kept, container)).lines(MARK)
        if self._is_kept:
            # Its session finds it by name.
            return
        # Labels cannot be changed, so the name says who owns it now.
        owner = (self._options.owner or this_process()).replace(":", "-")
        await self._client.ask("rename", container, f"toolcrib-{secrets.token_hex(4)}-of-{owner}")

    async def _is_used(self, container: str) -> bool:
        """Whether the session of a kept container uses it again: it runs more than the idle program."""
        for seconds in (0.0, SETTLE_SECONDS):
            await asyncio.sleep(seconds)
            answer = await self._client.ask("top", container)
            if answer.exit_code or len(answer.text.splitlines()) <= len(("heading", "the idle program")):
                return False
        return True

    async def _resume(self) -> bool:
        name = persistent_name(self._options)
        if not await self._start(name):
            return False
        self._container = name
        return True

    async def _create(self) -> None:
        options = self._options
        if not options.image:
            raise EnvironmentFailed("no docker image is set; set terminal.docker.image")
        name = persistent_name(options) if options.persistent else f"toolcrib-{secrets.token_hex(6)}"
        async with AsyncExitStack() as undo:
            # A container exists even if its program could not be started.
            undo.push_async_callback(self._client.ask, "rm", "-f", "-v", name, limit_seconds=REMOVE_SECONDS)
            answer = await run_to_end(self._run(name, options))
            if answer.exit_code and options.pull and not await self._has_image():
                await self._pull()
                answer = await run_to_end(self._run(name, options))
            if answer.exit_code:
                raise await self._failure(answer)
            undo.pop_all()
        ids = re.findall(r"^[0-9a-f]{64}$", answer.text, re.M)
        self._container = ids[-1] if ids else name

    async def _run(self, name: str, options: DockerOptions) -> ClientOutput:
        """Create the container, without the limits that this engine cannot enforce."""
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
                f"{self._client.name} image {image!r} not found locally, and pulling it failed: {answer.last_line()}; "
                f"check the name (terminal.docker.image), or run `{self._client.name} pull {image}`"
            )

    async def _failure(self, answer: ClientOutput) -> EnvironmentFailed:
        """Why the container could not be created."""
        await _reach(self._client)
        image, name = self._options.image, self._client.name
        if not await self._has_image():
            return EnvironmentFailed(f"{name} image {image!r} not found; run `{name} pull {image}`")
        if answer.exit_code == 127:
            return EnvironmentFailed(
                f"{name} image {image!r} has no bash; choose one with bash (terminal.docker.image)"
            )
        return EnvironmentFailed(f"{name} could not create a container from {image!r}: {answer.last_line()}")


async def _client(binary: str, environ: Mapping[str, str]) -> ContainerClient:
    """The requested client; by default docker if it answers, else podman."""
    found = [program for name in _names(binary) if (program := find_program([name], environ))]
    if not found:
        missing = f"{binary!r} is not" if binary else "docker and podman are not"
        raise EnvironmentFailed(f"{missing} installed or not on PATH; install docker or podman")
    first = ContainerClient(found[0], environ)
    if len(found) == 1 or await _answers(first):
        return first
    return ContainerClient(found[1], environ)


def _names(binary: str) -> tuple[str, ...]:
    return (binary,) if binary else ("docker", "podman")


async def _answers(client: ContainerClient) -> bool:
    try:
        answer = await client.ask(*REACH, limit_seconds=PROBE_SECONDS / 2)
    except EnvironmentFailed:
        return False
    return answer.exit_code == 0


def _unreachable(name: str, answer: ClientOutput) -> tuple[str, str]:
    """What is wrong with an engine that does not answer, and the remedy."""
    if "permission denied" in answer.text.lower():
        return (
            f"this user may not use {name}",
            "run `sudo usermod -aG docker $USER` and log in again, or use podman",
        )
    if "podman" in name:
        return f"podman does not work: {answer.last_line()}", "run `podman info` to see why"
    return (
        f"the docker daemon does not answer: {answer.last_line()}",
        "start it (`sudo systemctl start docker`, or open Docker Desktop), or check DOCKER_HOST",
    )


async def _reach(client: ContainerClient) -> None:
    """Raise EnvironmentFailed if the engine behind the client does not answer."""
    answer = await client.ask(*REACH)
    if answer.exit_code:
        raise EnvironmentFailed("; ".join(_unreachable(client.name, answer)))


async def _state(client: ContainerClient, container: str) -> str:
    """The state of a container: running, exited, paused …; empty if it does not exist."""
    answer = await client.ask("container", "inspect", "--format", MARK + "{{.State.Status}}", container)
    if answer.exit_code and not NO_SUCH_CONTAINER.search(answer.text):
        await _reach(client)
        raise EnvironmentFailed(f"{client.name} cannot inspect the container: {answer.last_line()}")
    return next(iter(answer.lines(MARK)), "")


async def probe(binary: str, environ: Mapping[str, str]) -> BackendStatus:
    """Whether containers can be created here; answers within a second."""
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
    """Our containers that still exist; with `kept`, also those kept on purpose."""
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
    is_remote = labels.get("toolcrib.machine", this_machine()) != this_machine()
    what = "kept for reuse" if is_kept else "of another machine" if is_remote else f"made by process {owner}"
    return Leftover(
        kind="docker container",
        name=identity,
        detail=f"{name.lstrip('/')}, image {image}, {state}, {what}",
        # A process on another machine cannot be checked from here, so it counts as alive.
        owner_alive=is_remote or is_alive(owner),
    )


async def remove(leftover: Leftover, binary: str, environ: Mapping[str, str]) -> None:
    """Remove a container, whatever runs in it; raises EnvironmentFailed if it still exists afterwards."""
    await _remove(await _client(binary, environ), leftover.name)


async def _remove(client: ContainerClient, container: str) -> None:
    answer = await client.ask("rm", "-f", "-v", container, limit_seconds=REMOVE_SECONDS)
    if await _state(client, container):
        raise EnvironmentFailed(
            f"the container {container[:12]!r} could not be removed: {answer.last_line()}; "
            f"run `{client.name} rm -f {container[:12]}`"
        )


def options_from(request: EnvironmentRequest) -> DockerOptions:
    """What the settings, the spec and the address say about the container."""
    section, address = request.section, request.address
    volumes = tuple(map(request.volume, section.volumes))
    is_mounted = bool(volumes or request.workspace)
    return DockerOptions(
        image=request.spec.image,
        binary=address.get("binary", "" if section.engine == "auto" else section.engine),
        environ=_client_environ(request),
        volumes=volumes,
        workspace=request.workspace,
        network=section.network,
        cpus=section.cpus,
        memory_mb=section.memory_mb,
        disk_mb=section.disk_mb,
        pids_limit=section.pids,
        run_as_host_user=section.run_as_host_user == "on" or (section.run_as_host_user == "auto" and is_mounted),
        extra_args=tuple(section.extra_args),
        session="/".join(filter(None, (request.spec.session, request.spec.task))),
        persistent=section.persistent,
        container=address.get("container", ""),
    )


def _client_environ(request: EnvironmentRequest) -> dict[str, str]:
    """The client's variables. The address of an existing container says which engine made it."""
    environ = child_environment(request.environ, passthrough=CLIENT_VARIABLES)
    for name in ENGINE_VARIABLES:
        if name.lower() in request.address:
            environ[name] = request.address[name.lower()]
    return {name: value for name, value in environ.items() if value}


def _create(request: EnvironmentRequest) -> ShellEnvironment:
    default_folder = WORKSPACE if request.workspace and not request.spec.cwd else ""
    return request.shell_over(DockerEngine(options_from(request)), default_folder)


def _client_options(request: EnvironmentRequest) -> tuple[str, Mapping[str, str]]:
    options = options_from(request)
    return options.binary, options.environ


BACKEND = Backend(
    kind="docker",
    location="container",
    section="docker",
    create=_create,
    probe=lambda request: probe(*_client_options(request)),
    leftovers=lambda request: leftovers(*_client_options(request)),
    remove=lambda leftover, request: remove(leftover, *_client_options(request)),
    is_self_contained=lambda spec, section: (
        not (section.volumes or section.extra_args or dict(spec.options).get("workspace"))
    ),
    host_folders=lambda spec, section: tuple(
        filter(None, (dict(spec.options).get("workspace", ""), *writable_sources(section.volumes)))
    ),
)
