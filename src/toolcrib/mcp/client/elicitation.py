"""What a server is told when it wants to know something from the person: a form, field by field, or an address.

    accept    the person gave the answers, or agreed to open the address
    decline   the person said no, or there is nobody who could be asked
    cancel    the person closed the question, gave no answer that fits, or the call was over first

The words are the server's, so its name stands before them, and whatever is hidden in them is shown. An address is
never opened or fetched by this program.
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
    TRIES,
    CallOver,
    Closed,
    NobodyToAsk,
    Person,
    Refusals,
    agreed,
    asked_for,
    quoted,
    while_wanted,
)
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.untrusted_text import one_line, shown

logger = logging.getLogger(__name__)

MAX_WAITING = 5
"""Questions of one server at a time; it is refused more."""
MAX_REFUSALS = 3
"""After so many noes in one call, its further questions are declined without asking."""
REASON = "toolcrib/reason"
"""Says in the `_meta` of a result why it is no yes."""
SKIP = ":skip"
SEND_FORM, RESTART_FORM, DECLINE_FORM = "Send", "Start over", "Decline"
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
    return await agreed(person, question, SEND_FORM, DECLINE_FORM, RESTART_FORM) == SEND_FORM


MAX_URL_CHARS = 4000
MAX_PAGES = 5
OPEN_PAGE, DECLINE_PAGE = "I open it", "Decline"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


async def asked_to_open(person: Person, params: ElicitRequestURLParams) -> ElicitResult:
    host, warnings = _looked_at(params.url)
    lines = [
        f"The MCP server {person.server!r} wants you to open a page of {host}: {quoted(params.message)}",
        f"  {shown(params.url)}",
        *warnings,
        "Open it only if you trust that page and expected this. Nothing is opened for you.",
    ]
    await agreed(person, "\n".join(lines), OPEN_PAGE, DECLINE_PAGE)
    return ElicitResult(action="accept")


def _looked_at(url: str) -> tuple[str, list[str]]:
    """The host of an address, and what a person should know about it; raises BadForm for what nobody should open."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadForm("the address is not valid") from error
    # Where browsers and this program would read different hosts, nobody can be told where it leads.
    is_plain = url.isprintable() and not any(mark in url for mark in ' \\"<>`')
    if parts.scheme not in ("http", "https") or not host or not is_plain or len(url) > MAX_URL_CHARS:
        raise BadForm("the address is not one of http or https, or too long")
    warnings = []
    if parts.scheme == "http" and host not in LOOPBACK:
        warnings.append("Careful: what is sent there can be read on the way, as the address is not https.")
    if parts.username is not None:
        warnings.append(f"Careful: the address begins like another one. It leads to {host}.")
    if not host.isascii() or "xn--" in host:
        warnings.append("Careful: the name of the host holds letters that look like others.")
    return one_line(host, 300), warnings


def pages_to_open(data: Any) -> str:
    """What a person has to open before a call can be carried out, from the data of the error that says so."""
    listed = data.get("elicitations") if isinstance(data, dict) else None
    pages = []
    for one in listed[:MAX_PAGES] if isinstance(listed, list) else ():
        url = one.get("url") if isinstance(one, dict) else None
        with contextlib.suppress(BadForm):
            host, warnings = _looked_at(url if isinstance(url, str) else "")
            pages.append(" ".join([f"{url} (a page of {host})", *warnings]))
    if not pages:
        return "a person has to open a page of the server first, which it does not name"
    return f"a person has to open {', '.join(pages)} first, and then say that the call can be repeated"


MAX_FIELDS = 40
MAX_OPTIONS = 200
MAX_NAME_CHARS = 200
MAX_ANSWER_CHARS = 10_000
MAX_NUMBER_CHARS = 300
SHOWN_CHARS = 200

