"""Compares values however they are written: case, spaces, address forms, number formats.

A value is found in a text only as whole tokens: `ann@x.org` is not part of `joann@x.org`, nor `13` of `13:00`.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Literal

ValueKind = Literal["email", "url", "iban", "phone", "number", "text"]

MAX_TEXT_CHARS = 400_000
"""The part of one text that is compared; what lies beyond counts as not found."""

_DASHES_AND_QUOTES = str.maketrans("‐‑‒–—―−‘’‚‛“”„‟´`", "-------''''''''''"[:17])
_URL = re.compile(
    r"(?:https?|ftp|wss?)://[^\s<>\"'|\\^{}\[\]]+|(?<![\w@./-])(?:[\w-]+\.)+[^\W\d]{2,}(?:[/?][^\s<>\"'|]*)?(?![\w@])"
)
_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@[\w-]+(?:\.[\w-]+)+")
_IBAN = re.compile(
    r"(?<!\w)[a-z]{2}\d{2} ?[a-z0-9]{4}(?: ?(?=[a-z]{0,3}\d)[a-z0-9]{4})+(?: ?(?=[a-z]?\d)[a-z0-9]{1,3})?(?!\w)"
)
_PHONE = re.compile(r"(?<![\w.])\+?\(?\d[\d\s()/-]{5,30}\d(?!\w)")
_NUMBER = re.compile(r"(?<![\w.:/-])[-+]?(?:\d{1,3}(?:[,.']\d{3})+|\d+)(?:[.,]\d+)?(?!\w|[:/-]\d)")
_MOMENT = re.compile(r"(\d{4}-\d{2}-\d{2})[t ](?=\d{1,2}:\d{2})")
_SPECIAL = re.compile(
    rf"(?P<url>{_URL.pattern})|(?P<iban>{_IBAN.pattern})|(?P<time>\d{{1,2}}:\d{{2}}(?::\d{{2}})?)|(?P<grouped>\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?)"
)
_SEPARATORS = re.compile(r"[\s,;|()\[\]{}\"<>=/\\&:]+")
_EDGES = ".!?'#@*_~-+$€£%^"
MIN_PHONE_DIGITS = 7
COMPARED_PHONE_DIGITS = 8
MIN_IBAN_CHARS = 15


def folded(text: str) -> str:
    """The text without differences of case, width, dashes, quotes and invisible characters."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_DASHES_AND_QUOTES)
        text = "".join(char for char in text if unicodedata.category(char) != "Cf")
    return _MOMENT.sub(r"\1 ", text.casefold())


def canonical_url(url: str) -> str:
    """The address without scheme, `www.` and what punctuation leaves at its end."""
    bare = re.sub(r"^[a-z]+://", "", url).rstrip(".,;:!?)'\"").rstrip("/")
    return bare.removeprefix("www.")


def host_of(url: str) -> str:
    """The host of a canonical URL: user names and ports don't count."""
    return re.split(r"[/?#]", url, maxsplit=1)[0].rpartition("@")[2].partition(":")[0]


def decimals(text: str) -> set[str]:
    """The numbers that a written number may mean: `1,200.00` is 1200, `1.200` may be 1.2 or 1200."""
    plain = text.replace("'", "").lstrip("+")
    comma, point = plain.rfind(","), plain.rfind(".")
    if comma >= 0 and point >= 0:
        plain = plain.replace(",", "") if point > comma else plain.replace(".", "").replace(",", ".")
        candidates = [plain]
    elif comma >= 0 or point >= 0:
        mark = "," if comma >= 0 else "."
        candidates = [plain.replace(mark, ".")] if plain.count(mark) == 1 else []
        if re.fullmatch(r"-?\d{1,3}(?:[.,]\d{3})+", plain):
            candidates.append(plain.replace(mark, ""))
    else:
        candidates = [plain]
    found = set()
    for candidate in candidates:
        try:
            found.add(_plain_number(Decimal(candidate)))
        except InvalidOperation:
            continue
    return found


def _plain_number(number: Decimal) -> str:
    return format(number.normalize(), "f") if number.is_finite() else ""


def _digits(phone: str) -> str:
    digits = re.sub(r"\D", "", phone)
    return digits.lstrip("0")


