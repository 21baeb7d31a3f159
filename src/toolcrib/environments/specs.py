"""Which environment a task uses: the settings plus the task's overrides, as one key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.config.settings import Settings
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.core.environments import EnvironmentSpec
from toolcrib.core.errors import ConfigError, UnknownName, nearest_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from toolcrib.environments.backend import Backend

ENTRY_POINTS = "toolcrib.environments"
BUILT_IN = tuple(
    sorted(
        name.removesuffix(".py")
        for name in os.listdir(Path(__file__).parent / "backends")  # noqa: PTH208 - on the start path
        if name.endswith(".py") and not name.startswith("_")
    )
)
"""The kinds of our own backends: one module each."""
ALIASES = {"vercel": "vercel_sandbox"}
"""Names of backends in configs of Hermes Agent."""
ON_THIS_MACHINE = frozenset({"local", "sandbox"})
"""The backends with location `host`. Known without loading them, because many callers ask before anything runs."""

OVERRIDES = frozenset({"backend", "env_type", "image", "host", "user", "cwd", "session"}).union(
    f"{kind}_image" for kind in BUILT_IN
)
"""What a task may override. `env_type` is Hermes Agent's name for `backend`; `KIND_image` applies to that backend only;
`session` names the session whose environment the task shares."""


class UnknownBackend(UnknownName):
    kind = "terminal backend"


def find_backend(kind: str) -> Backend:
    """The declaration of a built-in backend; loads its module."""
    found: Backend = import_module(f"toolcrib.environments.backends.{kind}").BACKEND
    return found


def isolates(kind: str) -> bool:
    """Whether a backend keeps commands apart from this machine and yours, unless its settings mount something."""
    kind = ALIASES.get(kind, kind)
    if kind in ON_THIS_MACHINE or kind not in BUILT_IN:
        return kind == "sandbox"
    return find_backend(kind).location != "remote"


def is_self_contained(spec: EnvironmentSpec, terminal: TerminalSettings) -> bool:
    """Whether a command in that environment can harm nothing outside, except over the network."""
    if spec.backend in ON_THIS_MACHINE or spec.backend not in BUILT_IN:
        return False
    backend = find_backend(spec.backend)
    return backend.is_self_contained(spec, backend.settings(terminal))


def guarded_folders(spec: EnvironmentSpec, terminal: TerminalSettings) -> tuple[Path, ...]:
    """The folders of this machine that programs of a sandbox or a container can write to."""
    if spec.backend == "sandbox":
        written: tuple[str, ...] = (spec.cwd, *terminal.sandbox.writable)
    elif spec.backend in ON_THIS_MACHINE or spec.backend not in BUILT_IN:
        return ()
    else:
        backend = find_backend(spec.backend)
        written = backend.host_folders(spec, backend.settings(terminal))
    folders = (Path(folder).expanduser().resolve() for folder in written if folder)
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def check_overrides(overrides: Mapping[str, str]) -> None:
    """Raises ConfigError for a name that no task can override, or for a value that is not text."""
    for name, value in overrides.items():
        if name not in OVERRIDES:
            near = nearest_names(name, OVERRIDES)
            meant = f"did you mean {' or '.join(map(repr, near))}?" if near else f"use {', '.join(sorted(OVERRIDES))}"
            raise ConfigError(f"a task cannot override {name!r}; {meant}")
        if not isinstance(value, str):
            raise ConfigError(f"the override {name!r} of a task must be text, not {value!r}")


def backend_name(name: str) -> str:
    """The backend that a name in the settings stands for; raises UnknownBackend with the nearest ones."""
    wanted = ALIASES.get(name.strip().lower(), name.strip().lower())
    if wanted in BUILT_IN:
        return wanted
    installed = third_party()
    if name in installed:
        return name
    known = [*BUILT_IN, *ALIASES, *installed]
    raise UnknownBackend(name, known, advice="`toolcrib env list` shows all; set terminal.backend or TERMINAL_ENV")


def third_party() -> dict[str, EntryPoint]:
    """The backends that installed packages bring, by name. A built-in name always means our own."""
    # Costs 10 ms and more, and only a backend that is not ours needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {found.name: found for found in entry_points(group=ENTRY_POINTS) if found.name not in BUILT_IN}


def resolve(
    settings: Settings,
    overrides: Mapping[str, str],
    *,
    session: str,
    task: str = "",
    workspace: Path,
    environ: Mapping[str, str],
) -> EnvironmentSpec:
    """The key of the environment that a task of this session wants. `workspace` is the folder the task works in.

    An empty task is the session itself; so is one that shares the environment of the session that it names.
    """
    check_overrides(overrides)
    terminal = settings.terminal
    backend = backend_name(overrides.get("backend") or overrides.get("env_type") or terminal.backend)
    section = _section(backend, terminal)
    image: str = getattr(section, "image", "")
    host: str = getattr(section, "host", "")
    user: str = getattr(section, "user", "")
    is_mounted = getattr(section, "mount_cwd", False)
    return EnvironmentSpec(
        backend=backend,
        session=overrides.get("session") or session,
        task="" if overrides.get("session") else task,
        image=overrides.get(f"{backend}_image") or overrides.get("image") or image,
        host=overrides.get("host") or host,
        user=overrides.get("user") or user,
        cwd=_cwd(backend, overrides.get("cwd") or terminal.cwd, workspace, environ),
        options=(("workspace", str(workspace)),) if is_mounted else (),
    )


def _section(backend: str, terminal: TerminalSettings) -> Any:
    """The settings section of a backend; None for those that are not keyed by image, host or mounts."""
    if backend in ON_THIS_MACHINE or backend not in BUILT_IN:
        return None
    return find_backend(backend).settings(terminal)


def _cwd(backend: str, written: str, workspace: Path, environ: Mapping[str, str]) -> str:
    """The start folder: an absolute path on this machine; elsewhere as written, because it means nothing here."""
    written = "" if written == "." else written
    if backend not in ON_THIS_MACHINE:
        return written
    home = environ.get("HOME")
    if home and (written == "~" or written.startswith("~/")):
        written = home + written[1:]
    return str(workspace / written) if written else str(workspace)
