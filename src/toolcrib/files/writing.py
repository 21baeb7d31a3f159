"""The tool `write_file`: a whole file, put in its place in one step."""

from __future__ import annotations

from toolcrib.core.context import ToolContext
from toolcrib.core.environments import Environment
from toolcrib.core.errors import PathChanged, ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files.editing import (
    Editor,
    EditRefused,
    Present,
    found_problem,
    joined_notes,
    lines_in,
    text_of,
)
from toolcrib.files.paths import file_effects
from toolcrib.files.refusals import in_words
from toolcrib.files.text_files import NotEncodable, NotText, TextFile, decoded, in_place_of
from toolcrib.files.views import Views
from toolcrib.registry.results import tool_error, tool_result

SAME = "the file has exactly this content already; nothing was written"


def write_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """A write to the path of a call; none for what can be no path, of which the call itself says so."""
    try:
        return file_effects("write", [args["path"]], ctx)
    except ToolcribError:
        return ()


async def write_file(args: JsonObject, ctx: ToolContext, views: Views) -> str:
    """What the model gets for the arguments of one call."""
    editor = Editor(ctx, views)
    try:
        effect = agreed_write(args["path"], ctx)
        return tool_result(await editor.work(lambda environment: _write(args["content"], effect, editor, environment)))
    except EditRefused as error:
        return tool_error(error, **error.details)
    except ToolcribError as error:
        return tool_error(error)


def agreed_write(path: str, ctx: ToolContext) -> Effect:
    """The one write that was agreed to."""
    if ctx.effects is None or len(ctx.effects) != 1 or ctx.effects[0].kind != "write":
        # Raises what kept the effect from being known.
        file_effects("write", [path], ctx)
        raise EditRefused("nobody has agreed to a write to this path; call the tool again")
    return ctx.effects[0]


async def _write(content: str, effect: Effect, editor: Editor, environment: Environment) -> JsonObject:
    old = await editor.look(effect, environment)
    new, notes = _new_content(content, old)
    if new == old.data:
        editor.knows(old.path, new, whole=True)
        return {"path": old.path, "changed": False, "note": SAME}
    if old.data is not None:
        view = editor.seen(old)
        if view is None or not view.whole:
            how = "had not been read" if view is None else "had been read only in part"
            notes.append(f"replaced an existing {_size_of(old)} that {how} in this session")
    await put(old, new, environment)
    editor.knows(old.path, new, whole=True)
    return await told(old, new, notes, editor, environment)


def _new_content(content: str, old: Present) -> tuple[bytes, list[str]]:
    """The bytes to write, and what to say about them."""
    try:
        file = decoded(old.data or b"")
    except NotText:
        return old.filled_with(TextFile(content)), []
    new = in_place_of(content, file)
    kept = {"\r\n": "CRLF", "\r": "CR"}.get(file.line_end, "")
    notes = [f"its {kept} line ends were kept"] if kept and new.raw != content else []
    try:
        return new.encoded(), notes
    except NotEncodable as error:
        if file.encoding.name.startswith("utf-"):
            raise EditRefused(f"{old.path!r} was not written: {error}") from error
        return old.filled_with(TextFile(new.raw)), [*notes, f"it is UTF-8 now: {error}"]


def _size_of(old: Present) -> str:
    data = old.data or b""
    if text_of(data) is None:
        return f"binary file of {len(data)} bytes"
    lines = lines_in(data)
    return f"file of {lines} line{'s' * (lines != 1)}"


async def put(old: Present, new: bytes, environment: Environment) -> None:
    """Write a file that must still be what it was; raises EditRefused saying that nothing was written."""
    try:
        await environment.write_file(old.path, new, expected=old.digest, plain=True)
    except PathChanged as error:
        raise EditRefused(f"nothing was written: {error}") from error
    except OSError as error:
        raise EditRefused(f"{old.path!r} could not be written: {in_words(error, old.path)}") from error


async def told(old: Present, new: bytes, notes: list[str], editor: Editor, environment: Environment) -> JsonObject:
    """The answer about one file that was written."""
    diff = await editor.shown_diff(old, new)
    problem = await found_problem(old.path, old.data, new, environment)
    return {
        "path": old.path,
        **({"created": True} if old.data is None else {"changed": True}),
        "bytes": len(new),
        "lines": lines_in(new),
        **({"diff": diff["diff"]} if "diff" in diff else {}),
        **({"check": problem} if problem else {}),
        **joined_notes(*notes, str(diff.get("note", ""))),
    }
