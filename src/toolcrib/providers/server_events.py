"""The events of a streamed answer, as servers really send them.

Stricter readers stumble over an event without data, half a character, or an error that is called so only by its event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, NamedTuple

from toolcrib.core.attempt import attempt

END_SECONDS = 0.1
"""How long the end of the body is waited for after the last event, so that the connection can be used again."""
REST_SECONDS = 5.0
"""How long the last events are waited for after the answer is whole: they say what was used."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event that has data."""

    name: str
    data: str


Take = Callable[[Event], float | None]
"""Takes an event; gives for how many seconds anything more is worth waiting for, once there is a limit."""


class BrokenStream(Exception):
    """A server sent an error where an answer should be; `body` is what it says."""

    def __init__(self, body: Any) -> None:
        super().__init__("an error came instead of an answer")
        self.body = body


class EventReader:
    """Puts a body together that comes in pieces, wherever it is cut."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._is_first = True
        self._after_return = False
        self._name = ""
        self._data: list[str] = []
        self._stray: list[str] = []

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that are whole after this piece."""
        if self._after_return:
            piece = piece.removeprefix(b"\n")
        self._after_return = piece.endswith(b"\r")
        *lines, rest = _LINE_END.split(piece)
        for line in lines:
            yield from self._line(b"".join([*self._rest, line]))
            self._rest = []
        self._rest.append(rest)

    def end(self) -> Iterator[Event]:
        """The last event, where no blank line follows it."""
        yield from self._line(b"".join(self._rest))
        yield from self._dispatch()

    @property
    def stray(self) -> str:
        """The lines that belong to no event: the whole body, from a server that does not stream."""
        return "\n".join(self._stray)

    def _line(self, line: bytes) -> Iterator[Event]:
        if self._is_first:
            line, self._is_first = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            yield from self._dispatch()
            return
        text = line.decode("utf-8", "replace")
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field not in ("", "id", "retry"):
            self._stray.append(text)

    def _dispatch(self) -> Iterator[Event]:
        name, data = self._name, "\n".join(self._data)
        self._name, self._data = "", []
        if data.strip():
            yield Event(name, data)


async def read_events(pieces: AsyncGenerator[bytes, None], take: Take) -> str:
    """Hand on each event as it comes; gives what the body holds beside events."""
    reader = EventReader()
    async with contextlib.aclosing(pieces), asyncio.timeout(None) as patience:
        async for piece in pieces:
            for event in reader.feed(piece):
                seconds = take(event)
                if seconds is not None:
                    patience.reschedule(asyncio.get_running_loop().time() + seconds)
    for event in reader.end():
        take(event)
    return reader.stray


def read_json(event: Event) -> Any:
    """What an event says; raises BrokenStream where that is an error."""
    if event.name == "error":
        raise BrokenStream(attempt(json.loads, event.data).value or event.data)
    return checked(json.loads(event.data))


def checked(answer: Any) -> Any:
    """The answer, or a piece of it; raises BrokenStream where a server sends an error in its place."""
    if isinstance(answer, dict) and (answer.get("error") or "error" in (answer.get("type"), answer.get("object"))):
        raise BrokenStream(answer)
    return answer
