"""Calls foreign code and turns whatever it raises into a value.

Everywhere else, toolcrib catches exceptions by their specific type.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Attempt(NamedTuple, Generic[T]):
    """The result of foreign code: its value, or the exception it raised."""

    value: T | None
    error: BaseException | None


def attempt(function: Callable[..., T], *arguments: Any, **keywords: Any) -> Attempt[T]:
    """Call foreign code. An interrupt or exit passes through: it is meant for the whole program."""
    try:
        return Attempt(function(*arguments, **keywords), None)
    except Exception as error:  # noqa: BLE001 - the border
        return Attempt(None, error)


def notify(listener: Callable[..., object], *arguments: Any, name: str) -> None:
    """Call a listener and log whatever it raises: a failing listener must not fail the work."""
    _, error = attempt(listener, *arguments)
    if error is not None:
        logger.error("%s failed", name, exc_info=error)


def attempt_everything(function: Callable[..., T], *arguments: Any, **keywords: Any) -> Attempt[T]:
    """Call foreign code and also catch exit and interrupt, for use on a thread that runs only this code."""
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
