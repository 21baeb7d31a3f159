"""What `toolcrib tools new` writes: NAME stands for the name of the tool or skill."""

DECORATOR_TOOL = '''\
"""The tool `NAME`. It works as it stands; put your own code in place of the example."""

from toolcrib import tool


@tool(toolset="NAME", emoji="🔧")
def NAME(text: str, times: int = 1) -> dict[str, object]:
    """Repeat a text. (Say here what your tool does and when to use it: the model reads this.)

    Args:
        text: The text to repeat, for example 'hello'.
        times: How often to repeat it, for example 2.
    """
    if not 1 <= times <= 100:
        return {"error": f"times is {times}; use a number from 1 to 100"}
    return {"text": " ".join([text] * times)}
'''

REGISTER_TOOL = '''\
"""The tool `NAME`. It works as it stands; put your own code in place of the example."""

import json

from toolcrib.registry import registry

SCHEMA = {
    "name": "NAME",
    "description": "Repeat a text. (Say here what your tool does and when to use it: the model reads this.)",
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "The text to repeat, for example 'hello'."},
            "times": {"type": "integer", "description": "How often to repeat it.", "default": 1},
        },
        "required": ["text"],
    },
}


def handle(args: dict, **_: object) -> str:
    """The result as JSON text; an error is a result too, never an exception."""
    times = args.get("times", 1)
    if not 1 <= times <= 100:
        return json.dumps({"error": f"times is {times}; use a number from 1 to 100"})
    return json.dumps({"text": " ".join([args["text"]] * times)})


registry.register(
    name="NAME",
    toolset="NAME",
    schema=SCHEMA,
    handler=handle,
    emoji="🔧",
)
'''

SKILL = """\
---
name: NAME
description: Say in one sentence what this skill does and when to use it.
---

# NAME

## When to use it

Say which requests it is for, and which it is not for.

## Steps

1. What to do first, with the command or the tool that does it.
2. What to do next.

## Check

How to see that it worked.
"""
