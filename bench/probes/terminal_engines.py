"""Prints, as JSON, the seconds of `true` by the `terminal` tool on one backend, beside the engine's own bare exec.

Run as `python terminal_engines.py docker|podman|ssh|sandbox`; how the services are reached stands in the environment,
as `scripts/test-services` wrote it down. `{"skipped": reason}` is printed where that backend cannot be used.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from terminal_calls import Call, seconds_of_each

from toolcrib import Runtime
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.config.terminal_settings import DockerSettings, SandboxSettings, SshSettings, TerminalSettings
from toolcrib.core.environments import Environment
from toolcrib.environments.create import backend_statuses

CALLS, ROUNDS, PAUSED_CALLS = 5, 9, 9
PAUSE_SECONDS = 0.3
SERVICE = "TOOLCRIB_TEST_"
SESSION = "bench"


class Skipped(Exception):
    """The backend cannot be used here; says why."""


def service(name: str) -> str:
    value = os.environ.get(SERVICE + name)
    if value is None:
        raise Skipped("not started; run scripts/test-services up")
    return value


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Skipped(f"{name} is not installed")
    return found


def container_settings(engine: str) -> TerminalSettings:
    if engine == "docker":
        os.environ["DOCKER_HOST"] = service("DOCKER_HOST")
    else:
        # A script that names the storage and settings of the podman that was set up.
        os.environ["PATH"] = f"{Path(service('PODMAN')).parent}:{os.environ['PATH']}"
    program(engine)
    # The engines of the services have no network to give.
    docker = DockerSettings(engine=engine, image=service("IMAGE"), network=False)  # type: ignore[arg-type]
    return TerminalSettings(backend="docker", docker=docker)


@asynccontextmanager
async def container_exec(environment: Environment) -> AsyncIterator[Call]:
    """The client's `exec`, in the same container."""
    address = environment.address()
    yield bare([address["binary"], "exec", address["container"], "bash", "-c", "true"])


def ssh_settings() -> TerminalSettings:
    ssh = SshSettings(
        host=service("SSH_HOST"),
        port=int(service("SSH_PORT")),
        user=service("SSH_USER"),
        key=service("SSH_KEY"),
        known_hosts=service("SSH_KNOWN_HOSTS"),
    )
    return TerminalSettings(backend="ssh", ssh=ssh)


@asynccontextmanager
async def ssh_run(_: Environment) -> AsyncIterator[Call]:
    """A connection of its own that is open, and a session on it for each command."""
    import asyncssh

    connection = asyncssh.connect(
        service("SSH_HOST"),
        int(service("SSH_PORT")),
        username=service("SSH_USER"),
        client_keys=[service("SSH_KEY")],
        known_hosts=service("SSH_KNOWN_HOSTS"),
        config=None,
    )
    async with connection as opened:
        yield lambda: opened.run("true", check=True)


def sandbox_settings() -> TerminalSettings:
    program("bwrap")
    return TerminalSettings(backend="sandbox", sandbox=SandboxSettings(use="bubblewrap"))


@asynccontextmanager
async def bubblewrap(_: Environment) -> AsyncIterator[Call]:
    """A sandbox for the one command, with the arguments of the one that stands; only its filter of calls is left out,
    which would have to be handed over as an open file."""
    line = next(line for line in children() if Path(line[0]).name == "bwrap")
    arguments = line[: line.index("--") + 1]
    if "--seccomp" in arguments:
        at = arguments.index("--seccomp")
        del arguments[at : at + 2]
    yield bare([*arguments, "bash", "-c", "true"])


def children() -> list[list[str]]:
    """The command lines of our children."""
    own = Path("/proc/self/task")
    pids = [pid for task in own.iterdir() for pid in (task / "children").read_text().split()]
    return [Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1] for pid in pids]


def bare(command: list[str]) -> Call:
    async def run() -> None:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)  # noqa: ASYNC221

    return run


ENGINES: dict[str, tuple[Callable[[], TerminalSettings], Callable[[Environment], Any]]] = {
    "docker": (lambda: container_settings("docker"), container_exec),
    "podman": (lambda: container_settings("podman"), container_exec),
    "ssh": (ssh_settings, ssh_run),
    "sandbox": (sandbox_settings, bubblewrap),
}


async def check(settings: Settings) -> None:
    """Skip a backend that cannot be used here. What fails beyond that is a failure of ours."""
    backend, ssh = settings.terminal.backend, settings.terminal.ssh
    status = next(one for one in await backend_statuses(settings, os.environ) if one.kind == backend)
    if not status.usable:
        raise Skipped(status.detail)
    if backend == "ssh":
        try:
            _, writer = await asyncio.open_connection(ssh.host, ssh.port)
        except OSError as error:
            raise Skipped(f"no server: {error}") from error
        writer.close()


async def measure(name: str) -> dict[str, Any]:
    make_settings, open_bare = ENGINES[name]
    settings = replace(load_settings(), terminal=make_settings())
    with tempfile.TemporaryDirectory() as workspace:
        async with Runtime(settings=settings, workspace=workspace) as runtime:

            async def run() -> None:
                result = await runtime.call("terminal", {"command": "true"}, ctx=runtime.context(session_id=SESSION))
                answer = json.loads(str(result.content))
                assert answer.get("exit_code") == 0, answer

            await check(settings)
            await run()
            environment = runtime.terminal.environment_of(SESSION)
            assert environment is not None
            async with open_bare(environment) as bare_run:
                calls: dict[str, Call] = {"bare": bare_run, "true": run}
                await seconds_of_each(calls, 1, 1)
                taken = await seconds_of_each(calls, CALLS, ROUNDS)
                paused: dict[str, Call] = {"bare_idle": bare_run, "idle": run}
                idle = await seconds_of_each(paused, 1, PAUSED_CALLS, pause_seconds=PAUSE_SECONDS)
    return taken | idle


def main() -> None:
    try:
        print(json.dumps(asyncio.run(measure(sys.argv[1]))))
    except Skipped as reason:
        print(json.dumps({"skipped": str(reason)}))


if __name__ == "__main__":
    main()
