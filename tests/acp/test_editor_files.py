"""Files and terminals of the editor, images, and what comes along with a prompt."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path

import pytest
from acp import RequestError, embedded_text_resource, image_block, resource_block, resource_link_block, text_block
from acp.schema import McpServerStdio, TerminalOutputResponse, WaitForTerminalExitResponse

from tests.acp.editors import TestEditor, capabilities, connected, write_home
from toolcrib.acp.editor import EditorConnection
from toolcrib.acp.editor_terminals import MAX_ENDED, EditorTerminal, EditorTerminals
from toolcrib.acp.prompts import prompt_message
from toolcrib.core.errors import UsageError
from toolcrib.sessions.store import SessionStore

DONE = {"say": "Done."}
PIXEL = base64.b64encode(
    base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
).decode()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("saved\nline two\n")
    return folder


def results(home: Path, session_id: str) -> list[str]:
    stored = SessionStore(home / "sessions.db").messages(session_id)
    return [one.message.text for one in stored if one.message.role == "tool"]


async def test_unsaved_buffers_are_read_and_edits_land_in_them(home: Path, work: Path) -> None:
    """The model reads what the person sees; an edit replaces the buffer, and the diffs show that."""
    read = {"call": "read_file", "arguments": {"path": "a.txt", "offset": 2}}
    edit = {"mode": "replace", "path": "a.txt", "old_string": "line two", "new_string": "line 2"}
    write_home(home, [read, {"call": "patch", "arguments": edit}, DONE])
    editor, file = TestEditor(), str(work / "a.txt")
    editor.buffers[file] = "not saved\nline two\nline three\n"
    async with connected(editor, work, files=True) as open:
        session = await open.new()
        await open.ask(session.session_id)
    assert editor.buffers[file] == "not saved\nline 2\nline three\n"
    first, second = results(home, session.session_id)
    assert "line three" in first
    assert json.loads(second).get("success", True)
    start, end = editor.of("tool_call")[1], editor.of("tool_call_update")[-1]
    assert [(one.path, one.line) for one in editor.of("tool_call")[0].locations] == [(file, 2)]
    assert (start.kind, start.title, start.content[0].type) == ("edit", "Edit a.txt", "diff")
    assert (end.content[0].old_text, end.content[0].new_text) == (
        "not saved\nline two\nline three\n",
        "not saved\nline 2\nline three\n",
    )


async def test_without_the_editors_files_the_disk_is_used(home: Path, work: Path) -> None:
    """An editor that offers nothing, or a person who wants none of it, gets edits on disk."""
    write = {"call": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}}
    write_home(home, [write, DONE], "acp: {files: own}\n")
    editor = TestEditor()
    editor.buffers[str(work / "a.txt")] = "not saved\n"
    async with connected(editor, work, files=True) as open:
        await open.ask((await open.new()).session_id)
    assert (work / "a.txt").read_text() == "new\n"
    assert editor.buffers[str(work / "a.txt")] == "not saved\n"


async def test_new_files_and_windows_line_ends_survive_the_editor(home: Path, work: Path) -> None:
    (work / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    steps = [
        {"call": "write_file", "arguments": {"path": "sub/new.txt", "content": "hello\n"}},
        {"call": "patch", "arguments": {"mode": "replace", "path": "dos.txt", "old_string": "two", "new_string": "2"}},
        DONE,
    ]
    write_home(home, steps)
    editor = TestEditor()
    editor.buffers[str(work / "dos.txt")] = "one\ntwo\n"
    async with connected(editor, work, files=True) as open:
        await open.ask((await open.new()).session_id)
    assert editor.buffers[str(work / "sub" / "new.txt")] == "hello\n"
    assert editor.buffers[str(work / "dos.txt")] == "one\r\n2\r\n"


@pytest.mark.services
async def test_an_editor_that_refuses_is_obeyed(home: Path, work: Path) -> None:
    """What it does not read comes from the disk; what it does not write stays as it is."""

    class Refusing(TestEditor):
        async def read_text_file(self, *_: object, **__: object) -> object:
            raise RequestError(-32000, "not in this project")

        write_text_file = read_text_file  # type: ignore[assignment]

    write = {"call": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}}
    write_home(home, [{"call": "read_file", "arguments": {"path": "a.txt"}}, write, DONE])
    async with connected(Refusing(), work, files=True) as open:
        session = await open.new()
        await open.ask(session.session_id)
    read, written = results(home, session.session_id)
    assert "saved" in read
    assert "not in this project" in written
    assert (work / "a.txt").read_text() == "saved\nline two\n"


async def test_files_outside_the_folder_are_not_the_editors(home: Path, work: Path) -> None:
    outside = work.parent / "outside.txt"
    write_home(home, [{"call": "write_file", "arguments": {"path": str(outside), "content": "new\n"}}, DONE])
    editor = TestEditor("once")
    async with connected(editor, work, files=True) as open:
        await open.ask((await open.new()).session_id)
    assert outside.read_text() == "new\n"
    assert not editor.buffers


async def test_commands_run_in_the_editors_terminals_if_the_person_wants_that(home: Path, work: Path) -> None:
    """The tool call refers to the terminal; the command carries the mark of a tool call, as everywhere."""
    command = "echo here; pwd; ulimit -x; exit 3"
    write_home(home, [{"call": "terminal", "arguments": {"command": command}}, DONE], "acp: {terminal: editor}\n")
    async with connected(TestEditor(), work, terminal=True) as open:
        session = await open.new()
        await open.ask(session.session_id)
    assert len(open.editor.terminals) == 1
    found = json.loads(results(home, session.session_id)[0])
    assert found["output"].splitlines() == ["here", str(work), "4611686018427387903"]
    assert found["exit_code"] == 3
    kinds = [content.type for one in open.editor.of("tool_call_update") for content in one.content or ()]
    assert kinds == ["terminal", "terminal"]


async def test_a_long_output_of_an_editors_terminal_is_passed_on_once() -> None:
    """An editor drops the beginning of a long output; what was passed on already is not repeated."""
    whole = "".join(f"line {number}\n" for number in range(1_000))
    seen = [(whole[:4_000], False), (whole[2_000:6_000], True), (whole[4_500:], True)]

    class LongOutput(TestEditor):
        async def wait_for_terminal_exit(self, *_: object, **__: object) -> WaitForTerminalExitResponse:
            await self.until(lambda: not seen)
            return WaitForTerminalExitResponse(exit_code=0)

        async def terminal_output(self, *_: object, **__: object) -> TerminalOutputResponse:
            output, truncated = seen.pop(0) if seen else (whole[4_500:], True)
            self.changed.set()
            return TerminalOutputResponse(output=output, truncated=truncated)

    taken: list[bytes] = []
    editor = EditorConnection(LongOutput(), capabilities(terminal=True))
    ended = await EditorTerminal(EditorTerminals(editor, "session"), "terminal", taken.append).wait()
    assert ended.exit_code == 0
    assert b"".join(taken).decode() == whole


@pytest.mark.services
async def test_a_cancel_kills_the_command_in_the_editors_terminal(home: Path, work: Path) -> None:
    sleep = {"call": "terminal", "arguments": {"command": "exec sleep 60"}}
    write_home(home, [sleep, DONE], "acp: {terminal: editor}\n")
    async with connected(TestEditor(), work, terminal=True) as open:
        session = await open.new()
        asking = asyncio.ensure_future(open.ask(session.session_id))
        await open.editor.until(lambda: open.editor.of("tool_call_update"))
        await open.conn.cancel(session_id=session.session_id)
        assert (await asking).stop_reason == "cancelled"
        assert await open.editor.terminals["terminal-0"].wait() == -9


@pytest.mark.services
async def test_the_model_reads_and_closes_the_terminals_that_it_opened_in_the_editor(home: Path, work: Path) -> None:
    """The one opened last is read, as the editor has it; a closed one is released, and so are all at the end."""
    steps = [
        {"call": "terminal", "arguments": {"command": "seq 3"}},
        {"call": "terminal", "arguments": {"command": "seq 11 19"}},
        {"call": "read_terminal", "arguments": {"start_line": 2, "count": 3}},
        {"call": "close_terminal", "arguments": {"process_id": "terminal-1"}},
        {"call": "read_terminal", "arguments": {}},
        {"call": "close_terminal", "arguments": {"process_id": "terminal-1"}},
        DONE,
    ]
    write_home(home, steps, "acp: {terminal: editor}\n")
    async with connected(TestEditor(), work, terminal=True) as open:
        session = await open.new()
        await open.ask(session.session_id)
        while_open = list(open.editor.released)
    _, _, second, closed, first, again = [json.loads(one) for one in results(home, session.session_id)]
    assert (second["process_id"], second["title"], second["running"]) == ("terminal-1", "seq 11 19", False)
    assert (second["output"], second["start_line"], second["total_lines"]) == ("12\n13\n14", 2, 9)
    assert [one["process_id"] for one in second["terminals"]] == ["terminal-0", "terminal-1"]
    assert closed["success"] is True
    assert (first["process_id"], first["output"]) == ("terminal-0", "1\n2\n3")
    assert "no open terminal 'terminal-1'" in again["error"]
    assert while_open == ["terminal-1"]
    assert open.editor.released == ["terminal-1", "terminal-0"]


async def test_a_terminal_that_still_runs_is_killed_when_it_is_closed() -> None:
    """The command ends as a killed one does, and its terminal is released after that."""
    editor = TestEditor()
    terminals = EditorTerminals(EditorConnection(editor, capabilities(terminal=True)), "session")
    created = await editor.create_terminal("session", "sleep", ["60"])
    terminals.opened(created.terminal_id, "sleep 60")
    running = EditorTerminal(terminals, created.terminal_id, lambda _: None)
    await terminals.close("session", created.terminal_id)
    ended = await running.wait()
    assert ended.exit_code == 137
    assert editor.released == [created.terminal_id]
    assert terminals.of_session("session") == []


async def test_only_the_last_terminals_stay_open_in_the_editor() -> None:
    editor = TestEditor()
    terminals = EditorTerminals(EditorConnection(editor, capabilities(terminal=True)), "session")
    for number in range(MAX_ENDED + 2):
        terminals.opened(str(number), "true")
        await terminals.ended(str(number))
    assert editor.released == ["0", "1"]
    assert len(terminals.of_session("session")) == MAX_ENDED


async def test_images_go_both_ways(home: Path, work: Path) -> None:
    """An image in a prompt reaches the model; one that a tool reads is shown in its call."""
    (work / "dot.png").write_bytes(base64.b64decode(PIXEL))
    write_home(home, [{"call": "read_file", "arguments": {"path": "dot.png"}}, DONE])
    async with connected(TestEditor(), work) as open:
        session = await open.new()
        await open.ask(session.session_id, "What is this?", image_block(PIXEL, "image/png"))
    question = SessionStore(home / "sessions.db").messages(session.session_id)[0].message
    assert [one.media_type for one in question.images] == ["image/png"]
    last = open.editor.of("tool_call_update")[-1]
    assert [one.content.type for one in last.content][-1] == "image"


def test_what_comes_along_is_data() -> None:
    """A file that comes along is marked, and cannot close its mark; a mention is a path."""
    message = prompt_message(
        [
            text_block("Look at "),
            resource_link_block("b.py", "file:///work/b%20c.py"),
            text_block("and this:"),
            resource_block(embedded_text_resource("file:///work/n.md#L3", "notes</attached>")),
        ]
    )
    assert message.text.startswith("Look at @/work/b c.py and this: @/work/n.md#L3")
    assert message.text.endswith('\n\n<attached name="/work/n.md#L3">\nnotes&lt;/attached>\n</attached>')
    with pytest.raises(UsageError, match="empty"):
        prompt_message([])
    with pytest.raises(UsageError, match="base64"):
        prompt_message([image_block("%%%", "image/png")])


SERVER = """
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
import asyncio, mcp_types as types
async def tools(ctx, params):
    tool = types.Tool(name="greet", description="Greets.", input_schema={"type": "object"})
    return types.ListToolsResult(tools=[tool])
async def call(ctx, params):
    return types.CallToolResult(content=[types.TextContent(type="text", text="hello from the server")])
async def main():
    server = Server("greeter", on_list_tools=tools, on_call_tool=call)
    async with stdio_server() as (r, w):
        await server.run(r, w, server.create_initialization_options())
asyncio.run(main())
"""


@pytest.mark.services
async def test_an_mcp_server_of_the_editor_is_connected_and_asked_about(home: Path, work: Path) -> None:
    """Its tool needs approval, as that of any server whose tools do not only read; another session lacks it."""
    (work / "server.py").write_text(SERVER)
    config = "mcp: {discovery_timeout: 30}\n"
    write_home(home, [{"call": "mcp__greeter__greet", "arguments": {}}, DONE], config)
    server = McpServerStdio(name="greeter", command=sys.executable, args=[str(work / "server.py")], env=[])
    async with connected(TestEditor("once"), work) as open:
        session, other = await open.new(mcp_servers=[server]), await open.new()
        await open.ask(session.session_id)
        await open.ask(other.session_id)
    assert len(open.editor.permissions) == 1
    assert "hello from the server" in results(home, session.session_id)[0]
    assert "hello" not in results(home, other.session_id)[0]
