"""The files of an environment, through programs that run inside it; folders are copied as tar streams."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import posixpath
import secrets
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct, field

from toolcrib.core.environments import BackendPath, Engine, EngineProcess, FileSlice, FileStatus
from toolcrib.core.errors import EnvironmentFailed, PathChanged
from toolcrib.environments import file_programs
from toolcrib.environments.host_paths import link_error_to

STALLED_SECONDS = 120.0
"""A transfer without progress for this long has failed."""
_MEMORY_BYTES = 1024 * 1024
_COUNTED_BYTES = 1024 * 1024
"""All lines of a file up to this size are counted."""
_LARGEST = 2**62
"""A number that every shell and program can handle."""
_LONGEST_ANSWER = 16 * 1024
_REFUSALS: dict[str, tuple[type[OSError], int]] = {
    file_programs.MISSING: (FileNotFoundError, errno.ENOENT),
    file_programs.IS_FOLDER: (IsADirectoryError, errno.EISDIR),
    file_programs.NOT_FOLDER: (NotADirectoryError, errno.ENOTDIR),
    file_programs.DENIED: (PermissionError, errno.EACCES),
    file_programs.EXISTS: (FileExistsError, errno.EEXIST),
}
_CHANGES = {
    "nothing": "was removed after it was last read",
    "something": "exists now; it did not exist before",
    "other": "has changed since it was last read; read it again",
}


def _no_folder() -> BackendPath:
    return BackendPath("")


class BackendFiles(Struct, frozen=True):
    """Reads and writes files through an engine; relative paths start at `folder()`, `~` at the home there."""

    engine: Engine
    folder: Callable[[], BackendPath] = field(default=_no_folder)

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        """The content of a file; raises FileNotFoundError, IsADirectoryError, PermissionError."""
        return (await self._ask(file_programs.READ, path, plain=plain))[1]

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        """Lines of a file in one round trip. Fetches one more line and byte, to know whether something follows."""
        numbers = (first, count + 1, max_bytes + 1, _COUNTED_BYTES)
        arguments = [str(min(number, _LARGEST)) for number in numbers]
        facts, data = await self._ask(file_programs.LINES, path, arguments, plain=plain)
        kept = _first_lines(data, count)[:max_bytes]
        at_end = len(kept) == len(data)
        total = int(facts[4]) if facts[4] else None
        if total is None and at_end and kept:
            total = first - 1 + kept.count(b"\n") + (not kept.endswith(b"\n"))
        return FileSlice(data=kept, first=first, status=_status(facts), at_end=at_end, total_lines=total)

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        """Write a file atomically and create its parent folders; an existing file keeps its mode and owner."""
        chunks = (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
        await self._write(path, chunks, len(data), mode, expected, plain=plain)

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        """Remove a file, or a link (not its target)."""
        await self._ask(file_programs.REMOVE, path, [_expectation(expected)], plain=plain)

    async def remove_folder(self, path: BackendPath) -> None:
        """Remove an empty folder."""
        await self._ask(file_programs.REMOVE_FOLDER, path)

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        """Create a folder and its parents."""
        await self._ask(file_programs.MAKE_FOLDER, path, ["" if mode is None else f"{mode:o}"])

    async def make_link(self, path: BackendPath, target: str) -> None:
        """Create or replace a symbolic link atomically."""
        await self._ask(file_programs.MAKE_LINK, path, [_for_printf(target)])

    async def list_folder(self, path: BackendPath) -> list[str]:
        """The names in a folder, sorted."""
        _, names = await self._ask(file_programs.LIST, path)
        return sorted(name.decode(errors="surrogateescape") for name in names.split(b"\0")[:-1])

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        """The status of a path; None when nothing is there."""
        try:
            facts, _ = await self._ask(file_programs.STATUS, path, ["" if follow_links else "1"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _status(facts)

    async def upload(self, source: Path, target: BackendPath) -> None:
        """Copy a file or folder of this machine to `target`; keeps modes, the user inside becomes the owner.

        An existing folder keeps its other content.
        """
        about = _stat(source)
        mode = about.st_mode & 0o777
        if stat.S_ISDIR(about.st_mode):
            await self._ask(file_programs.UNPACK, target, [f"{mode:o}"], pack(source))
            return
        with source.open("rb") as file:
            chunks = iter(lambda: file.read(CHUNK_BYTES), b"")
            await self._write(target, chunks, about.st_size, mode)

    async def download(self, source: BackendPath, target: Path) -> None:
        """Copy a file or folder out of the environment to `target`; keeps modes, we become the owner.

        Nothing is written outside `target`: members that would be are skipped and raised as an OSError at the end.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with _new_file_beside(target) as (name, content):
            kind, mode, *_ = (await self._run(file_programs.PACK, source, [], content))[0].split()
            content.flush()
            if kind == "folder":
                content.seek(0)
                await asyncio.to_thread(unpack, content, target)
            else:
                _install(name, target, int(mode, 8) & 0o777)

    async def _write(
        self,
        path: BackendPath,
        chunks: Iterable[bytes],
        size: int,
        mode: int | None,
        expected: str | None = None,
        *,
        plain: bool = False,
    ) -> None:
        arguments = [str(size), "" if mode is None else f"{mode:o}", _expectation(expected)]
        await self._ask(file_programs.WRITE, path, arguments, chunks, plain=plain)

    async def _ask(
        self,
        program: str,
        path: BackendPath,
        arguments: Sequence[str] = (),
        chunks: Iterable[bytes] = (),
        *,
        plain: bool = False,
    ) -> tuple[list[str], bytes]:
        """The answer of a program, and its bytes."""
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as content:
            texts = await self._run(program, path, arguments, content, chunks, plain=plain)
            content.seek(0)
            return texts, content.read()

    async def _run(
        self,
        program: str,
        path: BackendPath,
        arguments: Sequence[str],
        content: IO[bytes],
        chunks: Iterable[bytes] = (),
        *,
        plain: bool = False,
    ) -> list[str]:
        """Run a program on a path; writes its bytes to `content`, returns its answer, raises its errors."""
        if "\0" in path:
            raise ValueError(f"a path cannot contain a NUL byte: {path!r}")
        answer = _ProgramOutput(secrets.token_hex(8), content)
        prefix = [self.engine.shell, "--norc", "--noprofile", "-c", program, "toolcrib"]
        try:
            async with asyncio.timeout(STALLED_SECONDS) as limit:

                def moved() -> None:
                    limit.reschedule(asyncio.get_running_loop().time() + STALLED_SECONDS)

                def take(data: bytes) -> None:
                    moved()
                    answer.take(data)

                where = _path_arguments(self.folder(), path, plain)
                argv = [*prefix, answer.token, *where, *arguments]
                process = await self.engine.spawn(argv, on_output=take)
                try:
                    await _feed(process, chunks, moved)
                    await process.wait()
                finally:
                    await process.abandon()
        except TimeoutError as error:
            raise EnvironmentFailed(
                f"the {self.engine.kind} environment did not answer for {STALLED_SECONDS:.0f} seconds about {path!r}; "
                "`toolcrib env list` shows whether it works"
            ) from error
        return _checked_texts(self.engine.kind, path, answer.finish())


