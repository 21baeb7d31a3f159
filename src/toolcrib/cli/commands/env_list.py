"""`toolcrib env list`."""

from __future__ import annotations

import asyncio

import click

from toolcrib.cli.environments import here
from toolcrib.cli.output import hint, print_json, print_table
from toolcrib.environments.create import backend_statuses
from toolcrib.environments.specs import backend_name


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(as_json: bool) -> None:
    """List the backends for commands: which can be used here, and why one cannot.

    The backend that the settings choose is marked with a star. Nothing is started for this; programs and services are
    only asked whether they are there.

    Each object of --json has the keys name, usable, configured, detail and remedy.
    """
    found = here()
    chosen = backend_name(found.configured)
    statuses = asyncio.run(backend_statuses(found.settings, found.environ))
    if as_json:
        print_json(
            [
                {
                    "name": status.kind,
                    "usable": status.usable,
                    "configured": status.kind == chosen,
                    "detail": status.detail,
                    "remedy": status.remedy,
                }
                for status in statuses
            ]
        )
        return
    print_table(
        ["backend", "usable", "what is here, or missing", "to do"],
        [
            [
                f"{status.kind} *" if status.kind == chosen else status.kind,
                "yes" if status.usable else "no",
                status.detail,
                status.remedy or "-",
            ]
            for status in statuses
        ],
    )
    hint("* is in use; change it with `toolcrib config set terminal.backend NAME`.")
