"""Sessions are stored unchanged, in conversation order, even with concurrent writers."""

from __future__ import annotations

import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sessions.conversations import EFFECTS, answers, context, entry, gives, result, says
from toolcrib.core.errors import SessionError
from toolcrib.core.messages import Image, Message, RequestedCall, Text
from toolcrib.core.models import Usage
from toolcrib.sessions.recovery import check_transcript
from toolcrib.sessions.store import SessionStore

OpenStore = Callable[[], SessionStore]


def texts(store: SessionStore, session_id: str, *states: str) -> list[str]:
    return [one.message.text for one in store.messages(session_id, states=states or ("live",))]  # type: ignore[arg-type]


def test_nothing_is_created_before_the_first_use(home: Path) -> None:
    """Creating a store opens no file; the first use creates folder and file for the owner only."""
    path = home / "deep" / "sessions.db"
    store = SessionStore(path)
    assert not home.exists()

    store.create()

    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("sessions.db-wal").stat().st_mode) == 0o600
    store.close()


def test_a_session_is_read_back_as_it_was_created(store: SessionStore) -> None:
    """All fields of a session are stored, and its id contains its start time."""
    made = store.create(
        source="cli", model="m", provider="p", cwd="/w", title="T", toolsets=["web", "file"], system_prompt="Be brief."
    )

    assert store.get(made.id) == made
    assert re.fullmatch(r"\d{8}_\d{6}_[0-9a-f]{6}", made.id)


def test_messages_come_back_exactly_as_they_were(store: SessionStore, open_store: OpenStore) -> None:
    """Text, parts, images, calls, status, reasoning and provider data survive in another connection."""
    messages = [
        says("hello\x00 wörld 😀"),
        Message(role="user", content=(Text("see"), Image(media_type="image/png", data="AAAA"))),
        Message(
            role="assistant",
            content="",
            tool_calls=(RequestedCall(id="c1", name="terminal", arguments='{ "a" : 1 }'),),
            reasoning="hm",
            provider_data={"signature": "s", "parts": [1, {"x": None}]},
        ),
        Message(role="tool", call_id="c1", name="terminal", status="timeout", content="too slow"),
        Message(role="assistant", content=()),
    ]
    session = store.create()
    for one in messages:
        store.append(session.id, one, turn_id="t1")

    found = open_store().messages(session.id)

    assert [one.message for one in found] == messages
    assert {one.turn_id for one in found} == {"t1"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(st.text(st.characters(), max_size=50))
def test_any_text_can_be_appended(text: str) -> None:
    """No text is refused; only characters that no file can hold are replaced."""
    store = SessionStore.in_memory()
    session = store.create()

    store.append(session.id, says(text))

    assert texts(store, session.id) == [text.encode("utf-8", "replace").decode()]
    store.close()


def test_half_characters_are_replaced_wherever_they_stand(store: SessionStore) -> None:
    """A message with a lone surrogate in a call or in provider data can still be stored."""
    session = store.create()
    calls = (RequestedCall(id="c", name="n", arguments='{"p":"\ud800"}'),)

    store.append(session.id, Message(role="assistant", tool_calls=calls, provider_data={"x": ["\udfff"]}))

    (kept,) = store.messages(session.id)
    assert kept.message.tool_calls[0].arguments == '{"p":"?"}'
    assert kept.message.provider_data == {"x": ["?"]}


def test_usage_is_added_up(store: SessionStore) -> None:
    """Usage of messages and of requests without a message adds to the session; unknown cost stays unknown."""
    session = store.create()
    store.append(session.id, answers("a"), usage=Usage(input_tokens=10, output_tokens=3))
    assert store.get(session.id).usage.cost_usd is None
    store.append(session.id, answers("b"), usage=Usage(input_tokens=5, cost_usd=0.25))
    store.add_usage(session.id, Usage(input_tokens=1, cached_tokens=1, cost_usd=0.5), purpose="summary")

    assert store.get(session.id).usage == Usage(input_tokens=16, output_tokens=3, cached_tokens=1, cost_usd=0.75)
    assert store.messages(session.id)[0].usage == Usage(input_tokens=10, output_tokens=3)


def test_a_session_is_found_by_id_prefix_or_last(store: SessionStore) -> None:
    """An exact id wins, a prefix must be unique, and `last` is the most recently used visible session."""
    store.create(session_id="2026_a")
    store.create(session_id="2026_ab")
    store.create(session_id="2027_x", source="subagent")
    store.append("2026_a", says("latest"))

    assert store.get("2026_a").id == "2026_a"
    assert store.get("2027").id == "2027_x"
    assert store.get("last").id == "2026_a"
    with pytest.raises(SessionError, match=r"several sessions start with '2026_'.*type more"):
        store.get("2026_")


@pytest.mark.parametrize("wanted", ["2026_b", "", "%", "_", "nothing like it"])
def test_a_session_that_is_not_there_is_refused_with_advice(store: SessionStore, wanted: str) -> None:
    """An unknown id gives an error with advice; characters with a meaning in SQL have none here."""
    store.create(session_id="2026_a")

    with pytest.raises(SessionError, match=r"2026_a.*toolcrib sessions list"):
        store.get(wanted)


def test_last_without_any_session_says_how_to_begin(store: SessionStore) -> None:
    """An empty store has no last session."""
    with pytest.raises(SessionError, match="toolcrib chat"):
        store.get("last")


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.append("gone", says("x")),
        lambda store: store.messages("gone"),
        lambda store: store.update("gone", title="x"),
        lambda store: store.end("gone", "x"),
        lambda store: store.add_usage("gone", Usage(), purpose="x"),
        lambda store: store.fold("gone", [1], says("x")),
        lambda store: store.undo("gone", 1),
        lambda store: store.branch("gone"),
        lambda store: store.lineage("gone"),
        lambda store: store.delete("gone"),
        lambda store: store.calls("gone"),
    ],
)
def test_a_deleted_session_cannot_be_used(store: SessionStore, use: Callable[[SessionStore], object]) -> None:
    """Any use of a deleted session is an error that names it, and writes nothing."""
    store.create(session_id="gone")
    store.append("gone", says("x"))
    store.delete("gone")

    with pytest.raises(SessionError, match="gone"):
        use(store)
    assert store.stats()["messages"] == 0


