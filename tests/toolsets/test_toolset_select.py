import pytest

REGISTERED = {
    "web": ["web_search", "web_extract"],
    "terminal": ["terminal", "process"],
    "discord": ["discord"],
    "weather": ["forecast"],
}
EVERY_TOOL = {tool for tools in REGISTERED.values() for tool in tools}


@pytest.fixture
def crib(make_crib):
    return make_crib(registered={name: list(tools) for name, tools in REGISTERED.items()})


def test_nothing_said_means_every_registered_tool(crib):
    """Without lists, every registered tool is chosen, whatever toolset it is in."""
    selection = crib.resolver.select(None, None)

    assert selection.tool_names == EVERY_TOOL
    assert selection.unknown == []


def test_an_empty_list_means_no_tools(crib):
    """Enabling nothing is not the same as saying nothing."""
    assert crib.resolver.select([], None).tool_names == frozenset()
    assert crib.resolver.select([], ["web"]).tool_names == frozenset()


def test_disabled_is_subtracted_from_enabled(crib):
    """Deny wins over an explicit enable, whatever the order and the route by which a tool came in."""
    assert crib.resolver.select(["web", "terminal"], ["web"]).tool_names.isdisjoint({"web_search", "web_extract"})
    assert "terminal" not in crib.resolver.select(["cli", "terminal", "debugging"], ["terminal"]).tool_names
    assert crib.resolver.select(None, ["weather"]).tool_names == EVERY_TOOL - {"forecast"}
    assert crib.resolver.select(["web"], ["web"]).tool_names == frozenset()


@pytest.mark.parametrize("name", ["all", "*"])
def test_disabling_everything_leaves_nothing(crib, name):
    """`all` can be denied too."""
    assert crib.resolver.select(["cli", "weather"], [name]).tool_names == frozenset()
    assert crib.resolver.select(None, [name]).tool_names == frozenset()


@pytest.mark.parametrize(
    "preset", ["hermes-cli", "cli", "telegram", "hermes-acp", "api-server", "webhook", "coding", "gateway", "feishu"]
)
def test_disabling_a_preset_takes_no_core_tool_away(crib, preset):
    """The core outlives the disabling of any preset built on it."""
    selection = crib.resolver.select(["cli"], [preset])

    assert selection.tool_names == set(crib.core)


@pytest.mark.parametrize("preset", ["hermes-discord", "hermes-gateway", "gateway"])
def test_disabling_a_preset_removes_what_it_adds_to_the_core(crib, preset):
    """What only the preset brings is denied."""
    assert crib.resolver.select(["hermes-discord"], [preset]).tool_names == set(crib.core)
    assert crib.resolver.select(None, [preset]).tool_names == EVERY_TOOL - {"discord"}


def test_disabling_a_toolset_inside_a_preset_removes_its_core_tools(crib):
    """An ordinary toolset is denied in full, also where its tools belong to the core."""
    selection = crib.resolver.select(["cli"], ["file"])

    assert selection.tool_names == set(crib.core) - {"read_file", "write_file", "patch", "search_files"}


def test_a_toolset_that_includes_a_preset_spares_only_what_the_preset_brings(make_crib):
    """A core tool that a custom toolset names itself is denied with it; the included preset's core is not."""
    crib = make_crib(custom={"desk": {"tools": ["terminal", "stapler"], "includes": ["hermes-discord"]}})

    selection = crib.resolver.select(["desk"], ["desk"])

    assert selection.tool_names == set(crib.core) - {"terminal"}


def test_a_toolset_that_repeats_the_core_counts_as_a_preset(crib):
    """A bot's own list made of the core and its tools loses only its tools."""
    crib.catalog["mybot"] = {"description": "My bot", "tools": [*crib.core, "mybot_say"], "includes": []}

    assert crib.resolver.select(["mybot"], ["mybot"]).tool_names == set(crib.core)


def test_a_tool_appended_to_the_core_is_core(crib):
    """After a tool file has joined the core, disabling a preset spares its tool as well."""
    crib.core.append("forecast")

    assert "forecast" in crib.resolver.select(["cli"], ["hermes-telegram"]).tool_names


def test_unknown_names_give_nothing_and_are_reported(crib):
    """A misspelt toolset never widens the choice, in either list."""
    selection = crib.resolver.select(["wether", "weather"], ["trminal"])

    assert selection.tool_names == {"forecast"}
    assert selection.unknown == ["wether", "trminal"]
    assert crib.resolver.select(["wether"], None).tool_names == frozenset()
    assert crib.resolver.select([""], None).unknown == [""]


def test_a_toolset_without_tools_is_known(crib):
    """An empty toolset gives nothing, and is no error."""
    selection = crib.resolver.select(["context_engine"], ["context_engine"])

    assert selection.tool_names == frozenset()
    assert selection.unknown == []


def test_a_bare_string_is_one_name(crib):
    """A string in place of a list is taken as the one name it is, so that a denial is never lost."""
    assert crib.resolver.select("weather", None).tool_names == {"forecast"}
    assert crib.resolver.select(None, "weather").tool_names == EVERY_TOOL - {"forecast"}


def test_bundle_non_core_tools_is_what_a_preset_adds(crib):
    """Of a preset, the tools outside the core; of an unknown name, none."""
    assert crib.resolver.bundle_non_core_tools("hermes-discord") == {"discord", "discord_admin"}
    assert crib.resolver.bundle_non_core_tools("hermes-cli") == set()
    assert crib.resolver.bundle_non_core_tools("nothing") == set()
