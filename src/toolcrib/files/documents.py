"""The text of PDFs, notebooks and office files, extracted by a separate process with limits on time and memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolcrib.core.errors import ToolcribError
from toolcrib.files.file_types import DocumentKind

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
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > 1 and sum(len(one.text) for one in self._kept.values()) > KEPT_CHARS:
                self._kept.popitem(last=False)
        return found


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
        return DocumentFailed(f"that needs the package {said['missing']!r}; run: {INSTALL}")
    return DocumentFailed(said["error"]) if "error" in said else None
