"""Parses web addresses strictly and classifies IP addresses: public, private, or a cloud's metadata service.

Everything here is pure. Programs disagree about unusual addresses (`http://0x7f.1`, `http://a\\@b`, `http://１２７.0.0.1`),
and an attacker needs only one disagreement. So an address that can be read in two ways is refused, not interpreted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from toolcrib.config.redact import has_secret
from toolcrib.core.errors import ToolcribError

IpAddress = IPv4Address | IPv6Address
AddressKind = Literal["public", "private", "metadata"]

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 8_000
MAX_NAME_CHARS = 253
MAX_LABEL_CHARS = 63

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
# No top-level domain begins with a digit, but many ways of writing an IPv4 address end in such a part.
_NUMBER = re.compile(r"[0-9].*")
_PORT = re.compile(r"[0-9]{1,5}")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
PATH_CHARS = "/%:@!$&'()*+,;=~-._"
QUERY_CHARS = PATH_CHARS + "?[]"

# As lists of our own, because `is_global` changes between releases of Python.
_PRIVATE_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        ),
    )
)  # fmt: skip
_PUBLIC_V6 = IPv6Network("2000::/3")
_PRIVATE_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")
# Prefixes whose last 32 bits are an IPv4 address: compatible, mapped, translated, and the two for NAT64.
_ENDS_IN_V4 = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")))
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)

_METADATA_V4 = (
    # All of link-local: every cloud puts services for its machines there.
    IPv4Network("169.254.0.0/16"),
    IPv4Network("100.100.100.200/32"),  # Alibaba
    IPv4Network("168.63.129.16/32"),  # Azure
    IPv4Network("192.0.0.192/32"),  # Oracle
)
_METADATA_V6 = tuple(map(IPv6Network, ("fd00:ec2::/32", "fd20:ce::254/128", "fd00:42::42/128", "fe80::a9fe:a9fe/128")))
_METADATA_NAMES = frozenset(
    "metadata metadata.google.internal metadata.goog metadata.azure.internal metadata.azure.com instance-data "  # noqa: SIM905
    "instance-data.ec2.internal metadata.tencentyun.com metadata.platformequinix.com metadata.packet.net "
    "metadata.ec2.internal api.metadata.cloud.ibm.com metadata.oraclecloud.com".split()
)
_PRIVATE_SUFFIXES = frozenset(
    "localhost local localdomain internal intranet lan home corp private domain home.arpa test invalid onion "  # noqa: SIM905
    # Public names that resolve to whatever private address they contain.
    "nip.io sslip.io xip.io localtest.me lvh.me vcap.me lacolhost.com readme.localtest.me".split()
)

_CREDENTIAL_PARAMETERS = frozenset(
    "apikey accesskey accesskeyid accesstoken authtoken authorization auth bearer bearertoken clientsecret "  # noqa: SIM905
    "credential credentials idtoken jwt password passwd passphrase privatekey pwd refreshtoken secret secretkey "
    "sessiontoken sessionkey sig signature subscriptionkey xamzcredential xamzsecuritytoken xamzsignature xapikey "
    "xgoogcredential xgoogsignature xauthtoken awsaccesskeyid oauthtoken token appsecret githubtoken".split()
)
# Often harmless (`?key=name`), so only with a value that could be a key.
_MAYBE_CREDENTIAL = frozenset({"key", "code", "session", "sessionid", "sid"})
_KEY_LIKE = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_.~+/=-]{20,}")


class AddressRefused(ToolcribError):
    """A web address that must not be reached; says why, and which setting would change that."""

    def __init__(self, message: str, *, by_policy: bool = False) -> None:
        super().__init__(message)
        self.by_policy = by_policy
        """Whether a list of websites refuses it, and not the address itself."""


class WebAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A web address in the one form that is sent."""

    scheme: str
    host: str
    """In lower case, as ASCII, without a trailing dot; an IPv6 address without brackets."""
    port: int
    target: str
    """Path and query, percent-encoded."""

    @property
    def ip(self) -> IpAddress | None:
        """The address, if the host is a literal one."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{host_and_port(self.host, self.port, self.scheme)}"

    def __str__(self) -> str:
        return self.origin + self.target


def host_and_port(host: str, port: int, scheme: str = "") -> str:
    """The host with its port, unless that is the default; with brackets around an IPv6 address."""
    shown = f"[{host}]" if ":" in host else host
    return shown if DEFAULT_PORTS.get(scheme) == port else f"{shown}:{port}"


def parse_address(text: str) -> WebAddress:
    """The parts of a web address; raises AddressRefused for everything that is not plain and unambiguous."""
    url = text.strip(" ")
    if len(url) > MAX_URL_CHARS:
        raise AddressRefused(f"the address is longer than {MAX_URL_CHARS} characters")
    if _FORBIDDEN.search(url):
        raise AddressRefused(f"the address {shown(url)} contains spaces or invisible characters; percent-encode them")
    if "\\" in url:
        raise AddressRefused(f"the address {shown(url)} contains a backslash; write / or %5C")
    scheme, rest = _split_scheme(url)
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        raise AddressRefused("the address contains a user name or password before an @; leave them out")
    host, port = _host_and_port(authority, scheme, url)
    target = _target(rest[len(authority) :], url)
    return WebAddress(scheme=scheme, host=host, port=port, target=target)


def _split_scheme(url: str) -> tuple[str, str]:
    scheme = _SCHEME.match(url)
    if scheme is None or ("." in scheme[1] and not url[scheme.end() :].startswith("//")):
        raise AddressRefused(f"{shown(url)} is not a full web address; begin with https://")
    name = scheme[1].lower()
    if name not in DEFAULT_PORTS:
        raise AddressRefused(f"the scheme {name!r} is not supported; only http and https addresses can be fetched")
    rest = url[scheme.end() :]
    if not rest.startswith("//") or rest.startswith("///"):
        raise AddressRefused(f"{shown(url)} is not a full web address; write {name}://host/path")
    return name, rest[2:]


def _host_and_port(authority: str, scheme: str, url: str) -> tuple[str, int]:
    if authority.startswith("["):
        inside, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise AddressRefused(f"the host in {shown(url)} is not a valid IPv6 address")
        host, port = _ipv6(inside, url), after[1:] if after else None
    else:
        name, colon, after = authority.partition(":")
        host, port = host_name(name), after if colon else None
    if port is None:
        return host, DEFAULT_PORTS[scheme]
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65_536:
        raise AddressRefused(f"the port in {shown(url)} is not a number from 1 to 65535")
    return host, int(port)


def _ipv6(text: str, url: str) -> str:
    if "%" in text:
        raise AddressRefused(f"the address {shown(url)} names a network interface; leave the %… out")
    try:
        return str(IPv6Address(text))
    except ValueError:
        raise AddressRefused(f"the host in {shown(url)} is not a valid IPv6 address") from None


def host_name(name: str) -> str:
    """A host in lower case and ASCII; raises AddressRefused for one that could be read as something else."""
    if not name:
        raise AddressRefused("the address has no host; write https://host/path")
    if "%" in name:
        raise AddressRefused(f"the host {shown(name)} is percent-encoded; write it plainly")
    host = _ascii_name(name).removesuffix(".")
    labels = host.split(".")
    if len(host) > MAX_NAME_CHARS or not all(_LABEL.fullmatch(one) and len(one) <= MAX_LABEL_CHARS for one in labels):
        raise AddressRefused(f"the host {shown(host)} is not a valid name")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    return host


def _ipv4(host: str) -> str:
    # IPv4Address accepts only four decimal numbers without leading zeros; everything else is ambiguous.
    try:
        return str(IPv4Address(host))
    except ValueError:
        raise AddressRefused(
            f"the host {host!r} is a number in an unusual form; write an IPv4 address as four decimal numbers"
        ) from None


def _ascii_name(name: str) -> str:
    if name.isascii():
        return name.lower()
    # Full-width digits and dots become plain ones, so that they are recognised as what they mean.
    folded = unicodedata.normalize("NFKC", name).replace("。", ".").lower()
    if folded.isascii():
        return folded
    try:
        # Comes with the HTTP client, so it is not always there.
        import idna  # noqa: PLC0415
    except ImportError:
        raise AddressRefused(f"the host {shown(name)} needs the package 'idna'; run `pip install idna`") from None
    try:
        return idna.encode(folded, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise AddressRefused(f"the host {shown(name)} is not a valid name") from None


def _target(rest: str, url: str) -> str:
    path, _, query = rest.partition("#")[0].partition("?")
    if _BROKEN_ESCAPE.search(path) or _BROKEN_ESCAPE.search(query):
        path, query = (_BROKEN_ESCAPE.sub("%25", part) for part in (path, query))
    check_no_credentials(path, query, url)
    target = quote(path, safe=PATH_CHARS) or "/"
    return target + ("?" + quote(query, safe=QUERY_CHARS) if "?" in rest.partition("#")[0] else "")


def check_no_credentials(path: str, query: str, url: str) -> None:
    """Raises AddressRefused if the address contains a key: it would end up in the logs of whoever is asked."""
    decoded = unquote(unquote(url)) if "%" in url else ""
    if has_secret(f"{url}\n{decoded}"):
        raise AddressRefused("the address contains a key or another secret; leave it out")
    pairs = parse_qsl(query.replace(";", "&"), keep_blank_values=True) if "=" in query else []
    for name, value in (*pairs, *_path_parameters(path)):
        plain = re.sub(r"[^a-z0-9]", "", name.lower())
        if value and (plain in _CREDENTIAL_PARAMETERS or (plain in _MAYBE_CREDENTIAL and _KEY_LIKE.fullmatch(value))):
            raise AddressRefused(f"the address contains a credential in the parameter {name[:40]!r}; leave it out")


def _path_parameters(path: str) -> Iterator[tuple[str, str]]:
    for part in path.split(";")[1:]:
        name, _, value = part.partition("=")
        yield name, value.partition("/")[0]


def shown(text: str) -> str:
    """A host or address as it may be displayed: quoted, with non-ASCII characters escaped so that none can mislead."""
    cut = text if len(text) <= 120 else text[:120] + "…"
    return ascii(cut)


# Which addresses are public


def address_kind(ip: IpAddress) -> AddressKind:
    """Whether anyone may reach this address, only someone on this network, or nobody through us."""
    if any(_is_metadata(one) for one in (ip, *embedded_addresses(ip))):
        return "metadata"
    if isinstance(ip, IPv4Address):
        return "private" if any(ip in network for network in _PRIVATE_V4) else "public"
    if ip.ipv4_mapped is not None:
        return address_kind(ip.ipv4_mapped)
    if ip in _NAT64:
        return address_kind(IPv4Address(int(ip) & 0xFFFF_FFFF))
    if ip not in _PUBLIC_V6 or any(ip in network for network in _PRIVATE_V6):
        return "private"
    inner = (address_kind(one) for one in embedded_addresses(ip))
    return "public" if all(kind == "public" for kind in inner) else "private"


def embedded_addresses(ip: IpAddress) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses inside an IPv6 address, in any known way of embedding them."""
    if isinstance(ip, IPv4Address):
        return ()
    found: list[IPv4Address] = []
    number = int(ip)
    if any(ip in network for network in _ENDS_IN_V4) or number >> 32 & 0xFFFF_FFFF in _ISATAP:
        found.append(IPv4Address(number & 0xFFFF_FFFF))
    if ip.sixtofour is not None:
        found.append(ip.sixtofour)
    if ip.teredo is not None:
        found.extend(ip.teredo)
    return tuple(found)


def _is_metadata(ip: IpAddress) -> bool:
    if isinstance(ip, IPv4Address):
        return any(ip in network for network in _METADATA_V4)
    return any(ip in network for network in _METADATA_V6)


def name_kind(host: str) -> AddressKind:
    """What a host name alone reveals; a name that looks public may still resolve to a private address."""
    if host in _METADATA_NAMES:
        return "metadata"
    labels = host.split(".")
    suffixes = {".".join(labels[index:]) for index in range(len(labels))}
    # A single word is resolved through the search domains of this network.
    return "private" if len(labels) == 1 or suffixes & _PRIVATE_SUFFIXES else "public"
