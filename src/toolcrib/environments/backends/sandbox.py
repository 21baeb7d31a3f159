"""The `sandbox` backend: this machine, mostly out of reach, through bubblewrap or Landlock.

One sandbox exists for as long as the engine is open. A small spawner inside starts programs on request, so that
commands see each other as they would on this machine, and a command costs no more than its own start.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.core.environments import BackendPath, BackendStatus, Leftover, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backend import Backend, EnvironmentRequest
from toolcrib.environments.host_process import spawn_on_host
from toolcrib.environments.sandboxing import landlock, spawner
from toolcrib.environments.sandboxing.landlock import OWN_MOUNTS, can_scope_signals_and_sockets, landlock_version
from toolcrib.environments.sandboxing.policy import (
    LOCAL_SOCKETS,
    NETWORK_SOCKETS,
    SPAWNER_INSIDE,
    VisibleFiles,
    bubblewrap_arguments,
    bubblewrap_problem,
    find_bubblewrap,
    landlock_policy,
    seccomp_program,
    visible_files,
)
from toolcrib.environments.sandboxing.session import SandboxProcess, SandboxSession, memory_file
from toolcrib.environments.shell import ShellEnvironment

PREFIX = "toolcrib-sandbox-"
LOCK = "owner"
KIND = "sandbox folder"
NEW_SECONDS = 60
# Programs may leave folders that even their owner cannot list.
REMOVE = 'chmod -R u+rwX -- "$1" 2>/dev/null; rm -rf -- "$1"'


class SandboxFolder:
    """A new private folder for the sandbox's own /tmp and home, locked while its owner lives."""

    def __init__(self, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)).resolve()
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The kernel releases it when we end, however that happens.
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        self.temporary.mkdir()
        self.home.mkdir()

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    @property
    def home(self) -> Path:
        return self.path / "home"

    async def remove(self) -> None:
        await _remove(self.path)
        os.close(self._lock)


async def leftovers(parent: Path | None = None) -> list[Leftover]:
    """The folders of our sandboxes, including those in use."""
    return list(_find(Path(parent or tempfile.gettempdir())))


async def remove_abandoned(parent: Path | None = None) -> None:
    """Delete the folders whose owners were killed."""
    for leftover in await leftovers(parent):
        if not leftover.owner_alive and not _is_new(leftover.name):
            await remove(leftover)


async def remove(leftover: Leftover) -> None:
    """Delete a folder that `leftovers` found, if its owner has ended."""
    path = Path(leftover.name)
    if leftover.kind == KIND and path.name.startswith(PREFIX) and not _owner_is_alive(path):
        await _remove(path)


def _find(parent: Path) -> Iterator[Leftover]:
    for path in sorted(parent.glob(f"{PREFIX}*")):
        if path.is_symlink() or not path.is_dir() or path.lstat().st_uid != os.geteuid():
            continue
        alive = _owner_is_alive(path)
        yield Leftover(
            kind=KIND,
            name=str(path),
            detail="/tmp and home of a sandbox that is in use"
            if alive
            else "/tmp and home of a sandbox that has ended",
            owner_alive=alive,
        )


def _is_new(name: str) -> bool:
    """Whether it was just created, so that its owner may not have locked it yet."""
    try:
        return Path(name).stat().st_mtime > time.time() - NEW_SECONDS
    except OSError:
        return False


def _owner_is_alive(path: Path) -> bool:
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


async def _remove(path: Path) -> None:
    removing = await spawn_on_host(
        ["/bin/sh", "-c", REMOVE, "sh", str(path)], on_output=_ignore, environ={"PATH": os.defpath}
    )
    await removing.wait()
    await removing.abandon()


def _ignore(_: bytes) -> None:
    return


__all__ = ["SandboxEngine", "SandboxOptions", "leftovers", "probe", "remove"]

COVERED_SEPARATOR = "\0"
"""Between paths in an option of a spec; no path contains it."""
MEGABYTE = 1024 * 1024
MAX_PROCESSES = 4096
SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/run/current-system/sw/bin/bash")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# This Python, isolated from anything that users add to it.
PYTHON = (str(Path(sys.executable).resolve()), "-I", "-S", "-X", "utf8")
SPAWNER = Path(spawner.__file__).resolve()
LAUNCHER = Path(landlock.__file__).resolve()
REMEDY = "install bubblewrap (apt-get install bubblewrap), or choose another backend"
NOT_LINUX = "the sandbox needs Linux"

