"""Patterns are found however the output is cut, and told within limits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from toolcrib.processes.output import LineMatcher, OutputWatch, WatchBreaker, WatchLimits

LIMITS = WatchLimits()


def pieces_of(text: str, places: list[int]) -> list[str]:
    edges = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(
    st.text(alphabet="abé\n", max_size=200),
    st.lists(st.integers(0, 200), max_size=40),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_each_matching_line_is_found_once_however_it_is_cut(text: str, places: list[int], patterns: list[str]) -> None:
    """The number of matching lines does not depend on the pieces that the text came in."""
    matcher = LineMatcher(tuple(patterns))

    found = [match for piece in pieces_of(text, places) for match in matcher.feed(piece)]

    assert len(found) == sum(any(pattern in line for pattern in patterns) for line in text.split("\n"))


def test_a_word_on_an_unfinished_line_is_found_at_once() -> None:
    """A prompt without a line end counts, and its line is not told twice."""
    matcher = LineMatcher(("Password:",))

    assert matcher.feed("Pass") == []
    assert matcher.feed("word: ") == [("Password:", "Password: ")]
    assert matcher.feed("Password:\nPassword:\n") == [("Password:", "Password:")]


def test_colours_inside_a_word_do_not_hide_it() -> None:
    """A pattern is what a person reads, not what the terminal is sent."""
    matcher = LineMatcher(("ready",))

    assert matcher.feed("\x1b[32mrea\x1b[1mdy\x1b[0m now\r\n") == [("ready", "ready now")]


def test_a_line_without_end_is_searched_across_its_pieces_and_stays_small() -> None:
    """A pattern that is cut far into an endless line is found."""
    matcher = LineMatcher(("needle",))
    for _ in range(50):
        assert matcher.feed("x" * 10_000) == []

    matcher.feed("nee")
    found = matcher.feed("dle" + "y" * 10_000)

    assert [pattern for pattern, _ in found] == ["needle"]
    assert "needle" in found[0][1]
    assert len(found[0][1]) <= 2_000


def test_matches_within_a_window_are_told_together_at_its_end() -> None:
    """The first match is told at once, the next ones once, fifteen seconds later."""
    watch = OutputWatch(("ERROR",), LIMITS)

    watch.feed("ERROR 1\n", now=100.0)
    first = watch.due(100.0)
    watch.feed("ERROR 2\nfine\nERROR 3\n", now=101.0)
    early = watch.due(101.0)
    late = watch.due(115.0)

    assert [(told.type, told.pattern, told.output) for told in first] == [("watch_match", "ERROR", "ERROR 1")]
    assert early == []
    assert [told.output for told in late] == ["ERROR 2\nERROR 3"]
    assert watch.due(200.0) == []


def test_what_does_not_fit_into_an_event_is_counted() -> None:
    """At most twenty lines and two thousand characters are shown; the rest is a number."""
    watch = OutputWatch(("x",), LIMITS)

    watch.feed("x\n" * 50, now=0.0)
    many = watch.due(0.0)[0]
    watch.feed(("x" * 1_500 + "\n") * 3, now=20.0)
    long = watch.due(20.0)[0]

    assert (len(many.output.splitlines()), many.suppressed) == (20, 30)
    assert (len(long.output.splitlines()), long.suppressed) == (1, 2)


def test_a_process_that_matches_all_the_time_is_not_watched_any_more() -> None:
    """Three windows in a row with more to tell end the watch."""
    watch = OutputWatch(("tick",), LIMITS)
    told = []

    for second in range(120):
        watch.feed("tick\n", now=float(second))
        told += watch.due(float(second))

    assert [one.type for one in told] == ["watch_match"] * 4 + ["watch_disabled"]


def test_a_process_that_matches_now_and_then_is_watched_for_ever() -> None:
    """A match after a quiet window starts the counting anew."""
    watch = OutputWatch(("tick",), LIMITS)
    told = []

    for minute in range(20):
        watch.feed("tick\n", now=minute * 60.0)
        told += watch.due(minute * 60.0)

    assert [one.type for one in told] == ["watch_match"] * 20


def test_what_is_held_back_is_told_at_the_end() -> None:
    """No match is lost because the process ends within a window."""
    watch = OutputWatch(("x",), LIMITS)
    watch.feed("x 1\n", now=0.0)
    watch.due(0.0)
    watch.feed("x 2\n", now=1.0)

    assert [told.output for told in watch.due(1.0, at_end=True)] == ["x 2"]


def test_a_session_that_hears_too_much_gets_a_pause() -> None:
    """Fifteen events in ten seconds stop all watches of the session for thirty."""
    breaker = WatchBreaker(LIMITS)

    tripped = [breaker.count(number * 0.1) for number in range(15)]

    assert tripped == [False] * 14 + [True]
    assert breaker.is_open(31.0)
    assert not breaker.is_open(31.5)
    assert not any(WatchBreaker(LIMITS).count(number * 1.0) for number in range(100))
