"""Finds messages of all sessions by their words, best first."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Literal

import msgspec
from msgspec import Struct

from toolcrib.sessions.records import HIDDEN_SOURCES, State
from toolcrib.sessions.search_query import TRIGRAM, Query, like_pattern, parse, snippet
from toolcrib.sessions.store import SessionStore

RANKED = 20_000
"""Of more hits than this, the newest are ranked: ranking looks at each of them."""
SCANNED = 20_000
SCANNED_SPACELESS = 100_000
"""How many of the newest messages are read where no index helps: for parts of words, and for one or two signs."""
SNIPPET_CHARS = 300
BEST_FIRST = 500
"""So many of the best are sorted out at first; the others only for somebody who wants more."""
LOOKED_UP_AT_ONCE = 24
EVERY_ID = (0, 2**62)

Sort = Literal["", "newest", "oldest"]
"""Empty: the best first."""

_FOUND = "FROM {table} WHERE {table} MATCH ? AND rowid BETWEEN ? AND ?"
_ORDERS: dict[Sort, str] = {
    "": f"SELECT rowid FROM (SELECT rowid, bm25({{table}}) AS score {_FOUND} ORDER BY rowid DESC LIMIT {RANKED}) "
    "ORDER BY score, rowid DESC LIMIT ? OFFSET ?",
    "newest": f"SELECT rowid {_FOUND} ORDER BY rowid DESC LIMIT ? OFFSET ?",
    "oldest": f"SELECT rowid {_FOUND} ORDER BY rowid LIMIT ? OFFSET ?",
}
# The ids go in as one value, so that the statement is prepared once.
_LOOK_UP = """SELECT messages.id, sessions.id, sessions.source, role, messages.created_at, state
    FROM json_each(?) CROSS JOIN messages ON messages.id = value JOIN sessions ON sessions.number = session"""
_TEXTS = """SELECT messages.id, CASE called WHEN '' THEN text ELSE text || char(10) || called END
    FROM json_each(?) CROSS JOIN messages ON messages.id = value"""


# Hundreds may be made for one answer: a msgspec Struct costs a sixth of a frozen dataclass.
class Hit(msgspec.Struct, frozen=True):
    """A message that was found."""

    message_id: int
    session_id: str
    source: str
    role: str
    created_at: float
    state: State


class Wanted(Struct, frozen=True, kw_only=True):
    """Which hits count."""

    roles: Collection[str] = ()
    """Empty: of all roles."""
    within: str = ""
    """Only of this session."""
    without: Collection[str] = ()
    """Not of these sessions."""
    include_hidden: bool = False
    sort: Sort = ""

    def takes(self, hit: Hit) -> bool:
        if self.roles and hit.role not in self.roles:
            return False
        if self.within:
            return hit.session_id == self.within
        if hit.session_id in self.without:
            return False
        return self.include_hidden or hit.source not in HIDDEN_SOURCES


EVERYTHING = Wanted()


def search_messages(
    store: SessionStore, typed: str, *, limit: int = 20, wanted: Wanted = EVERYTHING
) -> list[tuple[Hit, str]]:
    """The best hits, each with the part of its text that was found.

    All words must occur, the last one also as the beginning of a longer word; where no message has them all, one
    of them is enough, and at last a part of a word.
    """
    query = parse(typed)
    words = query.words
    with store.database.search() as connection:
        hits = list(islice(find_hits(connection, query, wanted), limit))
        found = texts(connection, hits)
    return [(hit, snippet(found[hit.message_id], words, SNIPPET_CHARS)) for hit in hits]


def find_hits(connection: sqlite3.Connection, query: Query, wanted: Wanted) -> Iterator[Hit]:
    """All hits, best first, each once; they are looked for while they are taken."""
    if not query.groups:
        return
    seen: set[int] = set()
    finder = _Finder(connection, query, wanted.sort, _span(connection, wanted.within))
    for is_fallback, ids in finder.spaceless_passes() if query.is_spaceless else finder.word_passes():
        if is_fallback and seen:
            return
        while chunk := list(islice(ids, LOOKED_UP_AT_ONCE)):
            new = [id for id in chunk if id not in seen]
            for hit in _look_up(connection, new):
                if wanted.takes(hit):
                    seen.add(hit.message_id)
                    yield hit


def texts(connection: sqlite3.Connection, hits: Collection[Hit]) -> dict[int, str]:
    """By message id, the text of each hit, with the calls that it asks for."""
    return dict(connection.execute(_TEXTS, (_listed([hit.message_id for hit in hits]),)).fetchall())


Pass = tuple[bool, Iterator[int]]
"""Whether it is only made when nothing was found before, and the ids that it finds."""


class _Finder(Struct, frozen=True):
    """Finds the ids of messages in several passes, from the strictest on."""

    connection: sqlite3.Connection
    query: Query
    sort: Sort
    span: tuple[int, int]
    """The lowest and the highest id that counts."""

    def word_passes(self) -> Iterator[Pass]:
        yield False, self._matches("words", self.query.all_words())
        yield False, self._matches("words", self.query.all_words(prefix=True))
        yield True, self._matches("words", self.query.any_word())
        yield True, self._scan(SCANNED)

    def spaceless_passes(self) -> Iterator[Pass]:
        """Words may stand anywhere in a text; those of one or two signs have no trigram and are found by reading."""
        if any(len(word) < TRIGRAM for word in (*self.query.words, *self.query.unwanted)):
            yield False, self._scan(SCANNED_SPACELESS, only_spaceless=True)
        else:
            yield False, self._matches("trigrams", self.query.all_words())
        yield True, self._matches("trigrams", self.query.any_trigram())
        yield True, self._matches("words", self.query.any_word())

    def _matches(self, table: str, expression: str) -> Iterator[int]:
        if not expression:
            return
        statement = _ORDERS[self.sort].format(table=table)
        best = self.connection.execute(statement, (expression, *self.span, BEST_FIRST, 0)).fetchall()
        yield from (id for (id,) in best)
        if len(best) == BEST_FIRST:
            others = self.connection.execute(statement, (expression, *self.span, -1, BEST_FIRST))
            yield from (id for (id,) in others)

    def _scan(self, newest: int, *, only_spaceless: bool = False) -> Iterator[int]:
        """The messages that contain the words, among the newest ones."""
        contains = "(text LIKE ? ESCAPE '\\' OR called LIKE ? ESCAPE '\\')"
        groups = " OR ".join("(" + " AND ".join([contains] * len(group)) + ")" for group in self.query.groups)
        without = "".join(f" AND NOT {contains}" for _ in self.query.unwanted)
        patterns = [like_pattern(word) for word in (*self.query.words, *self.query.unwanted) for _ in range(2)]
        chosen = "INDEXED BY spaceless_messages WHERE spaceless AND" if only_spaceless else "WHERE"
        statement = (
            f"SELECT id FROM (SELECT id, role, state, text, called FROM messages {chosen} id BETWEEN ? AND ? "
            f"ORDER BY id DESC LIMIT {newest}) WHERE role <> 'system' AND state <> 'undone' AND ({groups}){without} "
            f"ORDER BY id {'ASC' if self.sort == 'oldest' else 'DESC'}"
        )
        yield from (id for (id,) in self.connection.execute(statement, (*self.span, *patterns)))


def _span(connection: sqlite3.Connection, session_id: str) -> tuple[int, int]:
    """From the first to the last message of a session; of all sessions when none is named."""
    if not session_id:
        return EVERY_ID
    low, high = connection.execute(
        "SELECT min(id), max(id) FROM messages WHERE session = (SELECT number FROM sessions WHERE id = ?)",
        (session_id,),
    ).fetchone()
    return (low, high) if low is not None else (1, 0)


def _look_up(connection: sqlite3.Connection, ids: list[int]) -> list[Hit]:
    return [Hit(*row) for row in connection.execute(_LOOK_UP, (_listed(ids),)).fetchall()]


def _listed(ids: list[int]) -> str:
    return msgspec.json.encode(ids).decode()
