"""What goes along with a message: files and folders named as @path, images, piped text, the output of !commands."""

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
from toolcrib.core.context import CancelToken
from toolcrib.core.messages import Image, Message, attachment, parts_of, user_message
from toolcrib.core.types import JsonObject, ToolResult

MAX_ATTACHMENTS = 20
MAX_ATTACHED_CHARS = 100_000
"""All attachments of a message together."""
MAX_FILE_LINES = 2_000
MAX_PIPED_CHARS = 90_000
CHARS_PER_TOKEN = 3
WAITING_SECONDS = 2.0
CHUNK_BYTES = 65536
NOT_ATTACHED = "not attached"
_MENTION = re.compile(r"""(?:^|(?<=\s))@(?:"([^"\n]+)"|((?:\\.|[^\s"\\])+))""")
_LINE_NUMBER = re.compile(r"^ *\d+\|", re.MULTILINE)
_ENDING = ".,;:!?)]}'"


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
    return found if isinstance(found, Attachment) or looks_like_path else ""


async def _at(agent: Agent, path: str) -> Attachment | str:
    result = await own_call(agent, "read_file", {"path": path, "limit": MAX_FILE_LINES})
    if not isinstance(result.content, str):
        images = tuple(part for part in parts_of(result.content.get("content")) if isinstance(part, Image))
        return Attachment(path, about="image", images=images)
    try:
        found = json.loads(result.content)
    except ValueError:
        found = {}
    if isinstance(found.get("entries"), list):
        entries = [str(entry) for entry in found["entries"]]
        count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
        return Attachment(path, "\n".join(entries), f"folder, {count}")
    if result.is_error or not isinstance(found.get("content"), str):
        return one_line(result.error_message or str(found.get("error") or f"{path} cannot be read"))
    text = _LINE_NUMBER.sub("", found["content"])
    total, shown = found.get("total_lines"), found.get("lines")
    partly = f"the first {shown} of {total} lines" if total != shown else ""
    return Attachment(path, text, partly or plural(int(shown or 0), "line"))


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
    data = _read_to_end(descriptor, waits=not stat.S_ISREG(mode))
    text = data.decode("utf-8", "replace")
    if not text.strip():
        return None
    lines = plural(len(text.splitlines()), "line")
    if len(text) > MAX_PIPED_CHARS:
        half = MAX_PIPED_CHARS // 2
        left_out = len(text) - MAX_PIPED_CHARS
        text = f"{text[:half]}\n[{left_out:,} characters are left out here]\n{text[-half:]}"
        lines += f", {left_out:,} characters left out in the middle"
    return Attachment("piped input", text, lines)


def _read_to_end(descriptor: int, *, waits: bool) -> bytes:
    if waits and sys.platform != "win32" and not select.select([descriptor], [], [], WAITING_SECONDS)[0]:
        note("Waiting for the piped input to end; `< /dev/null` asks without any.")
    pieces: list[bytes] = []
    while data := os.read(descriptor, CHUNK_BYTES):
        pieces.append(data)
    return b"".join(pieces)
