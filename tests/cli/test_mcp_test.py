"""`toolcrib mcp test`: one real server, tried step by step; what is wrong is said with what to do about it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_program import DEADLINE_SECONDS, Program
from toolcrib.cli.commands.mcp_check import suggest_fix
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.mcp.client.servers import read_server

# Programs with the SDK behind them take a second or two to start.
pytestmark = pytest.mark.services

SERVERS = Path(__file__).parents[1] / "mcp" / "servers"
READS = {"readOnlyHint": True}
OBJECT = {"type": "object"}
PATH_NEEDED = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.fixture
def toolcrib(tmp_path: Path) -> Program:
    """As everywhere, with time for servers that are started on a busy machine."""
    return Program(tmp_path, deadline_seconds=90)


def raw(**options: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "-E", str(SERVERS / "raw_server.py"), json.dumps(options)]}


def tried(program: Program, server: dict[str, Any], *options: str, others: dict[str, Any] | None = None) -> Any:
    program.write("config.yaml", json.dumps({"mcp_servers": {"it": server, **(others or {})}}))
    done = program("mcp", "test", "it", "--json", *options)
    found = json.loads(done.stdout)
    assert done.code == (0 if found["ok"] else 1), done.stderr
    return found


def failed(found: Any) -> Any:
    (step,) = [step for step in found["steps"] if step["state"] == "failed"]
    return step


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Starts a server for HTTP and gives its port."""
    with ExitStack() as started:

        def start(program: str, kind: str) -> int:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            command = [sys.executable, str(SERVERS / program), str(port), kind]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started.callback(process.wait)
            started.callback(process.kill)
            end = time.monotonic() + DEADLINE_SECONDS
            while time.monotonic() < end:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        return port
                time.sleep(0.05)
            raise AssertionError("the server did not start")

        yield start


def test_a_good_server_is_greeted_listed_and_called(toolcrib: Program, tmp_path: Path):
    """Tools that only read and need nothing are called; the others are not, and no other server is started."""
    started = tmp_path / "started"
    tools = [
        {"name": "pid", "inputSchema": OBJECT, "annotations": READS},
        {"name": "write", "inputSchema": OBJECT},
        {"name": "read", "inputSchema": PATH_NEEDED, "annotations": READS},
    ]

    found = tried(toolcrib, raw(tools=tools), others={"other": raw(started_file=str(started))})

    assert found["ok"]
    assert (found["protocol_version"], found["tools"]) == ("2025-11-25", 3)
    names = [step["name"] for step in found["steps"]]
    assert names == ["start", "greet", "tools", "resources", "prompts", "call", "call"]
    called, left = found["steps"][-2:]
    assert (called["tool"], called["state"]) == ("pid", "ok")
    assert json.loads(called["result"])["result"].isdigit()
    assert left["state"] == "skipped"
    assert left["detail"].endswith("write")
    assert not started.exists()


def test_yes_calls_what_may_change_something(toolcrib: Program):
    """Who agrees beforehand is not asked, whatever the server is trusted with."""
    found = tried(toolcrib, raw(tools=[{"name": "count", "inputSchema": OBJECT}]), "--yes")

    assert json.loads(found["steps"][-1]["result"]) == {"result": "1"}


def test_trust_alone_does_not_call_what_may_change_something(toolcrib: Program):
    """A test is no reason to carry out something that nobody asked for."""
    server = raw(tools=[{"name": "count", "inputSchema": OBJECT}]) | {"trust": "all"}

    found = tried(toolcrib, server)

    assert found["steps"][-1]["state"] == "skipped"


def test_a_person_is_asked_before_each_such_call(toolcrib: Program):
    """At a terminal the answer decides about that one tool."""
    tools = [{"name": "count", "inputSchema": OBJECT}, {"name": "write", "inputSchema": OBJECT}]
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": {"it": raw(tools=tools)}}))

    done = toolcrib.on_terminal(
        "mcp",
        "test",
        "it",
        answers=(("count may change something. Call it?", "y"), ("write may change something", "n")),
    )

    assert done.code == 0, done.stdout
    assert 'call       count: {"result": "1"}' in done.stdout
    assert "skipped  call       write" in done.stdout


def test_whoever_has_enough_of_the_questions_is_not_asked_again(toolcrib: Program):
    """Enter alone leaves out that tool and the ones behind it; what only reads is still called."""
    tools = [{"name": name, "inputSchema": OBJECT} for name in ("count", "write")]
    tools.append({"name": "pid", "inputSchema": OBJECT, "annotations": READS})
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": {"it": raw(tools=tools)}}))

    done = toolcrib.on_terminal("mcp", "test", "it", answers=(("count may change something. Call it?", ""),))

    assert done.code == 0, done.stdout
    assert done.stdout.count("may change something. Call it?") == 1
    assert "skipped  call       count" in done.stdout
    assert "skipped  call       write" in done.stdout
    assert "ok       call       pid" in done.stdout


