"""`toolcrib mcp list` and `tools`: how real servers are, in words and as JSON, within a limit of time."""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_program import Program

# Servers with the SDK behind them take a second or two to start, and some of these hang.
pytestmark = pytest.mark.services

SERVERS = Path(__file__).parents[1] / "mcp" / "servers"
TOOLS = [
    {"name": "look up", "description": "Looks.\nMore.", "inputSchema": {"type": "object"},
     "annotations": {"readOnlyHint": True}},
    {"name": "write", "inputSchema": {"type": "object"}},
    {"name": "secret", "inputSchema": {"type": "object"}},
    {"name": "odd", "inputSchema": {"type": "objekt"}},
    {"name": "slow", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
]  # fmt: skip


@pytest.fixture
def toolcrib(tmp_path: Path) -> Program:
    """As everywhere, with time for servers that are started on a busy machine."""
    return Program(tmp_path, deadline_seconds=90)


def raw(**options: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "-E", str(SERVERS / "raw_server.py"), json.dumps(options)]}


def with_servers(program: Program, **servers: Any) -> Program:
    program.write("config.yaml", json.dumps({"mcp_servers": servers}))
    return program


def listed(program: Program, *options: str) -> dict[str, Any]:
    done = program("mcp", "list", "--json", *options)
    assert done.code == 0, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)}


def test_every_state_is_told_with_the_reason(toolcrib: Program):
    """One bad server costs the others nothing, and each says what is wrong with it."""
    with_servers(
        toolcrib,
        good=raw(tools=TOOLS) | {"tools": {"exclude": ["secret"]}},
        off=raw() | {"enabled": False},
        unset={"command": "x", "env": {"A": "${NOT_SET_HERE}"}},
        crash=raw(crash="no disk"),
        gone={"command": "no-such-program-here"},
        quiet=raw(stall_on=["initialize", "server/discover"]),
    )

    before = time.monotonic()
    found = listed(toolcrib, "--timeout", "12")
    took = time.monotonic() - before

    assert {name: one["state"] for name, one in found.items()} == {
        "good": "ready",
        "off": "disabled",
        "unset": "disabled",
        "crash": "waiting",
        "gone": "waiting",
        "quiet": "starting",
    }
    good = found["good"]
    assert (good["tools"], good["hidden"], good["protocol_version"]) == (2, 3, "2025-11-25")
    assert good["last_error"] == ""
    assert "NOT_SET_HERE" in found["unset"]["last_error"]
    assert "no disk" in found["crash"]["last_error"]
    assert found["crash"]["next_retry"] > time.time() - 60
    assert took < 50


def test_servers_that_hang_do_not_hold_up_the_others(toolcrib: Program):
    """However many never answer, the one behind them is ready."""
    quiet = {f"quiet{number}": raw(stall_on=["initialize", "server/discover"]) for number in range(10)}
    with_servers(toolcrib, **quiet, zero=raw(tools=TOOLS))

    found = listed(toolcrib, "--timeout", "12")

    assert found["zero"]["state"] == "ready"
    assert {one["state"] for name, one in found.items() if name != "zero"} == {"starting"}


def test_people_read_the_states_in_words(toolcrib: Program):
    """The table has words, and what is wrong stands under it."""
    with_servers(toolcrib, good=raw(tools=TOOLS), gone={"command": "no-such-program-here"})

    done = toolcrib("mcp", "list")

    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "good ready stdio 2025-11-25 3 (2 hidden)" in lines
    assert "gone waiting to retry stdio - -" in lines
    assert any(line.startswith("gone 'no-such-program-here' was not found") for line in lines)


def test_without_connecting_nothing_is_started(toolcrib: Program, tmp_path: Path):
    """--no-connect reads the config and nothing else."""
    started = tmp_path / "started"
    with_servers(toolcrib, one=raw(started_file=str(started)), two={"url": "http://127.0.0.1:1/mcp", "enabled": False})

    done = toolcrib("mcp", "list", "--no-connect")
    found = listed(toolcrib, "--no-connect")

    assert done.code == 0
    assert not started.exists()
    assert {name: (one["state"], one["transport"]) for name, one in found.items()} == {
        "one": ("enabled", "stdio"),
        "two": ("disabled", "http"),
    }
    assert "raw_server.py" in done.stdout


