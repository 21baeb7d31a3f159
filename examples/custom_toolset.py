"""A toolset of your own, offered to a model in the form its provider takes."""

import json
from typing import Literal

from toolcrib import get_tool_definitions, tool
from toolcrib.definitions.dialects import Dialect, render
from toolcrib.toolsets.catalog import create_custom_toolset


@tool(toolset="garden")
def water_plants(bed: str, litres: float = 1.0) -> str:
    """Water one bed.

    Args:
        bed: The name of the bed, for example "roses".
        litres: How much water to give.
    """
    return f"{bed}: {litres} l"


@tool(toolset="garden")
def open_greenhouse(how_far: Literal["a little", "half", "all the way"] = "half") -> str:
    """Open the windows of the greenhouse.

    Args:
        how_far: How far to open them.
    """
    return how_far


create_custom_toolset("evening", "What is done in the garden before dark", tools=["water_plants"])

if __name__ == "__main__":
    for toolset in ("garden", "evening"):
        tools = get_tool_definitions([toolset], quiet_mode=True)
        print(toolset, [entry["function"]["name"] for entry in tools])

    tools = get_tool_definitions(["evening"], quiet_mode=True)
    dialects: tuple[Dialect, ...] = ("anthropic", "openai_strict", "gemini")
    for dialect in dialects:
        print(dialect, json.dumps(render(tools, dialect).tools))
