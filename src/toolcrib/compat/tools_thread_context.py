"""`tools.thread_context`: work that moves to another thread and still knows which call it belongs to."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def propagate_context_to_thread(target: Callable[P, T]) -> Callable[P, T]:
    """A function that runs `target` with the context variables of this moment, in whatever thread it is called."""
    context = contextvars.copy_context()

    @functools.wraps(target)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        # A copy for each run: a context can be entered only once at a time.
        return context.copy().run(target, *args, **kwargs)

    return run
