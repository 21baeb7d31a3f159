"""The board: what is kept, who works on what, and what happens to the cards of workers that are gone."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fork_server import SOURCE
from toolcrib.board.cards import (
    PERSON,
    BoardError,
    Card,
    CardFilter,
    CardOutcome,
    UnknownBoard,
    UnknownCard,
    Worker,
    agent_worker,
)
from toolcrib.board.store import BoardStore

PROCESSES = 8
CARDS = 12
ANNA = agent_worker("session-anna", "anna")
BOB = agent_worker("session-bob", "bob")
DONE = CardOutcome(summary="It is green.")


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(home: Path, clock: Clock) -> Iterator[BoardStore]:
    store = BoardStore(home / "board.db", clock=clock)
    yield store
    store.close()


def add(board: BoardStore, title: str = "Paint the door", *parents: Card, **fields: object) -> Card:
    card, is_new = board.add(Card(title=title, **fields), [one.id for one in parents])  # type: ignore[arg-type]
    assert is_new
    return card


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.board.workers", *words]
    return subprocess.Popen(command, cwd=SOURCE.parent, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_card_comes_back_as_it_was_kept(board: BoardStore, home: Path) -> None:
    """Everything about a card is there for another process, and only the owner can read the file."""
    card = add(board, "Ⓟaint  🚪", body="Green.\nTwice.", assignee="anna", skills=("paint",), max_runtime_seconds=60)
    board.comment(card, "With a brush", PERSON)

    again = BoardStore(home / "board.db")
    found = again.find(card.id)

    assert (found.title, found.body, found.skills, found.status) == ("Ⓟaint 🚪", "Green.\nTwice.", ("paint",), "ready")
    assert [(one.author, one.body) for one in again.details(found).comments] == [("person", "With a brush")]
    assert stat.S_IMODE((home / "board.db").stat().st_mode) == 0o600
    again.close()


def test_looking_at_a_board_creates_no_file(board: BoardStore, home: Path) -> None:
    """Who only looks leaves nothing behind."""
    assert board.cards() == []
    assert not (home / "board.db").exists()


def test_a_card_is_found_by_the_beginning_of_its_id_or_title(board: BoardStore) -> None:
    """What matches none is answered with the nearest ones; of the same titles, the unfinished card counts."""
    old, card = add(board), add(board)
    with pytest.raises(UnknownCard, match="both match"):
        board.find("paint")
    board.move(old, "done")

    assert board.find("paint").id == card.id
    assert board.find(card.id[:6]).id == card.id
    assert board.find(card.id.removeprefix("t_")).id == card.id
    with pytest.raises(UnknownCard, match="t_zzzz"):
        board.find("t_zzzz")
    with pytest.raises(UnknownBoard, match="garden"):
        board.find(card.id, "garden")


def test_urgent_cards_come_first_and_archived_ones_not_at_all(board: BoardStore) -> None:
    """Priorities order a board; filters narrow it."""
    late, soon, gone = add(board), add(board, priority=5, assignee="anna"), add(board)
    board.move(gone, "archived")

    assert [card.id for card in board.cards()] == [soon.id, late.id]
    assert [card.id for card in board.cards(CardFilter(assignee="anna"))] == [soon.id]
    assert len(board.cards(CardFilter(include_archived=True))) == 3


def test_a_card_with_the_same_key_is_created_once(board: BoardStore) -> None:
    """A model that repeats a call makes no second card."""
    first, _ = board.add(Card(title="Paint", idempotency_key="door"))
    second, is_new = board.add(Card(title="Paint again", idempotency_key="door"))

    assert (second.id, is_new) == (first.id, False)


def test_a_card_waits_for_all_its_parents(board: BoardStore) -> None:
    """It becomes ready with the last of them, in the same transaction."""
    sand, wash = add(board, "Sand"), add(board, "Wash")
    paint = add(board, "Paint", sand, wash)

    assert paint.status == "todo"
    assert board.complete(sand, DONE, ANNA).promoted == ()
    assert board.complete(wash, DONE, ANNA).promoted == (paint.id,)
    assert board.find(paint.id).status == "ready"


def test_a_link_makes_a_ready_card_wait(board: BoardStore) -> None:
    """Cards that would wait for each other are refused."""
    first, second, third = add(board, "a"), add(board, "b"), add(board, "c")
    board.link(first, second)
    board.link(second, third)

    assert board.find(third.id).status == "todo"
    with pytest.raises(BoardError, match="waits for"):
        board.link(third, first)
    with pytest.raises(BoardError, match="waits for"):
        board.link(first, first)


def test_a_card_has_one_worker(board: BoardStore) -> None:
    """Who comes second is told so; the worker's own signs of life are welcome."""
    card = add(board)
    run, is_new = board.claim(card, ANNA)

    assert is_new
    assert board.claim(card, ANNA, "sanding") == (board.claim_of(card), False)
    with pytest.raises(BoardError, match=rf"another worker \(anna, run {run.number}\)"):
        board.claim(card, BOB)
    with pytest.raises(BoardError, match="another worker"):
        board.complete(card, DONE, BOB)
    with pytest.raises(BoardError, match="another worker"):
        board.block(card, "no paint", "", BOB)
    assert board.complete(card, DONE, ANNA).run == run.number


