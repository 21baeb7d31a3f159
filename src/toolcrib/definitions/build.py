"""Builds the definitions that a session is offered: selected, available, fitted to each other, byte-stable."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from toolcrib.core.types import SEARCH_TOOLS, JsonObject, ToolEntry
from toolcrib.definitions.patches import patched
from toolcrib.definitions.search import DeferMode, estimate_tokens, should_defer
from toolcrib.registry.registry import ToolRegistry
from toolcrib.toolsets.catalog import CORE_TOOLS
from toolcrib.toolsets.resolve import ToolsetResolver

logger = logging.getLogger(__name__)

MAX_MEMOS = 16
MAX_SCHEMA_DEPTH = 100
"""Every level takes several frames of the stack wherever a schema is copied, compared or rendered."""
TOO_DEEP = f"its schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"


class Definitions(msgspec.Struct, frozen=True):
    """What one session is offered, in OpenAI's form, sorted by name."""

    tools: list[JsonObject]
    deferred: list[str] = msgspec.field(default_factory=list)
    """Tools that are not offered by name, but found by `tool_search`."""
    unknown: list[str] = msgspec.field(default_factory=list)
    """Toolset names that nothing answers to."""
    set_aside: dict[str, str] = msgspec.field(default_factory=dict)
    """Tools that cannot be offered, and why."""

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


class _Memo(msgspec.Struct, frozen=True):
    entries: list[ToolEntry]
    overrides: list[JsonObject]
    core: list[str]
    pristine: list[JsonObject]
    """What the functions should be; never handed out."""
    functions: list[JsonObject]
    """A deep copy for callers, who share all but its topmost level."""
    outside: list[str]
    """The tools that are not part of the core, and so may be deferred."""
    outside_tokens: int
    set_aside: dict[str, str]


class DeferPolicy(msgspec.Struct, frozen=True):
    """When tools outside the core are put behind the search."""

    mode: DeferMode = "auto"
    threshold_pct: float = 10


class DefinitionBuilder:
    """Builds definitions for one registry. Availability is asked at every build; only the assembly is remembered."""

    def __init__(self, registry: ToolRegistry, resolver: ToolsetResolver, defer: DeferPolicy = DeferPolicy()) -> None:  # noqa: B008
        self.registry = registry
        self.resolver = resolver
        self._defer = defer
        self._memos: dict[frozenset[str], _Memo] = {}

    def build(
        self,
        enabled: Sequence[str] | None = None,
        disabled: Sequence[str] | None = None,
        *,
        defer: bool = True,
        context_window_tokens: int | None = None,
    ) -> Definitions:
        """The definitions for these toolsets; None means all of them, an empty list none."""
        selection = self.resolver.select(enabled, disabled)
        for name in selection.unknown:
            logger.error("unknown toolset %r gives no tools; see `toolcrib toolsets list`", name)
        memo = self._assemble(selection.tool_names)
        deferred: list[str] = []
        if defer:
            deferred = self._deferred(memo, context_window_tokens)
        tools = self._with_search(memo, deferred) if deferred else _tools(memo.functions)
        return Definitions(tools, deferred, list(selection.unknown), dict(memo.set_aside))

    def available(self, names: Collection[str] | None) -> list[JsonObject]:
        """The definitions of the named tools (None: all), as far as they are available now."""
        chosen = frozenset(self.registry.get_all_tool_names() if names is None else names)
        return _tools(self._assemble(chosen).functions)

    def searchable(self, names: Collection[str] | None) -> list[JsonObject]:
        """Those of the available tools that may be put behind the search: all but the core."""
        core = set(CORE_TOOLS)
        return [tool for tool in self.available(names) if tool["function"]["name"] not in core]

    def _assemble(self, names: frozenset[str]) -> _Memo:
        entries = self.registry.available(
            [entry for entry in self.registry.entries() if entry.name in names and entry.name not in SEARCH_TOOLS]
        )
        overrides = [self.registry.schema_overrides(entry) for entry in entries if entry.dynamic_schema_overrides]
        memo = self._memos.get(names)
        if memo is None or not _is_current(memo, entries, overrides):
            # A copy: an override function may change the very object that it returned last time.
            memo = _memo(entries, [{} if is_too_deep(given) else deepcopy(given) for given in overrides])
            for name, reason in memo.set_aside.items():
                logger.error("tool %r is not offered: %s", name, reason)
            if len(self._memos) >= MAX_MEMOS:
                self._memos.pop(next(iter(self._memos), names), None)
            self._memos[names] = memo
        return memo

    def _deferred(self, memo: _Memo, context_window_tokens: int | None) -> list[str]:
        policy = self._defer
        if not should_defer(memo.outside_tokens, context_window_tokens, policy.mode, policy.threshold_pct):
            return []
        if any(self.registry.get_entry(name) is None for name in SEARCH_TOOLS):
            return []  # Without all three, what is hidden could not be reached.
        return list(memo.outside)

    def _with_search(self, memo: _Memo, deferred: list[str]) -> list[JsonObject]:
        hidden = set(deferred)
        functions = [function for function in memo.functions if function["name"] not in hidden]
        trio = [entry for name in SEARCH_TOOLS if (entry := self.registry.get_entry(name)) is not None]
        functions += [deepcopy(self.registry.live_schema(entry)) for entry in trio]
        return _tools(sorted(functions, key=lambda function: str(function["name"])))


def _is_current(memo: _Memo, entries: list[ToolEntry], overrides: list[JsonObject]) -> bool:
    try:
        return (
            memo.entries == entries
            and memo.overrides == overrides
            and memo.core == CORE_TOOLS
            # Somebody changed what he was given: nobody else shall see it.
            and memo.functions == memo.pristine
        )
    except RecursionError:
        return False  # Two schemas, one of which is too deep to be compared.


def _memo(entries: list[ToolEntry], overrides: list[JsonObject]) -> _Memo:
    offered = {entry.name for entry in entries if entry.is_ours or not is_too_deep(entry.schema)}
    waiting = iter(overrides)
    pristine: list[JsonObject] = []
    for entry in entries:
        function = {**entry.schema, "name": entry.name}
        if entry.dynamic_schema_overrides:
            function.update(next(waiting))
        if entry.name in offered:
            pristine.append(patched(function, offered))
    core = set(CORE_TOOLS)
    outside = [function for function in pristine if function["name"] not in core]
    return _Memo(
        entries=entries,
        overrides=overrides,
        core=list(CORE_TOOLS),
        pristine=pristine,
        functions=deepcopy(pristine),
        outside=[str(function["name"]) for function in outside],
        outside_tokens=sum(estimate_tokens(_tools([function])) for function in outside),
        set_aside={entry.name: TOO_DEEP for entry in entries if entry.name not in offered},
    )


def is_too_deep(value: Any) -> bool:
    """Whether more objects and lists stand inside each other than can be copied, compared and sent."""
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


def _tools(functions: Iterable[JsonObject]) -> list[JsonObject]:
    return [{"type": "function", "function": function.copy()} for function in functions]
