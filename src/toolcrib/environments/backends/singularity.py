"""The `singularity` backend: one instance per environment, through the client of apptainer or singularity."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.config.environment import child_environment
from toolcrib.core.environments import BackendPath, BackendStatus, EngineProcess, Leftover, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed, EnvironmentGone
from toolcrib.environments.backend import Backend, EnvironmentRequest, writable_sources
from toolcrib.environments.containers import (
    PROBE_SECONDS,
    ROOT_CAPABILITIES,
    ClientOutput,
    ContainerClient,
    RunningClients,
    find_program,
    is_alive,
    run_to_end,
    this_process,
)
from toolcrib.environments.host_process import on_exit

PROGRAMS = ("apptainer", "singularity")
# Not everything that Apptainer reads: some of its variables mount folders, and only the settings decide about mounts.
CLIENT_VARIABLES = tuple(
    f"{maker}_{name}" for maker in ("APPTAINER", "SINGULARITY") for name in ("CACHEDIR", "TMPDIR", "CONFIGDIR")
)
# An image from a registry is pulled and converted the first time it is started.
START_SECONDS = 1800.0
STOP_SECONDS = 30.0
# Limits need cgroups that this user may write to; old versions of singularity do not support them at all.
REFUSES_LIMITS = re.compile(r"cgroup|unknown flag: --(?:memory|cpus|pids-limit)", re.IGNORECASE)
OUR_NAME = re.compile(r"^toolcrib-[0-9a-f]+-(\d+)-(\d*)$")
MARK = "toolcrib|"
INSPECT = f"""
mkdir -p "$HOME" 2>/dev/null; [ -w "$HOME" ] && echo '{MARK}home'
type -P setsid >/dev/null && echo '{MARK}setsid'
exit 0
"""
WITH_A_HOME_IN_TMP = 'export HOME=/tmp; exec "$@"'


class SingularityOptions(Struct, frozen=True, kw_only=True):
    """How instances are started. A limit of 0 means none; limits apply only if this user may set them."""

    image: str = ""
    """A file or folder of this machine, or an address such as docker://debian."""
    binary: str = ""
    """A name or path; empty means apptainer, or singularity where there is no apptainer."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The client's variables (PATH, HOME …); none of them reach the instance."""
    binds: tuple[str, ...] = ()
    """`source:target[:ro]`: a file or folder of this machine."""
    overlay: Path | None = None
    """A folder of this machine that keeps changes for the next instance; without it they are lost."""
    network: bool = True
    cpus: float = 0
    memory_mb: int = 0
    pids_limit: int = 256
    extra_args: tuple[str, ...] = ()
    owner: str = ""
    """Process id and start time, `pid:start`; empty means this process."""
    instance: str = ""
    """A running instance, as named by `address()`: take it over instead of starting one."""


