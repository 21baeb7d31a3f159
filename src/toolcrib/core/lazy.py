"""Builds, imports or compiles on first use: attributes, heavy modules, rare patterns.

`from toolcrib.core.lazy import asyncio` reads like a plain import. asyncio brings sockets, TLS and subprocesses along
and takes a fifth of the way from a fresh process to all definitions, which never waits for anything. jsonschema-rs
takes 30 ms, and many processes never call a tool; ruamel.yaml takes 10 ms, and most start without a config file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload

__all__ = (
    "asyncio",
    "copy",
    "difflib",
    "jsonschema_rs",
    "lazy",
    "lazy_module",
    "lazy_pattern",
    "ruamel_yaml",
    "selectors",
    "shlex",
)


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


def lazy_module(name: str) -> Any:
    """A module imported on first use. Import it under `TYPE_CHECKING` too, for the types."""
    return _LazyModule(name)


if TYPE_CHECKING:
    import asyncio as asyncio
    import copy as copy
    import difflib as difflib
    import selectors as selectors
    import shlex as shlex

    import jsonschema_rs as jsonschema_rs
    import ruamel.yaml as ruamel_yaml
else:
    asyncio = _LazyModule("asyncio")
    copy = _LazyModule("copy")
    difflib = _LazyModule("difflib")
    jsonschema_rs = _LazyModule("jsonschema_rs")
    ruamel_yaml = _LazyModule("ruamel.yaml")
    selectors = _LazyModule("selectors")
    shlex = _LazyModule("shlex")


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
