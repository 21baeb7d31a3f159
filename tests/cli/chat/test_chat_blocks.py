"""How Markdown that is still being written is cut into blocks, and how a block is drawn."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.cli.chat.markdown import ChatMarkdown
from toolcrib.cli.chat.renderer import BlockStream, TerminalRenderer

STYLE = re.compile(r"\x1b\[[0-9;]*m")
PIECES = st.lists(
    st.sampled_from(
        [
            "word",
            " ",
            "\n",
            "\n\n",
            "```",
            "```py\n",
            "~~~",
            "- ",
            "1. ",
            "# ",
            "| a |",
            "|---|",
            "> ",
            "    ",
            "`x`",
            "<b>",
        ]
    )
    | st.text("ab\n-`|# ", max_size=6)
)


def blocks_of(text: str) -> list[str]:
    stream = BlockStream()
    return [*stream.feed(text), *stream.finish()]


def drawn(text: str, columns: int = 60, *, colour: bool = False) -> str:
    return TerminalRenderer(colour=colour).draw(ChatMarkdown(text), columns)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("one\ntwo\n\nthree", ["one\ntwo", "three"]),
        ("# Title\ntext", ["# Title", "text"]),
        ("text\n```py\na\n\nb\n```\nmore", ["text", "```py\na\n\nb\n```", "more"]),
        ("````\n```\n````\nend", ["````\n```\n````", "end"]),
        ("~~~\n```\n~~~\n", ["~~~\n```\n~~~"]),
        ("```\nnot closed", ["```\nnot closed"]),
        ("- a\n- b\n\n  more of b\n- c\n\nend", ["- a\n- b\n\n  more of b\n- c", "end"]),
        ("1. a\n\n2. b\n\nend", ["1. a\n\n2. b", "end"]),
        ("before\n| a |\n|---|\n| 1 |\nafter", ["before", "| a |\n|---|\n| 1 |", "after"]),
        ("`` ` `` is code\n\nend", ["`` ` `` is code", "end"]),
        ("\n\n\n", []),
    ],
)
def test_text_is_cut_where_a_block_ends(text: str, blocks: list[str]) -> None:
    """Paragraphs end at an empty line, code at its fence, lists at what is no part of them, tables at other text."""
    assert blocks_of(text) == blocks


@given(PIECES, st.randoms(use_true_random=False))
def test_it_does_not_matter_in_which_pieces_text_arrives(pieces: list[str], random: st.DataObject) -> None:
    """One character at a time gives the same blocks as everything at once."""
    text = "".join(pieces)
    stream, found = BlockStream(), []
    at = 0
    while at < len(text):
        size = random.randint(1, 5)
        found += stream.feed(text[at : at + size])
        at += size
    found += stream.finish()

    assert found == blocks_of(text)


@given(PIECES)
def test_no_text_is_lost_between_blocks(pieces: list[str]) -> None:
    """All that is not white space is in exactly one block, in order."""
    text = "".join(pieces)

    assert "".join("".join(blocks_of(text)).split()) == "".join(text.split())


@given(PIECES)
def test_what_grows_is_what_no_block_holds_yet(pieces: list[str]) -> None:
    """Printed and growing text together are all that has arrived."""
    text = "".join(pieces)
    stream = BlockStream()
    finished = stream.feed(text)

    assert "".join("".join([*finished, stream.growing]).split()) == "".join(text.split())


def test_a_line_as_long_as_a_book_is_taken_as_quickly_as_a_short_one() -> None:
    """The cost of a piece does not grow with what came before it."""
    stream = BlockStream()
    began = time.process_time()
    for _ in range(100_000):
        stream.feed("word ")

    assert len(stream.growing) == 500_000
    assert stream.finish() == ["word " * 100_000]
    assert time.process_time() - began < 5


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=200), st.integers(20, 120))
def test_any_text_can_be_drawn_in_any_width(text: str, columns: int) -> None:
    """Whatever a model writes is drawn without an error, and no row carries padding."""
    rows = STYLE.sub("", drawn(text, columns, colour=True)).split("\n")

    assert all(row == row.rstrip(" ") for row in rows)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a <T> b", "a <T> b"),
        ("<div>\nhello\n</div>", "<div>\nhello\n</div>"),
        ("one\ntwo", "one\ntwo"),
        ("[here](http://x.example)", "here (http://x.example)"),
        ("<http://x.example>", "http://x.example"),
        ("![a cat](cat.png)", "a cat (cat.png)"),
        ("![](cat.png)", "cat.png"),
        ("```sh\nls\n```", "```sh\nls\n```"),
        ("    indented", "```\nindented\n```"),
        ("3. three\n4. four", "3 three\n 4 four"),
    ],
)
def test_nothing_that_a_model_wrote_disappears(text: str, seen: str) -> None:
    """HTML is text, a link shows its address, line breaks stay, numbers stay, and without colour so do fences."""
    assert drawn(text).strip() == seen


def test_code_is_coloured_without_background_or_padding() -> None:
    """What is copied out of the terminal is the code and nothing else."""
    shown = drawn("```python\ndef f():\n    return 1\n```", colour=True)

    assert STYLE.sub("", shown) == "def f():\n    return 1\n"
    assert shown != STYLE.sub("", shown)


@pytest.mark.parametrize(
    "text",
    [
        "a &#13;b",
        "a &#x202e;b",
        "`&#x2066;` &#x2066;b",
        "# a &#12;b",
        "[a &#x202e;](x)",
        "```a&#x202e;\nb\n```",
        "| &#13; |\n|--|",
    ],
)
def test_an_entity_cannot_steer_the_terminal(text: str) -> None:
    """Markdown has names for characters; those that move the cursor or turn the text around are not obeyed."""
    assert not re.search(r"[\r\f\u202e\u2066]", drawn(text))


@pytest.mark.services
def test_a_very_long_piece_of_code_is_drawn_without_waiting() -> None:
    """Colouring a hundred thousand lines would stop the keys from being heard; they are shown plain."""
    code = "print(1)\n" * 50_000
    began = time.process_time()

    assert STYLE.sub("", drawn(f"```python\n{code}```", colour=True)) == code
    assert time.process_time() - began < 5
