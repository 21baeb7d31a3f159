"""`toolcrib sessions search WORDS`."""

from __future__ import annotations

import click

from toolcrib.cli.approval_records import local_time
from toolcrib.cli.output import hint, print_json, print_line, print_table
from toolcrib.cli.sessions import NO_SESSIONS, SPEAKERS, complete_sessions, find_session, opened_store
from toolcrib.core.errors import UsageError
from toolcrib.sessions.search import MessageHit, SearchRequest, search_messages

ROLES = click.Choice(["user", "assistant", "tool"])


@click.command(name="search")
@click.argument("words", metavar="WORDS...", nargs=-1, required=True)
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many messages.")
@click.option(
    "--sort",
    type=click.Choice(["best", "newest", "oldest"]),
    default="best",
    show_default=True,
    help="What comes first.",
)
@click.option("--role", "roles", type=ROLES, multiple=True, help="Only messages of this role; can be repeated.")
@click.option("--in", "within", metavar="ID", shell_complete=complete_sessions, help="Only in this session.")
@click.option("--all", "include_hidden", is_flag=True, help="In those of helpers and tools, too.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(
    words: tuple[str, ...],
    count: int,
    sort: str,
    roles: tuple[str, ...],
    within: str | None,
    include_hidden: bool,
    as_json: bool,
) -> None:
    """Find conversations by what was said in them.

    All words must occur in a message; quote them to find them side by side.

    Each object of --json has the keys session_id, message_id, role, created_at, state, source and text.

    \b
    Example:
      toolcrib sessions search flaky test
    """
    typed = " ".join(f'"{word}"' if " " in word.strip() and '"' not in word else word for word in words)
    if not typed.strip():
        raise UsageError("there are no words to look for; type them as in `toolcrib sessions search flaky test`")
    with opened_store() as store:
        found: list[tuple[MessageHit, str]] = []
        if store.database.exists:
            wanted = SearchRequest(
                roles=roles,
                within=find_session(store, within).id if within else "",
                include_hidden=include_hidden,
                sort="" if sort == "best" else "newest" if sort == "newest" else "oldest",
            )
            found = search_messages(store, typed, limit=count, wanted=wanted)
        exists = store.database.exists
    if as_json:
        print_json([_as_json(hit, text) for hit, text in found])
    elif not found:
        print_line("Nothing like that was said; try fewer words." if exists else NO_SESSIONS)
    else:
        rows = [
            [hit.session_id, local_time(hit.created_at)[:16], SPEAKERS.get(hit.role, hit.role), text]
            for hit, text in found
        ]
        print_table(["session", "when", "who", "text"], rows)
        hint("`toolcrib sessions show ID` prints the whole conversation.")


def _as_json(hit: MessageHit, text: str) -> dict[str, object]:
    return {
        "session_id": hit.session_id,
        "message_id": hit.message_id,
        "role": hit.role,
        "created_at": hit.created_at,
        "state": hit.state,
        "source": hit.source,
        "text": text,
    }
