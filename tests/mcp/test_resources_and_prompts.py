"""Resources and prompts of real servers, used as tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.real_servers import SERVERS, eventually, text_of

WithServers = Callable[..., Any]
FOUR = ("list_resources", "read_resource", "list_prompts", "get_prompt")


def raw_offers(settings: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    args = ["-S", "-E", str(SERVERS / "raw_offers.py"), json.dumps(options)]
    return {"command": sys.executable, "args": args, **(settings or {})}


def sdk_offers() -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVERS / "sdk_offers.py")]}


def names(runtime: Any) -> set[str]:
    return set(runtime.definitions(["s"]).names)


def messages_of(result: Any) -> list[str]:
    found = json.loads(result.text)["messages"]
    return [f"{one['role']}: {one['content']}" for one in found]


def looked_at(place: str) -> tuple[bytes, str, int]:
    file = Path(place)
    return file.read_bytes(), file.suffix, file.stat().st_mode


async def test_resources_are_listed_with_templates_and_nothing_hidden(with_servers: WithServers) -> None:
    """Each resource stands with its uri; templates of further ones stand beside them."""
    runtime = await with_servers({"s": raw_offers()})

    listed = json.loads((await runtime.call("mcp__s__list_resources", {})).text)

    assert [one["uri"] for one in listed["resources"]][:2] == ["memo://one", "memo://folder"]
    assert listed["resources"][0]["description"] == "A memo\\u202e"
    assert listed["templates"] == [{"uriTemplate": "memo://{name}", "name": "any memo"}]


@pytest.mark.services
async def test_a_server_of_the_newer_protocol_is_read_page_by_page(with_servers: WithServers) -> None:
    """All pages of a list are fetched, resources are read, and prompts are listed."""
    runtime = await with_servers({"s": sdk_offers()})
    [status] = runtime.mcp.servers()

    offered = runtime.mcp.tool_names("s")
    listed = json.loads((await runtime.call(offered["list resources"], {})).text)
    read = await runtime.call(offered["read resource"], {"uri": "memo://two"})
    prompts = json.loads((await runtime.call(offered["list prompts"], {})).text)["prompts"]

    assert status.protocol_version == "2026-07-28"
    assert [one["uri"] for one in listed["resources"]] == ["memo://one", "memo://two"]
    assert listed["resources"][1]["size"] == 3
    assert text_of(read) == "what memo://two says"
    assert prompts == [{"name": "greet", "arguments": [{"name": "who", "required": True}]}]


@pytest.mark.services
async def test_tools_of_the_server_with_such_names_are_kept_beside_ours(with_servers: WithServers) -> None:
    """The server's own `list_resources` has the plain name; ours is there too, under another one."""
    runtime = await with_servers({"s": {**sdk_offers(), "trust": "all"}})
    offered = runtime.mcp.tool_names("s")

    own = await runtime.call("mcp__s__list_resources", {})
    ours = await runtime.call(offered["list resources"], {})
    own_prompt = await runtime.call(offered["get prompt"], {})
    our_prompt = await runtime.call(offered["get prompt "], {"name": "greet", "arguments": {"who": "Ada"}})

    assert text_of(own) == "the server's own list_resources"
    assert offered["list resources"].startswith("mcp__s__list_resources_")
    assert "memo://one" in ours.text
    assert text_of(own_prompt) == "the server's own get prompt"
    assert messages_of(our_prompt) == ["user: Greet Ada"]
    assert len(set(offered.values())) == len(offered) == 6


