"""Whose sessions are whose, for services that keep things apart by owner."""

from __future__ import annotations

from toolcrib.config.paths import Home
from toolcrib.core.context import current_context
from toolcrib.sessions.store import SessionStore


def calling_owner(home: Home) -> str:
    """Whose session the current tool call belongs to; empty for the owner of the home."""
    ctx = current_context.get()
    return session_owner(home, ctx.session_id) if ctx is not None else ""


def session_owner(home: Home, session_id: str) -> str:
    """Whose session it is; empty for the owner of the home, and for a call without a session."""
    if not session_id or not home.sessions_file.exists():
        return ""
    store = SessionStore(home.sessions_file)
    try:
        return store.owners([session_id]).get(session_id, "")
    finally:
        store.close()
