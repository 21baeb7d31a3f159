"""Asks the user a question."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry
from toolcrib.registry.results import tool_error, tool_result

MAX_CHOICES = 4


async def clarify(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    """The user's answer, as JSON; if no user can answer, an error that tells the model to decide."""
    question = str(args.get("question") or "").strip()
    if not question:
        return tool_error("the question is empty; say in `question` what you want to know")
    given = args.get("choices") or []
    choices = tuple(dict.fromkeys(text for choice in given if (text := str(choice).strip())))[:MAX_CHOICES]
    try:
        answer = await ctx.ask(question, choices)
    except UsageError:
        return tool_error(
            "no user can answer in this session; decide yourself what is most likely meant, continue, "
            "and say in your answer what you assumed",
            question=question,
        )
    return tool_result(question=question, choices_offered=list(choices), user_response=answer)


registry.register(
    name="clarify",
    toolset="clarify",
    schema={
        "description": (
            "Ask the user a question when the task can be meant in ways that lead to different work, or when a "
            "choice is theirs to make. Not for permission to run something: that is asked for by itself."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "question": {"type": "string", "minLength": 1, "description": "What you want to know, in one sentence"},
                "choices": {
                    "type": "array",
                    "maxItems": MAX_CHOICES,
                    "items": {"type": "string"},
                    "description": "Up to four answers to choose from; the user can always answer freely",
                },
            },
            "required": ["question"],
        },
    },
    origin={"": "derived", "/user_response": "person"},
    handler=clarify,
    is_async=True,
    effects=(Effect("interactive"),),
    emoji="❓",
)