def _chunks(text: str) -> str:
    """The tokens of a folded text, each stripped of punctuation, separated and enclosed by single spaces."""
    found: list[str] = []
    end = 0
    for match in _SPECIAL.finditer(text):
        found += _SEPARATORS.split(text[end : match.start()])
        end = match.end()
        kind, part = match.lastgroup, match.group()
        if kind == "url":
            found.append(canonical_url(part))
        elif kind == "time":
            found.append(part.removesuffix(":00") if part.count(":") == 2 else part)
        else:
            found.append(part.replace(" ", "").replace(",", ""))
    found += _SEPARATORS.split(text[end:])
    stripped = (chunk.strip(_EDGES).removesuffix("'s") for chunk in found)
    return " ".join(["", *(chunk for chunk in stripped if chunk), ""])


class TextForms:
    """One text, prepared for looking up values in it; each form is computed on first use."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._folded = folded(text[:MAX_TEXT_CHARS])

    @cached_property
    def chunks(self) -> str:
        return _chunks(self._folded)

    @cached_property
    def emails(self) -> frozenset[str]:
        return (
            frozenset(match.rstrip(".-") for match in _EMAIL.findall(self._folded))
            if "@" in self._folded
            else frozenset()
        )

    @cached_property
    def urls(self) -> frozenset[str]:
        return frozenset(canonical_url(match.group()) for match in _URL.finditer(self._folded))

    @cached_property
    def ibans(self) -> frozenset[str]:
        return frozenset(match.group().replace(" ", "") for match in _IBAN.finditer(self._folded))

    @cached_property
    def phones(self) -> frozenset[str]:
        return frozenset(_digits(match.group()) for match in _PHONE.finditer(self._folded))

    @cached_property
    def numbers(self) -> frozenset[str]:
        found: set[str] = set()
        for match in _NUMBER.finditer(self._folded):
            found |= decimals(match.group())
        return frozenset(found)

    def of_kind(self, kind: ValueKind) -> frozenset[str]:
        """All addresses of a kind; nothing for plain text."""
        known = {
            "email": lambda: self.emails,
            "url": lambda: self.urls,
            "iban": lambda: self.ibans,
            "phone": lambda: self.phones,
        }
        return known[kind]() if kind in known else frozenset()

    def has(self, value: ValueForms) -> bool:
        """Whether the text contains the value as whole tokens."""
        match value.kind:
            case "email":
                return value.canonical in self.emails
            case "url":
                return self._has_url(value.canonical) or bool(value.chunks.strip() and value.chunks in self.chunks)
            case "iban":
                return value.canonical in self.ibans or value.chunks in self.chunks
            case "phone":
                return any(_same_phone(value.canonical, phone) for phone in self.phones) or value.chunks in self.chunks
            case "number":
                return value.canonical in self.numbers or value.chunks in self.chunks
        return len(value.chunks) > 1 and value.chunks in self.chunks

    def _has_url(self, url: str) -> bool:
        """The whole address, its beginning up to a `/`, or its host alone."""
        if url in self.urls:
            return True
        if url == host_of(url):
            return any(host_of(known) == url for known in self.urls)
        return any(url.startswith((f"{known}/", f"{known}?", f"{known}#")) for known in self.urls)


def _same_phone(one: str, other: str) -> bool:
    """National and international forms end in the same digits."""
    shorter = min(len(one), len(other))
    return shorter >= COMPARED_PHONE_DIGITS and one[-shorter:] == other[-shorter:]


class ValueForms:
    """One value to look for: its kind, and its canonical form."""

    def __init__(self, value: str | float) -> None:
        text = folded(str(value).strip()[:MAX_TEXT_CHARS])
        self.kind, self.canonical = _kind_of(text)
        self.chunks = _chunks(text)

    @property
    def is_empty(self) -> bool:
        return not self.chunks.strip()


def _kind_of(text: str) -> tuple[ValueKind, str]:
    address = re.fullmatch(r"(?:mailto:|[^<>@]*<)?([\w.%+-]+@[\w-]+(?:\.[\w-]+)+)>?", text)
    if address is not None:
        return "email", address[1]
    if _URL.fullmatch(text) is not None:
        return "url", canonical_url(text)
    squeezed = re.sub(r"[\s-]", "", text)
    if len(squeezed) >= MIN_IBAN_CHARS and re.fullmatch(r"[a-z]{2}\d{2}[a-z0-9]+", squeezed):
        return "iban", squeezed
    if _NUMBER.fullmatch(text.lstrip("$€£ ")):
        digits = re.sub(r"\D", "", text)
        if len(digits) >= COMPARED_PHONE_DIGITS and text[0] in "+0":
            return "phone", _digits(text)
        return "number", min(decimals(text.lstrip("$€£ ")), default="")
    if _PHONE.fullmatch(text) and len(_digits(text)) >= MIN_PHONE_DIGITS:
        return "phone", _digits(text)
    return "text", text
