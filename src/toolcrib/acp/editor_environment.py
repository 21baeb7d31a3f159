"""An environment over the editor's own files and terminals, for the tools of a session.

Files: unsaved buffers are read instead of the disk, and edits land in the buffers. Only text files inside the session's
folder go through the editor. The disk decides what may be reached: each file is first opened there, under the rules of
the environment. If the editor does not give the text of a file, the disk does; if it refuses an edit, the edit fails.

Terminals: for people who chose to watch commands run where they run their own. Each command is a new `bash -c` with the
editor's environment, so what it sets does not last.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import posixpath
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from acp import RequestError
from acp.schema import TerminalOutputResponse
from msgspec.structs import replace

from toolcrib.acp.editor import EditorConnection, EditorRefused
from toolcrib.acp.tool_calls import read_text_file
from toolcrib.core.environments import (
    EVERY_LINE,
    BackendPath,
    CommandExit,
    CommandRequest,
    Environment,
    Execution,
    FileSlice,
    FileStatus,
    OnOutput,
    TerminalSize,
)
from toolcrib.core.errors import EnvironmentFailed, PathChanged
from toolcrib.environments.shell import EnvironmentFiles

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
BUFFER_BYTES = 10_000_000
"""Larger files are read from disk."""
MAX_KNOWN = 256
MARK = "\ufeff"
OUTPUT_SECONDS = 0.3
"""How often the output of a terminal is fetched."""
DAY_SECONDS = 86_400.0
OUTPUT_BYTES = 4_000_000
OVERLAP_CHARS = 1_000
KILLED = 137
# Everything below knows by the limit that no person started it; see config/tool_call_mark.py.
SCRIPT = 'ulimit -x 4611686018427387903 2>/dev/null; exec bash -c "$1"'


class BufferTexts:
    """What the tools last read from and wrote to the editor's buffers, for the diffs that it shows."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._replaced: dict[str, str] = {}

    def seen(self, path: str, text: str) -> None:
        self._texts[path] = text
        self._texts.move_to_end(path)
        if len(self._texts) > MAX_KNOWN:
            gone, _ = self._texts.popitem(last=False)
            self._replaced.pop(gone, None)

    def written(self, path: str, old: str, new: str) -> None:
        self._replaced[path] = old
        self.seen(path, new)

    def read(self, path: str) -> str | None:
        """The text of a file: of its buffer if we have just used it, else of the disk."""
        return self._texts[path] if path in self._texts else read_text_file(path)

    def replaced(self, path: str, before: str | None) -> str | None:
        """What the latest edit of a buffer replaced; `before` if none did."""
        return self._replaced.pop(path, before)


