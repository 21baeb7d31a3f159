"""`toolcrib sessions …`: what is listed, shown, found, replayed, exported and deleted."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_program import Program
from toolcrib.core.messages import Message, RequestedCall, user_message
from toolcrib.core.models import Usage
from toolcrib.sessions.store import SessionStore
from toolcrib.undo.files import FileState
from toolcrib.undo.store import CallStart, UndoStore

KEY = "sk-" + "a1B2" * 8
DAY = 86_400


class Clock:
    """Goes on by one second with each look, from where it is put."""

    def __init__(self) -> None:
        self.now = time.time() - 3600

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(toolcrib: Program, clock: Clock) -> Iterator[SessionStore]:
    opened = SessionStore(toolcrib.home / "sessions.db", clock=clock)
    yield opened
    opened.close()


def talk(store: SessionStore, title: str = "Files", **fields: str) -> str:
    """A session in which a question was answered with the help of one call."""
    session = store.create(title=title, model="small", provider="scripted", **{"source": "cli", **fields})  # type: ignore[arg-type]
    asked = RequestedCall(id="c1", name="terminal", arguments='{"command": "ls"}')
    store.append(session.id, user_message(f"What is in the harbour of {title}?"))
    store.append(session.id, Message(role="assistant", content="I look.", tool_calls=(asked,), reasoning="by ls"))
    store.append(session.id, Message(role="tool", name="terminal", call_id="c1", content="boat\n" * 40))
    usage = Usage(input_tokens=1200, output_tokens=34, cost_usd=0.5)
    store.append(session.id, Message(role="assistant", content=f"A boat, and the key {KEY}."), usage=usage)
    return session.id


READING = [
    ["list"],
    ["show"],
    ["search", "x"],
    ["replay"],
    ["export", "--all"],
    ["stats"],
    ["delete", "--older-than", "1d"],
]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_looking_at_an_empty_home_creates_nothing(toolcrib: Program, arguments: list[str]) -> None:
    """Without sessions every command says so, in words that say what to type, and leaves no database behind."""
    outcome = toolcrib("sessions", *arguments)

    assert outcome.code == (2 if arguments[0] in ("show", "replay") else 0)
    assert not (toolcrib.home / "sessions.db").exists()
    if arguments[0] in ("list", "search", "stats", "show", "replay"):
        assert "`toolcrib chat`" in outcome.stdout + outcome.stderr


def test_sessions_are_listed_latest_first(toolcrib: Program, store: SessionStore) -> None:
    """The table has what one recognises a conversation by; helpers' own ones stay out unless asked for."""
    old, new = talk(store, "Brest"), talk(store, "Lisbon")
    helper = talk(store, "Helper", source="subagent", parent_id=new, parent_kind="delegate")

    lines = toolcrib("sessions", "list").stdout.splitlines()
    found = json.loads(toolcrib("sessions", "list", "--json", "--all").stdout)

    assert lines[0].split() == ["ID", "LAST", "USED", "MESSAGES", "CALLS", "MODEL", "TITLE"]
    assert [line.split()[0] for line in lines[1:]] == [new, old]
    assert lines[1].endswith("Lisbon")
    assert [one["id"] for one in found] == [helper, new, old]
    assert (found[1]["messages"], found[1]["calls"], found[1]["usage"]["cost_usd"]) == (4, 1, 0.5)


def test_a_list_can_be_narrowed(toolcrib: Program, store: SessionStore, tmp_path: Path) -> None:
    """By source, folder and count; nothing found is said, not failed."""
    here = talk(store, "Here", cwd=str(tmp_path.resolve()))
    talk(store, "There", cwd="/elsewhere", source="cron")

    assert [one["id"] for one in json.loads(toolcrib("sessions", "list", "--here", "--json").stdout)] == [here]
    assert "There" in toolcrib("sessions", "list", "--source", "cron").stdout
    assert len(json.loads(toolcrib("sessions", "list", "-n", "1", "--json").stdout)) == 1
    assert "No session matches" in toolcrib("sessions", "list", "--source", "nowhere").stdout


def test_a_conversation_is_printed(toolcrib: Program, store: SessionStore) -> None:
    """Who said what and when, the calls with their results; long results are cut unless all is asked for."""
    session = talk(store)

    shown = toolcrib("sessions", "show", session)
    full = toolcrib("sessions", "show", session, "--full", "--reasoning").stdout

    assert shown.code == 0
    assert "What is in the harbour of Files?" in shown.stdout
    assert '  > terminal {"command": "ls"}' in shown.stdout
    assert "  < terminal: ok" in shown.stdout
    assert shown.stdout.count("    boat") == 12
    assert "--full shows them" in shown.stdout
    assert "1,200 in, 34 out, 0.5000 US dollars" in shown.stdout
    assert full.count("    boat") == 40
    assert "| by ls" in full


