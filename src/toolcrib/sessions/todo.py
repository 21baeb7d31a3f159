"""The plan of a session: the `todo` tool's service, and how a plan is recovered after a resume."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import tool_result

MAX_CONTENT_CHARS = 4000
MAX_ITEMS = 256
STATUSES = ("pending", "in_progress", "completed", "cancelled")
NO_CONTENT = "(no description)"
CUT = "…"
MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}

TodoItem = dict[str, str]
"""`id`, `content` and `status`."""


class TodoStore:
    """One plan: its items in working order."""

    def __init__(self, items: Iterable[Mapping[str, Any]] = ()) -> None:
        self._items: dict[str, TodoItem] = {}
        self.write(list(items))

    def write(self, todos: Sequence[Any], merge: bool = False) -> list[TodoItem]:
        """Replace the plan, or update it by id; of two items with the same id the last wins. Returns the new plan.

        Texts are cut at 4,000 characters, and items after the 256th are left out.
        """
        items = dict(self._items) if merge else {}
        for number, given in enumerate(todos, start=1):
            item = _item(given, number, items if merge else {})
            if not merge:
                # A repeated item takes the position and text of its last occurrence.
                items.pop(item["id"], None)
            if item["id"] in items or len(items) < MAX_ITEMS:
                items[item["id"]] = item
        self._items = items
        return self.read()

    def read(self) -> list[TodoItem]:
        """The items, as copies."""
        return [dict(item) for item in self._items.values()]

    def has_items(self) -> bool:
        return bool(self._items)

    def summary(self) -> dict[str, int]:
        """How many items there are, in total and by status."""
        statuses = [item["status"] for item in self._items.values()]
        return {"total": len(statuses)} | {status: statuses.count(status) for status in STATUSES}

    def answer(self) -> JsonObject:
        """The tool's answer to the model."""
        return {"todos": self.read(), "summary": self.summary()}

    def format_for_injection(self) -> str | None:
        """The open items, for a context that lost the messages with the plan; None if nothing is open."""
        unfinished = [item for item in self._items.values() if item["status"] in ("pending", "in_progress")]
        if not unfinished:
            return None
        finished = len(self._items) - len(unfinished)
        head = (
            f"[Your plan, kept while the conversation was shortened. {finished} of {len(self._items)} items are done.]"
        )
        return "\n".join([head, *(_line(item) for item in unfinished)])


class TodoService:
    """The plans of all sessions of a process; serves the `todo` tool."""

    def __init__(self) -> None:
        self._stores: dict[str, TodoStore] = {}

    def store(self, session_id: str) -> TodoStore:
        """The plan of a session; an empty one if it has none."""
        return self._stores.setdefault(session_id, TodoStore())

    def restore(self, session_id: str, messages: Iterable[Message]) -> TodoStore:
        """Restore the plan of a session from its transcript: after a resume, a branch or an undo."""
        self._stores[session_id] = restore(messages)
        return self._stores[session_id]

    def forget(self, session_id: str) -> None:
        self._stores.pop(session_id, None)

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """Write the calling session's plan if items are given; answers with the whole plan."""
        store = self.store(ctx.session_id)
        todos = args.get("todos")
        if todos is None:
            return tool_result(store.answer())
        kept = store.write(todos, bool(args.get("merge", False)))
        named = {item["id"] for item in kept}
        left_out = sum(1 for number, given in enumerate(todos, start=1) if _item(given, number, {})["id"] not in named)
        if not left_out:
            return tool_result(store.answer())
        return tool_result(store.answer() | {"note": f"a plan has at most {MAX_ITEMS} items; {left_out} were left out"})


def restore(messages: Iterable[Message]) -> TodoStore:
    """The plan in the last todo result of a transcript; empty if there is none."""
    store = TodoStore()
    asked: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            asked |= {call.id: call.arguments for call in message.tool_calls if call.name == "todo"}
        elif message.role == "tool" and message.status == "ok" and (message.name == "todo" or message.call_id in asked):
            plan = _object(message.text)
            if isinstance(plan.get("todos"), list):
                store.write(plan["todos"])
                continue
            # A preview replaced a result that was too long for the context; the call still has the full items.
            wanted = _object(asked.get(message.call_id, ""))
            if isinstance(wanted.get("todos"), list):
                store.write(wanted["todos"], bool(wanted.get("merge", False)))
    return store


def _item(given: Any, number: int, known: Mapping[str, TodoItem]) -> TodoItem:
    """A complete item from what a model wrote; fields that it omits from an existing item stay unchanged."""
    fields = given if isinstance(given, Mapping) else {"content": given}
    name = _id(fields, number)
    before = known.get(name, {"content": NO_CONTENT, "status": "pending"})
    content = str(fields.get("content") or "").strip() or before["content"]
    status = str(fields.get("status") or "").strip().lower()
    return {
        "id": name,
        "content": content if len(content) <= MAX_CONTENT_CHARS else content[: MAX_CONTENT_CHARS - 1] + CUT,
        "status": status if status in STATUSES else before["status"],
    }


def _id(fields: Mapping[str, Any], number: int) -> str:
    given = fields.get("id")
    return str(number) if given is None or not str(given).strip() else str(given).strip()


def _line(item: TodoItem) -> str:
    return f"- {MARKS[item['status']]} {item['id']}: {item['content']} ({item['status']})"


def _object(text: str) -> JsonObject:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
