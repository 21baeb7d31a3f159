"""Attributes that are built on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")

_LOCK = "_lazy_lock"


class lazy(Generic[T]):  # noqa: N801 - used as a decorator, like `property`
    """An attribute built on first use, once, even when several threads ask for it at the same time.

    class Services:
        @lazy
        def index(self) -> Index:
            return Index()

    Like `functools.cached_property`, which takes no lock. Assigning to the attribute replaces what would be built.
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
        """Whether anybody asked for the attribute of this instance yet, or assigned it."""
        return self._name in instance.__dict__
