"""The cards of one home, in one SQLite file shared by agents and people.

A worker claims a card in the transaction that finds it free, so it never has two workers. A claim belongs to a process
and needs a sign of life from time to time: when the process is gone, or silent for too long, the next transaction gives
the card back. After several such failures the card is blocked, because something is wrong with it.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.board.cards import (
    FINISHED,
    MAX_TITLE_CHARS,
    PERSON,
    BoardError,
    Card,
    CardAttachment,
    CardDetails,
    CardFilter,
    CardOutcome,
    CardRun,
    Comment,
    FinishedCard,
    RunOutcome,
    Status,
    UnknownBoard,
    UnknownCard,
    Worker,
    require_board_name,
    require_text,
)
from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.registry.results import sendable
from toolcrib.sessions.database import Database, Migration
from toolcrib.sessions.recorder import is_alive, pid_of

CLAIM_TTL_SECONDS = 900.0
FAILURE_LIMIT = 2
MAX_ATTACHMENT_BYTES = 10_000_000
ADVICE = "`toolcrib board list` lists all cards"
ID_BYTES = 4

CARD_COLUMNS = "id, board, owner, status, assignee, priority, updated_at, idempotency_key, definition"
_LIVE = ("id", "board", "owner", "status", "assignee", "priority", "updated_at", "idempotency_key")
STEPS = (
    Migration(
        (
            """CREATE TABLE cards (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                board TEXT NOT NULL,
                owner TEXT NOT NULL,
                status TEXT NOT NULL,
                assignee TEXT NOT NULL,
                priority INTEGER NOT NULL,
                updated_at REAL NOT NULL,
                idempotency_key TEXT NOT NULL,
                definition TEXT NOT NULL
            )""",
            "CREATE INDEX cards_by_status ON cards (board, status)",
            "CREATE UNIQUE INDEX cards_once ON cards (owner, board, idempotency_key) WHERE idempotency_key <> ''",
            "CREATE TABLE links (parent TEXT NOT NULL, child TEXT NOT NULL, PRIMARY KEY (parent, child))",
            "CREATE INDEX links_by_child ON links (child)",
            """CREATE TABLE comments (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                card TEXT NOT NULL,
                author TEXT NOT NULL,
                name TEXT NOT NULL,
                body TEXT NOT NULL,
                at REAL NOT NULL
            )""",
            "CREATE INDEX comments_by_card ON comments (card)",
            """CREATE TABLE runs (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                card TEXT NOT NULL,
                worker TEXT NOT NULL,
                session TEXT NOT NULL,
                process TEXT NOT NULL,
                started_at REAL NOT NULL,
                seen_at REAL NOT NULL,
                ended_at REAL,
                outcome TEXT NOT NULL DEFAULT 'running',
                note TEXT NOT NULL DEFAULT ''
            )""",
            # A card has at most one worker, whatever a program does.
            "CREATE UNIQUE INDEX runs_alone ON runs (card) WHERE outcome = 'running'",
            "CREATE INDEX runs_by_card ON runs (card)",
            """CREATE TABLE attachments (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                card TEXT NOT NULL,
                name TEXT NOT NULL,
                content_type TEXT NOT NULL,
                size INTEGER NOT NULL,
                file TEXT NOT NULL,
                author TEXT NOT NULL,
                at REAL NOT NULL
            )""",
            "CREATE INDEX attachments_by_card ON attachments (card)",
        )
    ),
)
RUN_COLUMNS = ", ".join(CardRun.__struct_fields__)


class BoardStore:
    """The cards of one home, or those of one owner. Opened on first use, shared with other processes."""

    def __init__(
        self,
        path: Path,
        *,
        owner: str | None = None,
        files: Path | None = None,
        claim_ttl_seconds: float = CLAIM_TTL_SECONDS,
        failure_limit: int = FAILURE_LIMIT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.database = Database(path, steps=STEPS, what="board", error=BoardError)
        self._owner = owner
        """Only cards of this owner are found; None means all."""
        self._files = files or path.parent / "board_files"
        self._ttl = claim_ttl_seconds
        self._failure_limit = failure_limit
        self._clock = clock

    def close(self) -> None:
        self.database.close()

    # Reading

    def cards(self, wanted: CardFilter | None = None) -> list[Card]:
        """The cards, the most urgent first."""
        wanted = wanted or CardFilter()
        if not self.database.exists:
            return []
        self.release_stale()
        conditions: dict[str, Any] = {} if self._owner is None else {"owner = ?": self._owner}
        if wanted.board:
            conditions["board = ?"] = require_board_name(wanted.board)
        if wanted.assignee:
            conditions["assignee = ?"] = wanted.assignee
        if wanted.status:
            conditions["status = ?"] = wanted.status
        elif not wanted.include_archived:
            conditions["status <> ?"] = "archived"
        where = " AND ".join(conditions) or "1"
        with self.database.read() as connection:
            rows = connection.execute(
                f"SELECT {CARD_COLUMNS} FROM cards WHERE {where} ORDER BY priority DESC, number",
                tuple(conditions.values()),
            ).fetchall()
        return [card for card in map(_card_of, rows) if not wanted.tenant or card.tenant == wanted.tenant]

    def boards(self) -> list[str]:
        """The names of the boards that have cards."""
        return sorted({card.board for card in self.cards(CardFilter(include_archived=True))})

    def find(self, wanted: str, board: str = "") -> Card:
        """The card with that id or title, or the only one whose id or title starts so; raises UnknownCard.

        Of several titles, that of the only unfinished card counts.
        """
        if board:
            self._require_board(board)
        text = wanted.strip().casefold()
        if (exact := self._card_with_id(text)) is not None and (not board or exact.board == require_board_name(board)):
            return exact
        known = self.cards(CardFilter(board=board, include_archived=True))
        start = f"t_{text.removeprefix('t_')}"
        titled = [card for card in known if text and card.title.casefold().startswith(text)]
        found = (
            [card for card in known if text.removeprefix("t_") and card.id.startswith(start)]
            or [card for card in titled if card.status not in FINISHED]
            or titled
        )
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownCard(wanted, (), advice=f"{found[0].id} and {found[1].id} both match; give one of these ids")
        advice = ADVICE if known else "there are no cards yet; `toolcrib board add` adds one"
        raise UnknownCard(wanted, [card.id for card in known], advice=advice)

    def details(self, card: Card) -> CardDetails:
        """A card with everything around it."""
        with self.database.read() as connection:
            return CardDetails(
                card=card,
                parents=_linked(connection, "parent", "child", card.id),
                children=_linked(connection, "child", "parent", card.id),
                comments=_rows(connection, Comment, "comments", card.id),
                runs=_rows(connection, CardRun, "runs", card.id),
                attachments=_rows(connection, CardAttachment, "attachments", card.id),
            )

    def claim_of(self, card: Card) -> CardRun | None:
        """Who works on a card now."""
        with self.database.read() as connection:
            return _claim(connection, card.id)

    # Changing cards

    def add(self, card: Card, parents: Iterable[str] = (), *, has_status: bool = False) -> tuple[Card, bool]:
        """Store a new card under a new id; the second value is False if its idempotency key names an older one.

        Without `has_status`, its parents decide whether it is ready.
        """
        if not card.title.strip():
            raise BoardError("a card needs a title")
        now, above = self._clock(), [self.find(one) for one in parents]
        with self.database.write(durable=True) as connection:
            owner = card.owner if self._owner is None else self._owner
            board = require_board_name(card.board)
            if older := _card_with_key(connection, owner, board, card.idempotency_key):
                return older, False
            card = msgspec.structs.replace(
                card,
                id=_new_id(connection),
                board=board,
                owner=owner,
                title=sendable(require_text(" ".join(card.title.split()), "title", MAX_TITLE_CHARS)),
                body=sendable(require_text(card.body, "body")),
                created_at=now,
                updated_at=now,
            )
            marks = ", ".join("?" * len(_values(card)))
            connection.execute(f"INSERT INTO cards ({CARD_COLUMNS}) VALUES ({marks})", _values(card))
            for parent in above:
                _refuse_other_owner(parent, card)
                connection.execute("INSERT OR IGNORE INTO links VALUES (?, ?)", (parent.id, card.id))
            if not has_status:
                card = _saved(connection, msgspec.structs.replace(card, status=_open_status(connection, card.id)))
        return card, True

    def link(self, parent: Card, child: Card) -> Card:
        """Make a card wait for another; raises BoardError if they would wait for each other."""
        _refuse_other_owner(parent, child)
        with self.database.write(durable=True) as connection:
            if parent.id == child.id or parent.id in _below(connection, child.id):
                raise BoardError(f"{parent.id} waits for {child.id} already, so {child.id} cannot wait for it")
            connection.execute("INSERT OR IGNORE INTO links VALUES (?, ?)", (parent.id, child.id))
            now = _require(connection, child.id)
            if now.status in ("todo", "ready"):
                now = _saved(connection, self._touched(now, status=_open_status(connection, now.id)))
        return now

    def assign(self, card: Card, assignee: str) -> Card:
        with self.database.write(durable=True) as connection:
            return _saved(connection, self._touched(_require(connection, card.id), assignee=assignee.strip()))

    def move(self, card: Card, status: Status) -> tuple[Card, tuple[str, ...]]:
        """Put a card into another column, as a person does; takes it away from a worker. Returns what became ready."""
        with self.database.write(durable=True) as connection:
            self._release_stale(connection)
            now = _require(connection, card.id)
            if status != "running":
                _end_run(connection, now.id, "released", self._clock(), "a person moved the card")
            elif _claim(connection, now.id) is None:
                _insert_run(connection, now.id, PERSON, self._clock())
            if status == "ready":
                status = _open_status(connection, now.id)
            is_open = status not in ("blocked", *FINISHED)
            cleared = {"reason": "", "block_kind": "", "failures": 0} if is_open else {}
            now = _saved(connection, self._touched(now, status=status, **cleared))
            return now, self._promoted(connection, now)

    def comment(self, card: Card, body: str, by: Worker) -> int:
        """Add a comment; returns its number."""
        body = sendable(require_text(body, "comment"))
        if not body:
            raise BoardError("the comment is empty")
        with self.database.write(durable=True) as connection:
            now = self._touched(_require(connection, card.id))
            _saved(connection, now)
            cursor = connection.execute(
                "INSERT INTO comments (card, author, name, body, at) VALUES (?, ?, ?, ?, ?)",
                (card.id, by.author, by.name, body, self._clock()),
            )
            return int(cursor.lastrowid or 0)

    # Working on cards

    def claim(self, card: Card, by: Worker, note: str = "") -> tuple[CardRun, bool]:
        """Take a card that is ready, or give a sign of life for one's own; the second value says whether it is new.

        Raises BoardError if somebody else works on it, or if it is not ready.
        """
        with self.database.write(durable=True) as connection:
            self._release_stale(connection)
            now, run = _require(connection, card.id), _claim(connection, card.id)
            if run is not None:
                _require_own(run, now, by)
                connection.execute(
                    "UPDATE runs SET seen_at = ?, process = ?, note = ? WHERE number = ?",
                    (self._clock(), by.process, sendable(note) or run.note, run.number),
                )
                return _require_run(connection, run.number), False
            if now.status != "ready":
                raise BoardError(f"the card {now.id} is {now.status}, so nobody can work on it; take one that is ready")
            _saved(connection, self._touched(now, status="running"))
            return _insert_run(connection, now.id, by, self._clock(), sendable(note)), True

    def complete(self, card: Card, outcome: CardOutcome, by: Worker) -> FinishedCard:
        """Mark a card as done; cards that waited only for it become ready."""
        with self.database.write(durable=True) as connection:
            self._release_stale(connection)
            now = self._own_card(connection, card, by)
            for one in outcome.created_cards:
                if _find(connection, one) is None:
                    raise BoardError(f"created_cards names {one!r}, and there is no such card; nothing was changed")
            run = _end_run(connection, now.id, "completed", self._clock(), outcome.summary)
            now = self._touched(
                now,
                status="done",
                summary=sendable(require_text(outcome.summary, "summary")),
                result=sendable(require_text(outcome.result, "result")),
                metadata=outcome.metadata,
                summary_author=by.author,
                reason="",
                block_kind="",
                failures=0,
            )
            _saved(connection, now)
            return FinishedCard(card=now, run=run, promoted=self._promoted(connection, now))

    def block(self, card: Card, reason: str, kind: str, by: Worker) -> FinishedCard:
        """Stop the work on a card until somebody unblocks it."""
        reason = sendable(require_text(reason, "reason"))
        if not reason:
            raise BoardError("say why the card is blocked")
        with self.database.write(durable=True) as connection:
            self._release_stale(connection)
            now = self._own_card(connection, card, by)
            run = _end_run(connection, now.id, "blocked", self._clock(), reason)
            now = self._touched(now, status="blocked", reason=reason, block_kind=kind.strip()[:60])
            return FinishedCard(card=_saved(connection, now), run=run)

    def unblock(self, card: Card) -> Card:
        """Let the work on a blocked card go on."""
        with self.database.write(durable=True) as connection:
            now = _require(connection, card.id)
            if now.status != "blocked":
                raise BoardError(f"the card {now.id} is {now.status}, not blocked")
            status = _open_status(connection, now.id)
            return _saved(connection, self._touched(now, status=status, reason="", block_kind="", failures=0))

    # Attachments

    def attach(self, card: Card, name: str, content: bytes, content_type: str, by: Worker) -> CardAttachment:
        """Keep a file with a card."""
        if len(content) > MAX_ATTACHMENT_BYTES:
            limit = MAX_ATTACHMENT_BYTES // 1_000_000
            raise BoardError(f"{name[:100]!r} is larger than {limit} MB; put it elsewhere and attach its address")
        name = sendable(os.path.basename(name.strip().replace("\\", "/")))[:150]  # noqa: PTH119 - of any system
        if not name.strip("."):
            raise BoardError("the attachment needs a file name")
        # The row comes last: a process that dies before it leaves a file that no card names.
        file = f"{secrets.token_hex(8)}-{''.join(char if char.isalnum() or char in '._-' else '_' for char in name)}"
        path = self.attachment_path(card, file)
        make_folder(path.parent)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE), "wb") as written:
            written.write(content)
        with self.database.write(durable=True) as connection:
            _saved(connection, self._touched(_require(connection, card.id)))
            row = connection.execute(
                "INSERT INTO attachments (card, name, content_type, size, file, author, at) "
                f"VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING {', '.join(CardAttachment.__struct_fields__)}",
                (card.id, name, content_type.strip()[:100], len(content), file, by.author, self._clock()),
            ).fetchone()
        kept: CardAttachment = _value(CardAttachment, row)
        return kept

    def attachment_path(self, card: Card, file: str) -> Path:
        return self._files / card.id / file

    # Claims of workers that are gone

    def release_stale(self) -> None:
        """Give back the cards whose workers are gone or silent."""
        if not self.database.exists:
            return
        # Check with a read first, because a write would make other processes wait.
        with self.database.read() as connection:
            if not self._stale(connection):
                return
        with self.database.write(durable=True) as connection:
            self._release_stale(connection)

    def _stale(self, connection: sqlite3.Connection) -> list[tuple[CardRun, RunOutcome, str]]:
        running = connection.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE outcome = 'running'").fetchall()
        found: list[tuple[CardRun, RunOutcome, str]] = []
        for run in (_value(CardRun, row) for row in running):
            card, now = _find(connection, run.card), self._clock()
            limit = card.max_runtime_seconds if card is not None else None
            if not run.process:
                continue
            if limit and now - run.started_at > limit:
                found.append((run, "timed_out", f"it took longer than {limit} seconds"))
            elif not is_alive(run.process):
                found.append((run, "lost", f"its process {pid_of(run.process)} ended without a result"))
            elif now - run.seen_at > self._ttl:
                found.append((run, "lost", f"it gave no sign of life for {self._ttl:.0f} seconds"))
        return found

    def _release_stale(self, connection: sqlite3.Connection) -> None:
        for run, outcome, why in self._stale(connection):
            _end_run(connection, run.card, outcome, self._clock(), why)
            card = _find(connection, run.card)
            if card is None or card.status != "running":
                continue
            failures = card.failures + 1
            if failures >= self._failure_limit:
                reason = f"{failures} workers ended without a result; the last one: {why}"
                card = self._touched(card, status="blocked", reason=reason, block_kind="failures", failures=failures)
            else:
                card = self._touched(card, status=_open_status(connection, card.id), failures=failures)
            _saved(connection, card)

    def _own_card(self, connection: sqlite3.Connection, card: Card, by: Worker) -> Card:
        """The card as it is now; raises BoardError if it is somebody else's, or finished."""
        now, run = _require(connection, card.id), _claim(connection, card.id)
        if run is not None:
            _require_own(run, now, by)
        if now.status in FINISHED:
            raise BoardError(f"the card {now.id} is {now.status} already")
        return now

    def _promoted(self, connection: sqlite3.Connection, card: Card) -> tuple[str, ...]:
        """Make the cards ready that waited only for this one."""
        if card.status not in FINISHED:
            return ()
        waiting = [one for one in _linked(connection, "child", "parent", card.id) if one.status == "todo"]
        ready = [one for one in waiting if _open_status(connection, one.id) == "ready"]
        for one in ready:
            _saved(connection, self._touched(one, status="ready"))
        return tuple(one.id for one in ready)

    def _card_with_id(self, card: str) -> Card | None:
        if not self.database.exists:
            return None
        self.release_stale()
        with self.database.read() as connection:
            found = _find(connection, card)
        return found if found is not None and self._owner in (None, found.owner) else None

    def _require_board(self, board: str) -> None:
        name, known = require_board_name(board), self.boards()
        if name not in known:
            raise UnknownBoard(name, known, advice="a board begins with its first card")

    def _touched(self, card: Card, **changes: Any) -> Card:
        return msgspec.structs.replace(card, updated_at=self._clock(), **changes)


