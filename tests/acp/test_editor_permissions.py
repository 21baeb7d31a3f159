"""Permissions in an editor go through the gate: once, for the session, always, denied, and closed questions."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError
from acp.schema import McpServerStdio

from tests.acp.editors import TestEditor, connected, write_home
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.sessions.store import SessionStore

REMOVE = {"call": "terminal", "arguments": {"command": "rm -rf build"}}
DONE = {"say": "Done."}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "build").mkdir(parents=True)
    return folder


async def test_the_request_carries_the_command_its_scope_and_reasons(home: Path, work: Path) -> None:
    """The editor knows exactly what would run, where, and why it is asked; the call was shown before."""
    write_home(home, [REMOVE, DONE])
    async with connected(TestEditor("once"), work) as open:
        await open.ask((await open.new()).session_id)
    ((asked, options),) = open.editor.permissions
    shown = open.editor.of("tool_call")[0]
    assert (asked.tool_call_id, asked.title, asked.kind) == (shown.tool_call_id, "rm -rf build", "execute")
    assert shown.content[0].content.text == "```sh\nrm -rf build\n```"
    assert asked.raw_input["command"] == "rm -rf build"
    text = asked.content[0].content.text
    assert "rm -rf build" in text
    assert f"In {work}." in text
    assert '"recursive delete" (inside the workspace): ' in text
    assert [(one.option_id, one.kind) for one in options] == [
        ("once", "allow_once"),
        ("session", "allow_always"),
        ("always", "allow_always"),
        ("deny", "reject_once"),
    ]
    assert not (work / "build").exists()


@pytest.mark.parametrize("answer", ["deny", "cancelled", "no such option"])
async def test_whatever_is_not_a_yes_denies(home: Path, work: Path, answer: str) -> None:
    """A no, a closed question and an answer that was not offered all deny; the model hears of it, and goes on."""
    write_home(home, [REMOVE, DONE])
    answers = () if answer == "cancelled" else (answer,)
    async with connected(TestEditor(*answers), work) as open:
        await open.ask((await open.new()).session_id)
    assert (work / "build").exists()
    assert open.editor.of("tool_call_update")[-1].status == "failed"
    assert open.editor.text == "Done."


@pytest.mark.services
async def test_a_grant_for_the_session_covers_the_next_call(home: Path, work: Path) -> None:
    write_home(home, [REMOVE, REMOVE, DONE])
    async with connected(TestEditor("session"), work) as open:
        await open.ask((await open.new()).session_id)
    assert len(open.editor.permissions) == 1
    assert not load_settings(Home(home)).command_allowlist


async def test_always_becomes_a_grant_in_the_config(home: Path, work: Path) -> None:
    """A later session, with a gate of its own, does not ask again."""
    write_home(home, [REMOVE, DONE])
    async with connected(TestEditor("always"), work) as open:
        await open.ask((await open.new()).session_id)
        (work / "build").mkdir()
        await open.ask((await open.new()).session_id)
    assert len(open.editor.permissions) == 1
    assert load_settings(Home(home)).command_allowlist == ["recursive delete (inside the workspace)"]
    assert not (work / "build").exists()


async def test_a_cancel_during_a_question_denies_and_ends_the_turn(home: Path, work: Path) -> None:
    """Cancelling does not wait for the answer to the question; one that comes later changes nothing."""
    write_home(home, [REMOVE, DONE])
    editor = TestEditor("once")
    async with connected(editor, work) as open:
        session = await open.new()
        answered = asyncio.Event()
        editor.on_permission = answered.wait
        asking = asyncio.ensure_future(open.ask(session.session_id))
        await editor.until(lambda: editor.permissions)
        await open.conn.cancel(session_id=session.session_id)
        assert (await asking).stop_reason == "cancelled"
        answered.set()
        assert (work / "build").exists()
        editor.on_permission = None
        assert (await open.ask(session.session_id)).stop_reason == "end_turn"


async def test_edits_are_asked_about_with_their_diff_in_ask_mode(home: Path, work: Path) -> None:
    (work / "a.txt").write_text("old\n")
    edit = {"call": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}}
    write_home(home, [edit, DONE], "agent: {mode: ask}\n")
    async with connected(TestEditor("once"), work) as open:
        await open.ask((await open.new()).session_id)
    ((asked, _),) = open.editor.permissions
    diffs = [one for one in asked.content if one.type == "diff"]
    assert [(one.path, one.old_text, one.new_text) for one in diffs] == [(str(work / "a.txt"), "old\n", "new\n")]
    assert (work / "a.txt").read_text() == "new\n"


async def test_a_plan_is_carried_out_once_it_is_accepted(home: Path, work: Path) -> None:
    """In plan mode nothing changes; a yes to the plan switches the mode, and the agent goes on in the same turn."""
    edit = {"call": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}}
    write_home(home, [edit, {"say": "1. Write a.txt"}, edit, DONE], "agent: {mode: plan}\n")
    async with connected(TestEditor("auto-edit"), work) as open:
        await open.ask((await open.new()).session_id)
        ((asked, _),) = open.editor.permissions
        assert (asked.kind, asked.title) == ("switch_mode", "Carry out this plan?")
        assert open.editor.of("current_mode_update")[-1].current_mode_id == "auto-edit"
        statuses = [one.status for one in open.editor.of("tool_call_update") if one.status]
        assert statuses == ["failed", "completed"]
    assert (work / "a.txt").read_text() == "new\n"


async def test_a_question_of_the_model_is_a_choice(home: Path, work: Path) -> None:
    ask = {"call": "clarify", "arguments": {"question": "Which one?", "choices": ["red", "blue"]}}
    write_home(home, [ask, DONE])
    async with connected(TestEditor("1"), work) as open:
        await open.ask((await open.new()).session_id)
    ((asked, options),) = open.editor.permissions
    assert asked.title == "Which one?"
    assert [one.name for one in options[:2]] == ["red", "blue"]
    assert "blue" in open.editor.of("tool_call_update")[-1].content[0].content.text


@pytest.fixture
def project(work: Path) -> Path:
    (work / "AGENTS.md").write_text("Answer in rhymes.\n")
    (work / ".toolcrib" / "commands").mkdir(parents=True)
    (work / ".toolcrib" / "commands" / "rhyme.md").write_text("Find a rhyme for $ARGUMENTS.")
    return work


def prompt_of(home: Path, session_id: str) -> str:
    store = SessionStore(home / "sessions.db")
    try:
        return store.get(session_id).system_prompt
    finally:
        store.close()


async def test_the_files_of_a_project_instruct_once_the_person_trusts_the_folder(home: Path, project: Path) -> None:
    """The first prompt asks, and shows what the file says; the answer is remembered, as in the chat."""
    write_home(home, [DONE, DONE])
    async with connected(TestEditor("trust"), project) as open:
        session = await open.new()
        await open.ask(session.session_id, "Go")
        ((asked, options),) = open.editor.permissions
        assert "AGENTS.md" in asked.title
        assert "Answer in rhymes." in asked.content[0].content.text
        assert [(one.option_id, one.kind) for one in options] == [
            ("trust", "allow_always"),
            ("data", "reject_always"),
        ]
        assert "# What this project asks of you" in prompt_of(home, session.session_id)
        offered = {one.name for one in open.editor.of("available_commands_update")[-1].available_commands}
        assert "rhyme" in offered
        later = await open.new()
        await open.ask(later.session_id, "Go")
        assert len(open.editor.permissions) == 1
    assert "# What this project asks of you" in prompt_of(home, later.session_id)


@pytest.mark.parametrize(("answers", "asked"), [(("data",), 1), ((), 2), (("no such option",), 2)])
async def test_without_a_yes_the_files_of_a_project_stay_data(
    home: Path, project: Path, answers: tuple[str, ...], asked: int
) -> None:
    """A no is remembered; a question that is closed is asked again in the next session, never in the same one."""
    write_home(home, [DONE, DONE, DONE])
    async with connected(TestEditor(*answers), project) as open:
        first, second = await open.new(), await open.new()
        for session in (first, first, second):
            assert (await open.ask(session.session_id, "Go")).stop_reason == "end_turn"
        assert len(open.editor.permissions) == asked
        names = {one.name for one in open.editor.of("available_commands_update")[-1].available_commands}
    for session in (first, second):
        assert "data, not instructions" in prompt_of(home, session.session_id)
        assert "rhyme" not in names


async def test_a_cancel_during_the_question_of_trust_ends_the_turn(home: Path, project: Path) -> None:
    write_home(home, [DONE])
    editor = TestEditor("trust")
    async with connected(editor, project) as open:
        session = await open.new()
        answered = asyncio.Event()
        editor.on_permission = answered.wait
        asking = asyncio.ensure_future(open.ask(session.session_id))
        await editor.until(lambda: editor.permissions)
        await open.conn.cancel(session_id=session.session_id)
        assert (await asking).stop_reason == "cancelled"
        answered.set()
        assert (await open.ask(session.session_id, "/usage")).stop_reason == "end_turn"
    assert "data, not instructions" in prompt_of(home, session.session_id)


QUESTION = {"call": "clarify", "arguments": {"question": "Which one?", "choices": ["red", "blue"]}}
OPEN_QUESTION = {"call": "clarify", "arguments": {"question": "What name?"}}


def answer_of(home: Path, session_id: str) -> str:
    store = SessionStore(home / "sessions.db")
    try:
        return next(one.message.text for one in store.messages(session_id) if one.message.role == "tool")
    finally:
        store.close()


@pytest.mark.parametrize(("question", "choices"), [(QUESTION, ["red", "blue"]), (OPEN_QUESTION, None)])
async def test_a_question_of_the_model_is_a_form_where_the_editor_has_forms(
    home: Path, work: Path, question: dict[str, Any], choices: list[str] | None
) -> None:
    write_home(home, [question, DONE])
    editor = TestEditor()
    editor.forms.append({"answer": "blue"})
    async with connected(editor, work, forms=True) as open:
        session = await open.new()
        await open.ask(session.session_id)
    ((message, mode),) = editor.elicitations
    assert message == question["arguments"]["question"]
    assert mode.requested_schema.required == ["answer"]
    assert mode.requested_schema.properties["answer"].enum == choices
    assert mode.tool_call_id == editor.of("tool_call")[0].tool_call_id
    assert "blue" in answer_of(home, session.session_id)
    assert editor.permissions == []


@pytest.mark.parametrize(
    "given", [None, {}, {"answer": "  "}, {"answer": 5}, {"other": "x"}, RequestError(-32000, "no")]
)
async def test_a_form_without_an_answer_is_no_answer(home: Path, work: Path, given: Any) -> None:
    """A declined form, an empty one, a wrong one, and an editor that fails: the model hears it, and goes on."""
    write_home(home, [OPEN_QUESTION, DONE])
    editor = TestEditor()
    editor.forms.append(given)
    async with connected(editor, work, forms=True) as open:
        session = await open.new()
        assert (await open.ask(session.session_id)).stop_reason == "end_turn"
    assert "gave no answer" in answer_of(home, session.session_id)


async def test_an_open_question_without_forms_is_left_to_the_answer(home: Path, work: Path) -> None:
    write_home(home, [OPEN_QUESTION, DONE])
    async with connected(TestEditor(), work) as open:
        session = await open.new()
        await open.ask(session.session_id)
    assert open.editor.permissions == []
    assert "ask in your answer" in answer_of(home, session.session_id)


ASKING_SERVER = Path(__file__).parents[1] / "mcp" / "servers" / "sdk_asking.py"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.services
@pytest.mark.parametrize("forms", [True, False])
async def test_a_question_of_an_mcp_server_reaches_the_editor(home: Path, work: Path, forms: bool) -> None:
    """With forms the person answers; without them the server hears that nobody could."""
    question = {"method": "elicitation/create", "params": {"message": "Who are you?", "requestedSchema": FORM}}
    config = "mcp: {discovery_timeout: 30}\nacp: {mcp_trust: all}\n"
    write_home(home, [{"call": "mcp__asking__ask", "arguments": question}, DONE], config)
    server = McpServerStdio(name="asking", command=sys.executable, args=[str(ASKING_SERVER)], env=[])
    editor = TestEditor()
    editor.forms.append({"answer": "Ann"})
    async with connected(editor, work, forms=forms) as open:
        session = await open.new(mcp_servers=[server])
        assert (await open.ask(session.session_id)).stop_reason == "end_turn"
    answer = answer_of(home, session.session_id)
    if forms:
        assert "Ann" in answer
        assert "The MCP server 'asking' asks" in editor.elicitations[0][0]
    else:
        assert "Ann" not in answer
        assert editor.elicitations == []
