"""Importing Hermes Agent sessions: what is imported, what is left out, and that the source stays untouched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sessions.hermes_home import OLD_SCHEMA, HermesHome, asks
from toolcrib.core.messages import Image, Text
from toolcrib.core.models import Usage
from toolcrib.sessions.hermes_import import SessionImport, import_sessions, plan_sessions
from toolcrib.sessions.records import StoredMessage
from toolcrib.sessions.recovery import check_transcript
from toolcrib.sessions.search import search_messages
from toolcrib.sessions.store import SessionStore

ALL = ("live", "folded", "undone")
PAGE_BYTES = 4096


@pytest.fixture
def hermes(tmp_path: Path) -> Iterator[HermesHome]:
    home = HermesHome(tmp_path / "hermes")
    yield home
    home.close()


def everything(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


def said(messages: list[StoredMessage]) -> list[tuple[str, str]]:
    return [(one.message.role, one.message.text) for one in messages]


def found(store: SessionStore, typed: str) -> list[str]:
    return [text for _, text in search_messages(store, typed)]


def transcript_problems(store: SessionStore, id: str) -> list[str]:
    return check_transcript(one.message for one in store.messages(id))


def test_a_session_arrives_with_all_that_is_known_about_it(hermes, store):
    """Id, title, source, model, folder, times and totals come from the old home; the system prompt does not."""
    hermes.session(
        "20250101_101010_abc123", title="Deploy", source="telegram", model="m-1", cwd="/srv", started_at=1000.5,
        ended_at=2000.5, end_reason="cli_close", system_prompt="You are Hermes.", input_tokens=100, output_tokens=7,
        cache_read_tokens=30, cache_write_tokens=20, reasoning_tokens=3, estimated_cost_usd=0.25,
    )  # fmt: skip

    assert import_sessions(hermes.root, store) == []

    session = store.get("20250101_101010_abc123")
    assert (session.title, session.source, session.model, session.cwd) == ("Deploy", "telegram", "m-1", "/srv")
    assert (session.created_at, session.updated_at, session.ended_at) == (1000.5, 2000.5, 2000.5)
    assert (session.end_reason, session.system_prompt, session.parent_id) == ("cli_close", "", "")
    assert session.usage == Usage(
        input_tokens=150, output_tokens=7, cached_tokens=30, cache_write_tokens=20, reasoning_tokens=3, cost_usd=0.25
    )


def test_messages_keep_their_order_times_calls_and_reasoning(hermes, store):
    """An imported conversation reads as it did there, and the search finds it."""
    id = hermes.session(started_at=10.0)
    hermes.message(id, "user", "What is in the harbour?", timestamp=11.0)
    hermes.message(id, "assistant", None, tool_calls=asks("c1", "c2"), reasoning="by ls", timestamp=12.0)
    hermes.message(id, "tool", "boat", tool_call_id="c1", tool_name="terminal", timestamp=13.0)
    hermes.message(id, "tool", "buoy", tool_call_id="c2", tool_name="terminal", timestamp=13.5)
    hermes.message(id, "assistant", "A boat and a buoy.", reasoning_content="done", timestamp=14.0)

    import_sessions(hermes.root, store)

    messages = store.messages(id, states=ALL)
    assert [one.created_at for one in messages] == [11.0, 12.0, 13.0, 13.5, 14.0]
    assert said(messages)[0] == ("user", "What is in the harbour?")
    assert [(call.id, call.name, call.arguments) for call in messages[1].message.tool_calls] == [
        ("c1", "terminal", '{"command": "ls"}'),
        ("c2", "terminal", '{"command": "ls"}'),
    ]
    assert [one.message.reasoning for one in messages] == ["", "by ls", "", "", "done"]
    assert [(one.message.call_id, one.message.name) for one in messages[2:4]] == [
        ("c1", "terminal"),
        ("c2", "terminal"),
    ]
    session = store.get(id)
    assert (session.message_count, session.call_count, session.updated_at) == (5, 2, 14.0)
    assert found(store, "harbour") == ["What is in the harbour?"]


def test_a_conversation_goes_on_where_it_ended(hermes, store):
    """Messages appended after an import come after the imported ones."""
    id = hermes.session()
    hermes.message(id, "user", "one")
    hermes.message(id, "assistant", "two")
    import_sessions(hermes.root, store)

    store.append(id, store.messages(id)[0].message)

    assert said(store.messages(id)) == [("user", "one"), ("assistant", "two"), ("user", "one")]


def test_states_follow_the_flags(hermes, store):
    """Active messages are live, compacted ones folded and the others undone."""
    id = hermes.session()
    hermes.message(id, "user", "old", active=0, compacted=1)
    hermes.message(id, "assistant", "", tool_calls=asks("c1"), active=0, compacted=1)
    hermes.message(id, "user", "summary")
    hermes.message(id, "assistant", "", tool_calls=asks("c1"))
    hermes.message(id, "tool", "kept", tool_call_id="c1", tool_name="terminal")
    hermes.message(id, "user", "oops", active=0)

    import_sessions(hermes.root, store)

    states = [(one.state, one.message.text) for one in store.messages(id, states=ALL)]
    assert states == [
        ("folded", "old"),
        ("folded", ""),
        ("live", "summary"),
        ("live", ""),
        ("live", "kept"),
        ("undone", "oops"),
    ]
    assert [call.id for call in store.messages(id)[1].message.tool_calls] == ["c1"]
    assert store.get(id).message_count == 5
    assert transcript_problems(store, id) == []
    assert found(store, "oops") == []


def test_parents_stay_parents(hermes, store):
    """A session's parent is kept, even if only the child is imported now."""
    hermes.session("parent", started_at=1.0)
    hermes.session("child", started_at=2.0, parent_session_id="parent")

    import_sessions(hermes.root, store)

    assert [session.id for session in store.lineage("child")] == ["parent", "child"]
    assert (store.get("child").parent_kind, store.get("parent").parent_kind) == ("branch", "")


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
SHOWN = Image(media_type="image/png", data="aGk=")
CONTENTS: list[tuple[Any, Any]] = [
    (None, ""),
    ("[1, 2]", "[1, 2]"),
    ('[{"type": "invoice"}]', '[{"type": "invoice"}]'),
    ("[not json", "[not json"),
    (json.dumps([{"type": "text", "text": "look"}, PICTURE]), (Text("look"), SHOWN)),
    ("\x00json:" + json.dumps([{"type": "text", "text": "look"}]), (Text("look"),)),
    ("\x00json:" + json.dumps({"_multimodal": True, "content": [PICTURE]}), (SHOWN,)),
    ("\x00json:{broken", "{broken"),
    (b"caf\xe9", "caf\ufffd"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "content"), CONTENTS)
