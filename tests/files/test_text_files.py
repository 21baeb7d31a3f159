"""Text files as bytes: what is decoded is encoded the same, and an edit touches nothing else."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.files.text_files import (
    Edit,
    Encoding,
    NotEncodable,
    NotText,
    TextFile,
    decoded,
    in_place_of,
    line_count,
)

texts = st.text(st.sampled_from("ab \t\r\n\u00e9\u4e2d\U0001f600\ufeff\u2028\x0c"), max_size=40)
encodings = st.sampled_from(
    [
        Encoding(),
        Encoding("utf-8", codecs.BOM_UTF8),
        Encoding("utf-16-le", codecs.BOM_UTF16_LE),
        Encoding("utf-16-be", codecs.BOM_UTF16_BE),
        Encoding("utf-32-le", codecs.BOM_UTF32_LE),
    ]
)


@given(st.binary(max_size=60))
def test_any_bytes_come_back_the_same_or_are_no_text(data: bytes) -> None:
    """Decoding and encoding give the same bytes, whatever they are."""
    try:
        file = decoded(data)
    except NotText:
        return
    assert file.encoded() == data


@given(texts, encodings)
def test_a_text_is_read_in_the_encoding_that_it_was_written_in(text: str, encoding: Encoding) -> None:
    """The mark at the beginning names the encoding and is no part of the text."""
    data = encoding.encoded(text)
    if encoding.mark or not text.startswith("\ufeff"):
        assert decoded(data) == TextFile(text, encoding)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"caf\xe9 \x93quoted\x94\n", "cp1252"),
        (b"caf\xe9 \x81\n", "latin-1"),
        ("café\n".encode(), "utf-8"),
        (b"", "utf-8"),
    ],
)
def test_older_encodings_are_recognised(data: bytes, name: str) -> None:
    """What is no UTF-8 but looks like text is read byte by byte."""
    assert decoded(data).encoding.name == name


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\0\0", b"\x7fELF\x02\x01\x01\0", bytes(range(1, 32)) * 4 + b"\xff", b"\xff\xfea"]
)
def test_binary_data_is_no_text(data: bytes) -> None:
    """Zero bytes, many control characters or a broken UTF-16 make a file binary."""
    with pytest.raises(NotText):
        decoded(data)


@pytest.mark.parametrize(
    ("raw", "line_end"),
    [("a\r\nb\r\n", "\r\n"), ("a\nb", "\n"), ("a\r\nb\n", ""), ("a", ""), ("a\rb", "\r"), ("a\rb\n", "\n")],
)
def test_the_line_end_of_a_file_is_the_only_one_that_it_uses(raw: str, line_end: str) -> None:
    """A file with both, or with none, has no line end of its own."""
    assert TextFile(raw).line_end == line_end


@given(texts, texts, texts, texts)
def test_an_edit_leaves_everything_else_as_it_is(before: str, middle: str, after: str, new: str) -> None:
    """Around the edited part every byte stays, mixed line ends too; what is new has the line ends of the file."""
    raw = before + middle + after
    if raw.count("\r\n") != sum(part.count("\r\n") for part in (before, middle, after)):
        return  # A line end was cut in two.
    file = TextFile(raw)
    start = len(before.replace("\r\n", "\n"))
    new = new.replace("\r", "")

    edited = file.edited([Edit(start, start + len(middle.replace("\r\n", "\n")), new)])

    assert edited.raw.startswith(before)
    assert edited.raw.endswith(after)
    inserted = edited.raw[len(before) : len(edited.raw) - len(after)]
    if file.line_end == "\r":
        assert inserted == new.replace("\n", "\r")
        return
    assert inserted.replace("\r\n", "\n") == new
    if file.line_end == "\n":
        assert "\r" not in inserted
    if file.line_end == "\r\n":
        assert inserted == new.replace("\n", "\r\n")


def test_new_lines_take_the_line_ends_of_those_they_replace() -> None:
    """In a mixed file the first new line ends as the first old one did, and so on; beyond those, as most lines do."""
    file = TextFile("a\r\nb\nc\nd\n")

    assert file.edited([Edit(0, 4, "x\ny\nz\n")]).raw == "x\r\ny\nz\nc\nd\n"


@pytest.mark.parametrize(
    ("old", "content", "new"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"a\nb\n", "x\r\ny\n", b"x\ny\n"),
        (b"a\r\nb\n", "x\r\ny\n", b"x\r\ny\n"),
        (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n"),
        (b"\xef\xbb\xbfa\n", "\ufeffx\n", b"\xef\xbb\xbfx\n"),
        (b"caf\xe9\r\n", "th\u00e9\n", b"th\xe9\r\n"),
        (b"", "x\r\ny\n", b"x\r\ny\n"),
    ],
)
def test_new_content_takes_over_encoding_and_line_ends(old: bytes, content: str, new: bytes) -> None:
    """Line ends, mark and encoding of the old file are kept; mixed or missing line ends decide nothing."""
    assert in_place_of(content, decoded(old)).encoded() == new


@pytest.mark.parametrize(("text", "says"), [("a\n\u4e2d", "U+4E2D in line 2"), ("\ud800", "half a character")])
def test_what_an_encoding_lacks_is_named(text: str, says: str) -> None:
    """The error says which character cannot be written, and where it is."""
    with pytest.raises(NotEncodable, match=says.replace("+", r"\+")):
        Encoding("latin-1").encoded(text)


@pytest.mark.parametrize(("text", "count"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2)])
def test_lines_are_counted_as_people_do(text: str, count: int) -> None:
    """A last line without an end counts; nothing behind a last line end does not."""
    assert line_count(text) == count


@pytest.mark.parametrize("content", ["", "é\n", "a\r\nb\r\n", "\ufeffmarked\n", "zero \0 byte\n", "𝄞 a\rb"])
def test_a_text_that_decodes_as_it_is_need_not_be_decoded(content: str) -> None:
    """What toolcrib knows about a file it wrote is what it would read from it."""
    file = TextFile(content)

    try:
        read = decoded(file.encoded())
    except NotText:
        read = None

    assert file.decodes_as_it_is == (read == file)
