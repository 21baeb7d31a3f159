"""From toolset names to tool names: always live, never "all" by accident, deny wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolcrib.core.errors import UnknownToolset
from toolcrib.toolsets.catalog import CORE_TOOLS, SHORT_NAMES, TOOLSETS, ToolsetEntry
from toolcrib.toolsets.legacy import LEGACY_TOOLSETS
from toolcrib.toolsets.model import CustomToolsetLike, NoRegistry, RegistryView, Selection, ToolsetInfo, ToolsetSource
from toolcrib.toolsets.reading import EVERYTHING, Reading, custom_entry, legacy_entry


class ToolsetResolver:
    """Answers every question about toolsets over one registry, the config's own toolsets and the catalog.

    Nothing is remembered between two questions, so what was registered or written into the catalog counts at once.
    """

    def __init__(
        self,
        registry: RegistryView,
        custom: Mapping[str, CustomToolsetLike | Mapping[str, Any]] | None = None,
        catalog: dict[str, ToolsetEntry] = TOOLSETS,
        core: list[str] = CORE_TOOLS,
        expected: Iterable[str] = (),
    ) -> None:
        self.expected = frozenset(expected)
        """Toolsets that are to come, such as those of servers that are being connected: empty, but not unknown."""
        self._registry = registry
        self._custom = {name: custom_entry(value) for name, value in (custom or {}).items()}
        self._catalog = catalog
        self._core = core

    def without_registry(self) -> ToolsetResolver:
        """The same catalog and config, as if no tool were registered."""
        resolver = ToolsetResolver(NoRegistry(), catalog=self._catalog, core=self._core)
        resolver._custom = self._custom
        return resolver

    def get(self, name: str) -> ToolsetEntry | None:
        """The definition of a toolset, with what registry and config add to it, as a copy; None if unknown."""
        reading = self._read()
        return reading.entry(reading.canonical(name))

    def resolve(self, name: str) -> list[str]:
        """The sorted tools of a toolset and of all that it includes; an unknown name gives an empty list."""
        reading = self._read()
        if not _defines(reading, name):
            return []
        return sorted(reading.tools(name))

    def resolve_many(self, names: Iterable[str]) -> list[str]:
        """The sorted tools of several toolsets together."""
        return sorted({tool for name in _name_list(names) for tool in self.resolve(name)})

    def names(self) -> list[str]:
        """The sorted names of all toolsets, without aliases and short names."""
        return sorted(self._read().names())

    def validate(self, name: str) -> bool:
        """Whether `name` is a toolset; names of early releases are not, though `select` accepts them."""
        return _defines(self._read(), name)

    def require(self, names: Iterable[str]) -> None:
        """Raise UnknownToolset, with the nearest names, unless every name can be selected."""
        reading = self._read()
        for name in _name_list(names):
            if next(reading.walk(name), None) is None and name not in self.expected:
                aliases = self._registry.get_registered_toolset_aliases()
                others = (*SHORT_NAMES, *aliases, *self.expected, *LEGACY_TOOLSETS, *EVERYTHING)
                known = sorted({*reading.names(), *others})
                raise UnknownToolset(name, known, advice="`toolcrib toolsets list` shows all of them")

    def select(self, enabled: Iterable[str] | None, disabled: Iterable[str] | None) -> Selection:
        """The tools of the enabled toolsets (None: every registered tool) without those of the disabled ones."""
        if enabled is None and not disabled:
            return Selection(frozenset(self._registry.get_all_tool_names()), [])
        reading = self._read()
        unknown: list[str] = []
        chosen: set[str] = set(self._registry.get_all_tool_names()) if enabled is None else set()
        for name in _name_list(enabled):
            known = False
            for tools, _ in reading.walk(name):
                known = True
                chosen.update(tools)
            if not known and name not in self.expected:
                unknown.append(name)
        for name in _name_list(disabled):
            denied = reading.denied_tools(name)
            if denied is not None:
                chosen -= denied
            elif name not in self.expected:
                unknown.append(name)
        return Selection(frozenset(chosen), unknown)

    def bundle_non_core_tools(self, name: str) -> set[str]:
        """What a toolset adds to the core tools."""
        return set(self.resolve(name)).difference(self._core)

    def info(self, name: str) -> ToolsetInfo | None:
        """All about one toolset, for `toolsets show`; None if the name is unknown."""
        reading = self._read()
        if name in EVERYTHING:
            tools = tuple(reading.all_tools())
            return ToolsetInfo(
                name=name,
                description="Every tool that is registered or named by any toolset",
                tools=tools,
                includes=(),
                resolved=tools,
                aliases=tuple(sorted(EVERYTHING - {name})),
                source="catalog",
            )
        canonical = reading.canonical(name)
        entry = reading.entry(canonical) or legacy_entry(canonical)
        if entry is None:
            return None
        return ToolsetInfo(
            name=canonical,
            description=entry["description"],
            tools=tuple(entry["tools"]),
            includes=tuple(entry["includes"]),
            resolved=tuple(sorted(reading.tools(canonical))),
            aliases=tuple(reading.aliases(canonical)),
            source=self._source(canonical, reading),
        )

    def _read(self) -> Reading:
        return Reading(self._registry, self._catalog, self._core, self._custom)

    def _source(self, canonical: str, reading: Reading) -> ToolsetSource:
        if canonical in self._catalog:
            return "catalog"
        if reading.entry(canonical) is None:
            return "legacy"
        if self.without_registry().get(canonical) is None or self._registry.get_tool_names_for_toolset(canonical):
            return "registry"
        return "custom"


def _defines(reading: Reading, name: str) -> bool:
    return name in EVERYTHING or reading.entry(reading.canonical(name)) is not None


def _name_list(names: Iterable[str] | None) -> list[str]:
    # A bare string is one name: taken letter by letter, `disabled="terminal"` would disable nothing.
    return [names] if isinstance(names, str) else [str(name) for name in names or ()]