def _values(card: Card) -> tuple[Any, ...]:
    fields = msgspec.to_builtins(card)
    live = [fields.pop(name) for name in _LIVE]
    return (*live, json.dumps(fields))


def _card_of(row: tuple[Any, ...]) -> Card:
    return msgspec.convert({**json.loads(row[-1]), **dict(zip(_LIVE, row[:-1], strict=True))}, Card)


def _value(kind: Any, row: tuple[Any, ...]) -> Any:
    return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)


def _rows(connection: sqlite3.Connection, kind: Any, table: str, card: str) -> list[Any]:
    columns = ", ".join(kind.__struct_fields__)
    rows = connection.execute(f"SELECT {columns} FROM {table} WHERE card = ? ORDER BY number", (card,)).fetchall()
    return [_value(kind, row) for row in rows]


def _find(connection: sqlite3.Connection, card: str) -> Card | None:
    row = connection.execute(f"SELECT {CARD_COLUMNS} FROM cards WHERE id = ?", (card,)).fetchone()
    return None if row is None else _card_of(row)


def _require(connection: sqlite3.Connection, card: str) -> Card:
    found = _find(connection, card)
    if found is None:
        raise UnknownCard(card, (), advice=ADVICE)
    return found


def _saved(connection: sqlite3.Connection, card: Card) -> Card:
    columns = ", ".join(f"{name} = ?" for name in CARD_COLUMNS.split(", "))
    connection.execute(f"UPDATE cards SET {columns} WHERE id = ?", (*_values(card), card.id))
    return card


