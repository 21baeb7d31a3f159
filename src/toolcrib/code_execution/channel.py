"""What passes between us and a script: frames of a letter, four bytes of length, and so many bytes.

Nothing that comes from there is trusted: the script can write into its channel whatever it likes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import msgspec

MEGABYTE = 1024 * 1024
LONGEST = {b"H": MEGABYTE, b"C": 16 * MEGABYTE, b"X": MEGABYTE, b"D": MEGABYTE, b"O": MEGABYTE, b"E": MEGABYTE}
"""How long a frame of each kind may be: what is sent is held here until it has been dealt with."""
LONGEST_RESULT = 24 * MEGABYTE
HEAD = 5
MOST_NOISE = 4096


class ChannelBroken(Exception):
    """What came from the script is no frame of ours."""


class CallFrame(msgspec.Struct, frozen=True):
    """The script calls a tool."""

    id: int
    name: str
    arguments: dict[str, Any]


class ExceptionFrame(msgspec.Struct, frozen=True):
    """The script ended with an exception."""

    type: str
    message: str
    traceback: str


class DoneFrame(msgspec.Struct, frozen=True):
    """The script has ended."""

    code: int
    """What it exited with; negative for the signal that ended it."""
    left: int
    """How many processes it left running, which have been ended."""
    certain: bool
    """Nothing of it runs any more."""
    too_much: Literal["", "processes", "memory"]
    """It was ended because it took more of this than it may."""


class HelloFrame(msgspec.Struct, frozen=True):
    """An interpreter is ready."""

    called: str
    """The path that it was started by."""
    executable: str


class OutputFrame(msgspec.Struct, frozen=True):
    stream: Literal["output", "error"]
    data: bytes


Frame = HelloFrame | CallFrame | ExceptionFrame | DoneFrame | OutputFrame

_DECODERS: dict[bytes, msgspec.json.Decoder[Any]] = {
    b"H": msgspec.json.Decoder(HelloFrame),
    b"C": msgspec.json.Decoder(CallFrame),
    b"X": msgspec.json.Decoder(ExceptionFrame),
    b"D": msgspec.json.Decoder(DoneFrame, strict=False),
}
_STREAMS: dict[bytes, Literal["output", "error"]] = {b"O": "output", b"E": "error"}


class FrameReader:
    """Hands on the frames that arrive after `nonce`; what comes before it is noise of the place."""

    def __init__(self, nonce: bytes, on_frame: Callable[[Frame], None]) -> None:
        self._nonce = nonce
        self._on_frame = on_frame
        self._held = bytearray()
        self.has_begun = False

    @property
    def noise(self) -> str:
        """What was printed instead of a beginning."""
        return "" if self.has_begun else bytes(self._held).decode(errors="replace").strip()

    def feed(self, data: bytes) -> None:
        """Take some bytes; raises ChannelBroken for what is no frame."""
        self._held += data
        if not self.has_begun:
            _, found, rest = bytes(self._held).partition(self._nonce)
            if not found:
                del self._held[: max(0, len(self._held) - MOST_NOISE)]
                return
            self.has_begun = True
            self._held = bytearray(rest)
        self._take_frames()

    def _take_frames(self) -> None:
        start = 0
        while len(self._held) - start >= HEAD:
            kind = bytes(self._held[start : start + 1])
            length = int.from_bytes(self._held[start + 1 : start + HEAD], "big")
            if length > LONGEST.get(kind, -1):
                raise ChannelBroken("a frame is of no known kind, or too long")
            end = start + HEAD + length
            if len(self._held) < end:
                break
            frame = _decoded(kind, bytes(self._held[start + HEAD : end]))
            start = end
            self._on_frame(frame)
        del self._held[:start]


def _decoded(kind: bytes, payload: bytes) -> Frame:
    if kind in _STREAMS:
        return OutputFrame(_STREAMS[kind], payload)
    decoder = _DECODERS[kind]
    try:
        frame: Frame = decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _with_half_characters(decoder, payload, error)
    return frame


def _with_half_characters(decoder: msgspec.json.Decoder[Any], payload: bytes, problem: Exception) -> Frame:
    """The frame, if all that is odd about it are lone surrogates, which Python's own reader takes."""
    try:
        frame: Frame = msgspec.convert(json.loads(payload), decoder.type)
    except (ValueError, RecursionError):
        raise ChannelBroken("a frame cannot be read") from problem
    return frame


def start_frame(order: dict[str, Any]) -> bytes:
    """The order to begin, as a Python literal: it is read without importing anything."""
    return _framed(b"S", repr(order).encode("utf-8", "backslashreplace"))


def result_frame(number: int, content: str | dict[str, Any]) -> bytes:
    """The result of a call."""
    if isinstance(content, str):
        # A lone surrogate is no JSON for msgspec.
        content = content.encode("utf-8", "replace").decode()
    try:
        payload = msgspec.json.encode({"id": number, "content": content})
    except (TypeError, ValueError):
        payload = json.dumps({"id": number, "content": content}, default=str).encode()
    if len(payload) > LONGEST_RESULT:
        error = f"the result is {len(payload)} bytes long, and a script gets {LONGEST_RESULT} at most; ask for less"
        payload = msgspec.json.encode({"id": number, "content": {"error": error}})
    return _framed(b"R", payload)


def _framed(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload
