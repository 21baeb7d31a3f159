"""The files that pages leave in the cache: full texts, snapshots and screenshots."""

from __future__ import annotations

import os
from pathlib import Path

from toolcrib.config.page_files import PageFiles, owner_of_cached


def test_the_oldest_files_make_room_for_new_ones(tmp_path: Path) -> None:
    """All files together stay within the limit; the one that was just saved is never the one to go."""
    files = PageFiles(tmp_path, max_bytes=1_000)
    saved = []
    for number in range(4):
        path = files.save("a.example", f"https://a.example/{number}", bytes(400), ".png")
        os.utime(path, (number, number))
        saved.append(path)

    assert [path.exists() for path in saved] == [False, False, True, True]
    assert files.save("a.example", "https://a.example/large", bytes(2_000), ".png").exists()
    assert not any(path.exists() for path in saved)


def test_a_page_that_is_saved_again_replaces_itself(tmp_path: Path) -> None:
    """It counts once, and only its owner can read it."""
    files = PageFiles(tmp_path, max_bytes=1_000)
    other = files.save("b.example", "https://b.example/", bytes(300), ".md")

    for text in (b"before" * 100, b"after" * 100):
        path = files.save("a.example", "https://a.example/", text, ".md")

    assert path.read_bytes() == b"after" * 100
    assert other.exists()
    assert path.stat().st_mode & 0o777 == 0o600


def test_owners_have_folders_and_limits_of_their_own(tmp_path: Path) -> None:
    """One who saves much does not push out the files of another."""
    owners = iter(["", "ada", "ada"])
    files = PageFiles(tmp_path / "web", max_bytes=500, owner=lambda: next(owners))

    mine, hers, later = (files.save("a.example", f"https://a.example/{n}", bytes(400), ".md") for n in range(3))

    assert (mine.exists(), hers.exists(), later.exists()) == (True, False, True)
    assert [owner_of_cached(tmp_path, str(path)) for path in (mine, later)] == ["", "ada"]
