"""Lines that the SDK cannot read, but that are meant as an answer: whoever waits for it must not wait in vain."""

from __future__ import annotations

import json
from typing import Any

from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter
from pydantic import ValidationError

from toolcrib.mcp.listing import MAX_SCHEMA_DEPTH, depth_of

MAX_DIGITS = 1000
TOO_DEEP = {"type": "nested too deeply"}
"""Stands for a schema that cannot be read; no tool can have it."""


def salvaged(line: bytes) -> JSONRPCMessage | None:
    """What can be made of the line: the answer without what is nested too deeply, or an error in its place."""
    try:
        message = json.loads(line, parse_int=_number)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not isinstance(message.get("id"), (int, str)) or "method" in message:
        return None
    result = message.get("result")
    if isinstance(result, dict) and isinstance(result.get("tools"), list):
        result["tools"] = [_without_depth(tool) for tool in result["tools"]]
        try:
            return jsonrpc_message_adapter.validate_python(message, by_name=False)
        except (ValidationError, RecursionError):
            pass
    error = ErrorData(code=PARSE_ERROR, message="the server's answer cannot be read")
    return JSONRPCError(jsonrpc="2.0", id=message["id"], error=error)


def _number(digits: str) -> float:
    # Python does not read integers of thousands of digits, which must not hide whose answer it is.
    return int(digits) if len(digits) < MAX_DIGITS else float(digits)


def _without_depth(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    shallow = {key: value for key, value in tool.items() if depth_of(value) <= MAX_SCHEMA_DEPTH}
    return {**shallow, "inputSchema": TOO_DEEP} if "inputSchema" not in shallow and "inputSchema" in tool else shallow