def test_the_latest_is_meant_without_an_id_and_a_beginning_is_enough(toolcrib: Program, store: SessionStore) -> None:
    """`last`, nothing, and the beginning of an id name a session."""
    talk(store, "Brest")
    session = talk(store, "Lisbon")

    for arguments in ([], ["last"], [session[:-1]]):
        assert json.loads(toolcrib("sessions", "show", *arguments, "--json").stdout)["id"] == session


def test_show_as_json_has_the_whole_transcript(toolcrib: Program, store: SessionStore) -> None:
    """Messages, calls, lineage and states are there for programs; folded and undone ones with flags."""
    parent = talk(store)
    child = store.branch(parent).id
    ids = [one.id for one in store.messages(child)]
    store.fold(child, ids[:1], Message(role="user", content="in short"))
    store.undo(child, ids[3])

    plain = json.loads(toolcrib("sessions", "show", child, "--json").stdout)
    everything = json.loads(toolcrib("sessions", "show", child, "--json", "--folded", "--undone").stdout)
    text = toolcrib("sessions", "show", child, "--undone", "--folded").stdout

    assert plain["lineage"] == [parent]
    assert [one["state"] for one in plain["transcript"]] == ["live"] * 3
    assert plain["transcript"][1]["tool_calls"][0] == {
        "id": "c1", "name": "terminal", "arguments": '{"command": "ls"}', "outcome_unknown": False,
    }  # fmt: skip
    assert [one["state"] for one in everything["transcript"]] == ["live", "folded", "live", "live", "undone"]
    assert "(replaced by a summary)" in text
    assert "(undone)" in text


def test_an_unknown_outcome_is_shown(toolcrib: Program, store: SessionStore) -> None:
    """A call that was cut short is marked for the reader, wherever the conversation is printed."""
    session = store.create(source="cli")
    asked = RequestedCall(id="c1", name="terminal", arguments="{}")
    store.append(session.id, Message(role="assistant", tool_calls=(asked,)))
    answer = json.dumps({"error": "Outcome unknown: it was started", "status": "unknown"})
    store.append(session.id, Message(role="tool", name="terminal", call_id="c1", content=answer, status="error"))

    assert "OUTCOME UNKNOWN" in toolcrib("sessions", "show").stdout
    assert "OUTCOME UNKNOWN" in toolcrib("sessions", "replay").stdout
    assert "outcome unknown" in toolcrib("sessions", "export", "last", "-f", "markdown").stdout


@pytest.mark.parametrize("command", ["show", "replay", "export", "delete", "resume"])
def test_an_unknown_id_ends_with_the_nearest(toolcrib: Program, store: SessionStore, command: str) -> None:
    """Exit code 2, one line, and the id that was probably meant."""
    session = talk(store)

    outcome = toolcrib("sessions", command, session[:-2] + "zz")

    assert outcome.code == 2
    assert session in outcome.stderr
    assert "toolcrib sessions list" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_what_was_said_is_found(toolcrib: Program, store: SessionStore) -> None:
    """The words are found with the session, and the search can be narrowed; nothing found is no failure."""
    brest, lisbon = talk(store, "Brest"), talk(store, "Lisbon")

    found = json.loads(toolcrib("sessions", "search", "harbour", "Brest", "--json").stdout)
    table = toolcrib("sessions", "search", "harbour").stdout
    within = json.loads(toolcrib("sessions", "search", "harbour", "--in", lisbon, "--json").stdout)
    newest = json.loads(toolcrib("sessions", "search", "boat", "--sort", "oldest", "--role", "tool", "--json").stdout)

    assert [(one["session_id"], one["role"]) for one in found] == [(brest, "user")]
    assert brest in table
    assert lisbon in table
    assert [one["session_id"] for one in within] == [lisbon]
    assert [(one["session_id"], one["role"]) for one in newest] == [(brest, "tool"), (lisbon, "tool")]
    assert "No message matches" in toolcrib("sessions", "search", "zeppelin").stdout


def test_a_replay_tells_it_again_and_calls_nothing(toolcrib: Program, store: SessionStore) -> None:
    """All messages come in their order, those that a summary replaced too; in a pipe without pauses."""
    session = talk(store)
    ids = [one.id for one in store.messages(session)]
    store.fold(session, ids[:1], Message(role="user", content="in short"))

    outcome = toolcrib("sessions", "replay", session)

    assert outcome.code == 0
    assert "What is in the harbour" in outcome.stdout
    assert outcome.stdout.index("I look.") < outcome.stdout.index("< terminal: ok") < outcome.stdout.index("A boat")
    assert len(store.messages(session)) == 4