def test_content_is_text_or_parts(hermes, store, stored, content):
    """Text stays unchanged; a list of parts, with or without its prefix, becomes text and images."""
    id = hermes.session()
    hermes.message(id, "user", stored)

    assert import_sessions(hermes.root, store) == []

    assert store.messages(id)[0].message.content == content


def test_a_call_without_a_result_gets_one(hermes, store):
    """A call that a crash left open is repaired, at the time of the session and in its counts."""
    id = hermes.session(ended_at=1500.0)
    hermes.message(id, "user", "go")
    hermes.message(id, "assistant", "", tool_calls=asks("c1", "c2"))
    hermes.message(id, "tool", "late", tool_call_id="c2", tool_name="terminal")
    hermes.message(id, "tool", "whose?", tool_call_id="other", tool_name="terminal")

    import_sessions(hermes.root, store)

    messages = store.messages(id)
    assert transcript_problems(store, id) == []
    assert [one.message.call_id for one in messages if one.message.role == "tool"] == ["c1", "c2"]
    assert "never_run" in messages[2].message.text
    session = store.get(id)
    assert (session.message_count, session.updated_at, messages[2].created_at) == (4, 1500.0, 1500.0)


def test_ids_that_were_given_twice_or_not_at_all_become_their_own(hermes, store):
    """Each result stays with the call it followed, whatever ids the model gave."""
    id = hermes.session()
    hermes.message(id, "user", "go")
    for answer in ("first", "second"):
        hermes.message(id, "assistant", "", tool_calls=asks("call_0"))
        hermes.message(id, "tool", answer, tool_call_id="call_0", tool_name="terminal")
    hermes.message(id, "assistant", "", tool_calls=asks("", ""))
    hermes.message(id, "tool", "third")
    hermes.message(id, "tool", "fourth")
    hermes.message(id, "assistant", "", tool_calls=asks("fc_1").replace('"id"', '"call_id": "call_1", "id"'))
    hermes.message(id, "tool", "fifth", tool_call_id="call_1")

    import_sessions(hermes.root, store)

    results = [one.message for one in store.messages(id) if one.message.role == "tool"]
    assert transcript_problems(store, id) == []
    assert [(result.text, result.call_id) for result in results] == [
        ("first", "call_0"),
        ("second", "call_0-2"),
        ("third", "call"),
        ("fourth", "call-2"),
        ("fifth", "fc_1"),
    ]
    assert {result.name for result in results} == {"terminal"}


