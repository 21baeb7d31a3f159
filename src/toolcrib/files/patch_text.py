"""From the text of a patch, in whatever format, to the changes that it asks for."""

from __future__ import annotations

from toolcrib.files import unified_diffs, v4a
from toolcrib.files.patch_format import FileChange, PatchError
from toolcrib.files.text_files import as_lf

MAX_PATCH_CHARS = 10_000_000


def parse_patch(text: str) -> tuple[FileChange, ...]:
    """The changes of a V4A patch or a unified diff; raises PatchError."""
    if len(text) > MAX_PATCH_CHARS:
        raise PatchError(f"the patch is longer than {MAX_PATCH_CHARS} characters; send it in parts")
    lines = as_lf(text).removesuffix("\n").split("\n")
    if v4a.looks_like_v4a(lines):
        return v4a.parse(lines)
    if unified_diffs.looks_like_unified(lines):
        return unified_diffs.parse(lines)
    raise PatchError(
        "the text is no patch; begin with '*** Begin Patch' and '*** Update File: PATH', or send a unified diff"
    )
