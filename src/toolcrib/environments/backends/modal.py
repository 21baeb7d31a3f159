"""The `modal` backend: sandboxes of the hosted service Modal, through its SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
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
    HostedProcess,
    HostedService,
    check_lifetime,
    hosted_backend,
    hosted_options,
    load_sdk,
    new_name,
    one_line,
    owner_is_alive,
    raise_broken_pipe,
    refuse_terminal,
    status,
    tags_of_this_process,
)

KIND = "modal"
KEY_REMEDY = (
    "create a token at https://modal.com/settings/tokens and set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, "
    "or run `modal token new`"
)
SERVICE = HostedService("modal", "https://status.modal.com", KEY_REMEDY)
WRITE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModalOptions:
    token_id: str = ""
    token_secret: str = field(default="", repr=False)
    """Empty: use the token of the SDK's own settings."""
    app: str = "toolcrib"
    """The app at Modal that the sandboxes belong to; created if missing."""
    image: str = ""
    """An image in a registry, `python:3.12-slim`; empty means the service's default."""
    snapshot: str = ""
    """Start from the result of `snapshot` instead of an image."""
    attach: str = ""
    """Use this running sandbox instead of a new one."""
    cpu: float | None = None
    memory_mb: int | None = None
    network: bool = True
    lifetime_seconds: int = 4 * 60 * 60
    """The service ends the sandbox after this time, whatever happens to us."""
    idle_seconds: int | None = None
    """The service also ends it when nothing has run in it for this long."""

    def __post_init__(self) -> None:
        check_lifetime(self.lifetime_seconds, "the lifetime of a modal sandbox")


class ModalEngine:
    """A sandbox at Modal; see Engine."""

    kind = KIND
    isolated = True
    shell = "bash"
    shell_pool_size = 0
    temporary = BackendPath("/tmp")

    def __init__(self, options: ModalOptions) -> None:
        self._options = options
        self._sandbox: Any = None
        self._client: Any = None

    async def open(self) -> None:
        sdk = load_sdk("modal", "modal")
        doing = f"use the sandbox {self._options.attach!r}" if self._options.attach else "start a sandbox"
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                self._client = await _connect(sdk, self._options)
                self._sandbox = await (self._attach(sdk) if self._options.attach else self._create(sdk))
        except (sdk.exception.Error, OSError, TimeoutError) as error:
            raise _failed(sdk, doing, error) from error
        finally:
            if self._sandbox is None:
                await self._disconnect()

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        sdk = load_sdk("modal", "modal")
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                with suppress(sdk.exception.NotFoundError):
                    await sandbox.terminate.aio()
                await sandbox.detach.aio()
        except (sdk.exception.Error, OSError, TimeoutError) as error:
            raise _failed(sdk, f"end the sandbox {sandbox.object_id!r}", error) from error
        finally:
            await self._disconnect()

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> ModalProcess:
        refuse_terminal(self.kind, terminal)
        if self._sandbox is None:
            raise EnvironmentFailed("the modal sandbox is not open")
        sdk = load_sdk("modal", "modal")
        try:
            async with asyncio.timeout(SPAWN_SECONDS):
                process = await self._sandbox.exec.aio(*argv, text=False)
        except (sdk.exception.Error, OSError, TimeoutError) as error:
            raise _failed(sdk, f"run {argv[0]!r} in the sandbox {self._sandbox.object_id!r}", error) from error
        return ModalProcess(sdk, process, on_output)

    def address(self) -> Mapping[str, str]:
        return {"sandbox": self._sandbox.object_id if self._sandbox is not None else self._options.attach}

    async def snapshot(self) -> str:
        """Save the files of the sandbox as an image, which lasts 30 days; returns its id, for `snapshot`."""
        sdk = load_sdk("modal", "modal")
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                image = await self._sandbox.snapshot_filesystem.aio(timeout=int(SNAPSHOT_SECONDS))
        except (sdk.exception.Error, OSError, TimeoutError) as error:
            raise _failed(sdk, f"take a snapshot of the sandbox {self._sandbox.object_id!r}", error) from error
        return str(image.object_id)

    async def _attach(self, sdk: Any) -> Any:
        gone = EnvironmentGone(f"the modal sandbox {self._options.attach!r} has ended; start a new one")
        try:
            sandbox = await sdk.Sandbox.from_id.aio(self._options.attach, client=self._client)
            code = await sandbox.poll.aio()
        except sdk.exception.NotFoundError as error:
            raise gone from error
        if code is not None:
            raise gone
        return sandbox

    async def _create(self, sdk: Any) -> Any:
        options = self._options
        app = await sdk.App.lookup.aio(options.app, client=self._client, create_if_missing=True)
        return await sdk.Sandbox.create.aio(
            app=app,
            name=new_name(),
            tags=tags_of_this_process(),
            image=_image(sdk, options, self._client),
            timeout=options.lifetime_seconds,
            idle_timeout=options.idle_seconds,
            cpu=options.cpu,
            memory=options.memory_mb,
            block_network=not options.network,
            client=self._client,
        )

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client, self._options)


