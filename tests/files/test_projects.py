"""`project_create`, `project_list` and `project_switch`, with a real shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.media.services import Asking
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime


@pytest.fixture
def asking() -> Asking:
    return Asking()


@pytest.fixture
def runtime(make_runtime: Callable[..., Runtime], tmp_path: Path, asking: Asking) -> Runtime:
    workspace = tmp_path / "work"
    workspace.mkdir()
    return make_runtime("", registry=ToolRegistry(parent=default_registry), workspace=workspace, approver=asking)


async def call(runtime: Runtime, tool: str, session: str = "s1", **arguments: Any) -> dict[str, Any]:
    result = await runtime.call(tool, arguments, ctx=runtime.context(session_id=session))
    return dict(json.loads(result.text))


async def test_a_session_works_in_the_project_that_it_switched_to(runtime: Runtime, tmp_path: Path) -> None:
    """Creating makes the folder and stays where one is; switching moves the commands of this session only."""
    folder = str(tmp_path / "work" / "blue whale")

    created = await call(runtime, "project_create", name="blue whale")
    before = await call(runtime, "terminal", command="pwd")
    switched = await call(runtime, "project_switch", project="blue whale")
    after = await call(runtime, "terminal", command="pwd")
    listed = await call(runtime, "project_list")
    elsewhere = await call(runtime, "project_list", "s2")

    assert created["project"] == {"name": "blue whale", "path": folder, "current": False}
    assert (before["output"].strip(), after["output"].strip()) == (str(tmp_path / "work"), folder)
    assert switched["project"]["current"] is True
    assert [one["current"] for one in listed["projects"] + elsewhere["projects"]] == [True, False]


async def test_a_folder_outside_the_workspace_is_asked_about(runtime: Runtime, tmp_path: Path, asking: Asking) -> None:
    """The gate judges the command that makes the folder; a denied one creates no project."""
    asking.choice = "deny"

    denied = await call(runtime, "project_create", name="etc", path="/etc/my-project")

    assert denied["success"] is False
    assert len(asking.requests) == 1
    assert (await call(runtime, "project_list"))["projects"] == []


async def test_what_cannot_be_done_is_one_sentence(runtime: Runtime, tmp_path: Path) -> None:
    await call(runtime, "project_create", name="atlas")
    again = await call(runtime, "project_create", name="atlas")
    unknown = await call(runtime, "project_switch", project="atlsa")
    (tmp_path / "work" / "atlas").rmdir()
    gone = await call(runtime, "project_switch", project="atlas")

    assert "there is already a project 'atlas'" in again["error"]
    assert "did you mean 'atlas'?" in unknown["error"]
    assert gone["success"] is False
    assert "atlas" in gone["error"]
    assert "visible characters" in (await call(runtime, "project_create", name="a\nb"))["error"]
