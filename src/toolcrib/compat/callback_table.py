"""The callbacks of a hook manager as a dict of lists that can be changed in place, as suites for the reference do."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, Literal

from toolcrib.hooks.manager import Callback, HookManager, HookRegistration, accepted_names


class CallbackTable(MutableMapping[str, "Callbacks"]):
    """`manager._hooks` or `manager._middleware`: names with at least one callback, each with a live list of them."""

    def __init__(self, hooks: HookManager, table: Literal["hooks", "middleware"]) -> None:
        self._manager = hooks
        self._table = hooks._hooks if table == "hooks" else hooks._middleware

    def read(self, name: str) -> tuple[HookRegistration, ...]:
        return self._table.get(name, ())

    def write(self, name: str, callbacks: Iterable[Callback]) -> None:
        """Let these callbacks, and no others, belong to a name; who registered the known ones is remembered."""
        known = {id(one.callback): one for one in self.read(name)}
        found = tuple(known.get(id(callback)) or _registered(callback) for callback in callbacks)
        with self._manager._lock:
            self._table[name] = found
            self._manager.is_empty = False

    def replace(self, content: Mapping[str, Iterable[Callback]]) -> None:
        """Take over a whole dict."""
        wanted = {name: list(callbacks) for name, callbacks in content.items()}
        self.clear()
        self.update(wanted)  # type: ignore[arg-type]  # lists become live ones when they are written

    def setdefault(self, key: str, default: Any = ()) -> Callbacks:
        if key not in self:
            self[key] = default
        return Callbacks(self, key)

    def __getitem__(self, name: str) -> Callbacks:
        if not self.read(name):
            raise KeyError(name)
        return Callbacks(self, name)

    def __setitem__(self, name: str, callbacks: Iterable[Callback]) -> None:
        self.write(name, list(callbacks))

    def __delitem__(self, name: str) -> None:
        if not self.read(name):
            raise KeyError(name)
        self.write(name, ())

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, callbacks in self._table.items() if callbacks])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({name: list(callbacks) for name, callbacks in self.items()})


class Callbacks(MutableSequence[Callback]):
    """The callbacks of one name; every change takes effect at once."""

    def __init__(self, table: CallbackTable, name: str) -> None:
        self._table = table
        self._name = name

    def __getitem__(self, index: Any) -> Any:
        return self._list()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        changed = self._list()
        changed[index] = value
        self._table.write(self._name, changed)

    def __delitem__(self, index: Any) -> None:
        changed = self._list()
        del changed[index]
        self._table.write(self._name, changed)

    def __len__(self) -> int:
        return len(self._table.read(self._name))

    def insert(self, index: int, value: Callback) -> None:
        changed = self._list()
        changed.insert(index, value)
        self._table.write(self._name, changed)

    def __eq__(self, other: object) -> bool:
        return self._list() == list(other) if isinstance(other, (list, Callbacks)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._list())

    def _list(self) -> list[Callback]:
        return [one.callback for one in self._table.read(self._name)]


def _registered(callback: Callback) -> HookRegistration:
    return HookRegistration(callback, accepted_names(callback), is_async=inspect.iscoroutinefunction(callback))
