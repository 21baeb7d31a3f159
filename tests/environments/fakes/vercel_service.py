"""Vercel Sandbox, pretended: its API, of which only the routes below are known.

Like the real one it carries what a program prints as text, and forgets a sandbox's files when that is stopped.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.environments.fakes.place import Log, Place, Program

TOKEN, TEAM, PROJECT = "vt-fake", "team_fake", "prj_fake"
RECORD_CHARACTERS = 1000


class VercelService:
    """The state of the pretended service."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.places: dict[str, Place] = {}
        self.made: dict[str, dict[str, Any]] = {}
        self.programs: dict[str, Program] = {}
        self.snapshots: dict[str, Place] = {}
        self.drop_connections = 0
        """How many log streams are still to be cut off in the middle."""
        self.url = ""

    @property
    def running(self) -> list[Place]:
        return [place for place in self.places.values() if not place.has_ended]

    async def vanish(self) -> None:
        """The service stops every sandbox by itself."""
        for place in self.running:
            await place.end()

    # Sandboxes. A sandbox has a name, and here one session, whose id is the place's.

    def _describe(self, place: Place) -> dict[str, Any]:
        made = self.made[place.id]
        status = "stopped" if place.has_ended else "running"
        common = {"projectId": PROJECT, "status": status, "cwd": "/vercel/sandbox", "region": "iad1"}
        sandbox = {
            "name": made["name"],
            "currentSessionId": place.id,
            "persistent": False,
            "tags": made.get("tags", {}),
            **common,
        }
        return {"sandbox": sandbox, "session": {"id": place.id, **common}, "routes": []}

    async def create(self, request: web.Request) -> web.Response:
        made = await request.json()
        place = Place("sbx_")
        self.places[place.id] = place
        self.made[place.id] = made
        self.created.append(made)
        if source := self.snapshots.get(made.get("source", {}).get("snapshotId", "")):
            shutil.copytree(source.folder, place.folder, dirs_exist_ok=True)
        return web.json_response(self._describe(place))

    async def get(self, request: web.Request) -> web.Response:
        if request.query["resume"] != "false":
            self.unknown.append("a stopped sandbox was to be started again")
        return web.json_response(self._describe(self._named(request)))

    async def query(self, request: web.Request) -> web.Response:
        key, _, value = request.query["tags"].partition(":")
        places = [place for place in self.running if self.made[place.id]["tags"].get(key) == value]
        found = [self._describe(place)["sandbox"] for place in places]
        return web.json_response({"sandboxes": found, "pagination": {"count": len(found), "next": None}})

    async def destroy(self, request: web.Request) -> web.Response:
        place = self._named(request)
        answer = self._describe(place)
        self.made[place.id]["is_destroyed"] = True
        return web.json_response(answer)

    def _named(self, request: web.Request) -> Place:
        for place in self.places.values():
            made = self.made[place.id]
            if made["name"] == request.match_info["name"] and not made.get("is_destroyed"):
                return place
        raise _error(web.HTTPNotFound, "not_found", "Sandbox not found")

    async def stop(self, request: web.Request) -> web.Response:
        place = self._session(request)
        if place not in self.snapshots.values():
            await place.end()
        place.has_ended = True
        return web.json_response(self._describe(place))

    async def snapshot(self, request: web.Request) -> web.Response:
        place = self._session(request)
        snapshot = f"snap_{len(self.snapshots)}"
        self.snapshots[snapshot] = place
        place.has_ended = True
        described = {
            "id": snapshot,
            "sourceSessionId": place.id,
            "region": "iad1",
            "status": "created",
            "sizeBytes": 1,
            "createdAt": 1,
            "updatedAt": 1,
        }
        return web.json_response({"snapshot": described, "session": self._describe(place)["session"]})

    def _session(self, request: web.Request) -> Place:
        place = self.places[request.match_info["session"]]
        if place.has_ended:
            raise _error(web.HTTPGone, "sandbox_stopped", "Sandbox is stopped")
        return place

    # Programs.

    async def start(self, request: web.Request) -> web.Response:
        place, wanted = self._session(request), await request.json()
        if not wanted["attachStdin"]:
            self.unknown.append(f"a program without input: {wanted}")
        program = await place.run([wanted["command"], *wanted["args"]])
        command = f"cmd_{program.pid}"
        self.programs[command] = program
        return web.json_response({"command": self._command(place.id, command)})

    async def command(self, request: web.Request) -> web.Response:
        command = request.match_info["command"]
        if request.query["wait"] == "true":
            await asyncio.shield(self.programs[command].code)
        return web.json_response({"command": self._command(request.match_info["session"], command)})

    def _command(self, session: str, command: str) -> dict[str, Any]:
        code = self.programs[command].code
        described = {"id": command, "name": "bash", "args": [], "cwd": "/", "sessionId": session, "startedAt": 1}
        if code.done():
            described["exitCode"] = code.result() if code.result() >= 0 else 128 - code.result()
        return described

    async def stdin(self, request: web.Request) -> web.Response:
        program, wanted = self.programs[request.match_info["command"]], await request.json()
        data = base64.b64decode(wanted.get("data", ""))
        try:
            if data or wanted.get("close"):
                await program.write(data[program.taken - wanted["offset"] :], end=wanted.get("close", False))
        except (BrokenPipeError, ConnectionResetError) as error:
            unavailable = "command_stdin_unavailable"
            raise _error(web.HTTPBadRequest, unavailable, "the program does not read its input") from error
        answer = {"command": self._command(request.match_info["session"], request.match_info["command"])}
        return web.json_response({**answer, "bytesWritten": program.taken})

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """All that was printed, from the beginning, until the program has ended."""
        program = self.programs[request.match_info["command"]]
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        await response.prepare(request)
        logs = (("stdout", program.stdout), ("stderr", program.stderr))
        sending = [asyncio.ensure_future(self._send_log(response, name, log, program)) for name, log in logs]
        try:
            await asyncio.gather(*sending)
        except ConnectionError:
            pass  # Nobody listens any more.
        finally:
            for task in sending:
                task.cancel()
        return response

    async def _send_log(self, response: web.StreamResponse, name: str, log: Log, program: Program) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        async for data in _until_the_end(log, program):
            text = decoder.decode(data)
            for start in range(0, len(text), RECORD_CHARACTERS):
                record = {"stream": name, "data": text[start : start + RECORD_CHARACTERS]}
                await response.write(json.dumps(record).encode() + b"\n")
                if self.drop_connections:
                    self.drop_connections -= 1
                    assert response._req is not None
                    assert response._req.transport is not None
                    response._req.transport.abort()
                    return


