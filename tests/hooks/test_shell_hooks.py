"""Shell hooks: commands from the config on events."""

from __future__ import annotations

import json
import time
from pathlib import Path

from toolcrib.config.hook_settings import ShellHookSettings
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.types import ToolResult
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime

LIMIT_SECONDS = 30.0


def call(home: Path, hooks: dict[str, ShellHookSettings], tool: str = "greet") -> ToolResult:
    """Call a tool in a home with these hooks in its config."""
    home.mkdir(parents=True, exist_ok=True)
    fields = {
        name: {"event": one.event, "command": one.command, "tools": one.tools, "timeout": one.timeout,
               "on_failure": one.on_failure}
        for name, one in hooks.items()
    }  # fmt: skip
    (home / "config.yaml").write_text(json.dumps({"shell_hooks": fields}))
    registry = ToolRegistry()
    registry.register(name=tool, toolset="x", schema={"description": "Greets."}, handler=lambda *_, **__: "hello")
    runtime = Runtime(settings=load_settings(Home(home)), registry=registry).load()
    try:
        return runtime.call_sync(tool, {})
    finally:
        runtime.close()


def test_a_hook_gets_the_event_as_json(home: Path, tmp_path: Path) -> None:
    """Nothing waits for an observing hook, and its command does not get secrets from the environment."""
    seen = tmp_path / "seen.json"
    command = f"cat > {seen}.part; env >> {seen}.env; mv {seen}.part {seen}"
    call(home, {"watch": ShellHookSettings(event="post_tool_call", command=command)})
    deadline = time.monotonic() + LIMIT_SECONDS
    while not seen.exists():
        assert time.monotonic() < deadline
    event = json.loads(seen.read_text())

    assert (event["event"], event["tool_name"], event["status"]) == ("post_tool_call", "greet", "ok")
    assert "TOOLCRIB_HOOK_EVENT=post_tool_call" in Path(f"{seen}.env").read_text()


def test_a_hook_blocks_a_call(home: Path) -> None:
    """With the exit code 2, or with an answer on stdout."""
    by_code = call(home, {"no": ShellHookSettings(event="pre_tool_call", command="echo not today >&2; exit 2")})
    answer = """echo '{"action": "block", "message": "never"}'"""
    by_answer = call(home, {"no": ShellHookSettings(event="pre_tool_call", command=answer)})
    allowed = call(home, {"yes": ShellHookSettings(event="pre_tool_call", command="cat > /dev/null")})

    assert (by_code.status, by_code.error_message) == ("blocked", "not today")
    assert by_answer.error_message == "never"
    assert allowed.status == "ok"


def test_a_failing_hook_blocks_unless_its_policy_allows(home: Path) -> None:
    """So does one that takes too long; it is killed with what it started."""
    failing = ShellHookSettings(event="pre_tool_call", command="exit 1")
    slow = ShellHookSettings(event="pre_tool_call", command="sleep 60 & wait", timeout=0.2)
    blocked = [call(home, {"check": one}) for one in (failing, slow)]
    lenient = ShellHookSettings(event="pre_tool_call", command="exit 1", on_failure="allow")
    allowed = call(home, {"check": lenient})
    others = call(home, {"check": ShellHookSettings(event="pre_tool_call", command="exit 1", tools=["terminal"])})

    assert [one.status for one in blocked] == ["blocked", "blocked"]
    assert "took more than 0.2 seconds" in blocked[1].error_message
    assert (allowed.status, others.status) == ("ok", "ok")
