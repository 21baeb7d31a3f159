"""Every reader gets every event once, whoever writes and whenever somebody dies."""

from __future__ import annotations

from pathlib import Path

from toolcrib.processes.events import MAX_EVENTS, EventStore, ProcessEvent


def numbers(store: EventStore, reader: str, session: str = "s") -> list[int]:
    return [event.number for event in store.unread(session, reader)]


def test_each_reader_has_an_environment_of_his_own(tmp_path: Path) -> None:
    """What one reader has acknowledged is still new to another."""
    store = EventStore(tmp_path)
    for count in range(3):
        store.append("s", "watch_match", {"n": count})

    store.acknowledge("s", "chat", 2)

    assert numbers(store, "chat") == [3]
    assert numbers(store, "phone") == [1, 2, 3]


def test_events_come_again_until_they_are_acknowledged(tmp_path: Path) -> None:
    """A reader that dies before it has dealt with an event gets it again."""
    store = EventStore(tmp_path)
    store.append("s", "completion", {"session_id": "proc_1", "exit_code": 0})

    assert numbers(store, "chat") == numbers(store, "chat") == [1]
    assert numbers(EventStore(tmp_path), "chat") == [1]
    store.acknowledge("s", "chat", 1)
    assert numbers(EventStore(tmp_path), "chat") == []


def test_sessions_do_not_hear_each_other(tmp_path: Path) -> None:
    """An event belongs to one session."""
    store = EventStore(tmp_path)
    store.append("a/b", "watch_match", {"n": 1})

    assert store.unread("a", "chat") == []
    assert [event.fields for event in store.unread("a/b", "chat")] == [{"n": 1}]


def test_two_writers_never_use_the_same_number(tmp_path: Path) -> None:
    """Two processes of ours may tell the same session things at the same time."""
    one, other = EventStore(tmp_path), EventStore(tmp_path)

    for count in range(10):
        (one if count % 2 else other).append("s", "watch_match", {"n": count})

    assert numbers(one, "chat") == numbers(other, "chat") == list(range(1, 11))


def test_half_a_line_of_a_killed_writer_is_passed_over(tmp_path: Path) -> None:
    """What comes after it is whole again."""
    store = EventStore(tmp_path)
    store.append("s", "watch_match", {"n": 1})
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as stream:
        stream.write(b'{"number": 2, "type": "comp')

    later = EventStore(tmp_path)
    later.append("s", "watch_match", {"n": 2})

    assert [event.fields for event in EventStore(tmp_path).unread("s", "chat")] == [{"n": 1}, {"n": 2}]


def test_a_completion_that_was_read_otherwise_is_not_told(tmp_path: Path) -> None:
    """Whoever has waited for a process does not hear of its end again; other events stay."""
    store = EventStore(tmp_path)
    store.append("s", "completion", {"session_id": "proc_1"})
    store.append("s", "completion", {"session_id": "proc_2"})

    store.consume("s", "proc_1")
    store.consume("s", "proc_unknown")

    assert [event.fields["session_id"] for event in EventStore(tmp_path).unread("s", "chat")] == ["proc_2"]
    assert store.has_completion("s", "proc_1")


def test_a_session_keeps_a_bounded_number_of_events(tmp_path: Path) -> None:
    """The oldest go, the numbers go on, and a reader who missed some is told so."""
    store = EventStore(tmp_path)
    store.append("s", "watch_match", {"n": 0})
    store.acknowledge("s", "chat", 1)
    for count in range(1, MAX_EVENTS + 200):
        store.append("s", "watch_match", {"n": count})

    unread = store.unread("s", "chat")

    assert unread[0].type == "events_dropped"
    assert unread[0].fields["count"] + len(unread) - 1 == MAX_EVENTS + 199
    assert unread[-1].number == MAX_EVENTS + 200
    assert len(unread) <= MAX_EVENTS + 1


def test_sessions_that_nothing_happened_in_are_forgotten(tmp_path: Path) -> None:
    """After a week without events the files of a session go."""
    store = EventStore(tmp_path)
    store.append("s", "watch_match", {"n": 1})
    store.acknowledge("s", "chat", 1)

    store.prune(now=4_000_000_000.0)

    assert list(tmp_path.iterdir()) == []


def test_events_can_be_said_in_words() -> None:
    """Each kind of event becomes a message that a model or a person understands."""
    about = {"session_id": "proc_1", "command": "make"}
    completion = ProcessEvent(1, "completion", {**about, "exit_code": 2, "completion_reason": "exited", "output": "no"})
    match = ProcessEvent(2, "watch_match", {**about, "pattern": "ERR", "output": "ERR 1", "suppressed": 3})

    assert completion.describe() == "Background process proc_1 (make) has ended (exit code 2):\nno"
    assert match.describe() == "Background process proc_1 (make) printed 'ERR' (3 more lines match):\nERR 1"
    assert "30 s" in ProcessEvent(3, "watch_overflow_tripped", {"paused_seconds": 30.0}).describe()
    assert "7 older" in ProcessEvent(4, "events_dropped", {"count": 7}).describe()
