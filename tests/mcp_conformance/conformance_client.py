"""The client that the official conformance suite tests: toolcrib's own, in a runtime, as a user has it.

`python conformance_client.py URL` plays the scenario of MCP_CONFORMANCE_SCENARIO against the suite's server there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from toolcrib.cli.commands.mcp_login import login_server
from toolcrib.core.context import ToolContext
from toolcrib.mcp.client.connection import Connection
from toolcrib.mcp.client.default_callbacks import FEATURES
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.login import log_in
from toolcrib.mcp.client.servers import token_store
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime

LIMIT_SECONDS = 25.0
LOGINS = 3
SERVER = "suite"
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The name that the suite knows a client by which did not register."""
SAMPLES = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": [], "null": None}


class Person:
    """Says yes to whatever is asked, and leaves out what may be left out."""

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...] = ()) -> str:
        sys.stderr.write(f"asked: {question} {choices}\n")
        return ":skip" if ":skip" in question else choices[0] if choices else "yes"


Play = Callable[[Runtime], Awaitable[None]]


def context() -> dict[str, Any]:
    """What the suite tells the scenario."""
    told: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    return told


async def call(runtime: Runtime, tool: str, arguments: dict[str, Any] | None = None) -> Any:
    """What a tool of the suite's server answers, through the pipeline."""
    name = runtime.mcp.tool_names(SERVER)[tool]
    result = await runtime.call(name, arguments or {})
    sys.stderr.write(f"{tool}: {result.text}\n")
    return json.loads(result.text)


def schemas(runtime: Runtime) -> dict[str, dict[str, Any]]:
    """The parameters of all tools, as a model is given them."""
    functions = [tool["function"] for tool in runtime.definitions([SERVER]).tools]
    return {function["name"]: function["parameters"] for function in functions}


def required(schema: dict[str, Any]) -> dict[str, Any]:
    """The least that a schema accepts."""
    properties = schema.get("properties", {})
    return {name: SAMPLES.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", [])}


async def call_each(runtime: Runtime) -> None:
    """Call every tool of the server that is offered."""
    parameters = schemas(runtime)
    for tool, name in runtime.mcp.tool_names(SERVER).items():
        if tool not in FEATURES:
            await call(runtime, tool, required(parameters[name]))


async def only_list(runtime: Runtime) -> None:
    """Connecting lists everything."""


async def add(runtime: Runtime) -> None:
    answer = await call(runtime, "add_numbers", {"a": 5, "b": 3})
    assert "8" in str(answer["result"]), answer


async def reconnect(runtime: Runtime) -> None:
    answer = await call(runtime, "test_reconnection")
    assert "error" not in answer, answer


async def defaults(runtime: Runtime) -> None:
    answer = await call(runtime, "test_client_elicitation_defaults")
    assert "error" not in answer, answer


async def rounds(runtime: Runtime) -> None:
    for tool in ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"):
        answer = await call(runtime, tool)
        assert "error" not in answer, answer


async def custom_headers(runtime: Runtime) -> None:
    """The calls that the suite asks for, with values of every kind."""
    names = runtime.mcp.tool_names(SERVER)
    for wanted in context().get("toolCalls", []):
        if wanted["name"] in names:
            await call(runtime, wanted["name"], wanted.get("arguments"))


async def everything(runtime: Runtime) -> None:
    """Every tool, every resource and every prompt."""
    await call_each(runtime)
    for resource in (await call(runtime, "list resources"))["resources"]:
        await call(runtime, "read resource", {"uri": resource["uri"]})
    for prompt in (await call(runtime, "list prompts"))["prompts"]:
        await call(runtime, "get prompt", {"name": prompt["name"]})


async def echo_schema(runtime: Runtime) -> None:
    """Give back the schema of a tool as a model would be given it."""
    name = runtime.mcp.tool_names(SERVER)["json_schema_2020_12_tool"]
    await call(runtime, "json_schema_echo", {"schema": schemas(runtime)[name]})


PLAYS: dict[str, Play] = {
    "initialize": only_list,
    "tools_call": add,
    "sse-retry": reconnect,
    "elicitation-sep1034-client-defaults": defaults,
    "request-metadata": only_list,
    "http-standard-headers": everything,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": call_each,
    "json-schema-ref-no-deref": only_list,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2322-client-request-state": rounds,
}


async def log_in_and_call(runtime: Runtime) -> None:
    """Call a tool; log in as a person does, each time that the error says so, but not for ever."""
    server = login_server(runtime.settings, SERVER)
    store = token_store(server, runtime.settings.home)
    error = await first_error(runtime)
    for _ in range(LOGINS):
        if "toolcrib mcp login" not in error:
            break
        await log_in(server, store, browse)
        error = await first_error(runtime)
    if error:
        raise ServerFailed(error)


async def first_error(runtime: Runtime) -> str:
    """What goes wrong when a tool of the server is called; empty when nothing does."""
    try:
        await runtime.mcp.use(SERVER, connected, LIMIT_SECONDS)
    except ServerFailed as error:
        sys.stderr.write(f"not connected: {error}\n")
        return str(error)
    for tool in runtime.mcp.tool_names(SERVER):
        answer = await call(runtime, tool)
        return str(answer.get("error", ""))
    return ""


async def connected(connection: Connection) -> None:
    """Nothing more is wanted."""


async def browse(address: str) -> str:
    """The address that a browser is sent back to; here everybody may log in."""
    async with httpx2.AsyncClient() as browser:
        response = await browser.get(address, follow_redirects=False)
    sys.stderr.write(f"browsed {address}: {response.status_code} {response.headers.get('location')}\n")
    return str(response.headers["location"])


def settings_for(url: str, scenario: str) -> dict[str, Any]:
    server: dict[str, Any] = {"url": url, "trust": "all", "timeout": LIMIT_SECONDS}
    if scenario.startswith("auth/"):
        told = context()
        known = {name: told[name] for name in ("client_id", "client_secret") if told.get(name)}
        document = {"client_metadata_url": CLIENT_DOCUMENT} if scenario == "auth/basic-cimd" else {}
        server |= {"auth": "oauth", "oauth": {**known, **document}}
    return server


async def play(url: str, scenario: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps({"mcp_servers": {SERVER: settings_for(url, scenario)}})
        with isolated_runtime(Path(folder), config, services={"asker": Person()}) as runtime:
            runtime.load()
            await runtime.mcp.wait_ready(LIMIT_SECONDS)
            if scenario.startswith("auth/"):
                await log_in_and_call(runtime)
                return
            [status] = runtime.mcp.servers()
            sys.stderr.write(f"{status}\n")
            if status.state != "ready":
                raise ServerFailed(f"{status.state}: {status.last_error}")
            await PLAYS[scenario](runtime)


if __name__ == "__main__":
    asyncio.run(play(sys.argv[-1], os.environ["MCP_CONFORMANCE_SCENARIO"]))
