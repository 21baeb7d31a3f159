"""The resources, prompts and completions that the conformance suite wants to find."""

from __future__ import annotations

import json
import re
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from tests.mcp_conformance.fixtures import IMAGE
from toolcrib.mcp.server.app import Context

TEXTS = {
    "test://static-text": "This is the content of the static text resource.",
    "test://watched-resource": "Watched resource content",
}
BINARY = "test://static-binary"
TEMPLATE = re.compile(r"test://template/([^/]+)/data")
ARGUMENTS = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


async def list_resources(ctx: Context, params: Any) -> types.ListResourcesResult:
    texts = [types.Resource(uri=uri, name=uri.rpartition("/")[2], mime_type="text/plain") for uri in TEXTS]
    binary = types.Resource(uri=BINARY, name="static-binary", mime_type="image/png")
    return types.ListResourcesResult(resources=[*texts, binary])


async def list_templates(ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(uri_template="test://template/{id}/data", name="template")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    uri, mime_type = str(params.uri), "text/plain"
    if uri == BINARY:
        blob = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=IMAGE)
        return types.ReadResourceResult(contents=[blob])
    text = TEXTS.get(uri)
    found = TEMPLATE.fullmatch(uri)
    if found is not None:
        text = json.dumps({"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"})
        mime_type = "application/json"
    if text is None:
        raise MCPError(code=types.INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)])


async def list_prompts(ctx: Context, params: Any) -> types.ListPromptsResult:
    prompts = [
        types.Prompt(
            name=name,
            description=f"Conformance: {name}",
            arguments=[types.PromptArgument(name=argument, required=True) for argument in arguments],
        )
        for name, arguments in ARGUMENTS.items()
    ]
    return types.ListPromptsResult(prompts=prompts)


async def get_prompt(
    ctx: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    if params.name == "test_simple_prompt":
        return _says(types.TextContent(text="This is a simple prompt for testing."))
    if params.name == "test_prompt_with_arguments":
        text = f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
        return _says(types.TextContent(text=text))
    if params.name == "test_prompt_with_embedded_resource":
        contents = types.TextResourceContents(
            uri=given.get("resourceUri", ""), mime_type="text/plain", text="Embedded resource content for testing."
        )
        follows = types.TextContent(text="Please process the embedded resource above.")
        return _says(types.EmbeddedResource(resource=contents), follows)
    if params.name == "test_prompt_with_image":
        image = types.ImageContent(data=IMAGE, mime_type="image/png")
        return _says(image, types.TextContent(text="Please analyze the image above."))
    if params.name == "test_input_required_result_prompt":
        return _asks_first(params)
    raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown prompt: {params.name}")


def _asks_first(params: types.GetPromptRequestParams) -> types.GetPromptResult | types.InputRequiredResult:
    given = (params.input_responses or {}).get("user_context")
    if isinstance(given, types.ElicitResult):
        return _says(types.TextContent(text=f"Use the following context: {(given.content or {}).get('context')}"))
    schema = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
    form = types.ElicitRequestFormParams(message="What context should the prompt use?", requested_schema=schema)
    return types.InputRequiredResult(input_requests={"user_context": types.ElicitRequest(params=form)})


def _says(*blocks: types.ContentBlock) -> types.GetPromptResult:
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=block) for block in blocks])


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    known = [word for word in ("paris", "park", "party") if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=known, total=len(known), has_more=False))


async def agree(ctx: Context, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


REQUESTS: dict[str, tuple[Any, Any]] = {
    "resources/list": (types.PaginatedRequestParams, list_resources),
    "resources/templates/list": (types.PaginatedRequestParams, list_templates),
    "resources/read": (types.ReadResourceRequestParams, read_resource),
    "resources/subscribe": (types.SubscribeRequestParams, agree),
    "resources/unsubscribe": (types.UnsubscribeRequestParams, agree),
    "prompts/list": (types.PaginatedRequestParams, list_prompts),
    "prompts/get": (types.GetPromptRequestParams, get_prompt),
    "completion/complete": (types.CompleteRequestParams, complete),
    "logging/setLevel": (types.SetLevelRequestParams, agree),
}
