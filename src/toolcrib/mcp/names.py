"""The registered names of MCP tools: `mcp__server__tool`, at most 64 characters.

Names depend on which servers and tools exist, never on the order in which they appeared. If two tools would get the
same name, the one whose own names spell it exactly keeps it, and the others get a digest at the end.
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


class ToolOrigin(NamedTuple):
    """A tool by its server's name in the config and its own name on that server."""

    server: str
    tool: str


def component(text: str) -> str:
    """A server's or tool's name as part of a registered one: everything but letters, digits and `_` becomes `_`."""
    return _FOREIGN.sub("_", text)


def plain_name(server: str, tool: str) -> str:
    """The registered name of a tool if it is short enough and no other tool claims it."""
    return f"{PREFIX}{component(server)}{SEPARATOR}{component(tool)}"


def toolset_name(server: str) -> str:
    """The toolset of a server; the server's own name is an alias for it."""
    return TOOLSET_PREFIX + server


def registered_names(origins: Iterable[ToolOrigin]) -> dict[ToolOrigin, str]:
    """A unique name for each tool."""
    names = {origin: _first_choice(origin) for origin in sorted(set(origins))}
    for chars in DIGEST_CHARS:
        conflicting = _conflicting(names)
        if not conflicting:
            return names
        for origin in conflicting:
            names[origin] = _with_digest(origin, chars)
    # Only a deliberate digest collision gets here; number what is left.
    for number, origin in enumerate(_conflicting(names)):
        names[origin] = f"{names[origin][: MAX_NAME_CHARS - 6]}_{number}"
    return names


def _first_choice(origin: ToolOrigin) -> str:
    plain = plain_name(*origin)
    return plain if len(plain) <= MAX_NAME_CHARS else _with_digest(origin, DIGEST_CHARS[0])


def _conflicting(names: Mapping[ToolOrigin, str]) -> list[ToolOrigin]:
    """The tools that must give up a name because several claim it."""
    claims: dict[str, list[ToolOrigin]] = {}
    for origin, name in names.items():
        claims.setdefault(name, []).append(origin)
    losers: list[ToolOrigin] = []
    for name, claimants in claims.items():
        if len(claimants) > 1:
            exact = [origin for origin in claimants if _is_exact(origin, name)]
            losers += [origin for origin in claimants if origin not in exact or len(exact) > 1]
    return losers


def _is_exact(origin: ToolOrigin, name: str) -> bool:
    return f"{PREFIX}{origin.server}{SEPARATOR}{origin.tool}" == name


def _with_digest(origin: ToolOrigin, chars: int) -> str:
    text = "\0".join(origin).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(text).hexdigest()[:chars]
    return f"{plain_name(*origin)[: MAX_NAME_CHARS - chars - 1]}_{digest}"
