"""Tool calls as editors show them: a kind, a title, the files to follow, diffs, and the result as content."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acp import image_block, text_block, tool_content, tool_diff_content
from acp.schema import (
    ContentToolCallContent,
    FileEditToolCallContent,
    TerminalToolCallContent,
    ToolCallLocation,
    ToolKind,
)
from msgspec import Struct

from toolcrib.agent.tool_calls import summary_of
from toolcrib.core.messages import Image, RequestedCall
from toolcrib.core.types import TOOL_CALL, JsonObject
from toolcrib.dispatch.pipeline import unwrap_tool_call
from toolcrib.files.patch_parsing import PatchError, parse_patch

Content = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent
ReadText = Callable[[str], str | None]
"""The text of a file now; None if there is no such file, or it is not text."""

KINDS: dict[str, ToolKind] = {
    "read_file": "read",
    "skill_view": "read",
    "skills_list": "read",
    "vision_analyze": "read",
    "video_analyze": "read",
    "write_file": "edit",
    "patch": "edit",
    "search_files": "search",
    "session_search": "search",
    "tool_search": "search",
    "terminal": "execute",
    "process": "execute",
    "execute_code": "execute",
    "web_search": "fetch",
    "web_extract": "fetch",
    "todo": "think",
    "memory": "think",
    "delegate_task": "think",
}
TITLE_CHARS = 200
SHOWN_CHARS = 20_000
"""Of a result; the model has more of it, and the session all."""
DIFF_BYTES = 1_000_000
"""Larger files are shown without a diff."""
RESULT_TEXTS = ("output", "content", "diff", "result")
"""Where the results of our tools have their text, best first."""


class FileDiff(Struct, frozen=True):
    """A file before and after an edit, or the part of it that changes."""

    path: str
    old: str | None
    new: str

    def content(self) -> FileEditToolCallContent:
        return tool_diff_content(self.path, self.new, self.old)


class ShownCall(Struct, frozen=True, kw_only=True):
    """What an editor needs to know about a call before it runs."""

    id: str
    name: str
    """The tool that really runs."""
    arguments: JsonObject
    title: str
    kind: ToolKind
    locations: tuple[ToolCallLocation, ...] = ()
    diffs: tuple[FileDiff, ...] = ()
    paths: tuple[str, ...] = ()
    """The files that it edits, as absolute paths."""

    def opening(self) -> list[Content]:
        """What to show before there is a result: what the call would change or run."""
        if self.diffs:
            return [diff.content() for diff in self.diffs]
        command = self.arguments.get("command") or self.arguments.get("code")
        if self.kind == "execute" and isinstance(command, str) and command:
            return [text_content(fenced(command, "python" if self.name == "execute_code" else "sh"))]
        return []


def shown_call(call: RequestedCall, title: str, cwd: str, read_text: ReadText | None) -> ShownCall:
    """How to show a call; without `read_text`, its files are on another machine."""
    name, given = unwrap_tool_call(call.arguments) if call.name == TOOL_CALL else (call.name, call.arguments)
    arguments = _object(given)
    diffs = tuple(_diffs(name, arguments, cwd, read_text or (lambda _: None)))
    paths = tuple(dict.fromkeys(diff.path for diff in diffs))
    return ShownCall(
        id=call.id,
        name=name,
        arguments=arguments,
        title=_title(name, arguments, title or name),
        kind=kind_of(name),
        locations=tuple(_locations(name, arguments, cwd, paths)) if read_text is not None else (),
        diffs=diffs,
        paths=paths,
    )


def kind_of(name: str) -> ToolKind:
    return "fetch" if name.startswith("browser_") else KINDS.get(name, "other")


def result_content(name: str, text: str, images: Iterable[Image] = ()) -> list[Content]:
    """A result for people: the text that it carries, and its images."""
    # The plan itself is shown elsewhere.
    shown = "" if name == "todo" and "error" not in _object(text) else result_text(text)
    content: list[Content] = []
    if shown.strip():
        content.append(text_content(fenced(shown, "") if kind_of(name) in ("execute", "read", "search") else shown))
    content += [tool_content(image_block(one.data, one.media_type or "image/png")) for one in images if one.data]
    return content


def result_text(text: str) -> str:
    """What a result says, without the JSON around it."""
    found = _object(text)
    if isinstance(found.get("error"), str) and found["error"]:
        output = found.get("output")
        return _cut(f"{output}\n{found['error']}" if isinstance(output, str) and output.strip() else found["error"])
    for key in RESULT_TEXTS:
        if isinstance(found.get(key), str):
            code = found.get("exit_code")
            return _cut(found[key] + (f"\n[exit code {code}]" if code else ""))
    return _cut(text)


def text_content(text: str) -> ContentToolCallContent:
    return tool_content(text_block(text))


def fenced(text: str, language: str) -> str:
    """The text as a code block, which it cannot close itself."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def read_text_file(path: str) -> str | None:
    """The text of a file of this machine, for a diff; None if it is missing, too long or not text."""
    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > DIFF_BYTES:
            return None
        text = file.read_bytes().decode()
    except (OSError, ValueError):
        return None
    return None if "\0" in text else text


