"""What the tool `session_search` answers: earlier conversations, found by their words or read on in one of them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import get_args

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import SessionError, nearest_names
from toolcrib.core.messages import Role
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import tool_error, tool_result
from toolcrib.sessions.records import Session, StoredMessage
from toolcrib.sessions.search import Hit, Sort, Wanted, find_hits, texts
from toolcrib.sessions.search_query import parse, snippet
from toolcrib.sessions.store import SessionStore

ANSWER_CHARS = 8_000
"""How long an answer is at most, about."""
LONGEST_QUERY = 1_000
HEADLINE_CHARS, FRAME_CHARS = 240, 100
"""What a session, and a message beside its text, takes of that."""
SHORTEST_TEXT, LONGEST_TEXT = 80, 1_500
TITLE_CHARS = 80
SNIPPETS = 12
SNIPPETS_A_SESSION = 3
HITS_LOOKED_AT = 300
"""Once there are enough sessions, how many hits are looked at for more snippets of them."""
READ_AT_EACH_END = 10
BROWSED = 10
LAST_SOURCE = "cron"
ROLES = tuple(role for role in get_args(Role) if role != "system")

Current = Callable[[ToolContext], str]


def session_of_context(ctx: ToolContext) -> str:
    return ctx.session_id


class SessionSearchService:
    """Answers `session_search` over one store; other profiles are opened for the one answer."""

    def __init__(self, store: SessionStore, current: Current = session_of_context) -> None:
        self._store = store
        self._current = current

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """The answer as JSON; what is wrong with the arguments, or with the store, is an error in it."""
        # In a thread, so that the loop goes on while SQLite reads.
        return await asyncio.to_thread(self._answer, args, self._current(ctx))

    def _answer(self, args: JsonObject, current: str) -> str:
        try:
            profile = str(args.get("profile") or "").strip()
            if not profile:
                return tool_result(_answer_from(self._store, args, current))
            other = SessionStore(_profile_file(self._store, profile))
            try:
                return tool_result({"profile": profile, **_answer_from(other, args, "")})
            finally:
                other.close()
        except SessionError as error:
            return tool_error(error)


def _answer_from(store: SessionStore, args: JsonObject, current: str) -> JsonObject:
    roles = _roles(str(args.get("role_filter") or ""))
    session_id = str(args.get("session_id") or "").strip()
    query = str(args.get("query") or "").strip()
    around = args.get("around_message_id")
    if around is not None:
        return _read_around(store, session_id, int(around), int(args.get("window") or 5), roles)
    if query:
        sort: Sort = args.get("sort") or ""
        family = store.family(current) if current and not session_id else ()
        wanted = Wanted(roles=roles, within=session_id and store.get(session_id).id, without=family, sort=sort)
        return _discover(store, query, int(args.get("limit") or 3), wanted)
    if session_id:
        return _read(store, session_id, roles)
    return _browse(store, current, int(args.get("limit") or BROWSED), args.get("sort") or "newest")


def _discover(store: SessionStore, typed: str, limit: int, wanted: Wanted) -> JsonObject:
    """The sessions that fit best, each with the messages that were found in it."""
    if len(typed) > LONGEST_QUERY:
        raise SessionError(f"the query has {len(typed):,} characters; give a few words, at most {LONGEST_QUERY:,}")
    query = parse(typed)
    if not query.groups:
        raise SessionError(f"there is no word to look for in {typed!r}; give one or more words")
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
        answer["hint"] = "To read on, give session_id with around_message_id of a match, or session_id alone."
    else:
        answer["hint"] = "Nothing was found. Try fewer or other words, or call without arguments for the latest."
    return answer


def _by_session(hits: Iterable[Hit], limit: int, snippets: int) -> dict[str, list[Hit]]:
    """The first hits of each of the first sessions; those that nobody talked in come after the others."""
    talks: dict[str, list[Hit]] = {}
    scheduled: dict[str, list[Hit]] = {}
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
    store: SessionStore, session_id: str, message_id: int, window: int, roles: Collection[str]
) -> JsonObject:
    """A message with those before and after it."""
    session = store.get(session_id) if session_id else store.session_of_message(message_id)
    messages = _visible(store, session.id)
    places = [place for place, one in enumerate(messages) if one.id == message_id]
    if not places:
        raise SessionError(f"message {message_id} is not part of session {session.id!r}; search for it again")
    (at,) = places
    before = [one for one in messages[:at] if _fits(one, roles)]
    after = [one for one in messages[at + 1 :] if _fits(one, roles)]
    chosen = [*before[-window:], messages[at], *after[:window]]
    return {
        **_headline(store, session),
        "around_message_id": message_id,
        "messages": _told(chosen),
        "earlier": max(0, len(before) - window),
        "later": max(0, len(after) - window),
    }


def _read(store: SessionStore, session_id: str, roles: Collection[str]) -> JsonObject:
    """The beginning and the end of a session."""
    session = store.get(session_id)
    messages = [one for one in _visible(store, session.id) if _fits(one, roles)]
    head, tail = messages[:READ_AT_EACH_END], messages[READ_AT_EACH_END:][-READ_AT_EACH_END:]
    left_out = len(messages) - len(head) - len(tail)
    answer = {**_headline(store, session), "total": len(messages), "messages": _told([*head, *tail])}
    if left_out:
        answer["left_out"] = left_out
        answer["hint"] = f"{left_out} messages after message {head[-1].id} are left out; read around one of them."
    return answer


def _browse(store: SessionStore, current: str, limit: int, sort: str) -> JsonObject:
    """The latest sessions, without the one that asks."""
    sessions = [session for session in store.list(limit=limit + 1) if session.id != current][:limit]
    sessions.sort(key=lambda session: session.updated_at, reverse=sort != "oldest")
    return {"count": len(sessions), "results": [_headline(store, session) for session in sessions]}


def _visible(store: SessionStore, session_id: str) -> list[StoredMessage]:
    return store.messages(session_id, states=("live", "folded"))


def _fits(one: StoredMessage, roles: Collection[str]) -> bool:
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


def _match(hit: Hit, text: str) -> JsonObject:
    return {"message_id": hit.message_id, "role": hit.role, "when": _moment(hit.created_at), "text": text}


def _told(messages: Sequence[StoredMessage]) -> list[JsonObject]:
    chars = _share(len(messages), 1)
    told = []
    for one in messages:
        message = one.message
        fields: JsonObject = {"message_id": one.id, "role": message.role, "when": _moment(one.created_at)}
        if message.name:
            fields["tool"] = message.name
        # What is said and what is called share the space.
        share = chars // 2 if message.text and message.tool_calls else chars
        fields["text"] = _shortened(message.text, share)
        if message.tool_calls:
            asked = "; ".join(f"{call.name} {call.arguments}" for call in message.tool_calls)
            fields["calls"] = _shortened(asked, share)
        told.append(fields)
    return told


def _share(texts: int, sessions: int) -> int:
    """How long each text may be."""
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
            raise SessionError(f"role_filter names {role!r}; the roles are {', '.join(ROLES)}")
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
