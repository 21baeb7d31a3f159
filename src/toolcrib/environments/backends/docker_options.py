"""How a container of docker or podman is made: the options, and the client's arguments that follow from them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.containers import ROOT_CAPABILITIES, WAIT_FOR_EVER, this_machine, this_process

WORKSPACE = "/workspace"
WHERE_THE_ENGINE_IS = ("DOCKER_HOST", "DOCKER_CONTEXT")
"""The variables that tell a client which engine it talks to; a container is found again only there."""
HOME_OF_HOST_USER = "/home/toolcrib"
TERMINAL_TYPE = "TERM=xterm-256color"
SCRATCH_FOLDERS = {"/tmp": "mode=1777,size=512m", "/var/tmp": "mode=1777,size=512m", "/run": "mode=755,size=64m"}
# Extra arguments after which a container is as closed as before; what is not known here may open it.
HARMLESS_ARGUMENT = re.compile(
    r"^--(?:add-host|annotation|cpuset-cpus|dns|env|gpus|hostname|init|label|platform|read-only|shm-size|ulimit)(?:=|$)"
)


class DockerOptions(Struct, frozen=True, kw_only=True):
    """How containers are made. A limit of 0 is none."""

    image: str = ""
    binary: str = ""
    """A name or path; empty means docker, or podman where there is no docker."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What the client sees (PATH, HOME, DOCKER_HOST …); nothing of it reaches the container."""
    volumes: tuple[str, ...] = ()
    """`source:target[:ro]`: a folder of this machine, or the name of a volume of the engine."""
    workspace: Path | None = None
    """A folder of this machine that is mounted at /workspace."""
    network: bool = True
    cpus: float = 0
    memory_mb: int = 0
    disk_mb: int = 0
    """Kept only where the engine's storage can do that."""
    pids_limit: int = 256
    run_as_host_user: bool = False
    """Programs run with our user and group id, so that what they make in mounted folders is ours."""
    pull: bool = True
    """Whether an image that is not here is fetched."""
    extra_args: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    owner: str = ""
    """Process id and start time, `pid:start`; empty means this process."""
    persistent: bool = False
    """Closing stops the container and keeps its files; the next engine with the same session and options goes on there.
    Meant for one process at a time."""
    container: str = ""
    """One that is there already, as `address()` names it: it is taken over, and nothing is made."""


def run_arguments(options: DockerOptions, name: str, *, is_podman: bool = False) -> list[str]:
    """The client's arguments that make and start a container of that name."""
    return [
        *("run", "-d", "--pull", "never", "--name", name, "--stop-signal", "SIGKILL", "--entrypoint", "bash"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--env", TERMINAL_TYPE),
        *_user(options, is_podman),
        *_labels(options),
        *_limits(options),
        *(part for folder, how in SCRATCH_FOLDERS.items() for part in _scratch(folder, how)),
        *_mounts(options),
        *options.extra_args,
        options.image,
        *("-c", WAIT_FOR_EVER),
    ]


def is_closed(options: DockerOptions) -> bool:
    """Whether nothing of this machine can be changed from inside: no writable folder of it, no opened-up container."""
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


def _limits(options: DockerOptions) -> Iterator[str]:
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
            f"{str(folder)!r} is too much to mount as the workspace; start in a project's folder, "
            "or name what is to be mounted in terminal.docker.volumes"
        )
    _check_folder(folder, options)
    source_field = f"source={folder}".replace('"', '""')
    yield from ("--mount", f'type=bind,"{source_field}",target={WORKSPACE}', "--workdir", WORKSPACE)


def _source(volume: str, options: DockerOptions) -> Path | None:
    """The folder of this machine that a volume names; None for a volume that the engine keeps."""
    source, _, target = volume.partition(":")
    if not target.startswith("/"):
        raise EnvironmentFailed(f"the volume {volume!r} is not of the form 'source:/target' or 'source:/target:ro'")
    if source.startswith("~"):
        source = options.environ.get("HOME", "~") + source[1:]
    if not source.startswith("/"):
        if "/" in source or source.startswith("."):
            raise EnvironmentFailed(f"the volume {volume!r} must name its folder from / or ~ on")
        return None
    _check_folder(Path(source), options)
    return Path(source)


def _check_folder(folder: Path, options: DockerOptions) -> None:
    """An engine would make a missing folder, as root's. An engine elsewhere has folders that we cannot see."""
    is_elsewhere = options.environ.get("DOCKER_HOST", "").startswith(("tcp:", "ssh:", "http"))
    if not is_elsewhere and not folder.exists():
        raise EnvironmentFailed(f"{str(folder)!r} is to be mounted, but does not exist; make it first")


def _is_read_only(volume: str) -> bool:
    return "ro" in ",".join(volume.split(":")[2:]).split(",")


def lasting_name(options: DockerOptions) -> str:
    """The same for equal options: where an engine finds what an earlier one kept."""
    same = replace(options, environ={}, labels={}, owner="", container="")
    return f"toolcrib-kept-{hashlib.sha256(repr(same).encode()).hexdigest()[:16]}"