Mechanism = Literal["bubblewrap", "landlock"]
SpawnerGreeting = dict[str, Any]


class SandboxOptions(Struct, frozen=True, kw_only=True):
    workspace: Path
    """The folder where programs start and may write. It has the same path inside."""
    use: Literal["auto", "bubblewrap", "landlock"] = "auto"
    network: bool = False
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    home: Path | None = None
    """The user's home, which is hidden; None means the one in the password database."""
    secrets: tuple[Path, ...] = ()
    """What is never shown, besides the usual locations of keys and passwords in the home."""
    covered: tuple[Path, ...] = ()
    """Files in the workspace that are hidden, if the mechanism can hide single files."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The variables of programs; the sandbox sets its own HOME and TMPDIR."""
    max_processes: int = MAX_PROCESSES
    max_file_bytes: int = 0
    """The maximum size of one file; 0 means no limit."""
    max_memory_bytes: int = 0
    """The maximum address space of one process; 0 means no limit."""
    max_shared_memory_bytes: int = 0
    """The size of /dev/shm, where the sandbox has its own; 0 means no limit."""
    temporary: Path | None = None
    """The folder of this machine for the sandbox's own /tmp and home; None means the default temporary folder."""


class SandboxEngine:
    """Programs on this machine that cannot reach beyond their workspace; see Engine."""

    kind = "sandbox"
    shell_pool_size = 1

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._folder: SandboxFolder | None = None
        self._session: SandboxSession | None = None
        self._mechanism: Mechanism | None = None
        self._starting = asyncio.Lock()
        self._cleaning: asyncio.Task[None] | None = None
        self.isolated = False
        """Known once open: files elsewhere cannot be changed, and secrets cannot be read."""
        self.description = ""
        """For people: what confines programs, and what it does not cover."""
        self.temporary = BackendPath("/tmp")
        """The folder inside for temporary files; known once open."""
        self.shell = next((path for path in SHELLS if Path(path).exists()), "bash")

    async def open(self) -> None:
        if self._folder is not None:
            return
        if sys.platform != "linux":
            raise EnvironmentFailed(f"{NOT_LINUX}; choose another backend")
        visible = self._visible()
        self._folder = SandboxFolder(self._options.temporary)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            await self._open_with_best(visible, self._folder)
            undo.pop_all()
        self._cleaning = asyncio.ensure_future(remove_abandoned(self._options.temporary))

    async def close(self) -> None:
        session, self._session = self._session, None
        folder, self._folder = self._folder, None
        if session is not None:
            await session.end()
        if self._cleaning is not None:
            await asyncio.wait([self._cleaning])
        if folder is not None:
            await folder.remove()

    async def end_programs(self) -> None:
        """End everything inside by ending the sandbox; the next program starts a new one with the same files."""
        async with self._starting:
            if self._session is not None:
                await self._session.end(at_once=True)

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> SandboxProcess:
        if self._folder is None or self._session is None or self._mechanism is None:
            raise EnvironmentFailed("the sandbox is not open")
        if not self._session.is_running:
            await self._restart(self._mechanism, self._folder)
        return await self._session.spawn(argv, on_output, terminal)

    @property
    def has_own_processes(self) -> bool:
        """Whether programs inside see each other but no other process of this machine."""
        return self._mechanism == "bubblewrap"

    @property
    def workspace(self) -> BackendPath:
        """The path of the workspace inside, which has no symbolic links."""
        return BackendPath(str(self._options.workspace.expanduser().resolve()))

    def address(self) -> Mapping[str, str]:
        return {"scratch": str(self._folder.path)} if self._folder is not None else {}

    async def _restart(self, mechanism: Mechanism, folder: SandboxFolder) -> None:
        """Create a new sandbox around the files of one that was killed."""
        async with self._starting:
            if self._session is not None and not self._session.is_running:
                await self._session.end()
                self._session = await self._start(mechanism, self._visible(), folder)

    def _visible(self) -> VisibleFiles:
        options = self._options
        return visible_files(options.workspace, options.home, options.writable, options.readable, options.secrets)

    async def _open_with_best(self, visible: VisibleFiles, folder: SandboxFolder) -> None:
        """Use the best mechanism that works and is allowed."""
        refused: list[str] = []
        candidates: tuple[Mechanism, ...] = ("bubblewrap", "landlock")
        for mechanism in candidates:
            if self._options.use not in ("auto", mechanism):
                continue
            try:
                self._session = await self._start(mechanism, visible, folder)
            except EnvironmentFailed as error:
                refused.append(f"{mechanism}: {error}")
                continue
            self._mechanism = mechanism
            return
        raise EnvironmentFailed(f"no sandbox can be created here ({'; '.join(refused)}); {REMEDY}")

    async def _start(self, mechanism: Mechanism, visible: VisibleFiles, folder: SandboxFolder) -> SandboxSession:
        session = SandboxSession(pids_are_ours=mechanism == "landlock")
        if mechanism == "bubblewrap":
            greeting = await self._start_bubblewrap(session, visible, folder)
        else:
            greeting = await self._start_landlock(session, visible, folder)
        if greeting["refused"]:
            await session.end()
            raise EnvironmentFailed(
                f"programs cannot write to {greeting['refused'][0]!r}, which belongs to another user; "
                "run toolcrib as that user, or chown the folder"
            )
        return session

    async def _start_bubblewrap(
        self, session: SandboxSession, visible: VisibleFiles, folder: SandboxFolder
    ) -> SpawnerGreeting:
        found = find_bubblewrap()
        if found is None:
            raise EnvironmentFailed("it is not installed")
        program, version = found
        seccomp = seccomp_program(platform.machine(), sockets=LOCAL_SOCKETS | NETWORK_SOCKETS)
        with memory_file(seccomp or b"") as rules:
            sandbox = bubblewrap_arguments(
                version,
                replace(visible, hidden=(*visible.hidden, *self._covered())),
                scratch=folder.path,
                network=self._options.network,
                shared_memory_bytes=self._options.max_shared_memory_bytes,
                seccomp=rules.fileno() if seccomp else None,
                spawner=SPAWNER,
            )
            greeting = await session.start(
                lambda link: [program, *sandbox, *PYTHON, *self._spawner(SPAWNER_INSIDE, link, visible, others=0)],
                self._environ(home=visible.home, temporary="/tmp"),
                inherited=[rules.fileno()],
            )
        # Sockets without a file are part of the network.
        apart = not self._options.network or can_scope_signals_and_sockets(landlock_version())
        self.isolated = apart and not visible.whole_home
        self.temporary = BackendPath("/tmp")
        self._describe(
            f"bubblewrap {'.'.join(map(str, version))}: own processes, /tmp and home",
            "the system read-only, the rest hidden",
            "" if apart else "abstract sockets of your other programs are reachable",
            "seccomp" if seccomp else "no seccomp, which does not support this processor",
        )
        return greeting

    async def _start_landlock(
        self, session: SandboxSession, visible: VisibleFiles, folder: SandboxFolder
    ) -> SpawnerGreeting:
        version = landlock_version()
        policy = landlock_policy(visible, folder.path, network=self._options.network, spawner=SPAWNER)
        greeting = await session.start(
            lambda link: [
                *PYTHON,
                str(LAUNCHER),
                str(link),
                json.dumps(policy),
                *self._spawner(str(SPAWNER), link, visible, others=_tasks_of_this_user()),
            ],
            self._environ(home=folder.home, temporary=str(folder.temporary)),
        )
        own_mounts = OWN_MOUNTS in greeting["notes"]
        apart = can_scope_signals_and_sockets(version)
        self.isolated = own_mounts and apart and not visible.whole_home
        self.temporary = BackendPath("/tmp" if own_mounts else str(folder.temporary))
        self._describe(
            f"Landlock {version}: own home{' and /tmp' if own_mounts else ''}",
            "the system read-only, the rest hidden",
            "" if own_mounts else "modes and times of your other files are not protected",
            "" if apart else "signals can reach your other programs",
            "no named sockets",
            "seccomp",
        )
        return greeting

    def _covered(self) -> list[Path]:
        real = (path.resolve() for path in self._options.covered if path.is_file())
        return [path for path in real if path.is_relative_to(self._options.workspace.resolve())]

    def _describe(self, *parts: str) -> None:
        network = "network" if self._options.network else "no network"
        self.description = "; ".join([part for part in parts if part] + [network, "limits"])

    def _spawner(self, script: str, link: int, visible: VisibleFiles, *, others: int) -> list[str]:
        """The spawner and its arguments; `others` tasks already count against its process limit."""
        options = self._options
        limits = {"RLIMIT_CORE": 0, "RLIMIT_NPROC": others + options.max_processes}
        if options.max_file_bytes:
            limits["RLIMIT_FSIZE"] = options.max_file_bytes
        if options.max_memory_bytes:
            limits["RLIMIT_AS"] = options.max_memory_bytes
        told = {
            "limits": limits,
            "folder": str(visible.workspace),
            "writable": [str(path) for path in visible.writable],
        }
        return [script, str(link), json.dumps(told)]

    def _environ(self, *, home: Path, temporary: str) -> dict[str, str]:
        usual = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", "SHELL": self.shell}
        own = {"HOME": str(home), "TMPDIR": temporary, "TOOLCRIB_SANDBOX": "1"}
        return {**usual, **self._options.environ, **own}


