"""An environment whose next command has a password for sudo; see `environments/scripts/sudo.sh`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from typing import Any, cast

from msgspec.structs import replace

from toolcrib.config.redact import MASK
from toolcrib.core.environments import CommandRequest, Environment, Execution, OnOutput
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.scripts import script

READY_SECONDS = 30.0
MIN_MASKED_CHARS = 6
"""A shorter password is too often a part of an ordinary word."""
SHELL_QUOTED = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n"})


class SudoEnvironment:
    """Everything but the start of a command is the environment's own. What a command prints never shows the password.

    Records and answers know the command as it was asked for: what stands before it is added here.
    """

    def __init__(self, environment: Environment, program: str, password: str) -> None:
        self._environment = environment
        self._program = program
        self._secret = password.encode()
        self._line = "".join(f"\\x{byte:02x}" for byte in self._secret).encode()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def as_environment(self) -> Environment:
        return cast(Environment, self)

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        listen = self._masked(on_output)
        if request.terminal is not None:
            return await self._start_on_terminal(request, listen)
        if request.mode == "background":
            execution = await self._environment.start(self._behind_prelude(request), listen)
            await self._type(execution)
            return execution
        prepared = self._behind_prelude(request, "; exec </dev/null" if request.stdin is None else "")
        return await self._environment.start(
            replace(prepared, stdin=self._line + b"\n" + (request.stdin or b"")), listen
        )

    async def _start_on_terminal(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        # What is typed before the echo is off would be shown.
        hold = _Hold(os.urandom(12).hex().encode(), on_output)
        prepared = self._behind_prelude(request, ready=hold.mark.decode())
        execution = await self._environment.start(prepared, hold)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                await _first_of(hold.told.wait(), execution.wait())
        if hold.is_ready:
            await self._type(execution)
        hold.release()
        return execution

    async def _type(self, execution: Execution) -> None:
        # One that has ended already needs none.
        with contextlib.suppress(BrokenPipeError, ConnectionError, EnvironmentFailed):
            await execution.write(self._line + b"\n")

    def _behind_prelude(self, request: CommandRequest, afterwards: str = "", *, ready: str = "") -> CommandRequest:
        """The command behind what reads the password, all in its first line: the shell counts lines in messages."""
        lines = script("sudo").splitlines()
        prelude = "\n".join(line for line in lines if not line.lstrip().startswith("#")).translate(SHELL_QUOTED)
        given = f"__tc_sudo_program={shlex.quote(self._program)} __tc_sudo_ready={shlex.quote(ready)}"
        return replace(request, command=f"{given}; builtin eval $'{prelude}'{afterwards}; {request.command}")

    def _masked(self, on_output: OnOutput) -> OnOutput:
        shown = [text for text in (self._secret, self._line) if len(self._secret) >= MIN_MASKED_CHARS]

        def take(data: bytes) -> None:
            for text in shown:
                data = data.replace(text, MASK.encode())
            on_output(data)

        return take


class _Hold:
    """Holds output back until the mark has come, and leaves the mark out. Behind it stands whether there is no echo."""

    def __init__(self, mark: bytes, on_output: OnOutput) -> None:
        self.mark = mark
        self.told = asyncio.Event()
        self.is_ready = False
        self._on_output = on_output
        self._held: bytes | None = b""

    def __call__(self, data: bytes) -> None:
        if self._held is None:
            self._on_output(data)
            return
        self._held += data
        before, found, behind = self._held.partition(self.mark)
        if found and behind:
            self.is_ready = behind.startswith(b"1")
            self._held = before + behind[1:]
            self.release()

    def release(self) -> None:
        held, self._held = self._held, None
        if held:
            self._on_output(held)
        self.told.set()


async def _first_of(*coroutines: Any) -> None:
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
