"""The set-up as a conversation: five steps, each of which can be left out with Enter."""

from __future__ import annotations

import functools
from collections.abc import Callable

import click

from toolcrib.cli.output import note, print_line
from toolcrib.cli.setup.asking import say
from toolcrib.cli.setup.model_step import model_step
from toolcrib.cli.setup.other_steps import approvals_step, backend_step, tools_step, toolsets_step
from toolcrib.cli.setup.saved import Saved
from toolcrib.config.paths import Home


def run_wizard(home: Home, *, test: bool) -> None:
    """Go through all steps. Ctrl-C stops; what was answered until then is kept, and said."""
    saved = Saved(home)
    steps: list[tuple[str, Callable[[Saved], None]]] = [
        ("Which model answers", functools.partial(model_step, test=test)),
        ("What tools need", tools_step),
        ("Which toolsets the model is offered", toolsets_step),
        ("When you are asked", approvals_step),
        ("Where commands run", backend_step),
    ]
    say("Enter leaves things as they are, Ctrl-C stops. Every answer is saved at once.", first="", rest="")
    try:
        for number, (title, step) in enumerate(steps, 1):
            note(f"\n{number}/{len(steps)} {title}")
            step(saved)
    except (click.Abort, KeyboardInterrupt):
        note(f"\nStopped; {saved}. Type `toolcrib setup` to go on.")
        raise click.Abort from None
    print_line(f"Done; {saved}. Type `toolcrib chat` to begin, or `toolcrib doctor` to see the whole state.")
