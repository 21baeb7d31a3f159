"""Who may use the server, and what it refuses."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx2
import pytest

from tests.serve.agent_serving import CONFIG, serving
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.serve.app import UnsafeStart, require_safe_start
from toolcrib.serve.tokens import TokenError, TokenStore

BODY = {"text": "hello"}


async def test_every_route_but_health_needs_the_token(home: Path) -> None:
    """Without a token nothing is read or started."""
    async with serving(home) as served, httpx2.AsyncClient(base_url=served.url, trust_env=False) as http:
        routes = ["/v1/models", "/v1/responses/x", "/api/sessions", "/api/runs", "/api/approvals", "/api/tools", "/x"]
        codes = {(await http.get(path)).status_code for path in routes}
        posted = await http.post("/api/runs", json=BODY)
        health = await http.get("/health")

    assert codes == {401}
    assert posted.status_code == 401
    assert "toolcrib serve token" in posted.json()["error"]
    assert health.json()["status"] == "ok"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_other_sites_get_nothing(home: Path, headers: dict[str, str], status: int) -> None:
    """A page of another site cannot use the server, even with the token."""
    async with serving(home) as served, served.http(**headers) as http:
        response = await http.post("/api/runs", json=BODY, headers=headers)
        started = served.server.runs.store.list()

    assert response.status_code == status
    assert started == []


async def test_a_token_does_only_what_its_scopes_allow(home: Path) -> None:
    """A chat token cannot approve; a revoked one does nothing."""
    async with serving(home) as served:
        token = served.server.tokens.create("phone", ["chat"])
        async with served.http(token) as http:
            allowed = await http.get("/api/sessions")
            denied = await http.post("/api/approvals/x", json={"choice": "once"})
            served.server.tokens.revoke("phone")
            revoked = await http.get("/api/sessions")

    assert (allowed.status_code, denied.status_code, revoked.status_code) == (200, 403, 401)


async def test_guessing_is_slowed_down(home: Path) -> None:
    """After many wrong tokens, further ones are not even checked."""
    async with serving(home) as served, served.http("wrong") as http:
        codes = [(await http.get("/api/sessions")).status_code for _ in range(40)]

    assert codes[0] == 401
    assert codes[-1] == 429


async def test_bodies_are_bounded_with_and_without_a_length(home: Path) -> None:
    """A body beyond the limit is refused, declared or not."""

    async def endless() -> object:
        for _ in range(64):
            yield b"x" * 4096

    async with serving(home, config=CONFIG + "  limits: {max_body_mb: 0.1}\n") as served, served.http() as http:
        declared = await http.post("/api/runs", json={"text": "x" * 200_000})
        chunked = await http.post("/api/runs", content=endless(), headers={"Content-Type": "application/json"})  # type: ignore[arg-type]

    assert (declared.status_code, chunked.status_code) == (413, 413)


def test_the_owners_token_is_made_once_and_private(home: Path) -> None:
    """It is long, stays the same, and only its owner can read it."""
    store = TokenStore(Home(home))
    token = store.owner_token()
    file = home / "serve" / "token"

    assert TokenStore(Home(home)).owner_token() == token
    assert len(token) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("token", ["short", "change-me-change-me-change-me-change-me", "a" * 40, "x y" * 20, "ä" * 40])
def test_weak_tokens_are_refused(home: Path, token: str) -> None:
    """Short ones and placeholders are refused by name of their source, without being repeated."""
    with pytest.raises(TokenError) as caught:
        TokenStore(Home(home), token)

    assert "TOOLCRIB_SERVE_TOKEN" in str(caught.value)
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "settings", "is_safe"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("localhost", {}, True),
        ("0.0.0.0", {}, False),
        ("192.0.2.7", {}, False),
        ("my-machine", {}, False),
        ("0.0.0.0", {"tls_certificate": "c.pem", "tls_key": "k.pem"}, True),
        ("0.0.0.0", {"tls_certificate": "c.pem"}, False),
        ("0.0.0.0", {"proxy_names": ["agents.example"]}, True),
    ],
)
def test_an_open_address_needs_encryption(host: str, settings: dict[str, object], is_safe: bool) -> None:
    """The server does not start where tokens would cross a network in the clear."""
    chosen = ServeSettings(**settings)  # type: ignore[arg-type]
    if is_safe:
        require_safe_start(chosen, host)
        return
    with pytest.raises(UnsafeStart) as caught:
        require_safe_start(chosen, host)
    assert caught.value.exit_code == 2
