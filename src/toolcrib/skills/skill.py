"""A skill: a folder with a SKILL.md (front matter and instructions) and further files.

Nothing outside the folder of a skill is read, and nothing that is not a regular file.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolcrib.config.yaml_text import Document, parse
from toolcrib.core.errors import ConfigError, ToolcribError, UnknownName

SKILL_FILE = "SKILL.md"
MAX_NAME_CHARS = 64
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
NAME_RULE = "lower-case letters and digits, with single hyphens between them"

SkillSource = Literal["user", "folder", "plugin", "bundled", "project"]
SOURCE_LABELS: dict[SkillSource, str] = {
    "user": "the user's own",
    "folder": "a folder from the settings",
    "plugin": "a plugin",
    "bundled": "bundled with toolcrib",
    "project": "the project's folder, not reviewed by you",
}


class SkillError(ToolcribError):
    """A skill cannot be read or changed; the message says which one, why, and what to do."""


class UnknownSkill(UnknownName):
    kind = "skill"


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a skill before it is opened."""

    name: str
    description: str
    source: SkillSource
    folder: Path
    """With links resolved."""
    file: Path
    """Its SKILL.md."""
    category: str = ""
    is_single_file: bool = False
    """A file without its own folder, so the files next to it do not belong to it."""
    is_linked: bool = False
    """Its folder was reached through a link."""
    problem: str = ""
    """Why it cannot be used; empty if it can."""
    hidden_by: str = ""
    """Why it is hidden: a skill with the same name, or the settings."""

    is_unreviewed: bool = False
    """An agent wrote it, and the user has not reviewed it."""

    @property
    def is_trusted(self) -> bool:
        """Whether it comes from somebody whom the user trusts."""
        return self.source != "project" and not self.is_unreviewed


def is_valid_name(name: str) -> bool:
    """Whether a name follows the rules of the format."""
    return len(name) <= MAX_NAME_CHARS and NAME.fullmatch(name) is not None


FRONT_MATTER_MARK = "---"
MAX_FRONT_MATTER_LINES = 400
# Far more than any honest front matter needs; parsing long or deep YAML is slow.
MAX_YAML_CHARS = 4_000
MAX_BRACKETS = 200
MAX_NUMBER_BITS = 256
BRIEF_KEYS = ("name", "description")
_TOP_LEVEL = re.compile(r"([A-Za-z_][\w-]{0,60})[ \t]*:(?:[ \t]+(.*))?")
# YAML gives a special meaning to values that start with one of these or equal one of these words.
_SPECIAL_STARTS = tuple("&*!|>%@`[]{},#?:-=~'\"")
_SPECIAL_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", ".nan", ".inf"})


class SkillText(msgspec.Struct, frozen=True):
    """The two parts of a SKILL.md."""

    front: str | None
    """The YAML between the markers; None if there is none."""
    body: str
    body_line: int
    """The line on which the body starts, counted from 1."""


def split_front_matter(text: str) -> SkillText:
    """Split a SKILL.md into front matter and body; accepts the line endings of any system."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != FRONT_MATTER_MARK:
        return SkillText(None, "\n".join(lines), 1)
    for at, line in enumerate(lines[1 : MAX_FRONT_MATTER_LINES + 1], start=1):
        if line.rstrip() == FRONT_MATTER_MARK:
            return SkillText("\n".join(lines[1:at]), "\n".join(lines[at + 1 :]), at + 2)
    return SkillText(None, "\n".join(lines), 1)


def parse_front_matter(front: str) -> Document:
    """Parse the front matter, keeping line numbers; raises ConfigError for invalid or oversized YAML."""
    if len(front) > MAX_YAML_CHARS or front.count("[") + front.count("{") > MAX_BRACKETS:
        raise ConfigError(f"SKILL.md:1:1: its front matter is too large; keep it under {MAX_YAML_CHARS:,} characters")
    with warnings.catch_warnings():
        # The parser warns about odd but harmless things that are noise when listing skills.
        warnings.simplefilter("ignore")
        # The marker is on the first line of the file.
        return parse("\n" + front, "SKILL.md", "toolcrib skills check")


def summary_fields(front: str) -> dict[str, str]:
    """The name and description: read directly from plain lines, otherwise through YAML, otherwise as raw text.

    Many skills in the wild are not valid YAML (a colon in the description is enough) and still work this way.
    """
    written, is_simple = _raw_fields(front)
    plain = {key: _plain_value(*written[key]) for key in BRIEF_KEYS if key in written}
    if is_simple and None not in plain.values():
        return {key: value for key, value in plain.items() if value is not None}
    try:
        data = parse_front_matter(front).data
    except ConfigError:
        return {key: " ".join(part.strip("\"'>| ") for part in written[key]).strip() for key in plain}
    found = data if isinstance(data, dict) else {}
    return {key: field_text(found[key]) for key in BRIEF_KEYS if key in found}


def _raw_fields(front: str) -> tuple[dict[str, list[str]], bool]:
    """The lines of each top-level key, the first without the key itself, and whether there is nothing else."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    is_simple = True
    for line in front.split("\n"):
        key = _TOP_LEVEL.fullmatch(line.rstrip())
        if key is not None:
            lines = [key[2] or ""]
            found.setdefault(key[1], lines)
        elif line.strip() and not line.startswith("#"):
            is_simple = is_simple and lines is not None and line.startswith(" ")
            if lines is not None:
                lines.append(line.strip())
    return found, is_simple


