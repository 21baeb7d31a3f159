"""What a server is told when it wants to know something from the person: a form, field by field, or an address.

    accept    the person gave the answers, or agreed to open the address
    decline   the person said no, or there is nobody who could be asked
    cancel    the person closed the question, gave no answer that fits, or the call was over first

The words are the server's, so its name stands before them, and whatever is hidden in them is shown. An address is
never opened or fetched by this program.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from mcp.client import ClientRequestContext
from mcp_types import INVALID_PARAMS, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult, ErrorData

from toolcrib.core.context import ToolContext
from toolcrib.mcp.asking import CallOver, NobodyToAsk, Refusals, asked_for, while_wanted
from toolcrib.mcp.form_fields import (
    FORMATS,
    NO,
    YES,
    BadAnswer,
    BadForm,
    Field,
    Value,
    asks_for_secret,
    read_form,
)
from toolcrib.mcp.pages import asked_to_open
from toolcrib.mcp.person import CANCEL, DECLINE, TRIES, Closed, Person, agreed, quoted
from toolcrib.mcp.seams import Contexts
from toolcrib.mcp.servers import Server

if TYPE_CHECKING:
    from toolcrib.core.services import Services

logger = logging.getLogger(__name__)

MAX_WAITING = 5
"""Questions of one server at a time; it is refused more."""
MAX_REFUSALS = 3
"""After so many noes in one call, its further questions are declined without asking."""
REASON = "toolcrib/reason"
"""Says in the `_meta` of a result why it is no yes."""
SKIP = ":skip"
SEND, AGAIN, REFUSE = "Send", "Start over", "Decline"
SECRET_WARNING = (
    "Careful: this seems to ask for a secret. The answer goes to this server as it is, and may be kept in the "
    "conversation. Do not type a password, token or key here."
)


class Elicitation:
    """Answers the questions of one server; the SDK's `elicitation_callback`."""

    def __init__(self, server: Server, contexts: Contexts, services: Callable[[], Services | None]) -> None:
        self._server = server
        self._contexts = contexts
        self._services = services
        self._refusals = Refusals(contexts)
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ElicitResult | ErrorData:
        if self._waiting >= MAX_WAITING:
            return ErrorData(code=INVALID_PARAMS, message=f"{MAX_WAITING} questions of this server are open already")
        self._waiting += 1
        try:
            return await self._answer(params)
        finally:
            self._waiting -= 1

    async def _answer(self, params: ElicitRequestFormParams | ElicitRequestURLParams) -> ElicitResult | ErrorData:
        try:
            ctx = asked_for(self._contexts, self._services)
            return await while_wanted(ctx, self._contexts, self._in_turn(ctx, params))
        except BadForm as error:
            return ErrorData(code=INVALID_PARAMS, message=f"{error}")
        except Closed as closed:
            return self._no(closed.action, f"{closed}")
        except NobodyToAsk as error:
            return self._no("decline", f"{error}")
        except CallOver as error:
            return self._no("cancel", f"{error}")

    async def _in_turn(
        self, ctx: ToolContext, params: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ElicitResult:
        async with self._turn:
            if self._refusals.count(ctx) >= MAX_REFUSALS:
                raise Closed("decline", "the person has refused often enough in this call")
            try:
                return await _put(Person(ctx, self._server.name), params)
            except Closed:
                self._refusals.add(ctx)
                raise

    def _no(self, action: Literal["decline", "cancel"], reason: str) -> ElicitResult:
        logger.info("a question of the MCP server %r was answered with %s: %s", self._server.name, action, reason)
        return ElicitResult.model_validate({"action": action, "_meta": {REASON: reason}}, by_name=False)


async def _put(person: Person, params: ElicitRequestFormParams | ElicitRequestURLParams) -> ElicitResult:
    if isinstance(params, ElicitRequestURLParams):
        return await asked_to_open(person, params)
    return await _form(person, params.message, read_form(params.requested_schema))


async def _form(person: Person, message: str, fields: list[Field]) -> ElicitResult:
    head = _head(person.server, message, fields)
    if not fields:
        await agreed(person, f"{head}\nThe form has no fields. Agree to it?", YES, NO)
        return ElicitResult(action="accept", content={})
    while True:
        content = await _filled(person, head, fields)
        if len(fields) == 1 or await _is_final(person, fields, content):
            return ElicitResult(action="accept", content=dict(content))


def _head(server: str, message: str, fields: list[Field]) -> str:
    lines = [f"The MCP server {server!r} asks you: {quoted(message)}"]
    if asks_for_secret(message) or any(field.is_secret for field in fields):
        lines.append(SECRET_WARNING)
    lines.append(f"Your answer goes to this server. Type {DECLINE} to refuse, {CANCEL} to close the question.")
    return "\n".join(lines)


async def _filled(person: Person, head: str, fields: list[Field]) -> dict[str, Value]:
    """What the person gave for each field; a field that was left out has its default, or is not there."""
    content: dict[str, Value] = {}
    for number, field in enumerate(fields, 1):
        place = f"{number} of {len(fields)}: " if len(fields) > 1 else ""
        value = await _value(person, field, f"{head}\n{place}{_asked(field)}" if number == 1 else place + _asked(field))
        if value is not None:
            content[field.name] = value
    return content


async def _value(person: Person, field: Field, question: str) -> Value | None:
    choices = _choices(field)
    problem = ""
    for _ in range(TRIES):
        said = await person.ask(f"That does not fit: {problem}.\n{question}" if problem else question, choices)
        is_left_out = not said.strip() or said.strip().lower() == SKIP
        if is_left_out and (field.default is not None or not field.is_required):
            return field.default
        try:
            if is_left_out:
                raise BadAnswer("the server needs an answer here")
            return field.read(said)
        except BadAnswer as error:
            problem = f"{error}"
    raise Closed("cancel", f"no answer for {field.name!r} fitted")


def _choices(field: Field) -> tuple[str, ...]:
    if field.kind == "boolean":
        return (YES, NO)
    return tuple(option.title for option in field.options) if field.kind == "one_of" else ()


def _asked(field: Field) -> str:
    """One field as a question: its name, what it is for, what fits, and how it is left out."""
    text = field.title + (f" ({field.description})" if field.description else "")
    wanted = _wanted(field)
    text += f": {wanted}" if wanted else ""
    if field.kind == "some_of":
        rows = [f"  {number}. {option.title}" for number, option in enumerate(field.options, 1)]
        text += "\n" + "\n".join(rows)
    if field.default is not None:
        text += f"\nType {SKIP} for {field.in_words(field.default).rstrip('.')}."
    elif not field.is_required:
        text += f"\nType {SKIP} to leave it out."
    return text


def _wanted(field: Field) -> str:
    if field.kind == "some_of":
        return f"{_range(field, 'of these')}; type their numbers or names with commas between them, or none".lstrip(
            "; "
        )
    if field.format:
        return FORMATS[field.format]
    if field.kind == "text":
        return _range(field, "characters")
    if field.kind in ("number", "integer"):
        what = "a whole number" if field.kind == "integer" else "a number"
        return f"{what} {bounds}" if (bounds := _range(field, "")) else what
    return ""


def _range(field: Field, unit: str) -> str:
    if field.least is not None and field.most is not None:
        text = f"from {field.least} to {field.most} {unit}"
    elif field.least is not None:
        text = f"at least {field.least} {unit}"
    else:
        text = f"at most {field.most} {unit}" if field.most is not None else ""
    return text.strip()


async def _is_final(person: Person, fields: list[Field], content: dict[str, Value]) -> bool:
    """Whether the answers may be sent as they are; False to begin again."""
    rows = [
        f"  {field.title}: {field.in_words(content[field.name]) if field.name in content else '(left out)'}"
        for field in fields
    ]
    question = "\n".join([f"Send this to the MCP server {person.server!r}?", *rows])
    return await agreed(person, question, SEND, REFUSE, AGAIN) == SEND
