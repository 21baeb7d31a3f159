"""A run of an agent with effects, which ends itself with SIGKILL at the n-th Python call it makes.

Reads lines `FOLDER KILL_AT` (0: never) and runs each in a fork of its own, so that nothing is imported twice; answers
each with a line of JSON: the exit code, and what the run printed.

Each note is a file that gets one line. A second run goes on with the session that the first one left.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.core.messages import Message
from toolcrib.core.models import ModelRequest, ModelResponse
from toolcrib.core.types import Effect
from toolcrib.providers.scripted import ScriptedProvider, call, says
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore

BATCHES = ((0,), (1, 2, 3), (4,), (5, 6), (7,), (8, 9, 10, 11))
NOTES = tuple(itertools.chain.from_iterable(BATCHES))


def write_note(folder: Path, number: int) -> str:
    descriptor = os.open(folder / f"note-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, b"noted\n")
    os.close(descriptor)
    return json.dumps({"noted": number})


def is_written(folder: Path, number: int) -> bool:
    """By what it holds: a process that was killed between opening and writing leaves an empty file."""
    note = folder / f"note-{number}"
    return note.exists() and note.stat().st_size > 0


def make_registry(folder: Path) -> ToolRegistry:
    registry = ToolRegistry()
    schema = {"description": "x", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}

    def effects(args: dict[str, Any], _: Any) -> tuple[Effect, ...]:
        return (Effect("write", str(folder / f"note-{args['n']}")),)

    def note(args: dict[str, Any], **_: Any) -> str:
        return write_note(folder, args["n"])

    async def note_async(args: dict[str, Any], **_: Any) -> str:
        await asyncio.sleep(0)
        return write_note(folder, args["n"])

    def look(args: dict[str, Any], **_: Any) -> str:
        return json.dumps({"seen": is_written(folder, args["n"]), "n": args["n"]})

    registry.register(name="note", toolset="notes", schema=schema, handler=note, effects=effects)
    registry.register(
        name="note_async", toolset="notes", schema=schema, handler=note_async, effects=effects, is_async=True
    )
    registry.register(name="look", toolset="notes", schema=schema, handler=look, effects=())
    return registry


class NoteWriterModel:
    """A model that wants each note written once: it reads the results, and looks where an outcome is unknown."""

    def __init__(self) -> None:
        self.made = 0

    def answer(self, request: ModelRequest) -> ModelResponse | str:
        done, doubtful = read(request.messages)
        if doubtful:
            return says("", *(self._call("look", number) for number in sorted(doubtful)))
        for batch in BATCHES:
            missing = [number for number in batch if number not in done]
            if missing:
                return says("", *(self._call("note_async" if number % 2 else "note", number) for number in missing))
        return "All notes are written."

    def _call(self, name: str, number: int) -> Any:
        return call(name, {"n": number})


def read(messages: Any) -> tuple[set[int], set[int]]:
    """The notes that are written for certain, and those of which that is not known."""
    asked: dict[str, int] = {}
    done: set[int] = set()
    doubtful: set[int] = set()
    for message in messages:
        for one in message.tool_calls:
            asked[one.id] = json.loads(one.arguments)["n"]
        if message.role == "tool":
            _take_in(message, asked[message.call_id], done, doubtful)
    return done, doubtful


def _take_in(message: Message, number: int, done: set[int], doubtful: set[int]) -> None:
    result = json.loads(message.text)
    if "noted" in result or result.get("seen"):
        done.add(number)
        doubtful.discard(number)
    elif "seen" in result:
        doubtful.discard(number)
    elif number not in done:
        doubtful.add(number)


def kill_at(count: int) -> itertools.count[int]:
    """Counts the calls of all threads; at the given one the process is gone, without any clean-up."""
    made = itertools.count(1)

    def watch(_frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call") and next(made) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(watch)
    sys.setprofile(watch)
    return made


async def work(folder: Path, count: int) -> dict[str, Any]:
    home = folder / "home"
    store = SessionStore(home / "sessions.db")
    runtime = Runtime(home=home, registry=make_registry(folder), workspace=folder)
    runtime.load()
    provider = ScriptedProvider(otherwise=NoteWriterModel().answer)
    made = kill_at(count)
    known = store.list(limit=1)
    host = AgentHost(runtime=runtime, store=store, model=provider)
    resumed = known[0].id if known else None
    agent = Agent(host=host, model=provider, toolsets=["notes"], session_id=resumed)
    result = await agent.run("Go on." if known else "Write all notes.")
    await agent.close()
    await host.close()
    sys.setprofile(None)
    threading.setprofile(None)
    return {"outcome": result.outcome, "answer": result.answer, "calls": next(made)}


def run_in_fork(folder: Path, count: int) -> dict[str, Any]:
    """How a run ended: its exit code (-9 when it was killed), and what came of it."""
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        told.write_text(json.dumps(asyncio.run(work(folder, count))))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return {"exit": os.waitstatus_to_exitcode(status), **(json.loads(told.read_text()) if told.exists() else {})}


if __name__ == "__main__":
    for line in sys.stdin:
        where, _, at = line.rstrip("\n").rpartition(" ")
        print(json.dumps(run_in_fork(Path(where), int(at))), flush=True)
