"""The frames between us and a script, which may send anything."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.code_execution.channel import (
    CallFrame,
    ChannelBroken,
    DoneFrame,
    Frame,
    FrameReader,
    OutputFrame,
    result_frame,
)

NONCE = b"\0the-word\0"


def framed(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


def call(number: int, name: str, arguments: dict[str, object]) -> bytes:
    return framed(b"C", json.dumps({"id": number, "name": name, "arguments": arguments}).encode())


def read(chunks: list[bytes]) -> list[Frame]:
    frames: list[Frame] = []
    reader = FrameReader(NONCE, frames.append)
    for chunk in chunks:
        reader.feed(chunk)
    return frames


texts = st.text(max_size=20)
outputs = st.binary(max_size=50).map(lambda data: (framed(b"O", data), OutputFrame("output", data)))
calls = st.tuples(st.integers(0, 1000), texts, st.dictionaries(texts, texts, max_size=3)).map(
    lambda each: (call(*each), CallFrame(*each))
)


@given(st.binary(max_size=100), st.lists(outputs | calls, max_size=8), st.lists(st.integers(0, 2_000), max_size=10))
def test_frames_are_the_same_however_the_bytes_arrive(
    noise: bytes, sent: list[tuple[bytes, Frame]], cuts: list[int]
) -> None:
    """Noise of the environment comes first and is left out; then each frame is handed on once, in order."""
    data = noise.replace(b"\0", b"") + NONCE + b"".join(one for one, _ in sent)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})

    frames = read([data[start:end] for start, end in pairwise(places)])

    assert frames == [frame for _, frame in sent]


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_garbage_breaks_the_channel_and_nothing_else(chunks: list[bytes]) -> None:
    """Whatever comes, it is a frame, or not whole yet, or ChannelBroken."""
    try:
        frames = read([NONCE, *chunks])
    except ChannelBroken:
        return
    assert len(frames) <= sum(map(len, chunks))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(framed(b"Z", b""), id="kind"),
        pytest.param(b"C\xff\xff\xff\xff", id="length"),
        pytest.param(b"C" + (17 * 1024 * 1024).to_bytes(4, "big"), id="long-call"),
        pytest.param(b"X" + (2 * 1024 * 1024).to_bytes(4, "big"), id="long-exception"),
        pytest.param(b"O" + (2 * 1024 * 1024).to_bytes(4, "big"), id="long-output"),
        pytest.param(framed(b"C", b"{"), id="json"),
        pytest.param(framed(b"C", b"[]"), id="shape"),
        pytest.param(framed(b"C", b'{"id": "1", "name": "x", "arguments": {}}'), id="type"),
        pytest.param(framed(b"C", b"[" * 100_000), id="depth"),
        pytest.param(framed(b"D", b'{"code": 1}'), id="missing"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    """Kind, length, form and types are looked at before anything is done."""
    with pytest.raises(ChannelBroken):
        read([NONCE + data])


@pytest.mark.services
def test_a_result_that_is_too_long_is_an_error_that_says_so() -> None:
    """The other side would break off; whatever a tool gave, the script gets an answer."""
    long = json.loads(result_frame(1, "\0" * 10_000_000)[5:])
    odd = json.loads(result_frame(2, {"text": "\ud800", "number": 2**70})[5:])

    assert "request less" in long["content"]["error"]
    assert odd == {"id": 2, "content": {"text": "\ud800", "number": 2**70}}


def test_half_characters_are_taken_as_python_takes_them() -> None:
    """A script may have an odd file name in its hands."""
    (frame,) = read([NONCE + call(1, "x", {"path": "\ud800"})])

    assert isinstance(frame, CallFrame)
    assert frame.arguments == {"path": "\ud800"}


def test_the_end_is_told_in_numbers() -> None:
    """The side that writes it has no JSON library at hand."""
    (frame,) = read([NONCE + framed(b"D", b'{"code":3,"left":0,"certain":1,"too_much":""}')])

    assert frame == DoneFrame(code=3, left=0, certain=True, too_much="")


def test_what_is_printed_instead_of_a_beginning_is_kept_for_the_error() -> None:
    """Bounded, and its end, where programs say what is wrong."""
    reader = FrameReader(NONCE, lambda _: None)

    reader.feed(b"x" * 100_000)
    reader.feed(b"no such option\n")

    assert reader.noise.endswith("no such option")
    assert len(reader.noise) < 10_000