class ModalProcess(HostedProcess):
    """A program in a sandbox at Modal; see EngineProcess."""

    def __init__(self, sdk: Any, process: Any, on_output: OnOutput) -> None:
        super().__init__(on_output)
        self._sdk = sdk
        self._process = process
        readers = [self._start(self._read(stream)) for stream in (process.stdout, process.stderr)]
        self._start(self._follow(readers))

    async def _read(self, stream: Any) -> None:
        with suppress(self._sdk.exception.Error, OSError):  # `_follow` reports what went wrong.
            async for data in stream:
                self._arrived(data)

    async def _follow(self, readers: list[asyncio.Task[None]]) -> None:
        try:
            code = await self._process.wait.aio()
        except (self._sdk.exception.Error, OSError) as error:
            self._fail(one_line(error))
            return
        await self._silence(readers)
        self._end(code)

    async def _send(self, data: bytes) -> None:
        stdin = self._process.stdin
        try:
            for start in range(0, len(data), WRITE_BYTES):
                stdin.write(data[start : start + WRITE_BYTES])
                await stdin.drain.aio()
        except (self._sdk.exception.Error, OSError, ValueError) as error:
            raise_broken_pipe(one_line(error))

    async def _send_end(self) -> None:
        stdin = self._process.stdin
        stdin.write_eof()
        try:
            await stdin.drain.aio()
        except (self._sdk.exception.Error, OSError) as error:
            raise_broken_pipe(one_line(error))


async def probe(options: ModalOptions) -> BackendStatus:
    """Whether there is an SDK and a token; does not contact the service."""
    has_token = bool(options.token_id and options.token_secret) or (Path.home() / ".modal.toml").is_file()
    missing = "" if has_token else "no token"
    return status(KIND, module="modal", extra="modal", missing=missing, remedy=KEY_REMEDY)


async def leftovers(options: ModalOptions) -> list[Leftover]:
    """The sandboxes that toolcrib processes on this machine started and that still run."""
    sdk = load_sdk("modal", "modal")
    client = None
    try:
        async with asyncio.timeout(LIST_SECONDS):
            client = await _connect(sdk, options)
            app = await sdk.App.lookup.aio(options.app, client=client, create_if_missing=True)
            machine = {MACHINE_TAG: tags_of_this_process()[MACHINE_TAG]}
            found = []
            async for sandbox in sdk.Sandbox.list.aio(app_id=app.app_id, tags=machine, client=client):
                alive = owner_is_alive(await sandbox.get_tags.aio())
                detail = f"in the app {options.app!r}"
                found.append(Leftover(kind="modal sandbox", name=sandbox.object_id, detail=detail, owner_alive=alive))
            return found
    except (sdk.exception.Error, OSError, TimeoutError) as error:
        raise _failed(sdk, "list its sandboxes", error) from error
    finally:
        if client is not None:
            await _close(client, options)


async def remove(leftover: Leftover, options: ModalOptions) -> None:
    """End a sandbox that `leftovers` found, if it still runs."""
    sdk = load_sdk("modal", "modal")
    client = None
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            client = await _connect(sdk, options)
            with suppress(sdk.exception.NotFoundError):
                sandbox = await sdk.Sandbox.from_id.aio(leftover.name, client=client)
                await sandbox.terminate.aio()
    except (sdk.exception.Error, OSError, TimeoutError) as error:
        raise _failed(sdk, f"end the sandbox {leftover.name!r}", error) from error
    finally:
        if client is not None:
            await _close(client, options)


async def _connect(sdk: Any, options: ModalOptions) -> Any:
    if options.token_id or options.token_secret:
        return await sdk.Client.from_credentials.aio(options.token_id, options.token_secret)
    return await sdk.Client.from_env.aio()


async def _close(client: Any, options: ModalOptions) -> None:
    """Close our own connection. The one from the SDK's settings is shared, and the SDK closes it."""
    if options.token_id or options.token_secret:
        await client.__aexit__(None, None, None)


def _image(sdk: Any, options: ModalOptions, client: Any) -> Any:
    if options.snapshot:
        return sdk.Image.from_id(options.snapshot, client=client)
    if options.image:
        return sdk.Image.from_registry(options.image)
    return None


def _failed(sdk: Any, doing: str, error: Exception) -> EnvironmentFailed:
    timed_out = isinstance(error, TimeoutError) and not isinstance(error, sdk.exception.Error)
    denied = isinstance(error, sdk.exception.AuthError | sdk.exception.PermissionDeniedError)
    return SERVICE.failure(doing, error, timed_out=timed_out, denied=denied)


def options_from(request: EnvironmentRequest) -> ModalOptions:
    """What the settings, the spec, the address and the keys in the environment say about the sandbox."""
    section, environ = request.section, request.environ
    return ModalOptions(
        token_id=environ.get("MODAL_TOKEN_ID", ""),
        token_secret=environ.get("MODAL_TOKEN_SECRET", ""),
        app=section.app,
        **hosted_options(request),
    )


BACKEND = hosted_backend(KIND, "modal", options_from, ModalEngine, probe=probe, leftovers=leftovers, remove=remove)
