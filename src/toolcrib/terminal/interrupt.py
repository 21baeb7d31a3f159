"""How one call is stopped while its command runs, or is about to."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Stoppable(Protocol):
    def interrupt(self) -> None: ...


S = TypeVar("S", bound=Stoppable)


class Interrupt:
    """Stops the command of one call, now or as soon as it starts. Used on the service loop."""

    def __init__(self) -> None:
        self._is_set = False
        self._run: Stoppable | None = None

    def set(self) -> None:
        self._is_set = True
        if self._run is not None:
            self._run.interrupt()

    def stops(self, run: S) -> S:
        """From now on this is what it stops."""
        self._run = run
        if self._is_set:
            run.interrupt()
        return run
