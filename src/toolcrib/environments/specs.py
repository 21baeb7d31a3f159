"""Which environment a task wants: the settings, with what the task wants differently, as one key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from toolcrib.config.settings import Settings
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.core.environments import EnvironmentSpec
from toolcrib.core.errors import ConfigError, UnknownName, nearest_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "toolcrib.environments"
BUILT_IN = ("local", "sandbox", "docker", "ssh", "singularity", "modal", "daytona", "vercel_sandbox")
ALIASES = {"vercel": "vercel_sandbox"}
IN_THE_CLOUD = frozenset({"modal", "daytona", "vercel_sandbox"})
ON_THIS_MACHINE = frozenset({"local", "sandbox"})

IMAGE_KEYS = {f"{kind}_image": kind for kind in ("docker", "singularity", "modal", "daytona")}
OVERRIDES = frozenset({"backend", "env_type", "image", "host", "user", "cwd", "session", *IMAGE_KEYS})
"""What a task may want differently. `env_type` is the reference's word for backend; `NAME_image` counts for that
backend alone; `session` names the session whose environment is shared."""


class UnknownBackend(UnknownName):
    kind = "terminal backend"


def keeps_everything_inside(spec: EnvironmentSpec, terminal: TerminalSettings) -> bool:
    """Whether a command in that place can harm nothing outside, except by the network: nothing is mounted there."""
    if spec.backend == "docker":
        docker = terminal.docker
        return not (docker.volumes or docker.extra_args or dict(spec.options).get("workspace"))
    if spec.backend == "singularity":
        return not (terminal.singularity.binds or terminal.singularity.extra_args)
    return spec.backend in IN_THE_CLOUD


def check_overrides(overrides: Mapping[str, str]) -> None:
    """Raises ConfigError for a name that no task can override, or for a value that is not text."""
    for name, value in overrides.items():
        if name not in OVERRIDES:
            near = nearest_names(name, OVERRIDES)
            meant = f"did you mean {' or '.join(map(repr, near))}?" if near else f"use {', '.join(sorted(OVERRIDES))}"
            raise ConfigError(f"a task cannot override {name!r}; {meant}")
        if not isinstance(value, str):
            raise ConfigError(f"the override {name!r} of a task should be text, not {value!r}")


def backend_name(name: str) -> str:
    """The kind that a name in the settings means; raises UnknownBackend with the nearest ones."""
    wanted = ALIASES.get(name.strip().lower(), name.strip().lower())
    if wanted in BUILT_IN:
        return wanted
    installed = third_party()
    if name in installed:
        return name
    known = [*BUILT_IN, *ALIASES, *installed]
    raise UnknownBackend(name, known, advice="`toolcrib env list` shows all; set terminal.backend or TERMINAL_ENV")


def third_party() -> dict[str, EntryPoint]:
    """The backends that other packages bring, by name. A built-in name stays ours."""
    # Costs 10 ms and more, and only a backend that is not ours needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {found.name: found for found in entry_points(group=ENTRY_POINTS) if found.name not in BUILT_IN}


def resolve(
    settings: Settings,
    overrides: Mapping[str, str],
    *,
    session: str,
    workspace: Path,
    environ: Mapping[str, str],
) -> EnvironmentSpec:
    """The key of the environment that a task of this session wants. `workspace` is the folder that it works in."""
    check_overrides(overrides)
    terminal = settings.terminal
    backend = backend_name(overrides.get("backend") or overrides.get("env_type") or terminal.backend)
    ssh = terminal.ssh if backend == "ssh" else None
    mounted = backend == "docker" and terminal.docker.mount_cwd
    return EnvironmentSpec(
        backend=backend,
        session=overrides.get("session") or session,
        image=overrides.get(f"{backend}_image") or overrides.get("image") or _image(backend, terminal),
        host=overrides.get("host") or (ssh.host if ssh else ""),
        user=overrides.get("user") or (ssh.user if ssh else ""),
        cwd=_cwd(backend, overrides.get("cwd") or terminal.cwd, workspace, environ),
        options=(("workspace", str(workspace)),) if mounted else (),
    )


def _image(backend: str, terminal: TerminalSettings) -> str:
    images = {
        "docker": terminal.docker.image,
        "singularity": terminal.singularity.image,
        "modal": terminal.modal.image,
        "daytona": terminal.daytona.image,
    }
    return images.get(backend, "")


def _cwd(backend: str, written: str, workspace: Path, environ: Mapping[str, str]) -> str:
    """The folder to start in: a full path on this machine; elsewhere as it is written, for it means nothing here."""
    written = "" if written == "." else written
    if backend not in ON_THIS_MACHINE:
        return written
    home = environ.get("HOME")
    if home and (written == "~" or written.startswith("~/")):
        written = home + written[1:]
    return str(workspace / written) if written else str(workspace)
