"""`tools.environments.local`, `.docker`, `.ssh` …: our backends for callers that are not async, under those names."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from toolcrib.compat.tools_environments import BaseEnvironment, ProcessHandle
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import Settings
from toolcrib.core.environments import CommandExit, CommandRequest, Execution
from toolcrib.environments.create import create_environment, resolve
from toolcrib.service_loop import ServiceLoop

__all__ = [
    "DaytonaEnvironment",
    "DockerEnvironment",
    "LocalEnvironment",
    "ModalEnvironment",
    "SSHEnvironment",
    "SingularityEnvironment",
    "VercelSandboxEnvironment",
]

CLOSE_SECONDS = 90.0


class _Environment(BaseEnvironment):
    """One of our environments, on its own loop."""

    def __init__(
        self,
        overrides: Mapping[str, str],
        *,
        timeout: int,
        env: Mapping[str, str] | None,
        settings: Settings,
        task_id: str = "",
    ) -> None:
        terminal = settings.terminal
        settings = replace(settings, terminal=replace(terminal, env={**terminal.env, **(env or {})}))
        session = task_id or secrets.token_hex(6)
        spec = resolve(settings, overrides, session=session, workspace=current_folder(), environ=environment())
        self._environment = create_environment(spec, settings, environment())
        self._loop = ServiceLoop("toolcrib-environment")
        with ExitStack() as on_error:
            on_error.callback(self._loop.close)
            self._loop.run_sync(self._environment.open())
            on_error.pop_all()
        super().__init__(self._environment.cwd, timeout, dict(env or {}))

    def _run_bash(
        self, cmd_string: str, *, login: bool = False, timeout: int = 120, stdin_data: str | None = None
    ) -> ProcessHandle:
        stdin = None if stdin_data is None else stdin_data.encode(errors="surrogateescape")
        handle = _Handle(self._loop)
        request = CommandRequest(command=cmd_string, stdin=stdin)
        handle.follow(self._loop.run_sync(self._environment.start(request, handle.take)))
        return handle

    def get_temp_dir(self) -> str:
        return self._environment.address()["folder"]

    def cleanup(self) -> None:
        self._has_session = False
        if self._loop.is_started:
            try:
                self._loop.run_sync(self._environment.close(), CLOSE_SECONDS)
            finally:
                self._loop.close()


class _Handle:
    """One of our commands, with the interface of `subprocess.Popen`."""

    def __init__(self, loop: ServiceLoop) -> None:
        self.stdout: Iterator[bytes] = iter(self._printed())
        self._loop = loop
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def take(self, data: bytes) -> None:
        self._chunks.put(data)

    def follow(self, execution: Execution) -> None:
        self._execution = execution
        self._ended: Future[CommandExit] = self._loop.submit(execution.wait())
        self._ended.add_done_callback(lambda _: self._chunks.put(None))

    @property
    def returncode(self) -> int | None:
        return self._ended.result().exit_code if self._ended.done() else None

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self._loop.run_sync(self._execution.terminate())

    def wait(self, timeout: float | None = None) -> int:
        return self._ended.result(timeout).exit_code

    def _printed(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            yield chunk


class CompatLocalEnvironment(_Environment):
    def __init__(self, cwd: str = "", timeout: int = 60, env: Mapping[str, str] | None = None) -> None:
        super().__init__({"backend": "local", "cwd": cwd}, timeout=timeout, env=env, settings=load_settings())


LocalEnvironment = CompatLocalEnvironment


class DockerEnvironment(_Environment):
    def __init__(
        self,
        image: str,
        cwd: str = "",
        timeout: int = 60,
        *,
        cpu: float = 0,
        memory: int = 0,
        disk: int = 0,
        persistent_filesystem: bool = False,
        task_id: str = "",
        volumes: Sequence[str] = (),
        forward_env: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        network: bool = True,
        extra_args: Sequence[str] = (),
    ) -> None:
        settings = load_settings()
        section = replace(
            settings.terminal.docker,
            cpus=cpu,
            memory_mb=memory,
            disk_mb=disk,
            persistent=persistent_filesystem,
            volumes=list(volumes),
            env_passthrough=list(forward_env),
            network=network,
            extra_args=list(extra_args),
        )
        settings = replace(settings, terminal=replace(settings.terminal, docker=section))
        overrides = {"backend": "docker", "docker_image": image, "cwd": cwd}
        super().__init__(overrides, timeout=timeout, env=env, settings=settings, task_id=task_id)


class SSHEnvironment(_Environment):
    def __init__(
        self, host: str, user: str = "", cwd: str = "", timeout: int = 60, port: int = 0, key_path: str = ""
    ) -> None:
        settings = load_settings()
        section = replace(settings.terminal.ssh, port=port, key=key_path)
        settings = replace(settings, terminal=replace(settings.terminal, ssh=section))
        # `~` is what an empty folder means on the other machine.
        overrides = {"backend": "ssh", "host": host, "user": user, "cwd": "" if cwd == "~" else cwd}
        super().__init__(overrides, timeout=timeout, env=None, settings=settings)


class _FromImage(_Environment):
    kind = ""

    def __init__(self, image: str, cwd: str = "", timeout: int = 60, *, task_id: str = "", **limits: Any) -> None:
        """`limits` are settings of the backend's section: cpus, memory_mb …"""
        settings = load_settings()
        section = replace(getattr(settings.terminal, self.kind), **limits)
        settings = replace(settings, terminal=replace(settings.terminal, **{self.kind: section}))
        overrides = {"backend": self.kind, "image": image, "cwd": cwd}
        super().__init__(overrides, timeout=timeout, env=None, settings=settings, task_id=task_id)


class SingularityEnvironment(_FromImage):
    kind = "singularity"


class ModalEnvironment(_FromImage):
    kind = "modal"


class DaytonaEnvironment(_FromImage):
    kind = "daytona"


class VercelSandboxEnvironment(_Environment):
    def __init__(self, image: str = "", cwd: str = "", timeout: int = 60, *, task_id: str = "", **limits: Any) -> None:
        """`limits` are settings of the backend's section: cpus, memory_mb …"""
        settings = load_settings()
        section = replace(settings.terminal.vercel, **({"image": image} if image else {}), **limits)
        settings = replace(settings, terminal=replace(settings.terminal, vercel=section))
        overrides = {"backend": "vercel_sandbox", "cwd": cwd}
        super().__init__(overrides, timeout=timeout, env=None, settings=settings, task_id=task_id)
