"""File edits: the current content, whether the model has seen it, the write itself, and the result for the model.

`write_file` is here as a whole. `patch` uses the same steps, and commits the edits of several files all or none. Both
show unified diffs, which are bounded in work and in length.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import posixpath
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from toolcrib.approval.paths import PathScope, SensitivePaths
from toolcrib.core.content_digest import digest_of
from toolcrib.core.context import CallMemo, ToolContext
from toolcrib.core.environments import EVERY_LINE, BackendPath, Environment, ExecutionTarget
from toolcrib.core.errors import PathChanged, ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files.paths import at_target, file_effects, in_words
from toolcrib.files.syntax import find_problem
from toolcrib.files.text_files import NotEncodable, NotText, TextFile, decoded, in_place_of, line_count
from toolcrib.files.views import FileView, FileViews
from toolcrib.processes.service import session_key_of
from toolcrib.registry.results import tool_error, tool_result

CONTEXT_LINES = 3
MAX_LINES = 80
MAX_CHARS = 6_000
MAX_LINE_CHARS = 500
MAX_COMPARED = 4_000_000
"""How many pairs of lines are compared at most; a larger change is shown as one block."""
MAX_CHANGED_CHARS = 400_000
"""A longer change is not shown at all."""
COMPARED_CHARS = 1_024
"""How much of two texts is compared first."""
NO_LINE_END = "\n\\ No newline at end of file"


class DiffTooLarge(ValueError):
    """The changed part of a text is too long to be shown."""


def unified_diff(old: str | None, new: str | None, name: str, moved_to: str = "") -> str:
    """The changes between two texts with LF line ends, shortened when they are long; None stands for a missing file.

    Empty when nothing changed. `moved_to` is the new name of a moved file. Raises DiffTooLarge.
    """
    part = _changed_part(old or "", new or "")
    if len(part.before) + len(part.after) > MAX_CHANGED_CHARS:
        raise DiffTooLarge
    first = (old or "").count("\n", 0, part.start)
    before, after = _lines(part.before), _lines(part.after)
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    old_name = "/dev/null" if old is None else f"a/{name.lstrip('/')}"
    new_name = "/dev/null" if new is None else f"b/{(moved_to or name).lstrip('/')}"
    if head == len(before) == len(after):
        is_same = (old is None) == (new is None) and not moved_to
        return "" if is_same else f"--- {old_name}\n+++ {new_name}\n"
    start = max(0, head - CONTEXT_LINES)
    before = before[start : len(before) - max(0, tail - CONTEXT_LINES)]
    after = after[start : len(after) - max(0, tail - CONTEXT_LINES)]
    if len(before) * len(after) <= MAX_COMPARED:
        shown: Iterable[str] = _hunks(before, after, first + start)
    else:
        shown = _one_block(before, after, first + start, head - start, min(tail, CONTEXT_LINES))
    return "\n".join([f"--- {old_name}", f"+++ {new_name}", *_cut(shown)]) + "\n"


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """The lines in which two texts differ, with some context."""

    start: int
    """Where they start in both texts."""
    before: str
    after: str


def _changed_part(old: str, new: str) -> ChangedPart:
    """Leave out what two texts share at both ends: splitting large texts into lines would take long."""
    shortest = min(len(old), len(new))
    start = old.rfind("\n", 0, _common_length(old, new, shortest)) + 1
    tail = _common_length(old, new, shortest - start, from_end=True)
    line_end = old.find("\n", len(old) - tail) if tail else -1
    tail = len(old) - line_end - 1 if line_end >= 0 else 0
    for _ in range(CONTEXT_LINES):
        start = old.rfind("\n", 0, max(0, start - 1)) + 1
        line_end = old.find("\n", len(old) - tail) if tail else -1
        tail = len(old) - line_end - 1 if line_end >= 0 else 0
    return ChangedPart(start, old[start : len(old) - tail], new[start : len(new) - tail])


def _common_length(one: str, other: str, most: int, *, from_end: bool = False) -> int:
    """How many characters two texts share at the beginning, or at the end; counts up to `most`."""

    def is_same(start: int, end: int) -> bool:
        if from_end:
            return one[len(one) - end : len(one) - start] == other[len(other) - end : len(other) - start]
        return one[start:end] == other[start:end]

    # In growing steps: halving all of it would copy large texts that differ in their first line.
    low, step = 0, COMPARED_CHARS
    while low < most and is_same(low, min(low + step, most)):
        low, step = min(low + step, most), step * 2
    high = min(low + step, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_same(low, middle) else (low, middle - 1)
    return low


def _lines(text: str) -> list[str]:
    """The lines without their ends; a last line without an end is marked, so that it differs from one with an end."""
    lines = text.split("\n")
    if lines[-1]:
        return [*lines[:-1], lines[-1] + NO_LINE_END]
    return lines[:-1]


def _common(one: list[str], other: list[str]) -> int:
    """How many lines are the same at the beginning."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _hunks(before: list[str], after: list[str], start: int) -> Iterable[str]:
    for group in difflib.SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT_LINES):
        first, last = group[0], group[-1]
        yield _heading(start, first[1], last[2], first[3], last[4])
        for kind, old_from, old_to, new_from, new_to in group:
            if kind == "equal":
                yield from (f" {line}" for line in before[old_from:old_to])
                continue
            yield from (f"-{line}" for line in before[old_from:old_to])
            yield from (f"+{line}" for line in after[new_from:new_to])


