"""The names that servers give to their tools: people see them, and find tools by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.mcp.real_servers import raw
from toolcrib.approval.approvers.question import Style, question
from toolcrib.testing import ScriptedApprover

WithServers = Callable[..., Any]


def named(*names: str, description: str = "A tool") -> list[dict[str, Any]]:
    return [{"name": name, "description": description, "inputSchema": {"type": "object"}} for name in names]


def found(runtime: Any, query: str) -> str:
    return runtime.definition_builder.index(None).search(query)[0].name


async def test_a_tool_is_found_by_the_name_that_its_server_gave(with_servers: WithServers) -> None:
    """Whoever types it exactly gets that tool first, however many others have the same words."""
    others = [f"time-current-get-{n}" for n in range(20)]
    runtime = await with_servers({"time": raw(tools=named("get-current-time", *others))})

    assert found(runtime, "get-current-time") == "mcp__time__get_current_time"
    assert found(runtime, "get_current_time") == "mcp__time__get_current_time"


async def test_a_name_that_lost_its_letters_is_found_all_the_same(with_servers: WithServers) -> None:
    """A name in another script, or one that was too long, stands beside the description."""
    long = "the-quite-unusually-long-name-of-a-tool-that-walks-the-dog-in-the-park"
    runtime = await with_servers({"s": raw(tools=named("天気予報", "prévision", long))})
    names = runtime.mcp.tool_names("s")

    assert found(runtime, "天気予報") == names["天気予報"]
    assert found(runtime, "prévision") == names["prévision"]
    assert found(runtime, long) == names[long]
    assert found(runtime, "dog park") == names[long]


async def test_a_question_names_server_and_tool_as_people_know_them(with_servers: WithServers) -> None:
    """Nobody has to read `mcp__…` to know what he agrees to; grants go by our name."""
    approver = ScriptedApprover("once")
    server = raw(trust="read_only", tools=named("set-current-time"))
    runtime = await with_servers({"time": server}, approver=approver, entry_point="interactive")

    await runtime.call("mcp__time__set_current_time", {})

    [request] = approver.asked
    shown = question(request, (), 100, Style(colour=False))
    assert request.tool == "mcp__time__set_current_time"
    assert request.title == "time: set-current-time"
    assert request.command == "time: set-current-time()"
    assert "time: set-current-time asks to run" in shown
    assert request.dangers[0].reason == "only its server knows what time: set-current-time does"
    assert request.dangers[0].scope == "by mcp__time__set_current_time"


async def test_a_name_with_something_hidden_in_it_is_shown_as_it_is(with_servers: WithServers) -> None:
    """What a terminal would obey, or nobody would see, is spelled out before anybody is asked."""
    approver = ScriptedApprover("deny")
    server = raw(trust="read_only", tools=named("safe\u202e\u200btool"))
    runtime = await with_servers({"s": server}, approver=approver, entry_point="interactive")

    [name] = runtime.mcp.tool_names("s").values()
    await runtime.call(name, {})

    assert approver.asked[0].title == "s: safe\\u202e\\u200btool"


async def test_the_record_of_a_decision_has_both_names(with_servers: WithServers) -> None:
    """The approvals file says what was asked, for programs and for people."""
    server = raw(trust="read_only", tools=named("set-time"))
    runtime = await with_servers({"s": server}, approver=ScriptedApprover("once"), entry_point="interactive")

    await runtime.call("mcp__s__set_time", {})

    lines = runtime.settings.home.approvals_file.read_text().splitlines()
    asked = next(json.loads(line) for line in lines if "set-time" in line)
    assert (asked["tool"], asked["title"]) == ("mcp__s__set_time", "s: set-time")
