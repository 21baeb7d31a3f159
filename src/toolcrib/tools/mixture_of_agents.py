"""Several models: asks them the same question and combines their answers."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, Unavailable
from toolcrib.registry import registry
from toolcrib.registry.availability import runs_in_place
from toolcrib.tools.checks import config_text

NAMES_MODELS = ("moa:", "fallbacks:", "auxiliary:")


async def mixture_of_agents(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.mixture.handle(args, ctx)


def mixture_effects(_args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """The hosts of the models."""
    return ctx.services.mixture.effects()


@runs_in_place
def check_mixture() -> bool | Unavailable:
    """Whether the config may name several models; the tool itself reports one alone."""
    text = config_text()
    if any(word in text for word in NAMES_MODELS):
        return True
    return Unavailable(
        "only one model is configured",
        "run `toolcrib config set moa.reference_models PROVIDER/MODEL,PROVIDER/MODEL`",
    )


SCHEMA: JsonObject = {
    "name": "mixture_of_agents",
    "description": (
        "Ask several models a hard question at once and get one joined answer: for mathematics, difficult code, and "
        "decisions that need a second opinion. They see nothing but `user_prompt`. Takes minutes and costs as much as "
        "all of them together, so use it rarely."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "user_prompt": {
                "type": "string",
                "minLength": 1,
                "description": "The whole question, with everything that is needed to answer it",
            }
        },
        "required": ["user_prompt"],
    },
}

registry.register(
    name="mixture_of_agents",
    toolset="moa",
    schema=SCHEMA,
    handler=mixture_of_agents,
    check_fn=check_mixture,
    is_async=True,
    emoji="🧠",
    max_result_size_chars=100_000,
    effects=mixture_effects,
)