async def _feed(process: EngineProcess, chunks: Iterable[bytes], moved: Callable[[], None]) -> None:
    try:
        for chunk in chunks:
            await process.write(chunk)
            moved()
    except BrokenPipeError:
        return  # It ended early; its answer says why.
    await process.close_input()


def _checked_texts(kind: str, path: BackendPath, answer: list[str] | None) -> list[str]:
    if answer is None:
        raise EnvironmentFailed(
            f"the {kind} environment was lost while {path!r} was copied; `toolcrib env list` shows whether it works"
        )
    code, *texts = answer
    if code == file_programs.OK:
        return texts
    if code in _REFUSALS:
        refusal, number = _REFUSALS[code]
        raise refusal(number, os.strerror(number), path)
    said = texts[0].strip() if texts else ""
    if code == file_programs.LINKED:
        raise link_error_to(path, said)
    if code == file_programs.CHANGED:
        raise PathChanged(f"{path!r} {_CHANGES.get(said, said)}")
    raise OSError(f"cannot use {path!r}: {said or 'no reason was given'}")


def _path_arguments(folder: BackendPath, path: BackendPath, plain: bool) -> list[str]:
    """The arguments of every program that name the file."""
    if not plain:
        return [_for_printf(folder), _for_printf(path), ""]
    return ["", _for_printf(posixpath.normpath(posixpath.join(folder, path))), "plain"]


