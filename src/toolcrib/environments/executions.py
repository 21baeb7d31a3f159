"""Commands on their way in a shell session: in the foreground, and on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from toolcrib.core.environments import (
    BackendPath,
    Ended,
    EngineProcess,
    LeftBehind,
    OnOutput,
    TerminalSize,
)
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.process_tree import A_SHELL, ProcessTree, read_left_behind
from toolcrib.environments.trailer import NO_FOLDER, TrailerReader

LOST = 255
END_SECONDS = 5.0
BECOMING_SECONDS = 0.02
WaitsForInput = Callable[[str], Coroutine[Any, Any, bool]]


class EngineExecution:
    """What all commands share that run as a program of an engine, with its streams in our hands."""

    def __init__(self, command_id: str, process: EngineProcess, tree: ProcessTree, waits: WaitsForInput) -> None:
        self.id = command_id
        self._process = process
        self._tree = tree
        self._waits = waits
        self._killed = False
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def wait(self) -> Ended:
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_input(self) -> None:
        await self._process.close_input()

    async def resize(self, size: TerminalSize) -> None:
        await self._process.resize(size)

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self._killed = True
        await self._tree.end([self.id], grace_seconds)
        # Its end is heard at once; only a place that went away keeps silent.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.wait()
        self._end(Ended(exit_code=LOST, reason="lost"))
        await self._process.abandon()

    async def settled(self) -> None:
        """Returns when nothing of it runs any more, what it left behind included."""
        await self.wait()
        await self._tree.settled([self.id])

    async def waits_for_input(self) -> bool:
        return not self._ended.done() and await self._waits(self.id)

    async def abandon(self) -> None:
        await self._process.abandon()

    def _end(self, ended: Ended) -> None:
        if not self._ended.done():
            self._ended.set_result(ended)

    async def _end_of_program(self) -> Ended:
        """How the program itself ended; a place that went away is told as such."""
        try:
            code = await self._process.wait()
        except EnvironmentFailed as error:
            return Ended(exit_code=LOST, reason="lost", note=str(error))
        return Ended(exit_code=code, reason="killed" if self._killed else "exited")


class TerminalExecution(EngineExecution):
    """A command on a pseudo-terminal; the terminal's end is its end."""

    def watch(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        self._end(await self._end_of_program())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A shell that was started ahead and waits for its command."""

    version: int
    """Of the session state that it has loaded."""
    reader: TrailerReader
    process: EngineProcess


class ForegroundExecution(EngineExecution):
    """A command in a shell of its own, which tells the end itself; see `scripts/runner.sh`."""

    def __init__(
        self,
        command_id: str,
        process: EngineProcess,
        tree: ProcessTree,
        waits: WaitsForInput,
        *,
        reader: TrailerReader,
        left_behind: Callable[[str, int], list[LeftBehind]] | None,
        on_change: Callable[[BackendPath | None], None],
    ) -> None:
        super().__init__(command_id, process, tree, waits)
        self._reader = reader
        self._left_behind = left_behind
        self._on_change = on_change
        self._told: Ended | None = None
        self._trailer = asyncio.Event()

    def begin(self, marker: str, on_output: OnOutput) -> None:
        self._reader.begin(marker, on_output, self._on_trailer)

    def watch(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._watch())

    def _on_trailer(self, fields: list[str]) -> None:
        reason = "killed" if self._killed else "exited"
        if fields[0] == NO_FOLDER:
            self._told = Ended(exit_code=1, reason="no_folder", note=f"the folder {fields[1]!r} does not exist there")
        else:
            code, changed, cwd, gone, left = fields
            note = f"the folder {gone!r} had vanished; the command started in the nearest one above it" if gone else ""
            if changed == "1":
                self._on_change(BackendPath(cwd))
            self._told = Ended(
                exit_code=int(code),
                reason="killed" if reason == "killed" else "exited",
                cwd=BackendPath(cwd),
                left_behind=tuple(read_left_behind(left)),
                note=note,
            )
        self._trailer.set()

    async def _watch(self) -> None:
        """Ends with the trailer; without one (`exec`, `kill -9`) with the program."""
        program = asyncio.ensure_future(self._end_of_program())
        told: asyncio.Future[Any] = asyncio.ensure_future(self._trailer.wait())
        await asyncio.wait((program, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if self._told is None:
            ended = await program
            self._reader.finish()
            # It may have written the session back before it ended in its own EXIT trap.
            self._on_change(None)
        else:
            ended = self._told
        if self._left_behind is not None and self._process.pid is not None:
            ended = replace(ended, left_behind=tuple(self._left_behind(self.id, self._process.pid)))
        if any(one.command == A_SHELL for one in ended.left_behind):
            # It has most likely not become its program yet.
            await asyncio.sleep(BECOMING_SECONDS)
            with contextlib.suppress(EnvironmentFailed):
                ended = replace(ended, left_behind=tuple(await self._tree.remaining([self.id])))
        self._end(ended)
        await program
        if not ended.left_behind:
            await self._process.abandon()
