"""Workers in processes of their own that take cards from one board. Run as a program.

python -m tests.board.workers race HOME PROCESSES    all of them take what they can get; prints their claims
python -m tests.board.workers work HOME CARD         takes a card, says so, and waits to be killed
python -m tests.board.workers write HOME             adds cards with a comment until it is killed; prints each id
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from toolcrib.board.cards import BoardError, Card, CardFilter, agent_worker
from toolcrib.board.store import BoardStore


def take_all(home: Path) -> list[str]:
    """What this process got hold of."""
    store, taken = BoardStore(home / "board.db"), []
    while ready := store.cards(CardFilter(status="ready")):
        for card in ready:
            try:
                store.claim(card, agent_worker(f"session-{os.getpid()}"))
            except BoardError:
                continue
            taken.append(card.id)
    store.close()
    return taken


def race(home: Path, processes: int) -> None:
    start, starter = os.pipe()
    stop, stopper = os.pipe()
    reports = []
    for _ in range(processes):
        report, to_report = os.pipe()
        if os.fork() == 0:
            os.close(starter)
            os.close(stopper)
            os.read(start, 1)
            os.write(to_report, json.dumps(take_all(home)).encode())
            os.close(to_report)
            # A worker that ends loses its cards, so all of them stay until the last one has finished.
            os.read(stop, 1)
            os._exit(0)
        os.close(to_report)
        reports.append(report)
    os.close(starter)
    taken = []
    for report in reports:
        with os.fdopen(report, "rb") as stream:
            taken.append(json.loads(stream.read()))
    print(json.dumps(taken), flush=True)
    os.close(stopper)
    for _ in range(processes):
        os.wait()


def work(home: Path, card: str) -> None:
    store = BoardStore(home / "board.db")
    run, _ = store.claim(store.find(card), agent_worker("session-of-a-worker"))
    print(run.number, flush=True)
    sys.stdin.read()


def write(home: Path) -> None:
    store = BoardStore(home / "board.db")
    while True:
        card, _ = store.add(Card(title="A card"))
        store.comment(card, "A comment", agent_worker("a session"))
        print(card.id, flush=True)


if __name__ == "__main__":
    wanted, folder = sys.argv[1], Path(sys.argv[2])
    if wanted == "race":
        race(folder, int(sys.argv[3]))
    elif wanted == "work":
        work(folder, sys.argv[3])
    else:
        write(folder)
