"""Builds the definitions that a session offers: selected, available, consistent with each other, byte-stable.

Definitions mention only tools that the model has, because it would also try to call the others.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from types import NoneType
from typing import Any

import msgspec

from toolcrib.code_execution import EXECUTE_CODE, script_tools
from toolcrib.core.lazy import copy
from toolcrib.core.types import SEARCH_TOOLS, JsonObject, ToolEntry
from toolcrib.definitions.search import DeferMode, ToolDocument, ToolIndex, estimate_tokens, read_document, should_defer
from toolcrib.registry.registry import ToolRegistry
from toolcrib.toolsets.catalog import CORE_TOOLS
from toolcrib.toolsets.resolve import ToolsetResolver

OFTEN_NAMED = ("web_search", "web_extract", "read_file", "write_file", "search_files", "patch", "terminal")
"""The tools that the description of `execute_code` may mention, besides the list at its end."""
BROWSER_NAVIGATE = "browser_navigate"
BROWSER_ALTERNATIVES = ("web_search", "web_extract")
MENTIONS_OTHERS = frozenset({EXECUTE_CODE, BROWSER_NAVIGATE})
"""The tools whose descriptions mention other tools."""


def patched(function: JsonObject, offered: Collection[str]) -> JsonObject:
    """The function with a description that mentions only the tools that are offered with it."""
    name = function["name"]
    description = str(function.get("description") or "")
    if name == EXECUTE_CODE:
        missing = [tool for tool in OFTEN_NAMED if tool not in offered]
        listed = ", ".join(script_tools(offered)) or "none"
        return {
            **function,
            "description": f"{without_tools(description, missing)}\n\nTools the script can call: {listed}.",
        }
    if name == BROWSER_NAVIGATE:
        alternatives = [tool for tool in BROWSER_ALTERNATIVES if tool in offered]
        if not alternatives:
            description = without_sentences_about(description, BROWSER_ALTERNATIVES)
        else:
            description = description.replace(" or ".join(BROWSER_ALTERNATIVES), " or ".join(alternatives))
        return {**function, "description": description}
    return function


def without_sentences_about(text: str, tools: Collection[str]) -> str:
    """The text without the sentences that name one of the tools."""
    named = _any_of(tools)
    sentences = re.split(r"(?<=[.!?])\s+", text)
    return " ".join(sentence for sentence in sentences if not named.search(sentence)).strip()


def without_tools(text: str, tools: Collection[str]) -> str:
    """The text without the tools: drops a line about one of them, and its name from a list of several."""
    if not tools:
        return text
    named = _any_of(tools)
    in_list = re.compile(rf"`?{named.pattern}`?(?:\([^()\n]*\))?,?[ \t]*")
    kept = []
    for line in text.splitlines():
        shorter = in_list.sub("", line) if named.search(line) else line
        if shorter is line or re.search(r"\w{3}", shorter):
            kept.append(shorter.rstrip())
    return "\n".join(kept).strip()


def _any_of(tools: Collection[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, tools))})\b")


logger = logging.getLogger(__name__)

MAX_MEMOS = 16
MAX_SCHEMA_DEPTH = 100
"""Copying, comparing or rendering a schema takes several stack frames per level."""
TOO_DEEP = f"its schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"
_NO_OVERRIDES: JsonObject = {}


class ToolDefinitions(msgspec.Struct, frozen=True):
    """The definitions that one session offers, in OpenAI's format, sorted by name."""

    tools: list[JsonObject]
    deferred: list[str] = msgspec.field(default_factory=list)
    """Tools that the model finds with `tool_search` instead of seeing them by name."""
    unknown: list[str] = msgspec.field(default_factory=list)
    """Toolset names that don't exist."""
    set_aside: dict[str, str] = msgspec.field(default_factory=dict)
    """Tools that cannot be offered, and why."""

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


