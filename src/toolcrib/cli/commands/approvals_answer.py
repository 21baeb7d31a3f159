"""`toolcrib approvals answer`: answers an approval request from a running server."""

from __future__ import annotations

from urllib.parse import quote

import click

from toolcrib.cli.commands.approvals import DECIDED
from toolcrib.cli.output import note
from toolcrib.cli.server_client import ServerClient
from toolcrib.config.load import load_settings


@click.command(name="answer")
@click.argument("code", metavar="CODE")
@click.option(
    "--choice",
    type=click.Choice(["once", "session", "always", "deny"]),
    default="once",
    show_default=True,
    help="What to answer.",
)
@click.option("--reason", metavar="TEXT", default="", help="With `deny`: why, for the model.")
@click.option(
    "--connect", metavar="URL", default="", help="The server that asks; default: the one that uses this home."
)
def answer_request(code: str, choice: str, reason: str, connect: str) -> None:
    """Answer an approval request from a running server.

    CODE is the short code or the id of the request, as the server shows it.

    \b
    Examples:
      toolcrib approvals answer K7Q2ZD
      toolcrib approvals answer K7Q2ZD --choice deny --reason 'use the test database'
    """
    client = ServerClient.of_home(load_settings().home, connect)
    answer = client.post(f"/api/approvals/{quote(code, safe='')}", {"choice": choice, "reason": reason})
    note(f"Answered {code}: {DECIDED[choice]}.")
    if answer.get("run_id"):
        note("Its run had ended; a new run continues it.")