async def probe(options: SandboxOptions) -> BackendStatus:
    """Whether a sandbox can be created here, and with which mechanism; quick, and leaves nothing behind."""
    if sys.platform != "linux":
        return BackendStatus(kind="sandbox", usable=False, detail=NOT_LINUX, remedy="choose another backend")
    missing: list[str] = []
    if options.use != "landlock":
        found = find_bubblewrap()
        trouble = bubblewrap_problem(found[0]) if found else "it is not installed"
        if found and not trouble:
            return BackendStatus(kind="sandbox", usable=True, detail=f"bubblewrap {'.'.join(map(str, found[1]))}")
        missing.append(f"bubblewrap: {trouble}")
    if options.use != "bubblewrap":
        version = landlock_version()
        if version and seccomp_program(platform.machine(), sockets=()):
            detail = "; ".join([f"Landlock {version} with seccomp and limits", *missing])
            return BackendStatus(kind="sandbox", usable=True, detail=detail, remedy=REMEDY if missing else "")
        missing.append("landlock: this kernel does not support it, or it is disabled")
    return BackendStatus(kind="sandbox", usable=False, detail="; ".join(missing), remedy=REMEDY)


def _tasks_of_this_user() -> int:
    """How many tasks already count against the process limit, if the user is shared with the rest of the machine."""
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == os.geteuid():
                    count += len(os.listdir(f"{entry.path}/task"))  # noqa: PTH208
            except OSError:
                continue
    return count


