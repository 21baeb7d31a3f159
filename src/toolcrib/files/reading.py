"""The tool `read_file`: numbered lines of a file in the session's environment; also images and documents.

A separate process with limits on time and memory extracts the text of PDFs, notebooks and office files.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment, EnvironmentSpec, ExecutionTarget, FileSlice, FileStatus
from toolcrib.core.errors import PathChanged, ToolcribError, UsageError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files import file_types
from toolcrib.files.file_types import DocumentKind
from toolcrib.files.paths import at_target, file_effects, in_words, is_a_folder, no_such_file, why_never_read
from toolcrib.files.text_files import NotText, decoded, in_older_encoding
from toolcrib.files.views import FileViews, digest_of
from toolcrib.processes.service import session_key_of
from toolcrib.registry.results import tool_error, tool_result

MEGABYTE = 1024 * 1024
MAX_DOCUMENT_BYTES = 50 * MEGABYTE
MAX_TEXT_CHARS = 10_000_000
MEMORY_BYTES = 1024 * MEGABYTE
SECONDS = 30
KEPT_CHARS = 20_000_000
"""How much text is cached for the next part that is read."""
INSTALL = "pip install 'toolcrib[documents]'"
_PROGRAM = Path(__file__).with_name("document_text.py")


class DocumentFailed(ToolcribError):
    """The text of a document cannot be extracted; the message says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class DocumentText:
    text: str
    note: str = ""
    """A remark for the model."""


class DocumentTexts:
    """Extracts the texts of documents, and caches the latest by version. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, DocumentText] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, key: Hashable) -> DocumentText | None:
        with self._lock:
            return self._kept.get(key)

    async def text(self, kind: DocumentKind, data: bytes, key: Hashable) -> DocumentText:
        """The text of a document; raises DocumentFailed."""
        found = await asyncio.to_thread(take_text, kind, data)
        self.keep(key, found)
        return found

    def keep(self, key: Hashable, found: DocumentText) -> None:
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > 1 and sum(len(one.text) for one in self._kept.values()) > KEPT_CHARS:
                self._kept.popitem(last=False)


def take_text(
    kind: DocumentKind, data: bytes, *, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES
) -> DocumentText:
    """The text of a document; raises DocumentFailed. Blocks, for no longer than `seconds`."""
    limits = [str(number) for number in (memory_bytes, max(1, round(seconds)), MAX_TEXT_CHARS)]
    command = [sys.executable, "-I", "-X", "utf8", str(_PROGRAM), kind, *limits]
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        try:
            done = subprocess.run(
                command,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DocumentFailed(f"reading it took longer than {seconds:g} seconds") from None
    head, newline, text = done.stdout.partition(b"\n")
    if not newline:
        raise DocumentFailed("its reader was stopped: it is damaged, or made to use up time or memory")
    said = json.loads(head)
    if error := failure(said):
        raise error
    return DocumentText(text.decode(errors="replace"), said["note"])


def failure(said: Mapping[str, str]) -> DocumentFailed | None:
    """The failure that the first line of the reader's output reports, if any."""
    if "missing" in said:
        return DocumentFailed(f"that needs the package {said['missing']!r}; run `{INSTALL}`")
    return DocumentFailed(said["error"]) if "error" in said else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowLimits:
    """How much is shown at once."""

    max_line_length: int
    max_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLines:
    """Some lines, formatted for the model."""

    content: str
    lines: int
    """How many of the given lines it contains."""
    cut: bool
    """Whether it contains an incomplete line."""


