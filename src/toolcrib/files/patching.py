"""The tool `patch`: replaces a text in one file, or applies a patch to several files, all or none."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files.editing import (
    Editor,
    EditRefused,
    FileEdit,
    FileVersion,
    approved_write,
    commit,
    describe,
    holds_secrets,
    joined_notes,
    preview_text,
    put,
    syntax_problem,
)
from toolcrib.files.hunks import HunkMismatch, RejectedHunk, with_hunks
from toolcrib.files.near_matches import near_matches
from toolcrib.files.patch_parsing import FileChange, PatchError, parse_patch
from toolcrib.files.paths import file_effects
from toolcrib.files.text_files import Edit, NotEncodable, TextFile, as_lf
from toolcrib.files.views import FileViews
from toolcrib.registry.results import tool_error, tool_result

# One text


MAX_LISTED = 10


class NoMatch(ToolcribError):
    """The text does not occur."""


class SeveralMatches(ToolcribError):
    """The text occurs more than once; the message says in which lines."""


def replaced(file: TextFile, old: str, new: str, *, replace_all: bool) -> tuple[TextFile, int]:
    """The file with `new` instead of `old`, which is not empty, and how often; raises NoMatch or SeveralMatches."""
    old, new = as_lf(old), as_lf(new)
    text = file.text
    first = text.find(old)
    if first < 0:
        raise NoMatch("old_string does not occur in it")
    starts = [first]
    if replace_all:
        # Like `str.replace`: from the left, without overlaps.
        while (found := text.find(old, starts[-1] + len(old))) >= 0:
            starts.append(found)
    elif text.find(old, first + 1) >= 0:
        raise SeveralMatches(_several(text, old))
    # Leave alone what both have in common at their ends, and with it the line ends there.
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    changed = new[head : len(new) - tail]
    edits = [Edit(start + head, start + len(old) - tail, changed) for start in starts]
    return file.edited(edits), len(edits)


def _common(one: str, other: str) -> int:
    """How many characters at the beginning are the same."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def _several(text: str, old: str) -> str:
    lines: list[int] = []
    line, counted, found = 1, 0, text.find(old)
    # Overlapping occurrences count, too: each may be the one that is meant.
    for _ in itertools.repeat(None, MAX_LISTED + 1):
        line, counted = line + text.count("\n", counted, found), found
        lines.append(line)
        found = text.find(old, found + 1)
        if found < 0:
            break
    listed = ", ".join(map(str, dict.fromkeys(lines[:MAX_LISTED]))) + (" …" if len(lines) > MAX_LISTED else "")
    times = f"more than {MAX_LISTED} times" if len(lines) > MAX_LISTED else f"{len(lines)} times"
    return f"old_string occurs {times} (lines {listed})"


# What a patch makes of the files that it names, worked out on their current content


MAX_PROBLEMS = 50
MAX_EXPLAINED = 5
"""Near matches are long, so only this many problems show them."""


@dataclass(frozen=True)
class TargetedChange:
    """A change of a patch with the paths that were approved."""

    change: FileChange
    path: BackendPath
    move_to: BackendPath | None = None


@dataclass(frozen=True)
class PatchPlan:
    """The edits of a patch, one for each file that changes."""

    edits: tuple[FileEdit, ...]
    moved: Mapping[BackendPath, BackendPath]
    """The old paths of moved files, by their new paths."""
    added: frozenset[BackendPath]
    """The files whose whole content comes from the patch."""


class _Problem(Exception):
    """A change that cannot be made; `rows` go into the result."""

    def __init__(self, path: str, problem: str, misfits: Sequence[RejectedHunk] = ()) -> None:
        super().__init__(problem)
        self.rows = list(_rows(path, problem, misfits))


def _rows(path: str, problem: str, misfits: Sequence[RejectedHunk]) -> Iterator[JsonObject]:
    if not misfits:
        yield {"file": path, "problem": problem}
    for misfit in misfits:
        row: JsonObject = {"file": path, "hunk": misfit.hunk, "problem": misfit.problem}
        if misfit.near and not holds_secrets(path):
            row["near_matches"] = [near.as_json() for near in misfit.near]
        yield row


