"""What is kept of a process's output: the newest in memory, the oldest on disk, no character broken."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from toolcrib.processes.output import ProcessOutput, RollingText

TEXTS = st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=400)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


def make_output(folder: Path, *, buffer_chars: int = 100, kept_bytes: int = 1_000) -> ProcessOutput:
    folder.mkdir(exist_ok=True)
    return ProcessOutput(folder, buffer_chars=buffer_chars, kept_bytes=kept_bytes)


@given(TEXTS, st.lists(st.integers(0, 1_600), max_size=30), st.integers(1, 500))
def test_text_is_the_same_however_the_bytes_are_cut(text: str, places: list[int], limit: int) -> None:
    """The end of the text is kept, with every character whole, wherever the bytes were cut."""
    rolling = RollingText(limit)

    heard = "".join(rolling.feed(piece) for piece in cut(text.encode(), places)) + rolling.feed(b"", final=True)

    assert heard == text
    assert rolling.text() == text[-limit:]
    assert rolling.end == len(text)
    assert rolling.newlines == text.count("\n")
    assert rolling.tail(7) == text[-limit:][-7:]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=20))
def test_bytes_that_are_no_text_are_replaced_the_same_way_however_they_are_cut(data: bytes, places: list[int]) -> None:
    """Binary output becomes replacement characters, independent of the pieces it came in."""
    rolling = RollingText(1_000)

    for piece in cut(data, places):
        rolling.feed(piece)
    rolling.feed(b"", final=True)

    assert rolling.text() == data.decode("utf-8", "replace")


@given(st.lists(TEXTS, max_size=20), st.integers(1, 300))
def test_a_reader_who_reads_on_misses_only_what_was_dropped(pieces: list[str], limit: int) -> None:
    """Reading on from the last position gives each character at most once and in order."""
    rolling = RollingText(limit)
    position = 0

    for piece in pieces:
        rolling.feed(piece.encode())
        new = rolling.since(position)
        assert new == piece[-limit:]
        position = rolling.end


def test_little_pieces_do_not_pile_up() -> None:
    """A million letters that come one by one take no more room than the limit and a bit."""
    rolling = RollingText(10_000)

    for _ in range(100_000):
        rolling.feed(b"x")

    assert len(rolling.text()) == 10_000
    assert rolling.end == 100_000


def test_lines_that_left_the_memory_are_read_from_disk(tmp_path: Path) -> None:
    """Line numbers count from the very beginning, and old lines are still there."""
    output = make_output(tmp_path / "p", buffer_chars=50, kept_bytes=100_000)
    for number in range(1_000):
        output.feed(f"line {number}\n".encode())

    found = output.lines(10, 3)

    assert found.lines == ["line 10", "line 11", "line 12"]
    assert found.total == 1_000
    assert output.lines(998, 10).lines == ["line 998", "line 999"]
    assert output.last_lines(2).lines == ["line 998", "line 999"]
    assert output.last_lines(2).first == 998


def test_a_gap_between_what_disk_and_memory_keep_is_said(tmp_path: Path) -> None:
    """Beyond both bounds the middle is lost, and the answer says which lines and how to go on."""
    output = make_output(tmp_path / "p", buffer_chars=50, kept_bytes=100)
    for number in range(1_000):
        output.feed(f"line {number}\n".encode())

    found = output.lines(0, 500)

    assert found.lines[0] == "line 0"
    assert "were not kept" in found.note
    assert output.lines(999, 1).lines == ["line 999"]


def test_a_line_without_an_end_counts(tmp_path: Path) -> None:
    """The last line is shown even before its end was printed."""
    output = make_output(tmp_path / "p")
    output.feed(b"one\ntwo")

    assert output.last_lines(10).lines == ["one", "two"]
    assert output.last_lines(10).total == 2


def test_stored_output_reads_like_the_live_one(tmp_path: Path) -> None:
    """Another process of ours finds the same lines under the same numbers."""
    for kept_bytes in (100, 1_000_000):
        folder = tmp_path / str(kept_bytes)
        live = make_output(folder, kept_bytes=kept_bytes)
        for number in range(500):
            live.feed(f"zeile {number} äöü\n".encode())
        live.keep()

        stored = ProcessOutput.stored(
            folder, buffer_chars=100, kept_bytes=kept_bytes, chars=live.rolling.end, newlines=live.rolling.newlines
        )

        for offset in (0, 2, 250, 495, 499):
            assert stored.lines(offset, 2) == live.lines(offset, 2)
        assert stored.last_lines(3) == live.last_lines(3)


def test_a_process_that_printed_little_writes_nothing_until_it_is_kept(tmp_path: Path) -> None:
    """Small output costs no file while the process runs."""
    output = make_output(tmp_path / "p")
    output.feed(b"hello\n")

    assert list((tmp_path / "p").iterdir()) == []
    output.keep()
    assert (tmp_path / "p" / "output").read_bytes() == b"hello\n"


def test_output_that_cannot_be_stored_is_still_heard(tmp_path: Path) -> None:
    """A folder that went away costs the old output, and nothing else."""
    output = ProcessOutput(tmp_path / "missing", buffer_chars=100, kept_bytes=1_000_000)

    for _ in range(10):
        output.feed(b"x" * 60_000 + b"\n")
    output.feed(b"last\n")
    output.keep()

    assert output.last_lines(1).lines == ["last"]