def test_an_interrupt_ends_the_server_too(toolcrib: Program, tmp_path: Path):
    """Whoever does not want to wait leaves nothing behind."""
    script = f"echo $$ > {tmp_path / 'pid'}; exec sleep 600"
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": {"it": {"command": "sh", "args": ["-c", script]}}}))

    done = toolcrib.on_terminal("mcp", "test", "it", answers=(("Testing 'it'", "^C"),))

    assert done.code == 130
    assert "Traceback" not in done.stdout
    pid = tmp_path / "pid"
    assert not pid.exists() or not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_a_named_tool_is_called_with_arguments(toolcrib: Program):
    """--call takes the server's name of a tool or ours, and prints all that it answers."""
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": {"it": raw()}}))

    by_its_name = toolcrib("mcp", "test", "it", "--call", "echo", "--args", '{"text": "hello"}')
    by_ours = toolcrib("mcp", "test", "it", "--call", "mcp__it__echo", "--args", '{"text": "again"}')

    assert (by_its_name.code, by_ours.code) == (0, 0), by_its_name.stderr
    assert '{"result": "hello"}' in by_its_name.stdout.splitlines()
    assert '{"result": "again"}' in by_ours.stdout.splitlines()


def test_a_named_tool_that_may_change_something_needs_a_yes(toolcrib: Program):
    """Where nobody can be asked it is not called, and that is a failure."""
    found = tried(toolcrib, raw(), "--call", "count")

    assert "--yes" in failed(found)["detail"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["it", "--call", "ehco"], "did you mean 'echo'?"),
        (["itt"], "did you mean 'it'?"),
        (["it", "--args", "{}"], "`--call TOOL`"),
        (["it", "--call", "echo", "--args", "[1]"], "`--args`"),
        (["it", "--call", "echo", "--args", "{"], "not JSON"),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(toolcrib: Program, words, said):
    """One line, exit code 2."""
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": {"it": raw()}}))

    done = toolcrib("mcp", "test", *words)

    assert done.code == 2
    assert said in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("toolcrib: ")


