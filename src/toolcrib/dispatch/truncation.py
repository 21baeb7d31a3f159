"""Keeps results small enough for a model: replaces a long text with a preview and stores the text in a file.

Files are limited too: 64 MB per call (its head and tail), 1 GB per home (the oldest are removed first).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from toolcrib.core.attempt import attempt
from toolcrib.core.ports import ResultStore
from toolcrib.core.types import ToolResult

logger = logging.getLogger(__name__)

PREVIEW_HEAD_CHARS = 1_000
PREVIEW_TAIL_CHARS = 500
PREVIEW_FRAME_CHARS = 500
"""The approximate length of the text around a preview: how much was omitted, and where the full text is."""
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_FOLDER_BYTES = 1024 * 1024 * 1024


class FileResultStore:
    """Stores long texts as files in the home, readable only by their owner. The handle is the path."""

    def __init__(
        self, folder: Path, max_file_bytes: int = MAX_FILE_BYTES, max_folder_bytes: int = MAX_FOLDER_BYTES
    ) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._max_folder_bytes = max_folder_bytes

    def save(self, session_id: str, call_id: str, text: str) -> str:
        data = self._bounded(text.encode("utf-8", "surrogatepass"))
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room(len(data))
        # The random part keeps two calls with the same id apart, and the name unpredictable.
        name = f"{_safe(session_id)}-{_safe(call_id)}-{os.urandom(4).hex()}.txt".lstrip("-")
        path = self._folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError:
            # A partial file without a known handle would only waste the space that has run out.
            path.unlink(missing_ok=True)
            raise
        return str(path)

    def _bounded(self, data: bytes) -> bytes:
        if len(data) <= self._max_file_bytes:
            return data
        note = f"\n… [{len(data) - self._max_file_bytes} or more bytes omitted] …\n".encode()
        half = max(0, self._max_file_bytes - len(note)) // 2
        # Cut between characters to keep the file readable as text.
        end, begin = half, len(data) - half
        while end and _inside_character(data[end]):
            end -= 1
        while begin < len(data) and _inside_character(data[begin]):
            begin += 1
        return data[:end] + note + data[begin:]

    def _make_room(self, wanted: int) -> None:
        files = []
        total = wanted
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
                total += stat.st_size
        for _, size, path in sorted(files):
            if total <= self._max_folder_bytes:
                return
            # Another process may have removed it first.
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def _inside_character(byte: int) -> bool:
    return byte & 0b1100_0000 == 0b1000_0000


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:64]


def within_call_budget(result: ToolResult, limit: int | float, store: ResultStore, session_id: str) -> ToolResult:
    """The result itself, or a preview of it if its text is longer than the limit."""
    if not isinstance(result.content, str) or len(result.content) <= limit:
        return result
    return spill(result, store, session_id, limit)


def within_turn_budget(
    results: Sequence[ToolResult],
    limit: int | float,
    store: ResultStore,
    session_id: str,
    never_cut: Collection[str] = (),
) -> list[ToolResult]:
    """The results of one turn, with the longest texts replaced by previews until all of them fit together.

    Existing previews stay unchanged, and so do the results of tools named in `never_cut`.
    """
    kept = list(results)
    total = sum(len(result.content) for result in kept if isinstance(result.content, str))
    share = limit / max(1, len(kept))
    cuttable = [
        (len(result.content), index)
        for index, result in enumerate(kept)
        if isinstance(result.content, str) and not result.handle and result.name not in never_cut
    ]
    for size, index in sorted(cuttable, key=lambda one: (-one[0], one[1])):
        if total <= limit or size <= _preview_chars(share) + PREVIEW_FRAME_CHARS:
            break
        kept[index] = spill(kept[index], store, session_id, share)
        total += len(kept[index].content) - size
    return kept


def spill(result: ToolResult, store: ResultStore, session_id: str, limit: int | float) -> ToolResult:
    """The result with a preview as its content; stores the full text if there is space."""
    text = result.text
    saved, error = attempt(store.save, session_id, result.call_id or result.name, text)
    handle = saved or ""
    advice = f"the full text is in {handle}; read parts of it with read_file (offset, limit) or search_files"
    if error is not None:
        # The tool has run: a failing store may lose the full text, but not the result.
        logger.error("cannot store the full result of tool %r", result.name, exc_info=error)
        reason = getattr(error, "strerror", None) or type(error).__name__
        advice = f"the full text could not be stored ({reason}); request less"
    budget = _preview_chars(limit)
    head = text[: budget * 2 // 3]
    tail = text[-(budget // 3) :]
    preview = {
        "truncated": True,
        "total_chars": len(text),
        "preview": f"{head}\n… [{len(text) - len(head) - len(tail)} characters omitted] …\n{tail}",
        "handle": handle,
        "advice": advice,
    }
    if result.is_error:
        preview = {"error": result.error_message[:500], **preview}
    return msgspec.structs.replace(result, content=json.dumps(preview, ensure_ascii=False), handle=handle)


def _preview_chars(limit: int | float) -> int:
    return int(max(200, min(PREVIEW_HEAD_CHARS + PREVIEW_TAIL_CHARS, limit // 2)))