def _new_id(connection: sqlite3.Connection) -> str:
    while True:
        made = f"t_{secrets.token_hex(ID_BYTES)}"
        if _find(connection, made) is None:
            return made


def _card_with_key(connection: sqlite3.Connection, owner: str, board: str, key: str) -> Card | None:
    if not key:
        return None
    row = connection.execute(
        f"SELECT {CARD_COLUMNS} FROM cards WHERE owner = ? AND board = ? AND idempotency_key = ?", (owner, board, key)
    ).fetchone()
    return None if row is None else _card_of(row)


def _linked(connection: sqlite3.Connection, wanted: str, given: str, card: str) -> list[Card]:
    """The parents or the children of a card."""
    columns = ", ".join(f"cards.{name}" for name in CARD_COLUMNS.split(", "))
    rows = connection.execute(
        f"SELECT {columns} FROM links JOIN cards ON cards.id = links.{wanted} WHERE links.{given} = ? ORDER BY number",
        (card,),
    ).fetchall()
    return [_card_of(row) for row in rows]


def _below(connection: sqlite3.Connection, card: str) -> set[str]:
    """The cards that wait for a card, directly or not."""
    rows = connection.execute(
        "WITH RECURSIVE below (id) AS (SELECT child FROM links WHERE parent = ? UNION "
        "SELECT links.child FROM links JOIN below ON links.parent = below.id) SELECT id FROM below",
        (card,),
    ).fetchall()
    return {row[0] for row in rows}