@pytest.mark.parametrize(
    ("server", "detail", "to_do"),
    [
        ({"command": "npx-not-here"}, "'npx-not-here' was not found", "install 'npx-not-here'"),
        (raw(crash="Error: ACME_API_KEY is required"), "exit code 3", "mcp_servers.it.env.ACME_API_KEY"),
        ({"command": "sh", "args": ["-c", "read line; exit 4"]}, "exit code 4", "`sh -c 'read line; exit 4'`"),
        (
            {"command": "sh", "args": ["-c", "echo started; cat >/dev/null"], "connect_timeout": 6.0},
            "did not answer in time",
            "prints text on stdout",
        ),
        (
            raw(stall_on=["initialize", "server/discover"]) | {"connect_timeout": 6.0},
            "did not answer in time",
            "connect_timeout",
        ),
        ({"url": "http://127.0.0.1:1/mcp"}, "no connection", "is the server running"),
        ({"command": "x", "env": {"A": "${NOT_SET_HERE}"}}, "NOT_SET_HERE", ""),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(toolcrib: Program, server, detail, to_do):
    """Each way to fail has its own advice."""
    step = failed(tried(toolcrib, server))

    assert detail in step["detail"]
    assert to_do in step["advice"]


def test_the_last_words_of_a_process_are_shown(toolcrib: Program):
    """What it printed as errors tells more than its exit code; what an earlier one printed is not repeated."""
    crashed = failed(
        tried(toolcrib, {"command": "sh", "args": ["-c", "read line; echo one >&2; echo two >&2; exit 3"]})
    )
    gone = failed(tried(toolcrib, {"command": "no-such-program-here"}))

    assert crashed["lines"] == ["one", "two"]
    assert gone["lines"] == []


@pytest.mark.parametrize(
    ("program", "kind", "path", "settings", "detail", "to_do"),
    [
        ("raw_http.py", "forbidden", "mcp", {}, "HTTP 401", "Authorization: Bearer"),
        ("raw_http.py", "failing", "mcp", {}, "HTTP 500", "server itself failed"),
        ("sdk_server.py", "mcp", "elsewhere", {}, "HTTP 404", "mcp_servers.it.url"),
        ("sdk_server.py", "sse", "sse", {}, "HTTP 405", "mcp_servers.it.transport sse"),
        ("sdk_server.py", "mcp", "mcp", {"transport": "sse"}, "HTTP 4", "mcp_servers.it.transport http"),
    ],
)
def test_what_is_wrong_over_http_is_said_with_what_to_do(
    toolcrib: Program, serve, program, kind, path, settings, detail, to_do
):
    """A server that speaks in the other way is found out by trying."""
    port = serve(program, kind)

    step = failed(tried(toolcrib, {"url": f"http://127.0.0.1:{port}/{path}", **settings}))

    assert detail in step["detail"]
    assert to_do in step["advice"]


def test_https_where_none_is_spoken_is_recognised(toolcrib: Program, serve):
    """The advice names the address."""
    port = serve("raw_http.py", "failing")

    step = failed(tried(toolcrib, {"url": f"https://127.0.0.1:{port}/mcp"}))

    assert "write http:// instead of https://" in step["advice"]


@pytest.mark.parametrize("kind", ["mcp", "sse"])
def test_a_server_over_http_works(toolcrib: Program, serve, kind):
    """Both ways over HTTP are tried like a process is."""
    port = serve("sdk_server.py", kind)

    found = tried(toolcrib, {"url": f"http://127.0.0.1:{port}/{kind}", "transport": "sse" if kind == "sse" else "auto"})

    assert found["ok"], found
    assert [step["name"] for step in found["steps"]][:3] == ["connect", "greet", "tools"]


def test_tools_that_are_set_aside_or_renamed_are_named(toolcrib: Program):
    """Every tool that is not what its server says is listed with the reason."""
    tools = [
        {"name": "a b", "inputSchema": OBJECT},
        {"name": "a_b", "inputSchema": OBJECT},
        {"name": "odd", "inputSchema": {"type": "objekt"}},
    ]

    found = tried(toolcrib, raw(tools=tools), others={"other": raw()})

    lines = next(step for step in found["steps"] if step["name"] == "tools")["lines"]
    assert any(line.startswith("a b is offered as mcp__it__a_b_") for line in lines)
    assert any(line.startswith("odd is hidden: ") for line in lines)


def test_a_server_with_nearly_the_same_name_is_named(toolcrib: Program):
    """Two servers that would share names are known before a tool of one is taken for that of the other."""
    toolcrib.write("config.yaml", json.dumps({"mcp_servers": {"a-b": raw(), "a_b": raw()}}))

    done = toolcrib("mcp", "test", "a-b", "--no-calls")

    assert done.code == 0, done.stdout
    assert "the server 'a_b'" in done.stdout


def test_a_tool_that_answers_with_an_error_is_a_problem(toolcrib: Program):
    """It said that it needs nothing, and yet it does not work."""
    found = tried(toolcrib, raw(tools=[{"name": "fail", "inputSchema": OBJECT, "annotations": READS}]))

    assert failed(found)["detail"] == '{"error": "it did not work"}'


def test_a_server_that_is_switched_off_is_tried_all_the_same(toolcrib: Program):
    """Whoever tests it wants to know."""
    found = tried(toolcrib, raw(tools=[]) | {"enabled": False})

    assert found["ok"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("no connection: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (a.example)", "certificate"),
        ("the server answered HTTP 403; log in", "toolcrib mcp login it"),
    ],
)
def test_errors_of_servers_elsewhere_have_their_advice(error, said):
    """What cannot be had on this machine is told by its words."""
    server = read_server("it", McpServerSettings(url="https://a.example/mcp", auth="oauth"), {})

    assert said in suggest_fix(server, error, [])


def test_advice_names_variables_and_not_the_secrets_in_them():
    """What is shown on a screen, and in JSON for programs, holds no key."""
    process = McpServerSettings(command="sh", args=["-c", "exit 3", "--key", "${A_KEY}"])
    elsewhere = McpServerSettings(url="http://a.example/mcp?key=${A_KEY}")
    environ = {"A_KEY": "very-secret"}

    told = [
        suggest_fix(read_server("it", process, environ), "it ended with exit code 3", []),
        suggest_fix(read_server("it", elsewhere, environ), "the server answered HTTP 401", []),
        suggest_fix(read_server("it", elsewhere, environ), "something else", []),
    ]

    assert all("${A_KEY}" in one and "very-secret" not in one for one in told)
    assert "`sh -c 'exit 3' --key ${A_KEY}`" in told[0]
    assert "--url 'http://a.example/mcp?key=${A_KEY}'" in told[1]