def test_answers_without_a_question_are_put_into_turns(hermes, store):
    """Consecutive answers become one, and an answer that comes first gets a message before it."""
    id = hermes.session()
    hermes.message(id, "assistant", "Good morning.", timestamp=1.0)
    hermes.message(id, "assistant", "It rains.", tool_calls=asks("c1"), timestamp=2.0)
    hermes.message(id, "session_meta", "{}")

    import_sessions(hermes.root, store)

    assert said(store.messages(id))[:2] == [
        ("user", "(The agent spoke first.)"),
        ("assistant", "Good morning.\n\nIt rains."),
    ]
    assert transcript_problems(store, id) == []


def test_the_plan_says_what_the_import_does(hermes, store, home):
    """Planning counts new, known and unreadable sessions and changes nothing; a second import finds nothing new."""
    hermes.session("good")
    hermes.session("broken")
    hermes.message("broken", "assistant", "", tool_calls="[{")
    hermes.close()
    before = everything(hermes.root)

    plan = plan_sessions(hermes.root, store)

    assert (plan.new, plan.known, len(plan.unreadable)) == (1, 0, 1)
    assert "'broken'" in plan.unreadable[0]
    assert not (home / "sessions.db").exists()
    assert import_sessions(hermes.root, store) == plan.unreadable
    assert plan_sessions(hermes.root, store) == SessionImport(new=0, known=1, unreadable=plan.unreadable)
    assert everything(hermes.root) == before


@pytest.mark.parametrize("calls", ["[{", '{"id": 1}', '["c1"]', '[{"function": {}}]', '[{"function": 1}]', "[" * 9999])
def test_a_broken_session_costs_only_itself(hermes, store, calls):
    """An unreadable session is left out completely; the sessions before and after it are imported whole."""
    for number, id in enumerate(("before", "broken", "after")):
        hermes.session(id, started_at=float(number))
        hermes.message(id, "user", f"hello {id}")
    hermes.message("broken", "assistant", "", tool_calls=calls)

    (problem,) = import_sessions(hermes.root, store)

    assert "'broken'" in problem
    assert "message 4" in problem
    assert [session.id for session in store.list()] == ["after", "before"]
    assert found(store, "broken") == []


def test_a_session_that_is_here_already_is_left_alone(hermes, store):
    """A session that already exists here stays unchanged."""
    hermes.session("same", title="theirs")
    hermes.message("same", "user", "theirs")
    store.create(session_id="same", title="ours")

    assert import_sessions(hermes.root, store) == []

    assert store.get("same").title == "ours"
    assert store.messages("same") == []


def test_reading_leaves_a_closed_database_as_it_is(hermes, store):
    """No log and no index appear beside a file that no process has open, and its bytes stay the same."""
    hermes.session()
    hermes.close()
    before = everything(hermes.root)

    plan_sessions(hermes.root, store)
    import_sessions(hermes.root, store)

    assert list(before) == ["state.db"]
    assert everything(hermes.root) == before


def test_a_folder_that_cannot_be_written_can_be_read(hermes, store):
    """A home on a read-only backup can be imported like any other."""
    hermes.session("saved")
    hermes.close()
    hermes.root.chmod(0o500)
    (hermes.root / "state.db").chmod(0o400)
    try:
        assert import_sessions(hermes.root, store) == []
    finally:
        hermes.root.chmod(0o700)

    assert store.get("saved").id == "saved"


def test_a_copy_whose_log_was_not_merged_is_read_with_it(hermes, store, tmp_path):
    """Messages that are only in the log are imported too, without creating an index beside it."""
    hermes.session("in the log")
    copied = tmp_path / "copied"
    copied.mkdir()
    for name in ("state.db", "state.db-wal"):
        (copied / name).write_bytes((hermes.root / name).read_bytes())
    before = everything(copied)

    assert import_sessions(copied, store) == []

    assert store.get("in the log").id == "in the log"
    assert everything(copied) == before


