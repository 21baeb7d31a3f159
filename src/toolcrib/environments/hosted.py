"""What the backends of hosted services share: whose sandbox is whose, following a program there, its failures."""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import hashlib
import importlib
import importlib.util
import re
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, NoReturn

from toolcrib.core.environments import BackendStatus, OnOutput, TerminalSize
from toolcrib.core.errors import ConfigError, EnvironmentFailed
from toolcrib.environments.containers import is_alive, this_machine, this_process
from toolcrib.environments.scripts import script

# How long nothing more may arrive after a program has ended before we stop waiting for its output to be closed: its
# children may keep that open for ever. The way to a service is long, so this is generous.
SILENCE_SECONDS = 1.0
OPEN_SECONDS = 300.0
CLOSE_SECONDS = 30.0
SNAPSHOT_SECONDS = 300.0
SPAWN_SECONDS = 60.0
LIST_SECONDS = 30.0

OWNER_TAG = "toolcrib-owner"
MACHINE_TAG = "toolcrib-machine"


def load_sdk(module: str, extra: str) -> Any:
    """The service's SDK. It is large and optional, so it is loaded here, by name, when the backend is first used."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise EnvironmentFailed(f"the {extra} backend needs a package that is not here; {install(extra)}") from error


def install(extra: str) -> str:
    return f"type: pip install 'toolcrib[{extra}]'"


def sdk_is_installed(module: str) -> bool:
    """Whether it is there, without loading more of it than the package that it is in."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def status(kind: str, *, module: str, extra: str, missing: str, remedy: str) -> BackendStatus:
    """Whether a hosted backend can be used: the SDK is installed and nothing is `missing`. Nobody is called."""
    if not sdk_is_installed(module):
        detail = f"the package {module.partition('.')[0]!r} is not installed"
        return BackendStatus(kind=kind, usable=False, detail=detail, remedy=install(extra))
    if missing:
        return BackendStatus(kind=kind, usable=False, detail=missing, remedy=remedy)
    return BackendStatus(kind=kind, usable=True, detail="SDK and key are there; the service was not called")


def check_lifetime(seconds: int, setting: str) -> None:
    """A sandbox without an end of its own would go on, and cost, after a crash of ours."""
    if seconds <= 0:
        raise ConfigError(f"{setting} is {seconds}; it must be a number of seconds above 0")


def new_name() -> str:
    return f"toolcrib-{secrets.token_hex(6)}"


def tags_of_this_process() -> dict[str, str]:
    """Say whose a sandbox is, in letters that every service takes."""
    return {OWNER_TAG: this_process().replace(":", "-"), MACHINE_TAG: _machine()}


def owner_is_alive(tags: Mapping[str, str]) -> bool:
    return is_alive(tags.get(OWNER_TAG, "").replace("-", ":"))


def _machine() -> str:
    return hashlib.sha256(this_machine().encode()).hexdigest()[:16]


def refuse_terminal(kind: str, terminal: TerminalSize | None) -> None:
    if terminal is not None:
        raise EnvironmentFailed(
            f"the {kind} backend has no terminals; run the command without pty, or on local, sandbox, docker, ssh "
            f"or singularity"
        )


def one_line(error: BaseException) -> str:
    """What an SDK says about a failure, as the end of a sentence."""
    said = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
    return said or type(error).__name__


def raise_broken_pipe(reason: str = "it has ended") -> NoReturn:
    raise BrokenPipeError(errno.EPIPE, reason)


