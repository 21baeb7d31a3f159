"""`toolcrib sessions resume ID`."""

from __future__ import annotations

import click

from toolcrib.cli.commands.chat import command as chat
from toolcrib.cli.sessions import complete_sessions, find_session, opened_store
from toolcrib.sessions.store import LATEST


@click.command(name="resume")
@click.argument("session_id", metavar="[ID]", default=LATEST, shell_complete=complete_sessions)
@click.option("-q", "--query", metavar="TEXT", help="Ask this one question in it, print the answer and end.")
@click.pass_context
def command(ctx: click.Context, session_id: str, query: str | None) -> int:
    """Go on with a conversation.

    ID is one of `toolcrib sessions list`, or enough of its beginning; without it, the latest.
    `toolcrib chat --resume ID` does the same and takes all the options of the chat.
    """
    with opened_store() as store:
        session = find_session(store, session_id)
    code: int = ctx.invoke(chat, resume=session.id, query=query)
    return code
