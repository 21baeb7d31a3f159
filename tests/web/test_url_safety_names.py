"""`tools.url_safety` and `tools.website_policy` decide as our own web tools do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.compat import tools_url_safety as safety

Resolve = Callable[[dict[str, list[str]]], None]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Makes these names known and no others."""

    def use(known: dict[str, list[str]]) -> None:
        def look_up(host: str, port: int, **_: Any) -> list[Any]:
            if host in known:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]
            raise OSError("no such host")

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return use


def write_config(home: Path, text: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(text)


async def test_only_public_addresses_are_safe(resolve: Resolve) -> None:
    """A name is safe if all its addresses are public."""
    resolve({"good.example": ["93.184.216.34"], "bad.example": ["93.184.216.34", "10.0.0.1"]})

    assert safety.is_safe_url("https://good.example/")
    assert await safety.async_is_safe_url("https://good.example/")
    for url in ("https://bad.example/", "https://gone.example/", "http://0x7f.1/", "file:///etc/passwd", "", "x"):
        assert not safety.is_safe_url(url)


def test_settings_apply(resolve: Resolve, home: Path) -> None:
    """`allow_private_urls` opens private networks, and never metadata."""
    resolve({"inside.example": ["10.0.0.1"], "cloud.example": ["169.254.169.254"]})
    write_config(home, "security: {allow_private_urls: true}\n")

    assert safety.is_safe_url("http://inside.example/")
    assert not safety.is_safe_url("http://cloud.example/")


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://bücher.example/ä?q=ö", "https://xn--bcher-kva.example/%C3%A4?q=%C3%B6"),
        ("https://example.org/a", "https://example.org/a"),
        ("not a url", "not a url"),
        ("  http://a.example ", "http://a.example"),
        ("http://u@bücher.example:81/#x", "http://u@xn--bcher-kva.example:81/#x"),
    ],
)
def test_addresses_become_ascii(url: str, plain: str) -> None:
    """An address is written as it is sent; what is no address stays."""
    assert safety.normalize_url_for_request(url) == plain


def test_blocked_websites_are_explained(home: Path) -> None:
    """A blocked website comes with its rule; any other gives None."""
    write_config(home, "security: {website_blocklist: {enabled: true, domains: [evil.example]}}\n")

    found = safety.check_website_access("https://www.evil.example/x")

    assert found is not None
    assert (found["host"], found["rule"], found["source"]) == ("www.evil.example", "evil.example", "config")
    assert found["message"].startswith("Blocked by website policy")
    assert safety.check_website_access("www.evil.example") is not None
    assert safety.check_website_access("https://example.org/") is None
    assert safety.check_website_access("") is None
