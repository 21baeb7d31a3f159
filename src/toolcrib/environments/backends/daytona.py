"""The `daytona` backend: sandboxes of the hosted service Daytona, through its SDK.

The service has sessions: shells that run commands. It transfers their output as text, line by line, and cannot close
their input; so every program gets its own session and runs under a relay script that works around both.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from toolcrib.core.environments import BackendPath, BackendStatus, Leftover, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed, EnvironmentGone
from toolcrib.environments.backend import EnvironmentRequest
from toolcrib.environments.hosted import (
    CLOSE_SECONDS,
    END_OF_INPUT,
    LIST_SECONDS,
    MACHINE_TAG,
    OPEN_SECONDS,
    SNAPSHOT_SECONDS,
    SPAWN_SECONDS,
    HostedService,
    TextRelayProcess,
    check_lifetime,
    hosted_backend,
    hosted_options,
    input_lines,
    load_sdk,
    new_name,
    one_line,
    owner_is_alive,
    raise_broken_pipe,
    refuse_terminal,
    relayed,
    status,
    tags_of_this_process,
)

KIND = "daytona"
KEY_REMEDY = "create a key at https://app.daytona.io/dashboard/keys and set DAYTONA_API_KEY"
SERVICE = HostedService("daytona", "https://status.daytona.io", KEY_REMEDY)
RECONNECTS = 5
POLL_SECONDS = (0.5, 1, 2, 5, 15, 60, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaytonaOptions:
    api_key: str = field(default="", repr=False)
    """Always passed: otherwise the SDK would read `.env` in the current folder, where anybody may have put a key."""
    api_url: str = ""
    target: str = ""
    """The region; empty means the organization's."""
    image: str = ""
    """An image in a registry, `python:3.12-slim`; empty means the service's default."""
    snapshot: str = ""
    """Start from a snapshot of the organization, such as `snapshot` returns, instead of an image."""
    attach: str = ""
    """Use this running sandbox instead of a new one."""
    cpu: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    """These three apply to an image only; a snapshot brings its own."""
    network: bool = True
    lifetime_seconds: int = 24 * 60 * 60
    """The service deletes the sandbox after this time, whatever happens to us."""
    idle_seconds: int = 30 * 60
    """The service also deletes it when nobody has used it for this long."""

    def __post_init__(self) -> None:
        check_lifetime(self.lifetime_seconds, "the lifetime of a daytona sandbox")
        check_lifetime(self.idle_seconds, "the idle time of a daytona sandbox")


