"""Programs on another machine over ssh: their bytes, their ends, and connections that break."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.environments.engines import SshServer
from tests.environments.own_sshd import OwnSshd, Relay, own_sshd, relay_to
from toolcrib.core.environments import TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.ssh import SshEngine, SshOptions, SshProcess, probe, quoted_for_any_shell

MakeEngine = Callable[[SshOptions], SshEngine]
LIMIT_SECONDS = 20


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    made: list[SshEngine] = []

    def make(options: SshOptions) -> SshEngine:
        made.append(SshEngine(options))
        return made[-1]

    yield make
    for engine in made:
        await engine.close()


@pytest.fixture
def options(ssh_server: SshServer, tmp_path: Path) -> SshOptions:
    return SshOptions(
        host=ssh_server.host,
        port=ssh_server.port,
        user=ssh_server.user,
        key=str(ssh_server.key),
        known_hosts=str(tmp_path / "known_hosts"),
        config="none",
    )


@pytest.fixture
def engine(make_engine: MakeEngine, options: SshOptions) -> SshEngine:
    return make_engine(options)


@pytest.fixture
async def relay(ssh_server: SshServer) -> AsyncIterator[Relay]:
    async with relay_to(ssh_server.host, ssh_server.port) as relay:
        yield relay


@pytest.fixture
def few_sessions(tmp_path: Path) -> Iterator[SshOptions]:
    """A server that allows two sessions on a connection."""
    server = own_sshd(tmp_path / "sshd", "MaxSessions 2")
    server.start()
    yield options_of(server)
    server.stop()


def options_of(server: OwnSshd) -> SshOptions:
    return SshOptions(
        host="127.0.0.1",
        port=server.port,
        user=server.user,
        key=str(server.key),
        known_hosts=str(server.folder / "known_hosts"),
        config="none",
    )


async def run(
    engine: SshEngine, script: str, stdin: bytes | None = None, terminal: TerminalSize | None = None
) -> tuple[int, bytes]:
    output = bytearray()
    async with asyncio.timeout(LIMIT_SECONDS):
        process = await engine.spawn(["bash", "-c", script], on_output=output.extend, terminal=terminal)
        if stdin is not None:
            await process.write(stdin)
            await process.close_input()
        return await process.wait(), bytes(output)


class Listening:
    """Collects the output of a program and lets a test wait for a part of it."""

    def __init__(self) -> None:
        self.output = b""
        self._arrived = asyncio.Event()

    def __call__(self, data: bytes) -> None:
        self.output += data
        self._arrived.set()

    async def until(self, expected: bytes) -> bytes:
        async with asyncio.timeout(LIMIT_SECONDS):
            while expected not in self.output:
                self._arrived.clear()
                await self._arrived.wait()
        return self.output


async def started(engine: SshEngine, script: str, *, terminal: TerminalSize | None = None) -> tuple[SshProcess, bytes]:
    """A program that has printed its first line, and that line."""
    listening = Listening()
    process = await engine.spawn(["bash", "-c", script], on_output=listening, terminal=terminal)
    return process, (await listening.until(b"\n")).split()[0]


@pytest.mark.services
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("no-such-program", 127),
        ("kill -TERM $$", 128 + signal.SIGTERM),
        ("kill -KILL $$", 128 + signal.SIGKILL),
    ],
)
async def test_exit_code_is_that_of_the_program(engine: SshEngine, script: str, code: int) -> None:
    """The exit code arrives as it is; the end by signal N is 128 + N."""
    assert (await run(engine, script))[0] == code


@pytest.mark.services
async def test_both_streams_arrive_in_the_order_they_were_written(engine: SshEngine) -> None:
    """Standard output and error are merged where the program runs, so their order is kept."""
    script = "for i in {1..200}; do echo out $i; echo err $i >&2; done"

    _code, output = await run(engine, script)

    assert output.decode().splitlines() == [f"{name} {i}" for i in range(1, 201) for name in ("out", "err")]


@pytest.mark.services
async def test_any_bytes_pass_both_ways(engine: SshEngine) -> None:
    """Input and output are bytes: nothing is decoded, lost or added."""
    data = os.urandom(3_000_000)

    code, output = await run(engine, "cat", stdin=data)

    assert code == 0
    assert hashlib.sha256(output).digest() == hashlib.sha256(data).digest()


@pytest.mark.services
async def test_large_output_takes_no_memory(engine: SshEngine) -> None:
    """Output is handed on as it arrives, so 100 MB need no more memory than 1 MB."""
    await run(engine, "head -c 1000000 /dev/zero")
    before, peak, count = resident_bytes(), 0, 0

    def look(data: bytes) -> None:
        nonlocal peak, count
        count += len(data)
        if count % 32 == 0:
            peak = max(peak, resident_bytes())

    process = await engine.spawn(["head", "-c", "100000000", "/dev/zero"], on_output=look)
    code = await process.wait()

    assert (code, count) == (0, 100_000_000)
    assert peak - before < 20_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.services
async def test_writing_waits_for_a_program_that_does_not_read(engine: SshEngine) -> None:
    """Input is sent no faster than it is read, so a stopped program stops the writer."""
    listening = Listening()
    process = await engine.spawn(["bash", "-c", "echo $$; kill -STOP $$; exec wc -c"], on_output=listening)
    pid = (await listening.until(b"\n")).split()[0].decode()

    writing = asyncio.ensure_future(process.write(bytes(20_000_000)))
    done, _ = await asyncio.wait({writing}, timeout=0.3)
    await run(engine, f"kill -CONT {pid}")
    await asyncio.wait_for(writing, LIMIT_SECONDS)
    await process.close_input()
    code = await process.wait()

    assert not done
    assert (code, listening.output.split()[1]) == (0, b"20000000")


@pytest.mark.services
async def test_writing_to_a_program_that_has_ended_is_a_broken_pipe(engine: SshEngine) -> None:
    """Nobody reads any more: the writer is told. Closing its input stays harmless."""
    process = await engine.spawn(["true"], on_output=bytearray().extend)
    await process.wait()

    with pytest.raises(BrokenPipeError):
        await process.write(b"hello")
    await process.close_input()
    await process.close_input()


@pytest.mark.services
async def test_a_writer_is_freed_when_the_program_ends_without_reading(engine: SshEngine) -> None:
    """A write that can never complete ends with a broken pipe instead of hanging."""
    process = await engine.spawn(["bash", "-c", "head -c 1; exit 3"], on_output=bytearray().extend)

    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(process.write(bytes(20_000_000)), LIMIT_SECONDS)
    assert await process.wait() == 3


@pytest.mark.services
async def test_children_that_keep_the_output_open_do_not_delay_the_end(engine: SshEngine) -> None:
    """The end of the program counts, not that of what it left behind; its output before the end is there."""
    listening = Listening()
    process = await engine.spawn(["bash", "-c", "sleep 60 & echo $!; exit 5"], on_output=listening)

    code = await asyncio.wait_for(process.wait(), 60)
    await process.abandon()
    await run(engine, f"kill {listening.output.decode()}")

    assert code == 5
    assert listening.output.strip().isdigit()


@pytest.mark.services
async def test_a_program_may_close_its_output_and_go_on_reading(engine: SshEngine, tmp_path: Path) -> None:
    """The end of the output does not end the input."""
    process = await engine.spawn(
        ["bash", "-c", "exec >&- 2>&-; IFS= read -r -d '' text; [[ $text == *hello* ]]"], on_output=bytearray().extend
    )

    await process.write(b"hello")
    await process.close_input()

    assert await process.wait() == 0


@pytest.mark.services
async def test_terminal_has_the_size_asked_for_and_can_be_resized(engine: SshEngine) -> None:
    """A program on a terminal sees its size, and learns of a new one by a signal."""
    listening = Listening()
    script = "trap 'stty size; exit 0' WINCH; stty size; while :; do read -r -t 0.05 _; done"
    process = await engine.spawn(
        ["bash", "-c", script], on_output=listening, terminal=TerminalSize(rows=11, columns=44)
    )
    await listening.until(b"11 44")

    await process.resize(TerminalSize(rows=50, columns=132))
    await listening.until(b"50 132")

    assert await process.wait() == 0


@pytest.mark.services
async def test_closing_the_input_of_a_program_on_a_terminal_ends_it(engine: SshEngine) -> None:
    """On a terminal the end of the input is typed, as a person would."""
    listening = Listening()
    process = await engine.spawn(["cat"], on_output=listening, terminal=TerminalSize())

    await process.write(b"hello\n")
    await listening.until(b"hello\r\nhello")
    await process.close_input()

    assert await asyncio.wait_for(process.wait(), LIMIT_SECONDS) == 0


@pytest.mark.services
async def test_many_programs_share_one_connection(make_engine: MakeEngine, options: SshOptions, relay: Relay) -> None:
    """Twenty programs at once run side by side over a single connection."""
    engine = make_engine(replace(options, port=relay.port))

    results = await asyncio.gather(*(run(engine, f"sleep 0.1; echo {i}; exit {i}") for i in range(20)))

    assert results == [(i, f"{i}\n".encode()) for i in range(20)]
    assert relay.connections == 1


@pytest.mark.services
async def test_a_broken_connection_ends_programs_as_lost_and_comes_back(
    make_engine: MakeEngine, options: SshOptions, relay: Relay
) -> None:
    """A program whose connection breaks has no exit code; the next program connects again."""
    engine = make_engine(replace(options, port=relay.port))
    process, pid = await started(engine, "echo $$; exec sleep 60")

    relay.cut()
    with pytest.raises(EnvironmentFailed, match="was lost"):
        await asyncio.wait_for(process.wait(), LIMIT_SECONDS)
    with pytest.raises(BrokenPipeError):
        await process.write(b"x")
    code, output = await run(engine, f"kill {pid.decode()}; echo back")

    assert (code, output) == (0, b"back\n")
    assert relay.connections == 2


@pytest.mark.services
async def test_many_programs_after_a_break_connect_once(
    make_engine: MakeEngine, options: SshOptions, relay: Relay
) -> None:
    """Programs that find the connection gone at the same time share the new one."""
    engine = make_engine(replace(options, port=relay.port))
    await engine.open()

    relay.cut()
    results = await asyncio.gather(*(run(engine, f"exit {i}") for i in range(10)))

    assert [code for code, _ in results] == list(range(10))
    assert relay.connections == 2


@pytest.mark.services
async def test_a_network_that_went_silent_is_noticed(
    make_engine: MakeEngine, options: SshOptions, relay: Relay
) -> None:
    """Unanswered keepalives end the programs of a dead connection, though nothing says that it is dead."""
    engine = make_engine(replace(options, port=relay.port, keepalive_seconds=0.05))
    process, _ = await started(engine, "echo up; exec sleep 5")

    relay.is_frozen = True

    with pytest.raises(EnvironmentFailed, match="was lost"):
        await asyncio.wait_for(process.wait(), LIMIT_SECONDS)


@pytest.mark.services
async def test_starting_a_program_on_a_dead_connection_is_bounded(
    make_engine: MakeEngine, options: SshOptions, relay: Relay
) -> None:
    """A server that does not answer costs the connect timeout, then a clear error."""
    engine = make_engine(replace(options, port=relay.port, connect_timeout_seconds=0.5))
    await engine.open()

    relay.is_frozen = True

    with pytest.raises(EnvironmentFailed, match=r"0\.5 seconds"):
        await run(engine, "true")


@pytest.mark.services
async def test_a_restarted_server_is_used_again(make_engine: MakeEngine, tmp_path: Path) -> None:
    """A restart of sshd between two programs goes unnoticed."""
    server = own_sshd(tmp_path / "sshd")
    server.start()
    try:
        engine = make_engine(options_of(server))
        before = await run(engine, "echo before")
        server.stop()
        server.start()
        after = await run(engine, "echo after")
    finally:
        server.stop()

    assert (before, after) == ((0, b"before\n"), (0, b"after\n"))


@pytest.mark.services
async def test_a_program_waits_for_a_session_while_the_server_allows_no_more(
    make_engine: MakeEngine, few_sessions: SshOptions
) -> None:
    """More programs than MaxSessions run one after the other; none of them fails."""
    engine = make_engine(replace(few_sessions, max_connections=1))

    results = await asyncio.gather(*(run(engine, f"exit {i}") for i in range(6)))

    assert [code for code, _ in results] == list(range(6))


@pytest.mark.services
async def test_sessions_used_up_for_long_are_an_error_that_names_the_setting(
    make_engine: MakeEngine, few_sessions: SshOptions
) -> None:
    """When no session becomes free in time, the error says how many are in use and which setting limits them."""
    engine = make_engine(replace(few_sessions, max_connections=1, session_wait_seconds=0.3))
    held = [await engine.spawn(["cat"], on_output=bytearray().extend) for _ in range(2)]

    with pytest.raises(EnvironmentFailed, match=r"2 programs.*MaxSessions"):
        await run(engine, "true")

    for process in held:
        await process.close_input()
        assert await process.wait() == 0
    assert (await run(engine, "exit 4"))[0] == 4


@pytest.mark.services
async def test_a_second_connection_is_used_only_while_the_first_is_full(
    make_engine: MakeEngine, few_sessions: SshOptions
) -> None:
    """A full server connection does not keep the program out that ends the others; it is given up afterwards."""
    async with relay_to(few_sessions.host, few_sessions.port) as relay:
        engine = make_engine(replace(few_sessions, port=relay.port))
        held = [await engine.spawn(["cat"], on_output=bytearray().extend) for _ in range(2)]

        code, _ = await run(engine, "exit 9")
        used = relay.connections
        for process in held:
            await process.close_input()
            await process.wait()
        again, _ = await run(engine, "exit 8")

        assert (code, again, used, relay.connections) == (9, 8, 2, 2)


@pytest.mark.services
async def test_a_cancelled_start_gives_its_session_back(make_engine: MakeEngine, few_sessions: SshOptions) -> None:
    """A start that is cancelled half way leaves no session in use."""
    engine = make_engine(replace(few_sessions, max_connections=1, session_wait_seconds=5))
    await engine.open()

    for _ in range(4):
        start = asyncio.ensure_future(engine.spawn(["cat"], on_output=bytearray().extend))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait({start})

    assert (await run(engine, "exit 6"))[0] == 6


@pytest.mark.services
async def test_close_ends_everything_on_this_side(options: SshOptions, relay: Relay) -> None:
    """After close there is no connection and no task; waiting programs are told; it may be repeated."""
    engine = SshEngine(replace(options, port=relay.port))
    process, _ = await started(engine, "echo up; exec sleep 3")
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)

    await engine.close()
    await engine.close()
    with pytest.raises(EnvironmentFailed, match="closed"):
        await waiting
    with pytest.raises(EnvironmentFailed, match="closed"):
        await engine.spawn(["true"], on_output=bytearray().extend)

    relayed = {"pass_on", "_pump", "handle", "serve_forever"}
    left = [task for task in asyncio.all_tasks() - {asyncio.current_task()} if name_of(task) not in relayed]
    assert left == []


def name_of(task: asyncio.Task[object] | None) -> str:
    coroutine = task.get_coro() if task else None
    return getattr(coroutine, "__name__", "")


@pytest.mark.services
async def test_an_abandoned_program_is_not_listened_to(engine: SshEngine) -> None:
    """Abandoning closes the channel: no more output, whoever waits is told, the connection stays."""
    listening = Listening()
    process = await engine.spawn(["bash", "-c", "echo up; read -r _; echo more"], on_output=listening)
    await listening.until(b"up\n")

    await process.abandon()

    with pytest.raises(EnvironmentFailed, match="abandoned"):
        await process.wait()
    assert (await run(engine, "echo here"))[1] == b"here\n"
    assert listening.output == b"up\n"


@pytest.mark.services
async def test_address_says_where_it_leads(engine: SshEngine, options: SshOptions) -> None:
    """Another process finds the same environment by the address; it holds paths, no secrets."""
    await engine.open()

    address = engine.address()

    assert address == {
        "host": options.host,
        "port": str(options.port),
        "user": options.user,
        "key": options.key,
        "known_hosts": options.known_hosts,
        "config": "none",
    }


@pytest.mark.services
async def test_odd_arguments_arrive_as_they_are(engine: SshEngine) -> None:
    """The login shell over there changes nothing in an argument."""
    odd = ["", "a b", "it's", '"', "$HOME `id` $(id)", "\\", "\\\\'\\n", "line\nline", "*", "~", "!", "#", "é", ";&|<>"]
    output = bytearray()

    process = await engine.spawn(["printf", "%s\\0", *odd], on_output=output.extend)
    await process.wait()

    assert bytes(output).decode().split("\0")[:-1] == odd


@pytest.mark.services
async def test_arguments_too_long_for_the_other_side_are_refused_here(engine: SshEngine) -> None:
    """A line that no shell could be started with does not cost us the connection."""
    with pytest.raises(EnvironmentFailed, match="too long"):
        await engine.spawn(["echo", "x" * 200_000], on_output=bytearray().extend)
    assert (await run(engine, "exit 2"))[0] == 2


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish"])
@settings(max_examples=40, deadline=None)
@given(arguments=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20), max_size=5))
def test_quoting_survives_every_login_shell(shell: str, arguments: list[str]) -> None:
    """Whatever the login shell is, it reads back the arguments that were meant."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    line = " ".join(["exec", *map(quoted_for_any_shell, ["printf", "%s\\0", "first", *arguments]), "2>&1"])

    output = subprocess.run([shell, "-c", line], capture_output=True, timeout=LIMIT_SECONDS, check=True).stdout

    assert output.decode().split("\0")[:-1] == ["first", *arguments]


def test_probe_says_what_is_missing() -> None:
    """Without a host ssh cannot be used, and the remedy names the setting; the host itself is not asked."""
    without = probe(SshOptions(host=""))
    named = probe(SshOptions(host="machine.invalid", user="me", port=2222))

    assert (without.usable, "terminal.ssh.host" in without.remedy) == (False, True)
    assert (named.usable, named.detail) == (True, "me@machine.invalid port 2222")
