"""The `ssh` backend: commands on another machine, over one connection that is restored after it breaks."""

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


# The exit status overtakes output still in a pipe over there; children of the program may hold that pipe open.
SILENCE_AFTER_THE_END_SECONDS = 0.2
OUTPUT_AFTER_THE_END_SECONDS = 3.0
END_OF_TRANSMISSION = b"\x04"


class SshProcess:
    """A program that sshd runs for us; see EngineProcess.

    It is also the session object that asyncssh calls back. It does not inherit from asyncssh's class, because that
    package is optional.
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
        """Its exit code, or a message that says why it will never be known."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended_unread = False
        """It ended while a writer was blocked."""
        self._last_output = 0.0
        self._drain_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        return None

    @property
    def has_ended(self) -> bool:
        """It ended, or its connection did: nothing can be written to it any more."""
        return self._exit_code is not None or self._outcome.done()

    @property
    def was_opened(self) -> bool:
        """The server opened a channel for it, so the program may have started."""
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
            # Closing the stream does not reach a program on a terminal; the end-of-file character does.
            self._channel.write(END_OF_TRANSMISSION)
        else:
            self._channel.write_eof()

    async def resize(self, size: TerminalSize) -> None:
        if self._on_terminal and self._channel is not None and not self._outcome.done():
            self._channel.change_terminal_size(size.columns, size.rows)

    async def wait(self) -> int:
        """Its exit code; raises EnvironmentFailed if the connection was lost before the program ended."""
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, str):
            raise EnvironmentFailed(outcome)
        return outcome

    async def abandon(self) -> None:
        self.close_channel("it was abandoned")

    def close_channel(self, reason: str) -> None:
        """Close the channel without waiting; whoever waits for the program gets `reason`."""
        self._settle(f"the program on {self._where} is no longer watched: {reason}")
        self._free_writers()
        if self._channel is not None:
            self._channel.abort()

    # Called by asyncssh

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
        # A server names only the common signals (`KILL`); the number of others is unknown.
        number = signal.Signals.__members__.get(f"SIG{name}")
        self._ended(128 + (number or 0))

    def connection_lost(self, error: Exception | None) -> None:
        if self._exit_code is not None:
            self._settle(self._exit_code)
        else:
            self._settle(
                f"the connection to {self._where} was lost while a program ran there ({error or 'closed'}); "
                "it may still be running. The next command connects again"
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
        """Settle once nothing has arrived for a while; usually the end of the stream comes first."""
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
# Linux refuses a longer single argument, and sshd passes the whole line to the login shell as one.
LONGEST_COMMAND_BYTES = 131_000
TERMINAL_TYPE = "xterm-256color"


def probe(options: SshOptions) -> BackendStatus:
    """Whether ssh can be tried; does not contact the host."""
    if importlib.util.find_spec("asyncssh") is None:
        return BackendStatus(
            kind="ssh", usable=False, detail="asyncssh is not installed", remedy="run `pip install 'toolcrib[ssh]'`"
        )
    if not options.host:
        return BackendStatus(kind="ssh", usable=False, detail="no host is set", remedy="set terminal.ssh.host")
    where = f"{options.user}@{options.host}" if options.user else options.host
    return BackendStatus(kind="ssh", usable=True, detail=f"{where} port {options.port}" if options.port else where)


def quoted_for_any_shell(argument: str) -> str:
    """One word that bash, dash, zsh and fish all read as `argument`.

    In single quotes, only fish treats the backslash specially, so it is put outside the quotes.
    """
    if re.fullmatch(r"[A-Za-z0-9_./:,@%+-]+", argument):
        return argument
    pieces = re.split(r"([\\'])", argument)
    return "".join(f"\\{piece}" if piece in ("\\", "'") else f"'{piece}'" for piece in pieces if piece) or "''"


class _Connection:
    """A connection and the programs that run over it."""

    def __init__(self) -> None:
        self.login: Login | None = None
        self.processes: set[SshProcess] = set()
        self.is_full = False
        """The server refused another session; true until one ends."""
        self.sessions_ended = 0
        self.lost_because = ""

    @property
    def transport(self) -> asyncssh.SSHClientConnection:
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
        self._connections: list[_Connection] = []
        self._connecting = asyncio.Lock()
        self._session_ended = asyncio.Event()
        self._starting: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def open(self) -> None:
        await self._free_connection(self._session_deadline())

    async def close(self) -> None:
        self._is_closed = True
        self._session_ended.set()
        connections, self._connections = self._connections, []
        for connection in connections:
            for process in tuple(connection.processes):
                process.close_channel("the environment was closed")
        await asyncio.gather(*(self._close_connection(connection) for connection in connections))
        if self._starting:
            await asyncio.wait(self._starting, timeout=CLOSE_SECONDS)

    def address(self) -> Mapping[str, str]:
        login = self._connections[0].login if self._connections else None
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
        # `exec` replaces the login shell, so that signals and exit codes of the program reach us.
        # Without a terminal, both streams are merged over there: only there is their order known.
        command = " ".join(["exec", *map(quoted_for_any_shell, argv), *(() if terminal else ("2>&1",))])
        if len(command.encode()) > LONGEST_COMMAND_BYTES:
            raise EnvironmentFailed(f"{argv[0]!r} cannot be started over ssh: its arguments are too long")
        deadline = self._session_deadline()
        reconnects_left = 1
        while True:
            connection = await self._free_connection(deadline)
            process = await self._try_to_start(connection, command, on_output, terminal)
            if process is not None:
                return process
            if connection.lost_because:
                if not reconnects_left:
                    raise EnvironmentFailed(
                        f"{self._where} closes the connection when a program is started: {connection.lost_because}"
                    )
                reconnects_left -= 1
            elif not connection.processes:
                # The server frees a session an instant after it reports its end.
                connection.is_full = False
                await asyncio.sleep(FREED_SESSION_SECONDS)
                if asyncio.get_running_loop().time() > deadline:
                    raise EnvironmentFailed(
                        f"{self._where} accepts the login but allows no session; check MaxSessions in its sshd_config"
                    )

    async def _try_to_start(
        self, connection: _Connection, command: str, on_output: OnOutput, terminal: TerminalSize | None
    ) -> SshProcess | None:
        """The started program; None if the connection had no free session, or broke before anything started."""
        sdk = ssh_package()
        process = SshProcess(
            self._where,
            on_output,
            on_terminal=terminal is not None,
            on_closed=lambda: self._forget(connection, process),
        )
        connection.processes.add(process)
        ended_before = connection.sessions_ended
        starting = asyncio.ensure_future(
            connection.transport.create_session(
                lambda: process,  # type: ignore[arg-type, return-value]  # it has the methods, but not the base class
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
                # Shielded: asyncssh does not close a channel whose opening is cancelled.
                await asyncio.shield(starting)
        except TimeoutError:
            connection.lost_because = f"no answer within {self._options.connect_timeout_seconds:g} seconds"
            await self._close_connection(connection)
            self._not_started(connection, process, connection.lost_because)
            return None
        except sdk.ChannelOpenError as error:
            await asyncio.sleep(0)  # A connection that has just broken reports that in the next turn of the loop.
            if terminal and process.was_opened and not connection.lost_because:
                self._forget(connection, process)
                raise EnvironmentFailed(
                    f"{self._where} refuses a terminal ({error.reason}); check PermitTTY"
                ) from error
            connection.is_full = not process.was_opened and connection.sessions_ended == ended_before
            self._not_started(connection, process, error.reason)
            return None
        except (sdk.Error, OSError) as error:
            self._not_started(connection, process, str(error))
            return None
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: self._drop_started(connection, process, done))
            raise
        return process

    def _not_started(self, connection: _Connection, process: SshProcess, reason: str) -> None:
        """Forget a program whose start failed; raises if it may have started anyway."""
        self._forget(connection, process, frees_a_session=False)
        if connection.lost_because and connection in self._connections:
            self._connections.remove(connection)
        if process.was_opened:
            process.close_channel(reason)
            raise EnvironmentFailed(
                f"{self._where} did not start a program, or the connection broke while it started: {reason}"
            )

    def _drop_started(self, connection: _Connection, process: SshProcess, started: asyncio.Task[Any]) -> None:
        if not started.cancelled():
            started.exception()  # Nobody awaits it any more.
        process.close_channel("its start was cancelled")
        if not process.was_opened:
            self._forget(connection, process, frees_a_session=False)

    async def _free_connection(self, deadline: float) -> _Connection:
        """A connection that may have a free session: an open one, a new one, or one that frees a session in time."""
        while True:
            self._session_ended.clear()
            connection = self._open_free_connection()
            if connection is not None:
                return connection
            async with self._connecting:
                connection = self._open_free_connection()
                if connection is not None:
                    return connection
                if len(self._connections) < max(1, self._options.max_connections):
                    return await self._connect()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._session_ended.wait()
            except TimeoutError as error:
                open_sessions = sum(len(connection.processes) for connection in self._connections)
                raise EnvironmentFailed(
                    f"{self._where} allows no further session: we already run {open_sessions} programs there. "
                    "End some of them, or raise MaxSessions in its sshd_config"
                ) from error

    def _open_free_connection(self) -> _Connection | None:
        if self._is_closed:
            raise EnvironmentFailed(f"the environment on {self._where} is closed")
        return next((connection for connection in self._connections if not connection.is_full), None)

    async def _connect(self) -> _Connection:
        connection = _Connection()

        def lost(reason: str) -> None:
            connection.lost_because = connection.lost_because or reason
            if connection in self._connections:
                self._connections.remove(connection)
            self._session_ended.set()

        connection.login = await log_in(self._options, lost)
        if self._is_closed:
            await self._close_connection(connection)
            raise EnvironmentFailed(f"the environment on {self._where} is closed")
        self._connections.append(connection)
        return connection

    def _forget(self, connection: _Connection, process: SshProcess, *, frees_a_session: bool = True) -> None:
        connection.processes.discard(process)
        if not frees_a_session:
            return
        connection.sessions_ended += 1
        connection.is_full = False
        self._session_ended.set()
        if not connection.processes and connection in self._connections[1:]:
            # It was only opened because the first was full.
            self._connections.remove(connection)
            asyncio.get_running_loop().call_soon(connection.transport.close)

    async def _close_connection(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
        connection.transport.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await connection.transport.wait_closed()
        except TimeoutError:
            connection.transport.abort()

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
