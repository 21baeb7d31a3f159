"""The editor's terminals, for people who chose to watch commands run where they run their own.

Each command is a new `bash -c` with the editor's environment, so what it sets does not last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

from acp import RequestError
from acp.schema import TerminalOutputResponse
from msgspec.structs import replace

from toolcrib.acp.editor import EditorConnection, EditorRefused
from toolcrib.core.context import FrontEndTerminal
from toolcrib.core.environments import CommandExit, CommandRequest, Environment, Execution, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed

ANSWER_SECONDS = 10.0
OUTPUT_SECONDS = 0.3
"""How often the output of a terminal is fetched."""
DAY_SECONDS = 86_400.0
OUTPUT_BYTES = 4_000_000
OVERLAP_CHARS = 1_000
KILLED = 137
# Everything below knows by the limit that no person started it; see config/tool_call_mark.py.
SCRIPT = 'ulimit -x 4611686018427387903 2>/dev/null; exec bash -c "$1"'
MAX_ENDED = 8
"""How many terminals stay open for `read_terminal` after their commands have ended."""


class EditorTerminals:
    """The terminals that one session opened in its editor: those with a running command, and the last that ended."""

    def __init__(self, editor: EditorConnection, session_id: str) -> None:
        self.editor = editor
        self.session_id = session_id
        self._open: dict[str, FrontEndTerminal] = {}

    def opened(self, terminal_id: str, command: str) -> None:
        self._open[terminal_id] = FrontEndTerminal(terminal_id, command, is_running=True)

    async def ended(self, terminal_id: str) -> None:
        """Keep a terminal whose command has ended, in place of the oldest such."""
        if terminal_id in self._open:
            self._open[terminal_id] = replace(self._open[terminal_id], is_running=False)
            ended = [one.process_id for one in list(self._open.values()) if not one.is_running]
            for oldest in ended[:-MAX_ENDED]:
                await self.release(oldest)
        else:
            # It was closed while the command ran.
            await self.release(terminal_id)

    async def release(self, terminal_id: str) -> None:
        self._open.pop(terminal_id, None)
        request = self.editor.client.release_terminal(session_id=self.session_id, terminal_id=terminal_id)
        with contextlib.suppress(EditorRefused):
            await self.editor.request(request, ANSWER_SECONDS)

    async def release_all(self) -> None:
        await asyncio.gather(*map(self.release, list(self._open)))

    # For the tools. Subagents share the terminals of the session.

    def of_session(self, session_id: str) -> list[FrontEndTerminal]:
        return list(self._open.values())

    async def read(self, session_id: str, process_id: str) -> str:
        request = self.editor.client.terminal_output(session_id=self.session_id, terminal_id=process_id)
        return (await self.editor.request(request, ANSWER_SECONDS)).output

    async def close(self, session_id: str, process_id: str) -> None:
        terminal = self._open.pop(process_id, None)
        if terminal is None or not terminal.is_running:
            await self.release(process_id)
            return
        # Whoever waits for the command still reads its last output, and then releases the terminal.
        request = self.editor.client.kill_terminal(session_id=self.session_id, terminal_id=process_id)
        await self.editor.request(request, ANSWER_SECONDS)


class EditorTerminalRunner:
    """An environment whose foreground commands run in terminals of the editor; everything else is its own."""

    def __init__(self, environment: Environment, terminals: EditorTerminals, on_created: Callable[[str], None]) -> None:
        """`on_created` hears the id of each terminal."""
        self._environment = environment
        self._terminals = terminals
        self._on_created = on_created

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def as_environment(self) -> Environment:
        return cast(Environment, self)

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        cwd = request.cwd or self._environment.cwd
        editor = self._terminals.editor
        asked = editor.client.create_terminal(
            session_id=self._terminals.session_id,
            command="bash",
            args=["-c", SCRIPT, "toolcrib", request.command],
            cwd=cwd or None,
            output_byte_limit=OUTPUT_BYTES,
        )
        try:
            created = await editor.request(asked, ANSWER_SECONDS)
        except EditorRefused as error:
            if not isinstance(error.__cause__, RequestError):
                raise EnvironmentFailed(f"the command may have started in a terminal of the editor: {error}") from error
            # Nothing has run, so it runs in our own shell.
            return await self._environment.start(request, on_output)
        self._terminals.opened(created.terminal_id, request.command)
        self._on_created(created.terminal_id)
        return EditorTerminal(self._terminals, created.terminal_id, on_output)


class EditorTerminal:
    """A command in a terminal of the editor; see Execution."""

    pid: int | None = None

    def __init__(self, terminals: EditorTerminals, terminal_id: str, on_output: OnOutput) -> None:
        self.id = terminal_id
        self._terminals = terminals
        self._editor = terminals.editor
        self._at = {"session_id": terminals.session_id, "terminal_id": terminal_id}
        self._on_output = on_output
        self._taken = 0
        self._last = ""
        self._was_killed = False
        self._ended = asyncio.ensure_future(self._follow())

    async def _follow(self) -> CommandExit:
        waiting = asyncio.ensure_future(
            self._editor.request(self._editor.client.wait_for_terminal_exit(**self._at), DAY_SECONDS)
        )
        leave = self._terminals.release
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=OUTPUT_SECONDS)
                self._take(await self._output())
            ended = waiting.result()
            self._take(await self._output())
            leave = self._terminals.ended
        except EditorRefused as error:
            return CommandExit(exit_code=255, reason="lost", note=f"the terminal of the editor was lost: {error}")
        finally:
            waiting.cancel()
            await leave(self.id)
        code = ended.exit_code if ended.exit_code is not None else KILLED
        return CommandExit(exit_code=code, reason="killed" if self._was_killed else "exited")

    async def _output(self) -> TerminalOutputResponse:
        return await self._editor.request(self._editor.client.terminal_output(**self._at), ANSWER_SECONDS)

    def _take(self, found: TerminalOutputResponse) -> None:
        """Pass on what is new. A long output loses its beginning, so what came last is looked for."""
        at = found.output.rfind(self._last) if found.truncated else self._taken - len(self._last)
        new = found.output[at + len(self._last) :] if at >= 0 else found.output
        if new:
            self._taken = len(found.output)
            self._last = found.output[-OVERLAP_CHARS:]
            self._on_output(new.encode("utf-8", "replace"))

    async def wait(self) -> CommandExit:
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        raise BrokenPipeError("a terminal of the editor takes no input from us")

    async def close_input(self) -> None:
        return None

    async def resize(self, size: TerminalSize) -> None:
        return None

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        if self._ended.done():
            return
        self._was_killed = True
        try:
            await self._editor.request(self._editor.client.kill_terminal(**self._at), ANSWER_SECONDS)
        except EditorRefused as error:
            raise EnvironmentFailed(f"the editor did not stop the command: {error}") from error
        await self.wait()

    async def settled(self) -> None:
        await self.wait()

    async def waits_for_input(self) -> bool:
        return False

    async def abandon(self) -> None:
        self._ended.cancel()
