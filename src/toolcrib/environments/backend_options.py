"""The settings of each backend as the options that its engine takes.

Backends are loaded by name, so that nothing of one that is not used is ever imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from toolcrib.config.environment import child_environment, passed_through
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.core.environments import EnvironmentSpec
from toolcrib.core.errors import EnvironmentFailed

# How a client finds its engine. Nothing of it reaches a container.
DOCKER_VARIABLES = ("DOCKER_*", "CONTAINER_*", "CONTAINERS_*", "PODMAN_*", "REGISTRY_AUTH_FILE")
# Not all that Apptainer reads: some of its variables mount folders, and mounts are what the settings say.
SINGULARITY_VARIABLES = tuple(
    f"{maker}_{name}" for maker in ("APPTAINER", "SINGULARITY") for name in ("CACHEDIR", "TMPDIR", "CONFIGDIR")
)
WORKSPACE_INSIDE = "/workspace"
MEGABYTE = 1024 * 1024
COVERED_SEPARATOR = "\0"
"""Between paths in an option of a sandbox; no path has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an environment is made from."""

    spec: EnvironmentSpec
    terminal: TerminalSettings
    environ: Mapping[str, str] = field(repr=False)
    """The variables of this process: for clients and keys. Commands get what the settings let through."""
    address: Mapping[str, str] = field(default_factory=dict)
    """Where the place is, if it is there already."""
    secrets: tuple[Path, ...] = ()
    """What a sandbox never shows, besides the usual places of keys."""

    @property
    def workspace(self) -> Path | None:
        mounted = dict(self.spec.options).get("workspace")
        return Path(mounted) if mounted else None

    def variables(self) -> dict[str, str]:
        """What commands get on top of what their place has."""
        names, given = list(self.terminal.env_passthrough), dict(self.terminal.env)
        if self.spec.backend == "docker":
            names += self.terminal.docker.env_passthrough
            given |= self.terminal.docker.env
        return passed_through(self.environ, names) | given

    def host_environ(self) -> dict[str, str]:
        """The environment of commands on this machine."""
        return child_environment(self.environ, extra=self.variables())


def backend_module(kind: str) -> Any:
    """The module of a built-in backend."""
    return import_module(f"toolcrib.environments.backends.{kind}")


def make_engine(order: Order) -> Any:
    """The engine of a built-in backend other than `local`, which is not open yet."""
    kind = order.spec.backend
    return getattr(backend_module(kind), ENGINES[kind])(engine_options(order))


def engine_options(order: Order) -> Any:
    return OPTIONS[order.spec.backend](order)


def sandbox_options(order: Order) -> Any:
    settings, wanted = order.terminal.sandbox, dict(order.spec.options)
    limits = {"max_processes": int(wanted["max_processes"])} if wanted.get("max_processes", "0") != "0" else {}
    return backend_module("sandbox").SandboxOptions(
        workspace=Path(order.spec.cwd),
        use=settings.use,
        network=wanted["network"] == "on" if "network" in wanted else settings.network,
        writable=tuple(_host_path(folder, order) for folder in settings.writable),
        readable=tuple(_host_path(folder, order) for folder in settings.readable),
        home=Path(home) if (home := order.environ.get("HOME")) else None,
        secrets=order.secrets,
        covered=tuple(
            Path(order.spec.cwd, name) for name in wanted.get("covered", "").split(COVERED_SEPARATOR) if name
        ),
        max_shared_memory_bytes=int(wanted.get("shared_memory_mb", "0")) * MEGABYTE,
        environ=order.host_environ(),
        **limits,
    )


def docker_options(order: Order) -> Any:
    settings = order.terminal.docker
    volumes = tuple(_volume(written, order) for written in settings.volumes)
    as_host_user = settings.run_as_host_user == "on" or (
        settings.run_as_host_user == "auto" and bool(volumes or order.workspace)
    )
    return backend_module("docker").DockerOptions(
        image=order.spec.image,
        binary=order.address.get("binary", "" if settings.engine == "auto" else settings.engine),
        environ=_docker_environ(order),
        volumes=volumes,
        workspace=order.workspace,
        network=settings.network,
        cpus=settings.cpus,
        memory_mb=settings.memory_mb,
        disk_mb=settings.disk_mb,
        pids_limit=settings.pids,
        run_as_host_user=as_host_user,
        extra_args=tuple(settings.extra_args),
        session=order.spec.session,
        persistent=settings.persistent,
        container=order.address.get("container", ""),
    )


def _docker_environ(order: Order) -> dict[str, str]:
    """The client's variables; those of a container that is there already lead to the engine that it was made by."""
    environ = child_environment(order.environ, passthrough=DOCKER_VARIABLES)
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        if name.lower() in order.address:
            environ[name] = order.address[name.lower()]
    return {name: value for name, value in environ.items() if value}


