"""The memory tool's service: changes for the model, and each session's frozen view."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import tool_error, tool_result
from toolcrib.sessions.injection_scan import agrees, standing_order_in
from toolcrib.sessions.memory import (
    TARGETS,
    Author,
    EntryChange,
    MemoryChange,
    MemoryOperation,
    MemoryRefused,
    MemorySnapshot,
    MemoryStore,
    Target,
    Who,
    WithheldEntry,
)

MAX_FAILED_CONSOLIDATIONS = 3
REMEMBER = "Remember it"
FILLED_BY = {"add": ("content",), "replace": ("old_text", "content"), "remove": ("old_text",)}


class MemoryService:
    """Serves the `memory` tool. A session keeps seeing the memories from when it started."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        write_approval: bool = False,
        store_of: Callable[[str], MemoryStore] | None = None,
        on_change: Callable[[str, Target, Sequence[EntryChange]], None] | None = None,
    ) -> None:
        self.store = store
        self.write_approval = write_approval
        self.store_of = store_of or (lambda _: store)
        """The memories that a session sees: those of its owner."""
        self._on_change = on_change
        """Told about the changes of a session, once they are stored."""
        self._snapshots: dict[str, MemorySnapshot] = {}
        self._failed: dict[str, tuple[str, int]] = {}
        """By session: its turn, and how many changes of that turn were too long."""

    def snapshot(self, session_id: str) -> str:
        """The memories in a session's prompt: the same bytes for the whole session."""
        return self._frozen(session_id).text

    def left_out(self, session_id: str) -> tuple[WithheldEntry, ...]:
        """The entries withheld from the session's prompt; each reads as a sentence for the person."""
        return self._frozen(session_id).left_out

    def forget(self, session_id: str) -> None:
        """Drop the session's view, at its reset or end; the next prompt shows the current memories."""
        self._snapshots.pop(session_id, None)
        self._failed.pop(session_id, None)

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """Change the memories as the model asks; answers with the memories now."""
        target = args.get("target", "memory")
        if target not in TARGETS:
            return tool_error(f"unknown target {target!r}; use 'memory' or 'user'")
        try:
            operations = _operations(args)
            order = next(filter(None, (standing_order_in(one.content) for one in operations)), "")
            expected = await self._approved(target, operations, order, ctx) if self.write_approval or order else None
            who: Who = "agent" if expected is None else "approved"
            by = Author(who=who, session_id=ctx.session_id, call_id=ctx.call_id)
            store = await asyncio.to_thread(self.store_of, ctx.session_id)
            changed = await asyncio.to_thread(store.change, target, operations, by=by, expected=expected)
        except MemoryRefused as error:
            return self._refusal(target, error, ctx)
        if self._on_change is not None and changed.changes:
            self._on_change(ctx.session_id, target, changed.changes)
        return tool_result(_answer(store, target, changed))

    async def _approved(
        self, target: Target, operations: Sequence[MemoryOperation], order: str, ctx: ToolContext
    ) -> MemoryChange:
        """The changes that the person approved; raises MemoryRefused otherwise. `order`: why they must be asked."""
        store = await asyncio.to_thread(self.store_of, ctx.session_id)
        planned = await asyncio.to_thread(store.plan, target, operations)
        if not planned.changes:
            return planned
        lines = [f"- {one.before}" for one in planned.changes if one.before]
        lines += [f"+ {one.after}" for one in planned.changes if one.after]
        about = "about you" if target == "user" else "for later sessions"
        try:
            question = f"Remember this {about}?" + (f" Note that {order}, in every later session." if order else "")
            is_agreed = await agrees("\n".join([question, *lines]), REMEMBER, ctx)
        except UsageError:
            why = f"{order}, so the person must approve it" if order else "the person wants to approve each memory"
            raise MemoryRefused(f"nothing was remembered: {why}, and nobody is available") from None
        if not is_agreed:
            raise MemoryRefused("the person does not want this remembered; nothing was changed")
        return planned

    def _refusal(self, target: Target, error: MemoryRefused, ctx: ToolContext) -> str:
        store = self.store_of(ctx.session_id)
        entries = store.entries(target)
        more: dict[str, Any] = {"target": target, "usage": store.usage(target, entries)}
        message = str(error)
        if error.over_limit:
            if self._count_failure(ctx) >= MAX_FAILED_CONSOLIDATIONS:
                message = (
                    f"{message[: message.index('.')]}, after {MAX_FAILED_CONSOLIDATIONS} attempts in this turn. "
                    "Nothing was changed. Stop trying: continue the task, and tell the person that the memory is full"
                )
            more["current_entries"] = store.shown(target, entries)
        elif error.candidates:
            more["candidates"] = store.shown(target, error.candidates)
        return tool_error(message, **more)

    def _count_failure(self, ctx: ToolContext) -> int:
        turn, count = self._failed.get(ctx.session_id, (ctx.turn_id, 0))
        count = count + 1 if turn == ctx.turn_id else 1
        self._failed[ctx.session_id] = (ctx.turn_id, count)
        return count

    def _frozen(self, session_id: str) -> MemorySnapshot:
        if session_id not in self._snapshots:
            self._snapshots[session_id] = self.store_of(session_id).load()
        return self._snapshots[session_id]


def _answer(store: MemoryStore, target: Target, changed: MemoryChange) -> JsonObject:
    return {
        "success": True,
        "target": target,
        "message": _summary(changed),
        "usage": store.usage(target, changed.entries),
        "entries": store.shown(target, changed.entries),
    }


def _operations(args: JsonObject) -> list[MemoryOperation]:
    """The operations of a call: its `operations`, or the single one in its own arguments."""
    given = args.get("operations")
    if given and args.get("action"):
        raise MemoryRefused("give either `action` or `operations`, not both")
    return [_operation(fields) for fields in (given or [args])]


def _operation(fields: JsonObject) -> MemoryOperation:
    action = fields.get("action")
    if action not in FILLED_BY:
        raise MemoryRefused("`action` must be add, replace or remove; or give `operations`")
    for name in FILLED_BY[action]:
        if not str(fields.get(name) or "").strip():
            raise MemoryRefused(f"`{name}` is missing; {action} needs {' and '.join(FILLED_BY[action])}")
    return MemoryOperation(
        action=action, content=str(fields.get("content") or ""), old_text=str(fields.get("old_text") or "")
    )


def _summary(changed: MemoryChange) -> str:
    if not changed.changes:
        return "It was already remembered; nothing changed."
    words = {"add": "added", "replace": "replaced", "remove": "removed", "restore": "restored"}
    counts = {word: sum(one.kind == kind for one in changed.changes) for kind, word in words.items()}
    done = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{done[:1].upper()}{done[1:]}. New sessions see it in their prompt."
