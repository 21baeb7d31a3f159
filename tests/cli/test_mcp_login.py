"""`toolcrib mcp login` and `logout`, with a real server, a real login page and somebody who uses a browser."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.cli_program import Program, _read_until
from tests.oauth_pages import Site, started_site

# Programs with the SDK behind them take a second or two to start.
pytestmark = pytest.mark.services

LIMIT_SECONDS = 40
ADDRESS = re.compile(r"Log in here: (\S+)")


@pytest.fixture(scope="module")
def running_site() -> Iterator[Site]:
    with started_site() as site:
        yield site


@pytest.fixture
def site(running_site: Site) -> Site:
    """The servers as they are at first, without logins."""
    running_site.change(reset=True)
    return running_site


def configure(toolcrib: Program, **servers: Any) -> None:
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": servers}))


@contextlib.contextmanager
def login(toolcrib: Program, *more: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A login that has begun in a pipe, and the address that it printed."""
    command = [sys.executable, "-m", "toolcrib", "mcp", "login", "web", *more]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=toolcrib.environment(**environ),
    )
    try:
        assert process.stdout is not None
        found = ADDRESS.search(process.stdout.readline())
        assert found, process.communicate(timeout=LIMIT_SECONDS)
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def login_on_terminal(toolcrib: Program, *more: str, **environ: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The same for a person at a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "toolcrib", "mcp", "login", "web", *more]
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=toolcrib.environment(**environ),
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield process, master
    finally:
        process.kill()
        process.wait()
        os.close(master)


def browse(address: str) -> httpx2.Response:
    """What a browser does with an address: follows it to the end."""
    return httpx2.get(address, follow_redirects=True)


def sent_back_to(address: str) -> str:
    """The address that a browser on another machine is left with."""
    return str(httpx2.get(address).headers["location"])


def test_a_login_ends_with_the_tools_of_the_server(toolcrib: Program, site: Site) -> None:
    """The browser comes back to the program, which connects and says what it found."""
    configure(toolcrib, web=site.settings())

    with login(toolcrib) as (process, address):
        page = browse(address)
        out, err = process.communicate(timeout=LIMIT_SECONDS)

    assert process.returncode == 0, err
    assert "You can close this page" in page.text
    assert out == "'web' offers 2 tools.\n"
    assert err == "Logged in to 'web'.\n"
    file = toolcrib.home / "mcp_tokens" / "web.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_second_login_uses_the_first_registration(toolcrib: Program, site: Site) -> None:
    """The program listens where it said that it would, so that it need not be registered again."""
    configure(toolcrib, web=site.settings())
    for _ in range(2):
        with login(toolcrib) as (process, address):
            browse(address)
            process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == 0

    assert (site.saw()["registered"], site.saw()["authorized"]) == (1, 2)


