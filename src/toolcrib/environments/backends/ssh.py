"""Commands on another machine, over one ssh connection that comes back after it broke."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolcrib.core.environments import BackendPath, BackendStatus, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backend import Backend, EnvironmentRequest
from toolcrib.environments.ssh_login import Login, SshOptions, log_in, ssh_package

if TYPE_CHECKING:
    import asyncssh


# The exit status overtakes output that is still in a pipe over there; children of the program may keep that pipe open.
SILENCE_AFTER_THE_END_SECONDS = 0.2
OUTPUT_AFTER_THE_END_SECONDS = 3.0
END_OF_TRANSMISSION = b"\x04"


class SshProcess:
    """A program that sshd runs for us; see EngineProcess.

    It is at the same time the session object that asyncssh calls back; it does not inherit from asyncssh's class, since
    that package is optional.
    """

    def __init__(self, where: str, on_output: OnOutput, *, on_terminal: bool, on_closed: Callable[[], None]) -> None:
        self._where = where
        self._on_output = on_output
        self._on_terminal = on_terminal
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._exit_code: int | None = None
        self._outcome: asyncio.Future[int | str] = self._loop.create_future()
        """Its exit code, or the sentence that says why that will never be known."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended_unread = False
        """It ended while a writer waited for it to read."""
        self._last_output = 0.0
        self._drain_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        return None

    @property
    def has_ended(self) -> bool:
        """Nothing can be written to it any more: it ended, or its connection did."""
        return self._exit_code is not None or self._outcome.done()

    @property
    def was_opened(self) -> bool:
        """The server gave us a channel for it, so the program may have started."""
        return self._channel is not None

    async def write(self, data: bytes) -> None:
        if self._channel is None or self.has_ended:
            raise BrokenPipeError(errno.EPIPE, "it has ended")
        self._channel.write(data)
        await self._may_write.wait()
        if self._ended_unread:
            raise BrokenPipeError(errno.EPIPE, "it ended before it had read everything")

    async def close_input(self) -> None:
        if self._channel is None or self._channel.is_closing():
            return
        if self._on_terminal:
            # The end of the stream does not reach a program on a terminal; the end-of-file character does.
            self._channel.write(END_OF_TRANSMISSION)
        else:
            self._channel.write_eof()

    async def resize(self, size: TerminalSize) -> None:
        if self._on_terminal and self._channel is not None and not self._outcome.done():
            self._channel.change_terminal_size(size.columns, size.rows)

    async def wait(self) -> int:
        """Its exit code; raises EnvironmentFailed when the connection was lost before the program ended."""
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, str):
            raise EnvironmentFailed(outcome)
        return outcome

    async def abandon(self) -> None:
        self.let_go("it was abandoned")

    def let_go(self, reason: str) -> None:
        """Close the channel without waiting for anything; whoever waits for the program is told `reason`."""
        self._settle(f"what runs on {self._where} is not watched any more: {reason}")
        self._free_writers()
        if self._channel is not None:
            self._channel.abort()

    # What asyncssh calls:

    def connection_made(self, channel: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = channel

    def session_started(self) -> None:
        return

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._last_output = self._loop.time()
        self._on_output(data)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def eof_received(self) -> bool:
        if self._exit_code is not None:
            self._settle(self._exit_code)
        return True  # A program may close its output and still read.

    def exit_status_received(self, status: int) -> None:
        self._ended(status)

    def exit_signal_received(self, name: str, core_dumped: bool, message: str, language: str) -> None:
        # A server names only the usual signals (`KILL`); for the others its number is not told.
        number = signal.Signals.__members__.get(f"SIG{name}")
        self._ended(128 + (number or 0))

    def connection_lost(self, error: Exception | None) -> None:
        if self._exit_code is not None:
            self._settle(self._exit_code)
        else:
            self._settle(
                f"the connection to {self._where} was lost while a program ran there ({error or 'closed'}); "
                "it is not known whether it goes on. The next command connects again"
            )
        self._free_writers()
        self._on_closed()

    def _ended(self, code: int) -> None:
        self._exit_code = code
        self._free_writers()
        self._last_output = self._loop.time()
        self._drain(self._last_output + OUTPUT_AFTER_THE_END_SECONDS)

    def _free_writers(self) -> None:
        self._ended_unread = self._ended_unread or not self._may_write.is_set()
        self._may_write.set()

    def _drain(self, deadline: float) -> None:
        """Settle once nothing has come for a while; the end of the stream, which is usual, comes first."""
        now = self._loop.time()
        quiet_at = min(self._last_output + SILENCE_AFTER_THE_END_SECONDS, deadline)
        if now >= quiet_at and self._exit_code is not None:
            self._settle(self._exit_code)
        else:
            self._drain_timer = self._loop.call_at(quiet_at, self._drain, deadline)

    def _settle(self, outcome: int | str) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        if not self._outcome.done():
            self._outcome.set_result(outcome)


__all__ = ["SshEngine", "SshOptions", "probe", "quoted_for_any_shell"]

CLOSE_SECONDS = 2.0
FREED_SESSION_SECONDS = 0.05
# Linux refuses a longer single argument, and sshd hands the whole line to the login shell as one.
LONGEST_COMMAND_BYTES = 131_000
TERMINAL_TYPE = "xterm-256color"


def probe(options: SshOptions) -> BackendStatus:
    """Whether ssh can be tried here; the host itself is not asked."""
    if importlib.util.find_spec("asyncssh") is None:
        return BackendStatus(
            kind="ssh", usable=False, detail="asyncssh is not installed", remedy="pip install 'toolcrib[ssh]'"
        )
    if not options.host:
        return BackendStatus(kind="ssh", usable=False, detail="no host is set", remedy="set terminal.ssh.host")
    where = f"{options.user}@{options.host}" if options.user else options.host
    return BackendStatus(kind="ssh", usable=True, detail=f"{where} port {options.port}" if options.port else where)


def quoted_for_any_shell(argument: str) -> str:
    """One word that bash, dash, zsh and fish all read back as `argument`.

    Inside single quotes fish gives the backslash a meaning and the others do not, so it stands outside of them.
    """
    if re.fullmatch(r"[A-Za-z0-9_./:,@%+-]+", argument):
        return argument
    pieces = re.split(r"([\\'])", argument)
    return "".join(f"\\{piece}" if piece in ("\\", "'") else f"'{piece}'" for piece in pieces if piece) or "''"


class _Connection:
    """A connection with the programs that run over it."""

    def __init__(self) -> None:
        self.login: Login | None = None
        self.processes: set[SshProcess] = set()
        self.is_full = False
        """The server refused a further session; true until one ends."""
        self.sessions_ended = 0
        self.lost_because = ""

    @property
    def connection(self) -> asyncssh.SSHClientConnection:
        if self.login is None:
            raise EnvironmentFailed("the ssh connection is not open")
        return self.login.connection


class SshEngine:
    """Another machine, reached as `ssh` would reach it; see Engine."""

    kind = "ssh"
    isolated = False
    shell = "bash"
    shell_pool_size = 1
    temporary = BackendPath("/tmp")

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        self._lines: list[_Connection] = []
        self._connecting = asyncio.Lock()
        self._session_ended = asyncio.Event()
        self._starting: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def open(self) -> None:
        await self._line_with_room(self._session_deadline())

    async def close(self) -> None:
        self._is_closed = True
        self._session_ended.set()
        lines, self._lines = self._lines, []
        for line in lines:
            for process in tuple(line.processes):
                process.let_go("the environment was closed")
        await asyncio.gather(*(self._hang_up(line) for line in lines))
        if self._starting:
            await asyncio.wait(self._starting, timeout=CLOSE_SECONDS)

    def address(self) -> Mapping[str, str]:
        login = self._lines[0].login if self._lines else None
        options = self._options
        return {
            "host": options.host,
            "port": str(login.port if login else options.port or ""),
            "user": login.user if login else options.user,
            "key": options.key,
            "known_hosts": options.known_hosts,
            "config": options.config,
        }

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> SshProcess:
        # `exec`: the login shell becomes the program, so that its signals and exit codes reach us.
        # Over pipes the two streams become one over there: only there is the order of what they carry still known.
        command = " ".join(["exec", *map(quoted_for_any_shell, argv), *(() if terminal else ("2>&1",))])
        if len(command.encode()) > LONGEST_COMMAND_BYTES:
            raise EnvironmentFailed(f"{argv[0]!r} cannot be started over ssh: its arguments are too long")
        deadline = self._session_deadline()
        reconnects_left = 1
        while True:
            line = await self._line_with_room(deadline)
            process = await self._try_to_start(line, command, on_output, terminal)
            if process is not None:
                return process
            if line.lost_because:
                if not reconnects_left:
                    raise EnvironmentFailed(f"{self._where} hangs up when a program is started: {line.lost_because}")
                reconnects_left -= 1
            elif not line.processes:
                # The server frees a session an instant after it told us about its end.
                line.is_full = False
                await asyncio.sleep(FREED_SESSION_SECONDS)
                if asyncio.get_running_loop().time() > deadline:
                    raise EnvironmentFailed(
                        f"{self._where} lets us log in but allows no session; check MaxSessions in its sshd_config"
                    )

    async def _try_to_start(
        self, line: _Connection, command: str, on_output: OnOutput, terminal: TerminalSize | None
    ) -> SshProcess | None:
        """The started program; None when the line had no session to give, or broke before anything was started."""
        sdk = ssh_package()
        process = SshProcess(
            self._where, on_output, on_terminal=terminal is not None, on_closed=lambda: self._forget(line, process)
        )
        line.processes.add(process)
        ended_before = line.sessions_ended
        starting = asyncio.ensure_future(
            line.connection.create_session(
                lambda: process,  # type: ignore[arg-type, return-value]  # it has the methods, not the base class
                command,
                encoding=None,
                request_pty="force" if terminal else False,
                term_type=TERMINAL_TYPE if terminal else None,
                term_size=(terminal.columns, terminal.rows) if terminal else None,
            )
        )
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            async with asyncio.timeout(self._options.connect_timeout_seconds):
                # Shielded: asyncssh forgets to close a channel whose opening is cancelled.
                await asyncio.shield(starting)
        except TimeoutError:
            line.lost_because = f"no answer within {self._options.connect_timeout_seconds:g} seconds"
            await self._hang_up(line)
            self._not_started(line, process, line.lost_because)
            return None
        except sdk.ChannelOpenError as error:
            await asyncio.sleep(0)  # A connection that has just broken tells us in the next turn of the loop.
            if terminal and process.was_opened and not line.lost_because:
                self._forget(line, process)
                raise EnvironmentFailed(f"{self._where} gives no terminal ({error.reason}); see PermitTTY") from error
            line.is_full = not process.was_opened and line.sessions_ended == ended_before
            self._not_started(line, process, error.reason)
            return None
        except (sdk.Error, OSError) as error:
            self._not_started(line, process, str(error))
            return None
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: self._drop_started(line, process, done))
            raise
        return process

    def _not_started(self, line: _Connection, process: SshProcess, reason: str) -> None:
        """Forget a program whose start failed; raises when it may have been started all the same."""
        self._forget(line, process, frees_a_session=False)
        if line.lost_because and line in self._lines:
            self._lines.remove(line)
        if process.was_opened:
            process.let_go(reason)
            raise EnvironmentFailed(f"{self._where} did not start a program, or we lost it while it started: {reason}")

    def _drop_started(self, line: _Connection, process: SshProcess, started: asyncio.Task[Any]) -> None:
        if not started.cancelled():
            started.exception()  # Nobody waits for it any more.
        process.let_go("its start was cancelled")
        if not process.was_opened:
            self._forget(line, process, frees_a_session=False)

    async def _line_with_room(self, deadline: float) -> _Connection:
        """A connection that may have a session for us: an old one, a new one, or one that somebody leaves in time."""
        while True:
            self._session_ended.clear()
            line = self._open_line_with_room()
            if line is not None:
                return line
            async with self._connecting:
                line = self._open_line_with_room()
                if line is not None:
                    return line
                if len(self._lines) < max(1, self._options.max_connections):
                    return await self._connect()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._session_ended.wait()
            except TimeoutError as error:
                open_sessions = sum(len(line.processes) for line in self._lines)
                raise EnvironmentFailed(
                    f"{self._where} allows no further session: {open_sessions} programs run there through us. "
                    "End some of them, or raise MaxSessions in its sshd_config"
                ) from error

    def _open_line_with_room(self) -> _Connection | None:
        if self._is_closed:
            raise EnvironmentFailed(f"the environment on {self._where} is closed")
        return next((line for line in self._lines if not line.is_full), None)

    async def _connect(self) -> _Connection:
        line = _Connection()

        def lost(reason: str) -> None:
            line.lost_because = line.lost_because or reason
            if line in self._lines:
                self._lines.remove(line)
            self._session_ended.set()

        line.login = await log_in(self._options, lost)
        if self._is_closed:
            await self._hang_up(line)
            raise EnvironmentFailed(f"the environment on {self._where} is closed")
        self._lines.append(line)
        return line

    def _forget(self, line: _Connection, process: SshProcess, *, frees_a_session: bool = True) -> None:
        line.processes.discard(process)
        if not frees_a_session:
            return
        line.sessions_ended += 1
        line.is_full = False
        self._session_ended.set()
        if not line.processes and line in self._lines[1:]:
            # It was opened only because the first was full.
            self._lines.remove(line)
            asyncio.get_running_loop().call_soon(line.connection.close)

    async def _hang_up(self, line: _Connection) -> None:
        if line in self._lines:
            self._lines.remove(line)
        line.connection.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await line.connection.wait_closed()
        except TimeoutError:
            line.connection.abort()

    def _session_deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._options.session_wait_seconds

    @property
    def _where(self) -> str:
        return f"{self._options.user}@{self._options.host}" if self._options.user else self._options.host


def options_from(request: EnvironmentRequest) -> SshOptions:
    """What the settings, the spec and the address say about the login."""
    section, address = request.section, request.address
    port = address.get("port", "")
    return SshOptions(
        host=address.get("host", request.spec.host),
        port=int(port) if port else section.port,
        user=address.get("user", request.spec.user),
        key=address.get("key") or request.expand_home(section.key),
        known_hosts=address.get("known_hosts") or request.expand_home(section.known_hosts),
        config=address.get("config", ""),
        agent_path=request.environ.get("SSH_AUTH_SOCK", ""),
        accept_new_host_keys=section.accept_new_host_keys,
    )


async def _probe(request: EnvironmentRequest) -> BackendStatus:
    return probe(options_from(request))


BACKEND = Backend(
    kind="ssh",
    location="remote",
    section="ssh",
    create=lambda request: request.shell_over(SshEngine(options_from(request))),
    probe=_probe,
)