def plan_edits(changes: Sequence[TargetedChange], current: Mapping[BackendPath, FileVersion]) -> PatchPlan:
    """The edits that a patch makes; raises EditRefused with every change and hunk that does not fit."""
    state = {path: _State(one) for path, one in current.items()}
    moved: dict[BackendPath, BackendPath] = {}
    rows: list[JsonObject] = []
    broken: set[BackendPath] = set()
    for placed in changes:
        touched = {placed.path, placed.move_to or placed.path}
        # What follows from a failed change is not worth a second message.
        if touched & broken:
            continue
        try:
            _apply(placed, state, moved)
        except _Problem as problem:
            rows += problem.rows
            broken |= touched
    if rows:
        for row in rows[MAX_EXPLAINED:]:
            row.pop("near_matches", None)
        raise EditRefused(_summary(rows), problems=rows[:MAX_PROBLEMS])
    added = frozenset(path for path, file in state.items() if file.is_added)
    return PatchPlan(tuple(_edits(state)), moved, added)


def _summary(rows: Sequence[JsonObject]) -> str:
    named = [f"{row['file']!r}" + (f" hunk {row['hunk']}" if "hunk" in row else "") for row in rows[:3]]
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    first = rows[0]["problem"]
    return f"nothing was changed, because the patch does not fit: {', '.join(named)}{more} ({first})"


class _State:
    """One file while the changes of a patch are applied to it in their order."""

    def __init__(self, before: FileVersion) -> None:
        self.before = before
        self.data = before.data
        self.mode: int | None = None
        """The mode that the file gets; None keeps the one it has."""
        self.is_added = False
        """Whether all of its content comes from the patch."""


def _apply(placed: TargetedChange, state: Mapping[BackendPath, _State], moved: dict[BackendPath, BackendPath]) -> None:
    change, file = placed.change, state[placed.path]
    if change.kind == "add":
        if file.data is not None:
            raise _Problem(placed.path, "it exists already; update it, or delete it first")
        file.data, file.mode = _encoded(TextFile(change.content), placed.path), change.mode
        file.is_added = True
        return
    if file.data is None:
        raise _Problem(placed.path, f"there is no such file to {change.kind}")
    if change.kind == "delete":
        if change.hunks and _updated(change, file, placed.path):
            raise _Problem(placed.path, "it has more lines than the patch deletes")
        file.data, file.is_added = None, False
        return
    data = _updated(change, file, placed.path)
    if placed.move_to is None or placed.move_to == placed.path:
        file.data, file.mode = data, change.mode if change.mode is not None else file.mode
        return
    target = state[placed.move_to]
    if target.data is not None:
        raise _Problem(placed.move_to, f"it exists already, so {placed.path!r} cannot be moved there")
    target.mode = change.mode if change.mode is not None else file.mode if file.mode is not None else file.before.mode
    target.data, file.data = data, None
    target.is_added, file.is_added = file.is_added, False
    moved[placed.move_to] = moved.pop(placed.path, placed.path)


def _updated(change: FileChange, file: _State, path: BackendPath) -> bytes:
    assert file.data is not None
    if not change.hunks:
        if not change.move_to and change.mode is None:
            raise _Problem(path, "no hunk says what to change in it")
        return file.data
    try:
        old = replace(file.before, data=file.data).as_text_file()
        return _encoded(with_hunks(old, change.hunks), path)
    except EditRefused as error:
        raise _Problem(path, str(error)) from error
    except HunkMismatch as error:
        raise _Problem(path, str(error), error.misfits) from error


def _encoded(file: TextFile, path: BackendPath) -> bytes:
    try:
        return file.encoded()
    except NotEncodable as error:
        raise _Problem(path, str(error)) from error


def _edits(state: Mapping[BackendPath, _State]) -> Iterator[FileEdit]:
    for file in state.values():
        has_new_mode = file.data is not None and file.mode not in (None, file.before.mode)
        if file.data != file.before.data or has_new_mode:
            yield FileEdit(file.before, replace(file.before, data=file.data), file.mode)


