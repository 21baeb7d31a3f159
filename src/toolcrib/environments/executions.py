"""Running commands of a shell session: in the foreground, and on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

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
END_SECONDS = 15.0
EXEC_SECONDS = 0.02
WaitsForInput = Callable[[str, bool], Coroutine[Any, Any, bool]]
"""Takes the command id, and whether the last line of output is unfinished."""


def with_failure_code(ended: CommandExit) -> CommandExit:
    """The exit with a code other than 0 if we killed the command: a shell whose children die first may still exit 0."""
    return replace(ended, exit_code=TERMINATED) if ended.reason == "killed" and ended.exit_code == 0 else ended


class EngineExecution:
    """What all commands share that run as a program of an engine whose streams we hold."""

    process: EngineProcess
    """The program whose streams are the command's."""
    shows_prompt = False
    """The last line of output is unfinished."""

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
        await self._await_end()
        await self.process.abandon()

    async def _await_end(self) -> None:
        # This is immediate unless the environment was lost.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self.wait()
        self._end(CommandExit(exit_code=LOST, reason="lost"))

    def when_ended(self, callback: Callable[[CommandExit], None]) -> None:
        """Call back with the exit as soon as it is known."""
        self._ended.add_done_callback(lambda ended: callback(ended.result()))

    async def settled(self) -> None:
        """Returns when none of its processes run any more, orphans included."""
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
        """The exit of the program itself; `lost` if the environment went away."""
        try:
            code = await self.process.wait()
        except EnvironmentFailed as error:
            return CommandExit(exit_code=LOST, reason="lost", note=str(error))
        return CommandExit(exit_code=code, reason="killed" if self._killed else "exited")


class TerminalExecution(EngineExecution):
    """A command on a pseudo-terminal; the terminal's end is its end."""

    def watch_for_prompt(self, on_output: OnOutput) -> OnOutput:
        """A callback that passes output on and notes whether it ends in the middle of a line."""

        def pass_on(data: bytes) -> None:
            self.shows_prompt = not data.endswith((b"\n", b"\r"))
            on_output(data)

        return pass_on

    async def watch(self, read_exit_file: Callable[[], Coroutine[Any, Any, bytes]] | None) -> None:
        """Wait for the end; `read_exit_file` tells whether the command failed because its folder is missing."""
        ended = await self._end_of_program()
        if read_exit_file is not None and ended.exit_code == 1:
            with contextlib.suppress(OSError, EnvironmentFailed):
                if (await read_exit_file()).strip() == NO_FOLDER:
                    ended = CommandExit(exit_code=1, reason="no_folder", note="its folder does not exist there")
        with contextlib.suppress(EnvironmentFailed):
            ended = replace(ended, orphans=tuple(await self._tree.remaining([self.id])))
        self._end(ended)


class ForegroundExecution(EngineExecution):
    """A command in a fork of its session's shell, which reports the end itself; see `scripts/runner.sh`."""

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
        self._reported: CommandExit | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Unknown: the command is a fork of the shell."""
        return None

    @property
    def is_shell_free(self) -> bool:
        """Whether no orphan of it holds the output of its shell open."""
        return self._ended.done() and not self._ended.result().orphans

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        self._killed = True
        await self._tree.end([self.id], grace_seconds)
        await self._await_end()
        if not self.is_shell_free:
            await self.process.abandon()

    async def abandon(self) -> None:
        if not self.is_shell_free:
            await self.process.abandon()

    def on_message(self, fields: list[str]) -> None:
        """Handle a message of its shell: the sentinel at the command's end, then that the shell is idle."""
        if fields[0] == DONE.decode():
            self._on_done_message(int(fields[1]))
        elif fields[0] == NO_FOLDER.decode():
            self._end(
                CommandExit(exit_code=1, reason="no_folder", note=f"the folder {fields[1]!r} does not exist there")
            )
        else:
            self._on_sentinel(fields)

    def on_shell_end(self, code: int | None, reason: str) -> None:
        """End the command: it killed the shell of its session (`kill $$`)."""
        if not self._ended.done() and self._ending is None:
            self._ending = asyncio.ensure_future(self._end_with_shell(code, reason))

    def _on_sentinel(self, fields: list[str]) -> None:
        code, pid, changed, cwd, gone, left = fields
        if changed == "1":
            self._on_change(BackendPath(cwd))
        self._reported = CommandExit(
            exit_code=int(code),
            reason="killed" if self._killed else "exited",
            cwd=BackendPath(cwd),
            orphans=tuple(parse_orphans(left)) if left else (),
            note=f"the folder {gone!r} no longer exists; the command started in its nearest existing parent"
            if gone
            else "",
        )
        self._end_when_named(self._with_orphans(self._reported, int(pid)))

    def _on_done_message(self, code: int) -> None:
        if self._reported is None and not self._ended.done():
            # `exec`, or `kill -9`. It may have saved the session before it ended in its own EXIT trap.
            self._on_change(None)
            reason: EndReason = "killed" if self._killed else "exited"
            self._end_when_named(self._with_orphans(CommandExit(exit_code=code, reason=reason), None))
        self._on_done(self)

    def _with_orphans(self, ended: CommandExit, pid: int | None) -> CommandExit:
        found = self._find_orphans(self.id, pid) if self._find_orphans is not None else []
        return replace(ended, orphans=tuple(found)) if found else ended

    def _end_when_named(self, ended: CommandExit) -> None:
        if any(one.command in ("", UNNAMED_SHELL) for one in ended.orphans):
            # Most likely it has not called exec yet.
            self._ending = asyncio.ensure_future(self._end_with_names(ended))
        else:
            self._end(ended)

    async def _end_with_names(self, ended: CommandExit) -> None:
        await asyncio.sleep(EXEC_SECONDS)
        with contextlib.suppress(EnvironmentFailed):
            ended = replace(ended, orphans=tuple(await self._tree.remaining([self.id])))
        self._end(ended)
        self._on_done(self)

    async def _end_with_shell(self, code: int | None, reason: str) -> None:
        """End every process of the command, whatever happened to the shell; `lost` if the environment is gone."""
        try:
            await self._tree.end([self.id], 0)
        except EnvironmentFailed as error:
            code, reason = None, reason or str(error)
        self._on_change(None)
        if code is None:
            self._end(CommandExit(exit_code=LOST, reason="lost", note=reason))
        else:
            self._end(CommandExit(exit_code=code, reason="killed" if self._killed else "exited"))