def show(lines: Sequence[str], first: int, limits: ShowLimits, *, last_goes_on: bool = False) -> ShownLines:
    """As many lines as fit, at least one; with `last_goes_on`, the last line is longer than what is given."""
    shown: list[str] = []
    used, cut = 0, False
    for index, line in enumerate(lines):
        goes_on = last_goes_on and index == len(lines) - 1
        text, was_cut = _one(first + index, line, limits.max_line_length, goes_on)
        if shown and used + 1 + len(text) > limits.max_chars:
            break
        if len(text) > limits.max_chars:
            text, was_cut = _one(first + index, line, max(1, limits.max_chars - 60), goes_on)
        shown.append(text)
        used += len(text) + (len(shown) > 1)
        cut = cut or was_cut
    return ShownLines(content="\n".join(shown), lines=len(shown), cut=cut)


def _one(number: int, line: str, max_length: int, goes_on: bool) -> tuple[str, bool]:
    missing = max(0, len(line) - max_length)
    if not missing and not goes_on:
        return f"{number:>6}|{line}", False
    more = f"{missing} or more" if goes_on else str(missing)
    return f"{number:>6}|{line[:max_length]} … [{more} characters of this line left out]", True


def part_as_text(data: bytes, *, is_cut: bool) -> tuple[str, str]:
    """The text of some lines of a file, and the encoding that was assumed."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut), "utf-8"
    except UnicodeDecodeError:
        return in_older_encoding(data)


def split_lines(text: str) -> tuple[list[str], str]:
    """The lines without their ends, and which ends they have: lf, crlf, mixed or cr; lf if there are none.

    A text whose lines end with CR alone has no other line ends: otherwise a CR inside a line is part of it.
    """
    end = "\n" if "\n" in text or "\r" not in text else "\r"
    lines = text.split(end)
    if lines[-1] == "":
        lines.pop()
    if end == "\r":
        return lines, "cr"
    windows = text.count("\r\n")
    if not windows:
        return lines, "lf"
    return [line.removesuffix("\r") for line in lines], "crlf" if windows == text.count("\n") else "mixed"


MAX_IMAGE_BYTES = 3_750_000
"""Model servers refuse larger images: in Base64 this becomes their limit of five megabytes."""
MAX_WHOLE_BYTES = 32 * MEGABYTE
"""The limit for a file that must be read as a whole, because its lines cannot be found by their bytes."""
BYTES_PER_CHAR = 4
LEAST_BYTES = 1024 * 1024


Listen = Callable[[bytes], Awaitable[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One call of the tool."""

    spec: EnvironmentSpec
    session_key: str
    listen: Listen
    """Recognises the speech of an audio file."""
    first: int
    count: int
    repeats_are_short: bool
    """Whether the result goes to a model, which has seen the last one; a script has not."""


