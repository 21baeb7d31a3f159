"""Text files as bytes: which encoding and line ends a file has, for edits that keep what they do not touch.

A model writes LF and need not know what a file uses. What it writes is put in the file's own encoding and line ends;
everything else stays byte for byte as it was, even in files with mixed line ends.
"""

from __future__ import annotations

import bisect
import codecs
import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolcrib.core.errors import ToolcribError

# The longer mark first: the one of UTF-32-LE starts with the one of UTF-16-LE.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\v\b\x1b")) + b"\x7f"
MAX_CONTROL_SHARE = 0.1
"""A file that is not UTF-8 and has more control characters than this is not text in an older encoding."""
_LINE_END = re.compile(r"\r?\n")


class NotText(ToolcribError):
    """The bytes are not text; the message says why, as the end of a sentence."""


class NotEncodable(ToolcribError):
    """A text cannot be encoded; the message names the character and its line."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the text of a file is encoded."""

    name: str = "utf-8"
    mark: bytes = b""
    """The byte order mark at the start."""

    def encoded(self, text: str) -> bytes:
        """The bytes of a text; raises NotEncodable."""
        try:
            return self.mark + text.encode(self.name)
        except UnicodeEncodeError as error:
            line = text.count("\n", 0, error.start) + 1
            character = f"U+{ord(text[error.start]):04X} in line {line}"
            if 0xD800 <= ord(text[error.start]) < 0xE000:
                raise NotEncodable(f"{character} is half a character; write the whole one") from error
            raise NotEncodable(f"{character} does not exist in the file's encoding, {self.name}") from error


UTF_8 = Encoding()


@dataclass(frozen=True)
class TextFile:
    """A decoded file."""

    raw: str
    """The text with the line ends of the file."""
    encoding: Encoding = UTF_8

    @functools.cached_property
    def text(self) -> str:
        """The text as a model sees it: every line end is LF."""
        if "\r" not in self.raw:
            return self.raw
        return self.raw.replace("\r" if self.line_end == "\r" else "\r\n", "\n")

    @functools.cached_property
    def line_end(self) -> str:
        """The only line end in the file; empty if it has none, or several.

        CR alone ends lines only in files without LF; otherwise it is part of a line.
        """
        if "\n" not in self.raw:
            return "\r" if "\r" in self.raw else ""
        if "\r" not in self.raw:
            return "\n"
        windows = self.raw.count("\r\n")
        unix = self.raw.count("\n") - windows
        if bool(windows) == bool(unix):
            return ""
        return "\r\n" if windows else "\n"

    @property
    def usual_line_end(self) -> str:
        """The line end of most lines."""
        if self.line_end:
            return self.line_end
        windows = self.raw.count("\r\n")
        return "\r\n" if windows * 2 > self.raw.count("\n") else "\n"

    @property
    def decodes_as_it_is(self) -> bool:
        """Whether decoding the encoded text gives this text again, and is not taken for a mark or for binary data."""
        return self.encoding == UTF_8 and "\0" not in self.raw and not self.raw.startswith("\ufeff")

    def edited(self, edits: Sequence[Edit]) -> TextFile:
        """The file with edits of its `text`, which are in order and do not overlap."""
        windows = [match.start() for match in re.finditer("\r\n", self.raw)]
        # The positions of those line ends in `text`, in which each has lost a character.
        ends = [at - earlier for earlier, at in enumerate(windows)]
        parts, done = [], 0
        for edit in edits:
            start, end = (at + bisect.bisect_left(ends, at) for at in (edit.start, edit.end))
            parts += [self.raw[done:start], self._with_line_ends(edit.new, self.raw[start:end])]
            done = end
        return TextFile("".join([*parts, self.raw[done:]]), self.encoding)

    def _with_line_ends(self, new: str, replaced: str) -> str:
        """New text with the line ends of what it replaces, one by one, and then with the usual one of the file."""
        if "\n" not in new or "\r" not in self.raw:
            return new
        ends = itertools.chain(_LINE_END.findall(replaced), itertools.repeat(self.usual_line_end))
        lines = new.split("\n")
        return "".join(line + end for line, end in zip(lines[:-1], ends, strict=False)) + lines[-1]

    def encoded(self) -> bytes:
        """The bytes of the file; raises NotEncodable."""
        return self.encoding.encoded(self.raw)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces `text[start:end]` by `new`."""

    start: int
    end: int
    new: str


def decoded(data: bytes) -> TextFile:
    """The text of a file; encoding it again gives the same bytes. Raises NotText."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            try:
                return TextFile(data[len(mark) :].decode(name), Encoding(name, mark))
            except UnicodeDecodeError as error:
                raise NotText(f"it begins like {name.upper()}, but byte {error.start + len(mark)} is not") from error
    if b"\0" in data:
        raise NotText(f"it is binary: byte {data.index(0)} is zero")
    try:
        return TextFile(data.decode())
    except UnicodeDecodeError as error:
        broken = error.start
    if is_full_of_controls(data):
        raise NotText(f"it is binary: byte {broken} is not UTF-8, and it is full of control characters")
    text, name = in_older_encoding(data)
    return TextFile(text, Encoding(name))


def is_full_of_controls(data: bytes) -> bool:
    """Whether bytes that are not UTF-8 are not text in an older encoding, either."""
    return len(data) - len(data.translate(None, _CONTROL)) > len(data) * MAX_CONTROL_SHARE


def in_older_encoding(data: bytes) -> tuple[str, str]:
    """The text of bytes that are not UTF-8, and the assumed encoding: Windows-1252, else Latin-1."""
    try:
        return data.decode("cp1252"), "cp1252"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def as_lf(text: str) -> str:
    """A text from a model, with LF line ends."""
    return text.replace("\r\n", "\n") if "\r" in text else text


def in_place_of(content: str, old: TextFile) -> TextFile:
    """New content in the encoding and with the line ends of the file that it replaces; unchanged if those are mixed."""
    if old.encoding.mark:
        content = content.removeprefix("\ufeff")
    if old.line_end:
        content = as_lf(content)
    if old.line_end not in ("", "\n"):
        content = content.replace("\n", old.line_end)
    return TextFile(content, old.encoding)


def line_count(text: str) -> int:
    """The number of lines in a text; what follows the last line end is a line unless it is empty."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))
