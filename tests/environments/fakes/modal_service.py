"""Modal, pretended: its two gRPC services, of which only the calls below are known."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_grpc, api_pb2, task_command_router_grpc, task_command_router_pb2

from tests.environments.fakes.place import Place, Program

TOKEN = ("ak-fake", "as-fake")
UNPACED_BYTES = 4_000_000
PACE_BYTES_PER_SECOND = 25_000_000


def _token() -> str:
    """A JWT that nobody checks, good for an hour."""
    parts = ({"alg": "none"}, {"exp": int(time.time()) + 3600})
    coded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join([*coded, "x"])


class ModalService:
    """The state of the pretended service, and its handlers: `SandboxCreateV2` is `sandbox_create_v2`."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.created: list[api_pb2.SandboxCreateV2Request] = []
        self.images: list[str] = []
        self.places: dict[str, Place] = {}
        self.programs: dict[str, Program] = {}
        self.snapshots: dict[str, Place] = {}
        self.url = ""

    @property
    def running(self) -> list[Place]:
        return [place for place in self.places.values() if not place.has_ended]

    async def vanish(self) -> None:
        """The service ends every sandbox by itself."""
        for place in self.running:
            await place.end()

    def _place(self, sandbox_id: str) -> Place:
        """Of a sandbox, or of the task in it, which has the same number."""
        place = self.places.get("sb-" + sandbox_id.split("-", 1)[1])
        if place is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox_id} not found")
        return place

    def _router(self) -> api_pb2.CommandRouterAccess:
        return api_pb2.CommandRouterAccess(url=self.url, jwt=_token())

    # The calls of the control plane.

    async def app_get_or_create(self, request: Any) -> Any:
        return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")

    async def auth_token_get(self, request: Any) -> Any:
        return api_pb2.AuthTokenGetResponse(token=_token())

    async def environment_get_or_create(self, request: Any) -> Any:
        metadata = api_pb2.EnvironmentMetadata(
            name="main", settings=api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        )
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def image_get_or_create(self, request: Any) -> Any:
        self.images.extend(request.image.dockerfile_commands)
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id="im-built", result=result)

    async def image_from_id(self, request: Any) -> Any:
        if request.image_id not in self.snapshots:
            raise GRPCError(Status.NOT_FOUND, f"Image {request.image_id} not found")
        return api_pb2.ImageFromIdResponse(image_id=request.image_id)

    async def sandbox_create_v2(self, request: Any) -> Any:
        place = Place("sb-")
        self.places[place.id] = place
        self.created.append(request)
        if source := self.snapshots.get(request.definition.image_id):
            for file in source.folder.iterdir():
                (place.folder / file.name).write_bytes(file.read_bytes())
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=place.id, task_id=_task(place), command_router_access=self._router()
        )

    async def sandbox_wait_v2(self, request: Any) -> Any:
        if not self._place(request.sandbox_id).has_ended:
            return api_pb2.SandboxWaitResponse()
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED, exitcode=137)
        return api_pb2.SandboxWaitResponse(result=result)

    async def sandbox_terminate_v2(self, request: Any) -> Any:
        place = self._place(request.sandbox_id)
        if place not in self.snapshots.values():
            await place.end()
        place.has_ended = True
        return api_pb2.SandboxTerminateResponse()

    async def sandbox_get_task_id_v2(self, request: Any) -> Any:
        return api_pb2.SandboxGetTaskIdResponse(task_id=_task(self._place(request.sandbox_id)))

    async def sandbox_get_command_router_access(self, request: Any) -> Any:
        access = self._router()
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def sandbox_list_v2(self, request: Any) -> Any:
        if request.before_timestamp:
            return api_pb2.SandboxListResponse()
        wanted = {(tag.tag_name, tag.tag_value) for tag in request.tags}
        infos = [
            api_pb2.SandboxInfo(id=place.id, created_at=1)
            for place, made in zip(self.places.values(), self.created, strict=True)
            if not place.has_ended and wanted <= {(tag.tag_name, tag.tag_value) for tag in made.tags}
        ]
        return api_pb2.SandboxListResponse(sandboxes=infos)

    async def sandbox_tags_get_v2(self, request: Any) -> Any:
        made = self.created[list(self.places).index(request.sandbox_id)]
        return api_pb2.SandboxTagsGetResponse(tags=made.tags)

    # The calls of the machine that the sandbox is on.

    async def task_exec_start(self, request: Any) -> Any:
        place = self._place(request.task_id)
        if place.has_ended:
            raise GRPCError(Status.NOT_FOUND, "the task has ended")
        try:
            self.programs[request.exec_id] = await place.run(request.command_args)
        except FileNotFoundError as error:
            raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from error
        return task_command_router_pb2.TaskExecStartResponse()

    async def task_exec_stdio_read(self, request: Any) -> AsyncIterator[Any]:
        program = self.programs[request.exec_id]
        of_stdout = request.file_descriptor == task_command_router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        log = program.stdout if of_stdout else program.stderr
        sent = 0
        async for data in log.follow(request.offset):
            sent += len(data)
            if sent > UNPACED_BYTES:
                # A service is at the other end of a network, and the SDK takes in what comes without a limit of ours.
                await asyncio.sleep(len(data) / PACE_BYTES_PER_SECOND)
            yield task_command_router_pb2.TaskExecStdioReadResponse(data=data)

    async def task_exec_stdin_write(self, request: Any) -> Any:
        program = self.programs[request.exec_id]
        try:
            await program.write(request.data[program.taken - request.offset :], end=request.eof)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from error
        return task_command_router_pb2.TaskExecStdinWriteResponse()

    async def task_exec_wait(self, request: Any) -> Any:
        code = await asyncio.shield(self.programs[request.exec_id].code)
        if code < 0:
            return task_command_router_pb2.TaskExecWaitResponse(signal=-code)
        return task_command_router_pb2.TaskExecWaitResponse(code=code)

    async def task_snapshot_filesystem(self, request: Any) -> Any:
        image = f"im-snapshot-{len(self.snapshots)}"
        self.snapshots[image] = self._place(request.task_id)
        return task_command_router_pb2.TaskSnapshotFilesystemResponse(image_id=image)