MAX_DIFF_CHARS = 12_000


def patch_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """What a call writes and deletes. A call that cannot be parsed does nothing and says why when it runs."""
    try:
        if args["mode"] == "replace":
            return file_effects("write", [args["path"]], ctx) if args.get("path") else ()
        effects: list[Effect] = []
        for change in parse_patch(args.get("patch") or ""):
            for kind, path in change.touched():
                effects += file_effects(kind, [path], ctx)
        return tuple(effects)
    except ToolcribError:
        return ()


async def patch(args: JsonObject, ctx: ToolContext, views: FileViews) -> str:
    """The result of one call, as the model gets it."""
    editor = Editor(ctx, views)
    try:
        if args["mode"] == "replace":
            return tool_result(await _replace(args, ctx, editor))
        return tool_result(await _patch(args, ctx, editor))
    except EditRefused as error:
        return tool_error(error, **error.details)
    except ToolcribError as error:
        return tool_error(error)


async def preview_patch(args: JsonObject, ctx: ToolContext, views: FileViews) -> str:
    """The diffs that a call would make, or why they are not shown; raises for a call that would fail."""
    editor = Editor(ctx, views)

    async def work(environment: Environment) -> list[JsonObject]:
        if args["mode"] == "replace":
            (effect,) = file_effects("write", [args["path"]], ctx)
            old = await editor.look(effect, environment)
            return [await editor.diff(old, _with_replacements(args, old)[0])]
        changes = parse_patch(args["patch"])
        found = [await editor.look(effect, environment) for effect in patch_effects(args, ctx)]
        current = {one.path: one for one in reversed(found)}
        plan = plan_edits(list(_with_paths(changes, [one.path for one in found])), current)
        return [await editor.diff(edit.before, edit.after) for edit in plan.edits]

    return preview_text(*await editor.work(work))


# One text in one file


async def _replace(args: JsonObject, ctx: ToolContext, editor: Editor) -> JsonObject:
    missing = [name for name in ("path", "old_string", "new_string") if not isinstance(args.get(name), str)]
    if missing:
        raise EditRefused(f"mode 'replace' needs {' and '.join(map(repr, missing))}")
    effect = approved_write(args["path"], ctx)
    if args["old_string"] == args["new_string"]:
        raise EditRefused("old_string and new_string are the same; nothing was changed")

    async def work(environment: Environment) -> JsonObject:
        old = await editor.look(effect, environment)
        new, count = await asyncio.to_thread(_with_replacements, args, old)
        editor.check_seen(old)
        await put(old, new, environment)
        editor.remember(new, whole=old.data is None)
        answer = await describe(old, new, [], editor, environment)
        return {**answer, "replacements": count} if count != 1 else answer

    return await editor.work(work)


def _with_replacements(args: JsonObject, old: FileVersion) -> tuple[FileVersion, int]:
    """The new version, and how many places changed."""
    wanted, new = args["old_string"], args["new_string"]
    if not wanted:
        if old.data:
            raise EditRefused(
                f"old_string is empty, but {old.path!r} is not; give the text to replace, or use write_file"
            )
        return old.edited(TextFile(new)), 1
    if old.data is None:
        raise EditRefused(f"there is no file {old.path!r}; create it with write_file")
    file = old.as_text_file()
    try:
        changed, count = replaced(file, wanted, new, replace_all=bool(args.get("replace_all")))
    except NoMatch as error:
        found = () if holds_secrets(old.path) else near_matches(file.text, wanted)
        near = {"near_matches": [one.as_json() for one in found]} if found else {}
        advice = "use the text of one of the near matches if you mean it" if found else "read the file again"
        raise EditRefused(f"{old.path!r} was not changed: {error}; {advice}", **near) from error
    except SeveralMatches as error:
        advice = "add lines around it so that it is unique, or set replace_all"
        raise EditRefused(f"{old.path!r} was not changed: {error}; {advice}") from error
    if changed.raw == file.raw:
        raise EditRefused("old_string and new_string differ only in line ends; nothing was changed")
    return old.edited(changed), count


