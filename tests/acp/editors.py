"""Editors for the tests: the SDK's own client, with buffers, terminals and a person who answers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import acp
import jsonschema_rs
from acp.agent.connection import AgentSideConnection
from acp.client.connection import ClientSideConnection
from acp.connection import StreamEvent
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    CreateTerminalResponse,
    DeclineElicitationResponse,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    FileSystemCapabilities,
    KillTerminalResponse,
    NewSessionResponse,
    PromptResponse,
    ReadTextFileResponse,
    ReleaseTerminalResponse,
    RequestPermissionResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
    WriteTextFileResponse,
)

from toolcrib.acp.agent import EditorAgent
from toolcrib.acp.program import open_own_sessions
from toolcrib.acp.transport import StdioTransport

LIMIT_SECONDS = 60.0
DATA = Path(__file__).parents[1] / "data"
SCHEMA = json.loads((DATA / "acp_schema_v1.json").read_text())["$defs"]
UNSTABLE = ("session/fork",)
"""Methods that the published schema does not have yet."""
SOURCE = Path(__file__).parents[2] / "src"


class TestEditor:
    """An editor whose person gives the answers in order, and then cancels."""

    __test__ = False

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.updates: list[Any] = []
        self.permissions: list[tuple[Any, list[Any]]] = []
        self.buffers: dict[str, str] = {}
        """Unsaved text by path."""
        self.terminals: dict[str, asyncio.subprocess.Process] = {}
        self.outputs: dict[str, bytes] = {}
        self.released: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self.forms: list[Any] = []
        """What the person fills in: the fields, None to decline, or an error."""
        self.elicitations: list[tuple[str, Any]] = []
        self.changed = asyncio.Event()
        self.on_permission: Callable[[], Any] | None = None

    def on_connect(self, conn: Any) -> None:
        return None

    def observe(self, event: StreamEvent) -> None:
        self.messages.append({"direction": event.direction.value, **event.message})

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.changed.set()

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:
        self.permissions.append((tool_call, options))
        self.changed.set()
        if self.on_permission is not None:
            await self.on_permission()
        if not self.answers:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        chosen = AllowedOutcome(outcome="selected", option_id=self.answers.pop(0))
        return RequestPermissionResponse(outcome=chosen)

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        self.elicitations.append((message, mode))
        given = self.forms.pop(0)
        if isinstance(given, Exception):
            raise given
        if given is None:
            return DeclineElicitationResponse(action="decline")
        return AcceptElicitationResponse(action="accept", content=given)

    async def read_text_file(self, session_id: str, path: str, line: Any = None, limit: Any = None, **_: Any) -> Any:
        if path not in self.buffers:
            return ReadTextFileResponse(content=Path(path).read_text())  # noqa: ASYNC240
        return ReadTextFileResponse(content=self.buffers[path])

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> WriteTextFileResponse:
        self.buffers[path] = content
        return WriteTextFileResponse()

    async def create_terminal(
        self, session_id: str, command: str, args: Any = None, env: Any = None, cwd: Any = None, **_: Any
    ) -> CreateTerminalResponse:
        id = f"terminal-{len(self.terminals)}"
        process = await asyncio.create_subprocess_exec(
            command, *(args or []), cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        self.terminals[id] = process
        self.outputs[id] = b""
        return CreateTerminalResponse(terminal_id=id)

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **_: Any) -> WaitForTerminalExitResponse:
        process = self.terminals[terminal_id]
        assert process.stdout is not None
        self.outputs[terminal_id] += await process.stdout.read()
        return WaitForTerminalExitResponse(exit_code=await process.wait())

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> TerminalOutputResponse:
        code = self.terminals[terminal_id].returncode
        status = TerminalExitStatus(exit_code=code) if code is not None else None
        return TerminalOutputResponse(output=self.outputs[terminal_id].decode(), truncated=False, exit_status=status)

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> ReleaseTerminalResponse:
        self.released.append(terminal_id)
        return ReleaseTerminalResponse()

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> KillTerminalResponse:
        self.terminals[terminal_id].kill()
        return KillTerminalResponse()

    # What tests ask about

    def of(self, kind: str) -> list[Any]:
        """The updates of one kind, such as `tool_call`."""
        return [one for one in self.updates if one.session_update == kind]

    @property
    def text(self) -> str:
        return "".join(one.content.text for one in self.of("agent_message_chunk"))

    async def until(self, is_so: Callable[[], Any]) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


class OpenEditor:
    """A connection to the agent."""

    def __init__(self, conn: ClientSideConnection, editor: TestEditor, folder: Path) -> None:
        self.conn = conn
        self.editor = editor
        self.folder = folder

    async def new(self, **options: Any) -> NewSessionResponse:
        return await self.conn.new_session(cwd=str(self.folder), mcp_servers=options.pop("mcp_servers", []), **options)

    async def ask(self, session_id: str, *blocks: Any) -> PromptResponse:
        given = [acp.text_block(one) if isinstance(one, str) else one for one in blocks or ("go",)]
        async with asyncio.timeout(LIMIT_SECONDS):
            return await self.conn.prompt(session_id=session_id, prompt=given)


def write_home(home: Path, steps: Iterable[dict[str, Any]], config: str = "") -> None:
    """A home whose model plays the steps."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "steps.json").write_text(json.dumps(list(steps)))
    model = f"model: {{provider: scripted, default: x}}\nproviders: {{scripted: {{base_url: {home}/steps.json}}}}\n"
    (home / "config.yaml").write_text(model + config)