def test_the_port_of_the_config_is_the_one_that_is_listened_on(toolcrib: Program, site: Site) -> None:
    """A port that was registered by hand stays the same."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        configure(toolcrib, web=site.settings(oauth={"redirect_port": port}))
        taken = toolcrib("mcp", "login", "web")

    with login(toolcrib) as (process, address):
        browse(address)
        process.communicate(timeout=LIMIT_SECONDS)

    assert f"port {port} is in use" in taken.stderr
    assert f"127.0.0.1%3A{port}%2Fcallback" in address
    assert process.returncode == 0


def test_an_answer_with_another_state_does_not_log_in(toolcrib: Program, site: Site) -> None:
    """Somebody who knows the port cannot put a login of his own into the program."""
    configure(toolcrib, web=site.settings())

    with login(toolcrib) as (process, address):
        back = httpx2.URL(sent_back_to(address))
        forged = httpx2.get(back.copy_set_param("state", "guessed"))
        assert process.poll() is None
        httpx2.get(back)
        process.communicate(timeout=LIMIT_SECONDS)

    assert forged.status_code == 400
    assert process.returncode == 0


def test_the_address_can_be_pasted_where_the_browser_cannot_come_back(toolcrib: Program, site: Site) -> None:
    """On another machine the last address is copied by hand; a wrong one is told, and asked for again."""
    configure(toolcrib, web=site.settings())

    with login_on_terminal(toolcrib) as (process, master):
        seen = _read_until(master, "paste its address here.")
        found = ADDRESS.search(seen)
        assert found
        os.write(master, b"http://127.0.0.1/callback?code=1&state=2\n")
        _read_until(master, "does not belong to this login")
        os.write(master, f"{sent_back_to(found[1])}\n".encode())
        rest = _read_until(master, None)
        assert process.wait(LIMIT_SECONDS) == 0

    assert "'web' offers 2 tools." in rest


@pytest.mark.parametrize("more", [(), ("--no-browser",)])
def test_a_browser_is_opened_for_a_person_who_wants_it(
    toolcrib: Program, site: Site, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """With a terminal and a browser the address is opened, unless the option says no."""
    configure(toolcrib, web=site.settings())
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o700)

    with login_on_terminal(toolcrib, *more, BROWSER=f"{browser} %s") as (process, master):
        seen = _read_until(master, "paste its address here.")
        found = ADDRESS.search(seen)
        assert found
        browse(found[1])
        _read_until(master, None)
        assert process.wait(LIMIT_SECONDS) == 0

    assert opened.exists() == (not more)
    assert not opened.exists() or opened.read_text() == found[1]


def test_no_browser_is_opened_for_a_script(toolcrib: Program, site: Site, tmp_path: Path) -> None:
    """Without a terminal nobody sits there to whom a page could be shown."""
    configure(toolcrib, web=site.settings())
    opened = tmp_path / "opened"

    with login(toolcrib, BROWSER=f"touch {opened}") as (process, address):
        browse(address)
        process.communicate(timeout=LIMIT_SECONDS)

    assert process.returncode == 0
    assert not opened.exists()


def test_an_interrupt_ends_a_login(toolcrib: Program, site: Site) -> None:
    """Ctrl-C leaves nothing behind and shows no traceback."""
    configure(toolcrib, web=site.settings())

    with login_on_terminal(toolcrib) as (process, master):
        _read_until(master, "paste its address here.")
        os.killpg(process.pid, signal.SIGINT)
        rest = _read_until(master, None)
        assert process.wait(LIMIT_SECONDS) == 130

    assert "Traceback" not in rest
    assert '"tokens"' not in (toolcrib.home / "mcp_tokens" / "web.json").read_text()


def test_a_login_that_nobody_makes_ends_in_time(toolcrib: Program, site: Site) -> None:
    """The limit holds, and the message says how to wait longer."""
    configure(toolcrib, web=site.settings())

    outcome = toolcrib("mcp", "login", "web", "--timeout", "1")

    assert outcome.code == 1
    assert "no login within 1 seconds" in outcome.stderr


def test_a_login_that_is_refused_is_told(toolcrib: Program, site: Site) -> None:
    """What the login page says reaches the person as one line."""
    configure(toolcrib, web=site.settings())
    site.change(denies=True)

    with login(toolcrib) as (process, address):
        browse(address)
        _, err = process.communicate(timeout=LIMIT_SECONDS)

    assert process.returncode == 1
    assert err.count("\n") == 1
    assert "the login was refused" in err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wbe", "unknown MCP server 'wbe'; did you mean 'web'?"),
        ("local", "'local' is a local program without a login"),
        ("open", "`toolcrib config set mcp_servers.open.auth oauth`"),
        ("gone", "'gone' cannot be reached: no connection"),
        ("unset", "it needs NOBODY_SETS_THIS, which is not set"),
    ],
)
def test_where_nobody_can_log_in_the_reason_is_told(toolcrib: Program, name: str, said: str) -> None:
    """Each says which thing is wrong and what to type."""
    configure(
        toolcrib,
        web={"url": "http://127.0.0.1:9/mcp", "auth": "oauth"},
        gone={"url": "http://127.0.0.1:9/mcp", "auth": "oauth"},
        open={"url": "http://127.0.0.1:9/mcp"},
        local={"command": "true"},
        unset={"url": "http://127.0.0.1:9/${NOBODY_SETS_THIS}", "auth": "oauth"},
    )

    outcome = toolcrib("mcp", "login", name)

    assert outcome.code != 0
    assert said in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_the_setting_that_is_named_is_one(toolcrib: Program, site: Site) -> None:
    """What the message tells to type makes the login possible."""
    configure(toolcrib, web={"url": site.url})
    refused = toolcrib("mcp", "login", "web")
    [command] = re.findall(r"`toolcrib ([^`]+)`", refused.stderr)

    assert toolcrib(*command.split()).code == 0

    with login(toolcrib) as (process, address):
        browse(address)
        process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0


def test_logging_out_forgets_the_login(toolcrib: Program, site: Site) -> None:
    """The file is gone, the server has been told, and the server in the list needs a login again."""
    configure(toolcrib, web=site.settings())
    with login(toolcrib) as (process, address):
        browse(address)
        process.communicate(timeout=LIMIT_SECONDS)

    outcome = toolcrib("mcp", "logout", "web")
    again = toolcrib("mcp", "logout", "web")

    assert (outcome.code, outcome.stderr) == (0, "Deleted the login for 'web'.\n")
    assert (again.code, again.stderr) == (0, "There was no saved login for 'web'.\n")
    assert site.saw()["revoked"] == 1
    assert not (toolcrib.home / "mcp_tokens" / "web.json").exists()


def test_logging_out_works_for_a_server_that_was_removed(toolcrib: Program, site: Site) -> None:
    """What is kept can be forgotten also when the config does not know the server any more."""
    configure(toolcrib, web=site.settings())
    with login(toolcrib) as (process, address):
        browse(address)
        process.communicate(timeout=LIMIT_SECONDS)
    configure(toolcrib)
    site.change(revocable=False)

    outcome = toolcrib("mcp", "logout", "web")
    unknown = toolcrib("mcp", "logout", "web")

    assert outcome.code == 0
    assert "unknown MCP server 'web'" in unknown.stderr
    assert not (toolcrib.home / "mcp_tokens" / "web.json").exists()
