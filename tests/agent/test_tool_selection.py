"""Which tools a very small model is offered."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.agent.tool_selection import select_for_small_model
from toolcrib.core.models import ModelProfile
from toolcrib.providers.embedded.everyday_tools import EVERYDAY_TOOLS

PROFILE = ModelProfile(context_window=4096, max_prompt_tokens=1500, max_tools=8, small=True)
BUILTIN = {*EVERYDAY_TOOLS, "cronjob", "memory", "todo", "process", "execute_code"}


def tool(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "Long text. " * 60}}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    *(tool(name, "A long description of everyday work. " * 20) for name in EVERYDAY_TOOLS),
    tool("cronjob", "Schedule work: run a job, list files of jobs"),
    tool("memory", "Remember notes"),
    tool("todo", "Write a list of things to do"),
    tool("process", "Run and list processes"),
    tool("execute_code", "Run a script"),
    tool("tides", "When the tide is high"),
]


@pytest.mark.parametrize(
    ("question", "others"),
    [
        ("run ls", set[str]()),
        ("How much memory does this machine have?", set()),
        ("Use the cronjob tool to list my jobs", {"cronjob"}),
        ("When is the tide high?", {"tides"}),
    ],
)
def test_everyday_tools_and_what_the_question_is_about(question: str, others: set[str]) -> None:
    """Other built-in tools are offered only by name; tools of one's own also by their words."""
    found = {one["function"]["name"] for one in select_for_small_model(TOOLS, PROFILE, question, (), BUILTIN)}

    assert {*EVERYDAY_TOOLS} | others <= found
    assert found & BUILTIN == {*EVERYDAY_TOOLS} | (others & BUILTIN)
