"""An editor that does everything wrong: the agent answers every request once, by the schema, and goes on."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acp.agent.connection import AgentSideConnection
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.acp.editors import LIMIT_SECONDS, TestEditor, check_transcript, connected, write_home
from toolcrib.acp.agent import EditorAgent
from toolcrib.acp.program import open_own_sessions
from toolcrib.acp.transport import StdioTransport, encoded, is_message
from toolcrib.sessions.store import SessionStore

STEPS = [
    {"say": "One.", "call": "terminal", "arguments": {"command": "rm -rf build"}, "delay_seconds": 0.02},
    {"say": "Two."},
    {"call": "terminal", "arguments": {"command": "sleep 0.05"}, "delay_seconds": 0.02},
    {"call": "write_file", "arguments": {"path": "a.txt", "content": "x"}},
    {"say": "Three.", "delay_seconds": 0.02},
]
JUNK: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
TEXTS = st.sampled_from(["go", "", " ", "/undo", "/usage", "/compress", "/nothing", "\ud800 half", "x" * 200_000])
WHICH = st.sampled_from([0, 0, 0, 1, 2])
"""Which of the sessions so far; one that does not exist if there are fewer."""
PROMPT = st.tuples(st.just("prompt"), WHICH, TEXTS)
CANCEL = st.tuples(st.just("cancel"), WHICH)
WAIT = st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.05, 0.2]))
SETTLED = st.tuples(st.just("new"), st.just("settled"))
LINES = st.sampled_from([b"{", b"[]", b'"x"', b"\xff\xfe", b"", b'{"id":[1],"result":1}'])
METHODS = ["session/new", "session/prompt", "session/list", "session/load", "initialize", "none", "_x"]
OTHERS = st.one_of(
    st.tuples(st.just("initialize")),
    st.tuples(st.just("new")),
    *(st.tuples(st.just(what), WHICH) for what in ("load", "resume", "fork", "close")),
    st.tuples(st.just("mode"), WHICH, st.sampled_from(["ask", "plan", "auto-edit", "yolo"])),
    st.tuples(st.just("junk"), JUNK),
    st.tuples(st.just("request"), st.sampled_from(METHODS), JUNK),
    st.tuples(st.just("line"), LINES),
)
ACTIONS = st.one_of(PROMPT, CANCEL, WAIT, OTHERS, PROMPT, SETTLED)
ANSWERS = st.sampled_from(
    [
        {"result": {"outcome": {"outcome": "selected", "optionId": "once"}}},
        {"result": {"outcome": {"outcome": "selected", "optionId": "nonsense"}}},
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"result": {"outcome": 5}},
        {"result": None},
        {"error": {"code": -1, "message": "no"}},
        {"error": "no"},
        {"error": {"code": "x"}},
        [{"result": {"outcome": {"outcome": "cancelled"}}}, {"result": None}],
        None,
    ]
)
"""What the editor answers when it is asked for permission; a list: several times; None: nothing."""


class RoughEditor:
    """Writes whatever it is told, and keeps what it hears."""

    def __init__(self, folder: Path, answers: Iterator[Any]) -> None:
        self._folder = folder
        self._answers = answers
        self._next_id = 0
        self._answered = asyncio.Event()
        self.asked: dict[int, str] = {}
        self.heard: dict[int, int] = {}
        """How many answers each request got."""
        self.sessions: list[str] = []
        self.transcript: list[dict[str, Any]] = []

    async def run(self, actions: list[tuple[Any, ...]]) -> None:
        to_agent, to_editor = os.pipe(), os.pipe()
        agent = EditorAgent(open_own_sessions)
        ours = await StdioTransport.open(os.fdopen(to_agent[0], "rb", 0), os.fdopen(to_editor[1], "wb", 0))
        self._pipe = await StdioTransport.open(os.fdopen(to_editor[0], "rb", 0), os.fdopen(to_agent[1], "wb", 0))
        served = AgentSideConnection(agent, ours, use_unstable_protocol=True)
        listening = asyncio.ensure_future(self._listen())
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                for action in actions:
                    await self._do(*action)
                # It is still there, and knows what it does not know.
                await self._ask("nonsense", {})
                while set(self.asked) - set(self.heard):
                    await asyncio.sleep(0.2)
                    for session_id in self.sessions:
                        await self._send({"method": "session/cancel", "params": {"sessionId": session_id}})
                await agent.close()
        finally:
            await served.close()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await self._pipe.close()

    async def _do(self, what: str, *given: Any) -> None:
        cwd = {"cwd": str(self._folder), "mcpServers": []}
        if what == "wait":
            await asyncio.sleep(given[0])
        elif what == "line":
            self._pipe._writer.write(given[0] + b"\n")
        elif what == "junk":
            await self._send(given[0] if isinstance(given[0], dict) else {"method": given[0]})
        elif what == "request":
            await self._ask(given[0], given[1])
        elif what == "initialize":
            await self._ask("initialize", {"protocolVersion": 1})
        elif what == "new":
            self._answered.clear()
            await self._ask("session/new", cwd)
            while given and self._next_id not in self.heard:
                await self._answered.wait()
                self._answered.clear()
        else:
            await self._do_in_session(what, self.sessions[given[0]] if given[0] < len(self.sessions) else "gone", given)

    async def _do_in_session(self, what: str, session_id: str, given: tuple[Any, ...]) -> None:
        about = {"sessionId": session_id}
        if what == "cancel":
            await self._send({"method": "session/cancel", "params": about})
        elif what == "prompt":
            await self._ask("session/prompt", {**about, "prompt": [{"type": "text", "text": given[1]}]})
        elif what == "mode":
            await self._ask("session/set_mode", {**about, "modeId": given[1]})
        else:
            await self._ask(f"session/{what}", {**about, "cwd": str(self._folder), "mcpServers": []})

    async def _ask(self, method: str, params: Any) -> None:
        self._next_id += 1
        self.asked[self._next_id] = method
        await self._send({"id": self._next_id, "method": method, "params": params})

    async def _send(self, message: dict[str, Any]) -> None:
        await self._pipe.send({"jsonrpc": "2.0", **message})

    async def _listen(self) -> None:
        while (message := await self._pipe.receive()) is not None:
            if "method" in message:
                self.transcript.append({"direction": "incoming", **message})
                answer = next(self._answers, None) if "id" in message else None
                for one in answer if isinstance(answer, list) else filter(None, [answer]):
                    await self._send({"id": message["id"], **one})
                continue
            if isinstance(message.get("id"), int):
                self.heard[message["id"]] = self.heard.get(message["id"], 0) + 1
                self._answered.set()
                method = self.asked[message["id"]]
                if "result" in message and method in ("session/new", "session/fork"):
                    self.sessions.append(message["result"]["sessionId"])


@given(actions=st.lists(ACTIONS, min_size=4, max_size=14), answers=st.lists(ANSWERS, max_size=6))
@settings(max_examples=60)
def test_every_request_is_answered_once_whatever_the_editor_does(
    actions: list[tuple[Any, ...]], answers: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        home, folder = Path(scratch) / "home", Path(scratch) / "work"
        (folder / "build").mkdir(parents=True)
        write_home(home, STEPS)
        patch.setenv("TOOLCRIB_HOME", str(home))
        editor = RoughEditor(folder, iter(answers))
        asyncio.run(editor.run([("initialize",), ("new", "settled"), *actions]))
        assert editor.heard == dict.fromkeys(editor.asked, 1)
        check_transcript(editor.transcript)
        # Whatever happened, the store is in order: every call has its result.
        store = SessionStore(home / "sessions.db")
        for session_id in editor.sessions:
            messages = [one.message for one in store.messages(session_id)]
            called = [call.id for one in messages for call in one.tool_calls]
            assert sorted(one.call_id for one in messages if one.role == "tool") == sorted(called)
        store.close()


async def test_a_second_prompt_is_refused_while_the_first_goes_on(home: Path, tmp_path: Path) -> None:
    write_home(home, [{"say": "One.", "delay_seconds": 0.2}])
    folder = tmp_path / "work"
    folder.mkdir()
    editor = RoughEditor(folder, iter(()))
    await editor.run(
        [("initialize",), ("new", "settled"), ("prompt", 0, "first"), ("prompt", 0, "second"), ("wait", 0.5)]
    )
    assert editor.heard == dict.fromkeys(editor.asked, 1)
    stored = SessionStore(home / "sessions.db").messages(editor.sessions[0])
    assert [one.message.text for one in stored] == ["first", "One."]


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("updates", range(9))
async def test_a_cancel_at_any_point_ends_the_turn_in_order(home: Path, tmp_path: Path, updates: int) -> None:
    """After so many updates: before the model, in its text, during a command, a question, an edit, or too late."""
    write_home(home, STEPS)
    editor = TestEditor("once")
    async with connected(editor, tmp_path / "work") as open:
        session = await open.new()
        await editor.until(lambda: editor.updates)
        asking = asyncio.ensure_future(open.ask(session.session_id))
        asking.add_done_callback(lambda _: editor.changed.set())
        await editor.until(lambda: len(editor.updates) > updates or asking.done())
        await open.conn.cancel(session_id=session.session_id)
        assert (await asking).stop_reason in ("cancelled", "end_turn")
        assert (await open.ask(session.session_id, "/usage")).stop_reason == "end_turn"
    messages = [one.message for one in SessionStore(home / "sessions.db").messages(session.session_id)]
    called = [call.id for one in messages for call in one.tool_calls]
    assert sorted(one.call_id for one in messages if one.role == "tool") == sorted(called)


def test_messages_are_valid_json_whatever_they_hold() -> None:
    """Half characters and numbers that JSON lacks do not leave this process."""
    line = encoded({"a": "\ud800", "b": float("nan"), "c": [float("inf")], 1: "ä"})
    assert json.loads(line.decode()) == {"a": "?", "b": None, "c": [None], "1": "ä"}


@pytest.mark.parametrize("message", [[], 5, {"id": {}, "result": 1}, {"id": True, "method": "x"}, {"method": 5}, {}])
def test_what_is_no_message_does_not_reach_the_sdk(message: Any) -> None:
    assert not is_message(message)
