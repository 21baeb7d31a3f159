"""The guard refuses whatever must not be reached, before any connection is made."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.web import refused_addresses
from tests.web.settings import web_settings
from tests.web.sites import Site, serve
from toolcrib.core.errors import ConfigError
from toolcrib.web.addresses import AddressRefused, address_kind, parse_address
from toolcrib.web.guard import AddressGuard, AddressRules, HostNotFound
from toolcrib.web.http_client import FetchFailed, GuardedClient, HttpRequest

_connections: list[Any] | None = None


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _connections is not None:
        _connections.append(arguments[1])


@cache
def _watch_connections() -> None:
    """Python has no way to remove a hook, and calls it for each event from then on: only who needs it pays for it."""
    sys.addaudithook(_record)


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    """Every address that this process connects to while the test runs."""
    global _connections
    _watch_connections()
    _connections = []
    yield _connections
    _connections = None


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as one:
        yield one


def guard(
    answers: Mapping[str, Sequence[str]] | None = None, *, ports: Sequence[int] = (80, 443), **security: Any
) -> AddressGuard:
    """A guard whose resolver knows these names and no others."""
    settings = web_settings(security=security, web={"ports": list(ports)})

    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in (answers or {}):
            raise OSError(f"no such host {host!r}")
        return (answers or {})[host]

    return AddressGuard(AddressRules.from_settings(settings), resolve)


@pytest.mark.quick_rows(5)
@pytest.mark.parametrize("form", refused_addresses.ALL)
async def test_refused_forms_cause_no_connection(form: str, site: Site, connections: list[Any]) -> None:
    """Every form of a private, malformed or dangerous address is refused before anything is connected to."""
    url = form.replace("{port}", str(site.port)).replace("{{", "{").replace("}}", "}")
    client = GuardedClient(guard({"example.org": ["93.184.216.34"]}, ports=(80, 443, site.port)))

    with pytest.raises(AddressRefused):
        await client.send(HttpRequest(url=url))

    assert connections == []
    assert site.requests == []


def test_the_table_is_large_enough() -> None:
    """The table has no duplicates and more than two hundred forms."""
    assert len(set(refused_addresses.ALL)) == len(refused_addresses.ALL) > 200


@pytest.mark.parametrize("address", refused_addresses.METADATA.split())
async def test_metadata_is_refused_under_every_setting(address: str, site: Site, connections: list[Any]) -> None:
    """No setting opens the metadata services of clouds, not even an entry for their very host."""
    url = address.replace("{port}", str(site.port))
    host = parse_address(url).host
    entry = f"[{host}]:{site.port}" if ":" in host else f"{host}:{site.port}"
    allowed = guard(ports=(site.port,), allow_private_urls=True, allowed_private_hosts=[entry])

    with pytest.raises(AddressRefused, match="never reached"):
        await GuardedClient(allowed).send(HttpRequest(url=url))

    assert connections == []


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["127.0.0.1", "93.184.216.34"],
        ["::1"],
        ["93.184.216.34", "::ffff:10.0.0.1"],
        ["64:ff9b::a00:1"],
        ["2002:7f00:1::"],
        ["fe80::1%eth0"],
        ["169.254.169.254"],
        ["0.0.0.0"],
        ["100.64.0.1"],
        ["not an address"],
    ],
)
async def test_one_private_answer_refuses_the_name(answers: list[str], site: Site, connections: list[Any]) -> None:
    """A public name is refused if any of its addresses is not public."""
    client = GuardedClient(guard({"site.example": answers}, ports=(site.port,)))

    with pytest.raises(AddressRefused):
        await client.send(HttpRequest(url=f"http://site.example:{site.port}/"))

    assert connections == []


async def test_rebinding_gains_nothing(site: Site, connections: list[Any]) -> None:
    """The connection goes to the address that was checked; the next connection is checked again."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1"]])
    rules = guard(ports=(site.port,), allowed_private_hosts=[f"rebind.example:{site.port}"]).rules
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return next(answers)

    site.pages["/first"] = (302, {"location": "/second", "connection": "close"}, b"")
    client = GuardedClient(AddressGuard(rules, resolve))

    with pytest.raises(AddressRefused, match="never reached"):
        await client.send(HttpRequest(url=f"http://rebind.example:{site.port}/first"))

    assert asked == ["rebind.example"] * 2
    assert [address[:2] for address in connections] == [("127.0.0.1", site.port)]
    assert [request.path for request in site.requests] == ["/first"]


