"""`toolcrib serve` as a program: its start, its end, and what a killed one leaves."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.cli.cli_program import Program
from toolcrib.config.paths import Home
from toolcrib.providers.scripted import call, says
from toolcrib.serve.app import only_server
from toolcrib.serve.tokens import ServerTokens
from toolcrib.testing.model_server import ScriptedModelServer

LIMIT_SECONDS = 120.0
CONFIG = """
model: {{provider: fake, default: test}}
providers: {{fake: {{base_url: "{url}"}}}}
serve: {{port: 0, toolsets: [terminal]}}
"""
TELEGRAM = {"TELEGRAM_WEBHOOK_URL": "https://bot.test/telegram"}
STRONG = "0f8c2b7d9e4a6153c0b1d2e3f4a59687"


def test_the_token_is_printed_and_managed(tmp_path: Path) -> None:
    """`serve token` prints the owner's token; further ones are shown once, listed without their value, and revoked."""
    run_cli = Program(tmp_path)
    owner = run_cli("serve", "token")
    phone = run_cli("serve", "token", "--new", "phone", "--scope", "chat")
    listed = run_cli("serve", "token", "--list")
    run_cli("serve", "token", "--revoke", "phone")
    again = run_cli("serve", "token", "--revoke", "phone")

    assert owner.stdout.strip() == ServerTokens(Home(run_cli.home)).owner_token()
    assert "phone  chat" in listed.stdout
    assert phone.stdout.strip() not in listed.stdout
    assert again.code != 0
    assert "no token 'phone'" in again.stderr


