"""Attachments of a message: files and folders named as @path, images, piped text, the output of !commands."""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from toolcrib.agent.agent import Agent
from toolcrib.cli.chat.images import with_images
from toolcrib.cli.output import note, one_line, plural
from toolcrib.core.cancel import CancelToken
from toolcrib.core.messages import Image, Message, attachment, parts_of, user_message
from toolcrib.core.types import JsonObject, ToolResult

MAX_ATTACHMENTS = 20
MAX_ATTACHED_CHARS = 100_000
"""All attachments of a message together."""
MAX_FILE_LINES = 2_000
MAX_PIPED_CHARS = 90_000
MAX_PIPED_BYTES = 500_000_000
"""Of a longer input the rest is not read: it may have no end."""
CHARS_PER_TOKEN = 3
WAITING_SECONDS = 2.0
CHUNK_BYTES = 65536
NOT_ATTACHED = "not attached"
NO_FILE = "there is no file"
"""How read_file begins to say so."""
_MENTION = re.compile(r"""(?:^|(?<=\s))@(?:"([^"\n]+)"|((?:\\.|[^\s"\\])+))""")
_LINE_NUMBER = re.compile(r"^ *\d+\|", re.MULTILINE)
_ENDING = ".,;:!?)]}'"
_ENTRIES = re.compile(r"with (\d+) entries")


class Attachment(Struct, frozen=True):
    """One text or image for the model."""

    name: str
    text: str = ""
    about: str = ""
    """Its size, for the person."""
    images: tuple[Image, ...] = ()


class ComposedMessage(Struct, frozen=True):
    """A message with its attachments, and what to tell the person about them."""

    message: Message
    notes: tuple[str, ...]


async def compose(agent: Agent, text: str, folder: Path | None, more: Sequence[Attachment] = ()) -> ComposedMessage:
    """The person's message with what it names; toolcrib reads files as the agent would, through the gate."""
    attached, notes = list(more), []
    for path in dict.fromkeys(mentioned(text)[:MAX_ATTACHMENTS]):
        found = await _read(agent, path)
        if isinstance(found, Attachment):
            attached.append(found)
        elif found:
            notes.append(f"{NOT_ATTACHED}: {found}")
    others, about_images = with_images(_MENTION.sub(" ", text), folder)
    room = _room(agent)
    parts, images = [text], list(others.images)
    for one in attached:
        images += one.images
        kept = one.text[:room]
        room -= len(kept)
        cut = f", cut to {len(kept):,} characters" if len(kept) < len(one.text) else ""
        notes.append(f"attached: {one.name}" + (f" ({one.about}{cut})" if one.about else ""))
        if one.text:
            parts.append(attachment(one.name, kept + ("\n[cut here]" if cut else "")))
    return ComposedMessage(user_message("".join(parts), images), (*notes, *about_images))


def mentioned(text: str) -> list[str]:
    """The paths after an @, in order; "@a b" needs quotes or a backslash."""
    return [match[1] or re.sub(r"\\(.)", r"\1", match[2]) for match in _MENTION.finditer(text)]


