"""What the backends of hosted services share: owner tags, running programs, the relay for text-only services."""

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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypedDict, TypeVar

from toolcrib.core.environments import BackendStatus, Engine, Leftover, OnOutput, TerminalSize
from toolcrib.core.errors import ConfigError, EnvironmentFailed
from toolcrib.environments.backend import Backend, EnvironmentRequest
from toolcrib.environments.containers import is_alive, this_machine, this_process
from toolcrib.environments.scripts import script

Options = TypeVar("Options")

# How long to wait for more output after a program has ended: its children may hold the output open forever. The network
# path to a service is long, so this is generous.
SILENCE_SECONDS = 1.0
OPEN_SECONDS = 300.0
CLOSE_SECONDS = 30.0
SNAPSHOT_SECONDS = 300.0
SPAWN_SECONDS = 60.0
LIST_SECONDS = 30.0

OWNER_TAG = "toolcrib-owner"
MACHINE_TAG = "toolcrib-machine"


def load_sdk(module: str, extra: str) -> Any:
    """The service's SDK: large and optional, so it is imported by name when the backend is first used."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise EnvironmentFailed(
            f"the {extra} backend needs a package that is not installed; {install(extra)}"
        ) from error


def install(extra: str) -> str:
    return f"run `pip install 'toolcrib[{extra}]'`"


def sdk_is_installed(module: str) -> bool:
    """Whether the SDK is installed; imports no more than its parent package."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def status(kind: str, *, module: str, extra: str, missing: str, remedy: str) -> BackendStatus:
    """Whether a hosted backend can be used: its SDK is installed and nothing is `missing`. Makes no request."""
    if not sdk_is_installed(module):
        detail = f"the package {module.partition('.')[0]!r} is not installed"
        return BackendStatus(kind=kind, usable=False, detail=detail, remedy=install(extra))
    if missing:
        return BackendStatus(kind=kind, usable=False, detail=missing, remedy=remedy)
    return BackendStatus(kind=kind, usable=True, detail="the SDK and a key are present; the service was not contacted")


class HostedService(NamedTuple):
    """What failures of a service refer to."""

    name: str
    status_page: str
    key_remedy: str

    def failure(self, doing: str, error: Exception, *, timed_out: bool, denied: bool) -> EnvironmentFailed:
        """The error of a request to the service; `doing` continues "could not …"."""
        if timed_out:
            return EnvironmentFailed(f"{self.name} did not {doing} in time; try again, or check {self.status_page}")
        said = f"{self.name} could not {doing}: {one_line(error)}"
        return EnvironmentFailed(f"{said}; {self.key_remedy}" if denied else said)


class HostedOptions(TypedDict):
    """The options that every service has."""

    image: str
    attach: str
    cpu: float | None
    memory_mb: int | None
    network: bool
    lifetime_seconds: int


def hosted_options(request: EnvironmentRequest) -> HostedOptions:
    """What the settings, the spec and the address say about the sandbox."""
    section = request.section
    return HostedOptions(
        image=request.spec.image,
        attach=request.address.get("sandbox", ""),
        cpu=section.cpus or None,
        memory_mb=section.memory_mb or None,
        network=section.network,
        lifetime_seconds=section.max_lifetime_seconds,
    )


def hosted_backend(
    kind: str,
    section: str,
    options: Callable[[EnvironmentRequest], Options],
    engine: Callable[[Options], Engine],
    *,
    probe: Callable[[Options], Awaitable[BackendStatus]],
    leftovers: Callable[[Options], Awaitable[list[Leftover]]],
    remove: Callable[[Leftover, Options], Awaitable[None]],
) -> Backend:
    """The backend of a service whose sandboxes share nothing with this machine."""
    return Backend(
        kind=kind,
        location="hosted",
        section=section,
        create=lambda request: request.shell_over(engine(options(request))),
        probe=lambda request: probe(options(request)),
        leftovers=lambda request: leftovers(options(request)),
        remove=lambda leftover, request: remove(leftover, options(request)),
        is_self_contained=lambda _spec, _section: True,
    )


def check_lifetime(seconds: int, setting: str) -> None:
    """Require a lifetime: without one, a sandbox would keep running, and costing, after a crash."""
    if seconds <= 0:
        raise ConfigError(f"{setting} is {seconds}; it must be a positive number of seconds")