class SingularityEngine:
    """An instance; see Engine."""

    kind = "singularity"
    shell = "bash"
    shell_pool_size = 1
    temporary = BackendPath("/tmp")

    def __init__(self, options: SingularityOptions) -> None:
        self._options = options
        self._instance = ""
        self._is_new = False
        self._in_home: tuple[str, ...] = ()
        self._witnesses = RunningClients()
        writable = any(not bind.endswith(":ro") for bind in options.binds)
        self.isolated = not (writable or options.extra_args or options.instance)

    async def open(self) -> None:
        self._client = _client(self._options.binary, self._options.environ)
        if self._options.instance:
            if not await _described(self._client, self._options.instance):
                raise EnvironmentGone(f"the instance {self._options.instance!r} no longer exists; start a new one")
            self._instance = self._options.instance
        else:
            await self._start_instance()
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            await self._inspect_image()
            undo.pop_all()
        self._is_new = True

    async def close(self) -> None:
        instance, self._instance = self._instance, ""
        if not instance:
            return
        try:
            # Its daemon sometimes misses the end the first time.
            try:
                await _stop(self._client, instance)
            except EnvironmentFailed:
                await _stop(self._client, instance)
        finally:
            await self._witnesses.release()

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> EngineProcess:
        await self._check_running()
        # The client's session means nothing inside: a program needs its own session there, and then its terminal.
        if terminal is None:
            arguments = self._exec_arguments(*self._in_home, "setsid", *argv)
            process = await self._client.spawn(arguments, on_output=on_output)
        else:
            arguments = self._exec_arguments(*self._in_home, "setsid", "-c", *argv)
            process = await self._client.spawn_lending_terminal(arguments, on_output=on_output, terminal=terminal)
        self._witnesses.add(process)
        return process

    def address(self) -> Mapping[str, str]:
        return {"instance": self._instance, "binary": self._options.binary}

    def _exec_arguments(self, *argv: str) -> list[str]:
        return ["exec", *_privileges(), "--cleanenv", "--pwd", "/", f"instance://{self._instance}", *argv]

    async def _check_running(self) -> None:
        if not self._instance:
            raise EnvironmentFailed("the instance is not open")
        if self._is_new or self._witnesses.any():
            self._is_new = False
            return
        if not await _described(self._client, self._instance):
            raise EnvironmentFailed(f"the instance {self._instance!r} is gone")

    async def _start_instance(self) -> None:
        owner = (self._options.owner or this_process()).replace(":", "-")
        name = f"toolcrib-{secrets.token_hex(4)}-{owner}"
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_stop, self._client, name)
            answer = await run_to_end(self._start(name, self._options))
            if answer.exit_code:
                image = self._options.image
                raise EnvironmentFailed(
                    f"{self._client.name} could not start {image!r}: {answer.last_line()}; "
                    "check terminal.singularity.image"
                )
            undo.pop_all()
        self._instance = name

    async def _start(self, name: str, options: SingularityOptions) -> ClientOutput:
        answer = await self._client.ask(*start_arguments(options, name), limit_seconds=START_SECONDS)
        limited = options.cpus or options.memory_mb or options.pids_limit
        if answer.exit_code and limited and REFUSES_LIMITS.search(answer.text):
            return await self._start(name, replace(options, cpus=0, memory_mb=0, pids_limit=0))
        return answer

    async def _inspect_image(self) -> None:
        """Check that the image has what programs need: bash, setsid, a writable home."""
        answer = await self._client.ask(*self._exec_arguments(self.shell, "-c", INSPECT))
        found = answer.lines(MARK)
        if answer.exit_code or "setsid" not in found:
            why = answer.last_line() if answer.exit_code else "it has no setsid"
            raise EnvironmentFailed(
                f"{self._client.name} cannot run commands in {self._options.image!r}: {why}; "
                "choose an image with bash and setsid (terminal.singularity.image)"
            )
        self._in_home = () if "home" in found else (self.shell, "-c", WITH_A_HOME_IN_TMP, self.shell)


def start_arguments(options: SingularityOptions, name: str) -> list[str]:
    """The client's arguments that start an instance of that name."""
    home = options.environ.get("HOME", "~")
    return [
        *("instance", "start", "--containall", "--no-home", *_privileges()),
        *(("--overlay", str(options.overlay)) if options.overlay else ("--writable-tmpfs",)),
        *(() if options.network else ("--net", "--network", "none")),
        *_limits(options),
        *(part for bind in options.binds for part in ("--bind", _bind(bind, home))),
        *options.extra_args,
        _image(options.image, home),
        name,
    ]


def _privileges() -> tuple[str, ...]:
    """Drop privileges: root in an instance would otherwise have all capabilities of root on this machine."""
    if os.getuid() != 0:
        return ()
    return "--no-privs", "--add-caps", ",".join(f"CAP_{capability}" for capability in ROOT_CAPABILITIES)


def _limits(options: SingularityOptions) -> Iterator[str]:
    if options.cpus:
        yield from ("--cpus", f"{options.cpus:g}")
    if options.memory_mb:
        yield from ("--memory", f"{options.memory_mb}M")
    if options.pids_limit:
        yield from ("--pids-limit", str(options.pids_limit))


def _bind(bind: str, home: str) -> str:
    source, colon, rest = bind.partition(":")
    if source == "~" or source.startswith("~/"):
        source = home + source[1:]
    if not source.startswith("/") or not rest.startswith("/"):
        raise EnvironmentFailed(f"{bind!r} must have the form '/source:/target' or '/source:/target:ro'")
    if not Path(source).exists():
        raise EnvironmentFailed(f"{source!r} cannot be mounted because it does not exist; create it first")
    return source + colon + rest


def _image(image: str, home: str) -> str:
    if not image:
        raise EnvironmentFailed("no singularity image is set; set terminal.singularity.image")
    if "://" in image:
        return image
    path = Path(home + image[1:] if image.startswith("~/") else image)
    if not path.exists():
        raise EnvironmentFailed(
            f"singularity image {image!r} not found; set terminal.singularity.image to a file, a folder, "
            "or an address such as docker://debian"
        )
    return str(path)


def _client(binary: str, environ: Mapping[str, str]) -> ContainerClient:
    program = find_program([binary] if binary else PROGRAMS, environ)
    if program is None:
        missing = f"{binary!r} is not" if binary else "apptainer and singularity are not"
        raise EnvironmentFailed(f"{missing} installed or not on PATH; install apptainer")
    return ContainerClient(program, environ)