class EditorFiles:
    """The files of an environment of this machine, as the editor has them. Runs on the environment's loop.

    Only what tools read and write with a checked path (`plain`) goes through the editor; the rest are the
    environment's own files.
    """

    def __init__(
        self, inner: EnvironmentFiles, editor: EditorConnection, session_id: str, folder: str, texts: BufferTexts
    ) -> None:
        self._inner = inner
        self._editor = editor
        self._session_id = session_id
        self._inside = os.path.realpath(folder).rstrip("/") + "/"
        self._texts = texts

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        data = await self._inner.read_file(path, plain=plain)
        buffer = await self._buffer(path, data) if plain else None
        return data if buffer is None else buffer

    def _is_readable(self, path: str) -> bool:
        return self._editor.reads_files and path.startswith(self._inside)

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        if not plain or not self._is_readable(path):
            return await self._inner.read_lines(path, first=first, count=count, max_bytes=max_bytes, plain=plain)
        whole = await self._inner.read_lines(path, first=1, count=EVERY_LINE, max_bytes=BUFFER_BYTES, plain=True)
        buffer = await self._buffer(path, whole.data) if whole.at_end else None
        if buffer is None or buffer == whole.data:
            return await self._inner.read_lines(path, first=first, count=count, max_bytes=max_bytes, plain=True)
        return _slice(buffer, first, count, max_bytes, whole.status)

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        text = _text(data)
        is_editors = plain and self._editor.writes_files and path.startswith(self._inside)
        exists, before = await self._before(path) if is_editors and text is not None else (False, None)
        if text is None or before is None:
            await self._inner.write_file(path, data, mode=mode, expected=expected, plain=plain)
            return
        if expected is not None and expected != (hashlib.sha256(before).hexdigest() if exists else ""):
            raise PathChanged(f"{path!r} was changed in the editor meanwhile; read it again")
        if not exists:
            # An editor may not create the folders of a file.
            await self._inner.make_folder(BackendPath(posixpath.dirname(path)))
        request = self._editor.client.write_text_file(session_id=self._session_id, path=path, content=text)
        try:
            await self._editor.request(request, ANSWER_SECONDS)
        except EditorRefused as error:
            raise PermissionError(errno.EACCES, f"the editor did not write it ({error})", path) from error
        self._texts.written(path, _text(before) or "", text)

    async def _before(self, path: BackendPath) -> tuple[bool, bytes | None]:
        """Whether a file exists, and what an edit replaces; None for what is not text, which no editor can have."""
        try:
            before = await self.read_file(path, plain=True)
        except FileNotFoundError:
            return False, b""
        return True, before if _text(before) is not None else None

    async def _buffer(self, path: str, on_disk: bytes) -> bytes | None:
        """The text of the buffer as the file's bytes would be; None if the disk has to do."""
        known = _text(on_disk)
        if known is None or not self._is_readable(path) or len(on_disk) > BUFFER_BYTES:
            return None
        request = self._editor.client.read_text_file(session_id=self._session_id, path=path)
        try:
            text = (await self._editor.request(request, ANSWER_SECONDS)).content
        except EditorRefused as error:
            logger.info("the editor did not read %s, so the disk is used: %s", path, error)
            return None
        text = _as_on_disk(text, known)
        self._texts.seen(path, text)
        return text.encode("utf-8", "replace")

    # The disk alone

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        await self._inner.remove_file(path, expected=expected, plain=plain)

    async def remove_folder(self, path: BackendPath) -> None:
        await self._inner.remove_folder(path)

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        await self._inner.make_folder(path, mode=mode)

    async def make_link(self, path: BackendPath, target: str) -> None:
        await self._inner.make_link(path, target)

    async def list_folder(self, path: BackendPath) -> list[str]:
        return await self._inner.list_folder(path)

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        return await self._inner.status(path, follow_links=follow_links)

    async def upload(self, source: Path, target: BackendPath) -> None:
        await self._inner.upload(source, target)

    async def download(self, source: BackendPath, target: Path) -> None:
        await self._inner.download(source, target)


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _as_on_disk(text: str, on_disk: str) -> str:
    """An editor's text with the mark and the line ends of the file, which buffers do not show."""
    if "\r\n" in on_disk and "\r" not in text:
        windows = on_disk.count("\r\n") * 2 > on_disk.count("\n")
        if text == on_disk.replace("\r\n", "\n").removeprefix(MARK):
            return on_disk
        text = text.replace("\n", "\r\n") if windows else text
    return MARK + text if on_disk.startswith(MARK) and not text.startswith(MARK) else text


def _slice(data: bytes, first: int, count: int, max_bytes: int, status: FileStatus) -> FileSlice:
    lines = _lines(data)
    wanted = b"".join(lines[first - 1 : first - 1 + count])
    # The stamp of the file does not change with the buffer, and readers recognise a version by it.
    stamp = f"{status.stamp}.{hashlib.sha256(data).hexdigest()[:16]}"
    return FileSlice(
        data=wanted[:max_bytes],
        first=first,
        status=replace(status, size=len(data), stamp=stamp),
        at_end=first - 1 + count >= len(lines) and len(wanted) <= max_bytes,
        total_lines=len(lines),
    )


def _lines(data: bytes) -> list[bytes]:
    """The lines by LF alone, as on disk."""
    pieces = data.split(b"\n")
    last = pieces.pop()
    return [piece + b"\n" for piece in pieces] + ([last] if last else [])


