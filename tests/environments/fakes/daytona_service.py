"""Daytona, pretended: its API and the programs' part of its sandboxes, of which only the routes below are known.

Like the real one it reads what a command prints line by line, which loses null bytes and adds a newline to the last
line, and it never ends a command's input.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import socketio
from aiohttp import WSMsgType, web

from tests.environments.fakes.place import Log, Place, Program

KEY = "dtn-fake"
PREFIXES = (b"\1\1\1", b"\2\2\2")
FRAME_BYTES = 10_007


class Session:
    """A shell for one command, whose output is kept as one log."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.program: Program | None = None
        self.log: Log | None = None
        self.readers: list[asyncio.Task[None]] = []

    def start(self, program: Program) -> None:
        self.program = program
        self.log = Log(program.folder / f"{program.pid}.log")
        logs = zip(PREFIXES, (program.stdout, program.stderr), strict=True)
        self.readers = [asyncio.ensure_future(self._label(prefix, log)) for prefix, log in logs]
        self.readers.append(asyncio.ensure_future(self._close(*self.readers)))

    async def _label(self, prefix: bytes, log: Log) -> None:
        assert self.log is not None
        begun = b""
        async for data in log.follow():
            *lines, begun = (begun + data.replace(b"\0", b"")).split(b"\n")
            self.log.add(b"".join(prefix + line + b"\n" for line in lines))
        if begun:
            self.log.add(prefix + begun + b"\n")

    async def _close(self, *labelling: asyncio.Task[None]) -> None:
        assert self.program is not None
        assert self.log is not None
        await asyncio.wait(labelling)
        await asyncio.wait([self.program.code])
        self.log.close()


