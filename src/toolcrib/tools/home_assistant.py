"""A smart home: lists its devices, reads their states and calls services, through Home Assistant."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, Unavailable
from toolcrib.registry import registry
from toolcrib.registry.availability import runs_in_place
from toolcrib.tools.checks import check_client, has_variable


async def ha_list_entities(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.home_assistant.list_entities(args, ctx)


async def ha_get_state(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.home_assistant.get_state(args, ctx)


async def ha_list_services(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.home_assistant.list_services(args, ctx)


async def ha_call_service(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.home_assistant.call_service(args, ctx)


def read_effects(_args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    return ctx.services.home_assistant.read_effects()


def call_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """A change in the home, unless it is one that is easily undone."""
    return ctx.services.home_assistant.call_effects(args)


@runs_in_place
def check_home() -> bool | Unavailable:
    """Whether there is a token; the address has a default."""
    if not has_variable("HASS_TOKEN"):
        return Unavailable("HASS_TOKEN is not set", "run `toolcrib setup ha_list_entities`")
    return check_client()


DOMAIN: JsonObject = {"type": "string", "description": "For example light, switch, sensor or climate"}
LIST_SCHEMA: JsonObject = {
    "name": "ha_list_entities",
    "description": "List the devices of the user's home with their states, by domain, area or name.",
    "parameters": {
        "type": "object",
        "properties": {
            "domain": DOMAIN,
            "area": {"type": "string", "description": "A room, for example kitchen"},
            "query": {"type": "string", "description": "A part of the name or id"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100, "description": "How many"},
        },
    },
}
STATE_SCHEMA: JsonObject = {
    "name": "ha_get_state",
    "description": "The state of one device of the user's home, with its attributes.",
    "parameters": {
        "type": "object",
        "properties": {
            "entity_id": {"type": "string", "minLength": 1, "description": "For example light.kitchen"},
        },
        "required": ["entity_id"],
    },
}
SERVICES_SCHEMA: JsonObject = {
    "name": "ha_list_services",
    "description": "List what can be done with the devices of the user's home; with a domain, also the data to pass.",
    "parameters": {"type": "object", "properties": {"domain": DOMAIN}},
}
CALL_SCHEMA: JsonObject = {
    "name": "ha_call_service",
    "description": (
        "Control a device of the user's home, for example light.turn_on. Locks, covers, alarms, switches, scenes and "
        "scripts need the user's approval. Returns the states that changed."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "domain": {**DOMAIN, "minLength": 1},
            "service": {"type": "string", "minLength": 1, "description": "For example turn_on"},
            "entity_id": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                "description": "One device or several",
            },
            "data": {
                "type": "object",
                "additionalProperties": True,
                "description": "What the service takes, for example {'brightness_pct': 40}",
            },
        },
        "required": ["domain", "service"],
    },
}

registry.register(
    name="ha_list_entities",
    toolset="homeassistant",
    schema=LIST_SCHEMA,
    handler=ha_list_entities,
    check_fn=check_home,
    requires_env=["HASS_TOKEN"],
    is_async=True,
    emoji="🏠",
    effects=read_effects,
)
registry.register(
    name="ha_get_state",
    toolset="homeassistant",
    schema=STATE_SCHEMA,
    handler=ha_get_state,
    check_fn=check_home,
    requires_env=["HASS_TOKEN"],
    is_async=True,
    emoji="🏠",
    effects=read_effects,
)
registry.register(
    name="ha_list_services",
    toolset="homeassistant",
    schema=SERVICES_SCHEMA,
    handler=ha_list_services,
    check_fn=check_home,
    requires_env=["HASS_TOKEN"],
    is_async=True,
    emoji="🏠",
    effects=read_effects,
)
registry.register(
    name="ha_call_service",
    toolset="homeassistant",
    schema=CALL_SCHEMA,
    handler=ha_call_service,
    check_fn=check_home,
    requires_env=["HASS_TOKEN"],
    is_async=True,
    emoji="🏠",
    effects=call_effects,
)
