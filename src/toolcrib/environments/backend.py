"""The declaration of a backend, and the requests it receives.

A built-in backend is one module in `backends/` with a `BACKEND`; everything else (settings, command line, clean-up)
reads that declaration. An installed package brings a backend through the entry point group `toolcrib.environments`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolcrib.config.environment import SECRET_NAMES, child_environment, passed_through
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.core.environments import BackendStatus, Engine, Environment, EnvironmentSpec, Leftover
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.shell import SessionOptions, ShellEnvironment

PROFILE = ("~/.profile", "~/.bash_profile", "~/.bashrc")
MEGABYTE = 1024 * 1024

Location = Literal["host", "container", "remote", "hosted"]
"""Where commands run: on this machine, in a container of it, on a machine of yours, or at a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRequest:
    """What an environment is created from."""

    spec: EnvironmentSpec
    terminal: TerminalSettings
    environ: Mapping[str, str] = field(repr=False)
    """The variables of this process, for clients and keys. Commands get only what the settings let through."""
    address: Mapping[str, str] = field(default_factory=dict)
    """Where to find an environment that already exists."""
    secrets: tuple[Path, ...] = ()
    """What a sandbox never shows, besides the usual locations of keys."""
    section: Any = None
    """The settings of this backend: its section under `terminal`."""
    on_host: bool = False
    """Commands run on this machine, as the user who runs toolcrib."""

    @property
    def workspace(self) -> Path | None:
        """The folder of this machine that is mounted into the environment."""
        mounted = dict(self.spec.options).get("workspace")
        return Path(mounted) if mounted else None

    def variables(self) -> dict[str, str]:
        """The variables that commands get on top of those the environment has."""
        names = [*self.terminal.env_passthrough, *getattr(self.section, "env_passthrough", ())]
        return passed_through(self.environ, names) | self.terminal.env | getattr(self.section, "env", {})

    def host_environ(self) -> dict[str, str]:
        """The complete environment of a command that runs on this machine."""
        return child_environment(self.environ, extra=self.variables())

    def session_options(self, cwd: str = "") -> SessionOptions:
        """How the shell session starts; `cwd` overrides the folder of the spec."""
        terminal = self.terminal
        files = list(terminal.shell_init_files) or (list(PROFILE) if terminal.login_shell else [])
        if self.on_host:
            files = [self.expand_home(file) for file in files]
        return SessionOptions(
            cwd=cwd or self.spec.cwd,
            variables=self.variables(),
            profile_files=files,
            secret_names=SECRET_NAMES,
            max_log_bytes=terminal.max_saved_output_mb * MEGABYTE,
            folder=self.address.get("folder", ""),
        )

    def shell_over(self, engine: Engine, cwd: str = "") -> ShellEnvironment:
        """An environment with one shell session over the engine, not open yet."""
        return ShellEnvironment(engine, self.session_options(cwd))

    def expand_home(self, path: str) -> str:
        """The path with a leading `~` replaced by the user's home on this machine."""
        home = self.environ.get("HOME")
        return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path

    def host_path(self, path: str) -> Path:
        """An absolute path of this machine; raises EnvironmentFailed for a relative one."""
        found = Path(self.expand_home(path))
        if not found.is_absolute():
            raise EnvironmentFailed(f"{path!r} in the terminal settings must be an absolute path, or start with ~/")
        return found

    def volume(self, written: str) -> str:
        """A mount `HOST:CONTAINER[:ro]` with its host part expanded; raises EnvironmentFailed without a target."""
        source, colon, rest = written.partition(":")
        if not colon or not rest:
            raise EnvironmentFailed(f"{written!r} in the terminal settings must be HOST:CONTAINER or HOST:CONTAINER:ro")
        return f"{self.expand_home(source)}:{rest}"


def _never(_spec: EnvironmentSpec, _section: Any) -> bool:
    return False


def _nowhere(_spec: EnvironmentSpec, _section: Any) -> tuple[str, ...]:
    return ()


def writable_sources(mounts: Iterable[str]) -> tuple[str, ...]:
    """The folders of this machine in mounts `HOST:CONTAINER[:ro]` that can be written to from inside."""
    parts = (mount.split(":") for mount in mounts)
    return tuple(part[0] for part in parts if part[0][:1] in ("/", "~") and "ro" not in ",".join(part[2:]).split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Where commands can run, as `BACKEND` in the backend's module."""

    kind: str
    """The name in `terminal.backend`; also the name of the module."""
    location: Location
    create: Callable[[EnvironmentRequest], Environment]
    """Makes an environment that is not open yet. Must not connect to or start anything."""
    probe: Callable[[EnvironmentRequest], Awaitable[BackendStatus]]
    """Tells whether the backend works here, with a remedy if not. Must be quick and start nothing."""
    leftovers: Callable[[EnvironmentRequest], Awaitable[list[Leftover]]] | None = None
    """Lists what earlier toolcrib processes left in the backend. None: nothing can be left."""
    remove: Callable[[Leftover, EnvironmentRequest], Awaitable[None]] | None = None
    """Removes one leftover; raises EnvironmentFailed if it is still there."""
    section: str = ""
    """Its settings: the field of TerminalSettings. Empty: it has none."""
    can_reattach: bool = True
    """Another process can open the environment again by its address."""
    is_self_contained: Callable[[EnvironmentSpec, Any], bool] = _never
    """Whether a command can harm nothing outside, except over the network: nothing of this machine is mounted. Gets the
    spec and the section."""

    host_folders: Callable[[EnvironmentSpec, Any], tuple[str, ...]] = _nowhere
    """The folders of this machine that programs inside can write to. Gets the same."""

    def settings(self, terminal: TerminalSettings) -> Any:
        """The backend's section of the settings; None if it has none."""
        return getattr(terminal, self.section) if self.section else None
