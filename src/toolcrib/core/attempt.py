"""The border to code that is not ours: whatever it raises becomes a value, in this one place.

Everywhere else an exception is caught by its own type.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Attempt(NamedTuple, Generic[T]):
    """What foreign code gave: its value, or the exception it raised."""

    value: T | None
    error: BaseException | None


def attempt(function: Callable[..., T], *arguments: Any, **keywords: Any) -> Attempt[T]:
    """Call foreign code. An interrupt or exit passes through: it is meant for the whole program."""
    try:
        return Attempt(function(*arguments, **keywords), None)
    except Exception as error:  # noqa: BLE001 - the border
        return Attempt(None, error)


def notify(listener: Callable[..., object], *arguments: Any, name: str) -> None:
    """Call a listener. What it raises is logged under its name: a listener is not part of the work."""
    _, error = attempt(listener, *arguments)
    if error is not None:
        logger.error("%s failed", name, exc_info=error)


def attempt_everything(function: Callable[..., T], *arguments: Any, **keywords: Any) -> Attempt[T]:
    """Call foreign code where even an exit or interrupt is its own doing, as on a thread made for it."""
    try:
        return Attempt(function(*arguments, **keywords), None)
    except BaseException as error:  # noqa: BLE001 - the border
        return Attempt(None, error)


async def attempt_async(awaitable: Awaitable[T]) -> Attempt[T]:
    """Await foreign code. Cancellation, interrupt and exit pass through."""
    try:
        return Attempt(await awaitable, None)
    except Exception as error:  # noqa: BLE001 - the border
        return Attempt(None, error)
