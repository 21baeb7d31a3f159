"""Commands that call sudo: toolcrib asks for the password, verifies it before anything runs, and passes it by a pipe.

It is kept nowhere: every command asks anew, unless sudo itself needs none. What stands in the way of others seeing it
is told in `environments/scripts/sudo.sh`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from toolcrib.config.redact import MASK
from toolcrib.core.environments import INTERRUPTED, CommandRequest, Environment, Execution, OnOutput
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.core.ports import SecretAsker
from toolcrib.core.types import JsonObject
from toolcrib.environments.foreground import CommandLimits, ForegroundResult, run_foreground
from toolcrib.environments.scripts import script
from toolcrib.terminal import results
from toolcrib.terminal.call import TerminalCall

T = TypeVar("T")

TRIES = 3
CHECK_SECONDS = 30.0
SHOWN_COMMAND_CHARS = 300
INTERRUPTED_ANSWER: JsonObject = {"output": "[Command interrupted]", "exit_code": INTERRUPTED, "error": None}

# A sudo that the session put on its own PATH would be handed the password, so it is looked for where only root writes.
PROBE = """\
for __tc_sudo in /usr/bin/sudo /bin/sudo /usr/local/bin/sudo /run/wrappers/bin/sudo; do
    [[ -u $__tc_sudo && -x $__tc_sudo && ( $EUID == 0 || ! -w $__tc_sudo && ! -O $__tc_sudo ) ]] || continue
    if "$__tc_sudo" -n true </dev/null >/dev/null 2>&1 || "$__tc_sudo" -n -v </dev/null >/dev/null 2>&1; then
        builtin printf '\\nfree'
    else
        builtin printf '\\nask %s %s' "$__tc_sudo" "$(builtin command -p id -un)"
    fi
    builtin exit 0
done
builtin printf '\\nnone %s' "$EUID"
"""
WRONG = re.compile(r"try again|incorrect password|no password was provided", re.IGNORECASE)
FAILED = re.compile(
    r"^sudo: (?:a terminal is required to read the password|a password is required|no tty present|no password was"
    r"|\d+ incorrect password|sorry, you must have a tty|no askpass program)",
    re.MULTILINE,
)
NOBODY = "sudo needs a password, and nobody is available to enter it"
NOT_GIVEN = "sudo needs a password, and none was given"
NOT_REACHED = (
    "only a sudo that the command line itself calls can be given the password, not one inside a script or started by "
    "another program: put sudo in front (`sudo timeout 60 …`, `sudo bash script.sh`)"
)
WITHOUT = "; run it without sudo, or ask the user to run it, or to allow it without a password (NOPASSWD in sudoers)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SudoPlan:
    """How to run a command that may call sudo."""

    environment: Environment
    """Where to start it: the environment, or one that also hands over the password."""
    hint: str = ""
    """What to say if its sudo fails."""
    answer: JsonObject | None = None
    """What to answer instead of running it."""


class StopEvent(asyncio.Event):
    """Set when the call is not wanted any more."""

    def interrupt(self) -> None:
        self.set()


class Sudo:
    """Asks for passwords through the approver's channel. `asker` gives whom to ask now, or None."""

    def __init__(
        self, asker: Callable[[], SecretAsker | None], *, timeout_seconds: float, mask: Callable[[str], str]
    ) -> None:
        self._asker = asker
        self._timeout_seconds = timeout_seconds
        self._mask = mask

    async def prepare(self, environment: Environment, call: TerminalCall, stopping: asyncio.Event) -> SudoPlan:
        """See to it that a command that calls sudo has its password, or a hint for when it fails without."""
        match (await _said(environment, PROBE)).text.splitlines()[-1:]:
            case [line] if line.startswith("ask "):
                _, program, user = line.split(" ", 2)
                return await self._asked(environment, call, stopping, program, f"{user} ({environment.kind})")
            case ["none 0"]:
                hint = "there is no sudo here, and commands run as root already: leave it out"
            case [line] if line.startswith("none"):
                hint = "there is no sudo here; run it without, or ask the user to install it"
            case _:
                hint = ""
        return SudoPlan(environment=environment, hint=hint)

    async def _asked(
        self, environment: Environment, call: TerminalCall, stopping: asyncio.Event, program: str, whose: str
    ) -> SudoPlan:
        asker = self._asker()
        if asker is None:
            return SudoPlan(environment=environment, hint=NOBODY + WITHOUT)
        prompt = f"{_shown(self._mask(call.command))}\nThe password of {whose} for sudo (Enter alone gives none): "
        for attempt in range(TRIES):
            again = "This password is wrong.\n" if attempt else ""
            password = await _unless(stopping, asker.ask_secret(again + prompt, self._timeout_seconds))
            if stopping.is_set():
                return SudoPlan(environment=environment, answer=INTERRUPTED_ANSWER)
            if not password or "\n" in password or "\0" in password:
                return SudoPlan(environment=environment, hint=NOT_GIVEN + WITHOUT)
            checked = await _said(
                environment, f"LC_ALL=C {shlex.quote(program)} -k -S -p '' -v", f"{password}\n".encode()
            )
            if checked.exit_code == 0:
                given = SudoEnvironment(environment, program, password)
                return SudoPlan(environment=given.as_environment(), hint=NOT_REACHED)
            if not WRONG.search(checked.text):
                why = checked.text.strip().splitlines()[-1:] or ["it does not say why"]
                return SudoPlan(environment=environment, hint=f"sudo refuses: {why[0]}")
        answer = results.failed(f"the password for sudo was wrong {TRIES} times; nothing was run")
        return SudoPlan(environment=environment, answer=answer | {"sudo_auth_failed": True})


