"""The service behind the `kanban_…` tools.

Cards are read by other agents and by people, so what an agent writes there is data: each text says whether a person or
an agent wrote it, and only a person's counts as trusted. A text that gives orders about approvals, secrets or tools
needs a person's consent; one that hides something is refused. Nothing starts because of a card.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from toolcrib.board.cards import (
    DEFAULT_BOARD,
    BoardError,
    Card,
    CardDetails,
    CardFilter,
    CardOutcome,
    FinishedCard,
    Worker,
    agent_worker,
    describe_attachment,
    describe_card,
    describe_comment,
    describe_run,
    describe_whole_card,
    require_board_name,
)
from toolcrib.board.store import MAX_ATTACHMENT_BYTES, BoardStore
from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.core.origins import OriginLevel
from toolcrib.core.types import Effect, JsonObject, ToolResult
from toolcrib.environments.specs import ON_THIS_MACHINE
from toolcrib.registry.results import sendable, tool_error, tool_result
from toolcrib.sessions.injection_scan import OrderWording, ask_about_order, threat_in
from toolcrib.sessions.owners import session_owner

if TYPE_CHECKING:
    from toolcrib.core.context import Services

TASK_VARIABLES = ("TOOLCRIB_KANBAN_TASK", "HERMES_KANBAN_TASK")
"""The card that a worker process was started for."""
ON_THE_BOARD = OrderWording(
    question="Put this on the board?",
    because="other agents read it",
    agree="Put it on the board",
    undone="nothing was put on the board",
    unwanted="on the board",
)
DEFAULT_LIMIT = 50
SHOWN_SUMMARY_CHARS = 4_000
NO_TEXTS = ("content_base64", "url")
DETAILS = (
    *("body", "assignee", "tenant", "project", "idempotency_key", "workspace_kind", "workspace_path"),
    *("priority", "max_runtime_seconds", "goal_mode", "goal_max_turns"),
)
Invoke = Callable[..., list[Any]]


class BoardService:
    """The board in the home of one Runtime. Stateless: every call reads the database."""

    def __init__(self, settings: Settings, services: Services, fire: Invoke) -> None:
        self._settings = settings
        self._services = services
        self._fire = fire
        self._actions: dict[str, Callable[[JsonObject, ToolContext, BoardStore], JsonObject | ToolResult]] = {
            "kanban_attach": self._attach,
            "kanban_attach_url": self._attach,
            "kanban_attachments": self._attachments,
            "kanban_block": self._block,
            "kanban_comment": self._comment,
            "kanban_complete": self._complete,
            "kanban_create": self._create,
            "kanban_heartbeat": self._heartbeat,
            "kanban_link": self._link,
            "kanban_list": self._list,
            "kanban_show": self._show,
            "kanban_unblock": self._unblock,
        }

    async def handle(self, tool: str, args: JsonObject, ctx: ToolContext) -> str | ToolResult:
        """The result of a tool of the board."""
        refusal = await self._ask_about_order(args, ctx)
        if refusal:
            return tool_error(refusal)
        if tool == "kanban_attach_url":
            try:
                args = await self._downloaded(args)
            except ToolcribError as error:
                return tool_error(error)
        # Another process may lock the database for a moment, and the loop must not wait for it.
        return await asyncio.to_thread(self._handle, tool, args, ctx)

    def effects(self, tool: str, args: JsonObject) -> tuple[Effect, ...]:
        """What a call changes on the board."""
        card = str(args.get("task_id") or args.get("child_id") or args.get("title") or own_task())
        action = tool.removeprefix("kanban_")
        changed = Effect("record", f"board:{args.get('board') or DEFAULT_BOARD}/{card}", service="board", action=action)
        if tool == "kanban_attach_url":
            return (*self._services.web.extract_effects({"urls": [str(args.get("url") or "")]}), changed)
        return (changed,)

    def _handle(self, tool: str, args: JsonObject, ctx: ToolContext) -> str | ToolResult:
        try:
            with self._cards_of(ctx) as store:
                answer = self._actions[tool](args, ctx, store)
        except ToolcribError as error:
            return tool_error(str(error))
        return answer if isinstance(answer, ToolResult) else sendable(tool_result(answer))

    @contextmanager
    def _cards_of(self, ctx: ToolContext) -> Iterator[BoardStore]:
        """The cards that a session may see: those of its owner."""
        store = open_board(self._settings, session_owner(self._settings.home, ctx.session_id))
        try:
            yield store
        finally:
            store.close()

    # Reading

    def _list(self, args: JsonObject, _ctx: ToolContext, store: BoardStore) -> JsonObject | ToolResult:
        board = str(args.get("board") or "")
        found = store.cards(
            CardFilter(
                board=board or DEFAULT_BOARD,
                assignee=str(args.get("assignee") or ""),
                status=str(args.get("status") or ""),
                tenant=str(args.get("tenant") or ""),
                include_archived=bool(args.get("include_archived")),
            )
        )
        limit = int(args.get("limit") or DEFAULT_LIMIT)
        answer: JsonObject = {"tasks": [describe_card(card) for card in found[:limit]], "count": len(found)}
        if len(found) > limit:
            answer["note"] = f"only {limit} of {len(found)} cards are shown; filter by assignee, status or tenant"
        elif not found:
            answer["boards"] = store.boards()
        origin = {f"/tasks/{at}/title": _level(card.author) for at, card in enumerate(found[:limit])}
        return _with_origins(answer, origin)

    def _show(self, args: JsonObject, _ctx: ToolContext, store: BoardStore) -> ToolResult:
        details = store.details(_card(args, store))
        card = details.card
        answer: JsonObject = {
            "task": describe_whole_card(card),
            "parents": [_short(one) for one in details.parents],
            "children": [_short(one) for one in details.children],
            "comments": [describe_comment(one) for one in details.comments],
            "runs": [describe_run(one) for one in details.runs],
            "attachments": self._described_attachments(details, store),
            "worker_context": _worker_context(details),
        }
        origin: dict[str, OriginLevel] = {f"/task/{key}": _level(card.author) for key in ("title", "body")}
        origin |= {f"/task/{key}": _level(card.summary_author) for key in ("summary", "result")}
        origin |= {f"/comments/{at}/body": _level(one.author) for at, one in enumerate(details.comments)}
        return _with_origins(answer, origin)

    def _attachments(self, args: JsonObject, _ctx: ToolContext, store: BoardStore) -> JsonObject:
        card = _card(args, store)
        found = self._described_attachments(store.details(card), store)
        return {"task_id": card.id, "attachments": found, "count": len(found)}

    def _described_attachments(self, details: CardDetails, store: BoardStore) -> list[JsonObject]:
        is_here = self._settings.terminal.backend in ON_THIS_MACHINE
        return [
            # Where commands run elsewhere, a path of this machine would be of no use.
            describe_attachment(one) | ({"path": str(store.attachment_path(details.card, one.file))} if is_here else {})
            for one in details.attachments
        ]

    # Changing

    def _create(self, args: JsonObject, ctx: ToolContext, store: BoardStore) -> JsonObject:
        given: dict[str, Any] = {key: args[key] for key in DETAILS if args.get(key) is not None}
        status = "triage" if args.get("triage") else args.get("initial_status")
        if status:
            given["status"] = status
        card = Card(
            title=str(args["title"]),
            board=str(args.get("board") or DEFAULT_BOARD),
            skills=tuple(map(str, args.get("skills") or ())),
            session=ctx.session_id,
            **given,
        )
        card, is_new = store.add(card, map(str, args.get("parents") or ()), has_status=bool(status))
        known = {} if is_new else {"existing": True}
        return {"ok": True, "task_id": card.id, "board": card.board, "status": card.status, **known}

    def _comment(self, args: JsonObject, ctx: ToolContext, store: BoardStore) -> JsonObject:
        card = _card(args, store)
        number = store.comment(card, str(args["body"]), _worker(card, ctx))
        return {"ok": True, "task_id": card.id, "comment_id": number}

    def _link(self, args: JsonObject, _ctx: ToolContext, store: BoardStore) -> JsonObject:
        board = str(args.get("board") or "")
        parent, child = (store.find(str(args[key]), board) for key in ("parent_id", "child_id"))
        child = store.link(parent, child)
        return {"ok": True, "parent_id": parent.id, "child_id": child.id, "status": child.status}

    def _unblock(self, args: JsonObject, _ctx: ToolContext, store: BoardStore) -> JsonObject:
        card = store.unblock(_card(args, store))
        return {"ok": True, "task_id": card.id, "status": card.status}

    def _attach(self, args: JsonObject, ctx: ToolContext, store: BoardStore) -> JsonObject:
        card = _card(args, store)
        try:
            content = base64.b64decode(str(args["content_base64"]), validate=True)
        except binascii.Error as error:
            raise BoardError("content_base64 is no Base64") from error
        kind = str(args.get("content_type") or "application/octet-stream")
        kept = store.attach(card, str(args["filename"]), content, kind, _worker(card, ctx))
        return {"ok": True, "task_id": card.id, **describe_attachment(kept)}

    # Working

    def _heartbeat(self, args: JsonObject, ctx: ToolContext, store: BoardStore) -> JsonObject:
        card = _own_card(args, store)
        run, is_new = store.claim(card, _worker(card, ctx), str(args.get("note") or ""))
        if is_new:
            self._tell("kanban_task_claimed", card, run.number)
        return {"ok": True, "task_id": card.id, "run_id": run.number, "claimed": is_new}

    def _complete(self, args: JsonObject, ctx: ToolContext, store: BoardStore) -> JsonObject:
        card = _own_card(args, store)
        summary, result = str(args.get("summary") or ""), str(args.get("result") or "")
        if not summary.strip() and not result.strip():
            raise BoardError("say what was done, in `summary` or `result`: the cards that wait for this one need it")
        made = tuple(store.find(str(one)).id for one in args.get("created_cards") or ())
        reported = {"metadata": args.get("metadata"), "artifacts": args.get("artifacts"), "created_cards": list(made)}
        outcome = CardOutcome(
            summary=summary or result[:SHOWN_SUMMARY_CHARS],
            result=result,
            metadata={key: value for key, value in reported.items() if value},
            created_cards=made,
        )
        done = store.complete(card, outcome, _worker(card, ctx))
        self._tell("kanban_task_completed", done.card, done.run, summary=done.card.summary)
        return _finished(done) | {"promoted": list(done.promoted)}

    def _block(self, args: JsonObject, ctx: ToolContext, store: BoardStore) -> JsonObject:
        card = _own_card(args, store)
        done = store.block(card, str(args["reason"]), str(args.get("kind") or ""), _worker(card, ctx))
        self._tell("kanban_task_blocked", done.card, done.run, reason=done.card.reason)
        return _finished(done)

    # Around them

    def _tell(self, hook: str, card: Card, run: int, **more: Any) -> None:
        about = {"task_id": card.id, "board": card.board, "assignee": card.assignee, "run_id": run}
        self._fire(hook, **about, profile_name=card.assignee, **more)

    async def _downloaded(self, args: JsonObject) -> JsonObject:
        """The arguments of an attachment whose content is at an address."""
        url = str(args["url"])
        content = await self._services.web.fetch(url, MAX_ATTACHMENT_BYTES)
        name = str(args.get("filename") or "") or unquote(urlsplit(url).path.rpartition("/")[2]) or "download"
        return {**args, "filename": name, "content_base64": base64.b64encode(content).decode()}

    async def _ask_about_order(self, args: JsonObject, ctx: ToolContext) -> str:
        """Why a text may not be put on the board; empty if it may."""
        text = "\n".join(_texts([value for key, value in args.items() if key not in NO_TEXTS]))
        threat = threat_in(text)
        if threat:
            return f"nothing was put on the board: {threat}"
        return await ask_about_order(text, ON_THE_BOARD, ctx)


def open_board(settings: Settings, owner: str | None) -> BoardStore:
    """The board of a home; opening it creates no file."""
    limits = settings.kanban
    return BoardStore(
        settings.home.board_file,
        owner=owner,
        files=settings.home.board_files_dir,
        claim_ttl_seconds=limits.claim_ttl_seconds,
        failure_limit=limits.failure_limit,
    )


def own_task() -> str:
    """The card that this process was started for; empty if it was not."""
    return next(filter(None, (environment().get(name, "").strip() for name in TASK_VARIABLES)), "")


def _texts(value: Any) -> Iterator[str]:
    """Every text in the arguments of a call: other agents see all of them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])


