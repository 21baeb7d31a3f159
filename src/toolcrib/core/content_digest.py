"""The SHA-256 of a file's content, computed once in a call: undo and the file tools read the same large files."""

from __future__ import annotations

import hashlib

from toolcrib.core.context import CallMemo

SHARED_BYTES = range(64_000, 8_000_001)
"""Smaller contents are hashed as quickly as they are compared; larger ones would take too much memory."""
SHARED_CONTENTS = 2
"""A file as it was, and as it is now."""


def digest_of(content: bytes, memo: CallMemo | None = None) -> bytes:
    """The SHA-256; a content that this call has hashed a moment ago is compared instead, which is much quicker."""
    if memo is None or len(content) not in SHARED_BYTES:
        return hashlib.sha256(content).digest()
    for known, digest in memo.hashed:
        if known == content:
            return digest
    digest = hashlib.sha256(content).digest()
    memo.hashed = ((content, digest), *memo.hashed)[:SHARED_CONTENTS]
    return digest
