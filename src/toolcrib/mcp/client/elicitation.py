"""Elicitation: a server asks the person to fill in a form, field by field, or to open a URL.

    accept    the person answered, or agreed to open the URL
    decline   the person refused, or there is nobody to ask
    cancel    the person closed the question, gave no valid answer, or the call ended first

The texts come from the server, so each question names the server, and hidden characters are escaped. A form that breaks
the protocol, or is too large for a person, is refused. toolcrib never opens or fetches a URL itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from mcp.client import ClientRequestContext
from mcp_types import INVALID_PARAMS, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult, ErrorData

from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.callbacks import Contexts
from toolcrib.mcp.client.questions import (
    CANCEL,
    DECLINE,
    MAX_ATTEMPTS,
    CallEnded,
    NoUserAvailable,
    QuestionClosed,
    RefusalCounter,
    SessionUser,
    ask_during_call,
    ask_for_choice,
    context_for_question,
    quote,
)
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.untrusted_text import one_line, shown

logger = logging.getLogger(__name__)

MAX_WAITING = 5
"""Questions that one server may have open at a time."""
MAX_REFUSALS = 3
"""After this many refusals in one call, further questions are declined without asking."""
REASON = "toolcrib/reason"
"""The key in the `_meta` of a result that says why it is not an accept."""
SKIP = ":skip"
SEND_FORM, RESTART_FORM, DECLINE_FORM = "Send", "Start over", "Decline"
SECRET_WARNING = (
    "Careful: this seems to ask for a secret. Your answer goes to the server in plain text and may be stored in the "
    "conversation. Do not type a password, token or key here."
)


class ElicitationHandler:
    """Answers the elicitation requests of one server; the SDK's `elicitation_callback`."""

    def __init__(self, server: Server, contexts: Contexts, services: Callable[[], Services | None]) -> None:
        self._server = server
        self._contexts = contexts
        self._services = services
        self._refusals = RefusalCounter(contexts)
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ElicitResult | ErrorData:
        if self._waiting >= MAX_WAITING:
            return ErrorData(code=INVALID_PARAMS, message=f"this server already has {MAX_WAITING} open questions")
        self._waiting += 1
        try:
            return await self._answer(params)
        finally:
            self._waiting -= 1

    async def _answer(self, params: ElicitRequestFormParams | ElicitRequestURLParams) -> ElicitResult | ErrorData:
        try:
            ctx = context_for_question(self._contexts, self._services)
            return await ask_during_call(ctx, self._contexts, self._ask_in_turn(ctx, params))
        except FormError as error:
            return ErrorData(code=INVALID_PARAMS, message=f"{error}")
        except QuestionClosed as closed:
            return self._refuse(closed.action, f"{closed}")
        except NoUserAvailable as error:
            return self._refuse("decline", f"{error}")
        except CallEnded as error:
            return self._refuse("cancel", f"{error}")

    async def _ask_in_turn(
        self, ctx: ToolContext, params: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ElicitResult:
        async with self._turn:
            if self._refusals.count(ctx) >= MAX_REFUSALS:
                raise QuestionClosed("decline", "the person declined several times in this call")
            try:
                return await _ask_user(SessionUser(ctx, self._server.name), params)
            except QuestionClosed:
                self._refusals.add(ctx)
                raise

    def _refuse(self, action: Literal["decline", "cancel"], reason: str) -> ElicitResult:
        logger.info("answered a question from the MCP server %r with %s: %s", self._server.name, action, reason)
        return ElicitResult.model_validate({"action": action, "_meta": {REASON: reason}}, by_name=False)


async def _ask_user(user: SessionUser, params: ElicitRequestFormParams | ElicitRequestURLParams) -> ElicitResult:
    if isinstance(params, ElicitRequestURLParams):
        return await ask_to_open_page(user, params)
    return await _ask_form(user, params.message, parse_form(params.requested_schema))


async def _ask_form(user: SessionUser, message: str, fields: list[FormField]) -> ElicitResult:
    head = _form_intro(user.server, message, fields)
    if not fields:
        await ask_for_choice(user, f"{head}\nThe form has no fields. Do you agree?", YES, NO)
        return ElicitResult(action="accept", content={})
    while True:
        content = await _fill_fields(user, head, fields)
        if len(fields) == 1 or await _confirm(user, fields, content):
            return ElicitResult(action="accept", content=dict(content))


def _form_intro(server: str, message: str, fields: list[FormField]) -> str:
    lines = [f"The MCP server {server!r} asks: {quote(message)}"]
    if asks_for_secret(message) or any(field.is_secret for field in fields):
        lines.append(SECRET_WARNING)
    lines.append(f"Your answer goes to this server. Type {DECLINE} to decline, {CANCEL} to close the question.")
    return "\n".join(lines)


async def _fill_fields(user: SessionUser, head: str, fields: list[FormField]) -> dict[str, FieldValue]:
    """The person's value for each field; a skipped field gets its default or is left out."""
    content: dict[str, FieldValue] = {}
    for number, field in enumerate(fields, 1):
        place = f"{number} of {len(fields)}: " if len(fields) > 1 else ""
        value = await _ask_value(
            user, field, f"{head}\n{place}{_field_question(field)}" if number == 1 else place + _field_question(field)
        )
        if value is not None:
            content[field.name] = value
    return content


async def _ask_value(user: SessionUser, field: FormField, question: str) -> FieldValue | None:
    choices = _choices(field)
    problem = ""
    for _ in range(MAX_ATTEMPTS):
        answer = await user.ask(f"Not valid: {problem}.\n{question}" if problem else question, choices)
        is_left_out = not answer.strip() or answer.strip().lower() == SKIP
        if is_left_out and (field.default is not None or not field.is_required):
            return field.default
        try:
            if is_left_out:
                raise FormAnswerError("an answer is required")
            return field.read(answer)
        except FormAnswerError as error:
            problem = f"{error}"
    raise QuestionClosed("cancel", f"no valid answer for {field.name!r}")


def _choices(field: FormField) -> tuple[str, ...]:
    if field.kind == "boolean":
        return (YES, NO)
    return tuple(option.title for option in field.options) if field.kind == "one_of" else ()


def _field_question(field: FormField) -> str:
    """One field as a question: its name and purpose, what is valid, and how to skip it."""
    text = field.title + (f" ({field.description})" if field.description else "")
    wanted = _constraints(field)
    text += f": {wanted}" if wanted else ""
    if field.kind == "some_of":
        rows = [f"  {number}. {option.title}" for number, option in enumerate(field.options, 1)]
        text += "\n" + "\n".join(rows)
    if field.default is not None:
        text += f"\nType {SKIP} for {field.in_words(field.default).rstrip('.')}."
    elif not field.is_required:
        text += f"\nType {SKIP} to skip it."
    return text


def _constraints(field: FormField) -> str:
    if field.kind == "some_of":
        return f"{_range(field, 'of these')}; type their numbers or names, separated by commas, or none".lstrip("; ")
    if field.format:
        return FORMATS[field.format]
    if field.kind == "text":
        return _range(field, "characters")
    if field.kind in ("number", "integer"):
        what = "a whole number" if field.kind == "integer" else "a number"
        return f"{what} {bounds}" if (bounds := _range(field, "")) else what
    return ""


def _range(field: FormField, unit: str) -> str:
    if field.minimum is not None and field.maximum is not None:
        text = f"from {field.minimum} to {field.maximum} {unit}"
    elif field.minimum is not None:
        text = f"at least {field.minimum} {unit}"
    else:
        text = f"at most {field.maximum} {unit}" if field.maximum is not None else ""
    return text.strip()


async def _confirm(user: SessionUser, fields: list[FormField], content: dict[str, FieldValue]) -> bool:
    """Whether to send the answers; False to start over."""
    rows = [
        f"  {field.title}: {field.in_words(content[field.name]) if field.name in content else '(skipped)'}"
        for field in fields
    ]
    question = "\n".join([f"Send this to the MCP server {user.server!r}?", *rows])
    return await ask_for_choice(user, question, SEND_FORM, DECLINE_FORM, RESTART_FORM) == SEND_FORM


MAX_URL_CHARS = 4000
MAX_PAGES = 5
OPEN_PAGE, DECLINE_PAGE = "I open it", "Decline"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


async def ask_to_open_page(user: SessionUser, params: ElicitRequestURLParams) -> ElicitResult:
    host, warnings = _check_url(params.url)
    lines = [
        f"The MCP server {user.server!r} asks you to open a page on {host}: {quote(params.message)}",
        f"  {shown(params.url)}",
        *warnings,
        "Open it only if you trust the page and expected this. toolcrib does not open it for you.",
    ]
    await ask_for_choice(user, "\n".join(lines), OPEN_PAGE, DECLINE_PAGE)
    return ElicitResult(action="accept")


def _check_url(url: str) -> tuple[str, list[str]]:
    """The host of a URL and the warnings about it; raises FormError for one that nobody should open."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise FormError("the URL is not valid") from error
    # If browsers could parse a different host than we do, we cannot say where it leads.
    is_plain = url.isprintable() and not any(mark in url for mark in ' \\"<>`')
    if parts.scheme not in ("http", "https") or not host or not is_plain or len(url) > MAX_URL_CHARS:
        raise FormError("the URL is not http or https, or is too long")
    warnings = []
    if parts.scheme == "http" and host not in LOOPBACK:
        warnings.append("Careful: the URL is not https, so others can read what you send there.")
    if parts.username is not None:
        warnings.append(f"Careful: the URL starts like another one, but it leads to {host}.")
    if not host.isascii() or "xn--" in host:
        warnings.append("Careful: the host name contains characters that look like others.")
    return one_line(host, 300), warnings


def describe_required_pages(data: Any) -> str:
    """The pages that a person must open before a call can succeed, from the data of the error response."""
    listed = data.get("elicitations") if isinstance(data, dict) else None
    pages = []
    for one in listed[:MAX_PAGES] if isinstance(listed, list) else ():
        url = one.get("url") if isinstance(one, dict) else None
        with contextlib.suppress(FormError):
            host, warnings = _check_url(url if isinstance(url, str) else "")
            pages.append(" ".join([f"{url} (a page on {host})", *warnings]))
    if not pages:
        return "a person must open a page first, but the server does not say which"
    return f"a person must open {', '.join(pages)} first and then ask to repeat the call"


MAX_FIELDS = 40
MAX_OPTIONS = 200
MAX_NAME_CHARS = 200
MAX_ANSWER_CHARS = 10_000
MAX_NUMBER_CHARS = 300
SHOWN_CHARS = 200

FieldKind = Literal["text", "number", "integer", "boolean", "one_of", "some_of"]
KINDS: dict[str, FieldKind] = {"string": "text", "number": "number", "integer": "integer", "boolean": "boolean"}
FORMATS = {
    "email": "an e-mail address, like ada@example.com",
    "uri": "a URL, like https://example.com/page",
    "date": "a date, like 2026-07-28",
    "date-time": "a date and time with a time zone, like 2026-07-28T14:30:00Z",
}
YES, NO = "Yes", "No"
_WORDS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_SECRET = re.compile(
    r"pass(word|wd|phrase|code)|secret|token|api[ _-]?key|private[ _-]?key|access[ _-]?key|credential|"
    r"\bpin\b|\botp\b|\bcvv?\b|card[ _-]?number|recovery[ _-]?(code|phrase)|seed[ _-]?phrase",
    re.IGNORECASE,
)

FieldValue = str | int | float | bool | list[str]


class FormError(ToolcribError):
    """A form that cannot be shown; the message says what is wrong with it."""


class FormAnswerError(ToolcribError):
    """An answer that is not valid; the message says what would be."""


class FormOption(msgspec.Struct, frozen=True):
    """One choice: what is sent, and what is shown."""

    value: str
    title: str


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a form."""

    name: str
    kind: FieldKind
    title: str
    description: str = ""
    is_required: bool = False
    default: FieldValue | None = None
    """Sent if the person skips the field; None if the server gave no valid default."""
    options: tuple[FormOption, ...] = ()
    minimum: float | None = None
    """The minimum of a number, the minimum length of a text, or the minimum count of choices."""
    maximum: float | None = None
    format: str = ""

    @property
    def is_secret(self) -> bool:
        """Whether it seems to ask for something that must never be typed into a form."""
        return asks_for_secret(f"{self.name} {self.title} {self.description}".replace("_", " "))

    def read(self, typed: str) -> FieldValue:
        """Parse what was typed; raises FormAnswerError with what would be valid."""
        if self.kind == "boolean":
            return self._read_boolean(typed)
        if self.kind == "one_of":
            return self._option(typed.strip()).value
        if self.kind == "some_of":
            return self._read_some(typed)
        return self._read_text(typed) if self.kind == "text" else self._read_number(typed.strip())

    def check(self, value: Any) -> FieldValue:
        """The value if it is valid; raises FormAnswerError otherwise."""
        if self.kind == "boolean" and isinstance(value, bool):
            return value
        if self.kind == "text" and isinstance(value, str):
            return self._checked_text(value)
        if self.kind in ("number", "integer") and isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._checked_number(value)
        known = [option.value for option in self.options]
        if self.kind == "one_of" and isinstance(value, str) and value in known:
            return value
        if self.kind == "some_of" and isinstance(value, list) and all(one in known for one in value):
            return self._checked_count(list(dict.fromkeys(value)))
        raise FormAnswerError("it has the wrong type")

    def in_words(self, value: FieldValue) -> str:
        """A value as people read it."""
        if isinstance(value, bool):
            return YES if value else NO
        titles = {option.value: option.title for option in self.options}
        if isinstance(value, list):
            return ", ".join(titles.get(one, one) for one in value) or "none"
        return one_line(titles.get(value, value) if isinstance(value, str) else f"{value}", SHOWN_CHARS)

    def _read_boolean(self, typed: str) -> bool:
        found = _WORDS.get(typed.strip().lower())
        if found is None:
            raise FormAnswerError("answer yes or no")
        return found

    def _option(self, typed: str) -> FormOption:
        meant = [option for option in self.options if typed in (option.value, option.title)]
        word = typed.casefold()
        meant += [option for option in self.options if word in (option.value.casefold(), option.title.casefold())]
        if meant:
            return meant[0]
        if typed.isascii() and typed.isdigit() and 1 <= int(typed[:9]) <= len(self.options):
            return self.options[int(typed[:9]) - 1]
        raise FormAnswerError(f"{one_line(typed, 60)!r} is not one of the choices")

    def _read_some(self, typed: str) -> list[str]:
        words = [word.strip() for word in typed.split(",")]
        if [word.lower() for word in words] == ["none"]:
            words = []
        try:
            chosen = [self._option(typed.strip())] if words else []
        except FormAnswerError:
            chosen = [self._option(word) for word in words if word]
        return self._checked_count(list(dict.fromkeys(option.value for option in chosen)))

    def _checked_count(self, chosen: list[str]) -> list[str]:
        if self.minimum is not None and len(chosen) < self.minimum:
            raise FormAnswerError(f"choose at least {self.minimum}")
        if self.maximum is not None and len(chosen) > self.maximum:
            raise FormAnswerError(f"choose at most {self.maximum}")
        return chosen

    def _read_text(self, typed: str) -> str:
        return self._checked_text(typed.strip() if self.format else typed)

    def _checked_text(self, text: str) -> str:
        if self.minimum is not None and len(text) < self.minimum:
            raise FormAnswerError(f"it needs at least {self.minimum} characters and has {len(text)}")
        maximum = MAX_ANSWER_CHARS if self.maximum is None else min(self.maximum, MAX_ANSWER_CHARS)
        if len(text) > maximum:
            raise FormAnswerError(f"it may have at most {maximum} characters and has {len(text)}")
        if self.format and not _fits(text, self.format):
            raise FormAnswerError(f"it must be {FORMATS[self.format]}")
        return text

    def _read_number(self, typed: str) -> int | float:
        form = _INTEGER if self.kind == "integer" else _NUMBER
        if len(typed) > MAX_NUMBER_CHARS or not form.fullmatch(typed):
            raise FormAnswerError(
                "type a whole number, like 3" if self.kind == "integer" else "type a number, like 3 or 2.5"
            )
        return self._checked_number(int(typed) if _INTEGER.fullmatch(typed) else float(typed))

    def _checked_number(self, value: int | float) -> int | float:
        if isinstance(value, float) and not math.isfinite(value):
            raise FormAnswerError("the number is too large")
        if self.kind == "integer" and value != int(value):
            raise FormAnswerError("type a whole number, like 3")
        if self.minimum is not None and value < self.minimum:
            raise FormAnswerError(f"it must be {self.minimum} or more")
        if self.maximum is not None and value > self.maximum:
            raise FormAnswerError(f"it must be {self.maximum} or less")
        return int(value) if self.kind == "integer" else value


def asks_for_secret(text: str) -> bool:
    """Whether a text seems to ask for a password, key or similar."""
    return _SECRET.search(text) is not None


def parse_form(schema: JsonObject) -> list[FormField]:
    """The fields of a form in order; raises FormError."""
    properties = schema.get("properties")
    if schema.get("type", "object") != "object" or not isinstance(properties, dict):
        raise FormError("the form is not an object with properties")
    if len(properties) > MAX_FIELDS:
        raise FormError(f"the form has {len(properties)} fields; at most {MAX_FIELDS} are allowed")
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    return [_field(name, form, name in needed) for name, form in properties.items()]


def _field(name: str, form: Any, is_required: bool) -> FormField:
    if not isinstance(form, dict) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise FormError(f"the field {one_line(name, 60)!r} is not defined as the protocol requires")
    kind, options = _kind(name, form)
    if kind == "text":
        low, high = "minLength", "maxLength"
    elif kind == "some_of":
        low, high = "minItems", "maxItems"
    else:
        low, high = "minimum", "maximum"
    field = FormField(
        name=name,
        kind=kind,
        title=one_line(_text(form.get("title")) or name, SHOWN_CHARS),
        description=one_line(_text(form.get("description")), 3 * SHOWN_CHARS),
        is_required=is_required,
        options=options,
        minimum=_bound(form.get(low)),
        maximum=_bound(form.get(high)),
        format=answer if kind == "text" and (answer := _text(form.get("format"))) in FORMATS else "",
    )
    if form.get("default") is None:
        return field
    try:
        return msgspec.structs.replace(field, default=field.check(form["default"]))
    except FormAnswerError:
        return field  # A default that would not be a valid answer is ignored.


def _kind(name: str, form: JsonObject) -> tuple[FieldKind, tuple[FormOption, ...]]:
    answer = form.get("type")
    if answer == "string" and ("enum" in form or "oneOf" in form):
        return "one_of", _options(name, form)
    if answer == "array":
        items = form.get("items")
        return "some_of", _options(name, items if isinstance(items, dict) else {})
    kind = KINDS.get(answer) if isinstance(answer, str) else None
    if kind is None:
        raise FormError(f"the field {one_line(name, 60)!r} has a type that forms do not support")
    return kind, ()


def _options(name: str, form: JsonObject) -> tuple[FormOption, ...]:
    """The choices: a plain enum, one with names, or constants with titles."""
    titled = form.get("oneOf", form.get("anyOf"))
    if isinstance(titled, list):
        pairs = [(one.get("const"), one.get("title")) for one in titled if isinstance(one, dict)]
    else:
        values, names = form.get("enum"), form.get("enumNames")
        values = values if isinstance(values, list) else []
        names = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = list(zip(values, names, strict=True))
    options = tuple(
        FormOption(value, one_line(_text(title), SHOWN_CHARS) or one_line(value, SHOWN_CHARS) or f"{value[:9]!r}")
        for value, title in pairs
        if isinstance(value, str)
    )
    if not options or len(options) != len(pairs) or len(options) > MAX_OPTIONS:
        raise FormError(f"the field {one_line(name, 60)!r} has no choices, invalid ones, or too many")
    return options


def _fits(text: str, form: str) -> bool:
    try:
        if form == "email":
            return _EMAIL.fullmatch(text) is not None
        if form == "uri":
            parts = urlsplit(text)
            return _SCHEME.fullmatch(text) is not None and bool(parts.netloc or parts.path)
        if form == "date":
            return _DATE.fullmatch(text) is not None and date.fromisoformat(text) is not None
        return _DATE_TIME.fullmatch(text) is not None and datetime.fromisoformat(text.upper()) is not None
    except ValueError:
        return False


def _bound(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
