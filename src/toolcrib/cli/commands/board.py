"""`toolcrib board`: the cards that agents and people work on, for people."""

from __future__ import annotations

import mimetypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import click

from toolcrib.board.cards import (
    DEFAULT_BOARD,
    PERSON,
    STATUSES,
    Card,
    CardDetails,
    CardFilter,
    CardOutcome,
    Status,
    describe_attachment,
    describe_card,
    describe_comment,
    describe_run,
    describe_whole_card,
)
from toolcrib.board.service import open_board
from toolcrib.board.store import BoardStore
from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import Pairs, hint, note, one_line, print_json, print_line, print_pairs, print_table
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import explain_os_error
from toolcrib.core.errors import UsageError

group = CommandGroup("board")

NO_CARDS = "There are no cards yet; run `toolcrib board add 'TITLE'` to add one."
NOT_OFFERED = "Agents do not see the board yet; run `toolcrib config set kanban.enabled true` to give them its tools."


@contextmanager
def open_cards() -> Iterator[BoardStore]:
    """The board of this home, with the cards of all owners."""
    store = open_board(load_settings(), None)
    try:
        yield store
    finally:
        store.close()


def complete_cards(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of cards for the shell."""
    return matching_names(_card_ids, incomplete)


def _card_ids() -> list[str]:
    with open_cards() as store:
        return [card.id for card in store.cards()]


card_argument = click.argument("wanted", metavar="CARD", shell_complete=complete_cards)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@group.command("list")
@click.option("--board", metavar="NAME", default="", help="Only this board.")
@click.option("--assignee", metavar="NAME", default="", help="Only cards assigned to this worker or person.")
@click.option("--status", type=click.Choice(STATUSES), default=None, help="Only this column.")
@click.option("--archived", is_flag=True, help="Include archived cards.")
@json_option
def list_cards(board: str, assignee: str, status: str | None, archived: bool, as_json: bool) -> None:
    """List the cards, column by column.

    Each object of --json has the keys id, board, title, status, assignee, priority, created_by (person or agent),
    created_at, updated_at, and, where they have a value, tenant, project, reason and kind.
    """
    wanted = CardFilter(board=board, assignee=assignee, status=status or "", include_archived=archived)
    with open_cards() as store:
        cards = sorted(store.cards(wanted), key=lambda card: STATUSES.index(card.status))
        claims = {card.id: store.claim_of(card) for card in cards if card.status == "running"}
    if as_json:
        print_json([describe_card(card) for card in cards])
        return
    if not cards:
        print_line(NO_CARDS if wanted == CardFilter() else "No card matches.")
        return
    several = len({card.board for card in cards}) > 1
    rows = []
    for card in cards:
        run = claims.get(card.id)
        about = card.reason if card.status == "blocked" else f"since {_when(run.started_at)}" if run else ""
        who = run.worker if run is not None and not card.assignee else card.assignee
        board_cell = [card.board] if several else []
        rows.append([card.id, card.status, *board_cell, who or "-", card.title, _cut(about)])
    print_table(["id", "status", *(["board"] if several else []), "assignee", "title", "note"], rows)
    hint("Run `toolcrib board show CARD` to see a card.")


@group.command("show")
@card_argument
@json_option
def show_card(wanted: str, as_json: bool) -> None:
    """Show a card: its text, comments, files, and who worked on it.

    CARD is an id or a title from `toolcrib board list`, or the first characters of one.
    """
    with open_cards() as store:
        details = store.details(store.find(wanted))
        paths = [str(store.attachment_path(details.card, one.file)) for one in details.attachments]
    if as_json:
        print_json(_facts(details, paths))
        return
    print_pairs(_card_lines(details, paths))
    for comment in details.comments:
        print_line()
        print_line(f"{comment.name or comment.author} ({comment.author}), {_when(comment.at)}:")
        for line in comment.body.splitlines():
            print_line(f"  {line}")


@group.command("add")
@click.argument("title")
@click.option("--body", metavar="TEXT", default="", help="Everything a worker needs to know.")
@click.option("--assignee", metavar="NAME", default="", help="Who should do it.")
@click.option("--board", metavar="NAME", default=DEFAULT_BOARD, show_default=True, help="The board.")
@click.option("--parent", "parents", metavar="CARD", multiple=True, help="A card that must be done first; repeatable.")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher numbers come first.")
@click.option("--triage", is_flag=True, help="Not ready yet: somebody has to describe it first.")
@json_option
def add_card(title: str, parents: tuple[str, ...], triage: bool, as_json: bool, **fields: Any) -> None:
    """Add a card.

    It is ready at once, or when its parents are done.
    """
    status: Status = "triage" if triage else "ready"
    with open_cards() as store:
        card, _ = store.add(Card(title=title, author="person", status=status, **fields), parents, has_status=triage)
    _report(card, f"Added the card {card.id} ({card.status}).", as_json)
    if not as_json and not load_settings().kanban.enabled:
        hint(NOT_OFFERED)


@group.command("move")
@card_argument
@click.argument("status", type=click.Choice(STATUSES))
@json_option
def move_card(wanted: str, status: str, as_json: bool) -> None:
    """Move a card to another column.

    `running` takes it for yourself. Any other column takes it away from its worker; `ready` also unblocks it.
    """
    with open_cards() as store:
        card, promoted = store.move(store.find(wanted), cast("Status", status))
    waits = " It waits for its parents." if card.status == "todo" and status == "ready" else ""
    _report(card, f"The card {card.id} is {card.status} now.{waits}", as_json, promoted)


@group.command("assign")
@card_argument
@click.argument("assignee", metavar="NAME")
@json_option
def assign_card(wanted: str, assignee: str, as_json: bool) -> None:
    """Assign a card to someone; an empty name unassigns it."""
    with open_cards() as store:
        card = store.assign(store.find(wanted), assignee)
    _report(card, f"The card {card.id} is assigned to {card.assignee or 'nobody'}.", as_json)


@group.command("comment")
@card_argument
@click.argument("text")
def comment_card(wanted: str, text: str) -> None:
    """Comment on a card."""
    with open_cards() as store:
        card = store.find(wanted)
        store.comment(card, text, PERSON)
    print_line(f"Commented on the card {card.id}.")


@group.command("done")
@card_argument
@click.option("--summary", metavar="TEXT", default="", help="What was done, for the cards that wait for it.")
@json_option
def finish_card(wanted: str, summary: str, as_json: bool) -> None:
    """Mark a card as done."""
    with open_cards() as store:
        done = store.complete(store.find(wanted), CardOutcome(summary=summary), PERSON)
    _report(done.card, f"The card {done.card.id} is done.", as_json, done.promoted)


@group.command("block")
@card_argument
@click.argument("reason")
@json_option
def block_card(wanted: str, reason: str, as_json: bool) -> None:
    """Block a card and say what it is waiting for; `toolcrib board move CARD ready` unblocks it."""
    with open_cards() as store:
        card = store.block(store.find(wanted), reason, "", PERSON).card
    _report(card, f"The card {card.id} is blocked.", as_json)


@group.command("link")
@card_argument
@click.argument("parent", metavar="PARENT", shell_complete=complete_cards)
@json_option
def link_card(wanted: str, parent: str, as_json: bool) -> None:
    """Make a card wait until PARENT is done."""
    with open_cards() as store:
        card = store.link(store.find(parent), store.find(wanted))
    _report(card, f"The card {card.id} waits for {parent}.", as_json)


@group.command("attach")
@card_argument
@click.argument("file", type=click.Path(path_type=Path))
def attach_file(wanted: str, file: Path) -> None:
    """Keep a copy of a file with a card."""
    with open_cards() as store:
        card = store.find(wanted)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UsageError(explain_os_error(error, "read", file)) from error
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        kept = store.attach(card, file.name, content, kind, PERSON)
    print_line(f"Attached {kept.name!r} to the card {card.id}.")


def _report(card: Card, text: str, as_json: bool, promoted: tuple[str, ...] = ()) -> None:
    if as_json:
        print_json(describe_card(card))
        return
    print_line(text)
    for one in promoted:
        note(f"The card {one} is ready now.")


def _facts(details: CardDetails, paths: list[str]) -> dict[str, Any]:
    attachments = [
        describe_attachment(one) | {"path": path} for one, path in zip(details.attachments, paths, strict=True)
    ]
    return describe_whole_card(details.card) | {
        "parents": [one.id for one in details.parents],
        "children": [one.id for one in details.children],
        "comments": [describe_comment(one) for one in details.comments],
        "runs": [describe_run(one) for one in details.runs],
        "attachments": attachments,
    }


def _card_lines(details: CardDetails, paths: list[str]) -> Pairs:
    card = details.card
    facts: list[tuple[str, str | list[str]]] = [
        ("card", f"{card.id} on the board {card.board}, {card.status}"),
        ("title", card.title),
        ("text", card.body.splitlines()),
        ("written by", card.author),
        ("assignee", card.assignee),
        ("priority", str(card.priority) if card.priority else ""),
        ("reason", card.reason),
        ("waits for", [_linked(one) for one in details.parents]),
        ("needed by", [_linked(one) for one in details.children]),
        ("summary", card.summary.splitlines()),
        ("result", card.result.splitlines()),
        ("folder", card.workspace_path),
        ("skills", ", ".join(card.skills)),
        (
            "files",
            [f"{one.name} ({one.size:,} bytes): {path}" for one, path in zip(details.attachments, paths, strict=True)],
        ),
        (
            "runs",
            [
                f"{run.number}: {run.worker}, {_when(run.started_at)}, {run.outcome}{_of_run(run.note)}"
                for run in details.runs
            ],
        ),
    ]
    return [(label, text) for label, text in facts if text]


def _of_run(text: str) -> str:
    return f": {_cut(text)}" if text else ""


def _linked(card: Card) -> str:
    return f"{card.id} ({card.status}): {card.title}"


def _cut(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= 60 else line[:59] + "…"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
