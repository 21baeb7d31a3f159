"""The parts of the question: escaping, wrapping and counting."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.approval.approvers.console import EscapeFilter
from toolcrib.approval.approvers.escape import visible, width
from toolcrib.approval.approvers.question import (
    MAX_ENTRIES,
    Style,
    answer_choices,
    choice_rows,
    command_rows,
    help_text,
    preview,
    question,
    size,
)
from toolcrib.approval.approvers.question_queue import QuestionQueue
from toolcrib.core.approvals import ApprovalRequest, Danger

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]), max_size=200)
WILD_TEXT = st.one_of(ANY_TEXT, st.text("a b\n\x1b[31m\u202e\u200b\u0301\u3164\ufe0f日é", max_size=200))
PLAIN = Style(colour=False)


def made_request(command: str = "rm -rf x", **danger: object) -> ApprovalRequest:
    fields = {"rule": "recursive_delete", "description": "recursive delete", "reason": "deletes", **danger}
    return ApprovalRequest(id="r", tool="terminal", command=command, dangers=(Danger(**fields),))  # type: ignore[arg-type]


@given(WILD_TEXT)
def test_visible_text_is_printable_and_keeps_plain_characters(text: str) -> None:
    """Nothing remains that a terminal obeys or hides, and plain text stays unchanged."""
    shown = visible(text)

    assert shown.isprintable()
    assert not {"\u3164", "\ufe0f", "\u2800"} & set(shown)
    assert width(shown) >= 0
    if text.isascii() and text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\tb\r\n", "a\\tb\\r\\n"),
        ("\u202e\u2066\u200b\u200d\ufeff", "\\u202e\\u2066\\u200b\\u200d\\ufeff"),
        ("\xa0\xad\x9b", "\\xa0\\xad\\x9b"),
        ("\U000e0041\udc80", "\\U000e0041\\udc80"),
        ("日本 é e\u0301", "日本 é e\u0301"),
        ("e\u0301\u0301\u0301\u0301", "e\u0301\u0301\\u0301\\u0301"),
        (" \u0338", " \\u0338"),
    ],
)
def test_hidden_characters_are_spelled_out(text: str, shown: str) -> None:
    """Each kind of hidden, control or stacked character is escaped; letters of any script are not."""
    assert visible(text) == shown


@given(WILD_TEXT, st.integers(20, 200), st.integers(-5, 210), st.integers(-5, 210))
def test_rows_fit_and_lose_nothing(command: str, columns: int, start: int, end: int) -> None:
    """Wrapped rows never exceed the terminal and together are the whole command, wherever the span is."""
    danger = Danger(rule="r", description="d", reason="x", span=(start, end))

    rows = command_rows(command, (danger,), columns, PLAIN, whole=True)

    assert all(width(row) < columns for row in rows)
    text = [row for row in rows if row.startswith(("  | ", "  : "))]
    assert (
        "".join(row[4:] for row in text) == "".join(visible(line) for line in command.split("\n"))
        or "\u0301" in command
    )
    assert sum(row.startswith("  | ") for row in text) == command.count("\n") + 1


@given(st.text("ab \n日", max_size=3000), st.integers(0, 3000), st.integers(1, 200))
def test_first_look_always_holds_the_dangerous_words(command: str, start: int, length: int) -> None:
    """However long the command, its dangerous words are among the rows shown first."""
    start = min(start, len(command))
    words = command[start : start + length]
    danger = Danger(rule="r", description="d", reason="x", span=(start, start + length))

    rows = command_rows(command, (danger,), 100_000, Style(colour=True), whole=False)

    shown = "".join(row[4:] for row in rows if not row.startswith("  ..."))
    assert words.replace("\n", "") in shown.replace("\x1b[1;31m", "").replace("\x1b[0m", "")
    assert len(rows) < 1000


def shown_choices(request: ApprovalRequest, written: Sequence[str], columns: int) -> str:
    return "".join(f"{row}\n" for row in choice_rows(answer_choices(request, written), 0, columns, PLAIN))


@given(WILD_TEXT, st.integers(24, 200))
def test_no_text_of_a_diff_reaches_the_terminal_raw(text: str, columns: int) -> None:
    """What a file contains is as untrusted as a command."""
    request = ApprovalRequest(id="r", tool="patch", command="patch()", dangers=(), diff=f"@@ -1 +1 @@\n+{text}")

    shown = question(request, (), columns, PLAIN)

    assert all(line.isprintable() for line in shown.split("\n"))
    assert all(width(line) <= columns for line in shown.split("\n"))


@given(WILD_TEXT, st.integers(24, 200))
def test_no_text_of_a_request_reaches_the_terminal_raw(text: str, columns: int) -> None:
    """Tool names, folders, reasons, scopes and paths are as untrusted as the command."""
    danger = Danger(rule=text, description=text, reason=text, scope=text, paths=(text,))
    request = ApprovalRequest(id="r", tool=text, command=text, dangers=(danger,), cwd=text, backend=text)

    shown = question(request, [text], columns, PLAIN) + shown_choices(request, [text], columns)
    shown += help_text(request, [text], columns, PLAIN)

    assert all(line.isprintable() for line in shown.split("\n"))
    assert all(width(line) <= columns for line in shown.split("\n"))


def test_many_dangers_and_long_reasons_stay_readable() -> None:
    """A flood of findings cannot push the command off the screen."""
    dangers = tuple(Danger(rule=f"r{n}", description=f"d{n}", reason="x" * 10_000, scope="y" * 900) for n in range(500))
    request = ApprovalRequest(id="r", tool="terminal", command="rm -rf x", dangers=dangers)

    shown = question(request, (), 80, PLAIN) + shown_choices(request, (), 80)

    assert "and 488 more dangers; press e" in shown
    assert shown.count("\n") < 150


@given(
    st.lists(st.sampled_from(["\x1b", "[", "O", "S", "s", "1", ";", "~", "A", "a"]), max_size=30), st.integers(0, 30)
)
def test_terminal_sequences_are_filtered_the_same_in_any_pieces(keys: list[str], cut: int) -> None:
    """What counts as a key does not depend on where a read ends."""
    text = "".join(keys)
    pieces = EscapeFilter()

    assert pieces.feed(text[:cut]) + pieces.feed(text[cut:]) == EscapeFilter().feed(text)


def test_preview_counts_without_following_links(tmp_path: Path) -> None:
    """Files and bytes below the paths are counted; link targets are not."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(b"x" * 50_000)
    build = tmp_path / "build"
    build.mkdir()
    (build / "a").write_bytes(b"x" * 15_000)
    (build / "link").symlink_to(outside)

    [line] = preview(made_request(paths=(str(build), str(build / "a"), str(tmp_path / "missing"))))

    assert line.startswith("would delete 2 files, 15 KB")
    assert line.endswith(f": {build}")