@pytest.mark.parametrize("status", ["triage", "todo", "blocked", "done"])
def test_only_a_ready_card_can_be_taken(board: BoardStore, status: str) -> None:
    """What waits, is blocked or done is nobody's to work on."""
    card = add(board)
    board.move(card, status)  # type: ignore[arg-type]

    with pytest.raises(BoardError, match=f"is {status}"):
        board.claim(card, ANNA)


def test_a_person_takes_a_card_away_from_its_worker(board: BoardStore) -> None:
    """What a person does wins; the worker hears about it with its next call."""
    card = add(board)
    board.claim(card, ANNA)
    board.move(card, "running")
    board.move(card, "ready")
    board.move(card, "running")

    with pytest.raises(BoardError, match="a person works on"):
        board.claim(card, ANNA)
    assert [run.outcome for run in board.details(card).runs] == ["released", "running"]


def test_a_silent_worker_loses_its_card(board: BoardStore, clock: Clock) -> None:
    """A sign of life within the time keeps it."""
    card = add(board)
    board.claim(card, ANNA)
    clock.now += 899
    board.claim(card, ANNA)
    clock.now += 899
    assert board.cards()[0].status == "running"

    clock.now += 2

    assert board.cards()[0].status == "ready"
    board.claim(card, BOB)
    with pytest.raises(BoardError, match="another worker"):
        board.complete(card, DONE, ANNA)


def test_a_card_that_takes_too_long_is_given_back(board: BoardStore, clock: Clock) -> None:
    """Signs of life do not extend the time that the card allows."""
    card = add(board, max_runtime_seconds=100)
    board.claim(card, ANNA)
    clock.now += 60
    board.claim(card, ANNA)
    clock.now += 60
    board.release_stale()

    assert [run.outcome for run in board.details(card).runs] == ["timed_out"]


def test_a_card_that_fails_again_and_again_is_blocked(board: BoardStore, clock: Clock) -> None:
    """Somebody has to look at it; unblocking starts counting anew."""
    card = add(board)
    for _ in range(2):
        board.claim(card, ANNA)
        clock.now += 1000
        board.release_stale()

    blocked = board.find(card.id)
    assert (blocked.status, blocked.failures) == ("blocked", 2)
    assert "2 workers ended without a result" in blocked.reason
    assert board.unblock(blocked).failures == 0


