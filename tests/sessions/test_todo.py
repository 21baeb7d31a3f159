"""The plan of a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import toolcrib.tools.agent_loop  # noqa: F401 - registers the tool
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.sessions.todo import MAX_CONTENT_CHARS, MAX_ITEMS, TodoService, TodoStore, restore

MakeRuntime = Callable[..., Runtime]


def item(name: str, content: str = "", status: str = "pending") -> dict[str, str]:
    return {"id": name, "content": content or f"do {name}", "status": status}


def result(store: TodoStore, call_id: str = "c1") -> Message:
    return Message(role="tool", name="todo", call_id=call_id, content=json.dumps(store.answer()))


def test_writing_replaces_the_plan() -> None:
    """Without merge, the new plan replaces the old one."""
    store = TodoStore([item("a"), item("b")])

    assert store.write([item("c")]) == [item("c")]
    assert store.read() == [item("c")]


def test_merging_changes_items_by_id_and_keeps_the_others() -> None:
    """A merged item keeps its position and the fields not given; new items come last."""
    store = TodoStore([item("a"), item("b", "write tests")])

    store.write([{"id": "b", "status": "completed"}, item("c")], merge=True)

    assert store.read() == [item("a"), item("b", "write tests", "completed"), item("c")]


def test_the_last_of_two_items_with_one_id_wins() -> None:
    """A repeated id never gives two items, in either mode."""
    replaced = TodoStore([item("a", "first"), item("b"), item("a", "second")])
    merged = TodoStore()
    merged.write([item("a", "first"), item("a", "second")], merge=True)

    assert replaced.read() == [item("b"), item("a", "second")]
    assert merged.read() == [item("a", "second")]


def test_a_plan_is_bounded() -> None:
    """Texts end at 4,000 characters and a plan at 256 items."""
    store = TodoStore([item(str(number), "x" * 5000) for number in range(300)])

    assert len(store.read()) == MAX_ITEMS
    assert {len(one["content"]) for one in store.read()} == {MAX_CONTENT_CHARS}


def test_odd_items_become_whole_ones() -> None:
    """Missing or misspelled fields never break the plan."""
    store = TodoStore()

    store.write(["just words", {"content": "no id"}, {"id": 7, "status": "DONE"}, {"id": "x", "status": "In_Progress"}])

    assert [(one["id"], one["status"]) for one in store.read()] == [
        ("1", "pending"), ("2", "pending"), ("7", "pending"), ("x", "in_progress"),
    ]  # fmt: skip
    assert store.read()[0]["content"] == "just words"


def test_what_is_read_is_a_copy() -> None:
    """Only a write can change the plan."""
    store = TodoStore([item("a")])

    store.read()[0]["status"] = "completed"

    assert store.read() == [item("a")]


def test_only_open_items_are_put_back_into_a_context() -> None:
    """Compression gets the open items with their status, and nothing when all are done."""
    store = TodoStore(
        [item("a", status="completed"), item("b", status="in_progress"), item("c"), item("d", status="cancelled")]
    )

    text = store.format_for_injection()

    assert text is not None
    assert "b: do b" in text
    assert "c: do c" in text
    assert "do a" not in text
    assert "2 of 4" in text
    assert TodoStore([item("a", status="completed")]).format_for_injection() is None
    assert not TodoStore().has_items()


def test_the_plan_is_found_again_in_a_transcript() -> None:
    """After a resume, the last result that the model saw is the plan; failed writes do not count."""
    first, last = TodoStore([item("a")]), TodoStore([item("a", status="completed"), item("b")])
    messages = [
        Message(role="user", content="go"),
        result(first, "c1"),
        result(last, "c2"),
        Message(role="tool", name="todo", call_id="c3", content='{"error": "no"}', status="error"),
        Message(role="tool", name="terminal", call_id="c4", content='{"todos": []}'),
    ]

    assert restore(messages).read() == last.read()
    assert restore(messages[:2]).read() == first.read()
    assert restore([]).read() == []


def test_a_plan_whose_result_was_cut_is_rebuilt_from_the_call() -> None:
    """If a preview replaced a result, the plan comes from the call's arguments."""
    arguments = json.dumps({"todos": [item("b", status="completed")], "merge": True})
    messages = [
        result(TodoStore([item("a"), item("b")])),
        Message(role="assistant", tool_calls=(RequestedCall(id="c2", name="todo", arguments=arguments),)),
        Message(role="tool", name="todo", call_id="c2", content="<preview of a long result>"),
    ]

    assert restore(messages).read() == [item("a"), item("b", status="completed")]


async def test_each_session_has_its_own_plan(make_runtime: MakeRuntime) -> None:
    """The tool answers with the plan and its counts, of the calling session only."""
    service = TodoService()
    runtime = make_runtime(services={"todo": service}, registry=ToolRegistry(parent=default_registry))

    async def call(session: str, **args: Any) -> Any:
        result = await runtime.call("todo", args, ctx=runtime.context(session_id=session))
        return json.loads(result.text)

    written = await call("s1", todos=[item("a", status="in_progress"), item("b")])
    read = await call("s1")
    other = await call("s2")

    assert written == read
    assert read["todos"] == [item("a", status="in_progress"), item("b")]
    assert read["summary"] == {"total": 2, "pending": 1, "in_progress": 1, "completed": 0, "cancelled": 0}
    assert other == {"todos": [], "summary": dict.fromkeys(read["summary"], 0)}


async def test_items_that_do_not_fit_any_more_are_named(make_runtime: MakeRuntime) -> None:
    """A merge beyond the limit says how many items were left out."""
    service = TodoService()
    service.store("s").write([item(str(number)) for number in range(MAX_ITEMS)])
    runtime = make_runtime(services={"todo": service}, registry=ToolRegistry(parent=default_registry))

    result = await runtime.call(
        "todo", {"todos": [item("new"), item("1")], "merge": True}, ctx=runtime.context(session_id="s")
    )

    assert "1 were left out" in json.loads(result.text)["note"]
    assert service.store("s").summary()["total"] == MAX_ITEMS