REDIRECTS = [
    "http://127.0.0.1:1/",
    "http://localhost:{port}/",
    "//localhost:{port}/",
    "http://169.254.169.254/latest/",
    "http://[::1]:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f.1:{port}/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/",
    "http://user@127.0.0.1:{port}/",
    "http://inside.example/",
    "\\\\127.0.0.1:1\\",
    "http:\\\\127.0.0.1:1/",
    "http://127。0。0。1:1/",
    "https://[::ffff:10.0.0.1]/",
    "http://site.example:22/",
    "/?api_key=abcdef",
]


@pytest.mark.parametrize("location", REDIRECTS)
async def test_every_redirect_is_checked(location: str, site: Site, connections: list[Any]) -> None:
    """A redirect to an address that is refused ends the request; only the first server is connected to."""
    site.pages["/"] = (302, {"location": location.replace("{port}", str(site.port))}, b"")
    allowed = guard(
        {"site.example": ["127.0.0.1"], "inside.example": ["10.0.0.1"]},
        ports=(80, 443, site.port),
        allowed_private_hosts=[f"site.example:{site.port}"],
    )

    with pytest.raises((AddressRefused, FetchFailed)):
        await GuardedClient(allowed).send(HttpRequest(url=f"http://site.example:{site.port}/"))

    assert len(connections) == 1
    assert len(site.requests) == 1


async def test_an_entry_opens_one_host_and_port_only(site: Site) -> None:
    """`allowed_private_hosts` opens exactly the host and port that it names."""
    client = GuardedClient(guard(ports=(80,), allowed_private_hosts=[f"127.0.0.1:{site.port}"]))
    site.pages["/"] = (200, {}, b"hello")

    response = await client.send(HttpRequest(url=f"http://127.0.0.1:{site.port}/"))

    assert response.body == b"hello"
    for other in (f"http://127.0.0.1:{site.port + 1}/", f"http://localhost:{site.port}/", "http://127.0.0.1/"):
        with pytest.raises(AddressRefused):
            await client.send(HttpRequest(url=other))


async def test_private_addresses_can_be_allowed(site: Site) -> None:
    """With `allow_private_urls`, private addresses may be reached on any port."""
    site.pages["/"] = (200, {}, b"hello")
    client = GuardedClient(guard(ports=(80,), allow_private_urls=True))

    assert (await client.send(HttpRequest(url=f"http://127.0.0.1:{site.port}/"))).body == b"hello"


async def test_a_proxy_from_the_environment_is_ignored(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy variables do not redirect requests."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    site.pages["/"] = (200, {}, b"direct")
    client = GuardedClient(guard(ports=(80,), allow_private_urls=True))

    assert (await client.send(HttpRequest(url=f"http://127.0.0.1:{site.port}/"))).body == b"direct"


async def test_a_configured_proxy_resolves_names(site: Site, connections: list[Any]) -> None:
    """With `web.proxy`, the proxy gets the name; private names and literal addresses are still refused."""
    site.pages["http://public.example/page"] = (200, {}, b"through the proxy")
    settings = web_settings(web={"proxy": f"http://127.0.0.1:{site.port}"})
    client = GuardedClient(AddressGuard(AddressRules.from_settings(settings)), proxy=settings.web.proxy)

    response = await client.send(HttpRequest(url="http://public.example/page"))

    assert response.body == b"through the proxy"
    assert len(connections) == 1
    for url in ("http://127.0.0.1/", "http://router/", "http://nas.lan/", "http://metadata.google.internal/"):
        with pytest.raises(AddressRefused):
            await client.send(HttpRequest(url=url))
    assert len(connections) == 1


async def test_an_unknown_host_is_named() -> None:
    """A host that does not resolve gives a message with its name."""
    with pytest.raises(HostNotFound, match=r"no host 'nowhere\.example'"):
        await GuardedClient(guard()).send(HttpRequest(url="http://nowhere.example/"))


def test_homographs_are_shown_in_punycode() -> None:
    """A name that looks like another one is shown as what is really looked up."""
    assert parse_address("https://аpple.com/").host == "xn--pple-43d.com"
    blocked = guard(website_blocklist={"enabled": True, "domains": ["аpple.com"]})

    with pytest.raises(AddressRefused, match=r"xn--pple-43d\.com"):
        blocked.check("https://аpple.com/")


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://Example.ORG", "https://example.org/"),
        ("https://example.org./a", "https://example.org/a"),
        ("https://bücher.example/straße?q=käse", "https://xn--bcher-kva.example/stra%C3%9Fe?q=k%C3%A4se"),
        ("http://example.org:8080/a b".replace(" ", "%20"), "http://example.org:8080/a%20b"),
        ("https://example.org:443/?a=1&b=%2F#part", "https://example.org/?a=1&b=%2F"),
        ("https://example.org/?", "https://example.org/?"),
        ("https://en.wikipedia.org/wiki/Foo_(bar)", "https://en.wikipedia.org/wiki/Foo_(bar)"),
        (
            "https://example.org/?sort_key=name&page_token=CAUQAA",
            "https://example.org/?sort_key=name&page_token=CAUQAA",
        ),
        ("https://example.org/?key=name&code=de", "https://example.org/?key=name&code=de"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
        ("http://[2606:4700:4700::1111]/", "http://[2606:4700:4700::1111]/"),
        ("https://example.org/100%", "https://example.org/100%25"),
        ("https://my_host.example.org/", "https://my_host.example.org/"),
    ],
)
def test_ordinary_addresses_pass(url: str, plain: str) -> None:
    """Ordinary addresses pass, in the one form in which they are sent."""
    assert str(guard().rules and parse_address(url)) == plain


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700:4700::1111", "public"),
        ("64:ff9b::808:808", "public"),
        ("::ffff:8.8.8.8", "public"),
        ("172.32.0.1", "public"),
        ("100.128.0.1", "public"),
        ("2001:470::5efe:808:808", "public"),
        ("2002:808:808::", "private"),
        ("2001:0:808:808::", "private"),
        ("::8.8.8.8", "private"),
    ],
)
def test_addresses_are_classified(text: str, kind: str) -> None:
    """Only what everyone can reach directly is public; deprecated tunnels are not."""
    assert address_kind(ip_address(text)) == kind


