"""Tools that work on the state of a running agent: its plan, its memory, its past sessions, its subagents.

Each uses a service of the runtime that keeps this state; without an agent, the error names the missing service.
"""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import JsonObject
from toolcrib.registry import registry


async def todo(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    return await ctx.services.todo.handle(args, ctx)


async def memory(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    return await ctx.services.memory.handle(args, ctx)


async def session_search(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    return await ctx.services.session_search.handle(args, ctx)


async def delegate_task(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    return await ctx.services.delegation.handle(args, ctx)


TODO_ITEM: JsonObject = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "A short name that stays the same for this item"},
        "content": {"type": "string", "description": "What is to be done; at most 4000 characters are kept"},
        "status": {
            "type": "string",
            "enum": ["pending", "in_progress", "completed", "cancelled"],
            "description": "How far it is",
        },
    },
    "required": ["id", "content", "status"],
}
MEMORY_OPERATION: JsonObject = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["add", "replace", "remove"], "description": "What to do"},
        "content": {"type": "string", "description": "The new text, for add and replace"},
        "old_text": {"type": "string", "description": "Words that only the entry to change contains"},
    },
    "required": ["action"],
}
SUBTASK: JsonObject = {
    "type": "object",
    "properties": {
        "goal": {"type": "string", "description": "What the helper should achieve"},
        "context": {"type": "string", "description": "All that it needs to know; it sees nothing else"},
        "role": {
            "type": "string",
            "enum": ["leaf", "orchestrator"],
            "description": "orchestrator may delegate further",
        },
    },
    "required": ["goal"],
}

registry.register(
    name="todo",
    toolset="todo",
    schema={
        "description": "Keep the plan of this session. Without arguments: read it. For work of three steps or more.",
        "parameters": {
            "type": "object",
            "properties": {
                "todos": {
                    "type": "array",
                    "items": TODO_ITEM,
                    "description": "The items to write; at most 256 are kept",
                },
                "merge": {
                    "type": "boolean",
                    "default": False,
                    "description": "True: change items by id and keep the others. False: replace the whole plan",
                },
            },
        },
    },
    origin="derived",
    handler=todo,
    is_async=True,
    emoji="📋",
)
registry.register(
    name="memory",
    toolset="memory",
    schema={
        "description": "Remember facts across sessions: your own notes (memory) or what you know of the user (user).",
        "parameters": {
            "type": "object",
            "properties": {
                "target": {"type": "string", "enum": ["memory", "user"], "description": "Which of the two to change"},
                "action": MEMORY_OPERATION["properties"]["action"],
                "content": MEMORY_OPERATION["properties"]["content"],
                "old_text": MEMORY_OPERATION["properties"]["old_text"],
                "operations": {
                    "type": "array",
                    "items": MEMORY_OPERATION,
                    "description": "Several changes at once; all of them happen or none",
                },
            },
            "required": ["target"],
        },
    },
    origin="untrusted",
    handler=memory,
    is_async=True,
    emoji="🧠",
)
registry.register(
    name="session_search",
    toolset="session_search",
    schema={
        "description": "Search earlier conversations, or read on in one of them. Without arguments: list the latest.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Words to look for"},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 10,
                    "default": 3,
                    "description": "How many sessions",
                },
                "sort": {"type": "string", "enum": ["newest", "oldest"], "description": "Which to list first"},
                "session_id": {"type": "string", "description": "Read this session"},
                "around_message_id": {"type": "integer", "description": "Read around this message of it"},
                "window": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 20,
                    "default": 5,
                    "description": "How many messages each side",
                },
                "role_filter": {"type": "string", "description": "Only messages of these roles, separated by commas"},
                "profile": {"type": "string", "description": "Search the sessions of this profile"},
            },
        },
    },
    origin="untrusted",
    handler=session_search,
    is_async=True,
    emoji="🗂️",
)
registry.register(
    name="delegate_task",
    toolset="delegation",
    schema={
        "description": "Give work to helpers that work alone and report back. They cannot see this conversation.",
        "parameters": {
            "type": "object",
            "properties": {
                "goal": SUBTASK["properties"]["goal"],
                "context": SUBTASK["properties"]["context"],
                "role": SUBTASK["properties"]["role"],
                "tasks": {
                    "type": "array",
                    "items": SUBTASK,
                    "description": "Several tasks, done in parallel",
                },
                "background": {"type": "boolean", "description": "Accepted and ignored; the runtime decides"},
            },
        },
    },
    origin="untrusted",
    handler=delegate_task,
    is_async=True,
    emoji="🤝",
)