def test_preview_is_for_this_machine_only(tmp_path: Path) -> None:
    """Paths of another backend are not looked up here."""
    request = ApprovalRequest(
        id="r", tool="t", command="x", backend="ssh", dangers=made_request(paths=(str(tmp_path),)).dangers
    )

    assert preview(request) == ()


def test_preview_stops_at_its_limits(tmp_path: Path) -> None:
    """Beyond the limit of entries or time the count says "more than" and stops."""
    (tmp_path / "a").write_bytes(b"xx")
    (tmp_path / "b").write_bytes(b"xx")
    ticks = itertools.count()

    [line] = preview(made_request(paths=(str(tmp_path),), rule="chmod", description="permissions"), lambda: next(ticks))

    assert line == f"would touch more than 0 files, 0 bytes: {tmp_path}"
    assert MAX_ENTRIES == 20_000


def test_preview_names_a_few_paths_and_counts_the_rest(tmp_path: Path) -> None:
    """Many paths do not flood the question."""
    for number in range(9):
        (tmp_path / f"{number}").write_text("x")

    lines = preview(made_request(paths=tuple(str(tmp_path / f"{number}") for number in range(9))))

    assert len(lines) == 5
    assert lines[-1] == "and 5 more paths"


@given(st.text(max_size=20))
def test_preview_survives_any_path(path: str) -> None:
    """A path that no system accepts is left out."""
    preview(made_request(paths=(f"/nowhere/{path}",)))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (4100, "4.1 KB"),
        (38_000_000, "38 MB"),
        (999_600, "1.0 MB"),
        (10**16, "10,000 TB"),
    ],
)
def test_sizes_read_as_people_say_them(count: int, text: str) -> None:
    """Two digits are enough."""
    assert size(count) == text


def test_turns_are_taken_one_at_a_time_across_loops() -> None:
    """Threads with their own loops never hold a turn together, and one that gives up blocks no other."""
    turns = QuestionQueue()
    holding: list[int] = []
    most: list[int] = []

    async def several(thread: int) -> None:
        async def once(number: int) -> None:
            async with turns.turn():
                holding.append(number)
                most.append(len(holding))
                await asyncio.sleep(0)
                holding.remove(number)

        tasks = [asyncio.create_task(once(thread * 100 + number)) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[5::5]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    threads = [threading.Thread(target=lambda n=number: asyncio.run(several(n))) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not any(thread.is_alive() for thread in threads)
    assert set(most) == {1}