Kind = Literal["text", "number", "integer", "boolean", "one_of", "some_of"]
KINDS: dict[str, Kind] = {"string": "text", "number": "number", "integer": "integer", "boolean": "boolean"}
FORMATS = {
    "email": "an e-mail address, like ada@example.com",
    "uri": "an address, like https://example.com/page",
    "date": "a date, like 2026-07-28",
    "date-time": "a date with a time and its zone, like 2026-07-28T14:30:00Z",
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

Value = str | int | float | bool | list[str]


class BadForm(ToolcribError):
    """A form that nobody can be shown; says what is wrong with it."""


class BadAnswer(ToolcribError):
    """What a person typed does not fit; says what would."""


class Option(msgspec.Struct, frozen=True):
    """One answer to choose: what is sent, and what is shown."""

    value: str
    title: str


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One value that a form asks for."""

    name: str
    kind: Kind
    title: str
    description: str = ""
    is_required: bool = False
    default: Value | None = None
    """What is sent when the person leaves the field out; None when the server named nothing that fits."""
    options: tuple[Option, ...] = ()
    least: float | None = None
    """Of a number its minimum; of a text its length; of a choice of some, their count."""
    most: float | None = None
    format: str = ""

    @property
    def is_secret(self) -> bool:
        """Whether it seems to ask for something that should never be typed into a form."""
        return asks_for_secret(f"{self.name} {self.title} {self.description}".replace("_", " "))

    def read(self, typed: str) -> Value:
        """The value that was typed; raises BadAnswer with what would fit."""
        if self.kind == "boolean":
            return self._read_boolean(typed)
        if self.kind == "one_of":
            return self._option(typed.strip()).value
        if self.kind == "some_of":
            return self._read_some(typed)
        return self._read_text(typed) if self.kind == "text" else self._read_number(typed.strip())

    def check(self, value: Any) -> Value:
        """The value, if it is one that may be sent; raises BadAnswer otherwise."""
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
        raise BadAnswer("it is not of the kind that is asked for")

    def in_words(self, value: Value) -> str:
        """A value as people know it."""
        if isinstance(value, bool):
            return YES if value else NO
        titles = {option.value: option.title for option in self.options}
        if isinstance(value, list):
            return ", ".join(titles.get(one, one) for one in value) or "none"
        return one_line(titles.get(value, value) if isinstance(value, str) else f"{value}", SHOWN_CHARS)

    def _read_boolean(self, typed: str) -> bool:
        found = _WORDS.get(typed.strip().lower())
        if found is None:
            raise BadAnswer("answer yes or no")
        return found

    def _option(self, typed: str) -> Option:
        meant = [option for option in self.options if typed in (option.value, option.title)]
        word = typed.casefold()
        meant += [option for option in self.options if word in (option.value.casefold(), option.title.casefold())]
        if meant:
            return meant[0]
        if typed.isascii() and typed.isdigit() and 1 <= int(typed[:9]) <= len(self.options):
            return self.options[int(typed[:9]) - 1]
        raise BadAnswer(f"{one_line(typed, 60)!r} is none of the answers to choose from")

    def _read_some(self, typed: str) -> list[str]:
        words = [word.strip() for word in typed.split(",")]
        if [word.lower() for word in words] == ["none"]:
            words = []
        try:
            chosen = [self._option(typed.strip())] if words else []
        except BadAnswer:
            chosen = [self._option(word) for word in words if word]
        return self._checked_count(list(dict.fromkeys(option.value for option in chosen)))

    def _checked_count(self, chosen: list[str]) -> list[str]:
        if self.least is not None and len(chosen) < self.least:
            raise BadAnswer(f"choose at least {self.least}")
        if self.most is not None and len(chosen) > self.most:
            raise BadAnswer(f"choose at most {self.most}")
        return chosen

    def _read_text(self, typed: str) -> str:
        return self._checked_text(typed.strip() if self.format else typed)

    def _checked_text(self, text: str) -> str:
        if self.least is not None and len(text) < self.least:
            raise BadAnswer(f"it needs at least {self.least} characters, and these are {len(text)}")
        most = MAX_ANSWER_CHARS if self.most is None else min(self.most, MAX_ANSWER_CHARS)
        if len(text) > most:
            raise BadAnswer(f"it may have at most {most} characters, and these are {len(text)}")
        if self.format and not _fits(text, self.format):
            raise BadAnswer(f"it must be {FORMATS[self.format]}")
        return text

    def _read_number(self, typed: str) -> int | float:
        form = _INTEGER if self.kind == "integer" else _NUMBER
        if len(typed) > MAX_NUMBER_CHARS or not form.fullmatch(typed):
            raise BadAnswer("type a whole number, like 3" if self.kind == "integer" else "type a number, like 3 or 2.5")
        return self._checked_number(int(typed) if _INTEGER.fullmatch(typed) else float(typed))

    def _checked_number(self, value: int | float) -> int | float:
        if isinstance(value, float) and not math.isfinite(value):
            raise BadAnswer("the number is too large")
        if self.kind == "integer" and value != int(value):
            raise BadAnswer("type a whole number, like 3")
        if self.least is not None and value < self.least:
            raise BadAnswer(f"it must be {self.least} or more")
        if self.most is not None and value > self.most:
            raise BadAnswer(f"it must be {self.most} or less")
        return int(value) if self.kind == "integer" else value


def asks_for_secret(text: str) -> bool:
    """Whether a text seems to ask for a password, a key or the like."""
    return _SECRET.search(text) is not None


def read_form(schema: JsonObject) -> list[Field]:
    """The fields of a form, in its order; raises BadForm."""
    properties = schema.get("properties")
    if schema.get("type", "object") != "object" or not isinstance(properties, dict):
        raise BadForm("the form is no object with properties")
    if len(properties) > MAX_FIELDS:
        raise BadForm(f"the form has {len(properties)} fields, and at most {MAX_FIELDS} are shown")
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    return [_field(name, form, name in needed) for name, form in properties.items()]


def _field(name: str, form: Any, is_required: bool) -> Field:
    if not isinstance(form, dict) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise BadForm(f"the field {one_line(name, 60)!r} is not described as the protocol says")
    kind, options = _kind(name, form)
    if kind == "text":
        least, most = "minLength", "maxLength"
    elif kind == "some_of":
        least, most = "minItems", "maxItems"
    else:
        least, most = "minimum", "maximum"
    field = Field(
        name=name,
        kind=kind,
        title=one_line(_text(form.get("title")) or name, SHOWN_CHARS),
        description=one_line(_text(form.get("description")), 3 * SHOWN_CHARS),
        is_required=is_required,
        options=options,
        least=_bound(form.get(least)),
        most=_bound(form.get(most)),
        format=said if kind == "text" and (said := _text(form.get("format"))) in FORMATS else "",
    )
    if form.get("default") is None:
        return field
    try:
        return msgspec.structs.replace(field, default=field.check(form["default"]))
    except BadAnswer:
        return field  # What it would not take as an answer, nobody sends by leaving the field out.


def _kind(name: str, form: JsonObject) -> tuple[Kind, tuple[Option, ...]]:
    said = form.get("type")
    if said == "string" and ("enum" in form or "oneOf" in form):
        return "one_of", _options(name, form)
    if said == "array":
        items = form.get("items")
        return "some_of", _options(name, items if isinstance(items, dict) else {})
    kind = KINDS.get(said) if isinstance(said, str) else None
    if kind is None:
        raise BadForm(f"the field {one_line(name, 60)!r} is of a kind that a form cannot have")
    return kind, ()


def _options(name: str, form: JsonObject) -> tuple[Option, ...]:
    """The answers to choose from: a plain enum, one with names beside it, or constants with titles."""
    titled = form.get("oneOf", form.get("anyOf"))
    if isinstance(titled, list):
        pairs = [(one.get("const"), one.get("title")) for one in titled if isinstance(one, dict)]
    else:
        values, names = form.get("enum"), form.get("enumNames")
        values = values if isinstance(values, list) else []
        names = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = list(zip(values, names, strict=True))
    options = tuple(
        Option(value, one_line(_text(title), SHOWN_CHARS) or one_line(value, SHOWN_CHARS) or f"{value[:9]!r}")
        for value, title in pairs
        if isinstance(value, str)
    )
    if not options or len(options) != len(pairs) or len(options) > MAX_OPTIONS:
        raise BadForm(f"the field {one_line(name, 60)!r} has no answers to choose from, broken ones, or too many")
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
