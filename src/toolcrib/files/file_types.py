"""What a file is, by its first bytes: text, an image, a document, or binary data of some type."""

from __future__ import annotations

import codecs
import posixpath
from typing import Literal

from toolcrib.files.text_files import is_full_of_controls

HEAD_BYTES = 8_192
"""How much of a file is examined."""

DocumentKind = Literal["pdf", "ipynb", "docx", "xlsx", "pptx"]
_OFFICE: dict[str, DocumentKind] = {
    ".docx": "docx",
    ".docm": "docx",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".pptx": "pptx",
    ".pptm": "pptx",
}
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_ZIP = b"PK\x03\x04"
# Only marks that no text starts with.
_BINARY = (
    (b"\x7fELF", "ELF program or library"),
    (_ZIP, "zip archive"),
    (b"PK\x05\x06", "empty zip archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"\x04\x22\x4d\x18", "lz4 data"),
    (b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (b"Rar!\x1a\x07", "rar archive"),
    (b"!<arch>\n", "static library or deb package"),
    (b"\xed\xab\xee\xdb", "rpm package"),
    (b"SQLite format 3\x00", "SQLite database"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Office document"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (b"\xce\xfa\xed\xfe", "Mach-O program"),
    (b"\x00asm", "WebAssembly module"),
    (b"ID3", "MP3 audio"),
    (b"OggS", "Ogg media"),
    (b"fLaC", "FLAC audio"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM video"),
    (b"wOFF", "WOFF font"),
    (b"wOF2", "WOFF2 font"),
    (b"\x00\x01\x00\x00", "TrueType font"),
    (b"OTTO", "OpenType font"),
    (b"\x00\x00\x01\x00", "icon"),
    (b"II*\x00", "TIFF image"),
    (b"MM\x00*", "TIFF image"),
    (b"\x93NUMPY", "NumPy array"),
    (b"\x89HDF\r\n\x1a\n", "HDF5 data"),
    (b"PAR1", "Parquet data"),
    (b"GGUF", "GGUF model"),
)
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_SHORT_MARKS = (b"BZh", b"ID3", b"OggS", b"OTTO", b"PAR1", b"GGUF", b"wOFF", b"wOF2", b"fLaC")
"""Letters that a text might start with; they count only if zero bytes follow."""


_AUDIO_SUFFIXES = (".ogg", ".opus", ".oga", ".mp3", ".wav", ".flac", ".m4a", ".aac", ".amr")


def sounds(path: str) -> bool:
    """Whether a path ends like that of an audio file."""
    return path.lower().endswith(_AUDIO_SUFFIXES)


def image_type(head: bytes) -> str:
    """The media type of an image that models can see; empty for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    found = next((name for mark, name in _IMAGES if head.startswith(mark)), "")
    return "" if found == "image/gif" and b"\0" not in head else found


def is_cut_off(media_type: str, data: bytes) -> bool:
    """Whether the end of an image is missing: a model server refuses it, and with it the whole conversation."""
    if media_type == "image/png":
        return b"IEND" not in data[-64 * 1024 :]
    if media_type == "image/jpeg":
        return b"\xff\xd9" not in data[-64 * 1024 :]
    if media_type == "image/gif":
        return not data.rstrip(b"\0").endswith(b";")
    return len(data) < 8 + int.from_bytes(data[4:8], "little")


def document_kind(path: str, head: bytes) -> DocumentKind | None:
    """The kind of document whose text can be extracted; None for anything else."""
    ending = posixpath.splitext(path)[1].lower()
    # A text may mention the mark, but every document has objects.
    if (head.startswith(b"%PDF-") and b" obj" in head) or (ending == ".pdf" and b"%PDF-" in head[:1024]):
        return "pdf"
    if head.startswith(_ZIP) and ending in _OFFICE:
        return _OFFICE[ending]
    return "ipynb" if ending == ".ipynb" and head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else None


def is_wide(head: bytes) -> bool:
    """Whether this starts as UTF-16 or UTF-32, in which lines cannot be found by their bytes."""
    return head.startswith(_WIDE_MARKS)


def binary_type(head: bytes) -> str:
    """What kind of binary data this is; empty for text."""
    for mark, name in _BINARY:
        if head.startswith(mark) and (mark not in _SHORT_MARKS or b"\0" in head):
            return name
    if head[4:8] == b"ftyp":
        return "MP4 or similar media"
    if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"AVI "):
        return f"{head[8:12].decode().strip()} media"
    if head[257:262] == b"ustar":
        return "tar archive"
    if head.startswith(b"MZ") and b"\0" in head:
        return "Windows program"
    if head[2:4] == b"\r\n" and b"\0" in head[:16]:
        return "Python bytecode"
    return "" if is_wide(head) or not _looks_binary(head) else "binary data"


def _looks_binary(head: bytes) -> bool:
    if b"\0" in head:
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return is_full_of_controls(head)
    return False