class _PreparedTool(msgspec.Struct):
    """One entry as a function definition, built once per entry on first use."""

    entry: ToolEntry
    overrides: JsonObject
    function: JsonObject
    """The original definition; callers only get copies."""
    _shared: JsonObject | None = None
    _tokens: int = -1
    _document: ToolDocument | None = None

    def definition(self) -> JsonObject:
        """The definition for a caller. Callers share one deep copy, except for its top level."""
        if self._shared is None or not _is_same(self._shared, self.function):
            # On first use, or after a caller changed the shared copy: other callers must not see that.
            self._shared = _copied(self.function)
        return {"type": "function", "function": self._shared.copy()}

    @property
    def tokens(self) -> int:
        if self._tokens < 0:
            self._tokens = estimate_tokens([{"type": "function", "function": self.function}])
        return self._tokens

    @property
    def document(self) -> ToolDocument:
        if self._document is None:
            self._document = read_document({"function": self.function})
        return self._document


class _Assembly(msgspec.Struct):
    """The tools of one selection that are available, and what follows from them."""

    generation: int
    """The registry's generation when `selected` was read from it."""
    selected: list[ToolEntry]
    entries: list[ToolEntry]
    """The selected tools that were available."""
    overrides: list[JsonObject]
    core: list[str]
    tools: list[_PreparedTool]
    inside: list[_PreparedTool]
    """The core tools, which are always offered by name."""
    outside: list[_PreparedTool]
    """All others, which can be deferred."""
    outside_tokens: int
    set_aside: dict[str, str]
    index: ToolIndex | None = None

    def is_current(self, entries: list[ToolEntry], overrides: list[JsonObject]) -> bool:
        try:
            return self.entries == entries and self.overrides == overrides and self.core == CORE_TOOLS
        except RecursionError:
            return False  # One of two schemas is too deep to compare.


class DeferPolicy(msgspec.Struct, frozen=True):
    """When to defer tools outside the core to the search."""

    mode: DeferMode = "auto"
    threshold_pct: float = 10


