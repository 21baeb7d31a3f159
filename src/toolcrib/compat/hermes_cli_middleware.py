"""`hermes_cli.middleware`: the kinds of middleware, and how to run them."""

from __future__ import annotations

from toolcrib.compat.hermes_cli_plugins import VALID_MIDDLEWARE, has_middleware, invoke_middleware
from toolcrib.hooks.specs import MIDDLEWARE_SCHEMA_VERSION

__all__ = [
    "LLM_EXECUTION",
    "LLM_REQUEST",
    "MIDDLEWARE_SCHEMA_VERSION",
    "TOOL_EXECUTION",
    "TOOL_REQUEST",
    "VALID_MIDDLEWARE",
    "has_middleware",
    "invoke_middleware",
]

TOOL_REQUEST, TOOL_EXECUTION = "tool_request", "tool_execution"
LLM_REQUEST, LLM_EXECUTION = "llm_request", "llm_execution"
