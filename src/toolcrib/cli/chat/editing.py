"""The input line in the person's own editor."""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from toolcrib.config.environment import environment

FALLBACK = "vi"


async def edit_in_editor(text: str, terminal: TextIO) -> str:
    """The text as it was saved in $VISUAL or $EDITOR; as it was given where the editor fails. Needs the terminal."""
    command = shlex.split(environment().get("VISUAL") or environment().get("EDITOR") or FALLBACK)
    with tempfile.TemporaryDirectory(prefix="toolcrib-") as folder:
        file = Path(folder, "message.md")
        _write(file, text)
        try:
            editor = await asyncio.create_subprocess_exec(
                *command, str(file), stdin=sys.stdin, stdout=terminal.fileno(), stderr=terminal.fileno()
            )
        except OSError as error:
            terminal.write(f"{command[0]} cannot be started: {error.strerror}; set EDITOR to an editor of yours\n")
            return text
        failed = await editor.wait() != 0
        return text if failed else _read(file)


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace").rstrip("\n")
