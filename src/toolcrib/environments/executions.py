"""Commands on their way in a shell session: in the foreground, and on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from toolcrib.core.environments import (
    BackendPath,
    CommandExit,
    EndReason,
    EngineProcess,
    OnOutput,
    OrphanedProcess,
    TerminalSize,
)
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.process_tree import UNNAMED_SHELL, ProcessTree, parse_orphans
from toolcrib.environments.shell_pool import DONE, NO_FOLDER

LOST = 255
TERMINATED = 143
END_SECONDS = 5.0
BECOMING_SECONDS = 0.02
WaitsForInput = Callable[[str, bool], Coroutine[Any, Any, bool]]
"""By a command and whether the last line that it printed is unfinished."""


def with_failure_code(ended: CommandExit) -> CommandExit:
    """A shell whose children are ended first may still come to a good end; what we killed has none."""
    return replace(ended, exit_code=TERMINATED) if ended.reason == "killed" and ended.exit_code == 0 else ended


class EngineExecution:
    """What all commands share that run as a program of an engine, with its streams in our hands."""

    process: EngineProcess
    """Whose streams are the command's."""
    shows_prompt = False
    """The last line that it printed is unfinished."""

    def __init__(self, command_id: str, tree: ProcessTree, waits: WaitsForInput) -> None:
        self.id = command_id
        self._tree = tree
        self._waits = waits
        self._killed = False
        self._ended: asyncio.Future[CommandExit] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        return self.process.pid

    async def wait(self) -> CommandExit:
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        await self.process.write(data)

    async def close_input(self) -> None:
        await self.process.close_input()

    async def resize(self, size: TerminalSize) -> None:
        await self.process.resize(size)

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self._killed = True
        await self._tree.end([self.id], grace_seconds)
        await self._hear_the_end()
        await self.process.abandon()

    async def _hear_the_end(self) -> None:
        # It is heard at once; only a place that went away keeps silent.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.wait()
        self._end(CommandExit(exit_code=LOST, reason="lost"))

    def when_ended(self, callback: Callable[[CommandExit], None]) -> None:
        """Call back with how it ended, as soon as that is known."""
        self._ended.add_done_callback(lambda ended: callback(ended.result()))

    async def settled(self) -> None:
        """Returns when nothing of it runs any more, what it left behind included."""
        await self.wait()
        await self._tree.settled([self.id])

    async def waits_for_input(self) -> bool:
        return not self._ended.done() and await self._waits(self.id, self.shows_prompt)

    async def abandon(self) -> None:
        await self.process.abandon()

    def _end(self, ended: CommandExit) -> None:
        if not self._ended.done():
            self._ended.set_result(with_failure_code(ended))

    async def _end_of_program(self) -> CommandExit:
        """How the program itself ended; a place that went away is told as such."""
        try:
            code = await self.process.wait()
        except EnvironmentFailed as error:
            return CommandExit(exit_code=LOST, reason="lost", note=str(error))
        return CommandExit(exit_code=code, reason="killed" if self._killed else "exited")


class TerminalExecution(EngineExecution):
    """A command on a pseudo-terminal; the terminal's end is its end."""

    def look_for_prompt(self, on_output: OnOutput) -> OnOutput:
        """What hands output on, and notes whether it ends in the middle of a line."""

        def hand_on(data: bytes) -> None:
            self.shows_prompt = not data.endswith((b"\n", b"\r"))
            on_output(data)

        return hand_on

    async def watch(self, said: Callable[[], Coroutine[Any, Any, bytes]] | None) -> None:
        """Wait for the end; `said` reads what its shell wrote down, where that may be that its folder is missing."""
        ended = await self._end_of_program()
        if said is not None and ended.exit_code == 1:
            with contextlib.suppress(OSError, EnvironmentFailed):
                if (await said()).strip() == NO_FOLDER:
                    ended = CommandExit(exit_code=1, reason="no_folder", note="its folder does not exist there")
        with contextlib.suppress(EnvironmentFailed):
            ended = replace(ended, orphans=tuple(await self._tree.remaining([self.id])))
        self._end(ended)


