"""The context of a call: what its handler can see, and the runtime's services.

The services are protocols; `runtime_services.py` builds their implementations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from toolcrib.core.approvals import DEFAULT_MODE, Mode
from toolcrib.core.cancel import CancelToken
from toolcrib.core.types import Effect, JsonObject, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

    from toolcrib.core.environments import Environment, EnvironmentSpec, ExecutionTarget, TypingTarget
    from toolcrib.core.models import Provider

T = TypeVar("T")


class CallMemo:
    """Facts about one call, cached so that each is computed once.

    It starts empty at admission, because the findings of planning authorise nothing.
    """

    __slots__ = ("hashed", "readings", "target")

    def __init__(self) -> None:
        self.target: ExecutionTarget | None = None
        """The environment that the call runs in."""
        self.readings: dict[str, Any] = {}
        """Command lines, as the gate parsed them."""
        self.hashed: tuple[tuple[bytes, bytes], ...] = ()
        """The latest large contents of files, each with its SHA-256."""

    def clear(self) -> None:
        self.target = None
        self.readings.clear()
        self.hashed = ()


# Made for every call that needs one, so a msgspec Struct: a sixth of the cost of a frozen dataclass.
class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of one call, passed to handlers that have a `ctx` parameter."""

    services: Services
    tool_name: str = ""
    call_id: str = ""
    session_id: str = ""
    task_id: str = ""
    """A task that works in an environment of its own. Empty or equal to the session's id: in the session's."""
    turn_id: str = ""
    api_request_id: str = ""
    user_task: str = ""
    cwd: str = ""
    deadline: float | None = None
    """On the clock of `time.monotonic()`."""
    cancel: CancelToken | None = None
    allowed_tools: frozenset[str] | None = None
    """The tools that this session may call; None means not specified."""
    on_progress: Callable[[str], None] | None = None
    on_output: Callable[[str, str, int], None] | None = None
    """Receives what a running command prints, a few times a second: call id, latest lines, number of lines so far."""
    handler_kwargs: dict[str, Any] | None = None
    """The handler's keyword arguments, if the caller chose them; otherwise task_id, session_id and user_task."""
    mode: Mode = DEFAULT_MODE
    """How much the session may do on its own."""
    effects: tuple[Effect, ...] | None = None
    """In a handler: the effects that were approved for this call. The handler must do nothing else."""
    memo: CallMemo | None = None
    """Set at admission: facts about this call; None for a call without effects to admit."""

    @property
    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.cancelled

    def progress(self, message: str) -> None:
        """Report the progress of this call."""
        if self.on_progress is not None:
            self.on_progress(message)

    async def ask(self, question: str, choices: tuple[str, ...] = ()) -> str:
        """Ask the person in front of this session; raises UsageError if the session is not interactive."""
        return await self.services.ask(self, question, choices)

    def spill(self, text: str) -> str:
        """Store a long text and return a handle for reading it."""
        return self.services.spill(self, text)


# The current call, for handlers without a `ctx` parameter (`tools.interrupt.is_interrupted()`).
current_context: ContextVar[ToolContext | None] = ContextVar("toolcrib_current_context", default=None)


class ToolService(Protocol):
    """The service behind one tool."""

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str: ...


class ProcessesPort(ToolService, Protocol):
    """The background processes of a runtime."""

    def typing_target(self, args: JsonObject, ctx: ToolContext) -> TypingTarget | None:
        """The process that a call types into; None if the session has no such process."""
        ...


class TerminalPort(ToolService, Protocol):
    """The environments and background processes of a runtime."""

    @property
    def workspace(self) -> Path: ...

    @property
    def mask(self) -> Callable[[str], str]:
        """Redacts known secrets in a text."""
        ...

    @property
    def processes(self) -> ProcessesPort: ...

    def effect_of(self, args: JsonObject, ctx: ToolContext) -> Effect: ...

    def execution_target(self, ctx: ToolContext) -> ExecutionTarget:
        """Where a call of the session of `ctx` runs."""
        ...

    async def work_in(self, spec: EnvironmentSpec, work: Callable[[Environment], Awaitable[T]]) -> T: ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def runs_on(self, session_key: str, command: str) -> bool: ...

    def environment_of(self, key: str) -> Environment | None: ...


