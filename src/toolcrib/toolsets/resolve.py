"""Resolves toolset names to tool names: always live, never "all" by accident, deny wins.

A name means, in this order: a toolset of the catalog, a registered toolset, a registered alias (MCP server `x` for
`mcp-x`), one of our short names, a toolset that only the config defines, a legacy name. Registered names come before
short names, so enabling `slack` for an MCP server of that name never opens a whole preset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from toolcrib.core.errors import UnknownToolset
from toolcrib.toolsets.catalog import CORE_TOOLS, LEGACY_TOOLSETS, PRESET_PREFIX, SHORT_NAMES, TOOLSETS, ToolsetEntry


class RegistryView(Protocol):
    """The part of a tool registry that decides which tools a toolset has."""

    def get_registered_toolset_names(self) -> list[str]: ...

    def get_tool_names_for_toolset(self, name: str, /) -> list[str]:
        """The tools registered into `name`; an empty list means that no such toolset is registered."""
        ...

    def get_registered_toolset_aliases(self) -> dict[str, str]: ...

    def get_toolset_alias_target(self, alias: str, /) -> str | None: ...

    def get_all_tool_names(self) -> list[str]: ...


class NoRegistry:
    """A registry view without tools, for using only the catalog and the config."""

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
    """The tools that remain after applying the enabled and disabled toolsets."""

    tool_names: frozenset[str]
    unknown: list[str]
    """Unknown toolset names, which were ignored."""


ToolsetSource = Literal["catalog", "custom", "registry", "legacy"]


class ToolsetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a user may want to know about one toolset."""

    name: str
    description: str
    tools: tuple[str, ...]
    """Its own tools, without those of the toolsets it includes."""
    includes: tuple[str, ...]
    resolved: tuple[str, ...]
    aliases: tuple[str, ...]
    source: ToolsetSource


EVERYTHING = frozenset({"all", "*"})


class ToolsetLookup:
    """One consistent view of the toolsets, for a single query."""

    __slots__ = ("_catalog", "_core", "_core_set", "_extensions", "_registry")

    def __init__(
        self,
        registry: RegistryView,
        catalog: dict[str, ToolsetEntry],
        core: list[str],
        custom: Mapping[str, ToolsetEntry],
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._core = core
        self._core_set = frozenset(core)
        # The config may extend a toolset under any of its names, and which toolset a name means can change between
        # two queries (an MCP server connects), so compute this each time.
        self._extensions: dict[str, list[ToolsetEntry]] = {}
        for name, extension in custom.items():
            self._extensions.setdefault(self.canonical(name), []).append(extension)

    def canonical(self, name: str) -> str:
        """The name under which a toolset is defined; an unknown name is returned unchanged."""
        if name in self._catalog or self._registry.get_tool_names_for_toolset(name):
            return name
        return self._registry.get_toolset_alias_target(name) or SHORT_NAMES.get(name, name)

    def entry(self, name: str) -> ToolsetEntry | None:
        """The toolset with this canonical name and all additions to it, as a copy; None if unknown."""
        base = self._catalog.get(name)
        registered = self._registry.get_tool_names_for_toolset(name)
        extensions = self._extensions.get(name, ())
        if not isinstance(base, dict):
            base = self._uncatalogued(name, registered)
        if base is None and not extensions:
            return None
        entry: ToolsetEntry = dict(base or {})
        tools, includes = _names(entry.get("tools")), _names(entry.get("includes"))
        tools += registered
        for extension in extensions:
            tools += extension["tools"]
            includes += extension["includes"]
            entry["description"] = extension["description"] or entry.get("description", "")
        entry["tools"], entry["includes"] = list(dict.fromkeys(tools)), list(dict.fromkeys(includes))
        entry.setdefault("description", "")
        return entry

    def walk(self, name: str) -> Iterator[tuple[list[str], bool]]:
        """The own tools of every toolset reached from `name`, and whether a preset brought them in.

        Yields nothing for an unknown name; cycles and diamonds are safe.
        """
        seen: set[tuple[str, bool]] = set()
        pending = [(name, False)]
        while pending:
            reached, within_preset = pending.pop()
            if reached in EVERYTHING:
                yield self.all_tools(), within_preset
                continue
            reached = self.canonical(reached)
            entry = self.entry(reached) or legacy_entry(reached)
            if entry is None:
                continue
            within_preset = within_preset or self._is_preset(reached, entry)
            if (reached, within_preset) in seen:
                continue
            seen.add((reached, within_preset))
            yield entry["tools"], within_preset
            pending += [(included, within_preset) for included in entry["includes"]]

    def tools(self, name: str) -> set[str]:
        """The tools of a toolset and of all toolsets it includes."""
        return {tool for tools, _ in self.walk(name) for tool in tools}

    def denied_tools(self, name: str) -> set[str] | None:
        """What disabling `name` removes (for a preset, what it adds to the core); None if the name is unknown."""
        known = False
        denied: set[str] = set()
        # If a toolset and an MCP server share a name, disabling it disables both.
        for meant in (name, self._registry.get_toolset_alias_target(name)):
            for tools, within_preset in self.walk(meant) if meant else ():
                known = True
                denied.update(set(tools) - self._core_set if within_preset else tools)
        return denied if known else None

    def all_tools(self) -> list[str]:
        """Every tool that is registered or named by any toolset."""
        found = set(self._registry.get_all_tool_names())
        for entry in self._catalog.copy().values():
            found.update(_names(entry.get("tools")) if isinstance(entry, dict) else ())
        for extensions in self._extensions.values():
            for extension in extensions:
                found.update(extension["tools"])
        return sorted(found)

    def names(self) -> set[str]:
        """The canonical names of all toolsets."""
        return {*self._catalog.copy(), *self._extensions, *self._registry.get_registered_toolset_names()}

    def aliases(self, canonical: str) -> list[str]:
        """The other names of a toolset."""
        candidates = {*SHORT_NAMES, *self._registry.get_registered_toolset_aliases()}
        return sorted(alias for alias in candidates if alias != canonical and self.canonical(alias) == canonical)

    def _uncatalogued(self, name: str, registered: list[str]) -> ToolsetEntry | None:
        if registered:
            server = name.removeprefix("mcp-")
            what = f"Tools of the MCP server {server!r}" if server != name else f"Tools registered under {name!r}"
            return {"description": what, "tools": [], "includes": []}
        platform = name.removeprefix(PRESET_PREFIX)
        # Only a platform that a plugin adds: `hermes-web` is a typo, not a preset.
        if platform == name or platform in self._catalog or not self._registry.get_tool_names_for_toolset(platform):
            return None
        return {"description": f"Platform {platform!r}", "tools": self._core, "includes": [platform]}

    def _is_preset(self, name: str, entry: ToolsetEntry) -> bool:
        if name.startswith(PRESET_PREFIX) or entry.get("posture"):
            return True
        return len(entry["tools"]) >= len(self._core_set) and self._core_set.issubset(entry["tools"])


def legacy_entry(name: str) -> ToolsetEntry | None:
    """The toolset behind a legacy name."""
    tools = LEGACY_TOOLSETS.get(name)
    return None if tools is None else {"description": "Legacy name", "tools": [*tools], "includes": []}


def custom_entry(value: Any) -> ToolsetEntry:
    """A toolset from the config, as a mapping or as an object with these attributes."""
    if isinstance(value, Mapping):
        description, tools, includes = (value.get(key) for key in ("description", "tools", "includes"))
    else:
        description, tools, includes = value.description, value.tools, value.includes
    return {"description": description or "", "tools": _names(tools), "includes": _names(includes)}


def _names(value: Iterable[Any] | str | None) -> list[str]:
    # Any tool file can write into the catalog; one mistake there must not break all toolsets.
    if isinstance(value, str):
        return [value]
    return [name for name in value or () if isinstance(name, str)]


class ToolsetResolver:
    """Resolves toolsets over one registry, the config's own toolsets and the catalog.

    It caches nothing between queries, so changes to the registry or the catalog take effect at once.
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
        """Toolsets that will exist soon, such as those of MCP servers that are connecting: empty, but not unknown."""
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
        """The definition of a toolset with the additions of registry and config, as a copy; None if unknown."""
        reading = self._read()
        return reading.entry(reading.canonical(name))

    def resolve(self, name: str) -> list[str]:
        """The sorted tools of a toolset and of all toolsets it includes; an empty list for an unknown name."""
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
        """Whether `name` is a toolset; legacy names are not, though `select` accepts them."""
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
        """Details of one toolset, for `toolsets show`; None if the name is unknown."""
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

    def _read(self) -> ToolsetLookup:
        return ToolsetLookup(self._registry, self._catalog, self._core, self._custom)

    def _source(self, canonical: str, reading: ToolsetLookup) -> ToolsetSource:
        if canonical in self._catalog:
            return "catalog"
        if reading.entry(canonical) is None:
            return "legacy"
        if self.without_registry().get(canonical) is None or self._registry.get_tool_names_for_toolset(canonical):
            return "registry"
        return "custom"


def _defines(reading: ToolsetLookup, name: str) -> bool:
    return name in EVERYTHING or reading.entry(reading.canonical(name)) is not None


def _name_list(names: Iterable[str] | None) -> list[str]:
    # A bare string is one name: iterated by letters, `disabled="terminal"` would disable nothing.
    return [names] if isinstance(names, str) else [str(name) for name in names or ()]