class FileReader:
    """Reads files for one Runtime, on any loop."""

    def __init__(self, settings: Settings, views: FileViews) -> None:
        output = settings.tool_output
        self._home = settings.home
        self._max_lines = output.max_lines
        self._limits = ShowLimits(max_line_length=output.max_line_length, max_chars=settings.file_read_max_chars)
        self._max_bytes = max(LEAST_BYTES, settings.file_read_max_chars * BYTES_PER_CHAR)
        self._views = views
        self._documents = DocumentTexts()

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        # Listening to an audio file may mean to send it to a service.
        listening = ctx.services.speech.transcription_effects() if file_types.sounds(args["path"]) else ()
        return (*file_effects("read", [args["path"]], ctx), *listening)

    async def read(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject:
        """The result of one call, as the model gets it."""
        terminal = ctx.services.terminal
        where: ExecutionTarget = terminal.execution_target(ctx)
        try:
            effect, *listening = ctx.effects if ctx.effects is not None else self.effects(args, ctx)
            request = ReadRequest(
                listen=lambda data: ctx.services.speech.transcribe(data, may_send=bool(listening)),
                spec=where.spec,
                session_key=session_key_of(ctx),
                first=args.get("offset") or 1,
                count=min(args.get("limit") or self._max_lines, self._max_lines),
                repeats_are_short="/" not in ctx.call_id,
            )
            answer: str | JsonObject = await terminal.work_in(
                where.spec,
                lambda environment: at_target(
                    effect, environment, lambda path: self._read(request, path, environment, where.is_here)
                ),
            )
        except ToolcribError as error:
            return tool_error(error)
        return answer

    async def read_bytes(self, path: str, ctx: ToolContext, max_bytes: int) -> bytes:
        """All of a file; raises UsageError for an unreadable one, and PathChanged for one that was not approved."""
        where: ExecutionTarget = ctx.services.terminal.execution_target(ctx)
        (effect,) = file_effects("read", [path], ctx)
        if ctx.effects is not None and effect not in ctx.effects:
            raise PathChanged(f"{path!r} leads to another file than a moment ago; try again")

        async def read_at(found: BackendPath, environment: Environment) -> bytes:
            if why := why_never_read(found, self._home, is_here=where.is_here):
                raise UsageError(f"{path!r} is not read: {why}")
            try:
                part = await environment.read_lines(found, first=1, count=64, max_bytes=max_bytes, plain=True)
                data = await _everything(found, environment, part, max_bytes)
            except FileNotFoundError:
                message, near = await no_such_file(found, environment)
                raise UsageError(f"{message}; did you mean {near[0]!r}?" if near else message) from None
            except OSError as error:
                raise UsageError(f"{path!r} cannot be read: {in_words(error, found)}") from error
            if data is None:
                raise UsageError(f"{path!r} has {part.status.size} bytes; at most {max_bytes} can be read")
            return data

        return await ctx.services.terminal.work_in(
            where.spec, lambda environment: at_target(effect, environment, lambda found: read_at(found, environment))
        )

    async def _read(
        self, request: ReadRequest, path: BackendPath, environment: Environment, is_here: bool
    ) -> str | JsonObject:
        if why := why_never_read(path, self._home, is_here=is_here):
            return tool_error(f"{path!r} is not read: {why}")
        try:
            return await self._read_file(request, path, environment)
        except FileNotFoundError:
            message, near = await no_such_file(path, environment)
            return tool_error(message, **({"did_you_mean": near} if near else {}))
        except IsADirectoryError:
            message, names = await is_a_folder(path, environment)
            return tool_error(message, entries=names)
        except OSError as error:
            return tool_error(f"{path!r} cannot be read: {in_words(error, path)}")

    async def _read_file(self, request: ReadRequest, path: BackendPath, environment: Environment) -> str | JsonObject:
        # The first bytes tell what a file is, and the first lines are usually the ones requested.
        count, max_bytes = (request.count, self._max_bytes) if request.first == 1 else (64, file_types.HEAD_BYTES)
        part = await environment.read_lines(path, first=1, count=count, max_bytes=max_bytes, plain=True)
        head = part.data[: file_types.HEAD_BYTES]
        if media_type := file_types.image_type(head):
            return await self._image(request, path, environment, part, media_type)
        if (kind := file_types.document_kind(path, head)) and (
            answer := await self._document(request, path, environment, part, kind)
        ):
            return answer
        if binary := file_types.binary_type(head):
            if file_types.sounds(path):
                return await self._audio(request, path, environment, part, binary)
            note = "binary content is not shown; inspect it with commands in the terminal"
            return tool_result(path=path, binary=True, type=binary, size=part.status.size, note=note)
        if file_types.is_wide(head) or (b"\r" in head and b"\n" not in part.data):
            return await self._whole_text(request, path, environment, part)
        if request.first > 1:
            part = await environment.read_lines(
                path, first=request.first, count=request.count, max_bytes=self._max_bytes, plain=True
            )
        return self._lines(request, path, part)

    def _lines(self, request: ReadRequest, path: BackendPath, part: FileSlice) -> str:
        """Lines of a file in which lines can be found by their bytes."""
        is_cut = len(part.data) == self._max_bytes and not part.at_end and not part.data.endswith(b"\n")
        text, encoding = part_as_text(part.data, is_cut=is_cut)
        if request.first == 1 and text.startswith("\ufeff"):
            text, encoding = text[1:], "utf-8-sig"
        # A zero byte in the middle of a text cannot be sent to a model.
        lines, line_ends = split_lines(text.replace("\0", "\ufffd"))
        digest = digest_of(part.data) if request.first == 1 and part.at_end else ""
        found = FoundLines(
            lines=lines,
            total=part.total_lines if lines or request.first > 1 else 0,
            at_end=part.at_end,
            last_goes_on=is_cut,
            digest=digest,
            facts=_facts(encoding, line_ends),
        )
        return self._answer(request, path, part.status, found)

    async def _whole_text(
        self, request: ReadRequest, path: BackendPath, environment: Environment, part: FileSlice
    ) -> str:
        """Lines of a file that must be decoded as a whole."""
        data = await _everything(path, environment, part, MAX_WHOLE_BYTES)
        if data is None:
            what = "convert it to UTF-8 with iconv in the terminal, and read that"
            return tool_error(f"{path!r} is too large for its encoding or line ends; {what}")
        try:
            file = decoded(data)
        except NotText as error:
            return tool_error(f"{path!r} cannot be read as text: {error}")
        lines, line_ends = split_lines(file.raw)
        found = _found(lines, request, digest=digest_of(data), facts=_facts(file.encoding.name, line_ends))
        return self._answer(request, path, part.status, found)

    async def _document(
        self,
        request: ReadRequest,
        path: BackendPath,
        environment: Environment,
        part: FileSlice,
        kind: file_types.DocumentKind,
    ) -> str:
        """Lines of the text of a document; empty for a broken notebook, which must be read as it is to be repaired."""
        key = (request.spec, path, part.status.stamp)
        text = self._documents.known(key) if part.status.stamp else None
        if text is None:
            data = await _everything(path, environment, part, MAX_DOCUMENT_BYTES)
            if data is None:
                return tool_error(f"{path!r} has {part.status.size} bytes, too many to extract its text")
            try:
                text = await self._documents.text(kind, data, key)
            except DocumentFailed as error:
                if kind == "ipynb":
                    return ""
                return tool_error(f"cannot extract the text of {path!r}: {error}")
        lines, _ = split_lines(text.text)
        facts = {"document": kind, **({"note": text.note} if text.note else {})}
        return self._answer(request, path, part.status, _found(lines, request, facts=facts))

    async def _audio(
        self, request: ReadRequest, path: BackendPath, environment: Environment, part: FileSlice, kind: str
    ) -> str:
        """Lines of what is said in an audio file."""
        key = (request.spec, path, part.status.stamp)
        text = self._documents.known(key) if part.status.stamp else None
        if text is None:
            data = await _everything(path, environment, part, MAX_DOCUMENT_BYTES)
            try:
                if data is None:
                    raise DocumentFailed(f"it has more than {MAX_DOCUMENT_BYTES} bytes")
                said, listener = await request.listen(data)
            except ToolcribError as error:
                note = f"what is said in it is not known: {error}"
                return tool_result(path=path, binary=True, type=kind, size=part.status.size, note=note)
            text = DocumentText(said, f"this is what {listener} understood of the speech in it")
            self._documents.keep(key, text)
        lines, _ = split_lines(text.text)
        return self._answer(
            request, path, part.status, _found(lines, request, facts={"audio": kind, "note": text.note})
        )

    async def _image(
        self, request: ReadRequest, path: BackendPath, environment: Environment, part: FileSlice, media_type: str
    ) -> str | JsonObject:
        """An image for models that can see."""
        if self._is_repeat(request, path, part.status):
            return _unchanged(request, path)
        data = await _everything(path, environment, part, MAX_IMAGE_BYTES)
        if data is None:
            return tool_error(
                f"the image {path!r} has {part.status.size} bytes, but models accept at most {MAX_IMAGE_BYTES}; "
                "make a smaller copy with a command in the terminal, and read that"
            )
        if file_types.is_cut_off(media_type, data):
            note = "it is not shown, because its end is missing: it is damaged or still being written"
            return tool_result(path=path, binary=True, type=media_type, size=len(data), note=note)
        about = tool_result(path=path, type=media_type, size=len(data))
        address = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
        content = [{"type": "text", "text": about}, {"type": "image_url", "image_url": {"url": address}}]
        return {"_multimodal": True, "content": content}

    def _answer(self, request: ReadRequest, path: BackendPath, status: FileStatus, found: FoundLines) -> str:
        if not found.lines and request.first > 1:
            has = f"it has {found.total} lines" if found.total is not None else "it ends before that line"
            return tool_error(f"there is no line {request.first} in {path!r}: {has}")
        shown = show(found.lines, request.first, self._limits, last_goes_on=found.last_goes_on)
        is_short = shown.lines < len(found.lines)
        is_whole = request.first == 1 and found.at_end and not is_short and not shown.cut
        key = (request.session_key, request.spec, path)
        is_repeat = self._is_repeat(request, path, status)
        self._views.seen(*key, status.stamp, is_whole, digest=found.digest)
        if is_repeat:
            return _unchanged(request, path)
        answer: JsonObject = {"path": path, "first_line": request.first, "lines": shown.lines}
        if found.total is not None:
            answer["total_lines"] = found.total
        answer |= {"size": status.size, **found.facts}
        next_line = request.first + shown.lines
        if is_short or not found.at_end:
            answer["truncated"] = True
            if found.total is None or next_line <= found.total:
                answer["next_offset"] = next_line
        if not found.lines:
            answer["note"] = "it contains no text" if status.size else "the file is empty"
        return tool_result({**answer, "content": shown.content})

    def _is_repeat(self, request: ReadRequest, path: BackendPath, status: FileStatus) -> bool:
        """Whether the model got this part last time; every other time it gets it again, because it may have lost it."""
        # Kernel files have no size, and change without notice.
        if not request.repeats_are_short or not status.stamp or not status.size:
            return False
        part = (request.first, request.count)
        times = self._views.times_shown(request.session_key, request.spec, path, status.stamp, part)
        return times % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLines:
    """The requested lines, and what is known about the text that they come from."""

    lines: Sequence[str]
    total: int | None
    at_end: bool
    last_goes_on: bool = False
    """Whether the last line is incomplete."""
    digest: str = ""
    """The digest of the whole file, if all of it was read."""
    facts: JsonObject = field(default_factory=dict)
    """More keys for the result."""


def _found(lines: Sequence[str], request: ReadRequest, *, digest: str = "", facts: JsonObject) -> FoundLines:
    """The requested part of all lines."""
    end = request.first - 1 + request.count
    return FoundLines(
        lines=lines[request.first - 1 : end],
        total=len(lines),
        at_end=end >= len(lines),
        digest=digest,
        facts=facts,
    )


def _facts(encoding: str, line_ends: str) -> JsonObject:
    """What is unusual about a text."""
    facts = {"encoding": encoding, "line_ends": line_ends}
    return {name: value for name, value in facts.items() if value not in ("utf-8", "lf")}


def _unchanged(request: ReadRequest, path: BackendPath) -> str:
    note = "nothing has changed since you read these lines; if you no longer have them, read them again"
    return tool_result(unchanged=True, path=path, first_line=request.first, note=note)


async def _everything(path: BackendPath, environment: Environment, part: FileSlice, max_bytes: int) -> bytes | None:
    """All of a file; None when it is larger than `max_bytes`."""
    if part.first == 1 and part.at_end:
        return part.data if len(part.data) <= max_bytes else None
    if part.status.size > max_bytes:
        return None
    every_line = await environment.read_lines(path, first=1, count=max_bytes + 1, max_bytes=max_bytes, plain=True)
    return every_line.data if every_line.at_end else None