def _task(place: Place) -> str:
    return place.id.replace("sb-", "ta-")


def _handler(service: ModalService, base: type, name: str) -> Any:
    async def handle(self: Any, stream: Any) -> None:
        request = await stream.recv_message()
        known = getattr(service, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(), None)
        if known is None:
            service.unknown.append(name)
            raise GRPCError(Status.UNIMPLEMENTED, f"the fake of Modal does not know {name}")
        given = (stream.metadata.get("x-modal-token-id"), stream.metadata.get("x-modal-token-secret"))
        if base is api_grpc.ModalClientBase and given != TOKEN:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        answer = known(request)
        if hasattr(answer, "__aiter__"):
            async for part in answer:
                await stream.send_message(part)
        else:
            await stream.send_message(await answer)

    return handle


def _serving(service: ModalService, base: type) -> Any:
    names = base.__abstractmethods__  # type: ignore[attr-defined]
    return type(base.__name__, (base,), {name: _handler(service, base, name) for name in names})()


@asynccontextmanager
async def modal_service() -> AsyncIterator[ModalService]:
    """A service that runs on loopback while this is open."""
    service = ModalService()
    bases = (api_grpc.ModalClientBase, task_command_router_grpc.TaskCommandRouterBase)
    server = Server([_serving(service, base) for base in bases])
    await server.start("127.0.0.1", 0)
    assert server._server is not None
    port = server._server.sockets[0].getsockname()[1]
    service.url = f"http://127.0.0.1:{port}"
    try:
        yield service
    finally:
        server.close()
        for place in service.places.values():
            place.has_ended = False
            await place.end()
        await server.wait_closed()