async def _described(client: ContainerClient, name: str = "") -> list[dict[str, Any]]:
    """The client's description of this user's instances: one, or all."""
    answer = await client.ask("instance", "list", "--json", *([name] if name else []))
    found = re.search(r"^\{.*^\}", answer.text, re.DOTALL | re.MULTILINE)
    if answer.exit_code or found is None:
        raise EnvironmentFailed(f"{client.name} cannot list its instances: {answer.last_line()}")
    instances: list[dict[str, Any]] = json.loads(found[0])["instances"] or []
    return instances


async def _stop(client: ContainerClient, name: str) -> None:
    """End an instance with everything in it, and remove the client's logs of it."""
    for instance in await _described(client, name):
        ended = asyncio.Event()
        stop_watching = on_exit(int(instance["pid"]), ended.set)
        try:
            # With a timeout, the client would poll once per second for the end of the instance.
            answer = await client.ask("instance", "stop", "-s", "KILL", "-t", "0", name, limit_seconds=STOP_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await ended.wait()
        finally:
            stop_watching()
        if not ended.is_set() or await _described(client, name):
            raise EnvironmentFailed(
                f"the instance {name!r} could not be stopped: {answer.last_line()}; "
                f"run `{client.name} instance stop -F {name}`"
            )
        _remove_logs(instance)


def _remove_logs(instance: Mapping[str, Any]) -> None:
    for log in ("logErrPath", "logOutPath"):
        if instance.get(log):
            Path(instance[log]).unlink(missing_ok=True)


async def probe(binary: str, environ: Mapping[str, str]) -> BackendStatus:
    """Whether instances can be started here; answers within a second."""
    try:
        client = _client(binary, environ)
        answer = await client.ask("--version", limit_seconds=PROBE_SECONDS)
    except EnvironmentFailed as error:
        detail, _, remedy = str(error).partition("; ")
        return BackendStatus(kind="singularity", usable=False, detail=detail, remedy=remedy)
    if answer.exit_code:
        remedy = f"run `{client.name} --version` to see why"
        return BackendStatus(kind="singularity", usable=False, detail=answer.last_line(), remedy=remedy)
    return BackendStatus(kind="singularity", usable=True, detail=answer.last_line())


async def leftovers(binary: str, environ: Mapping[str, str]) -> list[Leftover]:
    """Our instances, of this user, that still run."""
    if find_program([binary] if binary else PROGRAMS, environ) is None:
        return []
    client = _client(binary, environ)
    return [
        Leftover(
            kind="singularity instance",
            name=instance["instance"],
            detail=f"image {instance['img']}, made by process {ours[1]}",
            owner_alive=is_alive(f"{ours[1]}:{ours[2]}"),
        )
        for instance in await _described(client)
        if (ours := OUR_NAME.match(instance["instance"]))
    ]


async def remove(leftover: Leftover, binary: str, environ: Mapping[str, str]) -> None:
    """End an instance, whatever runs in it; raises EnvironmentFailed if it still runs afterwards."""
    await _stop(_client(binary, environ), leftover.name)


def options_from(request: EnvironmentRequest) -> SingularityOptions:
    """What the settings, the spec and the address say about the instance."""
    section = request.section
    return SingularityOptions(
        image=request.expand_home(request.spec.image),
        binary=request.address.get("binary", ""),
        environ=child_environment(request.environ, passthrough=CLIENT_VARIABLES),
        binds=tuple(map(request.volume, section.binds)),
        overlay=request.host_path(section.overlay) if section.overlay else None,
        network=section.network,
        cpus=section.cpus,
        memory_mb=section.memory_mb,
        pids_limit=section.pids,
        extra_args=tuple(section.extra_args),
        instance=request.address.get("instance", ""),
    )


def _client_options(request: EnvironmentRequest) -> tuple[str, Mapping[str, str]]:
    options = options_from(request)
    return options.binary, options.environ


BACKEND = Backend(
    kind="singularity",
    location="container",
    section="singularity",
    create=lambda request: request.shell_over(SingularityEngine(options_from(request))),
    probe=lambda request: probe(*_client_options(request)),
    leftovers=lambda request: leftovers(*_client_options(request)),
    remove=lambda leftover, request: remove(leftover, *_client_options(request)),
    is_self_contained=lambda _, section: not (section.binds or section.extra_args),
    host_folders=lambda _, section: writable_sources(section.binds),
)
