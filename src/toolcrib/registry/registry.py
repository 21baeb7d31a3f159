"""The registry: which tools exist, who declared them, and what they need.

Reads are lock-free lookups in a dict that only changes under the lock; code that iterates over all tools takes a
snapshot first.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, cast

import msgspec

import toolcrib.registry.registration as registration
import toolcrib.registry.results as results
from toolcrib.bridge import Bridge
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import RegistrationError
from toolcrib.core.origins import OriginDeclaration
from toolcrib.core.ports import Invoker
from toolcrib.core.types import (
    AGENT_LOOP_TOOLS,
    CheckFn,
    EffectsDeclaration,
    Handler,
    JsonObject,
    Preview,
    SchemaOverrides,
    Source,
    ToolEntry,
)
from toolcrib.registry.availability import AVAILABLE, Availability, AvailabilityChecker, with_remedy
from toolcrib.registry.registration import (
    LoadScope,
    current_loading,
    handler_keywords,
    loading_scope,
    make_entry,
    require_change_allowed,
)


class _MutableEntry(ToolEntry, frozen=False):  # type: ignore[misc]  # msgspec allows it, unlike dataclasses
    """Makes the attributes assignable; msgspec needs a class of its own for that."""


class EditableEntry(_MutableEntry):  # type: ignore[misc]
    """A ToolEntry whose attributes can be assigned; a new handler also decides which keywords it receives."""

    def __setattr__(self, name: str, value: Any) -> None:
        require_change_allowed(self)
        if name == "handler":
            self._use_handler(value)
        super().__setattr__(name, value)

    def _use_handler(self, handler: Handler) -> None:
        takes_context, keywords = handler_keywords(handler)
        super().__setattr__("takes_context", takes_context)
        super().__setattr__("keywords", keywords)


def _editable(entry: ToolEntry) -> EditableEntry:
    return EditableEntry(**{name: getattr(entry, name) for name in entry.__struct_fields__})


class ToolTable(dict[str, ToolEntry]):
    """A dict whose `version` grows after every change, so caches can detect it.

    `read` and `frozen` give entries as they were registered; the methods of a dict give entries that can be changed.
    """

    version = 0

    def read(self, name: str) -> ToolEntry | None:
        return super().get(name)

    def frozen(self) -> list[ToolEntry]:
        return list(super().values())

    def __getitem__(self, name: str) -> ToolEntry:
        entry = super().__getitem__(name)
        if not isinstance(entry, EditableEntry):
            entry = _editable(entry)
            self[name] = entry
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        return default if self.read(name) is None else self[name]

    def values(self) -> Any:
        self._make_editable()
        return super().values()

    def items(self) -> Any:
        self._make_editable()
        return super().items()

    def _make_editable(self) -> None:
        for name in list(self):
            self[name]

    def __setitem__(self, name: str, entry: ToolEntry) -> None:
        super().__setitem__(name, entry)
        self.version += 1

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.version += 1

    def __ior__(self, other: Any) -> ToolTable:  # type: ignore[override, misc]
        self.update(other)
        return self

    def clear(self) -> None:
        super().clear()
        self.version += 1

    def pop(self, *arguments: Any) -> Any:
        try:
            return super().pop(*arguments)
        finally:
            self.version += 1

    def popitem(self) -> tuple[str, ToolEntry]:
        try:
            return super().popitem()
        finally:
            self.version += 1

    def setdefault(self, *arguments: Any) -> Any:
        try:
            return super().setdefault(*arguments)
        finally:
            self.version += 1

    def update(self, *arguments: Any, **entries: ToolEntry) -> None:
        super().update(*arguments, **entries)
        self.version += 1


class RegistrySnapshot(msgspec.Struct, frozen=True):
    """All tools of one generation, sorted, by name and by toolset."""

    generation: int
    entries: tuple[ToolEntry, ...]
    names: tuple[str, ...]
    by_toolset: dict[str, tuple[ToolEntry, ...]]

    @classmethod
    def of(cls, entries: Iterable[ToolEntry], generation: int) -> RegistrySnapshot:
        ordered = tuple(sorted(entries, key=attrgetter("name")))
        grouped: dict[str, list[ToolEntry]] = {}
        for entry in ordered:
            grouped.setdefault(entry.toolset, []).append(entry)
        by_toolset = {toolset: tuple(grouped[toolset]) for toolset in sorted(grouped)}
        return cls(generation, ordered, tuple([entry.name for entry in ordered]), by_toolset)


logger = logging.getLogger(__name__)

_lookup: Callable[[ToolTable, str], ToolEntry | None] = dict.get
DEFAULT_EMOJI = "⚡"
DEFAULT_MAX_RESULT_CHARS = 100_000


class RejectedRegistration(msgspec.Struct, frozen=True):
    """A tool that could not be registered: why, and where its file declares it."""

    name: str
    reason: str
    """A sentence."""
    path: str = ""
    line: int | None = None

    @property
    def place(self) -> str:
        """The file and the line, as far as they are known."""
        return f"{self.path}:{self.line}" if self.path and self.line else self.path


class ToolRegistry:
    """A set of tools by name. An overlay (with a `parent`) adds to its parent without changing it."""

    def __init__(self, parent: ToolRegistry | None = None) -> None:
        self.parent = parent
        self.availability = AvailabilityChecker()
        self.rejected: list[RejectedRegistration] = []
        """Registrations that were rejected while a tool file or plugin was loaded."""
        self._table = ToolTable()
        self._hidden: set[str] = set()
        self._toolset_checks: dict[str, CheckFn] = {}
        self._toolset_aliases: dict[str, str] = {}
        self._generation = 0
        self._lock = threading.RLock()
        self._invoker: Invoker | None = None
        self._bridge: Bridge | None = None
        self._cached_view: RegistrySnapshot | None = None

    @property
    def rejections(self) -> list[str]:
        """Why registrations were rejected, as sentences."""
        return [one.reason for one in self.rejected]

    # Declaring

    def register(
        self,
        name: str,
        toolset: str,
        schema: JsonObject,
        handler: Handler,
        check_fn: CheckFn | None = None,
        requires_env: list[str] | None = None,
        is_async: bool = False,
        description: str = "",
        emoji: str = "",
        max_result_size_chars: int | float | None = None,
        dynamic_schema_overrides: SchemaOverrides | None = None,
        override: bool = False,
        effects: EffectsDeclaration | None = None,
        origin: OriginDeclaration = "",
        preview: Preview | None = None,
    ) -> None:
        """Declare a tool. A name that another toolset owns is rejected unless `override` is true."""
        loading = current_loading()
        target = self.landing(loading)
        try:
            entry = make_entry(
                name=name,
                toolset=toolset,
                schema=schema,
                handler=handler,
                check_fn=check_fn,
                requires_env=requires_env,
                is_async=is_async,
                description=description,
                emoji=emoji,
                max_result_size_chars=max_result_size_chars,
                dynamic_schema_overrides=dynamic_schema_overrides,
                effects=effects,
                source=registration.source_of_registration(handler, loading),
                origin=origin,
                preview=preview,
            )
        except RegistrationError as error:
            if loading is None:
                raise
            # Inside a tool file or plugin, the error affects only this tool: the rest of the file still loads.
            target._reject(str(name), str(error), loading)
            return
        target._add(entry, override, loading)

    def deregister(self, name: str) -> None:
        """Remove a tool; an unknown name is not an error. A plugin may only remove its own tools.

        An overlay first removes its own tool, which reveals its parent's; a parent's tool is only hidden.
        """
        loading = current_loading()
        target = self.landing(loading)
        with target._lock:
            entry = target.get_entry(name)
            if entry is None:
                return
            registration.require_removal_allowed(entry, registration.source_of_caller(loading))
            own = target._table.read(name)
            if loading is not None and loading.target is target:
                loading.before.setdefault(name, own)
            target._put(name, None)
            if own is None:
                target._hidden.add(name)

    def replace(self, entry: ToolEntry) -> None:
        """Put a changed copy of a registered tool in its place, in this registry only."""
        with self._lock:
            self._put(entry.name, entry)

    def take_back(self, loading: LoadScope) -> None:
        """Undo the registrations and removals of `loading`, except for names that another source took since then."""
        with self._lock:
            for name, before in loading.before.items():
                now = self._table.read(name)
                if now is None or now.source == loading.source:
                    self._put(name, before)

    def register_toolset_alias(self, alias: str, toolset: str) -> None:
        """Give a toolset a second name; the last registration of a name wins."""
        loading = current_loading()
        target = self.landing(loading)
        with target._lock:
            known = target.get_toolset_alias_target(alias)
            if known is not None and known != toolset:
                logger.warning("toolset alias %r pointed to %r and now points to %r", alias, known, toolset)
            target._toolset_aliases[alias] = toolset
            target._generation += 1

    @contextmanager
    def loading(self, source: Source) -> Iterator[LoadScope]:
        """Attribute everything this block registers, on this registry or its parents, to `source`, and keep it here."""
        with loading_scope(LoadScope(source=source, target=self)) as loading:
            yield loading

    def landing(self, loading: LoadScope | None) -> ToolRegistry:
        """Where a registration here goes: to the overlay that is being loaded, if it is based on this registry."""
        target = loading.target if loading is not None else self
        return target if isinstance(target, ToolRegistry) and target._stands_on(self) else self

    # Running

    def bind(self, invoker: Invoker | None) -> None:
        """Let a Runtime take over `dispatch`; every call then goes through its pipeline."""
        self._invoker = invoker

    def dispatch(self, name: str, args: JsonObject, **kwargs: Any) -> str | JsonObject:
        """Run a tool and return its result; if bound to a Runtime, through the whole pipeline."""
        if self._invoker is not None:
            return self._invoker(name, args, kwargs)
        entry = self.get_entry(name)
        if entry is None:
            return results.unknown_tool(name, self.get_all_tool_names())
        if name in AGENT_LOOP_TOOLS:
            return results.agent_loop_error(name)
        if entry.keywords is not None:
            kwargs = {keyword: value for keyword, value in kwargs.items() if keyword in entry.keywords}
        value, error = attempt(self._run_handler, entry, args, kwargs)
        if error is not None:
            logger.error("tool %r failed", name, exc_info=error)
            return results.handler_failed(error)
        if isinstance(value, str) or results.is_multimodal(value):
            return cast("str | JsonObject", value)
        if isinstance(value, Coroutine):
            value.close()
        return results.unsupported_result(name, value)

    def _run_handler(self, entry: ToolEntry, args: JsonObject, keywords: dict[str, Any]) -> Any:
        value = entry.handler(args, **keywords)
        return self._own_bridge().run(value) if entry.is_async and isinstance(value, Coroutine) else value

    # Reading

    @property
    def generation(self) -> int:
        """Grows with every change that readers could notice, including changes to the parent."""
        own = self._generation + self._table.version
        return own if self.parent is None else own + self.parent.generation

    def get_entry(self, name: str) -> ToolEntry | None:
        # On the path of every call: without a Python frame for the lookup.
        entry = _lookup(self._table, name)
        if entry is None and self.parent is not None and name not in self._hidden:
            return self.parent.get_entry(name)
        return entry

    def entries(self) -> list[ToolEntry]:
        """All tools, sorted by name."""
        return list(self._view().entries)

    def get_schema(self, name: str) -> JsonObject | None:
        entry = self.get_entry(name)
        return entry.schema if entry is not None else None

    def get_all_tool_names(self) -> list[str]:
        return list(self._view().names)

    def get_tool_names_for_toolset(self, toolset: str) -> list[str]:
        return [entry.name for entry in self._view().by_toolset.get(toolset, ())]

    def get_registered_toolset_names(self) -> list[str]:
        return list(self._view().by_toolset)

    def get_toolset_for_tool(self, name: str) -> str | None:
        entry = self.get_entry(name)
        return entry.toolset if entry is not None else None

    def get_tool_to_toolset_map(self) -> dict[str, str]:
        return {entry.name: entry.toolset for entry in self.entries()}

    def get_emoji(self, name: str, default: str = DEFAULT_EMOJI) -> str:
        entry = self.get_entry(name)
        return (entry.emoji if entry is not None else "") or default

    def get_max_result_size(self, name: str, default: int | float | None = None) -> int | float:
        """The maximum length of the tool's results: its own limit, else `default`, else the global default."""
        entry = self.get_entry(name)
        if entry is not None and entry.max_result_size_chars is not None:
            return entry.max_result_size_chars
        return DEFAULT_MAX_RESULT_CHARS if default is None else default

    def get_registered_toolset_aliases(self) -> dict[str, str]:
        with self._lock:
            own = dict(self._toolset_aliases)
        return {**self.parent.get_registered_toolset_aliases(), **own} if self.parent is not None else own

    def get_toolset_alias_target(self, alias: str) -> str | None:
        return self.get_registered_toolset_aliases().get(alias)

    # Availability

    def outcome(self, entry: ToolEntry) -> Availability:
        """Whether one tool is available now, with a reason and a remedy if not."""
        if entry.check_fn is None:
            return AVAILABLE
        return with_remedy(entry, self.availability.ask([entry.check_fn])[entry.check_fn])

    def available(self, entries: Iterable[ToolEntry]) -> list[ToolEntry]:
        """The entries that are available now; a shared check runs once."""
        asked = list(entries)
        checks = [entry.check_fn for entry in asked if entry.check_fn is not None]
        if not checks:
            return asked
        outcomes = self.availability.ask(checks)
        return [entry for entry in asked if entry.check_fn is None or outcomes[entry.check_fn].available]

    def get_definitions(self, tool_names: Iterable[str], quiet: bool = False) -> list[JsonObject]:
        """The definitions of the named tools that are available, sorted by name, in OpenAI's format."""
        wanted = set(tool_names)
        entries = [entry for entry in self.entries() if entry.name in wanted]
        chosen = self.available(entries)
        if not quiet and len(chosen) < len(entries):
            for name in sorted({entry.name for entry in entries} - {entry.name for entry in chosen}):
                logger.debug("tool %r is not available", name)
        return [{"type": "function", "function": self.live_schema(entry)} for entry in chosen]

    def live_schema(self, entry: ToolEntry) -> JsonObject:
        """The tool's schema with its dynamic overrides applied."""
        overrides = self.schema_overrides(entry)
        return {**entry.schema, "name": entry.name, **overrides}

    def schema_overrides(self, entry: ToolEntry) -> JsonObject:
        if entry.dynamic_schema_overrides is None:
            return {}
        overrides, error = attempt(entry.dynamic_schema_overrides)
        if error is not None:
            logger.warning("dynamic schema of tool %r failed, using its static schema: %s", entry.name, error)
        return overrides if isinstance(overrides, dict) else {}

    def is_toolset_available(self, toolset: str) -> bool:
        """True if none of its tools has a check, or at least one tool is available."""
        entries = self._view().by_toolset.get(toolset, ())
        return bool(self.available(entries))

    def check_toolset_requirements(self) -> dict[str, bool]:
        """Whether each toolset is available; a shared check runs once."""
        view = self._view()
        ready = {entry.toolset for entry in self.available(view.entries)}
        return {toolset: toolset in ready for toolset in view.by_toolset}

    def get_available_toolsets(self) -> dict[str, JsonObject]:
        return {
            toolset: {
                "available": available,
                "tools": self.get_tool_names_for_toolset(toolset),
                "description": "",
                "requirements": self._variables(toolset),
            }
            for toolset, available in self.check_toolset_requirements().items()
        }

    def get_toolset_requirements(self) -> dict[str, JsonObject]:
        return {
            toolset: {
                "name": toolset,
                "env_vars": self._variables(toolset),
                "check_fn": self._toolset_check(toolset),
                "setup_url": None,
                "tools": self.get_tool_names_for_toolset(toolset),
            }
            for toolset in self.get_registered_toolset_names()
        }

    def check_tool_availability(self, quiet: bool = False) -> tuple[list[str], list[JsonObject]]:
        """The available toolsets, and the name, variables and tools of each unavailable one."""
        states = self.check_toolset_requirements()
        missing = [toolset for toolset, available in states.items() if not available]
        if missing and not quiet:
            logger.info("unavailable toolsets: %s", ", ".join(missing))
        names = self.get_tool_names_for_toolset
        unavailable = [{"name": one, "env_vars": self._variables(one), "tools": names(one)} for one in missing]
        return [toolset for toolset, available in states.items() if available], unavailable

    # Names that callers of the reference system use

    @property
    def _tools(self) -> ToolTable:
        """The tools by name; the handler of an entry that is read from here can be replaced."""
        return self._table

    @_tools.setter
    def _tools(self, content: Mapping[str, ToolEntry]) -> None:
        with self._lock:
            # The new table counts its changes from zero, and the generation must not go back.
            self._generation += 1 + self._table.version
            self._table = content if isinstance(content, ToolTable) else ToolTable(content)

    @property
    def _plugin_override_policy(self) -> dict[str, bool]:
        return registration.override_consents()

    def _snapshot_state(self) -> tuple[list[ToolEntry], dict[str, CheckFn]]:
        return self._snapshot_entries(), dict(self._toolset_checks)

    def register_plugin_override_policy(self, namespace: str, allowed: bool) -> None:
        """Say whether the plugin in `namespace` (`hermes_plugins.NAME`) may replace tools from other sources."""
        registration.set_override_consent(namespace, allowed)

    # Inside

    def _stands_on(self, other: ToolRegistry) -> bool:
        return self is other or (self.parent is not None and self.parent._stands_on(other))

    def _snapshot_entries(self) -> list[ToolEntry]:
        with self._lock:
            own, hidden = dict(self._table), set(self._hidden)
        if self.parent is None:
            return list(own.values())
        below = self.parent._snapshot_entries()
        return [entry for entry in below if entry.name not in own and entry.name not in hidden] + list(own.values())

    def _view(self) -> RegistrySnapshot:
        """The sorted tools, computed once per generation."""
        view, generation = self._cached_view, self.generation
        if view is None or view.generation != generation:
            view = self._cached_view = RegistrySnapshot.of(self._snapshot_entries(), generation)
        return view

    def _variables(self, toolset: str) -> list[str]:
        entries = self._view().by_toolset.get(toolset, ())
        return list(dict.fromkeys(variable for entry in entries for variable in entry.requires_env))

    def _toolset_check(self, toolset: str) -> CheckFn | None:
        check = self._toolset_checks.get(toolset)
        return check if check is not None or self.parent is None else self.parent._toolset_check(toolset)

    def _add(self, entry: ToolEntry, override: bool, loading: LoadScope | None) -> None:
        with self._lock:
            existing = self.get_entry(entry.name)
            refusal = registration.refusal(existing, entry, override) if existing is not None else ""
            if refusal:
                self._reject(entry.name, refusal, loading)
                return
            if loading is not None and loading.target is self:
                loading.before.setdefault(entry.name, self._table.read(entry.name))
                loading.registered.append(entry.name)
                if existing is not None and existing.is_ours and not entry.is_ours and not override:
                    loading.replaced_builtins.append(entry.name)
            self._put(entry.name, entry)
            if entry.check_fn is not None:
                self._toolset_checks.setdefault(entry.toolset, entry.check_fn)

    def _put(self, name: str, entry: ToolEntry | None) -> None:
        """Set or remove the entry for a name; a toolset without tools loses its check and aliases."""
        before = self._table.read(name)
        self._hidden.discard(name)
        if entry is not None:
            self._table[name] = entry
        elif before is not None:
            del self._table[name]
        if before is not None and not self._has_tools_in(before.toolset, first=entry):
            self._toolset_checks.pop(before.toolset, None)
            for alias in [a for a, toolset in self._toolset_aliases.items() if toolset == before.toolset]:
                del self._toolset_aliases[alias]
        self._generation += 1

    def _has_tools_in(self, toolset: str, first: ToolEntry | None) -> bool:
        if first is not None and first.toolset == toolset:
            return True
        if any(entry.toolset == toolset for entry in self._table.frozen()):
            return True
        return self.parent is not None and toolset in self.parent._view().by_toolset

    def _reject(self, name: str, reason: str, loading: LoadScope | None) -> None:
        logger.error("%s", reason)
        path = loading.source.path if loading is not None else ""
        self.rejected.append(RejectedRegistration(name, reason, path, registration.line_in(path)))

    def _own_bridge(self) -> Bridge:
        with self._lock:
            if self._bridge is None:
                self._bridge = Bridge()
                # Otherwise its loop would stay open after the registry is gone.
                weakref.finalize(self, self._bridge.close)
            return self._bridge
