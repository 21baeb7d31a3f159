"""The fields of a form that a server wants filled in: read from its schema, and what a person types turned into values.

The schema comes from the server: what the protocol does not allow, or is too much for a person, is refused.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.mcp.untrusted_text import one_line

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
