"""Sessions in an editor: those of our store, with everything that editors show of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from acp import RequestError
from acp.schema import HttpMcpServer, McpServerStdio

from tests.acp.editors import TestEditor, connected, started, write_home
from toolcrib.acp.sessions import with_editor_servers
from toolcrib.acp.updates import EventTranslator
from toolcrib.agent import events
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.core.messages import user_message
from toolcrib.sessions.store import SessionStore

HELLO = {"say": "Hello.", "usage": {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.01}}


async def test_a_turn_shows_text_plan_calls_usage_and_title(home: Path, tmp_path: Path) -> None:
    """One turn in the real program: what the editor gets, in the order in which it happened."""
    todo = {"todos": [{"id": "1", "content": "look", "status": "in_progress"}]}
    command = {"command": "echo one; sleep 0.6; echo two"}
    write_home(
        home, [{"calls": [{"call": "todo", "arguments": todo}]}, {"call": "terminal", "arguments": command}, HELLO]
    )
    async with started(TestEditor(), tmp_path / "work") as (open, _):
        session = await open.new()
        answer = await open.ask(session.session_id)
        editor = open.editor
        assert answer.stop_reason == "end_turn"
        assert editor.text == "Hello."
        assert [(one.title, one.kind, one.status) for one in editor.of("tool_call")] == [
            ("todo", "think", "in_progress"),
            ("echo one; sleep 0.6; echo two", "execute", "in_progress"),
        ]
        assert [entry.content for entry in editor.of("plan")[0].entries] == ["look"]
        updates = editor.of("tool_call_update")
        live, done = next(one for one in updates if one.status is None), updates[-1]
        assert live.content[0].content.text == "```\none\n```"
        assert (done.status, done.content[0].content.text) == ("completed", "```\none\ntwo\n```")
        usage = editor.of("usage_update")[-1]
        assert (usage.size, usage.cost.amount, usage.cost.currency) == (128_000, 0.01, "USD")
        assert editor.of("session_info_update")[-1].title == "go"
        # Offered after the answer to session/new: some editors hang otherwise.
        heard = [one.get("method") or one["id"] for one in editor.messages if one["direction"] == "incoming"]
        assert heard[:3] == [0, 1, "session/update"]
        assert editor.updates[0].session_update == "available_commands_update"


async def test_sessions_are_listed_loaded_resumed_forked_and_closed(home: Path, tmp_path: Path) -> None:
    """Every session is one of our store; loading shows all of it again, resuming nothing."""
    write_home(
        home,
        [
            {"say": "Hm.", "reasoning": "I think.", "call": "write_file", "arguments": {"path": "a", "content": "1\n"}},
            HELLO,
        ],
    )
    async with connected(TestEditor(), tmp_path / "work") as open:
        conn, editor, cwd = open.conn, open.editor, str(open.folder)
        empty, session = await open.new(), await open.new()
        await open.ask(session.session_id, "Write it")
        listed = await conn.list_sessions(cwd=cwd)
        assert [(one.session_id, one.title, one.cwd) for one in listed.sessions] == [
            (session.session_id, "Write it", cwd)
        ]
        assert (await conn.list_sessions(cwd="/elsewhere")).sessions == []
        await conn.close_session(session_id=session.session_id)
        with pytest.raises(RequestError, match="is not open"):
            await open.ask(session.session_id)

        editor.updates.clear()
        await conn.load_session(cwd=cwd, session_id=session.session_id, mcp_servers=[])
        shown = [one.session_update for one in editor.updates]
        assert shown[:5] == [
            *("user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call", "agent_message_chunk")
        ]
        assert (editor.updates[3].status, editor.updates[3].content[0].new_text) == ("completed", "1\n")

        await conn.close_session(session_id=session.session_id)
        editor.updates.clear()
        await conn.resume_session(cwd=cwd, session_id=session.session_id, mcp_servers=[])
        await editor.until(lambda: editor.updates)
        assert [one.session_update for one in editor.updates] == ["available_commands_update"]

        fork = await conn.fork_session(cwd=cwd, session_id=session.session_id, mcp_servers=[])
        assert fork.session_id not in (session.session_id, empty.session_id)
    with_messages = [one for one in SessionStore(home / "sessions.db").list() if one.message_count]
    assert {one.id for one in with_messages} == {session.session_id, fork.session_id}
    assert next(one for one in with_messages if one.id == fork.session_id).parent_id == session.session_id


async def test_an_unknown_session_is_no_end(home: Path, tmp_path: Path) -> None:
    """Loading a session that is gone answers without one; anything else says which session is missing."""
    write_home(home, [HELLO])
    store = SessionStore(home / "sessions.db")
    foreign = store.create(owner="somebody", cwd=str(tmp_path / "work"))
    store.append(foreign.id, user_message("mine"))
    store.close()
    async with connected(TestEditor(), tmp_path / "work") as open:
        assert (await open.conn.list_sessions()).sessions == []
        with pytest.raises(RequestError, match="no session"):
            await open.conn.resume_session(cwd=str(open.folder), session_id=foreign.id, mcp_servers=[])
        loaded = await open.conn.load_session(cwd=str(open.folder), session_id="gone", mcp_servers=[])
        assert loaded is None or loaded.modes is None
        with pytest.raises(RequestError, match="gone"):
            await open.conn.resume_session(cwd=str(open.folder), session_id="gone", mcp_servers=[])
        with pytest.raises(RequestError, match="absolute path"):
            await open.conn.new_session(cwd="not/absolute", mcp_servers=[])
        await open.conn.cancel(session_id="gone")
        assert (await open.ask((await open.new()).session_id)).stop_reason == "end_turn"


async def test_the_mode_and_the_model_are_options(home: Path, tmp_path: Path) -> None:
    """The modes of the chat and the configured models; every change is reported in both ways."""
    config = "agent: {mode: ask}\n"
    write_home(home, [HELLO], config)
    async with connected(TestEditor(), tmp_path / "work") as open:
        session = await open.new()
        assert session.modes is not None
        assert session.modes.current_mode_id == "ask"
        assert [one.id for one in session.modes.available_modes] == ["ask", "auto-edit", "plan"]
        await open.conn.set_session_mode(session_id=session.session_id, mode_id="plan")
        await open.editor.until(lambda: open.editor.of("config_option_update"))
        assert open.editor.of("current_mode_update")[0].current_mode_id == "plan"
        answer = await open.conn.set_config_option(config_id="mode", session_id=session.session_id, value="auto-edit")
        assert answer is not None
        current = {one.id: one.current_value for one in answer.config_options}
        assert current == {"mode": "auto-edit", "model": "scripted/x"}
        with pytest.raises(RequestError, match="no mode 'yolo'"):
            await open.conn.set_session_mode(session_id=session.session_id, mode_id="yolo")


async def test_commands_of_ours_and_of_the_person(home: Path, tmp_path: Path) -> None:
    """A Markdown file is a command that asks; /undo takes back the files of the last question."""
    earlier = {"call": "write_file", "arguments": {"path": "kept.txt", "content": "kept\n"}}
    edit = {"call": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}}
    write_home(home, [earlier, {"say": "Made."}, edit, {"say": "Done."}, {"say": "Reviewed."}])
    (home / "commands").mkdir()
    (home / "commands" / "review.md").write_text("Review $ARGUMENTS now.")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("old\n")
    async with connected(TestEditor(), folder) as open:
        session = await open.new()
        await open.editor.until(lambda: open.editor.of("available_commands_update"))
        offered = {one.name for one in open.editor.of("available_commands_update")[0].available_commands}
        assert {"undo", "compress", "review"} <= offered
        await open.ask(session.session_id, "Make it")
        await open.ask(session.session_id, "Change it")
        assert (folder / "a.txt").read_text() == "new\n"
        await open.ask(session.session_id, "/undo")
        assert (folder / "a.txt").read_text() == "old\n"
        assert (folder / "kept.txt").read_text() == "kept\n"
        await open.ask(session.session_id, "/review the code")
    stored = SessionStore(home / "sessions.db").messages(session.session_id)
    assert [one.message.text for one in stored if one.message.role == "user"] == ["Make it", "Review the code now."]


@pytest.mark.services
async def test_killing_the_editor_loses_nothing(home: Path, tmp_path: Path) -> None:
    """The program ends when its editor is gone, and the store has what was said and done."""
    write_home(home, [{"say": "Wait.", "call": "terminal", "arguments": {"command": "echo before; sleep 60"}}])
    async with started(TestEditor(), tmp_path / "work") as (open, process):
        session = await open.new()
        working = asyncio.ensure_future(open.ask(session.session_id, "Sleep"))
        await open.editor.until(lambda: [one for one in open.editor.of("tool_call_update") if one.content])
        # Nobody reads or writes any more, as after `kill -9` of the editor.
        process._transport.get_pipe_transport(0).abort()
        process._transport.get_pipe_transport(1).close()
        async with asyncio.timeout(30):
            assert await process.wait() == 0
        working.cancel()
    stored = [one.message for one in SessionStore(home / "sessions.db").messages(session.session_id)]
    assert [one.role for one in stored] == ["user", "assistant", "tool"]
    assert "before" in stored[2].text


def test_servers_of_the_editor_get_no_trust_by_name() -> None:
    """A server of the config keeps its trust only if it is the same; variables of ours are not filled in."""
    configured = {"time": McpServerSettings(command="time-server", trust="all")}
    given = [
        McpServerStdio(name="time", command="time-server", args=[], env=[]),
        McpServerStdio(name="time", command="other", args=[], env=[]),
        HttpMcpServer(type="http", name="my docs", url="http://127.0.0.1:1/mcp", headers=[]),
        McpServerStdio(name="thief", command="thief", args=["${OPENAI_API_KEY}"], env=[]),
    ]
    found = with_editor_servers(given, configured, "read_only")
    assert {name: one.trust for name, one in found.servers.items()} == {
        "time": "all",
        "time-editor": "read_only",
        "my-docs": "read_only",
    }
    assert "thief" in found.problems[0]


def test_reasoning_and_notices_are_thoughts_and_refused_calls_are_shown() -> None:
    """What the model thinks, what subagents do, and calls that never started, in updates that editors know."""
    translator = EventTranslator("/work", None, list)
    subagent = events.SubagentProgressed(child_id="c", goal="look", state="working", what="read_file a")
    told = [events.ReasoningStreamed(text="Hm."), subagent, events.Notified(kind="retry", message="again")]
    updates = [update for event in told for update in translator.of(event)]
    assert [one.session_update for one in updates] == ["agent_thought_chunk"] * 3
    assert updates[0].content.text == "Hm."
    refused = events.CallFinished(call_id="1", name="terminal", status="blocked", text="", error_message="not now")
    start, end = translator.of(refused)
    assert (start.session_update, start.tool_call_id, end.status) == ("tool_call", "1", "failed")
    assert "not now" in end.content[0].content.text