async def test_a_resource_is_read_as_text_image_or_file(with_servers: WithServers) -> None:
    """One text is given as it is, an image as a part of its own, and other bytes as a file that is named."""
    runtime = await with_servers({"s": raw_offers()})

    text = await runtime.call("mcp__s__read_resource", {"uri": "memo://one"})
    several = await runtime.call("mcp__s__read_resource", {"uri": "memo://folder"})
    report = await runtime.call("mcp__s__read_resource", {"uri": "memo://report.pdf"})
    broken = await runtime.call("mcp__s__read_resource", {"uri": "memo://broken.zip"})

    assert text_of(text) == "the first memo"
    said, image = several.content["content"]
    assert "[content of memo://folder/a]\\na\\\\u200bb" in said["text"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    content, suffix, mode = looked_at(text_of(report).rpartition("saved as ")[2].rstrip("]"))
    assert (content, suffix) == (b"%PDF", ".pdf")
    assert mode & 0o077 == 0
    assert "not saved" in text_of(broken)


async def test_prompts_are_listed_with_arguments_and_filled_in(with_servers: WithServers) -> None:
    """A list names the arguments; a prompt is its messages with their roles, media behind them."""
    runtime = await with_servers({"s": raw_offers()})

    listed = json.loads((await runtime.call("mcp__s__list_prompts", {})).text)
    prompt = await runtime.call("mcp__s__get_prompt", {"name": "greet", "arguments": {"who": "Ada"}})

    text, image = prompt.content["content"]
    arguments = [{"name": "who", "description": "Whom", "required": True}, {"name": "how"}]
    assert listed["prompts"] == [{"name": "greet", "description": "A greeting", "arguments": arguments}]
    messages = json.loads(text["text"])["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == "Greet Ada"
    assert "the first memo" in messages[2]["content"]
    assert image["type"] == "image_url"


async def test_what_the_server_does_not_have_is_not_offered(with_servers: WithServers) -> None:
    """Only capabilities that the server names become tools, also where it has no tools at all."""
    runtime = await with_servers({"s": raw_offers(capabilities={"prompts": {}})})

    assert names(runtime) == {"mcp__s__list_prompts", "mcp__s__get_prompt"}


@pytest.mark.parametrize(
    ("tools", "offered"),
    [
        ({"resources": False}, {"list_prompts", "get_prompt", "echo"}),
        ({"prompts": False}, {"list_resources", "read_resource", "echo"}),
        ({"include": ["nothing"]}, set(FOUR)),
        ({"exclude": ["read_*", "echo"]}, {"list_resources", "list_prompts", "get_prompt"}),
    ],
)
async def test_the_config_says_what_is_offered(
    with_servers: WithServers, tools: dict[str, Any], offered: set[str]
) -> None:
    """`resources` and `prompts` switch them off; `include` is about the server's own tools."""
    runtime = await with_servers({"s": raw_offers({"tools": tools})})

    assert names(runtime) == {f"mcp__s__{name}" for name in offered}


async def test_nobody_is_asked_before_something_is_read(with_servers: WithServers) -> None:
    """They only read, so that they pass the gate where nobody could be asked; `trust: ask` still means ask."""
    runtime = await with_servers({"s": raw_offers(), "strict": raw_offers({"trust": "ask"})})

    passed = [await runtime.call(f"mcp__s__{name}", {}) for name in ("list_resources", "list_prompts")]
    stopped = await runtime.call("mcp__strict__list_resources", {})

    assert [one.status for one in passed] == ["ok", "ok"]
    assert stopped.status == "blocked"


async def test_errors_say_what_was_wrong(with_servers: WithServers) -> None:
    """What the server does not have, and what the caller left out, is said in words."""
    runtime = await with_servers({"s": raw_offers()})

    unknown = await runtime.call("mcp__s__read_resource", {"uri": "memo://nowhere"})
    prompt = await runtime.call("mcp__s__get_prompt", {"name": "nobody"})
    empty = await runtime.call("mcp__s__read_resource", {})

    assert "there is no such thing" in unknown.error_message
    assert "there is no such thing" in prompt.error_message
    assert empty.error_type == "invalid_arguments"


async def test_a_server_without_templates_lists_its_resources(with_servers: WithServers) -> None:
    """That a server never heard of templates costs nothing."""
    runtime = await with_servers({"s": raw_offers(templates=False)})

    result = await runtime.call("mcp__s__list_resources", {})

    assert "memo://one" in result.text
    assert "templates" not in result.text


async def test_a_list_without_end_is_cut(with_servers: WithServers) -> None:
    """A server that always has one more page harms only what it lists, and the reader is told."""
    runtime = await with_servers({"s": raw_offers(page=1, endless=True)})

    listed = json.loads((await runtime.call("mcp__s__list_resources", {})).text)

    assert len(listed["resources"]) <= 1000
    assert "left_out" in listed


async def test_all_pages_are_followed(with_servers: WithServers) -> None:
    """The older protocol pages too."""
    runtime = await with_servers({"s": raw_offers(page=1)})

    listed = json.loads((await runtime.call("mcp__s__list_resources", {})).text)

    assert len(listed["resources"]) == 4
    assert "left_out" not in listed


async def test_a_server_that_dies_while_it_is_read_is_started_again(with_servers: WithServers) -> None:
    """The reader is told, and the next one has a server that works."""
    runtime = await with_servers({"s": raw_offers()})

    died = await runtime.call("mcp__s__read_resource", {"uri": "memo://die"})
    after = await runtime.call("mcp__s__read_resource", {"uri": "memo://one"})

    assert "was lost" in died.error_message
    assert text_of(after) == "the first memo"


async def test_a_server_that_does_not_answer_is_not_waited_for(with_servers: WithServers) -> None:
    """The time of a call is that of a reading too, and the server is of use afterwards."""
    runtime = await with_servers({"s": raw_offers({"timeout": 0.5})})

    stalled = await runtime.call("mcp__s__read_resource", {"uri": "memo://stall"})
    after = await runtime.call("mcp__s__list_prompts", {})

    assert "did not answer within 0.5 seconds" in stalled.error_message
    assert not after.is_error


@pytest.mark.services
async def test_many_changes_of_resources_are_looked_at_once(with_servers: WithServers) -> None:
    """Five notices in a row cost one more look at the server, and the tools stay."""
    runtime = await with_servers({"s": raw_offers({"trust": "all"})})
    before = names(runtime)

    await runtime.call("mcp__s__read_resource", {"uri": "memo://change"})

    async def lists() -> int:
        return int(text_of(await runtime.call("mcp__s__echo", {})))

    while await lists() == 1:
        pass
    assert await lists() == 2
    assert names(runtime) == before


async def test_a_restart_keeps_the_definitions(with_servers: WithServers) -> None:
    """A new connection to the same server changes nothing in what the model is offered."""
    runtime = await with_servers({"s": raw_offers()})
    generation, before = runtime.registry.generation, runtime.mcp.servers()[0].pid

    runtime.mcp.reconnect("s")
    await eventually(lambda: runtime.mcp.servers()[0].pid not in (None, before))
    await runtime.call("mcp__s__list_prompts", {})

    assert runtime.registry.generation == generation