class DaytonaEngine:
    """A sandbox at Daytona; see Engine."""

    kind = KIND
    isolated = True
    shell = "bash"
    shell_pool_size = 0
    temporary = BackendPath("/tmp")

    def __init__(self, options: DaytonaOptions) -> None:
        self._options = options
        self._sandbox: Any = None
        self._client: Any = None
        self._forgetting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        sdk = load_sdk("daytona", "daytona")
        doing = f"use the sandbox {self._options.attach!r}" if self._options.attach else "start a sandbox"
        self._client = _connect(sdk, self._options)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                self._sandbox = await (self._attach(sdk) if self._options.attach else self._create(sdk))
        except (sdk.DaytonaError, OSError, TimeoutError) as error:
            raise _failed(sdk, doing, error) from error
        finally:
            if self._sandbox is None:
                await self._client.close()

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        for task in self._forgetting:
            task.cancel()
        sdk = load_sdk("daytona", "daytona")
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                with suppress(sdk.DaytonaNotFoundError):
                    await self._client.delete(sandbox)
        except (sdk.DaytonaError, OSError, TimeoutError) as error:
            raise _failed(sdk, f"delete the sandbox {sandbox.id!r}", error) from error
        finally:
            await self._client.close()

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> DaytonaProcess:
        refuse_terminal(self.kind, terminal)
        if self._sandbox is None:
            raise EnvironmentFailed("the daytona sandbox is not open")
        sdk = load_sdk("daytona", "daytona")
        service = self._sandbox.process
        session = f"toolcrib-{secrets.token_hex(8)}"
        command = shlex.join(relayed(self.shell, argv, takes_input="coded"))
        request = sdk.SessionExecuteRequest(command=command, run_async=True, suppress_input_echo=True)
        try:
            async with asyncio.timeout(SPAWN_SECONDS):
                await service.create_session(session)
                started = await service.execute_session_command(session, request)
        except (sdk.DaytonaError, OSError, TimeoutError) as error:
            raise _failed(sdk, f"run {argv[0]!r} in the sandbox {self._sandbox.id!r}", error) from error
        return DaytonaProcess(sdk, service, (session, started.cmd_id), on_output, self._forget_later)

    def address(self) -> Mapping[str, str]:
        return {"sandbox": self._sandbox.id if self._sandbox is not None else self._options.attach}

    async def snapshot(self) -> str:
        """Save the state of the sandbox as a snapshot of the organization; returns its name, for `snapshot`."""
        sdk = load_sdk("daytona", "daytona")
        name = new_name()
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                await self._sandbox.create_snapshot(name, timeout=SNAPSHOT_SECONDS)
        except (sdk.DaytonaError, OSError, TimeoutError) as error:
            raise _failed(sdk, f"take a snapshot of the sandbox {self._sandbox.id!r}", error) from error
        return name

    def _forget_later(self, session: str, command: str) -> None:
        if self._sandbox is None:
            return
        task = asyncio.ensure_future(self._forget(self._sandbox.process, session, command))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, service: Any, session: str, command: str) -> None:
        """Delete a session and its log at the service once its command has ended."""
        with suppress(load_sdk("daytona", "daytona").DaytonaError, OSError):
            for seconds in POLL_SECONDS:
                if (await service.get_session_command(session, command)).exit_code is not None:
                    await service.delete_session(session)
                    return
                await asyncio.sleep(seconds)

    async def _attach(self, sdk: Any) -> Any:
        try:
            sandbox = await self._client.get(self._options.attach)
        except sdk.DaytonaNotFoundError as error:
            raise EnvironmentGone(f"the daytona sandbox {self._options.attach!r} is gone; start a new one") from error
        if sandbox.state != "started":
            raise EnvironmentGone(f"the daytona sandbox {sandbox.id!r} is {sandbox.state}; start a new one")
        return sandbox

    async def _create(self, sdk: Any) -> Any:
        options = self._options
        common: dict[str, Any] = {
            "name": new_name(),
            "labels": tags_of_this_process(),
            "auto_stop_interval": _minutes(options.idle_seconds),
            "ttl_minutes": _minutes(options.lifetime_seconds),
            "ephemeral": True,
            "network_block_all": not options.network,
        }
        if options.snapshot or not options.image:
            params = sdk.CreateSandboxFromSnapshotParams(snapshot=options.snapshot or None, **common)
        else:
            resources = sdk.Resources(
                cpu=None if options.cpu is None else math.ceil(options.cpu),
                memory=_gigabytes(options.memory_mb),
                disk=_gigabytes(options.disk_mb),
            )
            params = sdk.CreateSandboxFromImageParams(image=options.image, resources=resources, **common)
        return await self._client.create(params, timeout=OPEN_SECONDS)


class DaytonaProcess(TextRelayProcess):
    """A program in a sandbox at Daytona; see EngineProcess."""

    def __init__(
        self,
        sdk: Any,
        service: Any,
        command: tuple[str, str],
        on_output: OnOutput,
        on_abandon: Callable[[str, str], None],
    ) -> None:
        super().__init__(on_output)
        self._sdk = sdk
        self._service = service
        self._command = command
        """Its session and its id there."""
        self._on_abandon = on_abandon
        self._is_abandoned = False
        self._start(self._follow(self._start(self._read())))

    async def abandon(self) -> None:
        await super().abandon()
        if not self._is_abandoned:
            self._is_abandoned = True
            self._on_abandon(*self._command)

    async def _read(self) -> None:
        """Follow the log to its end. The service sends it from the beginning on every request."""
        for _ in range(RECONNECTS):
            self.start_over()
            try:
                await self._service.get_session_command_logs_async(*self._command, self.on_stdout, self.on_stderr)
            except (self._sdk.DaytonaNotFoundError, self._sdk.DaytonaGoneError):
                return
            except (self._sdk.DaytonaError, OSError):
                await asyncio.sleep(POLL_SECONDS[0])
            else:
                return

    async def _ask_exit_code(self) -> None:
        try:
            command = await self._service.get_session_command(*self._command)
        except (self._sdk.DaytonaError, OSError) as error:
            self._fail(one_line(error))
            return
        if command.exit_code is None:
            self._fail("the service stopped sending its output")
        else:
            self._end(command.exit_code)

    async def _send(self, data: bytes) -> None:
        for line in input_lines(data):
            await self._send_line(line)

    async def _send_end(self) -> None:
        await self._send_line(END_OF_INPUT)

    async def _send_line(self, line: str) -> None:
        try:
            await self._service.send_session_command_input(*self._command, line)
        except (self._sdk.DaytonaError, OSError) as error:
            raise_broken_pipe(one_line(error))