def _plain_value(first: str, *more: str) -> str | None:
    """The value of a key written on one line without special YAML syntax; None otherwise."""
    if more or not first.isprintable():
        return None
    quote = first[:1]
    if quote in ("'", '"') and len(first) > 1 and first.endswith(quote):
        inner = first[1:-1]
        return None if quote in inner or "\\" in inner else inner.strip()
    if not first or first.startswith(_SPECIAL_STARTS) or first.lower() in _SPECIAL_WORDS:
        return None
    if ": " in first or " #" in first or "\t" in first or first.endswith(":"):
        return None
    # Leave numbers to YAML, which normalizes them.
    return None if first[0].isdigit() or first[0] in "+." else first


def field_text(value: Any) -> str:
    """A front matter value as text; empty unless it is a text, a number or a list of them."""
    if isinstance(value, str):
        # Two escaped surrogates are one character.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
    if isinstance(value, list):
        return ", ".join(filter(None, (field_text(one) for one in value if not isinstance(one, list))))
    if isinstance(value, bool) or (isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS):
        return ""
    return str(value) if isinstance(value, int | float) else ""


MAX_HEAD_BYTES = 64_000
MAX_FILE_BYTES = 2_000_000
MAX_LISTED_FILES = 200
MAX_LISTED_DEPTH = 6


class SkillFile(msgspec.Struct, frozen=True):
    """A file of a skill besides its SKILL.md."""

    path: str
    """Relative to the skill's folder."""
    size: int
    problem: str = ""
    """Why it cannot be read; empty if it can."""


def read_text(folder: Path, relative: str, *, exact: bool = False) -> str:
    """The text of a file in a skill's folder; raises SkillError if it is outside the folder or not text.

    With `exact` also if it is not UTF-8, because it could not be written back unchanged.
    """
    data = _read(folder, relative, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise SkillError(f"{relative!r} is larger than {MAX_FILE_BYTES:,} bytes; view it with the terminal tool")
    if b"\0" in data[:8_000]:
        raise SkillError(f"{relative!r} is a binary file of {len(data):,} bytes in {str(folder)!r}, not a text")
    try:
        return data.decode("utf-8", "strict" if exact else "replace").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise SkillError(f"{relative!r} is not UTF-8 text, so it cannot be changed; convert it first") from error


def read_head(folder: Path, relative: str) -> str:
    """The start of a file, long enough for the front matter of any skill."""
    return _read(folder, relative, MAX_HEAD_BYTES).decode("utf-8", "replace")


def resolve_file(folder: Path, relative: str) -> str:
    """The real path of a file, relative to the real folder; raises SkillError if it is outside."""
    clean = relative.strip()
    if not clean or "\0" in clean or clean.startswith(("/", "~", "\\")):
        raise SkillError(f"{relative!r} is not a path inside the skill; name a file such as 'references/notes.md'")
    root = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(root, clean))  # noqa: PTH118 - text only
    if not real.startswith(root.rstrip("/") + "/"):
        raise SkillError(f"{relative!r} leads out of the skill's folder; only files inside it can be read")
    return real[len(root.rstrip("/")) + 1 :]


def list_files(skill: Skill) -> list[SkillFile]:
    """The files of a skill besides its SKILL.md, sorted; at most MAX_LISTED_FILES."""
    if skill.is_single_file:
        return []
    found: list[SkillFile] = []
    for path in _walk(skill.folder, 0):
        relative = path.relative_to(skill.folder).as_posix()
        if relative != skill.file.name:
            found.append(_skill_file(skill.folder, path, relative))
        if len(found) == MAX_LISTED_FILES:
            break
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if os.path.isdir(entry) and not entry.is_symlink():  # noqa: PTH112 - raises for nothing
            if depth < MAX_LISTED_DEPTH:
                yield from _walk(entry, depth + 1)
        else:
            yield entry


def _skill_file(folder: Path, path: Path, relative: str) -> SkillFile:
    try:
        resolve_file(folder, relative)
        found = path.stat()
    except (SkillError, OSError):
        return SkillFile(relative, 0, "it is a link that leads out of the skill or is broken")
    if not stat.S_ISREG(found.st_mode):
        return SkillFile(relative, 0, "it is not a regular file")
    return SkillFile(relative, found.st_size)


def _read(folder: Path, relative: str, limit: int) -> bytes:
    """Read a file, opening each folder in turn, so that a link created meanwhile is not followed."""
    parts = resolve_file(folder, relative).split("/")
    if os.open not in os.supports_dir_fd:
        return _read_without_dir_fd(folder.joinpath(*parts), relative, limit)
    opened = -1
    try:
        opened = os.open(os.path.realpath(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for at, part in enumerate(parts):
            kind = os.O_DIRECTORY if at < len(parts) - 1 else os.O_NONBLOCK
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=opened)
            os.close(opened)
            opened = inner
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise SkillError(f"{relative!r} is not a regular file")
        return _read_all(opened, limit)
    except OSError as error:
        raise SkillError(f"{relative!r} cannot be read in {str(folder)!r} ({error.strerror})") from error
    finally:
        if opened >= 0:
            os.close(opened)


def _read_without_dir_fd(path: Path, relative: str, limit: int) -> bytes:
    """`_read` for systems without `dir_fd` support."""
    try:
        if not path.is_file():
            raise SkillError(f"{relative!r} is not a regular file")
        with path.open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise SkillError(f"{relative!r} cannot be read in {str(path.parent)!r} ({error.strerror})") from error


def _read_all(opened: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    while left > 0 and (piece := os.read(opened, min(left, 1_000_000))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