# Lists of websites


@pytest.mark.parametrize(
    ("rule", "blocked", "free"),
    [
        (
            "evil.example",
            ["evil.example", "www.evil.example", "a.b.evil.example"],
            ["notevil.example", "evil.example.org"],
        ),
        ("*.evil.example", ["www.evil.example"], ["evil.example"]),
        ("https://Evil.example:443/path", ["evil.example"], ["example.org"]),
        ("bücher.example", ["xn--bcher-kva.example"], ["bucher.example"]),
        ("93.184.216.34", ["93.184.216.34"], ["93.184.216.35"]),
    ],
)
def test_blocklist_rules(rule: str, blocked: list[str], free: list[str]) -> None:
    """A domain on the blocklist includes its subdomains, whatever is written around it."""
    rules = guard(website_blocklist={"enabled": True, "domains": [rule]})
    for host in blocked:
        with pytest.raises(AddressRefused) as caught:
            rules.check(f"http://{host}/")
        assert caught.value.by_policy
    for host in free:
        rules.check(f"http://{host}/")


def test_shared_files_hold_rules(tmp_path: Path) -> None:
    """Rules in shared files count like those in the config; a relative path starts at the home."""
    (tmp_path / "blocked.txt").write_text("# comment\nevil.example # why\n\n*.ads.example\n")
    listed = {"enabled": True, "shared_files": ["blocked.txt"]}
    rules = AddressRules.from_settings(web_settings(tmp_path, security={"website_blocklist": listed}))

    match = rules.websites.refusal("www.evil.example")

    assert match is not None
    assert match.rule == "evil.example"
    assert match.source.endswith("blocked.txt")
    assert rules.websites.refusal("x.ads.example")
    assert rules.websites.refusal("example.org") is None


def test_a_list_that_cannot_be_read_blocks_everything(tmp_path: Path) -> None:
    """Rules that cannot be read must not mean yes."""
    with pytest.raises(ConfigError, match=r"missing\.txt"):
        guard(website_blocklist={"enabled": True, "shared_files": [str(tmp_path / "missing.txt")]})


def test_a_disabled_list_does_not_apply() -> None:
    """`enabled: false` switches a list off."""
    guard(website_blocklist={"enabled": False, "domains": ["example.org"]}).check("http://example.org/")


def test_only_websites_on_the_allowlist_are_reached() -> None:
    """With an allowlist, everything else is refused, and the blocklist still applies."""
    rules = guard(
        website_allowlist={"enabled": True, "domains": ["example.org"]},
        website_blocklist={"enabled": True, "domains": ["bad.example.org"]},
    )
    rules.check("http://www.example.org/")
    for url in ("http://example.com/", "http://bad.example.org/"):
        with pytest.raises(AddressRefused):
            rules.check(url)


def test_a_known_secret_never_leaves_in_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that contains the value of a secret variable is refused, also when it is encoded."""
    monkeypatch.setenv("MY_SERVICE_TOKEN", "hunter2-hunter2")
    for url in ("https://example.org/hunter2-hunter2", "https://example.org/?x=hunter2%2Dhunter2"):
        with pytest.raises(AddressRefused, match="secret"):
            parse_address(url)
