"""Finding tools by words, and when tools are deferred."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.definitions.search import ToolIndex, ToolMatch, estimate_tokens, should_defer

names = st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True)


def tool(name: str, description: str = "", *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("get_weather", "Current weather and forecast for a city.", "city", "units"),
    tool("send_message", "Send a message to a chat on any platform.", "target", "message"),
    tool("readFile", "Read a text file with line numbers.", "path", "offset"),
    tool("search_files", "Search file contents or find files by name.", "pattern", "path"),
    tool("listS3Buckets", "List storage containers.", "region"),
    tool("天気予報", "東京の天気を取得する。", "都市"),
    tool("crème-brûlée", "Préparer un dessert.", "sucre"),
]


def found(query: str, limit: int = 5) -> list[str]:
    return [hit.name for hit in ToolIndex(TOOLS).search(query, limit)]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("weather in a city", "get_weather"),
        ("WEATHER", "get_weather"),
        ("read file", "readFile"),
        ("s3", "listS3Buckets"),
        ("buckets", "listS3Buckets"),
        ("units", "get_weather"),
        ("region", "listS3Buckets"),
        ("send", "send_message"),
        ("find files by pattern", "search_files"),
        ("CRÈME", "crème-brûlée"),
        ("cre\u0300me", "crème-brûlée"),
        ("都市", "天気予報"),
    ],
)
def test_the_best_tool_comes_first(query: str, best: str) -> None:
    """Words of names (snake, kebab, camel, digits), descriptions and parameters are all found, in any case."""
    assert found(query)[0] == best


@pytest.mark.parametrize(
    ("query", "best"), [("forecas", "get_weather"), ("天気", "天気予報"), ("ucket", "listS3Buckets")]
)
def test_parts_of_words_are_found_when_no_whole_word_is(query: str, best: str) -> None:
    """Where no word matches, a substring does."""
    assert found(query)[0] == best


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    """A word that few tools hold says more about what is meant."""
    index = ToolIndex([tool("a", "file file"), tool("b", "file rotate"), tool("c", "file"), tool("d", "file")])

    assert index.search("file rotate")[0].name == "b"


def test_a_short_text_that_holds_the_word_beats_a_long_one() -> None:
    """BM25 discounts long descriptions."""
    index = ToolIndex([tool("long", "copy " + "other words " * 50), tool("short", "copy it")])

    assert [hit.name for hit in index.search("copy")] == ["short", "long"]


def test_ties_are_ordered_by_name_whatever_the_order_of_definitions() -> None:
    """The same tools give the same list."""
    tools = [tool(name, "Does the same thing.") for name in ("c", "a", "b")]

    forwards, backwards = ToolIndex(tools).search("thing"), ToolIndex(tools[::-1]).search("thing")

    assert [hit.name for hit in forwards] == ["a", "b", "c"]
    assert forwards == backwards


def test_a_hit_carries_name_description_and_a_positive_score() -> None:
    """A hit says enough to choose by."""
    [hit] = ToolIndex([tool("get_weather", "Weather.")]).search("weather")

    assert hit == ToolMatch("get_weather", "Weather.", hit.score)
    assert hit.score > 0


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_an_empty_query_finds_nothing(query: str) -> None:
    """No words, no tools."""
    assert found(query) == []


@pytest.mark.parametrize("query", ["zzzzqqq", "!!!", "\x00", "😀"])
def test_a_query_that_nothing_answers_finds_nothing(query: str) -> None:
    """No hit is better than a wrong one."""
    assert found(query) == []


def test_a_huge_query_is_answered() -> None:
    """A model may send a whole page; its beginning is searched for."""
    assert found("weather " + "nonsense " * 200_000)[0] == "get_weather"


@pytest.mark.parametrize(("limit", "count"), [(-1, 0), (0, 0), (1, 1), (2, 2), (100, 3)])
def test_the_limit_is_kept(limit: int, count: int) -> None:
    """At most so many hits are given, and none for a limit that is not positive."""
    index = ToolIndex([tool(name, "word") for name in "abc"])

    assert len(index.search("word", limit)) == count


def test_definitions_that_are_odd_are_indexed_as_far_as_they_go() -> None:
    """A missing description or an odd schema costs no search."""
    odd: list[Any] = [{}, {"function": None}, {"function": {"name": "only_name", "parameters": True}}]

    assert [hit.name for hit in ToolIndex(odd).search("name")] == ["only_name"]
    assert ToolIndex([]).search("name") == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(names, st.text(max_size=40)), min_size=1, max_size=12, unique_by=lambda pair: pair[0]))
def test_every_tool_is_found_first_by_its_own_name(pairs: list[tuple[str, str]]) -> None:
    """Whoever types a tool's exact name gets that tool first, whatever the others say."""
    index = ToolIndex([tool(name, description) for name, description in pairs])

    for name, _ in pairs:
        assert index.search(name)[0].name == name


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.integers(1, 8))
def test_any_query_gives_ordered_distinct_hits(query: str, limit: int) -> None:
    """Hits fall in score, ties rise in name, and no tool is given twice."""
    hits = ToolIndex(TOOLS).search(query, limit)

    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.name))
    assert len({hit.name for hit in hits}) == len(hits) <= limit


def test_tokens_are_a_quarter_of_the_compact_json() -> None:
    """The estimate counts the characters that are sent."""
    assert estimate_tokens([]) == 0
    assert estimate_tokens([{"a": "x" * 92}]) == 25


@pytest.mark.parametrize(
    ("tokens", "context", "mode", "pct", "expected"),
    [
        (10_000, 100_000, "auto", 10, True),
        (9_999, 100_000, "auto", 10, False),
        (19_999, None, "auto", 10, False),
        (20_000, None, "auto", 10, True),
        (20_000, 0, "auto", 10, True),
        (20_000, 1_000_000, "auto", 2.5, False),
        (25_000, 1_000_000, "auto", 2.5, True),
        (0, 100_000, "auto", 0, False),
        (1, 1_000_000, "on", 10, True),
        (0, 1_000_000, "on", 10, False),
        (999_999, 1_000, "off", 10, False),
    ],
)
def test_tools_are_deferred_by_mode_and_share_of_the_context(
    tokens: int, context: int | None, mode: Any, pct: float, expected: bool
) -> None:
    """auto: from a share of the context, or 20,000 tokens if it is unknown; on: whenever there are any; off: never."""
    assert should_defer(tokens, context, mode, pct) is expected
