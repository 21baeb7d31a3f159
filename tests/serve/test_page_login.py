"""The login of the page: codes, cookies and keys, and what the server accepts from browsers."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.cli_program import Program
from tests.serve.agent_serving import RunningServer, serving
from toolcrib.config.paths import Home
from toolcrib.serve import page_routes
from toolcrib.serve.login import CODE_SECONDS, PageLogins
from toolcrib.serve.tokens import ServerTokens


class BrowserLike:
    """Sends requests as the page does."""

    def __init__(self, served: RunningServer, http: httpx2.AsyncClient) -> None:
        self.http = http
        self.page = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}

    async def log_in(self, code: str, **headers: str) -> httpx2.Response:
        response = await self.http.post("/login", json={"code": code}, headers={**self.page, **headers})
        if response.status_code == 200:
            self.page["X-Toolcrib-Key"] = response.json()["key"]
        return response

    async def get(self, path: str, **headers: str) -> int:
        return (await self.http.get(path, headers={**self.page, **headers})).status_code

    async def post(self, path: str, headers: dict[str, str] | None = None) -> int:
        given = {**self.page, **(headers or {})}
        return (await self.http.post(path, json={"text": "hello"}, headers=given)).status_code


@asynccontextmanager
async def browsing(home: Path, *steps: str) -> AsyncIterator[tuple[RunningServer, BrowserLike]]:
    async with serving(home, steps) as served, httpx2.AsyncClient(base_url=served.url, trust_env=False) as http:
        yield served, BrowserLike(served, http)


async def test_a_code_logs_one_browser_in_once(home: Path) -> None:
    """The cookie is for the browser's requests only, and the code does not work again."""
    async with browsing(home) as (served, first):
        code = served.server.logins.create_code()
        response = await first.log_in(code.lower())
        allowed = await first.get("/api/sessions")
        again = await first.log_in(code)
        first.http.cookies.clear()
        foreign = await first.get("/api/sessions")

    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    assert code.replace("-", "") not in response.text
    assert (again.status_code, allowed, foreign) == (401, 200, 401)
    assert "toolcrib serve login" in again.json()["error"]


async def test_only_our_own_page_may_use_its_cookie(home: Path) -> None:
    """A stolen or borrowed cookie opens nothing: it needs the key, and the request must come from our origin."""
    changes: list[tuple[dict[str, str], int]] = [
        ({"X-Toolcrib-Key": ""}, 401),
        ({"X-Toolcrib-Key": "x" * 43}, 401),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 421),
        ({}, 202),
    ]
    async with browsing(home, "hello") as (served, browser):
        await browser.log_in(served.server.logins.create_code())
        statuses = [await browser.post("/api/runs", changed) for changed, _ in changes]

    assert statuses == [status for _, status in changes]


async def test_a_request_without_an_origin_changes_nothing(home: Path) -> None:
    """Browsers name the origin whenever they change something; without it, the cookie does not count."""
    async with browsing(home) as (served, browser):
        await browser.log_in(served.server.logins.create_code())
        del browser.page["Origin"]

        assert await browser.get("/api/sessions") == 200
        assert await browser.get("/api/sessions", **{"Sec-Fetch-Site": "cross-site"}) == 401
        assert await browser.post("/api/runs") == 401
        assert (await browser.log_in(served.server.logins.create_code())).status_code == 403


async def test_logging_out_ends_the_browser_on_the_server(home: Path) -> None:
    """The cookie does not work any more, even if somebody kept it."""
    async with browsing(home) as (served, browser):
        response = await browser.log_in(served.server.logins.create_code())
        kept = response.headers["set-cookie"].partition(";")[0]
        left = await browser.post("/logout")
        browser.http.cookies.clear()

        assert left == 200
        assert await browser.get("/api/sessions", Cookie=kept) == 401


async def test_a_browser_has_the_rights_of_its_token(home: Path) -> None:
    """A code for a further token gives its scopes; when the token is revoked, its browsers are out."""
    async with browsing(home) as (served, browser):
        served.server.tokens.create("phone", ["chat"])
        await browser.log_in(served.server.logins.create_code("phone"))
        who = (await browser.http.get("/api/status", headers=browser.page)).json()["token"]
        decided = await browser.post("/api/approvals/x")
        served.server.tokens.revoke("phone")

        assert (who["name"], who["scopes"]) == ("phone", ["chat"])
        assert decided == 403
        assert await browser.get("/api/sessions") == 401


