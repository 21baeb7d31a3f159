"""The backends that the conformance suite runs on: one row each, with how its environments are made in the tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest

from tests.environments import engines
from toolcrib.core.environments import Engine, Leftover
from toolcrib.environments.backends import docker, singularity
from toolcrib.environments.backends.docker import DockerEngine, DockerOptions
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.environments.backends.sandbox import SandboxEngine, SandboxOptions
from toolcrib.environments.backends.singularity import SingularityEngine, SingularityOptions
from toolcrib.environments.conformance import BackendUnderTest, Capability
from toolcrib.environments.shell import SessionOptions, ShellEnvironment

SECRET = ("OPENAI_API_KEY", "sk-conformance-4f1b7c2a9d")
"""Stands in the environment that toolcrib was started with; no backend may hand it on."""

Leftovers = Callable[[], Awaitable[Sequence[str]]]
Make = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[BackendUnderTest]]


@dataclass(frozen=True, kw_only=True)
class Factory:
    """A backend in the tests. `make` gives the subject for the time of one test."""

    name: str
    make: Make
    marks: Sequence[pytest.MarkDecorator] = ()
    lacks: frozenset[Capability] = frozenset()
    """What the backend does not promise, so that no check asks for it."""


def host_environ() -> dict[str, str]:
    """What a child of ours starts with on this machine."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LANG": "C.UTF-8", "TERM": "xterm-256color"}


def _over(engine: Callable[[], Engine], cwd: str = "") -> Callable[[], ShellEnvironment]:
    return lambda: ShellEnvironment(engine(), SessionOptions(cwd=cwd))


