"""Tells a command's output from what its shell says about it."""

from __future__ import annotations

from collections.abc import Callable

from toolcrib.core.environments import OnOutput

NO_FOLDER, DONE = b"no_folder", b"done"
LENGTHS = {NO_FOLDER: 2, DONE: 2}
TRAILER_LENGTH = 6

OnMessage = Callable[[list[str]], None]


class TrailerReader:
    """Hands output on as it comes, and the fields of each message once they are there.

    A message is `NUL marker NUL field NUL … NUL`. The marker is random and belongs to one shell. Output that comes
    after the trailer is printed by processes that the command left behind.
    """

    def __init__(self, marker: str, on_output: OnOutput, on_message: OnMessage) -> None:
        self._needle = b"\0%b\0" % marker.encode()
        self._on_output = on_output
        self._on_message = on_message
        self._held = b""
        self._in_message = False

    def feed(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        while data:
            data = self._message(data) if self._in_message else self._output(data)

    def finish(self) -> None:
        """The stream has ended: what was held back, because a message might begin there, was output."""
        held, self._held = self._held, b""
        if held and not self._in_message:
            self._on_output(held)

    def _output(self, data: bytes) -> bytes:
        """Hand on what stands before the next message; gives what stands after its beginning."""
        start = data.find(self._needle) if b"\0" in data else len(data)
        if start == len(data):
            self._on_output(data)
            return b""
        if start < 0:
            kept = self._beginning_of_needle(data)
            data, self._held = data[:kept], data[kept:]
            if data:
                self._on_output(data)
            return b""
        if start:
            self._on_output(data[:start])
        self._in_message = True
        return self._message(data[start + len(self._needle) :])

    def _beginning_of_needle(self, data: bytes) -> int:
        """Where the longest end of `data` begins that could be the start of a message."""
        start = data.find(b"\0", max(0, len(data) - len(self._needle) + 1))
        while start >= 0 and not self._needle.startswith(data[start:]):
            start = data.find(b"\0", start + 1)
        return start if start >= 0 else len(data)

    def _message(self, data: bytes) -> bytes:
        """Hand on a message that is whole; gives what stands after it."""
        fields = data.split(b"\0", TRAILER_LENGTH)
        wanted = LENGTHS.get(fields[0], TRAILER_LENGTH)
        if len(fields) <= wanted:
            self._held = data
            return b""
        self._in_message = False
        self._on_message([field.decode(errors="surrogateescape") for field in fields[:wanted]])
        return b"\0".join(fields[wanted:])