async def test_wrong_codes_are_limited(home: Path) -> None:
    """Guessing gets no answer after some tries; tokens and right codes still work."""
    async with browsing(home) as (served, browser):
        answers = [(await browser.log_in("AAAA-AAAA-AAAA")).status_code for _ in range(25)]
        async with served.http() as http:
            token = (await http.get("/api/sessions")).status_code
        right = await browser.log_in(served.server.logins.create_code())

    assert answers[:20] == [401] * 20
    assert set(answers[20:]) == {429}
    assert token == 200
    assert right.status_code == 200


@pytest.mark.parametrize("other", ['settings={"a":1}', "a b=1", 'x="open', "flag"])
async def test_odd_cookies_of_other_programs_hide_nothing(home: Path, other: str) -> None:
    """Browsers send the cookies of all ports of a machine, in any order."""
    async with browsing(home) as (served, browser):
        response = await browser.log_in(served.server.logins.create_code())
        ours = response.headers["set-cookie"].partition(";")[0]
        browser.http.cookies.clear()

        assert await browser.get("/api/sessions", Cookie=f"{other}; {ours}") == 200


def test_codes_and_browsers_expire(tmp_path: Path) -> None:
    """A code works for ten minutes, a browser for thirty days; the owner's new token ends all browsers."""
    now = [1000.0]
    home = Home(tmp_path)
    logins = PageLogins(home, ServerTokens(home), clock=lambda: now[0])
    old, code = logins.create_code(), logins.create_code()
    made = logins.redeem(code)
    now[0] += CODE_SECONDS
    headers: Any = httpx2.Headers({"host": "127.0.0.1:1", "cookie": f"toolcrib_1={made and made.cookie}"})
    headers["x-toolcrib-key"] = made.key if made else ""

    assert logins.redeem(old) is None
    assert logins.identify(headers, "GET") is not None
    other = PageLogins(home, ServerTokens(home, "another-token-of-the-owner-0123456789"), clock=lambda: now[0])
    assert other.identify(headers, "GET") is None
    now[0] += 31 * 86_400
    assert logins.identify(headers, "GET") is None


def test_stored_logins_contain_no_secret(tmp_path: Path) -> None:
    """The file holds hashes, readable by the owner only."""
    home = Home(tmp_path)
    logins = PageLogins(home, ServerTokens(home))
    made = logins.redeem(logins.create_code())
    file = home.serve_dir / "logins.json"

    assert made is not None
    assert made.cookie not in file.read_text()
    assert made.key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


async def test_the_page_is_served_without_a_login_and_with_a_strict_policy(home: Path) -> None:
    """It contains nothing of anybody's; no other site may frame it, and no inline script runs in it."""
    async with serving(home) as served, httpx2.AsyncClient(base_url=served.url, trust_env=False) as http:
        page = await http.get("/chat/any")
        script = await http.get("/page/app.js")
        same = await http.get("/page/app.js", headers={"If-None-Match": script.headers["etag"]})
        missing = await http.get("/page/../tokens.py")
        api = await http.get("/api/sessions")

    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert script.headers["content-encoding"] == "gzip"
    assert same.status_code == 304
    assert missing.status_code in (401, 404)
    assert api.status_code == 401


def test_the_page_is_small() -> None:
    """All that the first load needs is at most 150 KB, compressed."""
    folder = Path(page_routes.__file__).parent / "page"
    sent = [path for path in folder.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg")]

    assert len(sent) > 8
    assert sum(len(gzip.compress(path.read_bytes())) for path in sent) < 150_000


def test_a_link_needs_a_server(tmp_path: Path) -> None:
    """`serve login` prints a link to the server that was started last, and says what to do if there was none."""
    run_cli = Program(tmp_path)
    none = run_cli("serve", "login")
    home = Home(run_cli.home)
    home.serve_dir.mkdir(parents=True, exist_ok=True)
    home.serve_address_file.write_text("http://127.0.0.1:8642")
    printed = run_cli("serve", "login")
    unknown = run_cli("serve", "login", "--token", "nobody")

    assert none.code == 2
    assert "toolcrib serve" in none.stderr
    assert printed.stdout.startswith("http://127.0.0.1:8642/login#")
    assert "no token 'nobody'" in unknown.stderr


def test_the_page_talks_to_its_own_origin_only() -> None:
    """No script takes an address from the query of a link, or names another server."""
    scripts = [one for one in (files("toolcrib.serve") / "page").iterdir() if one.name.endswith(".js")]
    found = [
        (one.name, word)
        for one in scripts
        for word in ("location.search", "searchParams", "URLSearchParams", "WebSocket(", "http://", "https://")
        if word in one.read_text()
    ]

    assert len(scripts) > 10
    assert found == []
