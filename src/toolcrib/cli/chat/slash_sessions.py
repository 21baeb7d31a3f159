"""Slash commands about conversations: a new one, an earlier one, a copy of this one."""

from __future__ import annotations

from collections.abc import Iterable

from toolcrib.agent.hooks import fire
from toolcrib.cli.approval_records import local_time
from toolcrib.cli.chat.farewell import resumed
from toolcrib.cli.chat.slash import Chat, SlashCommand, table
from toolcrib.cli.output import one_line, plural
from toolcrib.core.errors import SessionError
from toolcrib.sessions.records import Session

SHOWN_SESSIONS = 15


async def start_new(chat: Chat, _: str) -> None:
    before, host = chat.agent.session_id, chat.host
    await chat.use(chat.new_agent(), "reset")
    await fire(
        host.runtime.hooks,
        "on_session_reset",
        session_id=chat.agent.session_id,
        platform=host.platform,
        reason="new_session",
        old_session_id=before,
        new_session_id=chat.agent.session_id,
    )
    chat.screen.say(f"A new session, {chat.agent.session_id}. The last one: /resume {before}")


async def resume(chat: Chat, wanted: str) -> None:
    if not wanted:
        await list_sessions(chat, "")
        chat.screen.note("/resume ID goes on with one of them; a part of its title is enough.")
        return
    session = _find(chat, wanted)
    if session.id == chat.agent.session_id:
        chat.screen.say("That is this session.")
        return
    await chat.use(chat.new_agent(session.id), "resume")
    chat.screen.front.show(*resumed(chat.agent, chat.status.symbols), gap=True)


async def branch(chat: Chat, _: str) -> None:
    before = chat.agent.session_id
    await chat.use(chat.agent.branch(), "branch")
    chat.screen.say(f"A copy of the conversation, {chat.agent.session_id}; back to the original: /resume {before}")


async def list_sessions(chat: Chat, words: str) -> None:
    found = _listed(chat, words)
    if not found:
        chat.screen.say("There is no such session." if words else "There are no sessions yet.")
        return
    chat.screen.front.show(
        table([_row(chat, one) for one in found], heading=("session", "last used", "messages", "title")), gap=True
    )


async def set_title(chat: Chat, title: str) -> None:
    if not title:
        chat.screen.say(chat.agent.session.title or "This session has no title yet; /title TEXT gives it one.")
        return
    chat.host.store.update(chat.agent.session_id, title=one_line(title))
    chat.screen.say(f"This session is called {one_line(title)!r} now.")


def complete_sessions(chat: Chat) -> Iterable[str]:
    return [one.id for one in chat.host.store.list(limit=SHOWN_SESSIONS)]


def _find(chat: Chat, wanted: str) -> Session:
    """The session with that id, or the one whose title alone has these words."""
    try:
        return chat.host.store.get(wanted)
    except SessionError:
        titled = _listed(chat, wanted)
        if len(titled) == 1:
            return titled[0]
        if titled:
            raise SessionError(
                f"{plural(len(titled), 'session')} have {wanted!r} in the title; name one: "
                + ", ".join(one.id for one in titled[:3])
            ) from None
        raise


def _listed(chat: Chat, words: str) -> list[Session]:
    if not words:
        return chat.host.store.list(limit=SHOWN_SESSIONS)
    found = chat.host.store.list(limit=1_000)
    return [one for one in found if words.lower() in one.title.lower()][:SHOWN_SESSIONS]


def _row(chat: Chat, one: Session) -> tuple[str, str, str, str]:
    title = f"{one_line(one.title)} (this one)" if one.id == chat.agent.session_id else one_line(one.title)
    return one.id, local_time(one.updated_at)[:16], str(one.message_count), title.strip()


COMMANDS = (
    SlashCommand(name="new", summary="Begin a new session", run=start_new, aliases=("reset", "clear")),
    SlashCommand(
        name="resume", arguments="[ID]", summary="Go on with an earlier session", run=resume, complete=complete_sessions
    ),
    SlashCommand(name="branch", summary="Go on in a copy of this conversation", run=branch, aliases=("fork",)),
    SlashCommand(
        name="sessions", arguments="[WORDS]", summary="Earlier sessions, the latest first", run=list_sessions,
        while_working=True,
    ),
    SlashCommand(name="title", arguments="[TEXT]", summary="Name this session", run=set_title, while_working=True),
)  # fmt: skip
