"""The names under which tools of MCP servers are offered: `mcp__server__tool`, at most 64 characters.

They depend on which servers and tools there are, never on the order in which they came. Two that would have the same
name are both kept: whoever's own name is exactly that keeps it, every other one gets a digest at its end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PREFIX = "mcp__"
TOOLSET_PREFIX = "mcp-"
SEPARATOR = "__"
MAX_NAME_CHARS = 64
DIGEST_CHARS = (8, 16, 32)
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")


class Original(NamedTuple):
    """A tool by the names that its server and the user gave."""

    server: str
    tool: str


def component(text: str) -> str:
    """A server's or tool's name as a part of ours: whatever is no letter, digit or `_` becomes `_`."""
    return _FOREIGN.sub("_", text)


def plain_name(server: str, tool: str) -> str:
    """The name of a tool that nobody else claims, if it is short enough."""
    return f"{PREFIX}{component(server)}{SEPARATOR}{component(tool)}"


def toolset_name(server: str) -> str:
    """The toolset with the tools of a server; the server's own name is an alias of it."""
    return TOOLSET_PREFIX + server


def offered_names(originals: Iterable[Original]) -> dict[Original, str]:
    """The name of each tool; all differ."""
    names = {original: _first_choice(original) for original in sorted(set(originals))}
    for chars in DIGEST_CHARS:
        rivals = _rivals(names)
        if not rivals:
            return names
        for original in rivals:
            names[original] = _with_digest(original, chars)
    # Only somebody who computed digests to that end gets here; what is left of his tools is told apart by number.
    for number, original in enumerate(_rivals(names)):
        names[original] = f"{names[original][: MAX_NAME_CHARS - 6]}_{number}"
    return names


def _first_choice(original: Original) -> str:
    plain = plain_name(*original)
    return plain if len(plain) <= MAX_NAME_CHARS else _with_digest(original, DIGEST_CHARS[0])


def _rivals(names: Mapping[Original, str]) -> list[Original]:
    """Those that have to give up a name which several have."""
    claims: dict[str, list[Original]] = {}
    for original, name in names.items():
        claims.setdefault(name, []).append(original)
    giving_up: list[Original] = []
    for name, claimants in claims.items():
        if len(claimants) > 1:
            exact = [original for original in claimants if _is_exact(original, name)]
            giving_up += [original for original in claimants if original not in exact or len(exact) > 1]
    return giving_up


def _is_exact(original: Original, name: str) -> bool:
    return f"{PREFIX}{original.server}{SEPARATOR}{original.tool}" == name


def _with_digest(original: Original, chars: int) -> str:
    text = "\0".join(original).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(text).hexdigest()[:chars]
    return f"{plain_name(*original)[: MAX_NAME_CHARS - chars - 1]}_{digest}"