def test_no_servers_is_no_error(toolcrib: Program):
    """An empty config is answered with how to begin."""
    done = toolcrib("mcp", "list")

    assert done.code == 0
    assert "`toolcrib mcp add NAME -- COMMAND`" in done.stdout
    assert listed(toolcrib) == {}


def test_no_process_of_a_server_is_left(toolcrib: Program, tmp_path: Path):
    """What was started to look at it is ended with the command."""
    started = tmp_path / "started"
    with_servers(toolcrib, one=raw(started_file=str(started)))

    listed(toolcrib)

    assert not any(Path(f"/proc/{pid}").exists() for pid in started.read_text().split())


def test_without_the_sdk_the_servers_are_listed_with_what_to_install(toolcrib: Program, tmp_path: Path):
    """The extra packages are needed to connect, not to see what is configured."""
    shadow = tmp_path / "shadow"
    for name in ("mcp", "mcp_types"):
        (shadow / name).mkdir(parents=True)
        missing = f'raise ModuleNotFoundError("No module named {name!r}", name={name!r})\n'
        (shadow / name / "__init__.py").write_text(missing)
    with_servers(toolcrib, one=raw())
    path = f"{shadow}:{toolcrib.environment()['PYTHONPATH']}"

    connected = toolcrib("mcp", "list", PYTHONPATH=path)
    tested = toolcrib("mcp", "test", "one", PYTHONPATH=path)
    added = toolcrib("mcp", "add", "two", "--", "python3", PYTHONPATH=path)
    removed = toolcrib("mcp", "remove", "two", PYTHONPATH=path)

    assert (connected.code, tested.code, added.code, removed.code) == (0, 1, 0, 0), tested.stderr
    for said in (connected.stdout, tested.stdout):
        assert "pip install 'toolcrib[mcp]'" in said


def test_words_that_a_server_hides_from_people_are_made_visible(toolcrib: Program):
    """A model reads zero-width and tag characters; on the screen they would be invisible."""
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    described = f"Looks\u200b up\u2060 words.{hidden} \u202eevil"
    tool = {"name": "look", "description": described, "inputSchema": {"type": "object"}}
    with_servers(toolcrib, good=raw(tools=[tool]))

    for done in (toolcrib("mcp", "tools", "good"), toolcrib("mcp", "tools", "good", "--json")):
        assert done.code == 0, done.stderr
        assert not any(unicodedata.category(character) == "Cf" for character in done.stdout), ascii(done.stdout)
        assert "Looks" in done.stdout


def test_tools_are_shown_with_both_names_and_the_hidden_ones_with_reasons(toolcrib: Program, tmp_path: Path):
    """A person finds a tool by the name that he knows, and learns why one is missing; other servers are left alone."""
    started = tmp_path / "started"
    good = raw(tools=TOOLS) | {"tools": {"exclude": ["secret"]}}
    with_servers(toolcrib, good=good, other=raw(started_file=str(started)))

    done = toolcrib("mcp", "tools", "good", "--all")
    found = {one["tool"]: one for one in json.loads(toolcrib("mcp", "tools", "good", "--json").stdout)}

    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert done.code == 0, done.stderr
    assert "mcp__good__look_up runs look up: Looks." in lines
    assert "mcp__good__write needs approval" in lines
    assert {name for name, one in found.items() if not one["name"]} == {"secret", "odd", "slow"}
    assert "excluded by the config" in found["secret"]["why_hidden"]
    assert "task" in found["slow"]["why_hidden"]
    assert "object" in found["odd"]["why_hidden"]
    assert (found["look up"]["read_only"], found["look up"]["asks"]) == (True, False)
    assert not started.exists()


def test_tools_of_a_server_that_cannot_be_reached_say_so(toolcrib: Program):
    """The tools of the others are shown, and the exit code tells."""
    with_servers(toolcrib, good=raw(tools=TOOLS), gone={"command": "no-such-program-here"})

    done = toolcrib("mcp", "tools")

    assert done.code == 1
    assert "mcp__good__write" in done.stdout
    assert "`toolcrib mcp test gone`" in done.stderr
