"""The digests of contents that a call shares between undo and the file tools."""

import hashlib
import json
from pathlib import Path

import pytest

from toolcrib import Runtime
from toolcrib.core.content_digest import SHARED_BYTES, SHARED_CONTENTS, digest_of
from toolcrib.core.context import CallMemo


@pytest.mark.parametrize("size", [0, 10, SHARED_BYTES.start, 1_000_000, SHARED_BYTES.stop])
def test_contents_that_differ_in_one_byte_have_their_own_digests(size: int) -> None:
    memo = CallMemo()
    for last in (b"a", b"b", b"c", b"a"):
        content = b"x" * size + last
        assert digest_of(content, memo) == hashlib.sha256(content).digest() == digest_of(content)
        assert len(memo.hashed) <= SHARED_CONTENTS


def test_an_equal_content_is_not_kept_twice() -> None:
    memo = CallMemo()
    for _ in range(3):
        digest_of(bytes(bytearray(b"x" * SHARED_BYTES.start)), memo)
    assert len(memo.hashed) == 1
    memo.clear()
    assert memo.hashed == ()


async def test_a_large_file_that_another_program_changed_is_not_overwritten(tmp_path: Path) -> None:
    file, text = tmp_path / "large.txt", "a line of text\n" * 10_000
    async with Runtime(home=tmp_path / "home", workspace=tmp_path) as runtime:
        for content in (text, text + "more\n"):
            written = await runtime.call("write_file", {"path": str(file), "content": content})
            assert json.loads(str(written.content))["bytes"] == len(content)
        file.write_text(text + "MORE\n")
        refused = await runtime.call("write_file", {"path": str(file), "content": text})
    assert "has changed since you last read it" in str(refused.content)
    assert file.read_text() == text + "MORE\n"
