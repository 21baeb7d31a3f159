"""Selects the tools that a model is offered, in the format of its provider."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from toolcrib.core.approvals import DEFAULT_MODE, PLAN_KINDS, Mode
from toolcrib.core.models import Dialect, ModelProfile
from toolcrib.core.types import SEARCH_TOOLS, JsonObject
from toolcrib.definitions.dialects import SkippedTool, render
from toolcrib.definitions.search import ToolIndex, estimate_tokens
from toolcrib.providers.embedded.everyday_tools import EVERYDAY_TOOLS, in_small_words, named_tools
from toolcrib.runtime import Runtime

SMALL_MODEL_SHARE = 0.6
"""The share of a tightly limited prompt that tool descriptions may take."""
MAX_KNOWN = 8
CHANGING_TOOLS = frozenset({"write_file", "patch", "execute_code", "memory", "cronjob", "skill_manage"})
"""Built-in tools that are of no use where only reading is allowed."""


class SelectedTools(msgspec.Struct, frozen=True):
    """The tools of one request."""

    definitions: list[JsonObject]
    """In OpenAI's format."""
    tools: list[JsonObject]
    """In the provider's dialect."""
    set_aside: tuple[SkippedTool, ...] = ()
    """What the dialect cannot express."""
    tokens: int = 0

    @property
    def names(self) -> list[str]:
        return [definition["function"]["name"] for definition in self.definitions]


class RenderedTools:
    """Caches the last rendering for all agents of a host, because most of them offer the same tools."""

    def __init__(self) -> None:
        self._known: list[tuple[Dialect, SelectedTools]] = []

    def offered(self, definitions: list[JsonObject], dialect: Dialect) -> SelectedTools:
        """The tools in a dialect; the same tools return the same cached object."""
        for known_dialect, offered in self._known:
            if known_dialect == dialect and offered.definitions == definitions:
                return offered
        rendered = render(definitions, dialect)
        offered = SelectedTools(definitions, rendered.tools, tuple(rendered.set_aside), estimate_tokens(rendered.tools))
        self._known = [(dialect, offered), *self._known[: MAX_KNOWN - 1]]
        return offered


class ToolSelection:
    """The tools of one session."""

    def __init__(
        self,
        runtime: Runtime,
        renderings: RenderedTools,
        toolsets: Sequence[str] | None,
        disabled: Sequence[str],
        without: Collection[str] = (),
    ) -> None:
        self._runtime = runtime
        self._renderings = renderings
        self.chosen = toolsets
        """None: those of the config plus those of the user's own tools, including ones added during the session."""
        self.disabled = disabled
        self.without = frozenset(without)
        """Single tools to leave out, whichever toolset contains them."""

    @property
    def toolsets(self) -> list[str]:
        return default_toolsets(self._runtime) if self.chosen is None else list(self.chosen)

    @property
    def allowed(self) -> frozenset[str]:
        """The tools that the session may call, offered by name or found by search."""
        return self._runtime.toolsets.select(self.toolsets, self.disabled).tool_names - self.without

    def current(
        self,
        profile: ModelProfile,
        dialect: Dialect,
        question: str,
        called: Collection[str] = (),
        *,
        mode: Mode = DEFAULT_MODE,
    ) -> SelectedTools:
        """The tools to send now. A model with a tool limit gets those that match the question and those it has used."""
        few = profile.max_tools is not None
        built = self._runtime.definitions(
            self.toolsets, self.disabled, defer=not few, context_window_tokens=profile.context_window
        )
        definitions = built.tools
        if self.without:
            definitions = [one for one in definitions if one["function"]["name"] not in self.without]
        if mode == "plan":
            definitions = [one for one in definitions if self._may_read(one["function"]["name"])]
        if few:
            builtin = {one.name for one in self._runtime.registry.entries() if one.source.kind == "builtin"}
            definitions = select_for_small_model(definitions, profile, question, called, builtin)
        offered = self._renderings.offered(definitions, dialect)
        if built.set_aside:
            left_out = (SkippedTool(name, reason) for name, reason in built.set_aside.items())
            offered = replace(offered, set_aside=(*left_out, *offered.set_aside))
        return offered

    def _may_read(self, name: str) -> bool:
        """Whether a tool is of use in plan mode. The gate decides about each call; this only saves attempts."""
        entry = self._runtime.registry.get_entry(name)
        if entry is None or name in SEARCH_TOOLS:
            return True
        if entry.is_ours:
            return name not in CHANGING_TOOLS
        if entry.effects is None or callable(entry.effects):
            return entry.effects is not None
        return all(effect.kind in (*PLAN_KINDS, "remote") for effect in entry.effects)


def default_toolsets(runtime: Runtime) -> list[str]:
    """The toolsets of the config, and those of the user's own tools, plugins and servers.

    An empty list in the config means no tools at all.
    """
    if not runtime.settings.toolsets:
        return []
    runtime.load()
    brought = {entry.toolset for entry in runtime.registry.entries() if entry.source.kind != "builtin"}
    return list(dict.fromkeys([*runtime.settings.toolsets, *sorted(brought)]))


def select_for_small_model(
    definitions: Sequence[JsonObject],
    profile: ModelProfile,
    question: str,
    called: Collection[str],
    builtin: Collection[str] = (),
) -> list[JsonObject]:
    """The few tools that a small model can choose from: named in the question, used before, or similar in wording.

    Of the built-in tools, those for everyday work are always among them, and others only if they are named: a small
    model takes `cronjob` for "run ls".
    """
    by_name = {definition["function"]["name"]: definition for definition in definitions}
    limit = profile.max_tools if profile.max_tools is not None else len(by_name)
    named = [tool["function"]["name"] for tool in named_tools(question, definitions)]
    ranked = [hit.name for hit in ToolIndex(definitions).search(question, limit) if hit.name not in builtin]
    wanted = [*named, *called, *EVERYDAY_TOOLS, *ranked]
    budget = int((profile.max_prompt_tokens or profile.context_window) * SMALL_MODEL_SHARE)
    chosen: dict[str, JsonObject] = {}
    for name in dict.fromkeys(wanted):
        definition = by_name.get(name)
        if definition is None or name in SEARCH_TOOLS or len(chosen) >= limit:
            continue
        cost = estimate_tokens(in_small_words([definition]) or [definition])
        if cost > budget and chosen:
            continue
        chosen[name] = definition
        budget -= cost
    return [chosen[name] for name in sorted(chosen)]