def test_owners_do_not_see_each_others_cards(home: Path) -> None:
    """Every question to the store is one about the cards of its owner."""
    mine, theirs = BoardStore(home / "board.db", owner=""), BoardStore(home / "board.db", owner="eve")
    card, _ = mine.add(Card(title="Mine", idempotency_key="k"))
    other, is_new = theirs.add(Card(title="Theirs", idempotency_key="k"))

    assert is_new
    assert [one.id for one in theirs.cards()] == [other.id]
    with pytest.raises(UnknownCard):
        theirs.find(card.id)
    with pytest.raises(UnknownCard):
        theirs.add(Card(title="Child"), [card.id])
    mine.close()
    theirs.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda board, card: board.comment(card, "x" * 100_001, PERSON), "limit is 100,000"),
        (lambda board, card: board.comment(card, " ", PERSON), "empty"),
        (lambda board, card: board.block(card, "", "", PERSON), "say why"),
        (lambda board, card: board.attach(card, "a.bin", b"x" * 10_000_001, "", PERSON), "larger than 10 MB"),
        (lambda board, card: board.attach(card, "..", b"x", "", PERSON), "file name"),
        (lambda board, card: board.unblock(card), "not blocked"),
        (lambda board, _card: board.add(Card(title=" ")), "title"),
        (lambda board, _card: board.add(Card(title="a", board="../b")), "no name of a board"),
        (lambda board, card: board.complete(card, CardOutcome(created_cards=("t_no",)), PERSON), "no such card"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    board: BoardStore, change: Callable[[BoardStore, Card], object], says: str
) -> None:
    """The message says what is wrong, and nothing changes."""
    card = add(board)

    with pytest.raises(BoardError, match=says):
        change(board, card)

    assert board.cards() == [board.find(card.id)]
    assert board.find(card.id).status == "ready"


def test_an_attachment_is_kept_under_a_name_of_ours(board: BoardStore) -> None:
    """A name cannot lead out of the folder of the card."""
    card = add(board)
    kept = board.attach(card, "../../etc/pass wd\u202e.txt", b"text", "text/plain", ANNA)
    path = board.attachment_path(card, kept.file)

    assert path.read_bytes() == b"text"
    assert path.parent.name == card.id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_eight_processes_take_each_card_once(board: BoardStore, home: Path) -> None:
    """A claim is one transaction: no card has two workers, and none is left over."""
    cards = {add(board, f"Card {number}").id for number in range(CARDS)}
    board.close()

    with start("race", str(home), str(PROCESSES)) as racing:
        taken = json.loads(first_line(racing))
        racing.communicate()

    everything = [card for cards in taken for card in cards]
    assert len(taken) == PROCESSES
    assert sorted(everything) == sorted(cards)


def test_the_card_of_a_killed_worker_is_ready_again(home: Path) -> None:
    """Its process is gone, so nobody waits for a time-out."""
    board = BoardStore(home / "board.db")
    card = add(board)
    with start("work", str(home), card.id) as worker:
        number = int(first_line(worker))
        with pytest.raises(BoardError, match="another worker"):
            board.claim(card, ANNA)
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()

    run, is_new = board.claim(card, ANNA)

    assert is_new
    assert run.number > number
    lost = board.details(card).runs[0]
    assert (lost.outcome, lost.note) == ("lost", f"its process {worker.pid} ended without a result")
    board.close()


def test_a_process_that_is_killed_while_it_writes_loses_nothing(home: Path) -> None:
    """What it said was kept is there, whole, and the file is sound."""
    with start("write", str(home)) as writer:
        said = [first_line(writer) for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        said += writer.communicate()[0].split()

    board = BoardStore(home / "board.db")
    for card in map(board.find, said):
        assert [one.body for one in board.details(card).comments] == ["A comment"]
    add(board)
    board.close()
    with sqlite3.connect(home / "board.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_worker_without_a_session_is_its_process(board: BoardStore) -> None:
    """Calls without a session still hold their claim."""
    card = add(board)
    nameless = agent_worker("")
    board.claim(card, nameless)

    assert board.claim(card, nameless)[1] is False
    with pytest.raises(BoardError, match="another worker"):
        board.claim(card, Worker(author="agent", process="1:x"))
