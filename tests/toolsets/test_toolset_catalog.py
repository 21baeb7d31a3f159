import csv
from pathlib import Path

import pytest

from toolcrib.toolsets.catalog import CORE_TOOLS, LEGACY_TOOLSETS, SHORT_NAMES, TOOLSETS, create_custom_toolset
from toolcrib.toolsets.resolve import NoRegistry, ToolsetResolver

HERE = Path(__file__).parent


def read_expected() -> dict[str, tuple[int, set[str], list[str]]]:
    with (HERE / "expected_toolsets.tsv").open() as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if not row[0].startswith("#")]
    core = next(row[2].split() for row in rows if row[0] == "CORE")
    expected = {}
    for name, count, *rest in rows:
        listed, includes = [*rest, "", ""][:2]
        tools = {tool for word in listed.split() for tool in (core if word == "CORE" else [word.lstrip("+")])}
        expected[name] = (int(count), tools, includes.split())
    return expected


EXPECTED = read_expected()
CORE = EXPECTED.pop("CORE")
RESOLVER = ToolsetResolver(NoRegistry())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_documented_toolset_has_exactly_its_documented_tools(name):
    """Every toolset and preset resolves to the tools that its name stands for."""
    count, tools, _ = EXPECTED[name]

    resolved = RESOLVER.resolve(name)

    assert resolved == sorted(tools)
    assert len(resolved) == count


@pytest.mark.parametrize("name", [name for name, (_, _, includes) in EXPECTED.items() if includes])
def test_a_composite_includes_its_parts_by_name(name):
    """A composite names its parts, so that a tool added to a part joins the composite."""
    assert TOOLSETS[name]["includes"] == EXPECTED[name][2]


def test_the_core_has_the_52_documented_tools():
    """The core list has each documented tool once."""
    assert len(CORE_TOOLS) == CORE[0] == 52
    assert set(CORE_TOOLS) == CORE[1]


def test_gateway_joins_the_19_platforms():
    """The gateway preset is made of the presets of its platforms."""
    assert len(TOOLSETS["hermes-gateway"]["includes"]) == 19


@pytest.mark.parametrize("name", TOOLSETS)
def test_an_entry_is_complete_and_its_includes_exist(name):
    """Every entry has a one-line description, lists of names, and includes only what exists."""
    entry = TOOLSETS[name]

    assert entry["description"]
    assert "\n" not in entry["description"]
    assert len(set(entry["tools"])) == len(entry["tools"])
    assert set(entry["includes"]) <= set(TOOLSETS)


def test_full_presets_hold_the_core_list_itself():
    """Presets share one core list; every other toolset owns its lists."""
    full = [name for name, (count, _, _) in EXPECTED.items() if name.startswith("hermes-") and count >= 52]
    owned = [id(entry["tools"]) for entry in TOOLSETS.values() if entry["tools"] is not CORE_TOOLS]

    assert all(TOOLSETS[name]["tools"] is CORE_TOOLS for name in full if name != "hermes-gateway")
    assert len(set(owned)) == len(owned)


@pytest.mark.parametrize("short", ["cli", "telegram", "acp", "cron", "slack", "api-server", "gateway", "feishu"])
def test_a_short_name_means_its_preset(short):
    """Our short names resolve to the presets of the long ones."""
    assert RESOLVER.resolve(short) == RESOLVER.resolve(f"hermes-{short}") != []


@pytest.mark.parametrize(("name", "count"), [("discord", 1), ("homeassistant", 4), ("yuanbao", 5)])
def test_a_toolset_keeps_its_name_against_a_short_name(name, count):
    """Where a toolset has the name of a platform, the name means the toolset."""
    assert name not in SHORT_NAMES
    assert len(RESOLVER.resolve(name)) == count


def test_toolsets_for_tools_to_come():
    """Messaging, mixture of agents and training have their toolsets before their tools exist."""
    assert RESOLVER.resolve("messaging") == ["send_message"]
    assert RESOLVER.resolve("moa") == ["mixture_of_agents"]
    assert len(RESOLVER.resolve("rl")) == 10


def test_legacy_names_map_to_tools_that_the_catalog_knows():
    """Each of the eleven names of early releases stands for tools of today."""
    known = {tool for entry in TOOLSETS.values() for tool in entry["tools"]}

    assert len(LEGACY_TOOLSETS) == 11
    assert all(tools and set(tools) <= known for tools in LEGACY_TOOLSETS.values())


def test_create_custom_toolset_takes_effect_at_once(shared_catalog):
    """A toolset created by code is resolved like any other, and owns the lists it was made from."""
    tools = ["weather"]

    create_custom_toolset("weather-desk", "Weather and the web", tools, ["search"])
    tools.append("later")

    assert RESOLVER.resolve("weather-desk") == ["weather", "web_search"]
    assert shared_catalog["weather-desk"]["description"] == "Weather and the web"


def test_appending_to_the_shared_core_reaches_every_preset_built_on_it(shared_catalog):
    """A tool file that appends to the core list is offered by all full presets, and by no other."""
    CORE_TOOLS.append("weather")

    offering = {name for name in shared_catalog if "weather" in RESOLVER.resolve(name)}

    assert offering == {name for name, (count, _, _) in EXPECTED.items() if name.startswith("hermes-") and count >= 52}


def test_catalog_matches_its_snapshot():
    """A change to the catalog shows in the snapshot, where it is reviewed."""
    snapshot = HERE / "catalog.snapshot.txt"

    assert render_catalog() == snapshot.read_text()


def render_catalog() -> str:
    lines = [f"core: {' '.join(CORE_TOOLS)}"]
    for name, entry in TOOLSETS.items():
        tools = "core" if entry["tools"] is CORE_TOOLS else " ".join(entry["tools"]) or "-"
        lines += ["", f"{name}{' (posture)' if entry.get('posture') else ''}: {entry['description']}", f"  {tools}"]
        lines += [f"  includes {' '.join(entry['includes'])}"] if entry["includes"] else []
    lines += ["", "short names: " + " ".join(SHORT_NAMES)]
    return "\n".join(lines) + "\n"