def test_an_id_is_given_once(store: SessionStore) -> None:
    """A second session with the same id is refused."""
    store.create(session_id="x")
    with pytest.raises(SessionError, match="'x' already"):
        store.create(session_id="x")


def test_update_changes_only_what_is_given(store: SessionStore) -> None:
    """Fields that are not given stay unchanged."""
    session = store.create(title="old", model="m", system_prompt="one", toolsets=["a"])

    store.update(session.id, title="new", system_prompt="two")

    changed = store.get(session.id)
    assert (changed.title, changed.model, changed.system_prompt, changed.toolsets) == ("new", "m", "two", ("a",))


def test_a_message_opens_an_ended_session_again(store: SessionStore) -> None:
    """An end keeps its reason until the session continues."""
    session = store.create()
    store.end(session.id, "exit")
    assert store.get(session.id).end_reason == "exit"
    assert store.get(session.id).ended_at is not None

    store.append(session.id, says("again"))

    assert store.get(session.id).ended_at is None
    assert store.get(session.id).end_reason == ""


def test_append_many_is_all_or_nothing(store: SessionStore) -> None:
    """If one message cannot be written, none of them is."""
    session = store.create()
    with pytest.raises(AttributeError):
        store.append_many(session.id, [says("a"), None])  # type: ignore[list-item]
    assert store.messages(session.id) == []

    ids = store.append_many(session.id, [says("a"), answers("b")])

    assert [one.id for one in store.messages(session.id)] == ids


def test_a_summary_stands_in_the_place_of_what_it_folds(store: SessionStore) -> None:
    """Folded messages leave the conversation and are kept; a later fold can fold the summary again."""
    session = store.create()
    a, b, c, _ = store.append_many(session.id, [says("a"), answers("b"), says("c"), answers("d")])

    first = store.fold(session.id, [a, b], says("S1"))
    assert texts(store, session.id) == ["S1", "c", "d"]
    store.fold(session.id, [first, c], says("S2"))

    assert texts(store, session.id) == ["S2", "d"]
    assert texts(store, session.id, "live", "folded") == ["S2", "S1", "a", "b", "c", "d"]


def test_folding_in_the_middle_keeps_the_head(store: SessionStore) -> None:
    """Messages before the first folded one stay before the summary."""
    session = store.create()
    ids = store.append_many(session.id, [says("task"), answers("b"), says("c"), answers("d")])

    store.fold(session.id, ids[1:3], says("S"))

    assert texts(store, session.id) == ["task", "S", "d"]