def _open_status(connection: sqlite3.Connection, card: str) -> Status:
    """Whether a card that nobody works on is ready, or waits for its parents."""
    waits = any(one.status not in FINISHED for one in _linked(connection, "parent", "child", card))
    return "todo" if waits else "ready"


def _claim(connection: sqlite3.Connection, card: str) -> CardRun | None:
    row = connection.execute(
        f"SELECT {RUN_COLUMNS} FROM runs WHERE card = ? AND outcome = 'running'", (card,)
    ).fetchone()
    return None if row is None else _value(CardRun, row)


def _require_run(connection: sqlite3.Connection, number: int) -> CardRun:
    row = connection.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE number = ?", (number,)).fetchone()
    run: CardRun = _value(CardRun, row)
    return run


def _insert_run(connection: sqlite3.Connection, card: str, by: Worker, now: float, note: str = "") -> CardRun:
    name = by.name or by.author
    cursor = connection.execute(
        "INSERT INTO runs (card, worker, session, process, started_at, seen_at, note) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (card, name, by.session, by.process, now, now, note),
    )
    return _require_run(connection, int(cursor.lastrowid or 0))


def _end_run(connection: sqlite3.Connection, card: str, outcome: RunOutcome, now: float, note: str) -> int:
    """End the claim of a card; returns the number of its run, 0 if there was none."""
    run = _claim(connection, card)
    if run is None:
        return 0
    connection.execute(
        "UPDATE runs SET outcome = ?, ended_at = ?, note = ? WHERE number = ?",
        (outcome, now, sendable(note or run.note), run.number),
    )
    return run.number


def _require_own(run: CardRun, card: Card, by: Worker) -> None:
    if by.holds(run):
        return
    who = "a person" if not run.process else f"another worker ({run.worker}, run {run.number})"
    raise BoardError(f"{who} works on the card {card.id}; leave it to them, and take another one")


def _refuse_other_owner(one: Card, other: Card) -> None:
    if one.owner != other.owner:
        raise BoardError(f"{one.id} and {other.id} belong to different people")
