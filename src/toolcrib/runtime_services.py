"""A runtime as the handlers of its tools see it: other tools, the person, and named services."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.ports import ResultStore
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.definitions.build import DefinitionBuilder
from toolcrib.definitions.search import ToolIndex
from toolcrib.dispatch.parallel import CallQueue

if TYPE_CHECKING:
    from toolcrib.plugins.load import LoadedPlugin

# Modules with a function `build(settings, services)`: most processes never need them, and importing them costs time.
BUILT_ON_FIRST_USE = {
    "files": "toolcrib.files.service",
    "code": "toolcrib.code.service",
    "skills": "toolcrib.skills.service",
    "cron": "toolcrib.cron.service",
}


class Serving(Protocol):
    """A Runtime, as far as its services need it."""

    settings: Settings
    definition_builder: DefinitionBuilder
    results: ResultStore
    loaded_plugins: list[LoadedPlugin]

    @property
    def terminal(self) -> Any: ...

    @property
    def mcp(self) -> Any: ...

    def turns(self) -> CallQueue: ...

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, *, ctx: ToolContext | None = None
    ) -> ToolResult: ...


class ToolCatalog(msgspec.Struct, frozen=True):
    """What `tool_search` looks through: the tools that the session of a call may use."""

    builder: DefinitionBuilder
    default_limit: int
    max_limit: int

    def definitions(self, ctx: ToolContext) -> list[JsonObject]:
        return self.builder.available(ctx.allowed_tools)

    def index(self, ctx: ToolContext) -> ToolIndex:
        return ToolIndex(self.builder.searchable(ctx.allowed_tools))


class RuntimeServices:
    """The runtime as handlers see it."""

    def __init__(self, runtime: Serving, named: dict[str, Any]) -> None:
        search = runtime.settings.tools.tool_search
        catalog = ToolCatalog(runtime.definition_builder, search.search_default_limit, search.max_search_limit)
        self._runtime = runtime
        self.named = {"tool_catalog": catalog, "call_turns": runtime.turns, **named}
        self._building = threading.RLock()

    async def call(self, ctx: ToolContext, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._runtime.call(
            name, arguments, ctx=msgspec.structs.replace(ctx, tool_name=name, handler_kwargs=None, effects=None)
        )

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        answer: str = await self.get("asker").ask(ctx, question, choices)
        return answer

    def spill(self, ctx: ToolContext, text: str) -> str:
        return self._runtime.results.save(ctx.session_id, ctx.call_id or ctx.tool_name, text)

    def get(self, name: str) -> Any:
        if name in self.named:
            return self.named[name]
        if name == "terminal":
            return self._runtime.terminal
        if name == "mcp":
            return self._runtime.mcp
        if name == "processes":
            return self._runtime.terminal.processes
        if name == "plugins":
            return self._runtime.loaded_plugins
        if name in BUILT_ON_FIRST_USE:
            with self._building:
                if name not in self.named:
                    module = importlib.import_module(BUILT_ON_FIRST_USE[name])
                    self.named[name] = module.build(self._runtime.settings, self)
            return self.named[name]
        raise UsageError(
            f"the service {name!r} is missing; pass services={{{name!r}: …}} to Runtime or run the tool in an Agent"
        )
