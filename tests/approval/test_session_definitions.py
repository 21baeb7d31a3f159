"""Aliases, functions and variables that a command leaves in a session's shell count in its next commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.media.services import Asking
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime

LATER = {
    "an alias": ("alias g=git", "g push -f"),
    "an alias of an alias": ("alias g=git; alias gg=g", "gg push -f"),
    "a function": ('gp() { git push "$@"; }', "gp -f"),
    "a variable": ("export verb=push", "git $verb -f"),
}
"""A harmless definition, and what is dangerous because of it."""


@pytest.mark.parametrize("kind", LATER)
async def test_a_definition_of_an_earlier_command_is_seen_in_a_later_one(
    make_runtime: Callable[..., Runtime], tmp_path: Path, kind: str
) -> None:
    """The definition passes without a question; the command that uses it is asked about, and denied."""
    workspace, asking = tmp_path / "work", Asking()
    workspace.mkdir()
    asking.choice = "deny"
    runtime = make_runtime("", registry=ToolRegistry(parent=default_registry), workspace=workspace, approver=asking)
    ctx = runtime.context(session_id="s1")
    definition, use = LATER[kind]

    defined = json.loads((await runtime.call("terminal", {"command": definition}, ctx=ctx)).text)
    asked_before = len(asking.requests)
    used = await runtime.call("terminal", {"command": use}, ctx=ctx)

    assert (defined["exit_code"], asked_before) == (0, 0)
    assert used.is_error
    assert [request.command for request in asking.requests] == [use]
