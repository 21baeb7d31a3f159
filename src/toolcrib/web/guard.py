"""Decides which web addresses may be reached, and resolves names so that a connection goes where the check looked.

Whoever connects (the HTTP client, or a proxy in front of a browser) uses the addresses that `AddressGuard.resolve`
returns. A name that resolves to something else a moment later (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

import msgspec

from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.config.web_settings import WebsiteList
from toolcrib.core.errors import ConfigError, ToolcribError
from toolcrib.web.addresses import (
    AddressKind,
    AddressRefused,
    WebAddress,
    address_kind,
    host_and_port,
    host_name,
    name_kind,
    parse_address,
    shown,
)

RESOLVE_SECONDS = 10.0
MAX_LIST_BYTES = 20 * 1024 * 1024

Resolver = Callable[[str, int], Awaitable[Iterable[str]]]
"""Looks up the addresses of a host; raises OSError."""


class HostNotFound(ToolcribError):
    """A host name that does not resolve."""


async def system_resolver(host: str, port: int) -> list[str]:
    """The addresses of a host, as this machine finds them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for *_, address in found]


class WebsiteMatch(msgspec.Struct, frozen=True):
    """Why a website is refused."""

    host: str
    rule: str
    source: str
    """`config`, or the file that contains the rule."""
    message: str


class WebsiteRules:
    """The website blocklist and allowlist of the user."""

    def __init__(self, blocked: WebsiteList, allowed: WebsiteList, home: Home) -> None:
        """Reads the shared files; raises ConfigError for one that cannot be read, because its rules would be lost."""
        self._blocked = _rules_of(blocked, home)
        self._allowed = _rules_of(allowed, home) if allowed.enabled else None

    def refusal(self, host: str) -> WebsiteMatch | None:
        """The rule that refuses this host; None if there is none."""
        for rule, source in _matching_rules(host, self._blocked):
            message = f"the website {shown(host)} is on the blocklist (rule {rule!r} from {source})"
            return WebsiteMatch(host, rule, source, message)
        if self._allowed is not None and not any(_matching_rules(host, self._allowed)):
            message = f"the website {shown(host)} is not in security.website_allowlist"
            return WebsiteMatch(host, "", "config", message)
        return None


