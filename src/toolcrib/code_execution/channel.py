"""The channel to a script: frames of one letter, four bytes of length, and that many bytes.

Nothing that arrives is trusted: the script can write whatever it likes to its channel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import msgspec

MEGABYTE = 1024 * 1024
LONGEST = {b"H": MEGABYTE, b"C": 16 * MEGABYTE, b"X": MEGABYTE, b"D": MEGABYTE, b"O": MEGABYTE, b"E": MEGABYTE}
"""The maximum length of a frame of each kind: it is held in memory until it is handled."""
LONGEST_RESULT = 24 * MEGABYTE
HEAD = 5
MOST_NOISE = 4096


class ChannelBroken(Exception):
    """The script sent something that is not a valid frame."""


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
    """Its exit code; negative for the signal that ended it."""
    left: int
    """How many orphaned processes were ended."""
    certain: bool
    """None of its processes run any more."""
    too_much: Literal["", "processes", "memory"]
    """The limit it exceeded, if it was ended for that."""


class HelloFrame(msgspec.Struct, frozen=True):
    """An interpreter is ready."""

    called: str
    """The path it was started with."""
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
    """Passes on the frames that arrive after `nonce`; whatever comes before is noise of the environment."""

    def __init__(self, nonce: bytes, on_frame: Callable[[Frame], None]) -> None:
        self._nonce = nonce
        self._on_frame = on_frame
        self._held = bytearray()
        self.has_begun = False

    @property
    def noise(self) -> str:
        """What was printed before the first frame."""
        return "" if self.has_begun else bytes(self._held).decode(errors="replace").strip()

    def feed(self, data: bytes) -> None:
        """Add bytes; raises ChannelBroken for an invalid frame."""
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
                raise ChannelBroken("a frame has an unknown kind, or is too long")
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
    """Decode a frame whose only problem is lone surrogates, which Python's own parser accepts."""
    try:
        frame: Frame = msgspec.convert(json.loads(payload), decoder.type)
    except (ValueError, RecursionError):
        raise ChannelBroken("a frame cannot be decoded") from problem
    return frame


def start_frame(request: dict[str, Any]) -> bytes:
    """The request to start, as a Python literal: parsing it needs no imports."""
    return _framed(b"S", repr(request).encode("utf-8", "backslashreplace"))


def result_frame(number: int, content: str | dict[str, Any]) -> bytes:
    """The result of a call."""
    if isinstance(content, str):
        # msgspec does not encode lone surrogates.
        content = content.encode("utf-8", "replace").decode()
    try:
        payload = msgspec.json.encode({"id": number, "content": content})
    except (TypeError, ValueError):
        payload = json.dumps({"id": number, "content": content}, default=str).encode()
    if len(payload) > LONGEST_RESULT:
        error = f"the result has {len(payload)} bytes, but a script can receive at most {LONGEST_RESULT}; request less"
        payload = msgspec.json.encode({"id": number, "content": {"error": error}})
    return _framed(b"R", payload)


def _framed(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload
