"""Skills: instructions for particular kinds of work that the model opens when it needs them."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


def skills_list(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return ctx.services.skills.list(args, ctx)


def skill_view(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return ctx.services.skills.view(args, ctx)


def skill_manage(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return ctx.services.skills.manage(args, ctx)


def list_effects(_args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    return ctx.services.skills.list_effects()


def view_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    return ctx.services.skills.view_effects(args, ctx)


def manage_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    return ctx.services.skills.manage_effects(args, ctx)


LIST_SCHEMA: JsonObject = {
    "name": "skills_list",
    "description": "List the skills that skill_view can open, and what each is for.",
    "parameters": {
        "type": "object",
        "properties": {"category": {"type": "string", "description": "Only skills in this category"}},
    },
}
VIEW_SCHEMA: JsonObject = {
    "name": "skill_view",
    "description": "Open a skill before doing the kind of work it is for: its instructions and its files.",
    "parameters": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name of the skill"},
            "file_path": {
                "type": "string",
                "description": "One of its files instead, e.g. references/api.md",
            },
        },
        "required": ["name"],
    },
}
MANAGE_SCHEMA: JsonObject = {
    "name": "skill_manage",
    "description": (
        "Save what you learned for later sessions as a skill of the user: steps that worked, commands, pitfalls. "
        "create (content = a whole SKILL.md), edit (content replaces it), patch (old_string becomes new_string), "
        "write_file and remove_file (further files, as in references/ or scripts/), delete."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "action": {
                "type": "string",
                "enum": ["create", "edit", "patch", "write_file", "remove_file", "delete"],
                "description": "What to do",
            },
            "name": {
                "type": "string",
                "description": "Lower-case letters, digits and hyphens, at most 64; the same as `name` in content",
            },
            "content": {
                "type": "string",
                "description": "For create and edit: ---, name: and description: (what it does and when to use "
                "it), ---, then the instructions in Markdown",
            },
            "old_string": {"type": "string", "description": "For patch: text that occurs exactly once"},
            "new_string": {"type": "string", "description": "For patch: the replacement"},
            "replace_all": {
                "type": "boolean",
                "description": "For patch: replace every occurrence",
                "default": False,
            },
            "category": {"type": "string", "description": "For create: a folder to put it in"},
            "file_path": {
                "type": "string",
                "description": "For write_file and remove_file, and for patch of a file other than SKILL.md",
            },
            "file_content": {"type": "string", "description": "For write_file: the whole text"},
            "absorbed_into": {
                "type": "string",
                "description": "For delete: the skill that now has its content",
            },
        },
        "required": ["action", "name"],
    },
}

registry.register(
    name="skills_list",
    toolset="skills",
    schema=LIST_SCHEMA,
    handler=skills_list,
    emoji="📚",
    effects=list_effects,
)
registry.register(
    name="skill_view",
    toolset="skills",
    schema=VIEW_SCHEMA,
    handler=skill_view,
    emoji="📖",
    effects=view_effects,
)
registry.register(
    name="skill_manage",
    toolset="skills",
    schema=MANAGE_SCHEMA,
    handler=skill_manage,
    emoji="📝",
    effects=manage_effects,
)