# Several files


async def _patch(args: JsonObject, ctx: ToolContext, editor: Editor) -> JsonObject:
    if not isinstance(args.get("patch"), str):
        raise EditRefused("mode 'patch' needs 'patch', the text of a patch")
    changes = parse_patch(args["patch"])
    effects = _approved(changes, ctx)

    async def work(environment: Environment) -> JsonObject:
        current: dict[BackendPath, FileVersion] = {}
        paths: list[BackendPath] = []
        for effect in effects:
            one = await editor.look(effect, environment)
            paths.append(one.path)
            current.setdefault(one.path, one)
        for one in current.values():
            editor.check_seen(one)
        plan = await asyncio.to_thread(plan_edits, list(_with_paths(changes, paths)), current)
        if not plan.edits:
            return {"changed": False, "note": "the files already are as the patch wants them; nothing was written"}
        await commit(plan.edits, environment)
        for edit in plan.edits:
            editor.remember(edit.after, whole=edit.path in plan.added)
        return await _describe_patch(plan, editor, environment)

    return await editor.work(work)


def _approved(changes: Sequence[FileChange], ctx: ToolContext) -> tuple[Effect, ...]:
    """The effects of the call, one for each path of the patch; raises PatchError when they belong to another patch."""
    touched = [kind for change in changes for kind, _ in change.touched()]
    if ctx.effects is None or [effect.kind for effect in ctx.effects] != touched:
        for change in changes:
            for kind, path in change.touched():
                # Raises the reason why the effects could not be determined.
                file_effects(kind, [path], ctx)
        raise PatchError("what this patch does was not approved; call the tool again")
    return ctx.effects


def _with_paths(changes: Sequence[FileChange], paths: Sequence[BackendPath]) -> Iterator[TargetedChange]:
    following = iter(paths)
    for change in changes:
        first = next(following)
        yield TargetedChange(change, next(following), first) if change.move_to else TargetedChange(change, first)


async def _describe_patch(plan: PatchPlan, editor: Editor, environment: Environment) -> JsonObject:
    sources = {plan.moved[edit.path] for edit in plan.edits if not edit.deletes and edit.path in plan.moved}
    files: list[JsonObject] = []
    diffs: list[str] = []
    notes: dict[str, None] = {}
    for edit in plan.edits:
        if edit.deletes and edit.path in sources:
            continue
        row, diff = await _describe_edit(edit, plan, editor, environment)
        files.append(row)
        diffs += [diff["diff"]] if "diff" in diff else []
        notes.update({diff["note"]: None} if "note" in diff else {})
    diff_text = _joined(diffs)
    return {"changed": True, "files": files, **({"diff": diff_text} if diff_text else {}), **joined_notes(*notes)}


async def _describe_edit(
    edit: FileEdit, plan: PatchPlan, editor: Editor, environment: Environment
) -> tuple[JsonObject, JsonObject]:
    """What the result says about one file, and its diff."""
    before, after = edit.before, edit.after
    if after.data is None:
        return {"path": edit.path, "change": "deleted"}, await editor.diff(before, after)
    row: JsonObject = {"path": edit.path, "change": "added" if before.data is None else "updated"}
    if edit.path in plan.moved:
        source = plan.moved[edit.path]
        before = next((one.before for one in plan.edits if one.path == source), before)
        row.update({"change": "moved", "from": source})
    row.update({"bytes": len(after.data), "lines": after.line_count})
    problem = await syntax_problem(before, after, environment)
    if problem:
        row["check"] = problem
    return row, await editor.diff(before, after)


def _joined(diffs: Sequence[str]) -> str:
    """The diffs of all files, as far as they fit."""
    shown: list[str] = []
    room = MAX_DIFF_CHARS
    for number, diff in enumerate(diffs):
        if room <= 0:
            return "".join([*shown, f"… {len(diffs) - number} more files\n"])
        shown.append(diff)
        room -= len(diff)
    return "".join(shown)