async def probe(options: DaytonaOptions) -> BackendStatus:
    """Whether there is an SDK and a key; does not contact the service."""
    missing = "" if options.api_key else "no DAYTONA_API_KEY"
    return status(KIND, module="daytona", extra="daytona", missing=missing, remedy=KEY_REMEDY)


async def leftovers(options: DaytonaOptions) -> list[Leftover]:
    """The sandboxes that toolcrib processes on this machine started and that still exist."""
    sdk = load_sdk("daytona", "daytona")
    client = _connect(sdk, options)
    query = sdk.ListSandboxesQuery(labels={MACHINE_TAG: tags_of_this_process()[MACHINE_TAG]})
    try:
        async with asyncio.timeout(LIST_SECONDS):
            return [_leftover(sandbox) async for sandbox in client.list(query)]
    except (sdk.DaytonaError, OSError, TimeoutError) as error:
        raise _failed(sdk, "list its sandboxes", error) from error
    finally:
        await client.close()


def _leftover(sandbox: Any) -> Leftover:
    alive = owner_is_alive(sandbox.labels)
    detail = f"{sandbox.name}, {getattr(sandbox.state, 'value', sandbox.state)}"
    return Leftover(kind="daytona sandbox", name=sandbox.id, detail=detail, owner_alive=alive)


async def remove(leftover: Leftover, options: DaytonaOptions) -> None:
    """Delete a sandbox that `leftovers` found, if it still exists."""
    sdk = load_sdk("daytona", "daytona")
    client = _connect(sdk, options)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            with suppress(sdk.DaytonaNotFoundError):
                await client.delete(await client.get(leftover.name))
    except (sdk.DaytonaError, OSError, TimeoutError) as error:
        raise _failed(sdk, f"delete the sandbox {leftover.name!r}", error) from error
    finally:
        await client.close()


def _connect(sdk: Any, options: DaytonaOptions) -> Any:
    if not options.api_key:
        raise EnvironmentFailed(f"the daytona backend needs a key; {KEY_REMEDY}")
    config = sdk.DaytonaConfig(api_key=options.api_key, api_url=options.api_url or None, target=options.target or None)
    return sdk.AsyncDaytona(config)


def _minutes(seconds: int) -> int:
    return math.ceil(seconds / 60)


def _gigabytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else math.ceil(megabytes / 1024)


def _failed(sdk: Any, doing: str, error: Exception) -> EnvironmentFailed:
    timed_out = isinstance(error, TimeoutError | sdk.DaytonaTimeoutError)
    denied = isinstance(error, sdk.DaytonaAuthenticationError | sdk.DaytonaForbiddenError)
    return SERVICE.failure(doing, error, timed_out=timed_out, denied=denied)


def options_from(request: EnvironmentRequest) -> DaytonaOptions:
    """What the settings, the spec, the address and the keys in the environment say about the sandbox."""
    section, environ = request.section, request.environ
    return DaytonaOptions(
        api_key=environ.get("DAYTONA_API_KEY", ""),
        api_url=environ.get("DAYTONA_API_URL", ""),
        target=environ.get("DAYTONA_TARGET", ""),
        disk_mb=section.disk_mb or None,
        **hosted_options(request),
        idle_seconds=section.idle_seconds,
    )


BACKEND = hosted_backend(KIND, "daytona", options_from, DaytonaEngine, probe=probe, leftovers=leftovers, remove=remove)