def options_from(request: EnvironmentRequest) -> SandboxOptions:
    """What the settings and the spec say about the sandbox."""
    section, wanted = request.section, dict(request.spec.options)
    covered = wanted.get("covered", "").split(COVERED_SEPARATOR)
    return SandboxOptions(
        workspace=Path(request.spec.cwd),
        use=section.use,
        network=wanted["network"] == "on" if "network" in wanted else section.network,
        writable=tuple(request.host_path(folder) for folder in section.writable),
        readable=tuple(request.host_path(folder) for folder in section.readable),
        home=Path(home) if (home := request.environ.get("HOME")) else None,
        secrets=request.secrets,
        covered=tuple(Path(request.spec.cwd, name) for name in covered if name),
        max_shared_memory_bytes=int(wanted.get("shared_memory_mb", "0")) * MEGABYTE,
        environ=request.host_environ(),
        max_processes=int(wanted.get("max_processes", "0")) or MAX_PROCESSES,
    )


def _create(request: EnvironmentRequest) -> ShellEnvironment:
    # Inside the sandbox only the real path of the workspace exists.
    cwd = str(Path(request.spec.cwd).resolve()) if request.spec.cwd else ""
    return request.shell_over(SandboxEngine(options_from(request)), cwd)


async def _list_leftovers(_: EnvironmentRequest) -> list[Leftover]:
    return await leftovers()


async def _remove_leftover(leftover: Leftover, _: EnvironmentRequest) -> None:
    await remove(leftover)


BACKEND = Backend(
    kind="sandbox",
    location="host",
    section="sandbox",
    create=_create,
    probe=lambda request: probe(options_from(request)),
    leftovers=_list_leftovers,
    remove=_remove_leftover,
    can_reattach=False,
)