class ForegroundExecution(EngineExecution):
    """A command in a fork of its session's shell, which tells the end itself; see `scripts/runner.sh`."""

    def __init__(
        self,
        command_id: str,
        tree: ProcessTree,
        waits: WaitsForInput,
        *,
        find_orphans: Callable[[str, int | None], list[OrphanedProcess]] | None,
        on_change: Callable[[BackendPath | None], None],
        on_done: Callable[[ForegroundExecution], None],
    ) -> None:
        super().__init__(command_id, tree, waits)
        self._find_orphans = find_orphans
        self._on_change = on_change
        self._on_done = on_done
        self._told: CommandExit | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Not known here: it is a fork."""
        return None

    @property
    def leaves_shell_free(self) -> bool:
        """Whether nothing that it left behind holds the output of its shell."""
        return self._ended.done() and not self._ended.result().orphans

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self._killed = True
        await self._tree.end([self.id], grace_seconds)
        await self._hear_the_end()
        if not self.leaves_shell_free:
            await self.process.abandon()

    async def abandon(self) -> None:
        if not self.leaves_shell_free:
            await self.process.abandon()

    def on_message(self, fields: list[str]) -> None:
        """What its shell says: the trailer of the command, then that it is done with it."""
        if fields[0] == DONE.decode():
            self._on_done_message(int(fields[1]))
        elif fields[0] == NO_FOLDER.decode():
            self._end(
                CommandExit(exit_code=1, reason="no_folder", note=f"the folder {fields[1]!r} does not exist there")
            )
        else:
            self._on_sentinel(fields)

    def on_shell_end(self, code: int | None, reason: str) -> None:
        """A command that kills the shell of its session (`kill $$`) ends with it."""
        if not self._ended.done() and self._ending is None:
            self._ending = asyncio.ensure_future(self._end_with_shell(code, reason))

    def _on_sentinel(self, fields: list[str]) -> None:
        code, pid, changed, cwd, gone, left = fields
        if changed == "1":
            self._on_change(BackendPath(cwd))
        self._told = CommandExit(
            exit_code=int(code),
            reason="killed" if self._killed else "exited",
            cwd=BackendPath(cwd),
            orphans=tuple(parse_orphans(left)) if left else (),
            note=f"the folder {gone!r} had vanished; the command started in the nearest one above it" if gone else "",
        )
        self._end_unless_nameless(self._with_orphans(self._told, int(pid)))

    def _on_done_message(self, code: int) -> None:
        if self._told is None and not self._ended.done():
            # `exec`, or `kill -9`. It may have written the session back before it ended in its own EXIT trap.
            self._on_change(None)
            reason: EndReason = "killed" if self._killed else "exited"
            self._end_unless_nameless(self._with_orphans(CommandExit(exit_code=code, reason=reason), None))
        self._on_done(self)

    def _with_orphans(self, ended: CommandExit, pid: int | None) -> CommandExit:
        found = self._find_orphans(self.id, pid) if self._find_orphans is not None else []
        return replace(ended, orphans=tuple(found)) if found else ended

    def _end_unless_nameless(self, ended: CommandExit) -> None:
        if any(one.command in ("", UNNAMED_SHELL) for one in ended.orphans):
            # It has most likely not become its program yet.
            self._ending = asyncio.ensure_future(self._end_with_names(ended))
        else:
            self._end(ended)

    async def _end_with_names(self, ended: CommandExit) -> None:
        await asyncio.sleep(BECOMING_SECONDS)
        with contextlib.suppress(EnvironmentFailed):
            ended = replace(ended, orphans=tuple(await self._tree.remaining([self.id])))
        self._end(ended)
        self._on_done(self)

    async def _end_with_shell(self, code: int | None, reason: str) -> None:
        """Whatever became of the shell, nothing of the command goes on; a place that is gone is told as such."""
        try:
            await self._tree.end([self.id], 0)
        except EnvironmentFailed as error:
            code, reason = None, reason or str(error)
        self._on_change(None)
        if code is None:
            self._end(CommandExit(exit_code=LOST, reason="lost", note=reason))
        else:
            self._end(CommandExit(exit_code=code, reason="killed" if self._killed else "exited"))