class EditorTerminalRunner:
    """An environment whose foreground commands run in terminals of the editor; everything else is its own."""

    def __init__(
        self, environment: Environment, editor: EditorConnection, session_id: str, on_created: Callable[[str], None]
    ) -> None:
        """`on_created` hears the id of each terminal."""
        self._environment = environment
        self._editor = editor
        self._session_id = session_id
        self._on_created = on_created

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def as_environment(self) -> Environment:
        return cast(Environment, self)

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        cwd = request.cwd or self._environment.cwd
        asked = self._editor.client.create_terminal(
            session_id=self._session_id,
            command="bash",
            args=["-c", SCRIPT, "toolcrib", request.command],
            cwd=cwd or None,
            output_byte_limit=OUTPUT_BYTES,
        )
        try:
            created = await self._editor.request(asked, ANSWER_SECONDS)
        except EditorRefused as error:
            if not isinstance(error.__cause__, RequestError):
                raise EnvironmentFailed(f"the command may have started in a terminal of the editor: {error}") from error
            # Nothing has run, so it runs in our own shell.
            return await self._environment.start(request, on_output)
        self._on_created(created.terminal_id)
        return EditorTerminal(self._editor, self._session_id, created.terminal_id, on_output)


class EditorTerminal:
    """A command in a terminal of the editor; see Execution."""

    pid: int | None = None

    def __init__(self, editor: EditorConnection, session_id: str, terminal_id: str, on_output: OnOutput) -> None:
        self.id = terminal_id
        self._editor = editor
        self._at = {"session_id": session_id, "terminal_id": terminal_id}
        self._on_output = on_output
        self._taken = 0
        self._last = ""
        self._was_killed = False
        self._ended = asyncio.ensure_future(self._follow())

    async def _follow(self) -> CommandExit:
        waiting = asyncio.ensure_future(
            self._editor.request(self._editor.client.wait_for_terminal_exit(**self._at), DAY_SECONDS)
        )
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=OUTPUT_SECONDS)
                self._take(await self._output())
            ended = waiting.result()
            self._take(await self._output())
        except EditorRefused as error:
            return CommandExit(exit_code=255, reason="lost", note=f"the terminal of the editor was lost: {error}")
        finally:
            waiting.cancel()
            with contextlib.suppress(EditorRefused):
                await self._editor.request(self._editor.client.release_terminal(**self._at), ANSWER_SECONDS)
        code = ended.exit_code if ended.exit_code is not None else KILLED
        return CommandExit(exit_code=code, reason="killed" if self._was_killed else "exited")

    async def _output(self) -> TerminalOutputResponse:
        return await self._editor.request(self._editor.client.terminal_output(**self._at), ANSWER_SECONDS)

    def _take(self, found: TerminalOutputResponse) -> None:
        """Pass on what is new. A long output loses its beginning, so what came last is looked for."""
        at = found.output.rfind(self._last) if found.truncated else self._taken - len(self._last)
        new = found.output[at + len(self._last) :] if at >= 0 else found.output
        if new:
            self._taken = len(found.output)
            self._last = found.output[-OVERLAP_CHARS:]
            self._on_output(new.encode("utf-8", "replace"))

    async def wait(self) -> CommandExit:
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        raise BrokenPipeError("a terminal of the editor takes no input from us")

    async def close_input(self) -> None:
        return None

    async def resize(self, size: TerminalSize) -> None:
        return None

    async def terminate(self, grace_seconds: float = 1.0) -> None:
        if self._ended.done():
            return
        self._was_killed = True
        try:
            await self._editor.request(self._editor.client.kill_terminal(**self._at), ANSWER_SECONDS)
        except EditorRefused as error:
            raise EnvironmentFailed(f"the editor did not stop the command: {error}") from error
        await self.wait()

    async def settled(self) -> None:
        await self.wait()

    async def waits_for_input(self) -> bool:
        return False

    async def abandon(self) -> None:
        self._ended.cancel()
