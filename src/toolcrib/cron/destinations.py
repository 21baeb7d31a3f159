"""Where the result of a run goes, as `deliver` says it.

local              kept with the run, which is done in any case
origin             also told to the session that made the job
file:PATH          also put at the end of a file
command:COMMAND    also given to a shell command on its input
"""

from __future__ import annotations

import os

import msgspec

from toolcrib.core.errors import UsageError, nearest_names

KINDS = ("local", "origin", "file", "command")
CHOICES = "`local`, `origin`, `file:PATH` or `command:COMMAND`"


class Destination(msgspec.Struct, frozen=True):
    """One place for results."""

    kind: str
    target: str = ""
    """The path, or the command."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" if self.target else self.kind


def parse_destination(text: str, folder: str) -> Destination:
    """Where `deliver` sends results; a path is made real, seen from the folder. Raises UsageError."""
    kind, colon, target = text.strip().partition(":")
    kind, target = kind.strip().lower() or "local", target.strip()
    if kind in ("file", "command"):
        if not target:
            example = "file:~/report.txt" if kind == "file" else "command:wall"
            raise UsageError(f"{text!r} does not say which {kind}; write for example `{example}`")
        return Destination(kind, _real_path(target, folder) if kind == "file" else target)
    if kind in KINDS and not colon:
        return Destination(kind)
    near = nearest_names(kind, KINDS, limit=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"results cannot be delivered to {text!r}: no messaging platform of that name is set up here; "
        f"{meant}there are {CHOICES}"
    )


def kept_destination(text: str) -> Destination:
    """The destination that a job was kept with. Its path is not looked at again: what it was is what was agreed to."""
    kind, _, target = text.partition(":")
    return Destination(kind, target)


def _real_path(path: str, folder: str) -> str:
    if "\0" in path:
        raise UsageError(f"{path!r} cannot be the path of a file; write it without the zero byte")
    return os.path.realpath(os.path.join(folder or os.curdir, os.path.expanduser(path)))  # noqa: PTH111, PTH118
