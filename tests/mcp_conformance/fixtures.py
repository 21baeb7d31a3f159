"""What the official conformance suite wants to find on a server, on ours.

Whatever our tools can do goes through a runtime and its pipeline: texts, media, errors, progress, questions, changes.
The rest, which only a server that speaks the protocol itself can do, is plugged in.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError

from toolcrib.mcp.server.app import Context, ToolResponse
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import tool_error

TOOLSET = "conformance"
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
HEADER_SCHEMA = {
    "type": "object",
    "properties": {"region": {"type": "string", "description": "Sent in a header too", "x-mcp-header": "Region"}},
}

# Tools of a runtime


def add_tools(registry: ToolRegistry) -> None:
    """Register the tools of the suite that are ordinary tools."""
    numbers = itertools.count(1)

    def add(name: str, handler: Callable[..., Any], parameters: dict[str, Any] = NOTHING, **options: Any) -> None:
        schema = {"description": f"Conformance: {name}", "parameters": parameters}
        registry.register(name=name, toolset=TOOLSET, schema=schema, handler=handler, **options)

    def change(args: Any, **_: Any) -> str:
        # It stays: a change that is gone before anybody looks is none.
        add(f"test_dynamic_tool_{next(numbers)}", lambda args, **_: "dynamic")
        return "the tools have changed"

    add("test_simple_text", lambda args, **_: "This is a simple text response for testing.")
    add("test_image_content", lambda args, **_: _media({"type": "image", "data": IMAGE, "mimeType": "image/png"}))
    add("test_audio_content", lambda args, **_: _media({"type": "audio", "data": SOUND, "mimeType": "audio/wav"}))
    add("test_error_handling", lambda args, **_: tool_error("This tool intentionally returns an error for testing"))
    add("test_tool_with_progress", _with_progress, is_async=True)
    add("test_streaming_elicitation", _asks, is_async=True)
    add("test_x_mcp_header", lambda args, **_: f"region={args.get('region', 'none')}", HEADER_SCHEMA)
    add("json_schema_2020_12_tool", lambda args, **_: "valid", SCHEMA_2020_12)
    add("test_trigger_tool_change", change)


def _media(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"_multimodal": True, "content": list(parts)}


async def _with_progress(args: Any, *, ctx: Any, **_: Any) -> str:
    for percent in (0, 50, 100):
        ctx.progress(f"Completed step {percent} of 100")
        await asyncio.sleep(0.05)
    return "done"


async def _asks(args: Any, *, ctx: Any, **_: Any) -> str:
    return f"the answer is {await ctx.ask('The probe asks for a word', ())}"


# Tools that speak the protocol themselves


def _text(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)])


def _resource(uri: str, mime_type: str, text: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def _form(message: str, **properties: Any) -> types.ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(prompt: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))


def _answered(params: Any, key: str, name: str) -> Any:
    """What was filled in for one question of a request; None when it was not answered."""
    given = (params.input_responses or {}).get(key)
    return (given.content or {}).get(name) if isinstance(given, types.ElicitResult) else None


NAME = {"type": "string"}


async def _embedded(ctx: Context, params: Any) -> ToolResponse:
    block = _resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return types.CallToolResult(content=[block])


async def _mixed(ctx: Context, params: Any) -> ToolResponse:
    text = types.TextContent(text="Multiple content types test:")
    image = types.ImageContent(data=IMAGE, mime_type="image/png")
    data = _resource("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}')
    return types.CallToolResult(content=[text, image, data])


async def _logs(ctx: Context, params: Any) -> ToolResponse:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        # The session knows whether the client of this request wants to hear it.
        await ctx.session.send_log_message("info", message, related_request_id=ctx.request_id)
        await asyncio.sleep(0.05)
    return _text("Tool with logging executed successfully")


async def _sampling(ctx: Context, params: Any) -> ToolResponse:
    request = _sample(str((params.arguments or {}).get("prompt", "")))
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    try:
        given = await ctx.session.send_request(request, types.CreateMessageResult, metadata=metadata)
    except (MCPError, ValidationError) as error:
        return _text(f"Sampling not supported or error: {error}")
    return _text(f"LLM response: {given.content.text if given.content.type == 'text' else 'No response'}")


def _elicits(
    says: str, message: str, properties: Mapping[str, Any]
) -> Callable[[Context, Any], Awaitable[ToolResponse]]:
    async def handler(ctx: Context, params: Any) -> ToolResponse:
        asked = (params.arguments or {}).get("message", message)
        schema = {"type": "object", "properties": dict(properties), "required": []}
        try:
            given = await ctx.session.elicit_form(asked, schema, related_request_id=ctx.request_id)
        except (MCPError, ValidationError) as error:
            return _text(f"Elicitation not supported or error: {error}")
        return _text(f"{says}: action={given.action}, content={json.dumps(given.content or {})}")

    return handler


DEFAULTS = {
    "name": {"type": "string", "description": "User name", "default": "John Doe"},
    "age": {"type": "integer", "description": "User age", "default": 30},
    "score": {"type": "number", "description": "User score", "default": 95.5},
    "status": {
        "type": "string",
        "description": "User status",
        "enum": ["active", "inactive", "pending"],
        "default": "active",
    },
    "verified": {"type": "boolean", "description": "Verification status", "default": True},
}
ENUMS = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {
        "type": "string",
        "oneOf": [{"const": f"value{n}", "title": f"{name} Option"} for n, name in enumerate(("First", "Second"), 1)],
    },
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
    "titledMulti": {
        "type": "array",
        "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
    },
}


async def _needs_sampling(ctx: Context, params: Any) -> ToolResponse:
    declared = ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This tool requires the client 'sampling' capability",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return _text("the client can sample")


async def _round_elicitation(ctx: Context, params: Any) -> ToolResponse:
    name = _answered(params, "user_name", "name")
    if name is not None:
        return _text(f"Hello, {name}!")
    return types.InputRequiredResult(input_requests={"user_name": _form("What is your name?", name=NAME)})


async def _round_sampling(ctx: Context, params: Any) -> ToolResponse:
    given = (params.input_responses or {}).get("capital_question")
    if isinstance(given, types.CreateMessageResult) and given.content.type == "text":
        return _text(f"Model said: {given.content.text}")
    return types.InputRequiredResult(input_requests={"capital_question": _sample("What is the capital of France?")})


async def _round_roots(ctx: Context, params: Any) -> ToolResponse:
    given = (params.input_responses or {}).get("client_roots")
    if isinstance(given, types.ListRootsResult):
        return _text(f"Client exposed {len(given.roots)} root(s).")
    return types.InputRequiredResult(input_requests={"client_roots": types.ListRootsRequest()})


async def _round_state(ctx: Context, params: Any) -> ToolResponse:
    if _answered(params, "confirm", "ok") is not None and params.request_state == "request-state-nonce":
        return _text("state-ok: confirmation received")
    confirm = _form("Please confirm", ok={"type": "boolean"})
    return types.InputRequiredResult(input_requests={"confirm": confirm}, request_state="request-state-nonce")


async def _round_many(ctx: Context, params: Any) -> ToolResponse:
    if {"user_name", "greeting", "client_roots"} <= set(params.input_responses or {}):
        return _text("All inputs received.")
    requests: dict[str, Any] = {
        "user_name": _form("What is your name?", name=NAME),
        "greeting": _sample("Generate a greeting"),
        "client_roots": types.ListRootsRequest(),
    }
    return types.InputRequiredResult(input_requests=requests, request_state="multiple-inputs")


async def _rounds(ctx: Context, params: Any) -> ToolResponse:
    state = json.loads(params.request_state) if params.request_state else {"round": 0}
    name, color = _answered(params, "step1", "name"), _answered(params, "step2", "color")
    if state["round"] == 2 and color is not None:
        return _text(f"{state.get('name')} likes {color}.")
    if state["round"] == 1 and name is not None:
        second = _form("Step 2: What is your favorite color?", color={"type": "string"})
        told = json.dumps({"round": 2, "name": name})
        return types.InputRequiredResult(input_requests={"step2": second}, request_state=told)
    first = _form("Step 1: What is your name?", name=NAME)
    return types.InputRequiredResult(input_requests={"step1": first}, request_state=json.dumps({"round": 1}))


async def _round_tampered(ctx: Context, params: Any) -> ToolResponse:
    if params.request_state is not None:
        return _text(f"state-ok: {params.request_state}")
    confirm = _form("Please confirm", ok={"type": "boolean"})
    return types.InputRequiredResult(input_requests={"confirm": confirm}, request_state="round-1")


async def _round_capabilities(ctx: Context, params: Any) -> ToolResponse:
    declared = ctx.session.client_capabilities
    requests: dict[str, Any] = {}
    if declared is None or declared.sampling is not None:
        requests["sample"] = _sample("Say hello")
    if declared is None or declared.elicitation is not None:
        requests["ask"] = _form("What is your name?", name=NAME)
    return types.InputRequiredResult(input_requests=requests, request_state="capability-gated")


async def _reconnection(ctx: Context, params: Any) -> ToolResponse:
    await ctx.session.send_log_message("info", "Before disconnect", related_request_id=ctx.request_id)
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    await ctx.session.send_log_message("info", "After reconnect", related_request_id=ctx.request_id)
    return _text("Reconnection test completed")


PROMPT = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}
MESSAGE = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
NATIVE: dict[str, tuple[Callable[[Context, Any], Awaitable[ToolResponse]], dict[str, Any]]] = {
    "test_embedded_resource": (_embedded, NOTHING),
    "test_multiple_content_types": (_mixed, NOTHING),
    "test_tool_with_logging": (_logs, NOTHING),
    "test_logging_tool": (_logs, NOTHING),
    "test_sampling": (_sampling, PROMPT),
    "test_elicitation": (_elicits("User response", "", {"response": {"type": "string"}}), MESSAGE),
    "test_elicitation_sep1034_defaults": (_elicits("Elicitation result", "Please fill this in", DEFAULTS), NOTHING),
    "test_elicitation_sep1330_enums": (_elicits("Elicitation completed", "Please choose", ENUMS), NOTHING),
    "test_missing_capability": (_needs_sampling, NOTHING),
    "test_input_required_result_elicitation": (_round_elicitation, NOTHING),
    "test_input_required_result_sampling": (_round_sampling, NOTHING),
    "test_input_required_result_list_roots": (_round_roots, NOTHING),
    "test_input_required_result_request_state": (_round_state, NOTHING),
    "test_input_required_result_multiple_inputs": (_round_many, NOTHING),
    "test_input_required_result_multi_round": (_rounds, NOTHING),
    "test_input_required_result_tampered_state": (_round_tampered, NOTHING),
    "test_input_required_result_capabilities": (_round_capabilities, NOTHING),
    "test_reconnection": (_reconnection, NOTHING),
}
