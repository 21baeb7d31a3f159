"""The services of a runtime, as tools and other services see them.

Only type checkers load this module: it costs a process nothing. `runtime_services.py` builds what stands behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from toolcrib.core.environments import Environment, EnvironmentSpec, ExecutionTarget
from toolcrib.core.models import Provider
from toolcrib.core.types import Effect, JsonObject, ToolResult

T = TypeVar("T")

ToolContext = Any
"""`core.context.ToolContext`, which refers to the services itself: to import it here would be a cycle."""


class ToolService(Protocol):
    """The service behind one tool."""

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str: ...


class TerminalPort(ToolService, Protocol):
    """The environments and background processes of a runtime."""

    @property
    def workspace(self) -> Path: ...

    @property
    def mask(self) -> Callable[[str], str]:
        """Hides known secrets in a text."""
        ...

    @property
    def processes(self) -> ToolService: ...

    def effect_of(self, args: JsonObject, ctx: ToolContext) -> Effect: ...

    def execution_target(self, ctx: ToolContext) -> ExecutionTarget:
        """Where a call of the session of `ctx` runs."""
        ...

    async def work_in(self, spec: EnvironmentSpec, work: Callable[[Environment], Awaitable[T]]) -> T: ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def runs_on(self, session_key: str, command: str) -> bool: ...

    def environment_of(self, session_key: str) -> Environment | None: ...


class FilesPort(Protocol):
    """The file tools."""

    async def read(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject: ...

    def read_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def write(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def write_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def patch(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def patch_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def search(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def search_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...


class CodeExecutionPort(Protocol):
    """Runs scripts that call tools."""

    async def run(self, args: JsonObject, ctx: ToolContext, enabled_tools: Sequence[str] | None) -> str: ...

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...


class SkillsPort(Protocol):
    """The skills of a user."""

    def list(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def view(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def manage(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def list_effects(self) -> tuple[Effect, ...]: ...

    def view_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    def manage_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    def catalog(self, folder: str) -> Any:
        """The skills that a session in this folder finds."""
        ...


class CronPort(ToolService, Protocol):
    """Scheduled jobs."""

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...


class ToolCatalogPort(Protocol):
    """The tools that a session may call, and how it searches them."""

    @property
    def builder(self) -> Any: ...

    @property
    def default_limit(self) -> int: ...

    @property
    def max_limit(self) -> int: ...

    def definitions(self, ctx: ToolContext) -> list[JsonObject]: ...

    def definition(self, ctx: ToolContext, name: str) -> JsonObject | None: ...

    def index(self, ctx: ToolContext) -> Any: ...


class CallQueuePort(Protocol):
    """Lets calls that arrive one by one run together where their effects allow it."""

    def turn(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> AbstractAsyncContextManager[None]: ...


class AskerPort(Protocol):
    """The front end of a session, as far as it can put a question to the person."""

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str: ...


class ModelPort(Protocol):
    """The models that sessions and plugins use."""

    def model_of(self, session_id: str) -> tuple[Provider, str]: ...

    async def complete(self, prompt: str, *, timeout_seconds: float = 120.0) -> str: ...


class ConversationPort(Protocol):
    """Where plugins put messages for the model."""

    def inject(self, content: str) -> bool: ...


class Services(Protocol):
    """What handlers may use of the runtime they run in.

    A service that this runtime lacks (those of an agent, where there is none) raises UsageError and names itself.
    """

    @property
    def terminal(self) -> TerminalPort: ...

    @property
    def processes(self) -> ToolService: ...

    @property
    def files(self) -> FilesPort: ...

    @property
    def code_execution(self) -> CodeExecutionPort: ...

    @property
    def skills(self) -> SkillsPort: ...

    @property
    def cron(self) -> CronPort: ...

    @property
    def plugins(self) -> Sequence[Any]:
        """The plugins that were loaded."""
        ...

    @property
    def tool_catalog(self) -> ToolCatalogPort: ...

    @property
    def todo(self) -> ToolService: ...

    @property
    def memory(self) -> ToolService: ...

    @property
    def session_search(self) -> ToolService: ...

    @property
    def delegation(self) -> ToolService: ...

    @property
    def asker(self) -> AskerPort: ...

    @property
    def llm(self) -> ModelPort: ...

    @property
    def conversation(self) -> ConversationPort: ...

    def call_queue(self) -> CallQueuePort: ...

    async def call(self, ctx: ToolContext, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call another tool through the whole pipeline, with the session of `ctx`."""
        ...

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str: ...

    def spill(self, ctx: ToolContext, text: str) -> str: ...

    def get(self, name: str) -> Any:
        """A service by name, including those that a program gave to its runtime under a name of its own."""
        ...