class FilesPort(Protocol):
    """The file tools."""

    async def read(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject: ...

    def read_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def write(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def write_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def patch(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def patch_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def preview_write(self, args: JsonObject, ctx: ToolContext) -> str:
        """What `write` would change, for the question before it."""
        ...

    async def preview_patch(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def search(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def search_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def read_bytes(self, path: str, ctx: ToolContext, max_bytes: int) -> bytes:
        """All of a file that another tool reads, under the same rules as `read`; raises ToolcribError."""
        ...

    async def write_bytes(self, path: str, data: bytes, ctx: ToolContext) -> None:
        """Write a file for another tool, whose call declared the write; raises ToolcribError."""
        ...

    async def document_text(self, kind: str, data: bytes) -> tuple[str, str]:
        """The text of a document (pdf, docx, xlsx, pptx, ipynb) and a remark; raises ToolcribError."""
        ...


class WebPort(Protocol):
    """The web tools."""

    async def search(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def search_effects(self) -> tuple[Effect, ...]: ...

    async def extract(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def extract_effects(self, args: JsonObject) -> tuple[Effect, ...]: ...

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        """What is at an address that a model named, by the guarded client; raises ToolcribError."""
        ...


class VisionPort(Protocol):
    """Looks at images and videos."""

    async def analyze(
        self, images: Sequence[bytes], question: str, ctx: ToolContext, *, facts: JsonObject | None = None
    ) -> str | JsonObject:
        """The result of a tool that looks at images: a model's answer, or the images for a model that sees.

        `facts` are further keys of the result. A failure is an error result.
        """
        ...

    async def analyze_image(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject: ...

    def image_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def analyze_video(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject: ...

    def video_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...


class GenerationPort(Protocol):
    """Makes images and videos."""

    async def make_image(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def image_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def make_video(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def edit_video(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def extend_video(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def video_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...


class SpeechPort(Protocol):
    """Speaks, and recognises speech."""

    async def speak(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def speak_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def transcribe(self, data: bytes, *, may_send: bool) -> tuple[str, str]:
        """What is said in an audio file, and who listened; raises ToolcribError."""
        ...

    def transcription_effects(self) -> tuple[Effect, ...]:
        """What listening to a file does besides reading it."""
        ...


class HostedToolPort(ToolService, Protocol):
    """The service behind one tool, on other machines."""

    def effects(self) -> tuple[Effect, ...]: ...


class HomeAssistantPort(Protocol):
    """The devices of the user's home."""

    async def list_entities(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def get_state(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def list_services(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def call_service(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def read_effects(self) -> tuple[Effect, ...]: ...

    def call_effects(self, args: JsonObject) -> tuple[Effect, ...]: ...


class DiscordPort(Protocol):
    """The Discord servers of the user's bot."""

    async def take_part(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def manage(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def effects(self, args: JsonObject) -> tuple[Effect, ...]: ...


class FeishuPort(Protocol):
    """Documents of Feishu and their comments."""

    async def read_document(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def list_comments(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def list_replies(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def reply(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def add_comment(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def read_effects(self) -> tuple[Effect, ...]: ...

    def write_effects(self, args: JsonObject, action: str) -> tuple[Effect, ...]: ...


class SpotifyPort(ToolService, Protocol):
    """The Spotify account of the user."""

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...


class DesktopPort(Protocol):
    """The screen, mouse and keyboard of this machine."""

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject: ...

    def target(self, args: JsonObject, ctx: ToolContext) -> str: ...


class BrowserPort(Protocol):
    """The browser tools."""

    async def navigate(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def snapshot(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def click(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def type(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def scroll(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def back(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def press(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def get_images(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def vision(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject: ...

    async def console(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def cdp(self, args: JsonObject, ctx: ToolContext) -> str: ...

    async def dialog(self, args: JsonObject, ctx: ToolContext) -> str: ...

    def page_effects(self, ctx: ToolContext) -> tuple[Effect, ...]: ...

    def navigate_effects(self, args: JsonObject) -> tuple[Effect, ...]: ...

    def click_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    def type_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    def press_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    def console_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    def cdp_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]: ...

    async def end_session(self, session_id: str) -> None:
        """Close the browsers of a session that ended."""
        ...


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


class BoardPort(Protocol):
    """The cards that agents and people work on."""

    async def handle(self, tool: str, args: JsonObject, ctx: ToolContext) -> str | ToolResult: ...

    def effects(self, tool: str, args: JsonObject) -> tuple[Effect, ...]: ...


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
    """Runs calls that arrive one by one in parallel if their effects allow it."""

    def turn(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> AbstractAsyncContextManager[None]: ...


class FrontEndTerminal(msgspec.Struct, frozen=True):
    """A terminal that the front end shows to the user."""

    process_id: str
    title: str = ""
    """What runs in it, in the front end's words."""
    is_running: bool = False


class FrontEndTerminals(Protocol):
    """The terminals of a front end that has its own, such as an editor; provided as `front_end_terminals`."""

    def of_session(self, session_id: str) -> Sequence[FrontEndTerminal]:
        """Those that are open; the last is the one that the user looks at."""
        ...

    async def read(self, session_id: str, process_id: str) -> str:
        """What the terminal shows, from its first line that is left; raises ToolcribError."""
        ...

    async def close(self, session_id: str, process_id: str) -> None:
        """End what runs in it, and close it; raises ToolcribError."""
        ...


NO_ANSWER = "(the user gave no answer)"
"""What `ask` returns when the person closed the question."""


class Asker(Protocol):
    """The part of a session's front end that can ask the user a question."""

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str: ...


class ModelPort(Protocol):
    """The models that sessions and plugins use."""

    def model_of(self, session_id: str) -> tuple[Provider, str]: ...

    async def complete(self, prompt: str, *, timeout_seconds: float = 120.0) -> str: ...


class ConversationPort(Protocol):
    """Where plugins put messages for the model."""

    def inject(self, content: str) -> bool: ...


class Services(Protocol):
    """The services that a runtime offers to handlers.

    A service that this runtime lacks (an agent's services, without an agent) raises a UsageError that names it.
    """

    @property
    def terminal(self) -> TerminalPort: ...

    @property
    def processes(self) -> ProcessesPort: ...

    @property
    def files(self) -> FilesPort: ...

    @property
    def projects(self) -> ToolService: ...

    @property
    def code_execution(self) -> CodeExecutionPort: ...

    @property
    def skills(self) -> SkillsPort: ...

    @property
    def cron(self) -> CronPort: ...

    @property
    def board(self) -> BoardPort: ...

    @property
    def web(self) -> WebPort: ...

    @property
    def browser(self) -> BrowserPort: ...

    @property
    def vision(self) -> VisionPort: ...

    @property
    def generation(self) -> GenerationPort: ...

    @property
    def speech(self) -> SpeechPort: ...

    @property
    def mixture(self) -> HostedToolPort: ...

    @property
    def home_assistant(self) -> HomeAssistantPort: ...

    @property
    def post_search(self) -> HostedToolPort: ...

    @property
    def discord(self) -> DiscordPort: ...

    @property
    def feishu(self) -> FeishuPort: ...

    @property
    def spotify(self) -> SpotifyPort: ...

    @property
    def desktop(self) -> DesktopPort: ...

    @property
    def plugins(self) -> Sequence[Any]:
        """The loaded plugins."""
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
    def asker(self) -> Asker: ...

    @property
    def front_end_terminals(self) -> FrontEndTerminals: ...

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
        """A service by name, including those that a program added to its runtime."""
        ...
