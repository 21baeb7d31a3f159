"""Commands in the editor's terminals, for people who chose that: they watch the command run where they run their own.

Each command is a new `bash -c` with the editor's environment, so what it sets does not last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

from acp.schema import TerminalOutputResponse

from toolcrib.acp.editor import EditorConnection, EditorRefused
from toolcrib.core.environments import CommandExit, CommandRequest, Environment, Execution, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed

ANSWER_SECONDS = 10.0
OUTPUT_SECONDS = 0.3
"""How often the output is fetched."""
DAY_SECONDS = 86_400.0
OUTPUT_BYTES = 4_000_000
OVERLAP_CHARS = 1_000
KILLED = 137
# Everything below knows by the limit that no person started it; see config/tool_call_mark.py.
SCRIPT = 'ulimit -x 4611686018427387903 2>/dev/null; exec bash -c "$1"'


class EditorTerminalRunner:
    """An environment whose foreground commands run in terminals of the editor; everything else is its own."""

    def __init__(
        self, environment: Environment, editor: EditorConnection, session_id: str, on_created: Callable[[str], None]
    ) -> None:
        """`on_created` hears the id of each terminal."""
        self._environment = environment
        self._editor = editor
        self._session_id = session_id
        self._on_created = on_created

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def as_environment(self) -> Environment:
        return cast(Environment, self)

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        cwd = request.cwd or self._environment.cwd
        asked = self._editor.client.create_terminal(
            session_id=self._session_id,
            command="bash",
            args=["-c", SCRIPT, "toolcrib", request.command],
            cwd=cwd or None,
            output_byte_limit=OUTPUT_BYTES,
        )
        try:
            created = await self._editor.request(asked, ANSWER_SECONDS)
        except EditorRefused:
            # Nothing has run, so it runs in our own shell.
            return await self._environment.start(request, on_output)
        self._on_created(created.terminal_id)
        return EditorTerminal(self._editor, self._session_id, created.terminal_id, on_output)


class EditorTerminal:
    """A command in a terminal of the editor; see Execution."""

    pid: int | None = None

    def __init__(self, editor: EditorConnection, session_id: str, terminal_id: str, on_output: OnOutput) -> None:
        self.id = terminal_id
        self._editor = editor
        self._at = {"session_id": session_id, "terminal_id": terminal_id}
        self._on_output = on_output
        self._taken = 0
        self._last = ""
        self._was_killed = False
        self._ended = asyncio.ensure_future(self._follow())

    async def _follow(self) -> CommandExit:
        waiting = asyncio.ensure_future(
            self._editor.request(self._editor.client.wait_for_terminal_exit(**self._at), DAY_SECONDS)
        )
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=OUTPUT_SECONDS)
                self._take(await self._output())
            ended = waiting.result()
            self._take(await self._output())
        except EditorRefused as error:
            return CommandExit(exit_code=255, reason="lost", note=f"the terminal of the editor was lost: {error}")
        finally:
            waiting.cancel()
            with contextlib.suppress(EditorRefused):
                await self._editor.request(self._editor.client.release_terminal(**self._at), ANSWER_SECONDS)
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