def capabilities(*, files: bool = False, terminal: bool = False, forms: bool = False) -> ClientCapabilities:
    fs = FileSystemCapabilities(read_text_file=files, write_text_file=files)
    elicitation = ElicitationCapabilities(form=ElicitationFormCapabilities()) if forms else None
    return ClientCapabilities(fs=fs, terminal=terminal, elicitation=elicitation)


@asynccontextmanager
async def connected(editor: TestEditor, folder: Path, **offered: bool) -> AsyncIterator[OpenEditor]:
    """The agent in this process, over a real pair of pipes; every message must follow the published schema."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    to_agent, to_editor = os.pipe(), os.pipe()
    agent = EditorAgent(open_own_sessions)
    ours = await StdioTransport.open(os.fdopen(to_agent[0], "rb", 0), os.fdopen(to_editor[1], "wb", 0))
    theirs = await StdioTransport.open(os.fdopen(to_editor[0], "rb", 0), os.fdopen(to_agent[1], "wb", 0))
    served = AgentSideConnection(agent, ours, use_unstable_protocol=True)
    conn = ClientSideConnection(editor, theirs, use_unstable_protocol=True, observers=[editor.observe])
    try:
        await conn.initialize(protocol_version=1, client_capabilities=capabilities(**offered))
        yield OpenEditor(conn, editor, folder)
    finally:
        async with asyncio.timeout(LIMIT_SECONDS):
            await agent.close()
            await served.close()
            await conn.close()
    check_transcript(editor.messages)


@asynccontextmanager
async def started(editor: TestEditor, folder: Path, **offered: bool) -> AsyncIterator[tuple[OpenEditor, Any]]:
    """The program `toolcrib acp`, and its process."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = (sys.executable, "-m", "toolcrib", "acp")
    async with acp.spawn_agent_process(
        editor, *command, env=environ, use_unstable_protocol=True, observers=[editor.observe]
    ) as (conn, process):
        await conn.initialize(protocol_version=1, client_capabilities=capabilities(**offered))
        yield OpenEditor(conn, editor, folder), process
    check_transcript(editor.messages)


def is_running(pid: int) -> bool:
    """Whether a process is alive; one that nobody has waited for is not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def check_transcript(messages: Iterable[dict[str, Any]]) -> int:
    """Every message against the definition that the published schema has for it; returns how many were checked."""
    asked: dict[tuple[str, Any], str] = {}
    checked = 0
    for message in messages:
        side, method = message["direction"], message.get("method")
        if method is not None:
            if "id" in message:
                asked[side, message["id"]] = method
            checked += _check(method, "Request" if "id" in message else "Notification", message.get("params"))
            continue
        other = "incoming" if side == "outgoing" else "outgoing"
        method = asked.get((other, message["id"]), "")
        if "error" in message:
            jsonschema_rs.validate({"$ref": "#/$defs/Error", "$defs": SCHEMA}, message["error"])
        elif method:
            checked += _check(method, "Response", message["result"])
    return checked


@cache
def _validator(method: str, kind: str) -> jsonschema_rs.Validator:
    """Made once: to compile the schema takes far longer than to check a message."""
    names = [name for name, one in SCHEMA.items() if one.get("x-method") == method and name.endswith(kind)]
    assert names, f"the schema has no {kind} for {method}"
    return jsonschema_rs.validator_for({"$ref": f"#/$defs/{names[0]}", "$defs": SCHEMA})


def _check(method: str, kind: str, value: Any) -> int:
    if method in UNSTABLE:
        return 0
    try:
        _validator(method, kind).validate(value)
    except jsonschema_rs.ValidationError as error:
        raise AssertionError(f"{method} {kind} does not follow the schema: {error}") from error
    return 1
