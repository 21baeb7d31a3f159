"""Measures the session store: searching a million messages beside the bare FTS5 query, and appending one message.

Prints a table, where the bare query stands in the column of the reference. Exits 1 when a figure is missed.
`--messages N` takes another number of messages.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from run import Row, print_table
from toolcrib.core.context import ToolContext
from toolcrib.core.messages import Message
from toolcrib.core.types import Effect, ToolEntry, ToolResult
from toolcrib.sessions.search import RANKED, search_messages
from toolcrib.sessions.store import SessionStore

MESSAGES = 1_000_000
MESSAGES_A_SESSION = 50
WORDS_A_MESSAGE = 30
VOCABULARY = 30_000
LIMIT = 20
REPEATS = 7
APPENDS = 1_000
BARE = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words) LIMIT ?"
EVERY = {"rare": 10_000, "medium": 50, "frequent": 3}
"""Each of these words stands in every n-th message."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="how many messages to search")
    options = parser.parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        store = SessionStore(Path(folder) / "sessions.db")
        print(f"Writing {options.messages:,} messages …", file=sys.stderr)
        fill(store, options.messages)
        rows = search_rows(store, options.messages) + append_rows(store)
        store.close()
    print_table(rows)
    print(f"\nOther work on the machine makes figures worse; the load was {load} of {os.cpu_count()} at the start.")
    return 1 if any(row.met is False for row in rows) else 0


def fill(store: SessionStore, count: int) -> None:
    """Write many messages at once; the index is built as appends build it, row by row."""
    store.create()
    with store.database.write() as connection:
        (template,) = connection.execute("SELECT * FROM sessions").fetchall()
        marks = ", ".join("?" * len(template))
        sessions = ((number, f"s{number}", *template[2:]) for number in range(2, count // MESSAGES_A_SESSION + 2))
        connection.executemany(f"INSERT INTO sessions VALUES ({marks})", sessions)
        connection.executemany(
            "INSERT INTO messages (session, position, role, created_at, turn_id, name, call_id, owner, spaceless, "
            "fields, called, text) VALUES (?, ?, 'user', ?, '', '', '', '', 0, '{\"role\":\"user\"}', '', ?)",
            messages(count),
        )


def messages(count: int) -> Iterator[tuple[int, int, float, str]]:
    """Texts whose words are as unevenly frequent as those of a language."""
    source = random.Random(1)
    vocabulary = [f"w{number:05d}" for number in range(VOCABULARY)]
    weights = list(accumulate(1 / (place + 1) for place in range(VOCABULARY)))
    for number in range(1, count + 1):
        words = source.choices(vocabulary, cum_weights=weights, k=WORDS_A_MESSAGE)
        words += [word for word, every in EVERY.items() if number % every == 0]
        yield number // MESSAGES_A_SESSION + 1, number, 1_700_000_000.0 + number, " ".join(words)


def search_rows(store: SessionStore, count: int) -> list[Row]:
    """Ours and the bare query in turns, so that other work on the machine meets both."""
    rows = []
    for word, every in EVERY.items():
        hits, ours, bare = count // every, [], []
        for _ in range(REPEATS):
            with store.database.search() as connection:
                bare.append(timed(partial(bare_search, connection, word)))
            ours.append(timed(partial(search_messages, store, word, limit=LIMIT)))
        best, floor = min(ours), min(bare)
        ratio = best / floor
        # Reading the messages that were found has a price of its own, which only the quickest queries show.
        rows.append(
            Row(
                f"session search, {word} word ({hits:,} hits of {count:,} messages)",
                f"{best:.2f} ms",
                f"{floor:.2f} ms",
                f"{ratio:.2f}",
                "≤ 1.5, or 1 ms",
                ratio <= 1.5 or best <= 1,
            )
        )
        if hits <= RANKED:
            rows.append(Row("  its time", f"{best:.2f} ms", "", "", "≤ 50 ms", best <= 50))
    return rows


def bare_search(connection: sqlite3.Connection, word: str) -> None:
    connection.execute(BARE, (word, LIMIT)).fetchall()


def append_rows(store: SessionStore) -> list[Row]:
    """Appends to the large database, as a conversation makes them: one message, one transaction."""
    session = store.create()
    message = Message(role="assistant", content=" ".join(f"w{number:05d}" for number in range(WORDS_A_MESSAGE * 2)))
    appends = [timed(partial(store.append, session.id, message)) for _ in range(APPENDS)]
    mean = statistics.mean(appends)
    recorder, entry = store.recorder(), ToolEntry(name="t", toolset="t", schema={}, handler=print)
    starts, ends = [], []
    services: Any = None
    for number in range(APPENDS // 5):
        ctx = ToolContext(services=services, session_id=session.id, call_id=f"c{number}")
        starts.append(timed(partial(recorder.started, entry, {}, (Effect("exec", "make"),), ctx)))
        ends.append(timed(partial(recorder.finished, entry, ToolResult(content="done"), ctx)))
    return [
        Row("append of one message, mean", f"{mean:.3f} ms", "", "", "≤ 1 ms", mean <= 1),
        Row("  median", f"{statistics.median(appends):.3f} ms", "", "", "", None),
        Row("  “started” of an effect, on the disk", f"{statistics.median(starts):.3f} ms", "", "", "", None),
        Row("  “finished” with its result", f"{statistics.median(ends):.3f} ms", "", "", "", None),
    ]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    sys.exit(main())