def test_a_replay_keeps_the_pace(toolcrib: Program, store: SessionStore, clock: Clock) -> None:
    """With a speed, pauses are as they were, so many times shorter; 0 has none."""
    session = store.create(source="cli").id
    for number in range(3):
        clock.now += 20
        store.append(session, user_message(f"message {number}"))

    started = time.monotonic()
    toolcrib("sessions", "replay", session, "--speed", "0")
    at_once = time.monotonic() - started
    started = time.monotonic()
    toolcrib("sessions", "replay", session, "--speed", "42")
    paced = time.monotonic() - started

    # Two pauses of 21 seconds at 42 times the speed; what the program itself takes is in both.
    assert paced > 1.0
    assert paced - at_once > 0.5


def test_conversations_are_exported_as_messages(toolcrib: Program, store: SessionStore) -> None:
    """One line for each session, with secrets masked."""
    first, second = talk(store, "Brest"), talk(store, "Lisbon")

    lines = toolcrib("sessions", "export", "--all").stdout.splitlines()
    only = toolcrib("sessions", "export", second, second).stdout

    sessions = [json.loads(line) for line in lines]
    assert [one["session_id"] for one in sessions] == [first, second]
    assert sessions[0]["messages"][1]["tool_calls"][0]["function"]["name"] == "terminal"
    assert KEY not in "".join(lines)
    assert json.loads(only)["session_id"] == second


def test_conversations_are_exported_to_files(toolcrib: Program, store: SessionStore, tmp_path: Path) -> None:
    """Trajectories to one file, Markdown to one each in a folder; nothing is overwritten unasked."""
    first, second = talk(store, "Brest"), talk(store, "Lisbon")
    file, folder = tmp_path / "out.jsonl", tmp_path / "notes"
    folder.mkdir()

    wrote = toolcrib("sessions", "export", "--all", "-f", "sharegpt", "-o", str(file))
    again = toolcrib("sessions", "export", "last", "-o", str(file))
    forced = toolcrib("sessions", "export", "last", "-o", str(file), "--force")
    toolcrib("sessions", "export", first, second, "-f", "markdown", "-o", str(folder))

    assert (wrote.code, wrote.stdout) == (0, "")
    assert "Wrote 2 sessions" in wrote.stderr
    assert (again.code, forced.code) == (2, 0)
    assert "--force" in again.stderr
    assert json.loads(file.read_text())["session_id"] == second
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in folder.iterdir()) == sorted([f"{first}.md", f"{second}.md"])
    assert (folder / f"{first}.md").read_text().startswith("# Brest\n")


def test_an_export_to_a_device_leaves_the_device(toolcrib: Program, store: SessionStore) -> None:
    """What is no file is written to, never replaced by one, and needs no --force."""
    session = talk(store)

    outcome = toolcrib("sessions", "export", session, "-o", "/dev/stdout", "--force")

    assert outcome.code == 0
    assert json.loads(outcome.stdout)["session_id"] == session


@pytest.mark.parametrize(
    "arguments",
    [
        ["export"],
        ["export", "last", "--all"],
        ["delete"],
        ["delete", "last", "--older-than", "1d"],
        ["delete", "--older-than", "soon"],
        ["search"],
        ["search", " "],
    ],
    ids=" ".join,
)
def test_unclear_wishes_are_refused(toolcrib: Program, store: SessionStore, arguments: list[str]) -> None:
    """Exit code 2, with what to type, and nothing happens."""
    talk(store)

    outcome = toolcrib("sessions", *arguments)

    assert outcome.code == 2
    assert "`toolcrib sessions" in outcome.stderr or "--help" in outcome.stderr
    assert len(store.list()) == 1


def test_deleting_asks_first(toolcrib: Program, store: SessionStore) -> None:
    """Only a yes deletes; where nobody can be asked, nothing is deleted without --yes."""
    session = talk(store)

    unattended = toolcrib("sessions", "delete", session)
    declined = toolcrib.on_terminal("sessions", "delete", session, answers=(("[y/N]", "n"),))
    kept = [one.id for one in store.list()]
    agreed = toolcrib.on_terminal("sessions", "delete", session, answers=(("[y/N]", "y"),))

    assert unattended.code == 2
    assert "--yes" in unattended.stderr
    assert "Nothing was deleted" in declined.stdout
    assert kept == [session]
    assert "Deleted 1 session." in agreed.stdout
    assert store.list() == []


