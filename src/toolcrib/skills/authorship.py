"""Remembers which skill files an agent wrote and nobody has reviewed, so that they are shown as quotations.

A file that the person changed no longer has the text in the record, and counts as theirs.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from toolcrib.config.files import replace_file, writing
from toolcrib.config.paths import Home


class SkillAuthorship:
    """The record of one home: the digests of texts that agents wrote, by the path of the file in the skills folder."""

    def __init__(self, home: Home) -> None:
        self._path = home.skill_authors_file
        self._root = Path(os.path.realpath(home.skills_dir))

    def unreviewed_folders(self) -> frozenset[str]:
        """The real paths of the folders that hold a file as an agent wrote it."""
        found: set[str] = set()
        for name, digest in self._read().items():
            file = self._root / name
            try:
                if hashlib.sha256(file.read_bytes()).hexdigest() == digest:
                    found.update(str(parent) for parent in file.parents)
            except OSError:
                continue  # Deleted since, or not readable: there is nothing to show.
        return frozenset(found)

    def record_text(self, file: Path, text: str) -> None:
        """Note that an agent wrote this text, and that nobody has reviewed it; raises ConfigError."""
        with writing(self._path) as target:
            digest = hashlib.sha256(text.encode()).hexdigest()
            replace_file(target, msgspec.json.encode(self._read() | {self._name(file): digest}))

    def record_review(self, folder_or_file: Path) -> None:
        """Note that the person has reviewed a skill or one of its files; raises ConfigError."""
        name = self._name(folder_or_file)
        with writing(self._path) as target:
            before = self._read()
            after = {known: before[known] for known in before if known != name and not known.startswith(f"{name}/")}
            if after != before:
                replace_file(target, msgspec.json.encode(after))

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError, ValueError):
            return {}

    def _name(self, file: Path) -> str:
        return Path(os.path.realpath(file)).relative_to(self._root).as_posix()