def _room(agent: Agent) -> int:
    """How many characters may be attached: a small model reads only little."""
    limit = agent.profile.max_prompt_tokens
    return min(MAX_ATTACHED_CHARS, limit * CHARS_PER_TOKEN // 2) if limit else MAX_ATTACHED_CHARS


async def _read(agent: Agent, path: str) -> Attachment | str:
    """The file or folder; a sentence if it cannot be attached, empty if the text names no file."""
    found = await _at(agent, path)
    if isinstance(found, str) and path[-1] in _ENDING and path.rstrip(_ENDING):
        # The punctuation may belong to the sentence.
        again = await _at(agent, path.rstrip(_ENDING))
        found = again
    looks_like_path = "/" in path or "." in path.rstrip(_ENDING)
    if isinstance(found, str) and found.startswith(NO_FILE) and not looks_like_path:
        return ""
    return found


async def _at(agent: Agent, path: str) -> Attachment | str:
    call = {"path": path, "limit": MAX_FILE_LINES}
    result = await own_call(agent, "read_file", call)
    found = result_object(result)
    if found.get("unchanged"):
        # The session has read it before, but the person wants it here; asked again, the tool shows it.
        result = await own_call(agent, "read_file", call)
        found = result_object(result)
    if not isinstance(result.content, str):
        images = tuple(part for part in parts_of(result.content.get("content")) if isinstance(part, Image))
        return Attachment(path, about="image", images=images)
    if isinstance(found.get("entries"), list):
        return _folder(path, [str(entry) for entry in found["entries"]], str(found.get("error")))
    if found.get("binary"):
        return f"{path} is a binary file"
    if result.is_error or not isinstance(found.get("content"), str):
        return one_line(result.error_message or str(found.get("error") or f"{path} cannot be read"))
    text = _LINE_NUMBER.sub("", found["content"])
    total, shown = found.get("total_lines"), found.get("lines")
    partly = f"the first {shown} of {total} lines" if total != shown else ""
    return Attachment(path, text, partly or plural(int(shown or 0), "line"))


def result_object(result: ToolResult) -> JsonObject:
    """The JSON object that a tool returned; empty if it returned something else."""
    try:
        found = json.loads(result.content) if isinstance(result.content, str) else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _folder(path: str, entries: list[str], told: str) -> Attachment:
    counted = _ENTRIES.search(told)
    total = int(counted[1]) if counted is not None else len(entries)
    count = "1 entry" if total == 1 else f"{total:,} entries"
    if total > len(entries):
        entries = [*entries, f"[{total - len(entries):,} more]"]
        count = f"the first {len(entries) - 1} of {count}"
    return Attachment(path, "\n".join(entries), f"folder, {count}")


async def own_call(agent: Agent, tool: str, arguments: JsonObject, call_id: str = "") -> ToolResult:
    """A call that the person makes, not the model: in the session's environment and folder, through the pipeline."""
    runtime, session_id = agent.host.runtime, agent.session_id
    cancel = CancelToken()
    ctx = runtime.context(
        tool_name=tool,
        call_id=call_id or f"own_{secrets.token_hex(6)}",
        session_id=session_id,
        task_id=session_id,
        cwd=agent.cwd,
        cancel=cancel,
    )
    try:
        return await runtime.call(tool, arguments, ctx=ctx)
    finally:
        cancel.cancel("interrupted")


def piped_text() -> Attachment | None:
    """What is piped into this process, up to its end; None if nothing is, or the input is a terminal."""
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return None
    waits = not stat.S_ISREG(mode) and sys.platform != "win32"
    if waits and not select.select([descriptor], [], [], WAITING_SECONDS)[0]:
        note("Waiting for the piped input to end; `< /dev/null` asks without any.")
    found = read_piped(descriptor)
    if isinstance(found, str):
        note(f"{NOT_ATTACHED}: {found}")
        return None
    return found


def read_piped(descriptor: int, most: int = MAX_PIPED_BYTES) -> Attachment | str | None:
    """The text of an input, without the middle if it is long; a sentence if it is no text, None if it is empty."""
    half = MAX_PIPED_CHARS // 2
    start, end, size, lines = bytearray(), bytearray(), 0, 0
    while (data := os.read(descriptor, CHUNK_BYTES)) and size < most:
        size += len(data)
        lines += data.count(b"\n")
        taken = data[: max(0, half - len(start))]
        start += taken
        end += data[len(taken) :]
        del end[: max(0, len(end) - half)]
    if b"\0" in start or b"\0" in end:
        return "the piped input is binary"
    left_out = size - len(start) - len(end)
    gap = f"\n[{left_out:,} bytes are left out here]\n".encode() if left_out else b""
    text = (bytes(start) + gap + bytes(end)).decode("utf-8", "replace")
    if not text.strip():
        return None
    about = plural(lines + (not text.endswith("\n")), "line")
    about += f", {left_out:,} bytes left out in the middle" if left_out else ""
    about += ", the rest was not read" if data else ""
    return Attachment("piped input", text, about)
