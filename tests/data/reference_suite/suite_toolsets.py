"""How a caller of the reference system uses `toolsets` and `toolset_distributions`."""

import random

import pytest
import toolset_distributions
import toolsets
from model_tools import get_tool_definitions
from tools.registry import ToolRegistry, registry
from toolsets import (
    _HERMES_CORE_TOOLS,
    TOOLSETS,
    bundle_non_core_tools,
    create_custom_toolset,
    get_all_toolsets,
    get_toolset,
    get_toolset_info,
    get_toolset_names,
    resolve_multiple_toolsets,
    resolve_toolset,
    validate_toolset,
)


@pytest.fixture
def catalog(monkeypatch):
    for name in ("_suite_a", "_suite_b"):
        monkeypatch.setitem(TOOLSETS, name, {"description": name, "tools": [], "includes": []})
    return TOOLSETS


@pytest.fixture
def other_registry(monkeypatch):
    other = ToolRegistry()
    other.register("ping", "mcp-server", {"description": "d"}, lambda args, **kw: "{}")
    other.register_toolset_alias("server", "mcp-server")
    other.register("extra", "terminal", {"description": "d"}, lambda args, **kw: "{}")
    other.register("chirp", "birds", {"description": "d"}, lambda args, **kw: "{}")
    monkeypatch.setattr("tools.registry.registry", other)
    return other


def test_unknown_names_answer_with_nothing():
    assert get_toolset("no such") is None
    assert resolve_toolset("no such") == []
    assert validate_toolset("no such") is False
    assert get_toolset_info("no such") is None
    assert resolve_multiple_toolsets([]) == []
    assert bundle_non_core_tools("no such") == set()


def test_definition_and_resolution():
    web = get_toolset("web")
    assert {"description", "tools", "includes"} <= web.keys()
    assert resolve_toolset("web") == ["web_extract", "web_search"]
    assert resolve_toolset("debugging") == sorted(resolve_toolset("debugging"))
    assert set(resolve_toolset("web")) < set(resolve_toolset("debugging"))
    assert resolve_multiple_toolsets(["web", "file", "web"]) == sorted(
        {*resolve_toolset("web"), *resolve_toolset("file")}
    )


def test_a_changed_copy_changes_nothing():
    get_toolset("web")["tools"].append("rm_rf")
    get_all_toolsets()["web"]["tools"].append("rm_rf")
    assert "rm_rf" not in resolve_toolset("web")


@pytest.mark.parametrize("name", ["all", "*"])
def test_everything(name):
    assert validate_toolset(name)
    assert set(_HERMES_CORE_TOOLS) <= set(resolve_toolset(name))


def test_cycles_and_diamonds_end(catalog):
    catalog["_suite_a"] = {"description": "a", "tools": ["one"], "includes": ["_suite_b", "web"]}
    catalog["_suite_b"] = {"description": "b", "tools": ["two"], "includes": ["_suite_a", "web"]}
    assert resolve_toolset("_suite_a") == ["one", "two", "web_extract", "web_search"]


def test_visited_is_skipped():
    visited = set()
    assert resolve_toolset("web", visited) != []
    assert resolve_toolset("web", visited) == []


def test_custom_toolset_counts_at_once(catalog):
    create_custom_toolset("_suite_a", "mine", tools=["todo"], includes=["web"])
    assert TOOLSETS["_suite_a"] == {"description": "mine", "tools": ["todo"], "includes": ["web"]}
    assert resolve_toolset("_suite_a") == ["todo", "web_extract", "web_search"]
    offered = {tool["function"]["name"] for tool in get_tool_definitions(["_suite_a"], quiet_mode=True)}
    assert {"todo"} <= offered <= {"todo", "web_extract", "web_search"}


def test_info():
    info = get_toolset_info("debugging")
    assert info["name"] == "debugging"
    assert info["includes"] == ["web", "file"]
    assert info["is_composite"] is True
    assert info["tool_count"] == len(info["resolved_tools"])
    assert info["resolved_tools"] == resolve_toolset("debugging")


def test_names():
    names = get_toolset_names()
    assert names == sorted(names)
    assert set(TOOLSETS) <= set(names)
    assert set(get_all_toolsets()) == set(names)


def test_core_preset():
    assert len(_HERMES_CORE_TOOLS) == 52
    assert resolve_toolset("hermes-cli", include_registry=False) == sorted(_HERMES_CORE_TOOLS)
    assert bundle_non_core_tools("hermes-discord") == {"discord", "discord_admin"}


def test_replaced_registry(other_registry):
    assert validate_toolset("mcp-server")
    assert validate_toolset("server")
    assert resolve_toolset("server") == ["ping"]
    assert get_toolset("birds")["tools"] == ["chirp"]
    assert "extra" in resolve_toolset("terminal")
    assert "extra" not in resolve_toolset("terminal", include_registry=False)
    assert get_toolset("birds", include_registry=False) is None
    assert resolve_toolset("hermes-birds") == sorted([*_HERMES_CORE_TOOLS, "chirp"])
    assert "server" in get_toolset_names()


def test_appending_to_the_core_list_counts():
    registry.register("suite_core", "suite_core", {"description": "d"}, lambda args, **kw: "{}")
    _HERMES_CORE_TOOLS.append("suite_core")
    try:
        offered = [tool["function"]["name"] for tool in get_tool_definitions(["hermes-cli"], quiet_mode=True)]
        assert "suite_core" in offered
    finally:
        _HERMES_CORE_TOOLS.remove("suite_core")
        registry.deregister("suite_core")


def test_distributions(capsys):
    assert {"default", "research", "terminal_tasks", "mixed_tasks"} <= set(toolset_distributions.DISTRIBUTIONS)
    assert toolset_distributions.get_distribution("no such") is None
    assert toolset_distributions.validate_distribution("default")
    assert not toolset_distributions.validate_distribution("no such")
    assert toolset_distributions.list_distributions() == toolset_distributions.DISTRIBUTIONS
    random.seed(1)
    for name in toolset_distributions.DISTRIBUTIONS:
        chosen = toolset_distributions.sample_toolsets_from_distribution(name)
        assert chosen
        assert all(toolsets.validate_toolset(toolset) for toolset in chosen)
    toolset_distributions.print_distribution_info("default")
    assert "default" in capsys.readouterr().out
