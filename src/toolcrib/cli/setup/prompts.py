"""Prompts on stderr. Enter always keeps the current setting."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

import click
from msgspec import Struct

from toolcrib.cli.output import COLUMN_GAP, note
from toolcrib.core.errors import nearest_names

WIDEST_COLUMNS = 100


class MenuOption(Struct, frozen=True, kw_only=True):
    """An option of a menu, chosen by number or name."""

    name: str
    text: str
    is_set: bool = False
    """Whether it is the current setting."""


def ask(prompt: str, *, hidden: bool = False) -> str:
    """The typed text, stripped; empty for Enter. Ctrl-C and Ctrl-D raise click.Abort."""
    answer: str = click.prompt(prompt, default="", show_default=False, hide_input=hidden, err=True)
    return answer.strip()


def ask_yes(question: str) -> bool:
    """Whether the person agrees; Enter means no."""
    return click.confirm(question, default=False, err=True)


def choose_one(prompt: str, options: Sequence[MenuOption]) -> MenuOption | None:
    """The option chosen from a numbered list; None for Enter."""
    show(options)
    while True:
        answer = ask(prompt)
        if not answer:
            return None
        found = _find(options, answer)
        if found is not None:
            return found
        note(f"  {_unknown(options, answer)}")


def choose_several(prompt: str, options: Sequence[MenuOption]) -> list[MenuOption]:
    """The chosen options: numbers or names separated by commas, or `all`; none for Enter."""
    show(options)
    while True:
        words = ask(prompt).replace(",", " ").split()
        if words == ["all"]:
            return list(options)
        found = [(word, _find(options, word)) for word in words]
        unknown = [word for word, option in found if option is None]
        if not unknown:
            return list({option.name: option for _, option in found if option is not None}.values())
        note(f"  {_unknown(options, unknown[0])}")


def show(options: Sequence[MenuOption]) -> None:
    """Print the options as a numbered list; a star marks the current setting."""
    digits = len(str(len(options)))
    width = max((len(option.name) for option in options), default=0)
    for number, option in enumerate(options, 1):
        mark = "*" if option.is_set else " "
        head = f"  {number:>{digits}} {mark} {option.name:<{width}}{COLUMN_GAP}"
        say(option.text, first=head, rest=" " * len(head))


def say(text: str, *, first: str = "  ", rest: str = "  ") -> None:
    """Print text wrapped to the terminal."""
    columns = min(shutil.get_terminal_size().columns, WIDEST_COLUMNS)
    wrapped = textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    for line in wrapped or [first]:
        note(line.rstrip())


def _find(options: Sequence[MenuOption], answer: str) -> MenuOption | None:
    if answer.isdecimal():
        number = int(answer)
        return options[number - 1] if 1 <= number <= len(options) else None
    return next((option for option in options if option.name.lower() == answer.lower()), None)


def _unknown(options: Sequence[MenuOption], answer: str) -> str:
    nearest = nearest_names(answer, [option.name for option in options])
    meant = f"did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
    return f"{answer!r} is not an option; {meant}Type a number from 1 to {len(options)}, a name, or press Enter."
