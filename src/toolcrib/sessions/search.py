"""Searches the messages of all sessions by words, best first, and serves the `session_search` tool."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import SessionError, UnknownSession, nearest_names
from toolcrib.core.messages import Role
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import tool_error, tool_result
from toolcrib.sessions.records import HIDDEN_SOURCES, Session, State, StoredMessage, has_spaceless_script
from toolcrib.sessions.store import SessionStore, no_session

MAX_WORDS = 32
MAX_TRIGRAMS = 64
TRIGRAM = 3
SHORTEST_PREFIX = 3
FOLDED_CHARS = 5_000
"""How far to look for a snippet while ignoring accents, which is slow."""

_PIECES = re.compile(r'"([^"]*)"|(\S+)')


class SearchQuery(Struct, frozen=True):
    """Groups of words, one of which must occur completely, and words that must not occur."""

    groups: tuple[tuple[str, ...], ...]
    unwanted: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word for group in self.groups for word in group)

    @property
    def is_spaceless(self) -> bool:
        """Whether a word is in a script without spaces, so that it may be part of a longer run."""
        return any(has_spaceless_script(word) for word in self.words)

    def all_words(self, *, prefix: bool = False) -> str:
        """Matches texts with every word of a group; with `prefix`, the last word may be the start of a longer one."""
        return self._without_unwanted(" OR ".join(f"({' AND '.join(_quoted(group, prefix))})" for group in self.groups))

    def any_word(self) -> str:
        """Matches texts with any of the words, including those of phrases."""
        single = tuple(word for words in self.words for word in words.split() if _has_letters(word))
        return self._without_unwanted(" OR ".join(_quoted(single[:MAX_WORDS], prefix=True)))

    def any_trigram(self) -> str:
        """Matches three consecutive characters of a word anywhere; empty if all words are shorter."""
        found = {word[at : at + TRIGRAM]: None for word in self.words for at in range(len(word) - TRIGRAM + 1)}
        return " OR ".join(_quoted(tuple(found)[:MAX_TRIGRAMS], prefix=False))

    def _without_unwanted(self, expression: str) -> str:
        if not self.unwanted:
            return expression
        return f"({expression}) NOT ({' OR '.join(_quoted(self.unwanted, prefix=False))})"


def parse(typed: str) -> SearchQuery:
    """Words and "quoted phrases"; OR separates alternatives, NOT excludes the next word, all else is plain text."""
    clean = typed.replace("\x00", " ").encode("utf-8", "replace").decode()
    groups: list[list[str]] = [[]]
    unwanted: list[str] = []
    negated = False
    for phrase, word in _PIECES.findall(clean)[:MAX_WORDS]:
        if word == "OR":
            groups.append([])
        elif word == "NOT":
            negated = True
        elif word != "AND":
            # The rest of an unbalanced quotation is not part of the word.
            text = phrase.strip() or word.strip('"')
            if _has_letters(text):
                (unwanted if negated else groups[-1]).append(text)
            negated = False
    kept = tuple(tuple(group) for group in groups if group)
    # If nothing is wanted, NOT was meant as a word.
    return SearchQuery(kept, tuple(unwanted)) if kept else SearchQuery((tuple(unwanted),) if unwanted else ())


def like_pattern(word: str) -> str:
    """A LIKE pattern (with `\\` as escape) for texts that contain the word."""
    return "%" + re.sub(r"([\\%_])", r"\\\1", word) + "%"


def snippet(text: str, words: tuple[str, ...], chars: int) -> str:
    """The part of a text around the first of the words that occurs in it."""
    if len(text) <= chars:
        return text
    at = min((place for place in (_find(text, word) for word in words) if place >= 0), default=0)
    start = max(0, min(at - chars // 3, len(text) - chars))
    if start:
        # Avoid starting in the middle of a word if one starts nearby.
        gap = text.find(" ", start, start + 20)
        start = gap + 1 if gap >= 0 else start
    end = start + chars
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")


def _find(text: str, word: str) -> int:
    at = text.find(word)
    if at < 0:
        at = text.lower().find(word.lower())
    if at < 0 and not text.isascii():
        at = _folded(text[:FOLDED_CHARS]).find(_folded(word))
    return at


def _folded(text: str) -> str:
    """Without case and accents, one character for each, so that positions stay the same."""
    return "".join(unicodedata.normalize("NFD", char)[0].lower()[:1] or char for char in text)


def _quoted(words: tuple[str, ...], prefix: bool) -> list[str]:
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    if prefix and quoted and len(words[-1]) >= SHORTEST_PREFIX:
        quoted[-1] += "*"
    return quoted


def _has_letters(text: str) -> bool:
    return any(unicodedata.category(char)[0] in "LN" or unicodedata.category(char) == "Co" for char in text)


RANKED = 20_000
"""Of more hits than this, only the newest are ranked, because ranking reads each of them."""
SCANNED = 20_000
SCANNED_SPACELESS = 100_000
"""How many of the newest messages to read where no index helps: for parts of words, and one or two characters."""
SNIPPET_CHARS = 300
BEST_FIRST = 500
"""How many of the best to fetch at first; the rest only if the caller wants more."""
LOOKED_UP_AT_ONCE = 24
EVERY_ID = (0, 2**62)

Sort = Literal["", "newest", "oldest"]
"""Empty means best first."""

_FOUND = "FROM {table} WHERE {table} MATCH ? AND rowid BETWEEN ? AND ?"
_ORDERS: dict[Sort, str] = {
    "": f"SELECT rowid FROM (SELECT rowid, bm25({{table}}) AS score {_FOUND} ORDER BY rowid DESC LIMIT {RANKED}) "
    "ORDER BY score, rowid DESC LIMIT ? OFFSET ?",
    "newest": f"SELECT rowid {_FOUND} ORDER BY rowid DESC LIMIT ? OFFSET ?",
    "oldest": f"SELECT rowid {_FOUND} ORDER BY rowid LIMIT ? OFFSET ?",
}
# The ids are passed as one value, so that the statement is prepared once.
_LOOK_UP = """SELECT messages.id, sessions.id, sessions.source, role, messages.created_at, state
    FROM json_each(?) CROSS JOIN messages ON messages.id = value JOIN sessions ON sessions.number = session
    WHERE ?2 IS NULL OR sessions.owner = ?2"""
_TEXTS = """SELECT messages.id, CASE called WHEN '' THEN text ELSE text || char(10) || called END
    FROM json_each(?) CROSS JOIN messages ON messages.id = value"""


# One answer may create hundreds: a msgspec Struct costs a sixth of a frozen dataclass.
class MessageHit(msgspec.Struct, frozen=True):
    """A matching message."""

    message_id: int
    session_id: str
    source: str
    role: str
    created_at: float
    state: State


class SearchRequest(Struct, frozen=True, kw_only=True):
    """A search and its filters."""

    roles: Collection[str] = ()
    """Empty means all roles."""
    within: str = ""
    """Only in this session."""
    without: Collection[str] = ()
    """Not in these sessions."""
    include_hidden: bool = False
    sort: Sort = ""
    owner: str | None = None
    """Only in sessions of this owner; None means all."""

    def matches(self, hit: MessageHit) -> bool:
        if self.roles and hit.role not in self.roles:
            return False
        if self.within:
            return hit.session_id == self.within
        if hit.session_id in self.without:
            return False
        return self.include_hidden or hit.source not in HIDDEN_SOURCES


EVERYTHING = SearchRequest()


def search_messages(
    store: SessionStore, typed: str, *, limit: int = 20, wanted: SearchRequest = EVERYTHING
) -> list[tuple[MessageHit, str]]:
    """The best hits, each with the matching part of its text.

    All words must occur, the last one also as the start of a longer word; if no message has them all, any one
    word is enough, and finally a part of a word.
    """
    query = parse(typed)
    words = query.words
    with store.database.search() as connection:
        hits = list(islice(find_hits(connection, query, wanted), limit))
        found = texts(connection, hits)
    return [(hit, snippet(found[hit.message_id], words, SNIPPET_CHARS)) for hit in hits]


def find_hits(connection: sqlite3.Connection, query: SearchQuery, wanted: SearchRequest) -> Iterator[MessageHit]:
    """All hits, best first, each once; the search continues as they are consumed."""
    if not query.groups:
        return
    seen: set[int] = set()
    finder = _Finder(connection, query, wanted.sort, _span(connection, wanted.within))
    for is_fallback, ids in finder.spaceless_passes() if query.is_spaceless else finder.word_passes():
        if is_fallback and seen:
            return
        while chunk := list(islice(ids, LOOKED_UP_AT_ONCE)):
            new = [id for id in chunk if id not in seen]
            for hit in _look_up(connection, new, wanted.owner):
                if wanted.matches(hit):
                    seen.add(hit.message_id)
                    yield hit


def texts(connection: sqlite3.Connection, hits: Collection[MessageHit]) -> dict[int, str]:
    """By message id, the text of each hit, with the calls it requests."""
    return dict(connection.execute(_TEXTS, (_listed([hit.message_id for hit in hits]),)).fetchall())


Pass = tuple[bool, Iterator[int]]
"""Whether this pass runs only if nothing was found before, and the ids that it finds."""


class _Finder(Struct, frozen=True):
    """Finds message ids in several passes, strictest first."""

    connection: sqlite3.Connection
    query: SearchQuery
    sort: Sort
    span: tuple[int, int]
    """The lowest and highest id to search."""

    def word_passes(self) -> Iterator[Pass]:
        yield False, self._matches("words", self.query.all_words())
        yield False, self._matches("words", self.query.all_words(prefix=True))
        yield True, self._matches("words", self.query.any_word())
        yield True, self._scan(SCANNED)

    def spaceless_passes(self) -> Iterator[Pass]:
        """Words may occur anywhere in a text; those of one or two characters have no trigram and need a scan."""
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
    """The first and last message id of a session; of all sessions if none is named."""
    if not session_id:
        return EVERY_ID
    low, high = connection.execute(
        "SELECT min(id), max(id) FROM messages WHERE session = (SELECT number FROM sessions WHERE id = ?)",
        (session_id,),
    ).fetchone()
    return (low, high) if low is not None else (1, 0)


def _look_up(connection: sqlite3.Connection, ids: list[int], owner: str | None) -> list[MessageHit]:
    return [MessageHit(*row) for row in connection.execute(_LOOK_UP, (_listed(ids), owner)).fetchall()]


def _listed(ids: list[int]) -> str:
    return msgspec.json.encode(ids).decode()


ANSWER_CHARS = 8_000
"""The approximate maximum length of an answer."""
LONGEST_QUERY = 1_000
HEADLINE_CHARS, FRAME_CHARS = 240, 100
"""The part of that which a session takes, and a message besides its text."""
SHORTEST_TEXT, LONGEST_TEXT = 80, 1_500
TITLE_CHARS = 80
SNIPPETS = 12
SNIPPETS_A_SESSION = 3
HITS_LOOKED_AT = 300
"""Once there are enough sessions, how many more hits to check for further snippets of them."""
READ_AT_EACH_END = 10
BROWSED = 10
LAST_SOURCE = "cron"
ROLES = tuple(role for role in get_args(Role) if role != "system")

Current = Callable[[ToolContext], str]


def session_of_context(ctx: ToolContext) -> str:
    return ctx.session_id


class SessionSearchService:
    """Serves `session_search` over one store; other profiles are opened for a single answer."""

    def __init__(self, store: SessionStore, current: Current = session_of_context) -> None:
        self._store = store
        self._current = current

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """The answer as JSON; bad arguments and store failures are errors in it."""
        # In a thread, so that the loop continues while SQLite reads.
        return await asyncio.to_thread(self._answer, args, self._current(ctx))

    def _answer(self, args: JsonObject, current: str) -> str:
        try:
            profile = str(args.get("profile") or "").strip()
            owner = self._store.owners([current]).get(current, "")
            if profile and owner:
                raise SessionError("profiles belong to the owner of this machine; search without `profile`")
            if not profile:
                return tool_result(_answer_from(self._store, args, current, owner))
            other = SessionStore(_profile_file(self._store, profile))
            try:
                return tool_result({"profile": profile, **_answer_from(other, args, "", "")})
            finally:
                other.close()
        except SessionError as error:
            return tool_error(error)


def _answer_from(store: SessionStore, args: JsonObject, current: str, owner: str) -> JsonObject:
    """Reads sessions of this owner only."""
    roles = _roles(str(args.get("role_filter") or ""))
    session_id = str(args.get("session_id") or "").strip()
    query = str(args.get("query") or "").strip()
    around = args.get("around_message_id")
    if around is not None:
        return _read_around(store, session_id, int(around), int(args.get("window") or 5), roles, owner)
    if query:
        sort: Sort = args.get("sort") or ""
        family = store.family(current) if current and not session_id else ()
        within = session_id and _session_of(store, session_id, owner).id
        wanted = SearchRequest(roles=roles, within=within, without=family, sort=sort, owner=owner)
        return _discover(store, query, int(args.get("limit") or 3), wanted)
    if session_id:
        return _read(store, _session_of(store, session_id, owner), roles)
    return _browse(store, current, int(args.get("limit") or BROWSED), args.get("sort") or "newest", owner)


def _discover(store: SessionStore, typed: str, limit: int, wanted: SearchRequest) -> JsonObject:
    """The best sessions, each with its matching messages."""
    if len(typed) > LONGEST_QUERY:
        raise SessionError(f"the query has {len(typed):,} characters; give a few words, at most {LONGEST_QUERY:,}")
    query = parse(typed)
    if not query.groups:
        raise SessionError(f"{typed!r} contains no word to search for; give one or more words")
    with store.database.search() as connection:
        found = _by_session(find_hits(connection, query, wanted), limit, min(SNIPPETS_A_SESSION, SNIPPETS // limit))
        shown = [hit for hits in found.values() for hit in hits]
        by_id = texts(connection, shown)
    chars = _share(len(shown), len(found))
    results = []
    for session_id, hits in found.items():
        matches = [_match(hit, snippet(by_id[hit.message_id], query.words, chars)) for hit in hits]
        results.append({**_headline(store, store.get(session_id)), "matches": matches})
    answer: JsonObject = {"query": typed, "count": len(results), "results": results}
    if results:
        answer["hint"] = "To read more, give session_id with around_message_id of a match, or session_id alone."
    else:
        answer["hint"] = "Nothing found. Try fewer or other words, or call without arguments for the latest sessions."
    return answer


def _by_session(hits: Iterable[MessageHit], limit: int, snippets: int) -> dict[str, list[MessageHit]]:
    """The first hits of each of the first sessions; sessions without a person come last."""
    talks: dict[str, list[MessageHit]] = {}
    scheduled: dict[str, list[MessageHit]] = {}
    for number, hit in enumerate(hits):
        if len(talks) >= limit and number >= HITS_LOOKED_AT:
            break
        group = scheduled if hit.source == LAST_SOURCE else talks
        if hit.session_id not in group and len(group) >= limit:
            continue
        of_session = group.setdefault(hit.session_id, [])
        if len(of_session) < snippets:
            of_session.append(hit)
    return dict([*talks.items(), *scheduled.items()][:limit])


def _read_around(
    store: SessionStore, session_id: str, message_id: int, window: int, roles: Collection[str], owner: str
) -> JsonObject:
    """A message with those before and after it."""
    session = _session_of(store, session_id or store.session_of_message(message_id).id, owner)
    messages = _visible(store, session.id)
    places = [place for place, one in enumerate(messages) if one.id == message_id]
    if not places:
        raise SessionError(f"message {message_id} is not in session {session.id!r}; search for it again")
    (at,) = places
    before = [one for one in messages[:at] if _has_role(one, roles)]
    after = [one for one in messages[at + 1 :] if _has_role(one, roles)]
    chosen = [*before[-window:], messages[at], *after[:window]]
    return {
        **_headline(store, session),
        "around_message_id": message_id,
        "messages": _shortened_messages(chosen),
        "earlier": max(0, len(before) - window),
        "later": max(0, len(after) - window),
    }


def _session_of(store: SessionStore, wanted: str, owner: str) -> Session:
    """The session with this id; one of another owner does not exist, and no hint names it."""
    try:
        found = store.get(wanted)
    except UnknownSession:
        if owner:
            raise no_session(wanted) from None
        raise
    if found.owner != owner:
        raise no_session(wanted)
    return found


def _read(store: SessionStore, session: Session, roles: Collection[str]) -> JsonObject:
    """The beginning and the end of a session."""
    messages = [one for one in _visible(store, session.id) if _has_role(one, roles)]
    head, tail = messages[:READ_AT_EACH_END], messages[READ_AT_EACH_END:][-READ_AT_EACH_END:]
    left_out = len(messages) - len(head) - len(tail)
    answer = {**_headline(store, session), "total": len(messages), "messages": _shortened_messages([*head, *tail])}
    if left_out:
        answer["left_out"] = left_out
        answer["hint"] = f"{left_out} messages after message {head[-1].id} are left out; read around one of them."
    return answer


def _browse(store: SessionStore, current: str, limit: int, sort: str, owner: str) -> JsonObject:
    """The latest sessions, without the one that asks."""
    sessions = [session for session in store.list(limit=limit + 1, owner=owner) if session.id != current][:limit]
    sessions.sort(key=lambda session: session.updated_at, reverse=sort != "oldest")
    return {"count": len(sessions), "results": [_headline(store, session) for session in sessions]}


def _visible(store: SessionStore, session_id: str) -> list[StoredMessage]:
    return store.messages(session_id, states=("live", "folded"))


def _has_role(one: StoredMessage, roles: Collection[str]) -> bool:
    return one.message.role in (roles or ROLES)


def _headline(store: SessionStore, session: Session) -> JsonObject:
    title = session.title or store.first_words(session.id)
    return {
        "session_id": session.id,
        "title": _shortened(title, TITLE_CHARS),
        "when": _moment(session.updated_at),
        "source": session.source,
        "message_count": session.message_count,
    }


def _match(hit: MessageHit, text: str) -> JsonObject:
    return {"message_id": hit.message_id, "role": hit.role, "when": _moment(hit.created_at), "text": text}


def _shortened_messages(messages: Sequence[StoredMessage]) -> list[JsonObject]:
    chars = _share(len(messages), 1)
    told = []
    for one in messages:
        message = one.message
        fields: JsonObject = {"message_id": one.id, "role": message.role, "when": _moment(one.created_at)}
        if message.name:
            fields["tool"] = message.name
        # Text and calls share the space.
        share = chars // 2 if message.text and message.tool_calls else chars
        fields["text"] = _shortened(message.text, share)
        if message.tool_calls:
            asked = "; ".join(f"{call.name} {call.arguments}" for call in message.tool_calls)
            fields["calls"] = _shortened(asked, share)
        told.append(fields)
    return told


def _share(texts: int, sessions: int) -> int:
    """The maximum length of each text."""
    left = ANSWER_CHARS - HEADLINE_CHARS * sessions
    return min(LONGEST_TEXT, max(SHORTEST_TEXT, left // max(1, texts) - FRAME_CHARS))


def _shortened(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    more = f"… ({len(text) - chars} more)"
    return text[: chars - len(more)].rstrip() + more


def _moment(timestamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))


def _roles(listed: str) -> tuple[str, ...]:
    roles = tuple(role for role in re.split(r"[\s,]+", listed.lower()) if role)
    for role in roles:
        if role not in ROLES:
            raise SessionError(f"unknown role {role!r} in role_filter; the roles are {', '.join(ROLES)}")
    return roles


def _profile_file(store: SessionStore, profile: str) -> Path:
    path = store.database.path
    folder = None if path is None else path.parent / "profiles"
    known = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder and folder.is_dir() else []
    if folder is None or profile not in known:
        nearest = nearest_names(profile, known) or known[:3]
        which = f"; there are {', '.join(nearest)}" if nearest else "; there are no profiles"
        raise SessionError(f"the profile {profile!r} does not exist{which}")
    file = folder / profile / "sessions.db"
    if not file.exists():
        raise SessionError(f"the profile {profile!r} has no sessions yet")
    return file
