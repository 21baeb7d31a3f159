"""After a crash every call has exactly one result, which says what is known about the call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sessions.conversations import EFFECTS, answers, context, entry, gives, result, says
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.sessions.recovery import check_transcript, repair, working_process
from toolcrib.sessions.store import SessionStore

OpenStore = Callable[[], SessionStore]


def live(store: SessionStore, session_id: str) -> list[Message]:
    return [one.message for one in store.messages(session_id)]


def test_a_finished_call_gets_the_result_that_was_recorded(store: SessionStore, open_store: OpenStore) -> None:
    """A kill between the end of a call and its message loses nothing."""
    session = store.create()
    store.append_many(session.id, [says("go"), answers("", "c1")], turn_id="t1")
    ctx = context(session.id, "c1")
    store.recorder().started(entry(), {}, EFFECTS, ctx)
    store.recorder().finished(entry(), result("c1", "shipped"), ctx)
    store.close()

    again = open_store()
    added = repair(again, session.id)

    assert added == [gives("c1", "shipped")]
    assert live(again, session.id)[-1] == gives("c1", "shipped")
    assert again.messages(session.id)[-1].turn_id == "t1"
    assert again.calls(session.id)[0].result is None


def test_a_call_that_never_ended_is_reported_as_outcome_unknown(store: SessionStore, open_store: OpenStore) -> None:
    """Started but not finished: the model learns what was called, when, and to check before it calls again."""
    session = store.create()
    store.append_many(session.id, [says("go"), answers("", "c1")])
    store.recorder().started(entry(), {"command": "make deploy"}, EFFECTS, context(session.id, "c1"))
    store.close()

    again = open_store()
    (added,) = repair(again, session.id)

    told = json.loads(added.text)
    assert (added.role, added.call_id, added.name, added.status) == ("tool", "c1", "terminal", "error")
    assert told["status"] == "unknown"
    assert "make deploy" in told["arguments"]
    assert told["effects"] == ["exec make deploy"]
    assert told["started_at"] in told["error"]
    assert "may or may not have happened" in told["error"]
    assert again.calls(session.id)[0].status == "unknown"


def test_a_call_without_a_record_was_never_run(store: SessionStore) -> None:
    """Without a record, no effect started."""
    session = store.create()
    store.append_many(session.id, [says("go"), answers("", "c1", "c2"), gives("c2")])

    (added,) = repair(store, session.id)

    assert json.loads(added.text)["status"] == "never_run"
    assert [one.call_id for one in live(store, session.id)] == ["", "", "c1", "c2"]


def test_a_result_of_a_tool_that_the_tool_called_is_not_taken_for_its_own(
    store: SessionStore, open_store: OpenStore
) -> None:
    """A call whose own end is not recorded is unknown, even if a call that it made has ended."""
    session = store.create()
    store.append_many(session.id, [says("go"), answers("", "c1", name="execute_code")])
    inner = context(session.id, "c1")
    store.recorder().started(entry(), {}, EFFECTS, inner)
    store.recorder().finished(entry(), result("c1", "inner"), inner)
    store.close()

    (added,) = repair(open_store(), session.id)

    assert added.name == "execute_code"
    assert json.loads(added.text)["status"] == "unknown"


def test_a_deferred_call_is_known_by_the_tool_that_it_names(store: SessionStore, open_store: OpenStore) -> None:
    """The record of a call through `tool_call` carries the name of the real tool."""
    session = store.create()
    call = RequestedCall(id="c1", name="tool_call", arguments='{"name":"terminal","arguments":{}}')
    store.append_many(session.id, [says("go"), Message(role="assistant", tool_calls=(call,))])
    ctx = context(session.id, "c1")
    store.recorder().started(entry(), {}, EFFECTS, ctx)
    store.recorder().finished(entry(), result("c1", "shipped"), ctx)
    store.close()

    assert repair(open_store(), session.id) == [gives("c1", "shipped")]


def test_a_call_that_runs_in_this_process_is_left_alone(store: SessionStore) -> None:
    """Repairing a session that another process works on leaves its calls alone."""
    session = store.create()
    store.append_many(session.id, [says("go"), answers("", "c1", "c2")])
    ctx = context(session.id, "c1")
    store.recorder().started(entry(), {}, EFFECTS, ctx)

    assert repair(store, session.id) == []

    store.recorder().finished(entry(), result("c1"), ctx)
    store.append_many(session.id, [gives("c1"), gives("c2")])
    assert check_transcript(live(store, session.id)) == []


WORKER = """
import sys
sys.path.insert(0, sys.argv[3])
from tests.sessions.conversations import EFFECTS, answers, context, entry, says
from toolcrib.sessions.store import SessionStore
store = SessionStore(sys.argv[1])
store.append_many(sys.argv[2], [says("go"), answers("", "c1", "c2")])
store.recorder().started(entry(), {}, EFFECTS, context(sys.argv[2], "c1"))
print("started", flush=True)
sys.stdin.readline()
"""


def test_a_call_of_another_living_process_is_left_to_it(home: Path, store: SessionStore) -> None:
    """Only once the process is dead is its call unknown; calls that it had not started never ran."""
    session = store.create()
    command = [sys.executable, "-c", WORKER, str(home / "sessions.db"), session.id, str(Path(__file__).parents[2])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "started\n"
        assert repair(store, session.id) == []
        assert working_process(store, session.id) == worker.pid
        assert [call.status for call in store.calls(session.id)] == ["started"]
        worker.kill()

    assert working_process(store, session.id) == 0
    assert [json.loads(one.text)["status"] for one in repair(store, session.id)] == ["unknown", "never_run"]


def test_duplicate_and_orphan_results_are_taken_back(store: SessionStore) -> None:
    """A result without a call, or a duplicate, leaves the conversation."""
    session = store.create()
    store.append_many(
        session.id, [gives("x"), says("go"), answers("", "c1"), gives("c1", "one"), gives("c1", "two"), gives("y")]
    )

    assert repair(store, session.id) == []

    assert [one.text for one in live(store, session.id)] == ["go", "", "one"]
    assert len(store.messages(session.id, states=("undone",))) == 3
    assert store.get(session.id).message_count == 3


def test_a_real_result_wins_over_what_stood_in_for_it(store: SessionStore) -> None:
    """If the call ended after all, its own result stays."""
    session = store.create()
    store.append_many(session.id, [says("go"), answers("", "c1")])
    repair(store, session.id)
    store.append(session.id, gives("c1", "late but real"))

    assert repair(store, session.id) == []

    assert [one.text for one in live(store, session.id)] == ["go", "", "late but real"]


def test_a_result_that_came_late_is_moved_to_its_call(store: SessionStore) -> None:
    """If two processes wrote at once, each result is moved after its call."""
    session = store.create()
    store.append_many(
        session.id,
        [says("a"), answers("", "c1"), says("b"), answers("", "c2"), gives("c1", "one"), gives("c2", "two"), says("c")],
    )

    assert repair(store, session.id) == []

    assert [one.text for one in live(store, session.id)] == ["a", "", "one", "b", "", "two", "c"]
    assert check_transcript(live(store, session.id)) == []


def test_repair_keeps_folded_messages_in_their_place(store: SessionStore) -> None:
    """Messages that a summary replaced stay after it when results are inserted."""
    session = store.create()
    ids = store.append_many(session.id, [says("a"), answers("b"), says("c"), answers("", "c1"), says("d")])
    store.fold(session.id, ids[:2], says("S"))

    repair(store, session.id)
    store.append(session.id, answers("e"))

    roles = [(one.message.role, one.state) for one in store.messages(session.id, states=("live", "folded"))]
    assert roles == [
        ("user", "live"), ("user", "folded"), ("assistant", "folded"), ("user", "live"), ("assistant", "live"),
        ("tool", "live"), ("user", "live"), ("assistant", "live"),
    ]  # fmt: skip
    assert store.get(session.id).message_count == 8


def test_a_reused_call_id_gets_the_result_next_to_it(store: SessionStore) -> None:
    """Some servers restart call ids in every answer; an earlier call does not take the result of a later one."""
    session = store.create()
    store.append_many(
        session.id, [says("a"), answers("", "call_0"), says("b"), answers("", "call_0"), gives("call_0", "second")]
    )

    (added,) = repair(store, session.id)

    assert json.loads(added.text)["status"] == "never_run"
    assert [one.role for one in live(store, session.id)] == ["user", "assistant", "tool", "user", "assistant", "tool"]
    assert live(store, session.id)[-1].text == "second"


@st.composite
def transcripts(draw: st.DrawFn) -> list[Message]:
    """A conversation as an agent writes it."""
    messages: list[Message] = []
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        messages.append(says("q"))
        for _ in range(draw(st.integers(0, 3))):
            ids = [f"c{number + offset}" for offset in range(draw(st.integers(1, 3)))]
            number += len(ids)
            messages += [answers("", *ids), *[gives(id) for id in ids]]
        messages.append(answers("a"))
    return messages


@settings(max_examples=60, deadline=None)
@given(transcripts(), st.data())
def test_any_beginning_of_a_conversation_can_be_repaired(messages: list[Message], data: st.DataObject) -> None:
    """Wherever the writer died, and whatever it had recorded, the checker accepts what repair leaves."""
    store = SessionStore.in_memory()
    session = store.create()
    written = messages[: data.draw(st.integers(1, len(messages)), label="written")]
    store.append_many(session.id, written)
    for call in [call for message in written for call in message.tool_calls]:
        if data.draw(st.booleans(), label=call.id):
            ctx = context(session.id, call.id)
            store.recorder().started(entry(), {}, EFFECTS, ctx)
            store.recorder().finished(entry(), result(call.id), ctx)

    added = repair(store, session.id)
    after = live(store, session.id)

    assert check_transcript(after) == []
    assert [one for one in after if one not in added] == [one for one in written if one not in added]
    assert repair(store, session.id) == []
    assert live(store, session.id) == after
    store.close()


@settings(max_examples=60, deadline=None)
@given(transcripts(), st.data())
def test_results_that_were_lost_doubled_or_moved_are_set_right(messages: list[Message], data: st.DataObject) -> None:
    """Repair restores the pairing from any disorder of the results, and a second repair changes nothing."""
    store = SessionStore.in_memory()
    session = store.create()
    talk = [one for one in messages if one.role != "tool"]
    results = data.draw(st.lists(st.sampled_from([gives("orphan"), *[one for one in messages if one.role == "tool"]])))
    for one in results:
        talk.insert(data.draw(st.integers(0, len(talk))), one)
    store.append_many(session.id, talk)

    repair(store, session.id)
    after = live(store, session.id)

    assert [problem for problem in check_transcript(after) if "follows an assistant" not in problem] == []
    assert [one for one in after if one.role != "tool"] == [one for one in messages if one.role != "tool"]
    assert repair(store, session.id) == []
    assert live(store, session.id) == after
    store.close()


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([says("a"), answers("", "c1")], "call 'c1' has no result at the end"),
        ([says("a"), answers("", "c1"), says("b"), gives("c1")], "call 'c1' has no result before message 3"),
        ([says("a"), gives("c1")], "which the message before it does not request"),
        ([says("a"), answers("", "c1"), gives("c1"), gives("c1")], "which the message before it does not request"),
        ([says("a"), answers("", "c1", "c2"), gives("c2"), gives("c1")], "out of call order"),
        ([says("a"), answers("", "c1", "c1"), gives("c1"), gives("c1")], "whose id was used before"),
        ([says("a"), answers("", "c1"), gives("c1"), answers("", "c1"), gives("c1")], "whose id was used before"),
        ([says("a"), answers("", ""), gives("")], "without an id"),
        ([answers("a")], "comes first"),
        ([Message(role="system", content="s"), answers("a")], "comes first"),
        ([says("a"), answers("b"), answers("c")], "follows an assistant"),
        ([Message(role="user", tool_calls=answers("", "c").tool_calls)], "only an assistant may"),
    ],
)
def test_the_checker_finds(messages: list[Message], problem: str) -> None:
    """The checker names each kind of broken pairing or order."""
    assert problem in " ".join(check_transcript(messages))


@given(transcripts())
def test_the_checker_accepts_a_whole_conversation(messages: list[Message]) -> None:
    """What an agent writes without a crash has no problems."""
    assert check_transcript(messages) == []