def test_a_conversation_goes_with_its_helpers_and_its_copies(toolcrib: Program, store: SessionStore) -> None:
    """Nothing of it is left: not what its helpers said, nor what undo kept. Branches are conversations of their own."""
    session = talk(store)
    helper = talk(store, "Helper", source="subagent", parent_id=session, parent_kind="delegate")
    talk(store, "Of the helper", source="subagent", parent_id=helper, parent_kind="delegate")
    branch = store.branch(session).id
    undo = UndoStore(toolcrib.home / "cache" / "undo")
    with undo.write() as connection:
        undo.begin(connection, session, CallStart(id="c", tool="write_file", at=1.0), {"/a": FileState(kind="missing")})

    outcome = toolcrib("sessions", "delete", session, "--yes")

    assert "Deleted 3 sessions." in outcome.stdout
    assert [one.id for one in store.list(include_hidden=True)] == [branch]
    assert undo.calls(session) == []


def test_old_conversations_are_deleted_by_age(toolcrib: Program, store: SessionStore, clock: Clock) -> None:
    """What was not used for so long goes; a dry run only says so."""
    clock.now = time.time() - 40 * DAY
    old = talk(store, "Old")
    clock.now = time.time() - 10 * DAY
    new = talk(store, "New")

    dry = toolcrib("sessions", "delete", "--older-than", "30d", "--dry-run")
    before = len(store.list())
    done = toolcrib("sessions", "delete", "--older-than", "30d", "--yes")
    nothing = toolcrib("sessions", "delete", "--older-than", "30d", "--yes")

    assert "1 session would be deleted" in dry.stdout
    assert old in dry.stdout
    assert before == 2
    assert "Deleted 1 session." in done.stdout
    assert [one.id for one in store.list()] == [new]
    assert "nothing was deleted" in nothing.stdout


def test_a_conversation_in_use_is_not_deleted(toolcrib: Program, store: SessionStore) -> None:
    """While another process has a call of it in its hands, it stays."""
    session = store.create(source="cli").id
    asked = RequestedCall(id="c1", name="terminal", arguments="{}")
    store.append(session, Message(role="assistant", tool_calls=(asked,)))

    outcome = toolcrib("sessions", "delete", session, "--yes")

    assert outcome.code == 2
    assert f"process {os.getpid()}" in outcome.stderr
    assert len(store.list()) == 1


def test_totals_are_told(toolcrib: Program, store: SessionStore) -> None:
    """How much there is, by model and tool, for people and for programs."""
    talk(store, "Brest")
    talk(store, "Lisbon")

    text = toolcrib("sessions", "stats").stdout
    stats = json.loads(toolcrib("sessions", "stats", "--json").stdout)

    assert (stats["sessions"], stats["messages"], stats["calls"]) == (2, 8, 2)
    assert "2,400 in, 68 out" in text
    assert "1.0000 US dollars" in text
    assert [line.split() for line in text.splitlines()[-2:]] == [["TOOL", "CALLS"], ["terminal", "2"]]


def test_ids_are_completed(toolcrib: Program, store: SessionStore) -> None:
    """The shell offers the ids, the latest first."""
    session = talk(store)

    outcome = toolcrib(
        _TOOLCRIB_COMPLETE="bash_complete", COMP_WORDS="toolcrib sessions show ", COMP_CWORD="3"
    )  # fmt: skip

    assert [line.split(",")[-1] for line in outcome.stdout.split()] == ["last", session]


def test_a_conversation_fits_a_terminal(toolcrib: Program, store: SessionStore) -> None:
    """In 80 columns the list is a table that fits, and what others wrote cannot steer the terminal."""
    session = store.create(title="evil \x1b[31mred", source="cli").id
    store.append(session, user_message("ring \x07 the \x1b]0;bell\x07"))

    listed = toolcrib.on_terminal("sessions", "list", columns=80).stdout
    shown = toolcrib.on_terminal("sessions", "show", session, columns=80).stdout

    assert "\x1b[31m" not in listed
    assert "\x07" not in shown
    assert "\x1b]0;" not in shown


def test_resuming_goes_on_in_the_same_conversation(toolcrib: Program, store: SessionStore) -> None:
    """The question lands in the session that was named; that nobody answers it is said, with how to go on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    toolcrib.write(
        "config.yaml",
        "model: {default: m, provider: mine, max_retries: 0}\n"
        f"providers: {{mine: {{base_url: 'http://127.0.0.1:{port}/v1'}}}}\n",
    )
    talk(store, "Brest")
    session = talk(store, "Lisbon")
    talk(store, "Porto")

    outcome = toolcrib("sessions", "resume", session, "-q", "And the tide?")

    assert outcome.code == 1
    assert session in outcome.stderr
    assert [one.message.text for one in store.messages(session)][-1] == "And the tide?"