def _new_folder(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def _names(found: Sequence[Leftover]) -> list[str]:
    return [f"{one.kind} {one.name}" for one in found]


@asynccontextmanager
async def local(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
    temporary: Path = request.getfixturevalue("tmp_path")
    folders = _new_folder(temporary / "folders")
    made = iter(range(1_000))

    def make() -> LocalShellEnvironment:
        folder = _new_folder(folders / str(next(made)))
        return LocalShellEnvironment(host_environ(), SessionOptions(cwd="/", folder=str(folder)))

    async def leftovers() -> list[str]:
        return [*(str(path) for path in folders.iterdir()), *open_files()]

    yield BackendUnderTest(
        name="local", make=make, can=frozenset({"pty", "secrets"}), secrets=dict([SECRET]), leftovers=leftovers
    )


def open_files() -> list[str]:
    """The pipes, terminals and sockets that this process holds, numbered: one more is a new name."""
    counted: dict[str, int] = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            kind = str(link.readlink()).partition(":[")[0]
        except FileNotFoundError:
            continue
        if kind in ("pipe", "socket", "/dev/ptmx", "/dev/pts/ptmx", "anon_inode"):
            counted[kind] = counted.get(kind, 0) + 1
    return [f"{kind} number {number}" for kind, count in counted.items() for number in range(1, count + 1)]


def sandbox(use: Literal["auto", "landlock"]) -> Make:
    @asynccontextmanager
    async def make(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
        temporary: Path = request.getfixturevalue("tmp_path")
        workspace, own = _new_folder(temporary / "workspace"), _new_folder(temporary / "sandboxes")
        options = SandboxOptions(workspace=workspace, environ=host_environ(), temporary=own, use=use)

        async def leftovers() -> list[str]:
            return [*(str(path) for path in own.iterdir()), *open_files()]

        yield _subject("sandbox", lambda: SandboxEngine(options), leftovers, cwd=str(workspace))

    return make


def containers(name: str) -> Make:
    @asynccontextmanager
    async def make(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        binary = "docker"
        if name == "docker":
            environ["DOCKER_HOST"] = request.getfixturevalue("docker_host")
        else:
            binary = str(request.getfixturevalue("podman").program)
        options = DockerOptions(image=engines.IMAGE, binary=binary, environ=environ, network=False)

        async def leftovers() -> list[str]:
            return _names(await docker.leftovers(binary, environ, kept=True))

        yield _subject(name, lambda: DockerEngine(options), leftovers)

    return make


@asynccontextmanager
async def ssh(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
    pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install 'toolcrib[ssh]'")
    from toolcrib.environments.backends.ssh import SshEngine, SshOptions

    server: engines.SshServer = request.getfixturevalue("ssh_server")
    temporary: Path = request.getfixturevalue("tmp_path")
    options = SshOptions(
        host=server.host,
        port=server.port,
        user=server.user,
        key=str(server.key),
        known_hosts=str(temporary / "known_hosts"),
        config="none",
    )

    async def leftovers() -> list[str]:
        return open_files()

    yield _subject("ssh", lambda: SshEngine(options), leftovers)


@asynccontextmanager
async def apptainer(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
    found: engines.Apptainer = request.getfixturevalue("apptainer")
    client = _new_folder(request.getfixturevalue("tmp_path") / "client")
    environ: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": str(client)}
    binary = str(found.program)
    options = SingularityOptions(image=str(found.sif or found.image), binary=binary, environ=environ, network=False)

    async def leftovers() -> list[str]:
        return _names(await singularity.leftovers(binary, environ))

    yield _subject("singularity", lambda: SingularityEngine(options), leftovers)


def _subject(
    name: str, engine: Callable[[], Engine], leftovers: Leftovers, *, cwd: str = "", pty: bool = True
) -> BackendUnderTest:
    return BackendUnderTest(
        name=name,
        make=_over(engine, cwd),
        can=frozenset({"pty", "secrets"} if pty else {"secrets"}),
        secrets=dict([SECRET]),
        leftovers=leftovers,
    )


def _hosted(backend: ModuleType, options: object, engine: Callable[[], Engine]) -> BackendUnderTest:
    """A service that answers what is left over there itself; it has no terminals."""

    async def leftovers() -> list[str]:
        return _names(await backend.leftovers(options))

    return _subject(backend.__name__, engine, leftovers, pty=False)


@asynccontextmanager
async def modal(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
    pytest.importorskip("modal", reason="the SDK of Modal is not installed: pip install 'toolcrib[modal]'")
    from tests.environments.fakes.modal_service import TOKEN, modal_service
    from toolcrib.environments.backends import modal as backend

    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    async with modal_service() as service:
        monkeypatch.setenv("MODAL_SERVER_URL", service.url)
        options = backend.ModalOptions(token_id=TOKEN[0], token_secret=TOKEN[1])
        yield _hosted(backend, options, lambda: backend.ModalEngine(options))
        assert service.unknown == []


@asynccontextmanager
async def daytona(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
    pytest.importorskip("daytona", reason="the SDK of Daytona is not installed: pip install 'toolcrib[daytona]'")
    from tests.environments.fakes.daytona_service import KEY, daytona_service
    from toolcrib.environments.backends import daytona as backend

    async with daytona_service() as service:
        options = backend.DaytonaOptions(api_key=KEY, api_url=f"{service.url}/api")
        yield _hosted(backend, options, lambda: backend.DaytonaEngine(options))
        assert service.unknown == []


@asynccontextmanager
async def vercel(request: pytest.FixtureRequest) -> AsyncIterator[BackendUnderTest]:
    pytest.importorskip("vercel.sandbox", reason="the SDK of Vercel is not installed: pip install 'toolcrib[vercel]'")
    from tests.environments.fakes.vercel_service import PROJECT, TEAM, TOKEN, vercel_service
    from toolcrib.environments.backends import vercel_sandbox as backend

    async with vercel_service() as service:
        options = backend.VercelOptions(token=TOKEN, team_id=TEAM, project_id=PROJECT, api_url=f"{service.url}/api")
        yield _hosted(backend, options, lambda: backend.VercelEngine(options))
        assert service.unknown == []


SERVICES = (pytest.mark.services,)
FACTORIES = (
    Factory(name="local", make=local),
    Factory(name="sandbox", make=sandbox("auto"), marks=SERVICES),
    Factory(name="landlock", make=sandbox("landlock"), marks=SERVICES),
    Factory(name="docker", make=containers("docker"), marks=SERVICES),
    Factory(name="podman", make=containers("podman"), marks=SERVICES),
    Factory(name="ssh", make=ssh, marks=SERVICES),
    Factory(name="singularity", make=apptainer, marks=(*SERVICES, pytest.mark.may_skip)),
    Factory(name="modal", make=modal, marks=SERVICES, lacks=frozenset({"pty"})),
    Factory(name="daytona", make=daytona, marks=SERVICES, lacks=frozenset({"pty"})),
    Factory(name="vercel", make=vercel, marks=SERVICES, lacks=frozenset({"pty"})),
)
