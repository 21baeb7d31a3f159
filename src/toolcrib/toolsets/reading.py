"""What catalog, config and registry say together about a toolset, read afresh for every question.

A name means, in this order: a toolset of the catalog, a registered toolset, a registered alias (MCP server `x` for
`mcp-x`), one of our short names, a toolset that only the config defines, a legacy name. What is registered goes before
short names so that enabling `slack` for an MCP server of that name never opens a whole preset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toolcrib.toolsets.catalog import PRESET_PREFIX, SHORT_NAMES, ToolsetEntry
from toolcrib.toolsets.legacy import LEGACY_TOOLSETS
from toolcrib.toolsets.model import RegistryView

EVERYTHING = frozenset({"all", "*"})


class Reading:
    """One consistent look-up of toolsets; made for one question and dropped after it."""

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
        # two questions (an MCP server connects), so this is worked out each time.
        self._extensions: dict[str, list[ToolsetEntry]] = {}
        for name, extension in custom.items():
            self._extensions.setdefault(self.canonical(name), []).append(extension)

    def canonical(self, name: str) -> str:
        """The name under which a toolset is defined; a name that nothing answers to comes back as it is."""
        if name in self._catalog or self._registry.get_tool_names_for_toolset(name):
            return name
        return self._registry.get_toolset_alias_target(name) or SHORT_NAMES.get(name, name)

    def entry(self, name: str) -> ToolsetEntry | None:
        """The toolset of this canonical name with all that was added to it, as a copy; None if there is none."""
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

        Nothing is yielded for an unknown name; cycles and diamonds end by themselves.
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
        """The tools of a toolset and of all that it includes."""
        return {tool for tools, _ in self.walk(name) for tool in tools}

    def denied_tools(self, name: str) -> set[str] | None:
        """What disabling `name` takes away (of a preset, what it adds to the core); None if the name is unknown."""
        known = False
        denied: set[str] = set()
        # Where a toolset and an MCP server share a name, denying it denies both.
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
        """The other names under which a toolset can be asked for."""
        candidates = {*SHORT_NAMES, *self._registry.get_registered_toolset_aliases()}
        return sorted(alias for alias in candidates if alias != canonical and self.canonical(alias) == canonical)

    def _uncatalogued(self, name: str, registered: list[str]) -> ToolsetEntry | None:
        if registered:
            server = name.removeprefix("mcp-")
            what = f"Tools of the MCP server {server!r}" if server != name else f"Tools registered under {name!r}"
            return {"description": what, "tools": [], "includes": []}
        platform = name.removeprefix(PRESET_PREFIX)
        # Only a platform that someone brought along: `hermes-web` is a slip of the pen, not a preset.
        if platform == name or platform in self._catalog or not self._registry.get_tool_names_for_toolset(platform):
            return None
        return {"description": f"Platform {platform!r}", "tools": self._core, "includes": [platform]}

    def _is_preset(self, name: str, entry: ToolsetEntry) -> bool:
        if name.startswith(PRESET_PREFIX) or entry.get("posture"):
            return True
        return len(entry["tools"]) >= len(self._core_set) and self._core_set.issubset(entry["tools"])


def legacy_entry(name: str) -> ToolsetEntry | None:
    """The toolset behind a name of an early release."""
    tools = LEGACY_TOOLSETS.get(name)
    return None if tools is None else {"description": "Name of an early release", "tools": [*tools], "includes": []}


def custom_entry(value: Any) -> ToolsetEntry:
    """A toolset of the config, given as a mapping or as an object with these attributes."""
    if isinstance(value, Mapping):
        description, tools, includes = (value.get(key) for key in ("description", "tools", "includes"))
    else:
        description, tools, includes = value.description, value.tools, value.includes
    return {"description": description or "", "tools": _names(tools), "includes": _names(includes)}


def _names(value: Iterable[Any] | str | None) -> list[str]:
    # Tool files write into the catalog as they like; one slip there must not cost everybody's tools.
    if isinstance(value, str):
        return [value]
    return [name for name in value or () if isinstance(name, str)]