def ssh_options(order: Order) -> Any:
    settings, address = order.terminal.ssh, order.address
    host = address.get("host", order.spec.host)
    port = address.get("port", "")
    return backend_module("ssh").SshOptions(
        host=host,
        port=int(port) if port else settings.port,
        user=address.get("user", order.spec.user),
        key=address.get("key") or _expanded(settings.key, order),
        known_hosts=address.get("known_hosts") or _expanded(settings.known_hosts, order),
        config=address.get("config", ""),
        agent_path=order.environ.get("SSH_AUTH_SOCK", ""),
        accept_new_host_keys=settings.accept_new_host_keys,
    )


def singularity_options(order: Order) -> Any:
    settings = order.terminal.singularity
    return backend_module("singularity").SingularityOptions(
        image=_expanded(order.spec.image, order),
        binary=order.address.get("binary", ""),
        environ=child_environment(order.environ, passthrough=SINGULARITY_VARIABLES),
        binds=tuple(_volume(written, order) for written in settings.binds),
        overlay=_host_path(settings.overlay, order) if settings.overlay else None,
        network=settings.network,
        cpus=settings.cpus,
        memory_mb=settings.memory_mb,
        pids_limit=settings.pids,
        extra_args=tuple(settings.extra_args),
        instance=order.address.get("instance", ""),
    )


def modal_options(order: Order) -> Any:
    settings = order.terminal.modal
    return backend_module("modal").ModalOptions(
        token_id=order.environ.get("MODAL_TOKEN_ID", ""),
        token_secret=order.environ.get("MODAL_TOKEN_SECRET", ""),
        app=settings.app,
        image=order.spec.image,
        attach=order.address.get("sandbox", ""),
        cpu=settings.cpus or None,
        memory_mb=settings.memory_mb or None,
        network=settings.network,
        lifetime_seconds=settings.max_lifetime_seconds,
    )


def daytona_options(order: Order) -> Any:
    settings = order.terminal.daytona
    return backend_module("daytona").DaytonaOptions(
        api_key=order.environ.get("DAYTONA_API_KEY", ""),
        api_url=order.environ.get("DAYTONA_API_URL", ""),
        target=order.environ.get("DAYTONA_TARGET", ""),
        image=order.spec.image,
        attach=order.address.get("sandbox", ""),
        cpu=settings.cpus or None,
        memory_mb=settings.memory_mb or None,
        disk_mb=settings.disk_mb or None,
        network=settings.network,
        lifetime_seconds=settings.max_lifetime_seconds,
        idle_seconds=settings.idle_seconds,
    )


def vercel_options(order: Order) -> Any:
    settings = order.terminal.vercel
    return backend_module("vercel_sandbox").VercelOptions(
        token=order.environ.get("VERCEL_TOKEN", ""),
        team_id=order.environ.get("VERCEL_TEAM_ID", ""),
        project_id=order.environ.get("VERCEL_PROJECT_ID", ""),
        image=order.spec.image,
        attach=order.address.get("sandbox", ""),
        cpu=settings.cpus or None,
        memory_mb=settings.memory_mb or None,
        network=settings.network,
        lifetime_seconds=settings.max_lifetime_seconds,
    )


OPTIONS: dict[str, Callable[[Order], Any]] = {
    "sandbox": sandbox_options,
    "docker": docker_options,
    "ssh": ssh_options,
    "singularity": singularity_options,
    "modal": modal_options,
    "daytona": daytona_options,
    "vercel_sandbox": vercel_options,
}
ENGINES = {
    "sandbox": "SandboxEngine",
    "docker": "DockerEngine",
    "ssh": "SshEngine",
    "singularity": "SingularityEngine",
    "modal": "ModalEngine",
    "daytona": "DaytonaEngine",
    "vercel_sandbox": "VercelEngine",
}


def _expanded(path: str, order: Order) -> str:
    home = order.environ.get("HOME")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path


def _host_path(path: str, order: Order) -> Path:
    found = Path(_expanded(path, order))
    if not found.is_absolute():
        raise EnvironmentFailed(f"{path!r} in the terminal settings should be a full path, or start with ~/")
    return found


def _volume(written: str, order: Order) -> str:
    source, colon, rest = written.partition(":")
    if not colon or not rest:
        raise EnvironmentFailed(f"{written!r} in the terminal settings should be HOST:CONTAINER or HOST:CONTAINER:ro")
    return f"{_expanded(source, order)}:{rest}"
