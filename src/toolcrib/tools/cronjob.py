"""Scheduled jobs: create, list, update, pause, resume, run and remove them."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry import registry


async def cronjob(args: JsonObject, *, ctx: ToolContext, **_: Any) -> str:
    """Run the action and return its result as JSON."""
    return await ctx.services.cron.handle(args, ctx)


def effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """None for list; see toolcrib/cron/service.py for the other actions."""
    return ctx.services.cron.effects(args, ctx)


CRONJOB_SCHEMA: JsonObject = {
    "name": "cronjob",
    "description": (
        "Schedule work for an agent. Each run is a new session that knows nothing about this one, so put everything it "
        "needs into the prompt. No user can answer during a run. list with a job_id shows its runs and their output."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "action": {
                "type": "string",
                "enum": ["create", "list", "update", "pause", "resume", "run", "remove"],
                "description": "What to do; run starts a job immediately",
            },
            "job_id": {"type": "string", "description": "The job, by id or name; for all actions but create"},
            "prompt": {"type": "string", "description": "What to do in each run"},
            "schedule": {
                "type": "string",
                "description": (
                    "When: a cron expression, `every 2h`, `every monday at 9:00`, once `in 30m`, `2026-12-24 18:00`; "
                    "a time zone may follow, as in `0 9 * * 1-5 Europe/Berlin`"
                ),
            },
            "name": {"type": "string", "description": "A short name"},
            "repeat": {
                "type": "integer",
                "minimum": 0,
                "description": "The maximum number of runs; 0 means no limit",
            },
            "deliver": {
                "type": "string",
                "description": "Where results go in addition to being stored: local (nowhere), origin (this session), "
                "file:PATH, command:COMMAND (piped to it)",
            },
            "skills": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Skills whose text is put before the prompt",
            },
            "model": {"type": "string", "description": "A model other than the default"},
            "script": {
                "type": "string",
                "description": "A shell command that runs first; its output is put before the prompt",
            },
            "no_agent": {"type": "boolean", "description": "No model: the output of the script is the result"},
            "context_from": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Jobs whose latest output is put before the prompt",
            },
            "enabled_toolsets": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The toolsets of its runs, limited to those of this session",
            },
            "workdir": {"type": "string", "description": "The folder to work in; by default this session's"},
            "attach_to_session": {
                "type": "string",
                "description": "`this`: runs continue this session; by default each run gets its own",
            },
        },
        "required": ["action"],
    },
}

registry.register(
    name="cronjob",
    toolset="cronjob",
    schema=CRONJOB_SCHEMA,
    handler=cronjob,
    is_async=True,
    emoji="⏰",
    effects=effects,
)
