"""`tools.url_safety` and `tools.website_policy`: which addresses a tool may fetch, by the rules of the web tools."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from toolcrib.config.load import load_settings, read_config
from toolcrib.config.paths import Home, find_home
from toolcrib.core.errors import ConfigError
from toolcrib.web.addresses import PATH_CHARS, QUERY_CHARS, AddressRefused, host_name
from toolcrib.web.guard import AddressGuard, AddressRules, WebsiteRules


class WebsitePolicyError(Exception):
    """The lists of websites in the config cannot be read."""


def is_safe_url(url: str) -> bool:
    """Whether the web tools would fetch this address; looks its host up.

    The host may have other addresses when it is fetched: only our own HTTP client connects to what was checked.
    """
    try:
        guard = AddressGuard(AddressRules.from_settings(load_settings()))
        address = guard.check(url or "")
        if guard.rules.proxy_resolves:
            return True
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        guard.check_found(address.host, address.port, [str(one[4][0]) for one in found])
    except (AddressRefused, ConfigError, OSError, UnicodeError):
        return False
    return bool(found)


async def async_is_safe_url(url: str) -> bool:
    """`is_safe_url`, without blocking the loop while the name is looked up."""
    return await asyncio.to_thread(is_safe_url, url)


def normalize_url_for_request(url: str) -> str:
    """The address in ASCII: the host in Punycode, other characters percent-encoded. What is no URL stays as it is."""
    text = (url or "").strip()
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        place = parts.netloc if host.isascii() else _with_host(parts.netloc, host_name(host))
    except (ValueError, AddressRefused):
        return text
    if not parts.scheme or not parts.netloc:
        return text
    path, query = quote(parts.path, safe=PATH_CHARS), quote(parts.query, safe=QUERY_CHARS)
    return urlunsplit((parts.scheme, place, path, query, quote(parts.fragment, safe=QUERY_CHARS)))


def check_website_access(url: str, config_path: Path | None = None) -> dict[str, str] | None:
    """None if a website may be visited, else which rule of `security.website_blocklist` blocks it and why."""
    host = _host_of(url)
    if not host:
        return None
    try:
        match = _website_rules(config_path).refusal(host)
    except (ConfigError, OSError) as error:
        raise WebsitePolicyError(str(error)) from error
    if match is None:
        return None
    message = f"Blocked by website policy: {match.message}"
    return {"url": url, "host": match.host, "rule": match.rule, "source": match.source, "message": message}


def _website_rules(config_path: Path | None) -> WebsiteRules:
    home = Home(config_path.parent) if config_path else find_home()
    settings = read_config(config_path.read_text(), home)[0] if config_path else load_settings()
    return WebsiteRules(settings.security.website_blocklist, settings.security.website_allowlist, home)


def _with_host(netloc: str, host: str) -> str:
    user, at, rest = netloc.rpartition("@")
    _, colon, port = rest.rpartition(":")
    return f"{user}{at}{host}" + (f":{port}" if colon and port.isdigit() else "")


def _host_of(url: str) -> str:
    """The host as the rules compare it; empty if there is none."""
    text = (url or "").strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname or ""
        return host_name(host) if ":" not in host else host
    except (ValueError, AddressRefused):
        return ""
