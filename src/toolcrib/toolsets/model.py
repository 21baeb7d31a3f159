"""What toolset resolution reads (a registry, the config's own toolsets) and what it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec


class RegistryView(Protocol):
    """The part of a tool registry that decides which tools a toolset has."""

    def get_registered_toolset_names(self) -> list[str]: ...

    def get_tool_names_for_toolset(self, name: str, /) -> list[str]:
        """The tools registered into `name`; an empty list says that nobody registered such a toolset."""
        ...

    def get_registered_toolset_aliases(self) -> dict[str, str]: ...

    def get_toolset_alias_target(self, alias: str, /) -> str | None: ...

    def get_all_tool_names(self) -> list[str]: ...


class NoRegistry:
    """A registry view without tools, for what the catalog and the config say on their own."""

    def get_registered_toolset_names(self) -> list[str]:
        return []

    def get_tool_names_for_toolset(self, _name: str, /) -> list[str]:
        return []

    def get_registered_toolset_aliases(self) -> dict[str, str]:
        return {}

    def get_toolset_alias_target(self, _alias: str, /) -> str | None:
        return None

    def get_all_tool_names(self) -> list[str]:
        return []


class CustomToolsetLike(Protocol):
    """A toolset as the operator's config defines or extends it."""

    @property
    def description(self) -> str: ...

    @property
    def tools(self) -> Sequence[str]: ...

    @property
    def includes(self) -> Sequence[str]: ...


class Selection(msgspec.Struct, frozen=True):
    """The tools that a list of enabled and a list of disabled toolsets leave over."""

    tool_names: frozenset[str]
    unknown: list[str]
    """Names that are no toolset: they gave nothing and took nothing away."""


ToolsetSource = Literal["catalog", "custom", "registry", "legacy"]


class ToolsetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that a person may want to know about one toolset."""

    name: str
    description: str
    tools: tuple[str, ...]
    """Its own tools, without those of the toolsets it includes."""
    includes: tuple[str, ...]
    resolved: tuple[str, ...]
    aliases: tuple[str, ...]
    source: ToolsetSource
