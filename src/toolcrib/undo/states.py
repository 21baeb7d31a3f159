"""What was at a path at one moment: a value that is compared, written into the journal and put back."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["missing", "file", "folder", "link", "special"]

SPECIAL = "it is neither a file, a folder nor a link"


class FileState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was at a path. Of a file it also says where its content is kept, or why it is not."""

    kind: Kind
    mode: int = 0
    """Permission bits of a file or folder."""
    owner: tuple[int, int] | None = None
    """User and group, where the place tells."""
    size: int = 0
    digest: str = ""
    """Of a file: the SHA-256 of its content, where it was read."""
    stamp: str = ""
    """Differs when the file was written to or replaced, as far as the place can tell."""
    changed_ns: int = 0
    """When the content was last changed, in nanoseconds."""
    touched_ns: int = 0
    """When anything about the file was last changed; 0 where the place does not tell."""
    link: str = ""
    """Of a link: what it says, as it is written."""
    pack: str = ""
    offset: int = 0
    """Which pack of copies holds the content, and where in it."""
    not_kept: str = ""
    """Why there is no copy, as part of a sentence."""

    @property
    def has_copy(self) -> bool:
        """Whether the content, if there is one, was kept."""
        return self.kind != "file" or bool(self.pack) or (self.size == 0 and not self.not_kept)

    def is_same(self, other: FileState) -> bool:
        """Whether both describe the same thing; mode and owner count too."""
        if self.kind != other.kind:
            return False
        if self.kind in ("missing", "special"):
            return True
        if self.kind == "link":
            return self.link == other.link
        return self._same_access(other) and (self.kind == "folder" or self.has_content_of(other))

    def has_content_of(self, other: FileState) -> bool:
        """Whether two files hold the same bytes, as far as that is known."""
        if self.kind != "file" or other.kind != "file" or self.size != other.size:
            return False
        if self.digest and other.digest:
            return self.digest == other.digest
        return bool(self.stamp) and self.stamp == other.stamp

    def _same_access(self, other: FileState) -> bool:
        owners = {owner for owner in (self.owner, other.owner) if owner is not None}
        return self.mode == other.mode and len(owners) < 2


MISSING = FileState(kind="missing")
