"""The board over the API: the cards of a token's owner, which agents and people work on together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcrib.agent.host import AgentHost
from toolcrib.board.cards import (
    DEFAULT_BOARD,
    PERSON,
    STATUSES,
    Card,
    CardFilter,
    Status,
    UnknownCard,
    describe_attachment,
    describe_card,
    describe_comment,
    describe_run,
    describe_whole_card,
)
from toolcrib.board.service import open_board
from toolcrib.board.store import BoardStore
from toolcrib.core.types import JsonObject
from toolcrib.serve.api_routes import ApiRoute, QueryParameter, body_of
from toolcrib.serve.guard import identity_of
from toolcrib.serve.runs import RunRefused

T = TypeVar("T")
YES = ("1", "true", "yes")


class CardDraft(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/board`."""

    title: str
    body: str = ""
    board: str = DEFAULT_BOARD
    assignee: str = ""
    priority: int = 0
    parents: tuple[str, ...] = ()


class CardChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `PATCH /api/board/ID`; what is left out stays."""

    status: Status | None = None
    assignee: str | None = None


class CardComment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/board/ID/comments`."""

    body: str


class BoardApi:
    """`/api/board`. What a token writes there counts as a person's words, so that needs the scope `approve`."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def routes(self) -> list[ApiRoute]:
        card = "/api/board/{id}"
        boards = QueryParameter("board", "Only the cards of this board.")
        archived = QueryParameter("archived", "With archived cards.", "boolean")
        return [
            ApiRoute(method="GET", path="/api/board", handler=self.cards, summary="The cards of the board.",
                     query=(boards, archived)),
            ApiRoute(method="POST", path="/api/board", handler=self.create, summary="Put a card on the board.",
                     body=CardDraft, scope="approve", statuses=(201,)),
            ApiRoute(method="GET", path=card, handler=self.card, summary="A card, with its comments and workers."),
            ApiRoute(method="PATCH", path=card, handler=self.change, summary="Move or assign a card.",
                     body=CardChange, scope="approve"),
            ApiRoute(method="POST", path=f"{card}/comments", handler=self.comment, summary="Comment on a card.",
                     body=CardComment, scope="approve", statuses=(201,)),
        ]  # fmt: skip

    async def _with_cards(self, request: Request, work: Callable[[BoardStore], T]) -> T:
        """Work with the cards of the token's owner, in a thread."""
        owner = identity_of(request.scope).owner

        def run() -> T:
            with closing(open_board(self._host.settings, owner)) as store:
                return work(store)

        return await asyncio.to_thread(run)

    async def cards(self, request: Request) -> Response:
        wanted = CardFilter(
            board=request.query_params.get("board", ""),
            include_archived=request.query_params.get("archived", "").lower() in YES,
        )

        def read(store: BoardStore) -> JsonObject:
            if not store.database.exists:
                return {"boards": [], "cards": []}
            return {"boards": store.boards(), "cards": [describe_card(card) for card in store.cards(wanted)]}

        found = await self._with_cards(request, read)
        return JSONResponse({"columns": STATUSES, **found})

    async def card(self, request: Request) -> Response:
        return JSONResponse(await self._with_cards(request, lambda store: _whole(store, _found(store, request))))

    async def create(self, request: Request) -> Response:
        draft = await body_of(request, CardDraft)

        def create(store: BoardStore) -> JsonObject:
            card = Card(
                title=draft.title,
                body=draft.body,
                board=draft.board,
                assignee=draft.assignee.strip(),
                priority=draft.priority,
                author="person",
            )
            return describe_whole_card(store.add(card, draft.parents)[0])

        return JSONResponse(await self._with_cards(request, create), status_code=201)

    async def change(self, request: Request) -> Response:
        change = await body_of(request, CardChange)

        def move(store: BoardStore) -> JsonObject:
            card = _found(store, request)
            if change.assignee is not None:
                card = store.assign(card, change.assignee)
            if change.status is not None:
                card, _ = store.move(card, change.status)
            return _whole(store, card)

        return JSONResponse(await self._with_cards(request, move))

    async def comment(self, request: Request) -> Response:
        wanted = await body_of(request, CardComment)

        def comment(store: BoardStore) -> JsonObject:
            card = _found(store, request)
            store.comment(card, wanted.body, PERSON)
            return _whole(store, card)

        return JSONResponse(await self._with_cards(request, comment), status_code=201)


def _found(store: BoardStore, request: Request) -> Card:
    """The card with exactly this id; its title or a part of the id is for people who type."""
    wanted = request.path_params["id"]
    try:
        card = store.find(wanted) if store.database.exists else None
    except UnknownCard:
        card = None
    if card is None or card.id != wanted:
        raise RunRefused(f"there is no card {wanted!r}", 404)
    return card


def _whole(store: BoardStore, card: Card) -> JsonObject:
    details = store.details(card)
    return {
        **describe_whole_card(card),
        "parents": [describe_card(one) for one in details.parents],
        "children": [describe_card(one) for one in details.children],
        "comments": [describe_comment(one) for one in details.comments],
        "runs": [describe_run(one) for one in details.runs],
        "attachments": [describe_attachment(one) for one in details.attachments],
    }