def test_no_token_is_printed_that_the_next_start_would_refuse(tmp_path: Path) -> None:
    """On the backend `local`, a token for another owner is refused as the API and the start refuse it."""
    run_cli = Program(tmp_path)
    refused = run_cli("serve", "token", "--new", "laptop", "--owner", "anna")

    assert refused.code == 2
    assert "tokens belong to several owners (anna), who could read each other's files" in refused.stderr
    assert ServerTokens(Home(run_cli.home)).owners() == {""}


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--host", "0.0.0.0"], {}, "reached from other machines"),
        ([], {"TOOLCRIB_SERVE_TOKEN": "short"}, "at least 32"),
        ([], {"TOOLCRIB_SERVE_TOKEN": "changeme" * 8}, "placeholder"),
        (["--token-file", os.devnull], {}, "at least 32"),
        ([], TELEGRAM, "TELEGRAM_WEBHOOK_SECRET"),
        ([], {**TELEGRAM, "TELEGRAM_WEBHOOK_SECRET": "short"}, "at least 32"),
        ([], {**TELEGRAM, "TELEGRAM_WEBHOOK_SECRET": STRONG, "TOOLCRIB_SERVE_TOKEN": STRONG}, "token of the API"),
    ],
)
def test_unsafe_starts_are_refused(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    """One sentence, exit code 2."""
    done = Program(tmp_path)("serve", *arguments, **environment)

    assert done.code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_certificate_is_said(tmp_path: Path) -> None:
    """One sentence names the files and the settings."""
    run_cli = Program(tmp_path)
    run_cli.home.mkdir(parents=True, exist_ok=True)
    (run_cli.home / "config.yaml").write_text("serve: {port: 0, tls_certificate: /no/c.pem, tls_key: /no/k.pem}\n")
    done = run_cli("serve")

    assert done.code == 2
    assert "/no/c.pem" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_home_has_one_server(tmp_path: Path) -> None:
    """A second server would take the runs of the first for left ones; it does not start."""
    run_cli = Program(tmp_path)
    run_cli.home.mkdir(parents=True, exist_ok=True)
    with only_server(Home(run_cli.home)):
        done = run_cli("serve", "--port", "0")

    assert done.code == 2
    assert "another server is using this home" in done.stderr


@pytest.mark.services
def test_a_first_start_says_how_to_open_the_page(tmp_path: Path) -> None:
    """A person gets a link that logs in; one who finds the page without it learns how to get one."""
    run_cli = Program(tmp_path)
    seen = run_cli.on_terminal("serve", "--port", "0", answers=(("minutes: http://127.0.0.1:", "^C"),))

    assert re.search(r"Serving at http://127\.0\.0\.1:\d+; `toolcrib serve token` prints the token", seen.stdout)
    assert re.search(r"/login#[A-Z0-9-]{14}\s", seen.stdout)
    assert seen.code == 130


@asynccontextmanager
async def program(
    home: Path, model: ScriptedModelServer, folder: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A running `toolcrib serve`, and its address."""
    home.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    (home / "config.yaml").write_text(CONFIG.format(url=model.base_url))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "toolcrib", "serve"),
        cwd=folder,
        env={**os.environ, "TOOLCRIB_HOME": str(home)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), LIMIT_SECONDS)).decode()
        yield process, line.partition("Serving at ")[2].partition(";")[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def client(home: Path, url: str) -> httpx2.AsyncClient:
    token = ServerTokens(Home(home)).owner_token()
    return httpx2.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=LIMIT_SECONDS, trust_env=False
    )


@pytest.mark.services
async def test_a_killed_server_loses_nothing_and_repeats_nothing(home: Path, tmp_path: Path) -> None:
    """After `kill -9`, its sessions, runs and open approvals are there; the call that waited never ran."""
    folder = tmp_path / "work"
    (folder / "build").mkdir(parents=True)
    steps = [says("", call("terminal", {"command": "rm -rf build"}, id="c1"))] * 5
    with ScriptedModelServer(steps) as model:
        async with program(home, model, folder) as (process, url), client(home, url) as http:
            started = [(await http.post("/api/runs", json={"text": f"clean {n}"})).json() for n in range(5)]
            async with asyncio.timeout(LIMIT_SECONDS):
                for run in started:
                    async with http.stream("GET", f"/api/runs/{run['id']}/events") as stream:
                        async for line in stream.aiter_lines():
                            if "question_asked" in line:
                                break
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        async with program(home, model, folder) as (process, url), client(home, url) as http:
            runs = (await http.get("/api/runs")).json()["runs"]
            approvals = (await http.get("/api/approvals")).json()["approvals"]
            sessions = (await http.get("/api/sessions")).json()["sessions"]
            process.send_signal(signal.SIGTERM)
            code = await asyncio.wait_for(process.wait(), LIMIT_SECONDS)

    assert {run["id"] for run in runs} == {run["id"] for run in started}
    assert {run["state"] for run in runs} == {"interrupted"}
    assert {one["session_id"] for one in approvals} == {run["session_id"] for run in started}
    assert {one["id"] for one in sessions} == {run["session_id"] for run in started}
    assert (folder / "build").is_dir()
    assert code == 0


@pytest.mark.services
async def test_reconnects_lose_and_double_nothing(home: Path, tmp_path: Path) -> None:
    """Many clients that break off while the model writes, and go on after the last event that they saw."""
    text = "".join(f"line {n}\n" for n in range(2_000))
    with ScriptedModelServer([says(text)]) as model:
        async with program(home, model, tmp_path) as (_, url), client(home, url) as http:
            run = (await http.post("/api/runs", json={"text": "write"})).json()["id"]

            async def follow(steps: int) -> list[int]:
                seen: list[int] = []
                while True:
                    headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
                    async with http.stream("GET", f"/api/runs/{run}/events", headers=headers) as stream:
                        left = steps
                        async for line in stream.aiter_lines():
                            if line.startswith("id: "):
                                seen.append(int(line[4:]))
                            elif "run_ended" in line:
                                return seen
                            elif line.startswith("data: ") and (left := left - 1) == 0:
                                break

            async with asyncio.timeout(LIMIT_SECONDS):
                numbers = await asyncio.gather(*(follow(steps) for steps in range(1, 11)))

    assert {len(seen) for seen in numbers} == {numbers[0][-1]}
    assert all(seen == list(range(1, len(seen) + 1)) for seen in numbers)
