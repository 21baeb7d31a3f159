"""A pretended sandbox: a throw-away folder of this machine, and the programs that a fake service runs in it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

MARK = "TOOLCRIB_FAKE_SANDBOX"
READ_BYTES = 64 * 1024


class Log:
    """What a program printed, in a file, for readers that come at any time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._path = path
        self.size = 0
        self.is_closed = False
        self._changed = asyncio.Event()

    def add(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        self.wake()

    def close(self) -> None:
        self._file.close()
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self) -> None:
        await self._changed.wait()

    def read(self, offset: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(READ_BYTES)

    async def follow(self, offset: int = 0) -> AsyncIterator[bytes]:
        """From `offset` on, until nobody can print any more."""
        while True:
            if offset < self.size:
                data = self.read(offset)
                offset += len(data)
                yield data
            elif self.is_closed:
                return
            else:
                await self.change()


class _Streams(asyncio.subprocess.SubprocessStreamProtocol):
    """Knows of a program's end at once; `Process.wait` would wait for its children that hold the pipes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(READ_BYTES, loop)
        self.has_exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.has_exited.set()


class Program:
    """A program in a pretended sandbox, with two logs."""

    def __init__(self, process: asyncio.subprocess.Process, streams: _Streams, folder: Path) -> None:
        self._process = process
        self._streams = streams
        self.pid = process.pid
        self.folder = folder
        self.stdout = Log(folder / f"{process.pid}.out")
        self.stderr = Log(folder / f"{process.pid}.err")
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.taken = 0
        """How many bytes of input it has been given."""
        assert process.stdout is not None
        assert process.stderr is not None
        self.tasks = [
            asyncio.ensure_future(self._read(process.stdout, self.stdout)),
            asyncio.ensure_future(self._read(process.stderr, self.stderr)),
            asyncio.ensure_future(self._reap()),
        ]

    async def _read(self, stream: asyncio.StreamReader, log: Log) -> None:
        try:
            while data := await stream.read(READ_BYTES):
                log.add(data)
        finally:
            log.close()

    async def _reap(self) -> None:
        await self._streams.has_exited.wait()
        assert self._process.returncode is not None
        self.code.set_result(self._process.returncode)
        self.stdout.wake()
        self.stderr.wake()

    async def write(self, data: bytes, *, end: bool = False) -> None:
        """Raises BrokenPipeError when it does not read any more."""
        assert self._process.stdin is not None
        if self.code.done():
            raise BrokenPipeError
        if data:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
            self.taken += len(data)
        if end:
            self._process.stdin.close()

    def close(self) -> None:
        self._process._transport.close()  # type: ignore[attr-defined]

    def kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Place:
    """The pretended sandbox."""

    def __init__(self, prefix: str) -> None:
        self.id = f"{prefix}{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix="toolcrib-fake-"))
        self._logs = Path(tempfile.mkdtemp(prefix="toolcrib-fake-logs-"))
        self.programs: list[Program] = []
        self.has_ended = False

    async def run(self, argv: Sequence[str]) -> Program:
        loop = asyncio.get_running_loop()
        transport, streams = await loop.subprocess_exec(
            lambda: _Streams(loop),
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8", MARK: self.id},
            start_new_session=True,
        )
        program = Program(asyncio.subprocess.Process(transport, streams, loop), streams, self._logs)
        self.programs.append(program)
        return program

    def pids(self) -> list[int]:
        """Every process that was started in the place, also indirectly."""
        mark = f"{MARK}={self.id}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    async def end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            await asyncio.sleep(0.01)
        tasks = [task for program in self.programs for task in program.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=10)
        for program in self.programs:
            program.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._logs, ignore_errors=True)
