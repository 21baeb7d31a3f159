"""The reference server that shows everything which the protocol can do, over each of its transports."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_real.public_servers import LIMIT_SECONDS, Programs, answer_of, eventually
from toolcrib.core.cancel import CancelToken
from toolcrib.core.context import ToolContext
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover, ScriptedProvider, says

pytestmark = pytest.mark.services
OVER_EACH = pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
ANSWERS = {"String": "Ada Lovelace", "String with email format": "ada@example.org", "Integer": "7"}
Connect = Callable[..., Any]


class FormFiller:
    """A person who fills in some fields of a form, leaves the others out, and sends it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...] = ()) -> str:
        self.asked.append(question)
        if "Send" in choices:
            return "Send"
        field = re.search(r"\d+ of \d+: ([^(:\n]+?) \(", question)
        return ANSWERS.get(field[1], ":skip") if field is not None else ":cancel"


class SessionModel:
    """The service that knows the model of a session."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self.provider = provider

    def model_of(self, session_id: str) -> tuple[ScriptedProvider, str]:
        return self.provider, "scripted"


@pytest.fixture
async def reached(public: Programs, folder: Path, transport: str) -> AsyncIterator[dict[str, Any]]:
    """How the server is reached over a transport; where that is HTTP, it runs."""
    if transport == "stdio":
        yield public.settings("everything", folder)
        return
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    kind, path = ("streamableHttp", "mcp") if transport == "http" else ("sse", "sse")
    process = await asyncio.create_subprocess_exec(
        *(public.node, str(public.servers / "mcp-server-everything"), kind),
        env={"PORT": str(port)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while f"port {port}" not in (line := (await process.stderr.readline()).decode()):
                assert line, "the server ended"
        yield {"url": f"http://127.0.0.1:{port}/{path}", "transport": transport, "trust": "all"}
    finally:
        process.kill()
        await process.communicate()


@pytest.fixture
def everything(reached: dict[str, Any], connected: Connect, folder: Path) -> Connect:
    """A runtime that has the server."""

    async def connect(**options: Any) -> Runtime:
        runtime: Runtime = await connected("everything", reached, workspace=folder, **options)
        return runtime

    return connect


async def call(runtime: Runtime, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    return await runtime.call(runtime.mcp.tool_names("everything")[tool], arguments or {}, **options)


@OVER_EACH
async def test_texts_structures_and_pictures(everything: Connect, transport: str) -> None:
    """Results of each kind arrive as what they are."""
    runtime = await everything()

    echoed = answer_of(await call(runtime, "echo", {"message": "héllo\n\u2028"}))
    added = answer_of(await call(runtime, "get-sum", {"a": 2, "b": 40}))
    weather = answer_of(await call(runtime, "get-structured-content", {"location": "Chicago"}))
    picture = await call(runtime, "get-tiny-image")
    links = answer_of(await call(runtime, "get-resource-links", {"count": 2}))
    wrong = answer_of(await call(runtime, "get-sum", {"a": "two", "b": 1}))

    assert echoed["result"].startswith("Echo: héllo")
    assert "42" in added["result"]
    assert set(weather["structuredContent"]) == {"temperature", "conditions", "humidity"}
    [image] = [part for part in picture.content["content"] if part["type"] == "image_url"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert links["result"].count("demo://resource/") == 2
    assert "error" in wrong


@OVER_EACH
async def test_progress_is_heard_and_a_call_can_be_stopped(everything: Connect, transport: str) -> None:
    """A long call tells how far it is; one that is stopped ends at once, and the connection goes on."""
    heard: list[str] = []
    runtime = await everything(on_progress=heard.append)
    operation = "trigger-long-running-operation"

    done = answer_of(await call(runtime, operation, {"duration": 0.6, "steps": 3}))
    cancel = CancelToken()
    before = len(heard)
    stopping = asyncio.ensure_future(call(runtime, operation, {"duration": 600, "steps": 3000}, cancel=cancel))
    await eventually(lambda: len(heard) > before, "the second call is under way")
    cancel.cancel("enough")
    stopped = await stopping
    after = answer_of(await call(runtime, "echo", {"message": "still here"}))

    assert "completed" in done["result"]
    assert [line for line in heard[:before] if "3" in line]
    assert stopped.status == "cancelled"
    assert after["result"] == "Echo: still here"


@OVER_EACH
async def test_the_server_asks_the_model(everything: Connect, transport: str) -> None:
    """A request for sampling is answered by the model of the session, after a person agreed."""
    provider, approver = ScriptedProvider([says("Pears are ripe.")]), ScriptedApprover("once")
    runtime = await everything(services={"llm": SessionModel(provider)}, approver=approver)
    await eventually(lambda: "trigger-sampling-request" in runtime.mcp.tool_names("everything"), "it is offered")

    result = answer_of(await call(runtime, "trigger-sampling-request", {"prompt": "pears?", "maxTokens": 50}))

    assert "Pears are ripe." in result["result"]
    assert len(approver.asked) == 1
    assert "pears?" in provider.requests[0].messages[-1].text


@OVER_EACH
async def test_the_server_asks_the_person(everything: Connect, transport: str) -> None:
    """A form is put to the person field by field; what was left out has its default."""
    person = FormFiller()
    runtime = await everything(services={"asker": person})
    await eventually(lambda: "trigger-elicitation-request" in runtime.mcp.tool_names("everything"), "it is offered")

    said = answer_of(await call(runtime, "trigger-elicitation-request"))["result"]

    content = json.loads(said.partition("Raw result:")[2])["content"]
    assert (content["name"], content["email"], content["integer"]) == ("Ada Lovelace", "ada@example.org", 7)
    assert (content["number"], content["legacyTitledEnum"]) == (3.14, "pet-1")
    assert "homepage" not in content
    assert all("everything" in question for question in (person.asked[0], person.asked[-1]))


@OVER_EACH
async def test_the_server_is_told_the_workspace(everything: Connect, folder: Path, transport: str) -> None:
    """The roots that a server sees are the workspace."""
    runtime = await everything()
    await eventually(lambda: "get-roots-list" in runtime.mcp.tool_names("everything"), "it is offered")

    roots = answer_of(await call(runtime, "get-roots-list"))["result"]

    assert folder.as_uri() in roots


@OVER_EACH
async def test_resources_and_prompts(everything: Connect, transport: str) -> None:
    """What the server offers besides tools is listed and read by tools of ours."""
    runtime = await everything()

    async def use(offer: str, **arguments: Any) -> Any:
        return answer_of(await runtime.call(f"mcp__everything__{offer}", arguments))

    listed = await use("list_resources")
    text = await use("read_resource", uri="demo://resource/dynamic/text/7")
    prompts = await use("list_prompts")
    prompt = await use("get_prompt", name="args-prompt", arguments={"city": "Turin", "state": "Piedmont"})
    missing = await use("read_resource", uri="demo://no/such/thing")

    assert "demo://resource/dynamic/text/{resourceId}" in json.dumps(listed)
    assert "Resource 7" in json.dumps(text)
    assert {"simple-prompt", "args-prompt"} <= {one["name"] for one in prompts["prompts"]}
    assert "Turin" in json.dumps(prompt)
    assert "error" in missing
