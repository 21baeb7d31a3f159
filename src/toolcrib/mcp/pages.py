"""Pages that a server wants a person to open: shown with where they lead, never opened or fetched by this program."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit

from mcp_types import ElicitRequestURLParams, ElicitResult

from toolcrib.mcp.form_fields import BadForm
from toolcrib.mcp.person import Person, agreed, quoted
from toolcrib.mcp.untrusted_text import one_line, shown

MAX_URL_CHARS = 4000
MAX_PAGES = 5
OPEN, REFUSE = "I open it", "Decline"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


async def asked_to_open(person: Person, params: ElicitRequestURLParams) -> ElicitResult:
    host, warnings = _looked_at(params.url)
    lines = [
        f"The MCP server {person.server!r} wants you to open a page of {host}: {quoted(params.message)}",
        f"  {shown(params.url)}",
        *warnings,
        "Open it only if you trust that page and expected this. Nothing is opened for you.",
    ]
    await agreed(person, "\n".join(lines), OPEN, REFUSE)
    return ElicitResult(action="accept")


def _looked_at(url: str) -> tuple[str, list[str]]:
    """The host of an address, and what a person should know about it; raises BadForm for what nobody should open."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadForm("the address is not valid") from error
    # Where browsers and this program would read different hosts, nobody can be told where it leads.
    is_plain = url.isprintable() and not any(mark in url for mark in ' \\"<>`')
    if parts.scheme not in ("http", "https") or not host or not is_plain or len(url) > MAX_URL_CHARS:
        raise BadForm("the address is not one of http or https, or too long")
    warnings = []
    if parts.scheme == "http" and host not in LOOPBACK:
        warnings.append("Careful: what is sent there can be read on the way, as the address is not https.")
    if parts.username is not None:
        warnings.append(f"Careful: the address begins like another one. It leads to {host}.")
    if not host.isascii() or "xn--" in host:
        warnings.append("Careful: the name of the host holds letters that look like others.")
    return one_line(host, 300), warnings


def pages_to_open(data: Any) -> str:
    """What a person has to open before a call can be carried out, from the data of the error that says so."""
    listed = data.get("elicitations") if isinstance(data, dict) else None
    pages = []
    for one in listed[:MAX_PAGES] if isinstance(listed, list) else ():
        url = one.get("url") if isinstance(one, dict) else None
        with contextlib.suppress(BadForm):
            host, warnings = _looked_at(url if isinstance(url, str) else "")
            pages.append(" ".join([f"{url} (a page of {host})", *warnings]))
    if not pages:
        return "a person has to open a page of the server first, which it does not name"
    return f"a person has to open {', '.join(pages)} first, and then say that the call can be repeated"
