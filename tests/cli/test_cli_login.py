"""`toolcrib login` and `logout`, with a real listener and a login page on loopback."""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.cli.cli_program import Program, _read_until
from tests.web.sites import Page, Site, SiteRequest, serve

LIMIT_SECONDS = 40
ADDRESS = re.compile(r"Log in here: (\S+)")


@pytest.fixture
def site() -> Iterator[Site]:
    """Spotify's login page and its token endpoint."""

    def authorize(asked: SiteRequest) -> Page:
        given = {key: values[0] for key, values in parse_qs(urlsplit(asked.path).query).items()}
        return 302, {"location": f"{given['redirect_uri']}?code=c1&state={given['state']}"}, b""

    with serve() as one:
        one.pages["/authorize"] = authorize
        tokens = {"access_token": "t1", "refresh_token": "r1", "expires_in": 3600}
        one.pages["/api/token"] = (200, {"content-type": "application/json"}, json.dumps(tokens).encode())
        yield one


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "toolcrib", "login", "spotify", "--no-browser", *more]


def logged_in(toolcrib: Program, site: Site, *more: str) -> tuple[int, str, str]:
    """The exit code and messages of a login that a browser on this machine finishes, and its last page."""
    environ = toolcrib.environment(SPOTIFY_ACCOUNTS_URL=site.address)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(*more), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        found = ADDRESS.search(process.stdout.readline())
        assert found, process.communicate(timeout=LIMIT_SECONDS)
        page = httpx2.get(found[1], follow_redirects=True).text
        _, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, err, page


def test_a_login_in_a_browser_is_stored_for_the_owner_and_deleted(toolcrib: Program, site: Site) -> None:
    """The tools are there from then on, until the logout."""
    toolcrib.write(".env", "SPOTIFY_CLIENT_ID=app\n")

    code, err, page = logged_in(toolcrib, site)

    assert (code, err) == (0, "Logged in to Spotify.\n")
    assert "You can close this page" in page
    file = toolcrib.home / "logins" / "spotify.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "yes" in toolcrib("tools", "explain", "spotify_queue").stdout
    assert "Deleted the login" in toolcrib("logout", "spotify").stderr
    assert not file.exists()


@pytest.mark.services
def test_the_redirect_can_be_pasted(toolcrib: Program, site: Site) -> None:
    """Where the browser runs on another machine; an address with another state is not accepted."""
    master, slave = pty.openpty()
    environ = toolcrib.environment(SPOTIFY_ACCOUNTS_URL=site.address)
    process = subprocess.Popen(
        command("--client-id", "app"), stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
    )
    os.close(slave)
    try:
        found = ADDRESS.search(_read_until(master, "paste its address here."))
        assert found
        os.write(master, b"http://127.0.0.1/callback?code=1&state=2\n")
        _read_until(master, "does not belong to this login")
        os.write(master, f"{httpx2.get(found[1]).headers['location']}\n".encode())
        assert "Logged in to Spotify." in _read_until(master, None)
        assert process.wait(LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_what_is_missing_is_said(toolcrib: Program) -> None:
    """Without an app of one's own, with an unknown service, and without a login to delete."""
    no_app = toolcrib("login", "spotify")
    unknown = toolcrib("login", "jukebox")
    nothing = toolcrib("logout", "spotify")

    assert no_app.code == 2
    assert "https://developer.spotify.com/dashboard with the redirect address" in no_app.stderr
    assert no_app.stderr.count("\n") == unknown.stderr.count("\n") == 1
    assert unknown.code == 2
    assert (nothing.code, nothing.stderr) == (0, "There was no saved login for Spotify.\n")


@pytest.mark.services
def test_a_login_that_spotify_refuses_is_one_sentence(toolcrib: Program, site: Site) -> None:
    site.pages["/api/token"] = (400, {"content-type": "application/json"}, b'{"error": "invalid_client"}')

    code, err, _ = logged_in(toolcrib, site, "--client-id", "app")

    assert code == 1
    assert "check the client id and the redirect address of your app" in err
    assert err.count("\n") == 1
