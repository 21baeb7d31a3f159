import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.errors import UnknownToolset
from toolcrib.toolsets.resolve import NoRegistry, ToolsetResolver

NAMES = [f"set{number}" for number in range(8)]
GRAPHS = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=3), st.lists(st.sampled_from(NAMES), max_size=4)),
)


def reachable_tools(graph: dict[str, tuple[list[str], list[str]]], start: str) -> set[str]:
    """The answer by definition: grow the set of reached names until it no longer grows."""
    reached = {start} & set(graph)
    while True:
        grown = reached | {name for member in reached for name in graph[member][1] if name in graph}
        if grown == reached:
            return {tool for member in reached for tool in graph[member][0]}
        reached = grown


@given(GRAPHS)
def test_any_graph_of_includes_resolves_to_what_it_reaches(graph):
    """Cycles, diamonds, self-includes and dangling includes neither loop nor lose a tool."""
    catalog = {name: {"description": "", "tools": tools, "includes": inc} for name, (tools, inc) in graph.items()}
    resolver = ToolsetResolver(NoRegistry(), catalog=catalog, core=[])

    for name in NAMES:
        assert resolver.resolve(name) == sorted(reachable_tools(graph, name))


@given(GRAPHS, st.lists(st.sampled_from(NAMES)), st.lists(st.sampled_from(NAMES)))
def test_no_denied_tool_survives_whatever_is_enabled(graph, enabled, disabled):
    """Deny wins: the selection is what the enabled sets reach without what the disabled ones reach."""
    catalog = {name: {"description": "", "tools": tools, "includes": inc} for name, (tools, inc) in graph.items()}
    resolver = ToolsetResolver(NoRegistry(), catalog=catalog, core=["core_tool"])

    selection = resolver.select(enabled, disabled)

    wanted = {tool for name in enabled for tool in reachable_tools(graph, name)}
    denied = {tool for name in disabled for tool in reachable_tools(graph, name)}
    assert selection.tool_names == wanted - denied
    assert selection.unknown == [name for name in [*enabled, *disabled] if name not in graph]


def test_a_very_long_chain_of_includes_resolves():
    """Depth is no limit: a chain of thousands of includes is walked to its end."""
    catalog = {f"s{n}": {"description": "", "tools": [f"t{n}"], "includes": [f"s{n + 1}"]} for n in range(5000)}

    assert len(ToolsetResolver(NoRegistry(), catalog=catalog).resolve("s0")) == 5000


@pytest.mark.parametrize("name", ["all", "*"])
def test_all_means_everything_known_and_registered(make_crib, name):
    """`all` and `*` are the tools of the catalog, of the config and of the registry together."""
    crib = make_crib(registered={"weather": ["forecast"]}, custom={"desk": {"tools": ["stapler"]}})

    resolved = crib.resolver.resolve(name)

    assert {"forecast", "stapler", "terminal", "spotify_search", "send_message"} <= set(resolved)
    assert resolved == sorted(resolved)
    assert crib.resolver.validate(name)


def test_an_unknown_name_gives_nothing(make_crib):
    """Look-ups of an unknown toolset answer empty, None and False, never everything."""
    resolver = make_crib(registered={"weather": ["forecast"]}).resolver

    assert resolver.resolve("wether") == []
    assert resolver.get("wether") is None
    assert resolver.info("wether") is None
    assert resolver.validate("wether") is False
    assert resolver.resolve_many(["wether", "search"]) == ["web_search"]


def test_registered_tools_join_a_catalogued_toolset_live(make_crib):
    """A tool registered into a toolset of the catalog belongs to it from then on, and no longer when it is gone."""
    crib = make_crib()
    before = crib.resolver.resolve("safe")

    crib.registry.toolsets["web"] = ["web_crawl"]

    assert crib.resolver.resolve("safe") == sorted([*before, "web_crawl"])
    assert crib.resolver.get("web")["tools"] == ["web_search", "web_extract", "web_crawl"]
    assert crib.resolver.without_registry().resolve("safe") == before
    crib.registry.toolsets.clear()
    assert crib.resolver.resolve("safe") == before