class DaytonaService:
    """The state of the pretended service."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.places: dict[str, Place] = {}
        self.made: dict[str, dict[str, Any]] = {}
        self.sessions: dict[str, Session] = {}
        self.snapshots: dict[str, Place] = {}
        self.drop_connections = 0
        """How many log streams are still to be cut off in the middle."""
        self.url = ""

    @property
    def running(self) -> list[Place]:
        return [place for place in self.places.values() if not place.has_ended]

    async def vanish(self) -> None:
        """The service deletes every sandbox by itself."""
        for place in self.running:
            await place.end()

    # Sandboxes.

    def _describe(self, place: Place) -> dict[str, Any]:
        made = self.made[place.id]
        return {
            "id": place.id,
            "organizationId": "org",
            "name": made.get("name") or place.id,
            "user": "daytona",
            "env": {},
            "labels": made.get("labels", {}),
            "public": False,
            "networkBlockAll": made.get("networkBlockAll", False),
            "kvm": False,
            "target": "us",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 3,
            "state": "destroyed" if place.has_ended else "started",
            "toolboxProxyUrl": f"{self.url}/toolbox",
        }

    async def create(self, request: web.Request) -> web.Response:
        made = await request.json()
        place = Place("")
        self.places[place.id] = place
        self.made[place.id] = made
        self.created.append(made)
        if source := self.snapshots.get(made.get("snapshot", "")):
            shutil.copytree(source.folder, place.folder, dirs_exist_ok=True)
        return web.json_response(self._describe(place))

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self._describe(self._place(request)))

    async def list(self, request: web.Request) -> web.Response:
        labels = json.loads(request.query.get("labels", "{}"))
        found = [self._describe(place) for place in self.running]
        items = [made for made in found if labels.items() <= made["labels"].items()]
        return web.json_response({"items": items, "nextCursor": None})

    async def delete(self, request: web.Request) -> web.Response:
        place = self._place(request)
        if place in self.snapshots.values():
            place.has_ended = True
        else:
            await place.end()
        return web.json_response(self._describe(place))

    async def snapshot(self, request: web.Request) -> web.Response:
        place = self._place(request)
        self.snapshots[(await request.json())["name"]] = place
        return web.json_response(self._describe(place))

    def _place(self, request: web.Request) -> Place:
        place = self.places.get(request.match_info["sandbox"])
        if place is None or (place.has_ended and request.method != "GET"):
            raise web.HTTPNotFound(text=json.dumps({"message": "Sandbox not found"}))
        return place

    # Programs.

    async def create_session(self, request: web.Request) -> web.Response:
        self._place(request)
        session = Session((await request.json())["sessionId"])
        self.sessions[session.id] = session
        return web.json_response({}, status=201)

    async def delete_session(self, request: web.Request) -> web.Response:
        session = self.sessions.pop(request.match_info["session"])
        if session.program is not None:
            session.program.kill_group()
        return web.Response(status=204)

    async def execute(self, request: web.Request) -> web.Response:
        session, wanted = self._session(request), await request.json()
        if session.program is not None or not wanted["runAsync"] or not wanted["suppressInputEcho"]:
            self.unknown.append(f"a second, or a synchronous, or an echoing command: {wanted}")
        session.start(await self._place(request).run(["sh", "-c", wanted["command"]]))
        return web.json_response({"cmdId": f"cmd-{session.id}"}, status=202)

    async def send(self, request: web.Request) -> web.Response:
        program = self._session(request).program
        assert program is not None
        if program.code.done():
            return web.json_response({"message": "command already completed"}, status=410)
        try:
            await program.write((await request.json())["data"].encode())
        except (BrokenPipeError, ConnectionResetError):
            return web.json_response({"message": "the input is closed"}, status=410)
        return web.Response(status=204)

    async def command(self, request: web.Request) -> web.Response:
        session = self._session(request)
        assert session.program is not None
        answer: dict[str, Any] = {"id": request.match_info["command"], "command": ""}
        if session.program.code.done():
            code = session.program.code.result()
            answer["exitCode"] = code if code >= 0 else 128 - code
        return web.json_response(answer)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        sending = asyncio.ensure_future(self._send_log(session, socket))
        try:
            async for message in socket:
                assert message.type == WSMsgType.CLOSE
        finally:
            sending.cancel()
        return socket

    async def _send_log(self, session: Session, socket: web.WebSocketResponse) -> None:
        assert session.log is not None
        async for data in session.log.follow():
            for start in range(0, len(data), FRAME_BYTES):
                await socket.send_bytes(data[start : start + FRAME_BYTES])
            if self.drop_connections:
                self.drop_connections -= 1
                await socket.close(code=1011, message=b"the runner restarts")
                return
        await socket.close()

    def _session(self, request: web.Request) -> Session:
        session = self.sessions.get(request.match_info["session"])
        if session is None:
            raise web.HTTPNotFound(text=json.dumps({"message": "session not found"}))
        return session


def _application(service: DaytonaService) -> web.Application:
    @web.middleware
    async def check(request: web.Request, handler: Any) -> Any:
        if request.path.startswith("/api/socket.io"):
            return await handler(request)
        if request.match_info.http_exception is not None:
            service.unknown.append(f"{request.method} {request.path}")
            return web.json_response({"message": "the fake of Daytona does not know this"}, status=404)
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"message": "Invalid credentials"}, status=401)
        return await handler(request)

    application = web.Application(middlewares=[check], client_max_size=2**24)
    program = "/toolbox/{sandbox}/process/session/{session}"
    application.add_routes(
        [
            web.post("/api/sandbox", service.create),
            web.get("/api/sandbox", service.list),
            web.get("/api/sandbox/{sandbox}", service.get),
            web.delete("/api/sandbox/{sandbox}", service.delete),
            web.post("/api/sandbox/{sandbox}/snapshot", service.snapshot),
            web.post("/toolbox/{sandbox}/process/session", service.create_session),
            web.delete(program, service.delete_session),
            web.post(f"{program}/exec", service.execute),
            web.get(f"{program}/command/{{command}}", service.command),
            web.get(f"{program}/command/{{command}}/logs", service.logs),
            web.post(f"{program}/command/{{command}}/input", service.send),
        ]
    )
    # Where the SDK listens for changes of a sandbox's state; nothing is ever announced.
    socketio.AsyncServer(async_mode="aiohttp").attach(application, socketio_path="/api/socket.io")
    return application


@asynccontextmanager
async def daytona_service() -> AsyncIterator[DaytonaService]:
    """A service that runs on loopback while this is open."""
    service = DaytonaService()
    runner = web.AppRunner(_application(service), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        for place in service.places.values():
            place.has_ended = False
            await place.end()
        for session in service.sessions.values():
            for reader in session.readers:
                reader.cancel()
        await runner.cleanup()
