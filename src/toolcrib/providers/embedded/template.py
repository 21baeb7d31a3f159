"""The chat template of a model, read out of its file and made to fit how the model really writes its calls."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_KEY = b"tokenizer.chat_template"
_STRING = 8
# A key of the GGUF header: its length, its bytes, the type of its value.
_ENTRY = struct.pack("<Q", len(_KEY)) + _KEY + struct.pack("<I", _STRING)

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_SENTENCE = f"within {_OPENING}{_CLOSING} XML tags"


def read_template(model: Path) -> str:
    """The chat template in a GGUF file; empty when it has none."""
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(_ENTRY)
        if at < 0:
            return ""
        at += len(_ENTRY)
        (length,) = struct.unpack_from("<Q", content, at)
        return bytes(content[at + 8 : at + 8 + length]).decode("utf-8", "replace")


def with_fences(template: str) -> str:
    """The template with json fences where it had `<tool_call>` tags.

    Models of the Qwen-Coder family write their calls in a fenced block, whatever they are told; the engine only knows
    them for calls when the template says so.
    """
    fenced = template.replace(_SENTENCE, "in a json code block")
    return fenced.replace(_OPENING, "```json").replace(_CLOSING, "```")
