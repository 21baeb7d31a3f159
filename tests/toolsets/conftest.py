import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolcrib.toolsets.catalog import CORE_TOOLS, TOOLSETS
from toolcrib.toolsets.resolve import ToolsetResolver


class DictRegistry:
    """A registry view over plain dicts: toolset → tools, alias → toolset."""

    def __init__(self, toolsets: dict[str, list[str]] | None = None, aliases: dict[str, str] | None = None) -> None:
        self.toolsets = toolsets or {}
        self.aliases = aliases or {}

    def get_registered_toolset_names(self) -> list[str]:
        return sorted(self.toolsets)

    def get_tool_names_for_toolset(self, name: str, /) -> list[str]:
        return list(self.toolsets.get(name, ()))

    def get_registered_toolset_aliases(self) -> dict[str, str]:
        return dict(self.aliases)

    def get_toolset_alias_target(self, alias: str, /) -> str | None:
        return self.aliases.get(alias)

    def get_all_tool_names(self) -> list[str]:
        return sorted({tool for tools in self.toolsets.values() for tool in tools})


class ResolverSetup:
    """A resolver over its own copy of the catalog, with the registry and the core list that it reads."""

    def __init__(self, toolsets: dict[str, list[str]], aliases: dict[str, str], custom: dict[str, Any]) -> None:
        # One deepcopy for both, so that the presets of the copy hold the copied core list.
        self.catalog, self.core = copy.deepcopy((TOOLSETS, CORE_TOOLS))
        self.registry = DictRegistry(toolsets, aliases)
        self.resolver = ToolsetResolver(self.registry, custom, self.catalog, self.core)


@pytest.fixture
def make_crib() -> Callable[..., ResolverSetup]:
    def make(
        registered: dict[str, list[str]] | None = None,
        aliases: dict[str, str] | None = None,
        custom: dict[str, Any] | None = None,
    ) -> ResolverSetup:
        return ResolverSetup(registered or {}, aliases or {}, custom or {})

    return make


@pytest.fixture
def shared_catalog() -> Iterator[dict[str, Any]]:
    """The real catalog, put back as it was after the test."""
    before, core = TOOLSETS.copy(), CORE_TOOLS.copy()
    yield TOOLSETS
    TOOLSETS.clear()
    TOOLSETS.update(before)
    CORE_TOOLS[:] = core
