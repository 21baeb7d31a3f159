"""The `vercel_sandbox` backend: sandboxes of the hosted service Vercel, through its SDK.

The service transfers output as text, so every program runs under a relay script that encodes its bytes.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from toolcrib.core.environments import BackendPath, BackendStatus, Leftover, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed, EnvironmentGone
from toolcrib.environments.backend import EnvironmentRequest
from toolcrib.environments.hosted import (
    CLOSE_SECONDS,
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

KIND = "vercel_sandbox"
KEY_REMEDY = (
    "create a token at https://vercel.com/account/settings/tokens and set VERCEL_TOKEN, VERCEL_TEAM_ID and "
    "VERCEL_PROJECT_ID"
)
SERVICE = HostedService("vercel", "https://www.vercel-status.com", KEY_REMEDY)
GONE = (404, 410)


@dataclass(frozen=True, slots=True, kw_only=True)
class VercelOptions:
    token: str = field(default="", repr=False)
    team_id: str = ""
    project_id: str = ""
    api_url: str = ""
    image: str = ""
    """An image in Vercel's own registry; empty means the service's default."""
    snapshot: str = ""
    """Start from the result of `snapshot`."""
    attach: str = ""
    """Use this running sandbox instead of a new one."""
    cpu: float | None = None
    memory_mb: int | None = None
    network: bool = True
    lifetime_seconds: int = 45 * 60
    """The service ends the sandbox after this time, whatever happens to us. A longer one needs a paid plan."""

    def __post_init__(self) -> None:
        check_lifetime(self.lifetime_seconds, "the lifetime of a vercel sandbox")


class VercelEngine:
    """A sandbox at Vercel; see Engine."""

    kind = KIND
    isolated = True
    shell = "bash"
    shell_pool_size = 0
    temporary = BackendPath("/tmp")

    def __init__(self, options: VercelOptions) -> None:
        self._options = options
        self._sandbox: Any = None
        self._client: Any = None

    async def open(self) -> None:
        sdk = _sdk()
        doing = f"use the sandbox {self._options.attach!r}" if self._options.attach else "start a sandbox"
        self._client = _connect(sdk, self._options)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                self._sandbox = await (self._attach() if self._options.attach else self._create(sdk))
        except _errors(sdk) as error:
            raise _failed(sdk, doing, error) from error
        finally:
            if self._sandbox is None:
                await self._client.aclose()

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        sdk = _sdk()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await _destroy(sdk, sandbox)
        except _errors(sdk) as error:
            raise _failed(sdk, f"end the sandbox {sandbox.name!r}", error) from error
        finally:
            await self._client.aclose()

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> VercelProcess:
        refuse_terminal(self.kind, terminal)
        if self._sandbox is None:
            raise EnvironmentFailed("the vercel sandbox is not open")
        sdk = _sdk()
        program, *arguments = relayed(self.shell, argv, takes_input="plain")
        try:
            async with asyncio.timeout(SPAWN_SECONDS):
                # Through the session: through the sandbox, the SDK would restart a stopped one, empty, and continue.
                process = await self._sandbox.current_session.create_process(program, arguments, stdin=subprocess.PIPE)
        except _errors(sdk) as error:
            raise _failed(sdk, f"run {argv[0]!r} in the sandbox {self._sandbox.name!r}", error) from error
        return VercelProcess(sdk, process, on_output)

    def address(self) -> Mapping[str, str]:
        return {"sandbox": self._sandbox.name if self._sandbox is not None else self._options.attach}

    async def snapshot(self) -> str:
        """Save the files of the sandbox; returns an id for `snapshot`. The service stops this sandbox for that."""
        sdk = _sdk()
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                snapshot = await self._sandbox.current_session.snapshot()
        except _errors(sdk) as error:
            raise _failed(sdk, f"take a snapshot of the sandbox {self._sandbox.name!r}", error) from error
        return str(snapshot.id)

    async def _attach(self) -> Any:
        sandbox = await self._client.get_sandbox(name=self._options.attach)
        if sandbox.current_session is None or sandbox.status != "running":
            raise EnvironmentGone(f"the vercel sandbox {sandbox.name!r} is {sandbox.status}; start a new one")
        return sandbox

    async def _create(self, sdk: Any) -> Any:
        options = self._options
        policy = sdk.NetworkPolicy
        resources = None
        if options.cpu is not None or options.memory_mb is not None:
            vcpus = None if options.cpu is None else math.ceil(options.cpu)
            resources = sdk.SandboxResources(vcpus=vcpus, memory=options.memory_mb)
        return await self._client.create_sandbox(
            name=new_name(),
            tags=tags_of_this_process(),
            image=options.image or None,
            source=sdk.SnapshotSource(snapshot_id=options.snapshot) if options.snapshot else None,
            execution_time_limit=timedelta(seconds=options.lifetime_seconds),
            resources=resources,
            persistent=False,
            network_policy=policy.allow_all() if options.network else policy.deny_all(),
        )


class VercelProcess(TextRelayProcess):
    """A program in a sandbox at Vercel; see EngineProcess."""

    def __init__(self, sdk: Any, process: Any, on_output: OnOutput) -> None:
        super().__init__(on_output)
        self._sdk = sdk
        self._process = process
        self._streams = load_sdk("anyio", "vercel")
        self._reading = self._streams.CancelScope()
        self._reader = self._start(self._read())
        self._start(self._follow(self._reader))

    async def abandon(self) -> None:
        # The SDK's readers break when their task is cancelled, but not when their scope is.
        self._reading.cancel()
        await asyncio.wait([self._reader], timeout=CLOSE_SECONDS)
        await super().abandon()

    async def _read(self) -> None:
        with self._reading:
            async with self._streams.create_task_group() as readers:
                readers.start_soon(self._read_lines, self._process.stdout, self.on_stdout)
                readers.start_soon(self._read_lines, self._process.stderr, self.on_stderr)

    async def _read_lines(self, stream: Any, take: Callable[[str], None]) -> None:
        # The SDK resumes an interrupted log; `_ask_exit_code` reports what it cannot repair.
        try:
            while line := await stream.readline():
                take(line)
        except _errors(self._sdk):
            return
        finally:
            await stream.aclose()

    async def _ask_exit_code(self) -> None:
        try:
            async with asyncio.timeout(SPAWN_SECONDS):
                self._end(await self._process.wait())
        except _errors(self._sdk) as error:
            self._fail(one_line(error))

    async def _send(self, data: bytes) -> None:
        try:
            await self._process.stdin.send(data)
        except _errors(self._sdk) as error:
            raise_broken_pipe(one_line(error))

    async def _send_end(self) -> None:
        try:
            await self._process.stdin.aclose()
        except _errors(self._sdk) as error:
            raise_broken_pipe(one_line(error))


async def probe(options: VercelOptions) -> BackendStatus:
    """Whether there is an SDK and a token with its team and project; does not contact the service."""
    return status(KIND, module="vercel.sandbox", extra="vercel", missing=_missing(options), remedy=KEY_REMEDY)


async def leftovers(options: VercelOptions) -> list[Leftover]:
    """The sandboxes that toolcrib processes on this machine started and that still exist."""
    sdk = _sdk()
    client = _connect(sdk, options)
    tag = sdk.TagFilter(key=MACHINE_TAG, value=tags_of_this_process()[MACHINE_TAG])
    query = sdk.SandboxQueryByName(name_prefix="toolcrib-", tag=tag)
    try:
        async with asyncio.timeout(LIST_SECONDS):
            return [_leftover(sandbox) async for sandbox in client.query_sandboxes(query=query)]
    except _errors(sdk) as error:
        raise _failed(sdk, "list its sandboxes", error) from error
    finally:
        await client.aclose()


def _leftover(sandbox: Any) -> Leftover:
    alive = owner_is_alive(sandbox.tags or {})
    return Leftover(kind="vercel sandbox", name=sandbox.name, detail=str(sandbox.status), owner_alive=alive)


async def remove(leftover: Leftover, options: VercelOptions) -> None:
    """End a sandbox that `leftovers` found, if it still exists."""
    sdk = _sdk()
    client = _connect(sdk, options)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await _destroy(sdk, await client.get_sandbox(name=leftover.name))
    except _errors(sdk) as error:
        if getattr(error, "status_code", None) not in GONE:
            raise _failed(sdk, f"end the sandbox {leftover.name!r}", error) from error
    finally:
        await client.aclose()


async def _destroy(sdk: Any, sandbox: Any) -> None:
    for step in (sandbox.stop, sandbox.destroy):
        try:
            await step()
        except sdk.SandboxApiError as error:
            if error.status_code not in GONE:
                raise


def _sdk() -> Any:
    return load_sdk("vercel.sandbox", "vercel")


def _errors(sdk: Any) -> tuple[type[Exception], ...]:
    """What the SDK and its libraries raise when a call fails."""
    http = load_sdk("httpx2", "vercel")
    streams = load_sdk("anyio", "vercel")
    broken = (streams.BrokenResourceError, streams.ClosedResourceError)
    return (sdk.SandboxError, http.TransportError, *broken, OSError, TimeoutError)


def _connect(sdk: Any, options: VercelOptions) -> Any:
    if missing := _missing(options):
        raise EnvironmentFailed(f"the vercel backend has {missing}; {KEY_REMEDY}")

    async def credentials() -> Any:
        return sdk.SandboxCredentials(token=options.token, team_id=options.team_id, project_id=options.project_id)

    service = sdk.SandboxServiceOptions(base_url=options.api_url or None, credentials_factory=credentials)
    return sdk.SandboxClient.create(options=service)


def _missing(options: VercelOptions) -> str:
    needed = {
        "VERCEL_TOKEN": options.token,
        "VERCEL_TEAM_ID": options.team_id,
        "VERCEL_PROJECT_ID": options.project_id,
    }
    names = [name for name, value in needed.items() if not value]
    return f"no {' and no '.join(names)}" if names else ""


def _failed(sdk: Any, doing: str, error: Exception) -> EnvironmentFailed:
    timed_out = isinstance(error, TimeoutError)
    denied = isinstance(error, sdk.SandboxCredentialsError) or getattr(error, "status_code", None) in (401, 403)
    return SERVICE.failure(doing, error, timed_out=timed_out, denied=denied)


def options_from(request: EnvironmentRequest) -> VercelOptions:
    """What the settings, the spec, the address and the keys in the environment say about the sandbox."""
    environ = request.environ
    return VercelOptions(
        token=environ.get("VERCEL_TOKEN", ""),
        team_id=environ.get("VERCEL_TEAM_ID", ""),
        project_id=environ.get("VERCEL_PROJECT_ID", ""),
        **hosted_options(request),
    )


BACKEND = hosted_backend(KIND, "vercel", options_from, VercelEngine, probe=probe, leftovers=leftovers, remove=remove)