def asks_for_password(call: TerminalCall) -> bool:
    """Whether the command line calls sudo in a way that makes it ask the person at the terminal."""
    if "sudo" not in call.command:
        return False
    return any(one.program == "sudo" and not _has_own_way(one.words) for one in call.programs)


def explain_sudo_failure(answer: JsonObject, hint: str = "") -> JsonObject:
    """The answer with what is to be known about sudo: that it failed for want of a password, and what helps."""
    output = str(answer.get("output") or "")
    if "sudo: " in output and FAILED.search(output):
        return answer | {"sudo_auth_failed": True, "hint": hint or NOBODY + WITHOUT}
    if hint and answer.get("exit_code") and "sudo: command not found" in output:
        return answer | {"hint": hint}
    if hint and hint != NOT_REACHED and "pid" in answer:
        return answer | {"note": hint}
    return answer


def _has_own_way(words: tuple[str, ...]) -> bool:
    """`sudo -S`, `-A` and `-n`: it does not ask at the terminal."""
    for word in words:
        if not word.startswith("-"):
            return False
        if re.match(r"-[BEHKNPbeiklsv]*[ASn]", word) or word in ("--stdin", "--askpass", "--non-interactive"):
            return True
    return False


def _shown(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= SHOWN_COMMAND_CHARS else f"{line[:SHOWN_COMMAND_CHARS]} …"


async def _said(environment: Environment, command: str, stdin: bytes | None = None) -> ForegroundResult:
    request = CommandRequest(command=command, stdin=stdin)
    return await run_foreground(environment, request, CommandLimits(timeout_seconds=CHECK_SECONDS))


async def _unless(stopping: asyncio.Event, awaitable: Awaitable[T]) -> T | None:
    """What the awaitable gives; None when the interrupt comes first."""
    asked = asyncio.ensure_future(awaitable)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({asked, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return await asked if asked.done() else None
    finally:
        asked.cancel()
        stopped.cancel()


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
        hold = _OutputHold(os.urandom(12).hex().encode(), on_output)
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


class _OutputHold:
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