def test_a_fold_that_fails_changes_nothing(store: SessionStore) -> None:
    """If one message is not live, or belongs to another session, none is folded."""
    session, other = store.create(), store.create()
    (mine,) = store.append_many(session.id, [says("mine")])
    (foreign,) = store.append_many(other.id, [says("foreign")])

    for ids in ([mine, foreign], [mine, 999], []):
        with pytest.raises(SessionError):
            store.fold(session.id, ids, says("S"))

    assert texts(store, session.id) == ["mine"]
    assert texts(store, other.id) == ["foreign"]


def test_undo_takes_back_a_message_and_all_later_ones(store: SessionStore) -> None:
    """Undone messages leave the conversation and the counts, but are kept."""
    session = store.create()
    ids = store.append_many(session.id, [says("a"), answers("b"), says("c"), answers("d")])

    assert store.undo(session.id, ids[2]) == 2

    assert texts(store, session.id) == ["a", "b"]
    assert texts(store, session.id, "undone") == ["c", "d"]
    assert store.get(session.id).message_count == 2
    store.append(session.id, says("e"))
    assert texts(store, session.id) == ["a", "b", "e"]


def test_undo_of_a_summary_takes_back_what_it_stands_for(store: SessionStore) -> None:
    """Messages folded into an undone summary do not stay folded."""
    session = store.create()
    ids = store.append_many(session.id, [says("task"), answers("b"), says("c"), answers("d")])
    summary = store.fold(session.id, ids[1:3], says("S"))

    assert store.undo(session.id, summary) == 2

    assert texts(store, session.id, "live", "folded") == ["task"]


def test_a_branch_is_a_copy_with_lineage(store: SessionStore) -> None:
    """A branch starts with the live messages, knows its parent, costs nothing yet, and leaves the parent alone."""
    parent = store.create(title="T", model="m", system_prompt="P", toolsets=["web"])
    store.append(parent.id, says("a"), usage=Usage(input_tokens=5))
    undone = store.append(parent.id, says("b"))
    store.undo(parent.id, undone)

    child = store.branch(parent.id)
    store.append(child.id, says("c"))

    assert texts(store, child.id) == ["a", "c"]
    assert texts(store, parent.id) == ["a"]
    assert (child.parent_id, child.parent_kind, child.system_prompt) == (parent.id, "branch", "P")
    assert child.usage == Usage()
    assert [one.id for one in store.lineage(store.branch(child.id).id)][:2] == [parent.id, child.id]


@pytest.mark.parametrize(("up_to", "copied"), [(0, 1), (1, 4), (2, 4), (3, 4), (4, 5), (5, 5), (6, 5), (None, 5)])
def test_a_branch_never_parts_calls_from_results(store: SessionStore, up_to: int | None, copied: int) -> None:
    """Wherever a branch ends, it has all results of its calls, or not the message that requests them."""
    session = store.create()
    messages = [
        says("go"), answers("", "c1", "c2"), gives("c1"), gives("c2"), says("more"),
        answers("", "c3", "c4"), gives("c3"),
    ]  # fmt: skip
    ids = store.append_many(session.id, messages)

    child = store.branch(session.id, up_to=None if up_to is None else ids[up_to])

    kept = [one.message for one in store.messages(child.id)]
    assert kept == messages[:copied]
    assert check_transcript(kept) == []
    assert child.message_count == copied


def test_lists_show_the_latest_first_and_hide_helpers(store: SessionStore) -> None:
    """Sessions of subagents and tools are listed only on request; source, folder, limit and offset filter."""
    store.create(session_id="a", source="cli", cwd="/w")
    store.create(session_id="b", source="cron")
    store.create(session_id="c", source="subagent")
    store.create(session_id="d", source="tool")
    store.append("a", says("x"))

    def listed(**options: object) -> list[str]:
        return [session.id for session in store.list(**options)]  # type: ignore[arg-type]

    assert listed() == ["a", "b"]
    assert listed(include_hidden=True) == ["a", "d", "c", "b"]
    assert listed(source="subagent") == ["c"]
    assert listed(cwd="/w") == ["a"]
    assert listed(limit=1, offset=1) == ["b"]