class HostedProcess:
    """A program in a hosted sandbox, without its service: its tasks, its end. See EngineProcess."""

    pid: int | None = None

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._writing = asyncio.Lock()
        self._input_is_closed = False
        self._arrivals = 0

    async def write(self, data: bytes) -> None:
        async with self._writing:
            if self._input_is_closed:
                raise_broken_pipe("its input is closed")
            await self._while_running(self._send(data))

    async def close_input(self) -> None:
        async with self._writing:
            if self._input_is_closed or self._exited.done():
                return
            self._input_is_closed = True
            try:
                await self._while_running(self._send_end())
            except BrokenPipeError:
                return

    async def resize(self, size: TerminalSize) -> None:
        return

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    async def abandon(self) -> None:
        self._input_is_closed = True
        self._fail("it was let go of")
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _send(self, data: bytes) -> None:
        """Hand bytes to the service; raises BrokenPipeError when it does not take them."""
        raise NotImplementedError

    async def _send_end(self) -> None:
        raise NotImplementedError

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    def _arrived(self, data: bytes) -> None:
        self._arrivals += 1
        self._on_output(data)

    def _end(self, code: int) -> None:
        if not self._exited.done():
            self._exited.set_result(code)

    def _fail(self, what: str) -> None:
        if not self._exited.done():
            self._exited.set_exception(EnvironmentFailed(f"how the program ended is not known: {what}"))
            self._exited.exception()  # Nobody needs to ask.

    async def _silence(self, readers: list[asyncio.Task[None]]) -> None:
        """Returns when all output has been read, or nothing has come for a while."""
        seen = -1
        while seen != self._arrivals:
            seen = self._arrivals
            _, pending = await asyncio.wait(readers, timeout=SILENCE_SECONDS)
            if not pending:
                return

    async def _while_running(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, but no longer than the program runs: a service may wait for ever for one that does not read."""
        sending = asyncio.ensure_future(work)
        sending.add_done_callback(_retrieve_exception)
        waited_for: list[asyncio.Future[Any]] = [sending, self._exited]
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise_broken_pipe()
            await sending
        finally:
            sending.cancel()


def _retrieve_exception(task: asyncio.Future[None]) -> None:
    """A failure that comes too late to matter is not reported as forgotten."""
    if not task.cancelled():
        task.exception()


CHUNK_BYTES = 48 * 1024
LAST_LINE = "."
END_OF_INPUT = ".\n"
END = re.compile(r"=(?P<code>\d+)(?P<left_open>\+?)")
LEFT_OPEN_SECONDS = 0.2
COMPLETE_SECONDS = 30.0


def relayed(shell: str, argv: Sequence[str], *, takes_input: Literal["plain", "coded"]) -> list[str]:
    """The command line that runs `argv` under the script."""
    return [shell, "--norc", "--noprofile", "-c", script("relay"), "toolcrib", takes_input, *argv]


def input_lines(data: bytes) -> list[str]:
    """Bytes for a program whose input is coded, in portions that a request can carry."""
    portions = (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
    return [base64.b64encode(portion).decode() + "\n" for portion in portions]


class _Lines:
    """Puts text that arrives in any pieces together to lines."""

    def __init__(self) -> None:
        self._begun: list[str] = []

    def add(self, text: str) -> list[str]:
        *finished, rest = text.split("\n")
        if finished:
            finished[0] = "".join([*self._begun, finished[0]])
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        return [line.strip("\r") for line in finished]


class TextRelayProcess(HostedProcess):
    """A program under the script; the service's part hands over what that says on its two streams."""

    def __init__(self, on_output: OnOutput) -> None:
        super().__init__(on_output)
        self._printed = _Lines()
        self._said = _Lines()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """How it ended, according to the script."""
        self._taken = self._again = 0
        """How many lines have been handed over, and how many of them are still to come a second time."""
        self._is_complete = asyncio.Event()
        """Nothing that it printed before its end is still on its way."""

    def start_over(self) -> None:
        """The service sends everything from the beginning again."""
        self._printed, self._said = _Lines(), _Lines()
        self._again = self._taken

    def on_stdout(self, text: str) -> None:
        for line in filter(None, self._printed.add(text)):
            if self._again:
                self._again -= 1
                continue
            self._taken += 1
            if line == LAST_LINE:
                self._is_complete.set()
                continue
            try:
                self._arrived(base64.b64decode(line, validate=True))
            except binascii.Error:
                self._fail(f"the service changed what the program printed: {line[:80]!r}")

    def on_stderr(self, text: str) -> None:
        for line in self._said.add(text):
            if line.startswith("!"):
                self._fail(line[1:])
            elif (end := END.fullmatch(line)) and not self._code.done():
                self._code.set_result(int(end["code"]))
                if end["left_open"]:
                    # The script has waited already; this is for what the service still carries.
                    asyncio.get_running_loop().call_later(LEFT_OPEN_SECONDS, self._is_complete.set)

    async def _follow(self, reader: asyncio.Task[None]) -> None:
        """Learn how it ended, from the script or, when that is gone, from the service."""
        complete = asyncio.ensure_future(self._is_complete.wait())
        told: list[asyncio.Future[Any]] = [reader, self._code]
        try:
            await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
            if self._code.done():
                await asyncio.wait((reader, complete), timeout=COMPLETE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            complete.cancel()
        if self._code.done():
            self._end(self._code.result())
        else:
            await self._ask_how_it_ended()

    async def _ask_how_it_ended(self) -> None:
        """Settle the end by what the service knows."""
        raise NotImplementedError