def _card(args: JsonObject, store: BoardStore) -> Card:
    wanted, board = str(args.get("task_id") or own_task()), str(args.get("board") or "")
    if not wanted:
        raise UsageError("which card? Give its task_id, as shown by kanban_list")
    return store.find(wanted, require_board_name(board) if board else "")


def _own_card(args: JsonObject, store: BoardStore) -> Card:
    """The card of a call that works on it; a worker works on no other than its own."""
    card, own = _card(args, store), own_task()
    if own and store.find(own).id != card.id:
        raise BoardError(f"this worker was started for the card {own}; comment on {card.id} instead")
    return card


def _worker(card: Card, ctx: ToolContext) -> Worker:
    return agent_worker(ctx.session_id or ctx.task_id, card.assignee)


def _finished(done: FinishedCard) -> JsonObject:
    run = {"run_id": done.run} if done.run else {}
    return {"ok": True, "task_id": done.card.id, "status": done.card.status, **run}


def _short(card: Card) -> JsonObject:
    facts = {"id": card.id, "title": card.title, "status": card.status, "summary": card.summary[:SHOWN_SUMMARY_CHARS]}
    return {key: value for key, value in facts.items() if value}


def _worker_context(details: CardDetails) -> str:
    """What a worker should know at once: results that the card builds on, and why earlier attempts ended."""
    lines = [f"{one.id} is done: {one.summary[:SHOWN_SUMMARY_CHARS]}" for one in details.parents if one.summary]
    lines += [
        f"Run {run.number} ended ({run.outcome}): {run.note or 'no reason given'}"
        for run in details.runs
        if run.outcome not in ("running", "completed")
    ]
    return "\n".join(lines)


def _level(author: str) -> OriginLevel:
    return "trusted" if author == "person" else "untrusted"


TRUSTED_FIELDS = ("id", "task_id", "run_id", "status", "board", "attachment_id", "size", "count")


def _with_origins(answer: JsonObject, texts: dict[str, OriginLevel]) -> ToolResult:
    """A result whose texts are as trusted as who wrote them; ids and states are our own."""
    own: dict[str, OriginLevel] = {f"/**/{name}": "trusted" for name in TRUSTED_FIELDS}
    return ToolResult(content=sendable(tool_result(answer)), origin={"": "untrusted", **own, **texts})