def new_name() -> str:
    return f"toolcrib-{secrets.token_hex(6)}"


def tags_of_this_process() -> dict[str, str]:
    """Identify the owner of a sandbox, in characters that every service accepts."""
    return {OWNER_TAG: this_process().replace(":", "-"), MACHINE_TAG: _machine()}


def owner_is_alive(tags: Mapping[str, str]) -> bool:
    return is_alive(tags.get(OWNER_TAG, "").replace("-", ":"))


def _machine() -> str:
    return hashlib.sha256(this_machine().encode()).hexdigest()[:16]


def refuse_terminal(kind: str, terminal: TerminalSize | None) -> None:
    if terminal is not None:
        raise EnvironmentFailed(
            f"the {kind} backend does not support terminals; run the command without pty, or on local, sandbox, "
            "docker, ssh or singularity"
        )


def one_line(error: BaseException) -> str:
    """The message of an SDK's exception, as the end of a sentence."""
    said = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
    return said or type(error).__name__


def raise_broken_pipe(reason: str = "it has ended") -> NoReturn:
    raise BrokenPipeError(errno.EPIPE, reason)


class HostedProcess:
    """A program in a hosted sandbox: its tasks and its end, whatever the service. See EngineProcess."""

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
        self._fail("it was abandoned")
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _send(self, data: bytes) -> None:
        """Send bytes to the service; raises BrokenPipeError if it does not accept them."""
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
            self._exited.set_exception(EnvironmentFailed(f"the exit code of the program is unknown: {what}"))
            self._exited.exception()  # Nobody needs to await it.

    async def _silence(self, readers: list[asyncio.Task[None]]) -> None:
        """Returns when all output has been read, or nothing has arrived for a while."""
        seen = -1
        while seen != self._arrivals:
            seen = self._arrivals
            _, pending = await asyncio.wait(readers, timeout=SILENCE_SECONDS)
            if not pending:
                return

    async def _while_running(self, work: Coroutine[Any, Any, None]) -> None:
        """Await the work only while the program runs: a service may block forever on one that does not read."""
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
    """Mark a late failure as retrieved, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


CHUNK_BYTES = 48 * 1024
LAST_LINE = "."
END_OF_INPUT = ".\n"
END = re.compile(r"=(?P<code>\d+)(?P<left_open>\+?)")
LEFT_OPEN_SECONDS = 0.2
COMPLETE_SECONDS = 30.0


def relayed(shell: str, argv: Sequence[str], *, takes_input: Literal["plain", "coded"]) -> list[str]:
    """The command line that runs `argv` under `scripts/relay.sh`."""
    return [shell, "--norc", "--noprofile", "-c", script("relay"), "toolcrib", takes_input, *argv]


def input_lines(data: bytes) -> list[str]:
    """Bytes as base64 lines for a program with coded input, small enough for one request each."""
    portions = (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
    return [base64.b64encode(portion).decode() + "\n" for portion in portions]


class _Lines:
    """Assembles lines from text that arrives in arbitrary pieces."""

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
    """A program under `scripts/relay.sh`; the service's subclass passes on the script's two streams."""

    def __init__(self, on_output: OnOutput) -> None:
        super().__init__(on_output)
        self._printed = _Lines()
        self._said = _Lines()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit code that the script reports."""
        self._taken = self._again = 0
        """How many lines were delivered, and how many of them will arrive a second time."""
        self._is_complete = asyncio.Event()
        """All output before its exit has arrived."""

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
                self._fail(f"the service altered the output: {line[:80]!r}")

    def on_stderr(self, text: str) -> None:
        for line in self._said.add(text):
            if line.startswith("!"):
                self._fail(line[1:])
            elif (end := END.fullmatch(line)) and not self._code.done():
                self._code.set_result(int(end["code"]))
                if end["left_open"]:
                    # The script has already waited; this is for data still in transit.
                    asyncio.get_running_loop().call_later(LEFT_OPEN_SECONDS, self._is_complete.set)

    async def _follow(self, reader: asyncio.Task[None]) -> None:
        """Wait for the exit, from the script or, if that is gone, from the service."""
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
            await self._ask_exit_code()

    async def _ask_exit_code(self) -> None:
        """Settle the exit with what the service knows."""
        raise NotImplementedError