def test_an_mcp_toolset_answers_to_the_name_of_its_server(make_crib):
    """`github` is an alias of `mcp-github`, in look-ups, selections and denials."""
    crib = make_crib(registered={"mcp-github": ["mcp_github_star"]}, aliases={"github": "mcp-github"})

    assert crib.resolver.resolve("github") == crib.resolver.resolve("mcp-github") == ["mcp_github_star"]
    assert crib.resolver.select(None, ["github"]).tool_names == frozenset()
    assert "mcp-github" in crib.resolver.names()
    assert crib.resolver.info("github").aliases == ("github",)


def test_what_is_registered_goes_before_a_short_name(make_crib):
    """An MCP server or plugin called like a platform is meant by that name; it never opens the whole preset."""
    crib = make_crib(
        registered={"mcp-slack": ["mcp_slack_post"], "email": ["email_send"]}, aliases={"slack": "mcp-slack"}
    )

    assert crib.resolver.select(["slack"], None).tool_names == {"mcp_slack_post"}
    assert crib.resolver.select(["email"], None).tool_names == {"email_send"}
    assert len(crib.resolver.resolve("hermes-slack")) == 52


def test_denying_a_name_shared_by_a_toolset_and_an_mcp_server_denies_both(make_crib):
    """Where a denied name is ambiguous, everything that it may mean is taken away."""
    crib = make_crib(registered={"mcp-web": ["mcp_web_get"], "web": ["web_search"]}, aliases={"web": "mcp-web"})

    assert crib.resolver.select(["web"], None).tool_names == {"web_search", "web_extract"}
    assert crib.resolver.select(None, ["web"]).tool_names == frozenset()


def test_the_preset_of_a_plugin_platform_is_the_core_and_its_tools(make_crib):
    """`hermes-irc` exists as soon as somebody registers the toolset `irc`, and disabling it spares the core."""
    crib = make_crib(registered={"irc": ["irc_kick"]})

    assert crib.resolver.resolve("hermes-irc") == sorted([*crib.core, "irc_kick"])
    assert crib.resolver.select(["cli", "irc"], ["hermes-irc"]).tool_names == set(crib.core)
    assert crib.resolver.resolve("hermes-nowhere") == []


def test_a_preset_name_made_from_a_catalogued_toolset_is_unknown(make_crib):
    """`hermes-web` is no platform, so it must not hand out the core."""
    crib = make_crib(registered={"web": ["web_search"]})

    assert not crib.resolver.validate("hermes-web")
    assert crib.resolver.select(["hermes-web"], None).unknown == ["hermes-web"]


def test_a_custom_toolset_is_defined_by_the_config(make_crib):
    """A new name in the config is a toolset; objects with attributes and mappings both serve."""
    custom = {
        "desk": SimpleNamespace(description="My desk", tools=("stapler",), includes=("search",)),
        "room": {"includes": ["desk"]},
    }
    resolver = make_crib(custom=custom).resolver

    assert resolver.resolve("room") == ["stapler", "web_search"]
    assert resolver.get("desk") == {"description": "My desk", "tools": ["stapler"], "includes": ["search"]}
    assert {"desk", "room"} <= set(resolver.names())


@pytest.mark.parametrize("key", ["cli", "hermes-cli"])
def test_a_custom_toolset_extends_an_existing_one_under_any_of_its_names(make_crib, key):
    """The config adds a tool to a preset under the short and the long name, and to that preset alone."""
    resolver = make_crib(custom={key: {"tools": ["weather"]}}).resolver

    assert "weather" in resolver.resolve("cli")
    assert "weather" in resolver.resolve("hermes-cli")
    assert "weather" not in resolver.resolve("telegram")
    assert resolver.select(["cli"], ["cli"]).tool_names == resolver.select(["telegram"], None).tool_names
    assert resolver.get("cli")["description"] == "Chat in the terminal"


def test_changes_to_the_catalog_count_at_once(make_crib):
    """New entries, appended tools and a longer core list are seen by the next question."""
    crib = make_crib()
    crib.resolver.resolve("all")

    crib.catalog["weather"] = {"description": "Weather", "tools": ["forecast"]}
    crib.catalog["web"]["tools"].append("web_crawl")
    crib.core.append("barometer")

    assert crib.resolver.resolve("weather") == ["forecast"]
    assert "web_crawl" in crib.resolver.resolve("debugging")
    assert "barometer" in crib.resolver.select(["telegram"], None).tool_names
    assert {"forecast", "web_crawl", "barometer"} <= set(crib.resolver.resolve("all"))


