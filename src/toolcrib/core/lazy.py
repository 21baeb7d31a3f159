"""Builds, imports or compiles on first use: attributes, heavy standard modules, rare patterns.

`from toolcrib.core.lazy import asyncio` reads like a plain import. asyncio also loads sockets, TLS and subprocesses.
That would take a fifth of the time from process start to all definitions, and building those never awaits anything.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload


class _LazyModule:
    """A proxy for a module; it looks up each attribute once and caches it."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value


class _LazyPattern:
    """A proxy for a compiled pattern."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(re.compile(self._text, self._flags), attribute)
        setattr(self, attribute, value)
        return value


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern compiled on first use; for those that most processes never need."""
    return cast("re.Pattern[str]", _LazyPattern(text, flags))


if TYPE_CHECKING:
    import asyncio as asyncio
    import difflib as difflib
    import selectors as selectors
else:
    asyncio = _LazyModule("asyncio")
    difflib = _LazyModule("difflib")
    selectors = _LazyModule("selectors")


T = TypeVar("T")

_LOCK = "_lazy_lock"


class lazy(Generic[T]):  # noqa: N801 - used as a decorator, like `property`
    """An attribute built once, on first use, even if several threads request it at the same time.

    class Services:
        @lazy
        def index(self) -> Index:
            return Index()

    Like `functools.cached_property`, but with a lock. Assigning to the attribute sets its value instead of building it.
    """

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build = build
        self._name = build.__name__
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type, /) -> T: ...

    def __get__(self, instance: object | None, owner: type, /) -> Self | T:
        if instance is None:
            return self
        values = instance.__dict__
        with values.setdefault(_LOCK, threading.RLock()):
            if self._name not in values:
                values[self._name] = self._build(instance)
        value: T = values[self._name]
        return value

    def is_built(self, instance: object) -> bool:
        """Whether this instance's attribute has been built or assigned."""
        return self._name in instance.__dict__
