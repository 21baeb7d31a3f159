"""Tells a command's output from the trailer that its shell prints at the end."""

from __future__ import annotations

from collections.abc import Callable

from toolcrib.core.environments import OnOutput

NO_FOLDER = "no_folder"
FIELDS = 5


class TrailerReader:
    """Hands output on as it comes, and the fields of the trailer once they are there.

    The trailer is `NUL marker NUL field NUL … NUL`. The marker is random and belongs to one command. What comes after
    it is printed by processes that the command left behind.
    """

    def __init__(self) -> None:
        self._needle = b""
        self._on_output: OnOutput | None = None
        self._on_trailer: Callable[[list[str]], None] | None = None
        self._held = b""
        self._found = False
        self._done = False

    def begin(self, marker: str, on_output: OnOutput, on_trailer: Callable[[list[str]], None]) -> None:
        """Listen from now on; what was printed before belongs to nobody."""
        self._needle = b"\0%b\0" % marker.encode()
        self._on_output = on_output
        self._on_trailer = on_trailer

    def feed(self, data: bytes) -> None:
        if self._on_output is None:
            return
        if self._done:
            self._on_output(data)
        elif self._found:
            self._read_fields(data)
        else:
            self._look_for_trailer(data)

    def finish(self) -> None:
        """The stream has ended: what was held back, because a trailer might begin there, was output."""
        held, self._held = self._held, b""
        if held and self._on_output is not None and not self._found:
            self._on_output(held)

    def _look_for_trailer(self, data: bytes) -> None:
        assert self._on_output is not None
        if self._held:
            data, self._held = self._held + data, b""
        if b"\0" not in data:
            self._on_output(data)
            return
        start = data.find(self._needle)
        if start < 0:
            kept = self._beginning_of_needle(data)
            data, self._held = data[:kept], data[kept:]
            if data:
                self._on_output(data)
            return
        if start:
            self._on_output(data[:start])
        self._found = True
        self._read_fields(data[start + len(self._needle) :])

    def _beginning_of_needle(self, data: bytes) -> int:
        """Where the longest end of `data` begins that could be the start of the trailer."""
        start = data.find(b"\0", max(0, len(data) - len(self._needle) + 1))
        while start >= 0 and not self._needle.startswith(data[start:]):
            start = data.find(b"\0", start + 1)
        return start if start >= 0 else len(data)

    def _read_fields(self, data: bytes) -> None:
        assert self._on_output is not None
        assert self._on_trailer is not None
        self._held += data
        fields = self._held.split(b"\0")
        wanted = 2 if fields[0] == NO_FOLDER.encode() else FIELDS
        if len(fields) <= wanted:
            return
        self._done = True
        rest = b"\0".join(fields[wanted:])
        self._held = b""
        self._on_trailer([field.decode(errors="surrogateescape") for field in fields[:wanted]])
        if rest:
            self._on_output(rest)
