"""Tools that need a service which only some runtimes have."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.docs.tool_examples import ShownTerminals
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime

TOOLS = {"read_terminal", "close_terminal"}


async def test_terminals_of_a_front_end_are_offered_where_it_has_some(make_runtime: Callable[..., Runtime]) -> None:
    """One runtime's front end gives nothing to another runtime, which says why it has no such tool."""
    terminals = ShownTerminals()
    terminals.show("make", "\n".join(map(str, range(1, 301))))
    with_terminals, without = (
        make_runtime("", registry=ToolRegistry(parent=default_registry), services=services)
        for services in ({"front_end_terminals": terminals}, {})
    )

    assert set(with_terminals.definitions(["terminal"]).names) >= TOOLS
    assert TOOLS.isdisjoint(without.definitions(["terminal"]).names)
    entry = without.registry.get_entry("read_terminal")
    assert entry is not None
    assert without.registry.outcome(entry).reason == "this front end has no terminal of its own"
    read = json.loads((await with_terminals.call("read_terminal")).text)
    assert (read["start_line"], read["total_lines"], read["output"].split()[0]) == (101, 300, "101")
    assert "no terminal of its own" in (await without.call("read_terminal")).text
