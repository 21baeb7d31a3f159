"""`tools.url_safety` and `tools.website_policy`: which addresses a tool may fetch."""

from __future__ import annotations

import asyncio
import fnmatch
import ipaddress
import logging
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from toolcrib.compat.hermes_cli_config import cfg_get, read_config_file
from toolcrib.compat.utils import is_truthy_value
from toolcrib.config.paths import find_home

logger = logging.getLogger(__name__)

# Cloud metadata services hand out credentials, so no setting opens them.
_METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog"})
_METADATA_ADDRESSES = frozenset(map(ipaddress.ip_address, ("169.254.169.254", "100.100.100.200", "fd00:ec2::254")))
_PATH_CHARACTERS = "/%:@!$&'()*+,;=-._~"
_QUERY_CHARACTERS = _PATH_CHARACTERS + "?[]"


class WebsitePolicyError(Exception):
    """The list of blocked websites cannot be read."""


def is_safe_url(url: str) -> bool:
    """Whether an address is on the public network: http or https, and every address of its host is public.

    `security.allow_private_urls: true` allows private networks too, but never the metadata services of clouds.
    """
    try:
        parts = urlsplit((url or "").strip())
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if parts.scheme.lower() not in ("http", "https") or not host or host in _METADATA_NAMES:
        return False
    try:
        found = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        logger.warning("the host %r cannot be resolved, so it is not fetched", host)
        return False
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    private_allowed = _allows_private_urls()
    return bool(addresses) and all(_may_be_fetched(address, private_allowed) for address in addresses)


async def async_is_safe_url(url: str) -> bool:
    """`is_safe_url`, without blocking the loop while the name is resolved."""
    return await asyncio.to_thread(is_safe_url, url)


def normalize_url_for_request(url: str) -> str:
    """The address in ASCII: the host in Punycode, other characters percent-encoded. What is no URL stays as it is."""
    text = (url or "").strip()
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna").decode("ascii") if parts.hostname else ""
    except (ValueError, UnicodeError):
        return text
    if not parts.scheme or not parts.netloc:
        return text
    place = parts.netloc if (parts.hostname or "").isascii() else _with_host(parts.netloc, host)
    path, query = quote(parts.path, safe=_PATH_CHARACTERS), quote(parts.query, safe=_QUERY_CHARACTERS)
    return urlunsplit((parts.scheme, place, path, query, quote(parts.fragment, safe=_QUERY_CHARACTERS)))


def check_website_access(url: str, config_path: Path | None = None) -> dict[str, str] | None:
    """None if a website may be visited, else which rule of `security.website_blocklist` blocks it and why."""
    host = _host_of(url)
    policy = _blocklist(config_path)
    if not host or not is_truthy_value(policy.get("enabled")):
        return None
    for rule, source in _rules(policy, (config_path or find_home().config_file).parent):
        if host == rule or host.endswith(f".{rule.removeprefix('*.')}") or fnmatch.fnmatch(host, rule):
            message = f"Blocked by website policy: {host!r} matches the rule {rule!r} from {source}"
            return {"url": url, "host": host, "rule": rule, "source": source, "message": message}
    return None


def _may_be_fetched(address: ipaddress.IPv4Address | ipaddress.IPv6Address, private_allowed: bool) -> bool:
    inner = getattr(address, "ipv4_mapped", None) or address
    if inner in _METADATA_ADDRESSES or inner.is_link_local:
        return False
    if private_allowed:
        return not (inner.is_multicast or inner.is_unspecified)
    return bool(inner.is_global) and not inner.is_multicast


def _allows_private_urls() -> bool:
    return is_truthy_value(cfg_get(read_config_file(), "security", "allow_private_urls"))


def _with_host(netloc: str, host: str) -> str:
    user, at, rest = netloc.rpartition("@")
    _, colon, port = rest.rpartition(":")
    return f"{user}{at}{host}" + (f":{port}" if colon and port.isdigit() else "")


def _host_of(url: str) -> str:
    text = (url or "").strip()
    try:
        return (urlsplit(text if "://" in text else f"//{text}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _blocklist(config_path: Path | None) -> dict[str, Any]:
    policy = cfg_get(read_config_file(config_path), "security", "website_blocklist", default={})
    if not isinstance(policy, dict):
        raise WebsitePolicyError("security.website_blocklist must be a mapping with `enabled` and `domains`")
    return policy


def _rules(policy: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """The blocked hosts, from the config and from the files that it names."""
    rules = [(str(rule), "config") for rule in policy.get("domains") or ()]
    for name in policy.get("shared_files") or ():
        file = folder / Path(str(name)).expanduser()
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            logger.warning("cannot read the list of blocked websites %s: %s", file, error)
            continue
        rules += [(line.strip(), str(file)) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [(_host_of(rule) or rule.lower(), source) for rule, source in rules]