def _for_printf(text: str) -> str:
    """The text as `printf %b` reads it, in plain ASCII: not every engine passes other bytes on."""
    data = text.encode(errors="surrogateescape")
    return "".join(rf"\0{byte:03o}" if byte > 126 or byte == 92 else chr(byte) for byte in data)


def _expectation(digest: str | None) -> str:
    return "any" if digest is None else digest or "none"


def _first_lines(data: bytes, count: int) -> bytes:
    at = -1
    for _ in range(count):
        at = data.find(b"\n", at + 1)
        if at < 0:
            return data
    return data[: at + 1]


def _status(facts: Sequence[str]) -> FileStatus:
    """Parse the texts of an answer: kind; mode, size, owner, group and stamp; real path; link target."""
    kind, about, real, link, *_ = facts
    mode, size, _, _, *stamp = about.split(maxsplit=4)
    return FileStatus(
        kind="file" if kind == "file" else "folder" if kind == "folder" else "link" if kind == "link" else "other",
        size=int(size),
        mode=int(mode, 8),
        real=BackendPath(real),
        link=link,
        stamp=stamp[0] if stamp else "",
    )


def _stat(source: Path) -> os.stat_result:
    return source.stat()


def _install(copy: Path, target: Path, mode: int) -> None:
    copy.chmod(mode)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    copy.replace(target)


@contextlib.contextmanager
def _new_file_beside(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A temporary file that can be renamed to `target`; removed afterwards if it was not."""
    descriptor, name = tempfile.mkstemp(prefix=".toolcrib-", dir=target.parent)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


class _ProgramOutput:
    """Splits what a program prints: noise, the token, content, the token, a code, texts."""

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

    def finish(self) -> list[str] | None:
        """The code and the texts; leaves only the content in its file. None for a truncated answer."""
        end = self._content.seek(0, os.SEEK_END)
        start = max(0, end - _LONGEST_ANSWER)
        self._content.seek(start)
        last = self._content.read()
        at = last.rfind(self._mark)
        if not self._begun or at < 0:
            return None
        self._content.truncate(start + at)
        return [text.decode(errors="surrogateescape") for text in last[at + len(self._mark) :].split(b"\0")]


CHUNK_BYTES = 256 * 1024


def pack(folder: Path) -> Iterator[bytes]:
    """The content of a folder as chunks of a tar archive; keeps links, skips devices and sockets."""
    with tarfile.open(fileobj=io.BytesIO(), mode="w", format=tarfile.GNU_FORMAT) as maker:
        for path in _everything_in(folder):
            member = maker.gettarinfo(path, arcname=f"./{path.relative_to(folder)}")
            if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                continue
            # Our user names mean nothing in there; the user who unpacks the archive becomes the owner.
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            if member.isreg():
                yield from _content(path, member.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _everything_in(folder: Path) -> Iterator[Path]:
    """Every file and folder below, parents first."""
    for above, folders, files in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *files]):
            yield Path(above, name)


def _raise(error: OSError) -> None:
    raise error


def _content(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError(f"{str(path)!r} shrank while it was copied")
            left -= len(chunk)
            yield chunk
    yield bytes(-size % tarfile.BLOCKSIZE)


def unpack(archive: IO[bytes], target: Path) -> None:
    """Unpack an archive into the folder `target`; keeps modes, we become the owner.

    Skips members that would land outside it and links that point outside; raises an OSError for them at the end.
    """
    refused: list[str] = []
    is_new = not target.exists()

    def safe(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        if member.name in (".", "./") and not is_new:
            return None  # An existing folder keeps its mode.
        try:
            checked = tarfile.data_filter(member, folder)
        except tarfile.FilterError as error:
            refused.append(f"{member.name!r} ({error})")
            return None
        # The filter also drops permissions; these are the user's own files, so only set-user-id bits are dropped.
        return checked.replace(mode=member.mode & 0o777, deep=False)

    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r:") as opened:
        opened.extractall(target, filter=safe)
    if refused:
        raise OSError(f"not copied, because it points outside {str(target)!r}: {', '.join(refused[:5])}")
