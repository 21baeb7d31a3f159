"""Files of a place, by programs that run inside it: read, written, looked at, copied in and out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from toolcrib.core.environments import BackendPath, Engine, EngineProcess, FileStatus
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments import archives, file_programs

STALLED_SECONDS = 120.0
"""A transfer in which nothing moves for so long has failed."""
_MEMORY_BYTES = 1024 * 1024
_LONGEST_ANSWER = 16 * 1024
_REFUSALS: dict[str, tuple[type[OSError], int]] = {
    file_programs.MISSING: (FileNotFoundError, errno.ENOENT),
    file_programs.IS_FOLDER: (IsADirectoryError, errno.EISDIR),
    file_programs.NOT_FOLDER: (NotADirectoryError, errno.ENOTDIR),
    file_programs.DENIED: (PermissionError, errno.EACCES),
}


def _from_anywhere() -> BackendPath:
    return BackendPath("")


@dataclass(frozen=True, slots=True)
class BackendFiles:
    """Reads and writes files of the place that an engine gives; relative paths start at `folder()`, `~` at its home."""

    engine: Engine
    folder: Callable[[], BackendPath] = field(default=_from_anywhere)

    async def read_file(self, path: BackendPath) -> bytes:
        """The content of a file; raises FileNotFoundError, IsADirectoryError, PermissionError."""
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as content:
            await self._run(file_programs.READ, path, [], content)
            content.seek(0)
            return content.read()

    async def write_file(self, path: BackendPath, data: bytes, *, mode: int | None = None) -> None:
        """Put a file in its place in one step, folders above it included; mode and owner of an old one are kept."""
        chunks = (data[at : at + archives.CHUNK_BYTES] for at in range(0, len(data), archives.CHUNK_BYTES))
        await self._write(path, chunks, len(data), mode)

    async def status(self, path: BackendPath) -> FileStatus | None:
        """What is at a path, links followed; None when nothing is."""
        try:
            with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as nothing:
                kind, mode, size, *_ = (await self._run(file_programs.STATUS, path, [], nothing)).split()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStatus(
            kind="file" if kind == "file" else "folder" if kind == "folder" else "other",
            size=int(size),
            mode=int(mode, 8),
        )

    async def upload(self, source: Path, target: BackendPath) -> None:
        """Copy a file or folder of this machine to the path `target`, modes kept, owned by the user of the place.

        A folder that is there already keeps what else is in it.
        """
        about = _about(source)
        mode = about.st_mode & 0o777
        if stat.S_ISDIR(about.st_mode):
            with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as nothing:
                await self._run(file_programs.UNPACK, target, [f"{mode:o}"], nothing, archives.packed(source))
            return
        with source.open("rb") as file:
            chunks = iter(lambda: file.read(archives.CHUNK_BYTES), b"")
            await self._write(target, chunks, about.st_size, mode)

    async def download(self, source: BackendPath, target: Path) -> None:
        """Copy a file or folder out of the place to the path `target`, modes kept, owned by us.

        Nothing is written outside of `target`: what would be is left out and raised as an OSError in the end.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with _new_file_beside(target) as (name, content):
            kind, mode, *_ = (await self._run(file_programs.PACK, source, [], content)).split()
            content.flush()
            if kind == "folder":
                content.seek(0)
                await asyncio.to_thread(archives.unpack, content, target)
            else:
                _install(name, target, int(mode, 8) & 0o777)

    async def _write(self, path: BackendPath, chunks: Iterable[bytes], size: int, mode: int | None) -> None:
        arguments = [str(size), "" if mode is None else f"{mode:o}"]
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as nothing:
            await self._run(file_programs.WRITE, path, arguments, nothing, chunks)

    async def _run(
        self,
        program: str,
        path: BackendPath,
        arguments: Sequence[str],
        content: IO[bytes],
        chunks: Iterable[bytes] = (),
    ) -> str:
        """Run a program on a path; its bytes land in `content`, its answer is returned, its refusal raised."""
        if "\0" in path:
            raise ValueError(f"a path cannot hold a zero byte: {path!r}")
        answer = _Answer(secrets.token_hex(8), content)
        prefix = [self.engine.shell, "--norc", "--noprofile", "-c", program, "toolcrib"]
        try:
            async with asyncio.timeout(STALLED_SECONDS) as limit:

                def moved() -> None:
                    limit.reschedule(asyncio.get_running_loop().time() + STALLED_SECONDS)

                def take(data: bytes) -> None:
                    moved()
                    answer.take(data)

                argv = [*prefix, answer.token, self.folder(), path, *arguments]
                process = await self.engine.spawn(argv, on_output=take)
                try:
                    await _feed(process, chunks, moved)
                    await process.wait()
                finally:
                    await process.abandon()
        except TimeoutError as error:
            raise EnvironmentFailed(
                f"the {self.engine.kind} environment did not answer for {STALLED_SECONDS:.0f} seconds about {path!r}; "
                "`toolcrib env list` shows whether it can be used"
            ) from error
        return _text_or_refusal(self.engine.kind, path, answer.finish())


async def _feed(process: EngineProcess, chunks: Iterable[bytes], moved: Callable[[], None]) -> None:
    try:
        for chunk in chunks:
            await process.write(chunk)
            moved()
    except BrokenPipeError:
        return  # it ended early, and its answer says why
    await process.close_input()


def _text_or_refusal(kind: str, path: BackendPath, answer: tuple[str, str] | None) -> str:
    if answer is None:
        raise EnvironmentFailed(
            f"the {kind} environment went away while {path!r} was copied; "
            "`toolcrib env list` shows whether it can be used"
        )
    code, text = answer
    if code == file_programs.OK:
        return text
    if code in _REFUSALS:
        refusal, number = _REFUSALS[code]
        raise refusal(number, os.strerror(number), path)
    raise OSError(f"cannot use {path!r}: {text.strip() or 'no reason was given'}")


def _about(source: Path) -> os.stat_result:
    return source.stat()


def _install(copy: Path, target: Path, mode: int) -> None:
    copy.chmod(mode)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    copy.replace(target)


@contextlib.contextmanager
def _new_file_beside(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file that can take the place of `target` in one step; it is gone afterwards if it did not."""
    descriptor, name = tempfile.mkstemp(prefix=".toolcrib-", dir=target.parent)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


class _Answer:
    """Takes what a program prints apart: noise, the token, content, the token, a code, a text."""

    def __init__(self, token: str, content: IO[bytes]) -> None:
        self.token = token
        self._mark = b"\0" + token.encode() + b"\0"
        self._content = content
        self._begun = False
        self._noise = b""

    def take(self, data: bytes) -> None:
        if self._begun:
            self._content.write(data)
            return
        self._noise += data
        at = self._noise.find(self._mark)
        if at >= 0:
            self._begun = True
            self._content.write(self._noise[at + len(self._mark) :])
            self._noise = b""

    def finish(self) -> tuple[str, str] | None:
        """The code and the text, with only the content left in its file; None for an answer that was cut short."""
        end = self._content.seek(0, os.SEEK_END)
        start = max(0, end - _LONGEST_ANSWER)
        self._content.seek(start)
        last = self._content.read()
        at = last.rfind(self._mark)
        if not self._begun or at < 0:
            return None
        self._content.truncate(start + at)
        code, _, text = last[at + len(self._mark) :].partition(b"\0")
        return code.decode(), text.decode(errors="replace")
