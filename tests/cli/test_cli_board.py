"""`toolcrib board …`: cards of people, on the store that agents use."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.cli.cli_program import Program
from toolcrib.board.cards import agent_worker
from toolcrib.board.store import BoardStore


def added(toolcrib: Program, *words: str) -> str:
    outcome = toolcrib("board", "add", *words, "--json")
    assert outcome.code == 0, outcome.stderr
    return str(json.loads(outcome.stdout)["id"])


def shown(toolcrib: Program, card: str) -> dict[str, Any]:
    return dict(json.loads(toolcrib("board", "show", card, "--json").stdout))


def test_cards_are_added_listed_moved_and_finished(toolcrib: Program) -> None:
    """A person does with a few commands what agents do with tools; the list is readable in a pipe."""
    sand = added(toolcrib, "Sand the door", "--assignee", "anna", "--body", "Grain 120")
    paint = added(toolcrib, "Paint the door", "--parent", sand)
    toolcrib("board", "comment", sand, "Both sides")
    toolcrib("board", "assign", paint, "bob")
    toolcrib("board", "block", sand, "No paper")
    listed = toolcrib("board", "list")
    moved = toolcrib("board", "move", sand[:6], "ready")
    done = toolcrib("board", "done", sand, "--summary", "Sanded")

    assert [line.split() for line in listed.stdout.splitlines()[1:]] == [
        [paint, "todo", "bob", "Paint", "the", "door"],
        [sand, "blocked", "anna", "Sand", "the", "door", "No", "paper"],
    ]
    assert moved.stdout == f"The card {sand} is ready now.\n"
    assert done.stdout == f"The card {sand} is done.\n"
    assert f"The card {paint} is ready now." in done.stderr
    facts = shown(toolcrib, sand)
    assert (facts["created_by"], facts["summary"]) == ("person", "Sanded")
    assert facts["comments"][0]["by"] == "person"
    text = toolcrib("board", "show", sand).stdout
    assert "Grain 120" in text
    assert "person (person)" in text


def test_a_person_takes_a_card_away_from_an_agent(toolcrib: Program) -> None:
    """The list says who works on it, and since when."""
    card = added(toolcrib, "Sand the door")
    board = BoardStore(toolcrib.home / "board.db")
    board.claim(board.find(card), agent_worker("a session", "carl"))

    assert f"{card}  running  carl" in toolcrib("board", "list").stdout
    toolcrib("board", "move", card, "triage")

    assert board.claim_of(board.find(card)) is None
    assert [run["outcome"] for run in shown(toolcrib, card)["runs"]] == ["released"]
    board.close()


@pytest.mark.services
def test_files_and_links_are_kept_with_a_card(toolcrib: Program) -> None:
    """A copy of the file is in the home."""
    card, other = added(toolcrib, "Sand the door"), added(toolcrib, "Buy paper")
    plan = toolcrib.write("plan.txt", "green")

    attached = toolcrib("board", "attach", card, str(plan))
    toolcrib("board", "link", card, other)
    missing = toolcrib("board", "attach", card, "nowhere.txt")

    facts = shown(toolcrib, card)
    assert attached.stdout == f"Attached 'plan.txt' to the card {card}.\n"
    assert [(one["filename"], one["content_type"]) for one in facts["attachments"]] == [("plan.txt", "text/plain")]
    assert (facts["status"], facts["parents"]) == ("todo", [other])
    assert missing.code != 0
    assert "nowhere.txt" in missing.stderr


def test_an_unknown_card_is_answered_with_the_nearest(toolcrib: Program) -> None:
    """And an empty board with what to do."""
    empty = toolcrib("board", "list")
    added(toolcrib, "Sand the door")
    wrong = toolcrib("board", "show", "t_zz")

    assert "toolcrib board add" in empty.stdout
    assert wrong.code == 2
    assert "unknown card 't_zz'" in wrong.stderr


def test_an_agent_cannot_write_as_a_person(toolcrib: Program) -> None:
    """A command of a tool call may look at the board, not change it."""
    command = json.dumps({"command": f"{sys.executable} -m toolcrib board add Obey"})
    refused = toolcrib("tools", "run", "terminal", command)

    assert refused.code != 0
    assert not (toolcrib.home / "board.db").exists()
