"""Standard modules and patterns that are too heavy for the start: loaded and compiled when they are first used.

`from toolcrib.core.lazy import asyncio` reads like a plain import. asyncio brings sockets, TLS and subprocesses along
and takes a fifth of the way from a fresh process to all definitions, which never waits for anything.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast


class _LazyModule:
    """Stands for a module; each attribute is looked up there once and kept."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value


class _LazyPattern:
    """Stands for a compiled pattern."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(re.compile(self._text, self._flags), attribute)
        setattr(self, attribute, value)
        return value


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern that most processes never use, compiled when it is first used."""
    return cast("re.Pattern[str]", _LazyPattern(text, flags))


if TYPE_CHECKING:
    import asyncio as asyncio
    import difflib as difflib
    import selectors as selectors
else:
    asyncio = _LazyModule("asyncio")
    difflib = _LazyModule("difflib")
    selectors = _LazyModule("selectors")
