"""Where the `$ref`s of one schema point, and which of them lead back to themselves."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from toolcrib.core.types import JsonObject


class References:
    """Looks up the local references of one schema; a pointer is the part after `#`."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._onward: dict[str, set[str]] = {}
        root_id = root.get("$id")
        self._root_id = root_id.rstrip("#") if isinstance(root_id, str) else ""

    def pointer(self, reference: str) -> str | None:
        """The pointer of a reference into this very schema; None for anything elsewhere."""
        if self._root_id and reference.startswith(f"{self._root_id}#"):
            reference = reference[len(self._root_id) :]
        if reference == "#" or reference.startswith("#/"):
            return unquote(reference[1:])
        return None

    def target(self, pointer: str) -> Any:
        """The schema at the pointer; True (anything goes) where there is none."""
        found: Any = self._root
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return True
        return found

    def is_recursive(self, pointer: str) -> bool:
        """Whether following the pointer, and all that it leads to, comes back to it."""
        seen: set[str] = set()
        waiting = [pointer]
        while waiting:
            for onward in self._pointers_at(waiting.pop()):
                if onward == pointer:
                    return True
                if onward not in seen:
                    seen.add(onward)
                    waiting.append(onward)
        return False

    def _pointers_at(self, pointer: str) -> set[str]:
        if pointer not in self._onward:
            self._onward[pointer] = self._pointers_in(self.target(pointer))
        return self._onward[pointer]

    def _pointers_in(self, schema: Any) -> set[str]:
        found: set[str] = set()
        visited: set[int] = set()
        waiting = [schema]
        while waiting:
            value = waiting.pop()
            if not isinstance(value, (dict, list)) or id(value) in visited:
                continue
            visited.add(id(value))
            if isinstance(value, list):
                waiting.extend(value)
                continue
            waiting.extend(value.values())
            reference = value.get("$ref")
            pointer = self.pointer(reference) if isinstance(reference, str) else None
            if pointer is not None:
                found.add(pointer)
        return found
