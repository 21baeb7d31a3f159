"""Names of tools of servers."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from toolcrib.mcp.names import MAX_NAME_CHARS, ToolOrigin, plain_name, registered_names, toolset_name

NAMES = st.text(alphabet=st.sampled_from("ab_-. é/") | st.characters(codec="utf-8"), min_size=1, max_size=80)
PAIRS = st.lists(st.builds(ToolOrigin, NAMES, NAMES), max_size=12)


def test_a_tool_is_named_after_its_server_and_itself() -> None:
    """What is no letter, digit or underscore becomes an underscore."""
    assert plain_name("my-server", "create.issue") == "mcp__my_server__create_issue"
    assert toolset_name("my-server") == "mcp-my-server"


def test_two_that_would_have_one_name_are_both_kept() -> None:
    """The tool whose own name fits keeps it; the other gets a digest."""
    exact, changed = ToolOrigin("s", "a_b"), ToolOrigin("s", "a-b")

    names = registered_names([changed, exact])

    assert names[exact] == "mcp__s__a_b"
    assert re.fullmatch(r"mcp__s__a_b_[0-9a-f]{8}", names[changed])


def test_nobody_gets_a_name_that_two_servers_spell_in_their_own_way() -> None:
    """Where the border between server and tool is not clear, neither gets the plain name, so that none takes over."""
    names = registered_names([ToolOrigin("a", "b__c"), ToolOrigin("a__b", "c")])

    assert "mcp__a__b__c" not in names.values()
    assert len(set(names.values())) == 2


def test_a_long_name_is_cut_and_told_apart() -> None:
    """Two long names that begin alike stay different, within 64 characters."""
    names = registered_names([ToolOrigin("server", "x" * 100 + "1"), ToolOrigin("server", "x" * 100 + "2")])

    assert len(set(names.values())) == 2
    assert {len(name) for name in names.values()} == {MAX_NAME_CHARS}


def test_a_tool_named_like_the_digest_of_another_takes_nothing_from_it() -> None:
    """A server that computes the name of another tool gets it, and that tool gets a longer digest: none is lost."""
    victim = ToolOrigin("s", "a-b")
    forged = registered_names([victim, ToolOrigin("s", "a_b")])[victim].removeprefix("mcp__s__")

    names = registered_names([victim, ToolOrigin("s", "a_b"), ToolOrigin("s", forged)])

    assert len(set(names.values())) == 3


@given(PAIRS)
def test_names_are_unique_short_and_independent_of_order(pairs: list[ToolOrigin]) -> None:
    """Whatever servers call their tools, every one has a name that models accept, and the order changes nothing."""
    names = registered_names(pairs)

    assert set(names) == set(pairs)
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_]{1,64}", name) for name in names.values())
    assert registered_names(reversed(pairs)) == names
