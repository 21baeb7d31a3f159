"""Cards of the board as values, and as JSON for programs and models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, get_args

import msgspec

from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.core.types import JsonObject
from toolcrib.sessions.recorder import own_owner

Status = Literal["triage", "todo", "ready", "running", "blocked", "done", "archived"]
"""`triage`: a person has to describe it first. `todo`: it waits for its parents. `ready`: anybody may take it."""
Author = Literal["person", "agent"]
RunOutcome = Literal["running", "completed", "blocked", "released", "lost", "timed_out"]

STATUSES: tuple[Status, ...] = get_args(Status)
FINISHED = ("done", "archived")
DEFAULT_BOARD = "default"
MAX_TITLE_CHARS = 300
MAX_TEXT_CHARS = 100_000
_BOARD = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class BoardError(ToolcribError):
    """A card cannot be read or changed; the message says which one and what to do."""


class UnknownCard(UnknownName):
    """A name matches no card, or more than one."""

    kind = "card"


class UnknownBoard(UnknownName):
    kind = "board"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One card."""

    id: str = ""
    board: str = DEFAULT_BOARD
    owner: str = ""
    """Whose card it is; empty for the owner of the home."""
    title: str
    body: str = ""
    status: Status = "ready"
    assignee: str = ""
    priority: int = 0
    """Cards with a higher number come first."""
    author: Author = "agent"
    """Who wrote title and body."""
    session: str = ""
    """The session that created it."""
    created_at: float = 0.0
    updated_at: float = 0.0
    summary: str = ""
    """What was done, for the cards that depend on it."""
    result: str = ""
    summary_author: Author = "agent"
    metadata: JsonObject = msgspec.field(default_factory=dict)
    """What the worker reported besides: `metadata`, `artifacts` and `created_cards`."""
    reason: str = ""
    """Why it is blocked."""
    block_kind: str = ""
    failures: int = 0
    """How many workers in a row ended without a result."""
    idempotency_key: str = ""
    tenant: str = ""
    workspace_kind: str = ""
    workspace_path: str = ""
    project: str = ""
    skills: tuple[str, ...] = ()
    max_runtime_seconds: int | None = None
    goal_mode: bool = False
    goal_max_turns: int | None = None


class CardRun(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's time with a card. While its outcome is `running`, the card is theirs: a claim."""

    number: int
    card: str
    worker: str
    session: str
    process: str
    """The process of the worker; empty for a person, whose claim lasts until they give it up."""
    started_at: float
    seen_at: float
    """The last sign of life."""
    ended_at: float | None
    outcome: RunOutcome
    note: str


class Comment(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    card: str
    author: Author
    name: str
    body: str
    at: float


class CardAttachment(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    card: str
    name: str
    content_type: str
    size: int
    file: str
    """The name of the file in the folder of the card's attachments."""
    author: Author
    at: float


class CardDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A card with everything around it."""

    card: Card
    parents: Sequence[Card]
    children: Sequence[Card]
    comments: Sequence[Comment]
    runs: Sequence[CardRun]
    attachments: Sequence[CardAttachment]


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """Who changes a card."""

    author: Author
    name: str = ""
    session: str = ""
    process: str = ""

    def holds(self, run: CardRun) -> bool:
        """Whether a claim is theirs: of the same session, or, without sessions, of the same process."""
        if self.author == "person":
            return True
        return run.session == self.session if self.session else run.process == self.process


PERSON = Worker(author="person")


def agent_worker(session: str, name: str = "") -> Worker:
    """An agent in this process."""
    return Worker(author="agent", name=name or "agent", session=session, process=own_owner())


class CardFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which cards a list has."""

    board: str = ""
    """Empty means all boards."""
    assignee: str = ""
    status: str = ""
    tenant: str = ""
    include_archived: bool = False


class CardOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports at the end."""

    summary: str = ""
    result: str = ""
    metadata: JsonObject = msgspec.field(default_factory=dict)
    created_cards: tuple[str, ...] = ()


class FinishedCard(msgspec.Struct, frozen=True, kw_only=True):
    card: Card
    run: int
    """The number of the run that ended; 0 if nobody had claimed the card."""
    promoted: tuple[str, ...] = ()
    """The cards that became ready because of it."""


def require_board_name(name: str) -> str:
    """The name of a board in its one spelling; raises BoardError."""
    text = name.strip().lower() or DEFAULT_BOARD
    if not _BOARD.fullmatch(text):
        raise BoardError(f"{name[:60]!r} is no name of a board; use small letters, digits, - and _")
    return text


def require_text(text: str, what: str, limit: int = MAX_TEXT_CHARS) -> str:
    """The text without blanks around it; raises BoardError if it is too long."""
    text = text.strip()
    if len(text) > limit:
        raise BoardError(f"the {what} has {len(text):,} characters, and the limit is {limit:,}; attach a file instead")
    return text


def describe_card(card: Card) -> JsonObject:
    """What a list shows of a card; keys without a value are left out."""
    facts: JsonObject = {
        "id": card.id,
        "board": card.board,
        "title": card.title,
        "status": card.status,
        "assignee": card.assignee,
        "priority": card.priority,
        "tenant": card.tenant,
        "project": card.project,
        "reason": card.reason,
        "kind": card.block_kind,
        "created_by": card.author,
        "created_at": moment(card.created_at),
        "updated_at": moment(card.updated_at),
    }
    return {key: value for key, value in facts.items() if value != ""}


def describe_whole_card(card: Card) -> JsonObject:
    """Everything about a card."""
    more: JsonObject = {
        "body": card.body,
        "summary": card.summary,
        "result": card.result,
        **card.metadata,
        "failures": card.failures,
        "workspace_kind": card.workspace_kind,
        "workspace_path": card.workspace_path,
        "skills": list(card.skills),
        "max_runtime_seconds": card.max_runtime_seconds,
        "goal_mode": card.goal_mode,
        "goal_max_turns": card.goal_max_turns,
    }
    return describe_card(card) | {key: value for key, value in more.items() if value not in ("", None, [], 0, False)}


def describe_run(run: CardRun) -> JsonObject:
    facts: JsonObject = {
        "run_id": run.number,
        "worker": run.worker,
        "outcome": run.outcome,
        "started_at": moment(run.started_at),
        "last_seen": moment(run.seen_at),
        "ended_at": "" if run.ended_at is None else moment(run.ended_at),
        "note": run.note,
    }
    return {key: value for key, value in facts.items() if value != ""}


def describe_comment(comment: Comment) -> JsonObject:
    return {"by": comment.author, "name": comment.name, "at": moment(comment.at), "body": comment.body}


def describe_attachment(attachment: CardAttachment) -> JsonObject:
    return {
        "attachment_id": attachment.number,
        "filename": attachment.name,
        "content_type": attachment.content_type,
        "size": attachment.size,
        "by": attachment.author,
    }


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
