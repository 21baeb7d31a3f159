"""Proposals for texts that do not occur: where they may have been meant, and how they differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.files.near_matches import MAX_PROPOSALS, WorkBudget, near_matches

PROGRAM = """\
import os

def load(path):
\tdata = open(path).read()
\treturn data

class Store:
    name = \u201chello\u201d \u2013 world
    def save(self, value):
        self.value = value   
        print('saved')
"""  # noqa: W291 - trailing spaces are the point


@pytest.mark.parametrize(
    ("wanted", "line", "differs"),
    [
        ("    data = open(path).read()\n    return data", 4, "indentation (tabs in the file)"),
        ("        self.value = value\n        print('saved')", 10, "trailing white space in the file"),
        ('print("saved")', 11, "quotes"),
        ('name = "hello" - world', 8, "look-alike characters"),
        ("def  save(self,value):", 9, "white space inside the line"),
        ("IMPORT OS", 1, "upper and lower case"),
        ("print(\\'saved\\')", 11, "backslashes"),
        ("def save(self, values):", 9, "other text"),
        ("def load(path):\n\tdata = open(path)\n\treturn data\n", 3, "other text"),
        ("imprt", 1, "other text"),
        ("def load(path):\n\n\tdata = open(path).read()\n\treturn data", 3, "empty lines"),
        ("\treturn data\nclass Store:", 5, "empty lines"),
    ],
)
def test_a_near_match_names_the_place_and_the_difference(wanted: str, line: int, differs: str) -> None:
    """The best proposal is the place that was meant, with the kind of difference in a phrase."""
    best = near_matches(PROGRAM, wanted)[0]

    assert best.first_line == line
    assert differs in best.why


def test_the_lines_are_shown_as_they_are_in_the_file() -> None:
    """A proposal holds the text of the file word for word, so that it can be used as it is."""
    best = near_matches(PROGRAM, "data = open( path ).read()\nreturn data")[0]

    assert best.as_json()["text"] == "\tdata = open(path).read()\n\treturn data"
    assert best.as_json()["lines"] == "4-5"


@pytest.mark.parametrize("wanted", ["", "   \n", "completely unrelated words"])
def test_nothing_is_proposed_where_nothing_is_near(wanted: str) -> None:
    """A text that is like nothing in the file gives no proposal."""
    assert near_matches(PROGRAM, wanted) == ()


@given(st.text(max_size=200), st.text(max_size=60))
def test_any_texts_can_be_compared(text: str, wanted: str) -> None:
    """No text makes the search fail, and proposals are lines of the file."""
    found = near_matches(text, wanted)
    lines = text.split("\n")

    assert len(found) <= MAX_PROPOSALS
    for one in found:
        assert one.lines == tuple(lines[one.first_line - 1 : one.first_line - 1 + len(one.lines)])
        assert one.why


BIG = "".join(f"line {number} foo bar baz qux\n" for number in range(40_000))


@pytest.mark.services
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (BIG, BIG[5:600_000].replace("foo", "fxo")),
        (BIG, "a" * 500_000),
        (BIG, "line foo bar\n" * 40_000),
        ("x\n" * 500_000, "x\n" * 200_000 + "y"),
        ("word " * 200_000, "wrod " * 100_000),
        ("ab" * 500_000, "ba" * 250_000 + "c"),
    ],
    ids=["half of the file", "one long line", "common words", "equal lines", "long lines", "no words"],
)
def test_the_work_grows_only_with_the_size(text: str, wanted: str) -> None:
    """A megabyte against a long text costs a fixed number of looks at each character, and a little more."""
    effort = WorkBudget(limit=100 * (len(text) + len(wanted)))

    near_matches(text, wanted, effort)

    assert effort.spent <= 10 * (len(text) + len(wanted)) + 100 * 300 * 300


def test_a_search_without_means_gives_nothing() -> None:
    """Where the limit does not even allow to read the file, there is no proposal."""
    assert near_matches(PROGRAM, "import  os", WorkBudget(limit=10)) == ()


def test_line_numbers_of_read_file_are_named_as_what_differs() -> None:
    """A model that copies them is told so, and gets the lines as they are."""
    (found,) = near_matches("one\ntwo\nthree\n", "     2|two\n     3|three")

    assert (found.first_line, found.lines) == (2, ("two", "three"))
    assert "line numbers" in found.why
    assert near_matches("a table:\n12|some cell\n", "12|same cell")[0].lines == ("12|some cell",)
