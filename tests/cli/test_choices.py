"""Answers to questions with choices, at the console and in the chat."""

from __future__ import annotations

import pytest

from toolcrib.cli.console import chosen

CHOICES = ("Tea", "Coffee")


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        ("2", "Coffee"),
        ("tea", "Tea"),
        ("3", "3"),
        ("0", "0"),
        ("²", "²"),
        ("water", "water"),
        ("9" * 5000, "9" * 5000),
    ],
    ids=lambda text: text[:10],
)
def test_an_answer_names_a_choice_or_stands_for_itself(answer: str, meant: str) -> None:
    """By number or by text; anything else, even a number of any length, is the person's own answer."""
    assert chosen(answer, CHOICES) == meant