def _title(name: str, arguments: JsonObject, title: str) -> str:
    path = str(arguments.get("path") or arguments.get("file_path") or "")
    if name in ("terminal", "process") and isinstance(arguments.get("command"), str):
        return _line(arguments["command"]) or title
    if name == "read_file" and path:
        return _line(f"Read {path}{_range(arguments)}")
    if name == "write_file" and path:
        return _line(f"Write {path}")
    if name == "patch":
        return _line(f"Edit {path}" if path else f"Edit {', '.join(_patched(arguments)) or 'files'}")
    if name == "search_files" and isinstance(arguments.get("pattern"), str):
        return _line(f"Search {arguments['pattern']!r}" + (f" in {path}" if path else ""))
    summary = summary_of(arguments)
    return _line(f"{title}: {summary}" if summary else title)


def _range(arguments: JsonObject) -> str:
    first, count = arguments.get("offset"), arguments.get("limit")
    if not isinstance(first, int) or first <= 1:
        return ""
    return f" (from line {first})" if not isinstance(count, int) else f" (lines {first} to {first + count - 1})"


def _locations(name: str, arguments: JsonObject, cwd: str, edited: Sequence[str]) -> Iterable[ToolCallLocation]:
    if edited:
        return [ToolCallLocation(path=path) for path in edited]
    path = arguments.get("path")
    if name not in ("read_file", "search_files") or not isinstance(path, str) or not path:
        return []
    line = arguments.get("offset")
    return [ToolCallLocation(path=_absolute(path, cwd), line=line if isinstance(line, int) and line > 0 else None)]


def _diffs(name: str, arguments: JsonObject, cwd: str, read_text: ReadText) -> Iterable[FileDiff]:
    path = arguments.get("path")
    if name == "write_file" and isinstance(path, str) and isinstance(arguments.get("content"), str):
        where = _absolute(path, cwd)
        yield FileDiff(where, read_text(where), arguments["content"])
    elif name == "patch" and isinstance(path, str) and isinstance(arguments.get("old_string"), str):
        yield _replacement(_absolute(path, cwd), arguments, read_text)
    elif name == "patch" and isinstance(arguments.get("patch"), str):
        yield from _patch_diffs(arguments["patch"], cwd, read_text)


def _replacement(path: str, arguments: JsonObject, read_text: ReadText) -> FileDiff:
    old, new = arguments["old_string"], str(arguments.get("new_string") or "")
    before = read_text(path)
    if before is not None and old and old in before:
        after = before.replace(old, new) if arguments.get("replace_all") else before.replace(old, new, 1)
        return FileDiff(path, before, after)
    return FileDiff(path, old, new)


def _patch_diffs(text: str, cwd: str, read_text: ReadText) -> Iterable[FileDiff]:
    try:
        changes = parse_patch(text)
    except PatchError:
        return
    for change in changes:
        path = _absolute(change.path, cwd)
        if change.kind == "add":
            yield FileDiff(path, None, change.content)
        elif change.kind == "delete":
            yield FileDiff(path, read_text(path) or "", "")
        else:
            old = "\n".join(line for hunk in change.hunks for line in hunk.old)
            new = "\n".join(line for hunk in change.hunks for line in hunk.new)
            yield FileDiff(_absolute(change.move_to or change.path, cwd), old, new)


def _patched(arguments: JsonObject) -> list[str]:
    try:
        return [change.path for change in parse_patch(str(arguments.get("patch") or ""))]
    except PatchError:
        return []


def _absolute(path: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd or "/", os.path.expanduser(path)))  # noqa: PTH111, PTH118 - as text


def _object(text: Mapping[str, Any] | str) -> JsonObject:
    if not isinstance(text, str):
        return dict(text)
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1]}…"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}\n[{len(text) - SHOWN_CHARS:,} more characters]"