def _one_block(before: list[str], after: list[str], start: int, head: int, tail: int) -> Iterable[str]:
    yield _heading(start, 0, len(before), 0, len(after))
    yield from (f" {line}" for line in before[:head])
    yield from (f"-{line}" for line in before[head : len(before) - tail])
    yield from (f"+{line}" for line in after[head : len(after) - tail])
    yield from (f" {line}" for line in before[len(before) - tail :])


def _heading(start: int, old_from: int, old_to: int, new_from: int, new_to: int) -> str:
    return f"@@ -{_range(start, old_from, old_to)} +{_range(start, new_from, new_to)} @@"


def _range(start: int, first: int, end: int) -> str:
    length = end - first
    # Like diff, name the line before an empty range.
    return f"{start + first + (length > 0)},{length}"


def _cut(lines: Iterable[str]) -> Iterable[str]:
    left, room = 0, MAX_CHARS
    for number, line in enumerate(lines):
        if number >= MAX_LINES or room <= 0:
            left += 1
            continue
        shown = line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"
        room -= len(shown)
        yield shown
    if left:
        yield f"… {left} more lines"


T = TypeVar("T")

MAX_EDITED_BYTES = 32 * 1024 * 1024
HIDDEN_DIFF = "the diff is not shown, because the file may contain secrets"
LONG_DIFF = "the diff is not shown, because the change is too large"
SAME_CONTENT = "the file already has exactly this content; nothing was written"
AS_BEFORE = "as before"


