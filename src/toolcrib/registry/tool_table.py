"""The tools of a registry by name, as a dict.

The registry itself reads and writes frozen entries. Test suites written for the reference system reach into the table
and replace the handler of an entry, so an entry that somebody takes out of the table can be changed, and stays there.
"""

from __future__ import annotations

from typing import Any

from toolcrib.core.types import Handler, ToolEntry
from toolcrib.registry.collisions import require_change_allowed
from toolcrib.registry.entries import handler_keywords


class _MutableEntry(ToolEntry, frozen=False):  # type: ignore[misc]  # msgspec allows it, unlike dataclasses
    """Makes the attributes assignable; msgspec needs a class of its own for that."""


class EditableEntry(_MutableEntry):  # type: ignore[misc]
    """A ToolEntry whose attributes can be assigned; a new handler also decides which keywords it receives."""

    def __setattr__(self, name: str, value: Any) -> None:
        require_change_allowed(self)
        if name == "handler":
            self._use_handler(value)
        super().__setattr__(name, value)

    def _use_handler(self, handler: Handler) -> None:
        takes_context, keywords = handler_keywords(handler)
        super().__setattr__("takes_context", takes_context)
        super().__setattr__("keywords", keywords)


def _editable(entry: ToolEntry) -> EditableEntry:
    return EditableEntry(**{name: getattr(entry, name) for name in entry.__struct_fields__})


class ToolTable(dict[str, ToolEntry]):
    """A dict whose `version` grows after every change, so caches can detect it.

    `read` and `frozen` give entries as they were registered; the methods of a dict give entries that can be changed.
    """

    version = 0

    def read(self, name: str) -> ToolEntry | None:
        return super().get(name)

    def frozen(self) -> list[ToolEntry]:
        return list(super().values())

    def __getitem__(self, name: str) -> ToolEntry:
        entry = super().__getitem__(name)
        if not isinstance(entry, EditableEntry):
            entry = _editable(entry)
            self[name] = entry
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        return default if self.read(name) is None else self[name]

    def values(self) -> Any:
        self._make_editable()
        return super().values()

    def items(self) -> Any:
        self._make_editable()
        return super().items()

    def _make_editable(self) -> None:
        for name in list(self):
            self[name]

    def __setitem__(self, name: str, entry: ToolEntry) -> None:
        super().__setitem__(name, entry)
        self.version += 1

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.version += 1

    def __ior__(self, other: Any) -> ToolTable:  # type: ignore[override, misc]
        self.update(other)
        return self

    def clear(self) -> None:
        super().clear()
        self.version += 1

    def pop(self, *arguments: Any) -> Any:
        try:
            return super().pop(*arguments)
        finally:
            self.version += 1

    def popitem(self) -> tuple[str, ToolEntry]:
        try:
            return super().popitem()
        finally:
            self.version += 1

    def setdefault(self, *arguments: Any) -> Any:
        try:
            return super().setdefault(*arguments)
        finally:
            self.version += 1

    def update(self, *arguments: Any, **entries: ToolEntry) -> None:
        super().update(*arguments, **entries)
        self.version += 1