class DefinitionBuilder:
    """Builds definitions for one registry.

    Every build checks availability again. Each entry is prepared once, and each selection is assembled again only if
    its entries change, so adding one tool to thousands costs only that tool.
    """

    def __init__(self, registry: ToolRegistry, resolver: ToolsetResolver, defer: DeferPolicy = DeferPolicy()) -> None:  # noqa: B008
        self.registry = registry
        self.resolver = resolver
        self._defer = defer
        self._prepared: dict[str, _PreparedTool] = {}
        self._assemblies: dict[frozenset[str] | None, _Assembly] = {}

    def build(
        self,
        enabled: Sequence[str] | None = None,
        disabled: Sequence[str] | None = None,
        *,
        defer: bool = True,
        context_window_tokens: int | None = None,
    ) -> ToolDefinitions:
        """The definitions for these toolsets; None means all of them, an empty list means none."""
        selection = self.resolver.select(enabled, disabled)
        for name in selection.unknown:
            logger.error("ignored unknown toolset %r; see `toolcrib toolsets list`", name)
        assembly = self._assemble(selection.tool_names)
        deferred = self._is_deferred(assembly, context_window_tokens) if defer else False
        tools = self._with_search(assembly.inside) if deferred else _definitions(assembly.tools)
        hidden = [tool.entry.name for tool in assembly.outside] if deferred else []
        return ToolDefinitions(tools, hidden, list(selection.unknown), dict(assembly.set_aside))

    def available(self, names: Collection[str] | None) -> list[JsonObject]:
        """The definitions of the named tools (None: all) that are available now."""
        return _definitions(self._assemble(names).tools)

    def find(self, names: Collection[str] | None, name: str) -> JsonObject | None:
        """The definition of one of the named tools (None: all); None if it isn't available now."""
        tools = self._assemble(names).tools
        return next((tool.definition() for tool in tools if tool.entry.name == name), None)

    def index(self, names: Collection[str] | None) -> ToolIndex:
        """The search index of the named tools (None: all) that can be deferred: all but the core."""
        assembly = self._assemble(names)
        if assembly.index is None:
            assembly.index = ToolIndex.from_documents(tool.document for tool in assembly.outside)
        return assembly.index

    def _assemble(self, names: Collection[str] | None) -> _Assembly:
        key = None if names is None else frozenset(names)
        generation, known = self.registry.generation, self._assemblies.get(key)
        selected = known.selected if known is not None and known.generation == generation else self._select(key)
        entries = self.registry.available(selected)
        overrides = [self.registry.schema_overrides(entry) for entry in entries if entry.dynamic_schema_overrides]
        if known is not None and known.is_current(entries, overrides):
            known.generation, known.selected = generation, selected
            return known
        # A copy, because an override function may change the object that it returned last time.
        overrides = [{} if is_too_deep(given) else copy.deepcopy(given) for given in overrides]
        assembly = self._assembly(generation, selected, entries, overrides)
        for name, reason in assembly.set_aside.items():
            logger.error("tool %r is not offered: %s", name, reason)
        if len(self._assemblies) >= MAX_MEMOS:
            self._assemblies.pop(next(iter(self._assemblies), key), None)
        self._assemblies[key] = assembly
        return assembly

    def _select(self, names: frozenset[str] | None) -> list[ToolEntry]:
        entries = self.registry.entries()
        if names is None:
            return [entry for entry in entries if entry.name not in SEARCH_TOOLS]
        wanted = names - SEARCH_TOOLS
        return [entry for entry in entries if entry.name in wanted]

    def _assembly(
        self, generation: int, selected: list[ToolEntry], entries: list[ToolEntry], overrides: list[JsonObject]
    ) -> _Assembly:
        waiting = iter(overrides)
        tools: dict[str, _PreparedTool] = {}
        set_aside: dict[str, str] = {}
        for entry in entries:
            tool = self._prepare(entry, next(waiting) if entry.dynamic_schema_overrides else _NO_OVERRIDES)
            if tool is None:
                set_aside[entry.name] = TOO_DEEP
            else:
                tools[entry.name] = tool
        for name in MENTIONS_OTHERS & tools.keys():
            tool = tools[name]
            # The description may mention only the tools that are offered with it, which differ between selections.
            tools[name] = _PreparedTool(tool.entry, tool.overrides, patched(tool.function, tools.keys()))
        core = set(CORE_TOOLS)
        outside = [tool for name, tool in tools.items() if name not in core]
        return _Assembly(
            generation=generation,
            selected=selected,
            entries=entries,
            overrides=overrides,
            core=list(CORE_TOOLS),
            tools=list(tools.values()),
            inside=[tools[name] for name in sorted(core & tools.keys())],
            outside=outside,
            outside_tokens=sum([tool.tokens for tool in outside]),
            set_aside=set_aside,
        )

    def _prepare(self, entry: ToolEntry, overrides: JsonObject) -> _PreparedTool | None:
        """The entry as a definition; None if it is nested too deeply."""
        known = self._prepared.get(entry.name)
        if known is not None and known.entry is entry and known.overrides == overrides:
            return known
        if not entry.is_ours and is_too_deep(entry.schema):
            return None
        tool = _PreparedTool(entry, overrides, {**entry.schema, "name": entry.name, **overrides})
        self._prepared[entry.name] = tool
        return tool

    def _is_deferred(self, assembly: _Assembly, context_window_tokens: int | None) -> bool:
        policy = self._defer
        if not should_defer(assembly.outside_tokens, context_window_tokens, policy.mode, policy.threshold_pct):
            return False
        # Without all three, the model could not reach the hidden tools.
        return all(self.registry.get_entry(name) is not None for name in SEARCH_TOOLS)

    def _with_search(self, offered: list[_PreparedTool]) -> list[JsonObject]:
        tools = _definitions(offered)
        trio = [entry for name in SEARCH_TOOLS if (entry := self.registry.get_entry(name)) is not None]
        tools += [{"type": "function", "function": copy.deepcopy(self.registry.live_schema(entry))} for entry in trio]
        return sorted(tools, key=lambda tool: str(tool["function"]["name"]))


def _definitions(tools: Iterable[_PreparedTool]) -> list[JsonObject]:
    return [tool.definition() for tool in tools]


def _copied(value: Any) -> Any:
    """A deep copy; several times as fast as `deepcopy` for plain JSON values, which nearly all schemas consist of."""
    if isinstance(value, (str, int, float, NoneType)):
        return value
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is list:
        return [_copied(item) for item in value]
    return copy.deepcopy(value)


def _is_same(shared: JsonObject, function: JsonObject) -> bool:
    try:
        return shared == function
    except RecursionError:
        return False  # A caller made its definition too deep to compare.


def is_too_deep(value: Any) -> bool:
    """Whether objects and lists are nested too deeply to copy, compare and send."""
    depth, level = 0, [value]
    while level:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH + 1:
            return True
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return False