async def _until_the_end(log: Log, program: Program) -> AsyncIterator[bytes]:
    offset = 0
    while True:
        if offset < log.size:
            data = log.read(offset)
            offset += len(data)
            yield data
        elif log.is_closed or program.code.done():
            return
        else:
            await log.change()


def _error(kind: type[web.HTTPException], code: str, message: str) -> web.HTTPException:
    text = json.dumps({"error": {"code": code, "message": message}})
    return kind(text=text, content_type="application/json")


def _application(service: VercelService) -> web.Application:
    @web.middleware
    async def check(request: web.Request, handler: Any) -> Any:
        if request.match_info.http_exception is not None:
            service.unknown.append(f"{request.method} {request.path}")
            raise _error(web.HTTPNotFound, "unknown", "the fake of Vercel does not know this")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}" or request.query["teamId"] != TEAM:
            raise _error(web.HTTPForbidden, "forbidden", "Not authorized")
        return await handler(request)

    application = web.Application(middlewares=[check], client_max_size=2**24)
    session = "/api/v2/sandboxes/sessions/{session}"
    application.add_routes(
        [
            web.post("/api/v3/sandboxes", service.create),
            web.get("/api/v2/sandboxes", service.query),
            web.get("/api/v2/sandboxes/{name}", service.get),
            web.delete("/api/v2/sandboxes/{name}", service.destroy),
            web.post(f"{session}/stop", service.stop),
            web.post(f"{session}/snapshot", service.snapshot),
            web.post(f"{session}/cmd", service.start),
            web.get(f"{session}/cmd/{{command}}", service.command),
            web.get(f"{session}/cmd/{{command}}/logs", service.logs),
            web.post(f"{session}/cmd/{{command}}/stdin", service.stdin),
        ]
    )
    return application


@asynccontextmanager
async def vercel_service() -> AsyncIterator[VercelService]:
    """A service that runs on loopback while this is open."""
    service = VercelService()
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
        await runner.cleanup()