def _rules_of(listed: WebsiteList, home: Home) -> dict[str, str]:
    """The rules of a list, with the source of each."""
    if not listed.enabled:
        return {}
    rules = {rule: "config" for domain in listed.domains if (rule := _as_rule(domain))}
    for name in listed.shared_files:
        path = home.root / Path(name).expanduser()
        try:
            with path.open("rb") as file:
                text = file.read(MAX_LIST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise ConfigError(
                f"cannot read the list of websites {str(path)!r} ({error.strerror or error}); correct "
                "security.website_blocklist or security.website_allowlist"
            ) from error
        for line in text.splitlines():
            if rule := _as_rule(line.partition("#")[0]):
                rules.setdefault(rule, str(path))
    return rules


def _as_rule(text: str) -> str:
    """A domain as the rules compare it; whatever people write around it (scheme, path, port) does not count."""
    host = re.sub(r"^[a-z][a-z0-9+.-]*://", "", text.strip().lower()).split("/")[0].rpartition("@")[2]
    host = re.sub(r":\d*$", "", host).strip().removesuffix(".")
    star = "*." if host.startswith(("*.", ".")) else ""
    host = host.removeprefix("*").removeprefix(".")
    if not host:
        return ""
    try:
        return star + host_name(host)
    except AddressRefused:
        return star + host.strip("[]")


def _matching_rules(host: str, rules: dict[str, str]) -> Iterable[tuple[str, str]]:
    labels = host.split(".")
    for index in range(len(labels)):
        domain = ".".join(labels[index:])
        for rule in (domain, *([f"*.{domain}"] if index else ())):
            if rule in rules:
                yield rule, rules[rule]


NO_LISTS = WebsiteRules(WebsiteList(), WebsiteList(), Home(Path("/")))


class AddressRules(msgspec.Struct, frozen=True, kw_only=True):
    """What may be reached, besides what is public."""

    ports: frozenset[int]
    websites: WebsiteRules
    allow_private: bool = False
    private_hosts: frozenset[tuple[str, int]] = frozenset()
    """Single hosts with their ports that may be private."""
    proxy_resolves: bool = False
    """Whether a proxy resolves names, so that only the names themselves can be checked."""

    @staticmethod
    def from_settings(settings: Settings) -> AddressRules:
        security, web = settings.security, settings.web
        return AddressRules(
            ports=frozenset(web.ports),
            websites=WebsiteRules(security.website_blocklist, security.website_allowlist, settings.home),
            allow_private=security.allow_private_urls,
            private_hosts=frozenset(
                pair for entry in security.allowed_private_hosts for pair in _host_entry(entry, web.ports)
            ),
            proxy_resolves=bool(web.proxy),
        )

    def with_service(self, address: WebAddress) -> AddressRules:
        """Rules for a service that the user configured: it may be private, and no list of websites applies to it."""
        return msgspec.structs.replace(self, private_hosts=frozenset({(address.host, address.port)}), websites=NO_LISTS)


def _host_entry(entry: str, ports: Iterable[int]) -> Iterable[tuple[str, int]]:
    """The host and ports that an entry of `allowed_private_hosts` means; without a port, those of `web.ports`."""
    text = entry.strip()
    try:
        if ":" in text.rpartition("]")[2] or not text.count(":"):
            address = parse_address(f"http://{text}/")
            has_port = text.rpartition("]")[2].count(":") == 1
        else:
            address, has_port = parse_address(f"http://[{text.strip('[]')}]/"), False
    except AddressRefused as error:
        raise ConfigError(
            f"{entry!r} in security.allowed_private_hosts is not a host and port ({error}); write it as localhost:8000"
        ) from error
    return [(address.host, address.port)] if has_port else [(address.host, port) for port in ports]


class AddressGuard:
    """Checks and resolves web addresses by one set of rules. Stateless, so safe on any thread and loop."""

    def __init__(self, rules: AddressRules, resolver: Resolver = system_resolver) -> None:
        self.rules = rules
        self._resolver = resolver

    def with_rules(self, rules: AddressRules) -> AddressGuard:
        """A guard with the same resolver and other rules."""
        return AddressGuard(rules, self._resolver)

    def check(self, url: str) -> WebAddress:
        """The parsed address; raises AddressRefused for whatever can be refused without a look-up."""
        address = parse_address(url)
        self.check_host(address.host, address.port)
        return address

    def check_host(self, host: str, port: int) -> None:
        """Raises AddressRefused if this host or port must not be reached, as far as its name tells."""
        match = self.rules.websites.refusal(host)
        if match is not None:
            raise AddressRefused(match.message, by_policy=True)
        kind = self._named_kind(host)
        self._require_allowed(kind, host, port, host)
        if port not in self.rules.ports and kind == "public" and not self._is_listed(host, port):
            raise _port_refused(host, port)

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses to connect to; raises AddressRefused if any of them must not be reached, and HostNotFound.

        A single private address is enough to refuse: nobody can say which one the operating system would take.
        """
        self.check_host(host, port)
        found = (host,) if _is_literal(host) else await self._look_up(host, port)
        self.check_found(host, port, found)
        return found

    def check_found(self, host: str, port: int, found: Sequence[str]) -> None:
        """Raises AddressRefused if one of the addresses of a host must not be reached."""
        kinds = {self._kind_of(text) for text in found}
        for text in found:
            self._require_allowed(self._kind_of(text), host, port, text)
        if port not in self.rules.ports and "public" in kinds and not self._is_listed(host, port):
            raise _port_refused(host, port)

    async def _look_up(self, host: str, port: int) -> tuple[str, ...]:
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = tuple(dict.fromkeys(await self._resolver(host, port)))
        except TimeoutError:
            raise HostNotFound(f"looking up the host {host!r} took longer than {RESOLVE_SECONDS:g} seconds") from None
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise HostNotFound(f"there is no host {host!r}; check the address")
        return found

    def _named_kind(self, host: str) -> AddressKind:
        return _literal_kind(host) or name_kind(host)

    def _kind_of(self, text: str) -> AddressKind:
        # Something that is not even an address cannot be connected to safely.
        return _literal_kind(text) or "private"

    def _require_allowed(self, kind: AddressKind, host: str, port: int, found: str) -> None:
        if kind == "public":
            return
        resolved = "" if found == host else f" ({found})"
        if kind == "metadata":
            raise AddressRefused(f"{host!r}{resolved} is a metadata service or link-local, which is never reached")
        if self.rules.allow_private or self._is_listed(host, port):
            return
        raise AddressRefused(
            f"{host!r}{resolved} is a private address; to allow it, add {host_and_port(host, port)!r} to "
            "security.allowed_private_hosts"
        )

    def _is_listed(self, host: str, port: int) -> bool:
        return (host, port) in self.rules.private_hosts

    def is_private(self, address: WebAddress) -> bool:
        """Whether the address is private by its name alone."""
        return self._named_kind(address.host) != "public" or self._is_listed(address.host, address.port)

    async def is_public(self, address: WebAddress) -> bool:
        """Whether everyone can reach the address, so that it may be told to others; raises what `resolve` raises."""
        if self.is_private(address) or self.rules.proxy_resolves:
            return not self.is_private(address)
        found = await self.resolve(address.host, address.port)
        return all(self._kind_of(text) == "public" for text in found)


def _is_literal(host: str) -> bool:
    return _literal_kind(host) is not None


@lru_cache(maxsize=1024)
def _literal_kind(text: str) -> AddressKind | None:
    """The kind of an address; None for a name. Each request asks several times about the same one."""
    try:
        return address_kind(ip_address(text))
    except ValueError:
        return None


def _port_refused(host: str, port: int) -> AddressRefused:
    return AddressRefused(
        f"port {port} of {host!r} is not one that web tools may use; to allow it, add it to web.ports"
    )
