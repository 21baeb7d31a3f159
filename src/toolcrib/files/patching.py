"""The tool `patch`: replaces a text in one file, or applies a patch to several, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files.commit import Step, commit
from toolcrib.files.editing import (
    Editor,
    EditRefused,
    Present,
    found_problem,
    holds_secrets,
    joined_notes,
    lines_in,
)
from toolcrib.files.near_matches import near_matches
from toolcrib.files.patch_format import FileChange, PatchError
from toolcrib.files.patch_plan import PlacedChange, Plan, planned
from toolcrib.files.patch_text import parse_patch
from toolcrib.files.paths import file_effects
from toolcrib.files.replacing import NoMatch, SeveralMatches, replaced
from toolcrib.files.text_files import TextFile
from toolcrib.files.views import Views
from toolcrib.files.writing import agreed_write, put, told
from toolcrib.registry.results import tool_error, tool_result

MAX_DIFF_CHARS = 12_000


def patch_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """What a call writes and deletes. One that cannot be understood does nothing, and says why when it is run."""
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


async def patch(args: JsonObject, ctx: ToolContext, views: Views) -> str:
    """What the model gets for the arguments of one call."""
    editor = Editor(ctx, views)
    try:
        if args["mode"] == "replace":
            return tool_result(await _replace(args, ctx, editor))
        return tool_result(await _patch(args, ctx, editor))
    except EditRefused as error:
        return tool_error(error, **error.details)
    except ToolcribError as error:
        return tool_error(error)


# One text in one file


async def _replace(args: JsonObject, ctx: ToolContext, editor: Editor) -> JsonObject:
    missing = [name for name in ("path", "old_string", "new_string") if not isinstance(args.get(name), str)]
    if missing:
        raise EditRefused(f"mode 'replace' needs {' and '.join(map(repr, missing))}")
    effect = agreed_write(args["path"], ctx)
    if args["old_string"] == args["new_string"]:
        raise EditRefused("old_string and new_string are the same; nothing was changed")

    async def work(environment: Environment) -> JsonObject:
        old = await editor.look(effect, environment)
        new, count = await asyncio.to_thread(_replaced, args, old)
        editor.seen(old)
        await put(old, new, environment)
        editor.knows(old.path, new, whole=old.data is None)
        answer = await told(old, new, [], editor, environment)
        return {**answer, "replacements": count} if count != 1 else answer

    return await editor.work(work)


def _replaced(args: JsonObject, old: Present) -> tuple[bytes, int]:
    """The new content, and how many places changed."""
    wanted, new = args["old_string"], args["new_string"]
    if not wanted:
        if old.data:
            raise EditRefused(
                f"old_string is empty, but {old.path!r} is not; name the text to replace, or use write_file"
            )
        return old.filled_with(TextFile(new)), 1
    if old.data is None:
        raise EditRefused(f"there is no file {old.path!r}; create it with write_file")
    file = old.text()
    try:
        changed, count = replaced(file, wanted, new, replace_all=bool(args.get("replace_all")))
    except NoMatch as error:
        found = () if holds_secrets(old.path) else near_matches(file.text, wanted)
        near = {"near_matches": [one.as_json() for one in found]} if found else {}
        advice = "use the text of one of the near matches if you mean it" if found else "read the file again"
        raise EditRefused(f"{old.path!r} was not changed: {error}; {advice}", **near) from error
    except SeveralMatches as error:
        advice = "add lines around it so that one place is meant, or set replace_all"
        raise EditRefused(f"{old.path!r} was not changed: {error}; {advice}") from error
    if changed.raw == file.raw:
        raise EditRefused("old_string and new_string differ only in line ends; nothing was changed")
    return old.filled_with(changed), count


# Several files


async def _patch(args: JsonObject, ctx: ToolContext, editor: Editor) -> JsonObject:
    if not isinstance(args.get("patch"), str):
        raise EditRefused("mode 'patch' needs 'patch', the text of a patch")
    changes = parse_patch(args["patch"])
    effects = _agreed(changes, ctx)

    async def work(environment: Environment) -> JsonObject:
        present: dict[BackendPath, Present] = {}
        paths: list[BackendPath] = []
        for effect in effects:
            one = await editor.look(effect, environment)
            paths.append(one.path)
            present.setdefault(one.path, one)
        for one in present.values():
            editor.seen(one)
        plan = await asyncio.to_thread(planned, list(_placed(changes, paths)), present)
        if not plan.steps:
            return {"changed": False, "note": "the files are as the patch wants them already; nothing was written"}
        await commit(plan.steps, environment)
        for step in plan.steps:
            editor.knows(step.path, step.after, whole=step.path in plan.added)
        return await _told(plan, editor, environment)

    return await editor.work(work)


def _agreed(changes: Sequence[FileChange], ctx: ToolContext) -> tuple[Effect, ...]:
    """The effects of the call, one for each path of the patch; raises EditRefused when they are not of this patch."""
    touched = [kind for change in changes for kind, _ in change.touched()]
    if ctx.effects is None or [effect.kind for effect in ctx.effects] != touched:
        for change in changes:
            for kind, path in change.touched():
                # Raises what kept the effects from being known.
                file_effects(kind, [path], ctx)
        raise PatchError("nobody has agreed to what this patch does; call the tool again")
    return ctx.effects


def _placed(changes: Sequence[FileChange], paths: Sequence[BackendPath]) -> Iterator[PlacedChange]:
    following = iter(paths)
    for change in changes:
        first = next(following)
        yield PlacedChange(change, next(following), first) if change.move_to else PlacedChange(change, first)


async def _told(plan: Plan, editor: Editor, environment: Environment) -> JsonObject:
    sources = {plan.moved[step.path] for step in plan.steps if step.after is not None and step.path in plan.moved}
    files: list[JsonObject] = []
    diffs: list[str] = []
    notes = {}
    for step in plan.steps:
        if step.after is None and step.path in sources:
            continue
        row, told_diff = await _row(step, plan, editor, environment)
        files.append(row)
        diffs += [told_diff["diff"]] if "diff" in told_diff else []
        notes.update(dict.fromkeys([told_diff["note"]] if "note" in told_diff else []))
    diff = _joined(diffs)
    return {"changed": True, "files": files, **({"diff": diff} if diff else {}), **joined_notes(*notes)}


async def _row(step: Step, plan: Plan, editor: Editor, environment: Environment) -> tuple[JsonObject, JsonObject]:
    """What is said about one file, and its diff."""
    if step.after is None:
        return {"path": step.path, "change": "deleted"}, await editor.shown_diff(step.before, None)
    before = step.before
    row: JsonObject = {"path": step.path, "change": "added" if before.data is None else "updated"}
    if step.path in plan.moved:
        source = plan.moved[step.path]
        before = next((one.before for one in plan.steps if one.path == source), before)
        row.update({"change": "moved", "from": source})
    row.update({"bytes": len(step.after), "lines": lines_in(step.after)})
    problem = await found_problem(step.path, before.data, step.after, environment)
    if problem:
        row["check"] = problem
    return row, await editor.shown_diff(before, step.after, step.path if before is not step.before else "")


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