class EditRefused(ToolcribError):
    """An edit that was not made; nothing has changed. `details` are further keys of the result."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True, kw_only=True)
class FileVersion:
    """A file before or after an edit. What can be computed from its content is computed once."""

    path: BackendPath
    data: bytes | None = None
    """None for a missing file."""
    mode: int | None = None
    stamp: str = ""
    file: TextFile | None = None
    """What the content decodes to, if that is known already."""
    memo: CallMemo | None = field(default=None, repr=False, compare=False)
    """What is known in the call that edits it."""

    @functools.cached_property
    def digest(self) -> str:
        """As `Environment.write_file(expected=…)` takes it."""
        return "" if self.data is None else digest_of(self.data, self.memo).hex()

    @functools.cached_property
    def _decoded(self) -> TextFile | NotText:
        if self.file is not None:
            return self.file
        try:
            return decoded(self.data or b"")
        except NotText as error:
            return error

    @property
    def text(self) -> str | None:
        """The text as a model sees it; None for a missing or binary file."""
        return self._decoded.text if self.data is not None and isinstance(self._decoded, TextFile) else None

    @property
    def is_binary(self) -> bool:
        return not isinstance(self._decoded, TextFile)

    @functools.cached_property
    def line_count(self) -> int:
        return (self.data or b"").count(b"\n") if self.text is None else line_count(self.text)

    def as_text_file(self) -> TextFile:
        """Raises EditRefused for a binary or missing file."""
        if self.data is None:
            raise EditRefused(f"there is no file {self.path!r}")
        if isinstance(self._decoded, NotText):
            raise EditRefused(f"{self.path!r} cannot be edited as text: {self._decoded}") from self._decoded
        return self._decoded

    def edited(self, file: TextFile) -> FileVersion:
        """The version with this text; raises EditRefused when the text cannot be encoded."""
        try:
            return _version_of(self.path, file, self.memo)
        except NotEncodable as error:
            raise EditRefused(f"{self.path!r} was not written: {error}") from error


def _version_of(path: BackendPath, file: TextFile, memo: CallMemo | None) -> FileVersion:
    """A file with this text; raises NotEncodable."""
    return FileVersion(path=path, data=file.encoded(), file=file if file.decodes_as_it_is else None, memo=memo)


class Editor:
    """The edits of one call: acts on the effects that were approved, in the environment of the session."""

    def __init__(self, ctx: ToolContext, views: FileViews) -> None:
        self._terminal = ctx.services.terminal
        self._where: ExecutionTarget = self._terminal.execution_target(ctx)
        self._session = session_key_of(ctx)
        self._views = views
        self._memo = ctx.memo

    async def work(self, work: Callable[[Environment], Awaitable[T]]) -> T:
        """Do some work in the environment of the session."""
        result: T = await self._terminal.work_in(self._where.spec, work)
        return result

    def name_of(self, path: str) -> str:
        """A path relative to the current folder of the session, if it is in it."""
        folder = self._where.folder.rstrip("/") + "/"
        return path.removeprefix(folder) if folder != "/" else path

    async def look(self, effect: Effect, environment: Environment) -> FileVersion:
        """The file that the effect would change; raises EditRefused for anything but a file of moderate size."""
        if effect.kind == "delete":
            await _refuse_link(effect, environment)
        return await at_target(effect, environment, lambda path: _current(path, environment, self._memo))

    def check_seen(self, current: FileVersion) -> FileView | None:
        """What the model has seen of the current version; raises EditRefused when it has seen another one."""
        view = self._views.last(self._session, self._where.spec, current.path)
        if view is None or current.data is None:
            return None
        if not view.is_of(current.stamp, current.digest):
            raise EditRefused(f"{current.path!r} has changed since you last read it; read it again, then edit it")
        # From now on identify it by its content: another program may write the same content again.
        self._views.seen(
            self._session, self._where.spec, current.path, current.stamp, view.whole, digest=current.digest
        )
        return view

    def remember(self, new: FileVersion, *, whole: bool) -> None:
        """Note what the model knows about a file after an edit."""
        view = self._views.last(self._session, self._where.spec, new.path)
        if new.data is None:
            self._views.forget(self._session, self._where.spec, new.path)
        elif whole or view is not None:
            whole = whole or (view is not None and view.whole)
            self._views.seen(self._session, self._where.spec, new.path, "", whole, digest=new.digest)

    async def diff(self, old: FileVersion, new: FileVersion) -> JsonObject:
        """The key `diff` of a result, or a `note` that says why it is missing."""
        if holds_secrets(old.path) or holds_secrets(new.path):
            return {"note": HIDDEN_DIFF}
        if old.is_binary or new.is_binary:
            return {}
        moved_to = self.name_of(new.path) if new.path != old.path else ""
        try:
            diff = await asyncio.to_thread(unified_diff, old.text, new.text, self.name_of(old.path), moved_to)
        except DiffTooLarge:
            return {"note": LONG_DIFF}
        return {"diff": diff} if diff else {}


async def _current(path: BackendPath, environment: Environment, memo: CallMemo | None) -> FileVersion:
    try:
        part = await environment.read_lines(path, first=1, count=EVERY_LINE, max_bytes=MAX_EDITED_BYTES, plain=True)
    except (FileNotFoundError, NotADirectoryError):
        return FileVersion(path=path, memo=memo)
    except OSError as error:
        raise EditRefused(f"{path!r} cannot be edited: {in_words(error, path)}") from error
    if not part.at_end:
        megabytes = MAX_EDITED_BYTES // (1024 * 1024)
        raise EditRefused(f"{path!r} is larger than {megabytes} MB; edit it with a command in the terminal")
    return FileVersion(path=path, data=part.data, mode=part.status.mode, stamp=part.status.stamp, memo=memo)


async def _refuse_link(effect: Effect, environment: Environment) -> None:
    """Deleting a link deletes the link itself, and a patch cannot know its content."""
    status = await environment.status(BackendPath(effect.target), follow_links=False)
    if status is not None and status.kind == "link":
        raise EditRefused(f"{effect.target!r} is a link; remove or move it with a command in the terminal")


def holds_secrets(path: str) -> bool:
    """Whether reading the file would need an approval; an edit must not show its content then."""
    scope = PathScope(cwd="/", workspace="", home=str(Path.home()), real=str)
    return SensitivePaths("").is_secret(path, scope)


async def syntax_problem(old: FileVersion, new: FileVersion, environment: Environment) -> str:
    """What a syntax check says about a file that was written; empty when there is nothing to say."""
    problem = await _check(new.path, new, environment)
    if not problem or problem.startswith("not checked") or old.data is None:
        return problem
    before = await _check(new.path, old, environment)
    if before and not before.startswith("not checked"):
        return f"{problem}; the file did not pass before this edit, either"
    return problem


async def _check(path: str, version: FileVersion, environment: Environment) -> str:
    return "" if version.text is None else await find_problem(path, version.text, environment)


def joined_notes(*notes: str) -> JsonObject:
    """The key `note` of a result, if there is anything to say."""
    said = "; ".join(filter(None, notes))
    return {"note": said} if said else {}


# write_file


def write_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """A write to the path of a call; none for an impossible path, which the call itself reports."""
    try:
        return file_effects("write", [args["path"]], ctx)
    except ToolcribError:
        return ()


async def write_file(args: JsonObject, ctx: ToolContext, views: FileViews) -> str:
    """The result of one call, as the model gets it."""
    editor = Editor(ctx, views)
    try:
        effect = approved_write(args["path"], ctx)
        return tool_result(await editor.work(lambda environment: _write(args["content"], effect, editor, environment)))
    except EditRefused as error:
        return tool_error(error, **error.details)
    except ToolcribError as error:
        return tool_error(error)


async def preview_write(args: JsonObject, ctx: ToolContext, views: FileViews) -> str:
    """The diff that a call would make, or why it is not shown; empty for a call that would fail."""
    editor = Editor(ctx, views)

    async def work(environment: Environment) -> JsonObject:
        (effect,) = file_effects("write", [args["path"]], ctx)
        old = await editor.look(effect, environment)
        return await editor.diff(old, _new_version(args["content"], old)[0])

    return preview_text(await editor.work(work))


def preview_text(*shown: JsonObject) -> str:
    """What a question shows of the changes: their diffs, or the notes in place of those."""
    return "\n".join(str(one.get("diff") or one.get("note") or "").rstrip("\n") for one in shown if one)


def approved_write(path: str, ctx: ToolContext) -> Effect:
    """The one write that was approved."""
    if ctx.effects is None or len(ctx.effects) != 1 or ctx.effects[0].kind != "write":
        # Raises the reason why the effect could not be determined.
        file_effects("write", [path], ctx)
        raise EditRefused("a write to this path was not approved; call the tool again")
    return ctx.effects[0]


async def _write(content: str, effect: Effect, editor: Editor, environment: Environment) -> JsonObject:
    old = await editor.look(effect, environment)
    new, notes = _new_version(content, old)
    if new.data == old.data:
        editor.remember(new, whole=True)
        return {"path": old.path, "changed": False, "note": SAME_CONTENT}
    if old.data is not None:
        view = editor.check_seen(old)
        if view is None or not view.whole:
            how = "had not been read" if view is None else "had been read only in part"
            notes.append(f"replaced an existing {_size_of(old)} that {how} in this session")
    await put(old, new, environment)
    editor.remember(new, whole=True)
    return await describe(old, new, notes, editor, environment)


def _new_version(content: str, old: FileVersion) -> tuple[FileVersion, list[str]]:
    """The file to write, and notes about it."""
    if old.is_binary:
        return old.edited(TextFile(content)), []
    file = old.as_text_file() if old.data is not None else TextFile("")
    new = in_place_of(content, file)
    kept = {"\r\n": "CRLF", "\r": "CR"}.get(file.line_end, "")
    notes = [f"its {kept} line ends were kept"] if kept and new.raw != content else []
    try:
        return _version_of(old.path, new, old.memo), notes
    except NotEncodable as error:
        if file.encoding.name.startswith("utf-"):
            raise EditRefused(f"{old.path!r} was not written: {error}") from error
        return old.edited(TextFile(new.raw)), [*notes, f"it is UTF-8 now: {error}"]


def _size_of(old: FileVersion) -> str:
    if old.is_binary:
        return f"binary file of {len(old.data or b'')} bytes"
    return f"file of {old.line_count} line{'s' * (old.line_count != 1)}"


async def put(old: FileVersion, new: FileVersion, environment: Environment) -> None:
    """Write a file that must not have changed meanwhile; raises EditRefused when nothing was written."""
    try:
        await environment.write_file(old.path, new.data or b"", expected=old.digest, plain=True)
    except PathChanged as error:
        raise EditRefused(f"nothing was written: {error}") from error
    except OSError as error:
        raise EditRefused(f"{old.path!r} could not be written: {in_words(error, old.path)}") from error


async def describe(
    old: FileVersion, new: FileVersion, notes: list[str], editor: Editor, environment: Environment
) -> JsonObject:
    """The result for one file that was written."""
    diff = await editor.diff(old, new)
    problem = await syntax_problem(old, new, environment)
    return {
        "path": old.path,
        **({"created": True} if old.data is None else {"changed": True}),
        "bytes": len(new.data or b""),
        "lines": new.line_count,
        **({"diff": diff["diff"]} if "diff" in diff else {}),
        **({"check": problem} if problem else {}),
        **joined_notes(*notes, str(diff.get("note", ""))),
    }


# Several files, all or none


@dataclass(frozen=True)
class FileEdit:
    """One file that will change."""

    before: FileVersion
    after: FileVersion
    mode: int | None = None
    """The mode that it gets; None keeps the one it has."""

    @property
    def path(self) -> BackendPath:
        return self.before.path

    @property
    def deletes(self) -> bool:
        return self.after.data is None


async def commit(edits: Sequence[FileEdit], environment: Environment) -> None:
    """Make all edits; raises EditRefused that says in which state each file is, usually the one before.

    A cancellation waits for the end: half of a patch is worse than all of it.
    """
    await _to_its_end(_commit(edits, environment))


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _commit(edits: Sequence[FileEdit], environment: Environment) -> None:
    # A moved file is at its new path before it leaves the old one.
    ordered = sorted(edits, key=lambda edit: edit.deletes)
    begun: list[FileEdit] = []
    folders: list[BackendPath] = []
    for edit in ordered:
        begun.append(edit)
        try:
            if edit.before.data is None:
                folders += await _missing_folders(edit.path, environment)
            await _apply(edit, environment)
        except (OSError, ToolcribError) as error:
            states = {one.path: AS_BEFORE for one in edits}
            states.update(await _roll_back(begun, folders, environment))
            raise EditRefused(_failure(edit, error, states), files=states) from error


async def _apply(edit: FileEdit, environment: Environment) -> None:
    expected = edit.before.digest
    if edit.after.data is None:
        await environment.remove_file(edit.path, expected=expected, plain=True)
    else:
        await environment.write_file(edit.path, edit.after.data, mode=edit.mode, expected=expected, plain=True)


def _failure(edit: FileEdit, error: BaseException, states: dict[BackendPath, str]) -> str:
    verb = "removed" if edit.deletes else "written"
    what = f"{edit.path!r} could not be {verb}: {in_words(error, edit.path)}"
    if all(state == AS_BEFORE for state in states.values()):
        return f"{what}; all files of the patch are as before"
    left = ", ".join(f"{path!r} is {state}" for path, state in states.items() if state != AS_BEFORE)
    return f"{what}; the others are as before, but {left}"


async def _missing_folders(path: BackendPath, environment: Environment) -> list[BackendPath]:
    """The folders above a file that will be created with it, the innermost first."""
    missing = []
    folder = BackendPath(posixpath.dirname(path))
    while folder not in ("", "/") and await environment.status(folder) is None:
        missing.append(folder)
        folder = BackendPath(posixpath.dirname(folder))
    return missing


async def _roll_back(
    begun: Sequence[FileEdit], folders: Sequence[BackendPath], environment: Environment
) -> dict[BackendPath, str]:
    """Undo the edits, except to files that something else has changed; return the state of each file."""
    states = {}
    for edit in reversed(begun):
        try:
            states[edit.path] = await _restore(edit, environment)
        except (OSError, ToolcribError) as error:
            states[edit.path] = f"not as before, and could not be restored ({in_words(error, edit.path)})"
    for folder in sorted(folders, key=len, reverse=True):
        try:
            await environment.remove_folder(folder)
        except (OSError, ToolcribError):
            # Something else is in it by now, or it was never created.
            continue
    return states


async def _restore(edit: FileEdit, environment: Environment) -> str:
    try:
        now = digest_of(await environment.read_file(edit.path, plain=True)).hex()
    except (FileNotFoundError, NotADirectoryError):
        now = ""
    before = edit.before
    if now == before.digest and (edit.mode is None or edit.after.data != before.data):
        return AS_BEFORE
    if now != edit.after.digest:
        return "changed by another program in the meantime, so left alone"
    if before.data is None:
        await environment.remove_file(edit.path, expected=now, plain=True)
    else:
        await environment.write_file(edit.path, before.data, mode=before.mode, expected=now, plain=True)
    return AS_BEFORE
