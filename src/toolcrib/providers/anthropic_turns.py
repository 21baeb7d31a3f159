"""The turns of a conversation as Anthropic wants them: user and assistant in turn, each call followed by its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from toolcrib.core.types import JsonObject

CACHED_TURNS = 2
"""The last turn is what the next request finds again; the one before it is what this request finds."""
_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}}'
_BEGINNING = b'{"type":"text","text":"(The conversation begins with your answer.)"}'
_GO_ON = b'{"type":"text","text":"Go on."}'


class _OpenCall:
    """A call that waits for its result."""

    __slots__ = ("given_id", "result", "wire_id")

    def __init__(self, given_id: str, wire_id: str) -> None:
        self.given_id = given_id
        self.wire_id = wire_id
        self.result: bytes | None = None


class Turns:
    """Takes encoded blocks in the order of the conversation and puts them into turns."""

    def __init__(self) -> None:
        self._turns: list[tuple[str, list[bytes]]] = []
        self._open: list[_OpenCall] = []
        self._said: list[bytes] = []
        self._used_ids: set[str] = set()
        self._awaited: _OpenCall | None = None

    def unused(self, ids: Sequence[str]) -> list[str] | None:
        """Other ids for calls, if one of these is taken; None when they can stay."""
        if self._used_ids.isdisjoint(ids) and len(set(ids)) == len(ids):
            return None
        taken = set(self._used_ids)
        fresh: list[str] = []
        for one in ids:
            unique, number = one, 2
            while unique in taken:
                unique, number = f"{one[:56]}_{number}", number + 1
            taken.add(unique)
            fresh.append(unique)
        return fresh

    def add_answer(self, blocks: Sequence[bytes], calls: Iterable[tuple[str, str]]) -> None:
        """What the model said; `calls` are their ids in the conversation and in the request."""
        if not blocks:
            return
        self._close_user_turn()
        self._extend("assistant", blocks)
        self._open = [_OpenCall(given, wire) for given, wire in calls]
        self._used_ids.update(call.wire_id for call in self._open)

    def call_for(self, given_id: str) -> str | None:
        """The id in the request of the call that a result belongs to; None when no call waits for it."""
        self._awaited = next((call for call in self._open if call.given_id == given_id and call.result is None), None)
        return self._awaited.wire_id if self._awaited is not None else None

    def add_result(self, block: bytes) -> None:
        """The result of the call that was just asked for."""
        if self._awaited is not None:
            self._awaited.result = block

    def add_said(self, blocks: Iterable[bytes]) -> None:
        """What a person said: it stands after all results, wherever it came in between."""
        self._said += blocks

    def finished(self) -> list[JsonObject]:
        """The `messages` of the request, with marks up to where the cache shall reach."""
        self._close_user_turn()
        if not self._turns or self._turns[-1][0] == "assistant":
            self._extend("user", [_GO_ON])
        if self._turns[0][0] == "assistant":
            self._turns.insert(0, ("user", [_BEGINNING]))
        last_of_user = [blocks for role, blocks in self._turns if role == "user"][-CACHED_TURNS:]
        for blocks in last_of_user:
            blocks[-1] = blocks[-1][:-1] + _CACHE_MARK
        return [{"role": role, "content": [msgspec.Raw(block) for block in blocks]} for role, blocks in self._turns]

    def _close_user_turn(self) -> None:
        results = [call.result or _missing(call.wire_id) for call in self._open]
        self._extend("user", [*results, *self._said])
        self._open, self._said = [], []

    def _extend(self, role: str, blocks: Sequence[bytes]) -> None:
        if not blocks:
            return
        if self._turns and self._turns[-1][0] == role:
            self._turns[-1][1].extend(blocks)
        else:
            self._turns.append((role, list(blocks)))


def _missing(call_id: str) -> bytes:
    text = "The result of this call is not known."
    return msgspec.json.encode({"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": True})
