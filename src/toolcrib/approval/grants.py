"""What people agreed to: for a session, kept in memory, and for good, kept in `command_allowlist` of the config."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from toolcrib.approval.entries import Grant, grant_for
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.paths import Home
from toolcrib.core.approvals import Danger

ALLOWLIST = "command_allowlist"


class Grants:
    """The grants of one runtime. The file is written, but not read again: a tool may have changed it since."""

    def __init__(self, home: Home, permanent: Iterable[str] = ()) -> None:
        self._home = home
        self._permanent = dict.fromkeys(Grant(text) for text in permanent)
        self._sessions: dict[str, dict[Grant, None]] = {}
        self._lock = threading.Lock()

    def in_force(self, session_key: str) -> tuple[Grant, ...]:
        """What holds for a session, permanent grants included."""
        with self._lock:
            return (*self._permanent, *self._sessions.get(session_key, ()))

    def of_session(self, session_key: str) -> tuple[Grant, ...]:
        with self._lock:
            return tuple(self._sessions.get(session_key, ()))

    def permanent(self) -> tuple[Grant, ...]:
        with self._lock:
            return tuple(self._permanent)

    def allow_in_session(self, session_key: str, dangers: Iterable[Danger], *, every_scope: bool = False) -> None:
        """Agree to dangers until the session ends."""
        self.add_to_session(session_key, *(grant_for(danger, every_scope=every_scope) for danger in dangers))

    def add_to_session(self, session_key: str, *grants: Grant) -> None:
        with self._lock:
            self._sessions.setdefault(session_key, {}).update(dict.fromkeys(grants))

    def allow_for_good(self, dangers: Iterable[Danger], *, every_scope: bool = False) -> None:
        """Agree to dangers now and after; raises ConfigError when the config file cannot be written."""
        for danger in dangers:
            self.add_permanent(grant_for(danger, every_scope=every_scope))

    def add_permanent(self, grant: Grant) -> None:
        """Write the grant to the config file, and let it hold from now on."""
        add_to_list(self._home, ALLOWLIST, grant.text)
        with self._lock:
            self._permanent[grant] = None

    def load(self, texts: Iterable[str]) -> None:
        """Let permanent grants hold in this process, without writing them."""
        with self._lock:
            self._permanent.update(dict.fromkeys(Grant(text) for text in texts))

    def revoke(self, text: str) -> bool:
        """Take back a grant, permanent or of any session; False when there was none like it."""
        grant = Grant(text)
        with self._lock:
            held = [self._permanent, *self._sessions.values()]
            found = [grants.pop(grant, self) is None for grants in held]
        remove_from_list(self._home, ALLOWLIST, text)
        return any(found)

    def forget_tool(self, tool: str) -> None:
        """Take back what was agreed to for one tool by its name, in every session and for good."""
        with self._lock:
            held = {grant for grants in (self._permanent, *self._sessions.values()) for grant in grants}
        for grant in held:
            if grant.text.endswith(f"(by {tool})"):
                self.revoke(grant.text)

    def clear_session(self, session_key: str) -> None:
        """Forget what was agreed to in a session."""
        with self._lock:
            self._sessions.pop(session_key, None)
