"""Which files a patch names."""

from __future__ import annotations

import re

HEADER = re.compile(r"^(?:---|\+\+\+) (?P<name>\"(?:[^\"\\]|\\.)*\"|[^\t\n]+)", re.MULTILINE)
MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (?P<name>.+)$", re.MULTILINE)
GIT_HEADER = re.compile(r"^diff --git (?P<old>\S+) (?P<new>\S+)$", re.MULTILINE)


def names_in_patch(text: str, strip: int | None) -> list[str]:
    """The paths in the headers of a unified diff, with so many leading parts taken off; None tries the usual ones."""
    written = [match["name"].strip('"').rstrip() for match in HEADER.finditer(text)]
    for match in GIT_HEADER.finditer(text):
        written += [match["old"], match["new"]]
    found: dict[str, None] = {}
    for name in written:
        if name == "/dev/null":
            continue
        for count in (strip,) if strip is not None else (0, 1):
            parts = name.split("/")
            # Without a number, `patch` looks for the bare name too.
            if len(parts) > count:
                found["/".join(parts[count:])] = None
        if strip is None:
            found[name.rpartition("/")[2]] = None
    found.update((match["name"], None) for match in MOVED.finditer(text))
    return list(found)
