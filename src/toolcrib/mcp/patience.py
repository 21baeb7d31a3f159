"""How often a server that fails is tried again, and when calls stop waiting for it."""

from __future__ import annotations

import random
import time

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
STABLE_SECONDS = 60.0
"""A connection that lived this long was good, whatever ended it."""
FAILURES_UNTIL_OVER = 3
OVER_SECONDS = 60.0


class Patience:
    """With one server. Only failures of its connection count; what its tools do is an answer."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self._delay = FIRST_RETRY_SECONDS
        self._over_until = 0.0
        self._failed_to_connect = False

    @property
    def is_over(self) -> bool:
        """Calls are to be answered at once, without trying."""
        return time.monotonic() < self._over_until

    def failed(self, *, connecting: bool = False) -> None:
        self.failures += 1
        self._failed_to_connect = connecting
        if self.failures >= FAILURES_UNTIL_OVER:
            self._over_until = time.monotonic() + OVER_SECONDS

    def answered(self) -> None:
        """The server answered a call, in whatever way."""
        self.failures = 0

    def connected(self) -> None:
        """That is the end of the trouble, unless it came from calls on good connections."""
        if self._failed_to_connect:
            self.failures, self._over_until = 0, 0.0

    def lived(self, seconds: float) -> None:
        """A connection ended after so long."""
        if seconds > STABLE_SECONDS:
            self._delay = FIRST_RETRY_SECONDS

    def next_delay(self) -> float:
        """The seconds until the next attempt: longer each time, up to a limit, never two servers at once."""
        delay = self._delay * random.uniform(0.75, 1.25)
        self._delay = min(MAX_RETRY_SECONDS, self._delay * 2)
        return delay

    def renew(self) -> None:
        """Forget what was."""
        self.failures, self._over_until, self._delay = 0, 0.0, FIRST_RETRY_SECONDS