def test_stats_add_everything_up(store: SessionStore) -> None:
    """Counts, tokens and cost in total, by source and by model; calls by tool; the size on disk."""
    assert store.stats()["sessions"] == 0
    session = store.create(source="cli", model="m")
    store.append(session.id, says("x"))
    store.append(session.id, answers("", "c1"), usage=Usage(input_tokens=7, cost_usd=0.5))
    store.append(session.id, gives("c1"))

    stats = store.stats()

    assert (stats["sessions"], stats["messages"], stats["calls"], stats["input_tokens"]) == (1, 3, 1, 7)
    assert stats["by_source"]["cli"]["cost_usd"] == 0.5
    assert stats["by_model"]["m"]["messages"] == 3
    assert stats["by_tool"] == {"terminal": 1}
    assert stats["size_bytes"] > 0


def test_calls_are_recorded_from_start_to_end(store: SessionStore) -> None:
    """A record has the arguments and effects before the call ends, and its status after."""
    session = store.create()
    recorder, ctx = store.recorder(), context(session.id, "c1")

    recorder.started(entry(), {"command": "make deploy"}, EFFECTS, ctx)
    (before,) = store.calls(session.id)
    recorder.finished(entry(), result("c1", "shipped"), ctx)
    (after,) = store.calls(session.id)

    assert (before.status, before.finished_at, before.effects) == ("started", None, EFFECTS)
    assert before.arguments == {"command": "make deploy"}
    assert after.status == "ok"
    assert after.finished_at is not None
    assert after.result == gives("c1", "shipped")


def test_the_recorded_result_is_dropped_once_the_conversation_has_it(store: SessionStore) -> None:
    """No result is stored twice."""
    session = store.create()
    recorder, ctx = store.recorder(), context(session.id, "c1")
    recorder.started(entry(), {}, EFFECTS, ctx)
    recorder.finished(entry(), result("c1"), ctx)

    store.append(session.id, gives("c1"))

    assert [call.result for call in store.calls(session.id)] == [None]


def test_a_call_that_is_started_twice_has_one_record(store: SessionStore) -> None:
    """Arguments that change on the way to the handler replace those of the first start."""
    session = store.create()
    recorder, ctx = store.recorder(), context(session.id, "c1")

    recorder.started(entry(), {"command": "a"}, EFFECTS, ctx)
    recorder.started(entry(), {"command": "b"}, EFFECTS, ctx)
    recorder.finished(entry(), result("c1"), ctx)

    assert [(call.arguments, call.status) for call in store.calls(session.id)] == [({"command": "b"}, "ok")]


def test_a_call_outside_any_session_opens_nothing(home: Path) -> None:
    """A recorder without a session of its store does nothing, and creates no database."""
    store = SessionStore(home / "sessions.db")
    for session_id in ("", "unknown"):
        ctx = context(session_id, "c1")
        store.recorder().started(entry(), {}, EFFECTS, ctx)
        store.recorder().finished(entry(), result("c1"), ctx)
    assert not home.exists()

    store.create()
    store.recorder().started(entry(), {}, EFFECTS, context("unknown", "c1"))
    assert store.stats()["sessions"] == 1
    store.close()


def test_a_closed_store_says_so(store: SessionStore) -> None:
    """Use after close gives a clear error."""
    store.create()
    store.close()
    with pytest.raises(SessionError, match="is closed"):
        store.list()


def test_threads_append_side_by_side(store: SessionStore) -> None:
    """Appends from many threads are all stored, each thread's in its order."""
    session = store.create()

    def work(name: int) -> None:
        for number in range(20):
            store.append(session.id, says(f"{name}:{number}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    found = texts(store, session.id)
    assert len(found) == 160
    for name in range(8):
        assert [text for text in found if text.startswith(f"{name}:")] == [f"{name}:{number}" for number in range(20)]
    assert store.get(session.id).message_count == 160


def test_half_characters_in_titles_folders_and_prompts_are_replaced(store: SessionStore) -> None:
    """A session can be created even if its folder's name or its title is not valid text."""
    session = store.create(cwd="caf\udce9", title="\ud800", system_prompt="\udfff")
    store.update(session.id, title="half \ud800", cwd="caf\udce9", system_prompt="\udfff!")

    kept = store.get(session.id)
    assert (kept.title, kept.cwd, kept.system_prompt) == ("half ?", "caf?", "?!")