@pytest.mark.parametrize("entry", [["forecast"], None, {"tools": None, "includes": None}, {"tools": [3, ["x"]]}])
def test_a_malformed_entry_costs_only_itself(make_crib, entry):
    """What a tool file writes wrongly into the catalog gives no tools and breaks nobody else's."""
    crib = make_crib()

    crib.catalog["broken"] = entry

    assert crib.resolver.resolve("broken") == []
    assert "terminal" in crib.resolver.resolve("all")


def test_answers_are_copies(make_crib):
    """Changing an answer does not change the catalog."""
    crib = make_crib()

    crib.resolver.get("cli")["tools"].append("ghost")
    crib.resolver.get("debugging")["includes"].append("spotify")

    assert "ghost" not in crib.core
    assert "spotify_search" not in crib.resolver.resolve("debugging")


def test_require_names_the_nearest_toolset(make_crib):
    """Config and command line refuse an unknown name, say which one was probably meant, and exit with 2."""
    resolver = make_crib(aliases={"github": "mcp-github"}, registered={"mcp-github": ["star"]}).resolver
    resolver.require(["web", "cli", "web_tools", "all", "*", "github", "hermes-acp"])

    with pytest.raises(UnknownToolset, match=r"unknown toolset 'brwser'; did you mean 'browser'") as caught:
        resolver.require(["web", "brwser"])

    assert caught.value.exit_code == 2
    assert "toolcrib toolsets list" in str(caught.value)


def test_names_of_early_releases_are_no_toolsets_but_can_be_selected_and_included(make_crib):
    """Look-ups answer as for an unknown name; selection, denial and includes know what they stand for."""
    crib = make_crib(custom={"desk": {"includes": ["file_tools"]}})

    assert crib.resolver.resolve("web_tools") == []
    assert crib.resolver.validate("web_tools") is False
    assert crib.resolver.select(["web_tools"], None).tool_names == {"web_search", "web_extract"}
    assert crib.resolver.select(["safe"], ["web_tools"]).tool_names == {"vision_analyze", "image_generate"}
    assert "patch" in crib.resolver.resolve("desk")


def test_info_tells_everything_about_a_toolset(make_crib):
    """`info` shows own tools, includes, resolved tools, other names and who defined it."""
    resolver = make_crib(registered={"irc": ["irc_kick"]}, custom={"desk": {"tools": ["stapler"]}}).resolver

    assert resolver.info("cli").name == "hermes-cli"
    assert resolver.info("cli").aliases == ("cli",)
    assert resolver.info("safe").includes == ("web", "vision", "image_gen")
    assert resolver.info("safe").tools == ()
    assert len(resolver.info("safe").resolved) == 4
    sources = {name: resolver.info(name).source for name in ["safe", "irc", "hermes-irc", "desk", "web_tools", "all"]}
    assert sources == {
        "safe": "catalog",
        "irc": "registry",
        "hermes-irc": "registry",
        "desk": "custom",
        "web_tools": "legacy",
        "all": "catalog",
    }


def test_resolution_survives_threads_that_change_the_catalog(make_crib):
    """Resolving while other threads add, remove and extend toolsets neither raises nor loses a stable tool."""
    crib = make_crib(registered={"weather": ["forecast"]})
    failures: list[BaseException] = []
    start, stop = threading.Barrier(5), threading.Event()

    def change(worker: int) -> None:
        start.wait()
        for turn in range(3000):
            crib.catalog[f"new{worker}-{turn % 50}"] = {"description": "", "tools": [f"t{turn}"], "includes": ["all"]}
            crib.catalog["web"]["tools"].append(f"w{worker}-{turn}")
            crib.catalog.pop(f"new{worker}-{(turn + 25) % 50}", None)
            crib.catalog["web"]["tools"].remove(f"w{worker}-{turn}")

    def resolve() -> None:
        start.wait()
        try:
            while not stop.is_set():
                assert "terminal" in crib.resolver.resolve("all")
                assert "web_search" in crib.resolver.select(["gateway", "safe"], ["spotify"]).tool_names
                assert "web" in crib.resolver.names()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, where it fails the test
            failures.append(error)

    changers = [threading.Thread(target=change, args=(worker,)) for worker in range(2)]
    readers = [threading.Thread(target=resolve) for _ in range(3)]
    for thread in [*changers, *readers]:
        thread.start()
    for thread in changers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()

    assert failures == []