def test_a_database_that_is_being_written_can_be_read(hermes, store):
    """Another process in a transaction does not block the import; its uncommitted messages are not seen."""
    hermes.session("done")
    hermes.connection.execute("BEGIN IMMEDIATE")
    hermes.session("half")

    assert import_sessions(hermes.root, store) == []

    hermes.connection.execute("COMMIT")
    assert [session.id for session in store.list()] == ["done"]
    assert plan_sessions(hermes.root, store).new == 1


def test_an_old_database_lacks_columns(tmp_path, store):
    """Missing columns are skipped; messages without flags are live."""
    hermes = HermesHome(tmp_path / "old", OLD_SCHEMA)
    id = hermes.session(model="m")
    hermes.message(id, "user", "hello", timestamp=1003.0)
    hermes.close()

    assert import_sessions(hermes.root, store) == []

    session = store.get(id)
    assert (session.model, session.title, session.updated_at, session.usage) == ("m", "", 1003.0, Usage())
    assert said(store.messages(id)) == [("user", "hello")]


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be looked at", b"SQLite format 3\0" * 99])
def test_a_file_that_is_no_database_is_named(tmp_path, store, content):
    """A file that is not a database gives one sentence, not an exception, and the rest is imported."""
    (tmp_path / "state.db").write_bytes(content)

    plan = plan_sessions(tmp_path, store)

    assert (plan.new, plan.known) == (0, 0)
    assert "cannot read" in plan.unreadable[0]
    assert import_sessions(tmp_path, store) == plan.unreadable


@pytest.mark.parametrize("content", [None, b""])
def test_a_home_without_sessions_has_nothing_to_bring(tmp_path, store, content):
    """A missing file and an empty one mean the same."""
    if content is not None:
        (tmp_path / "state.db").write_bytes(content)

    assert plan_sessions(tmp_path, store) == SessionImport(new=0, known=0, unreadable=[])


def test_damaged_pages_cost_only_their_sessions(hermes, store):
    """If the file is damaged in the middle, its readable sessions are imported."""
    for number in range(40):
        id = hermes.session(f"s{number:02}", started_at=float(number))
        hermes.message(id, "user", "x" * 8000)
    hermes.close()
    file = hermes.root / "state.db"
    content = bytearray(file.read_bytes())
    # The text of the last message was written last.
    content[-PAGE_BYTES:] = b"\xff" * PAGE_BYTES
    file.write_bytes(content)

    problems = import_sessions(hermes.root, store)

    assert 0 < len(problems) < 40
    assert len(store.list(limit=50)) + len(problems) == 40


CALLS = [asks("c1"), asks("c1", "c1"), asks("c2", "c1"), asks(""), asks("", "c1"), "[]", "null", "[null]", None]
WILD = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=9),
    st.binary(max_size=9),
    st.sampled_from(["c1", "\x00json:1", *CALLS]),
)
COLUMNS = [
    "title", "cwd", "model", "ended_at", "end_reason", "input_tokens", "cache_read_tokens", "actual_cost_usd",
    "parent_session_id",
]  # fmt: skip
FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, WILD))
ROWS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "assistant", "tool", "tool", "system", "function"])},
        optional={
            "content": WILD,
            "tool_call_id": st.sampled_from(["", "c1", "c2", "c9", None]),
            "tool_calls": st.one_of(st.sampled_from(CALLS), WILD),
            "tool_name": WILD,
            "reasoning": WILD,
            "active": st.sampled_from([0, 1, 1, 1, "x"]),
            "compacted": st.sampled_from([0, 1]),
        },
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, fields=FIELDS)
def test_whatever_the_database_holds_an_imported_conversation_is_sound(rows, fields):
    """A session is either reported as unreadable or imported with a transcript that the strictest provider accepts."""
    with TemporaryDirectory() as folder:
        hermes = HermesHome(Path(folder))
        hermes.connection.execute("PRAGMA foreign_keys = OFF")
        hermes.session("wild", **fields)
        for row in rows:
            hermes.message("wild", **row)
        store = SessionStore.in_memory()
        try:
            plan = plan_sessions(hermes.root, store)
            assert import_sessions(hermes.root, store) == plan.unreadable
            assert plan.new + len(plan.unreadable) == 1
            if plan.new:
                assert transcript_problems(store, "wild") == []
                assert len(store.messages("wild", states=("live", "folded"))) == store.get("wild").message_count
        finally:
            store.close()
            hermes.close()
