"""The values of a session by their origins: the person's words, the fields of results, and what links them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from toolcrib.approval.json_pointers import OriginMap, leaves, pointer_of
from toolcrib.approval.wording import ORDERS_TO_ASSISTANT, gives_order_about
from toolcrib.core.lazy import ruamel_yaml
from toolcrib.core.origins import OriginLevel, ResultSource, ValueOrigin, ValueSources

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


MAX_IDENTIFYING_CHARS = 160
"""A longer field is a text, and not a name, a subject or an id."""
MAX_ORDER_CHARS = 100_000
"""The part of a text that is searched for orders."""
MAX_ABOUT_CHARS = 80
MAX_PLACES = 50
"""How many mentions of a value are read; a text with more counts as an order."""
MAX_NAME_CHARS = 60
MAX_NAME_CHUNKS = 3
MIN_NAME_CHARS = 3
_MARKED = re.compile(r'\A<untrusted_tool_result source="[^"]*">\n(.*)\n</untrusted_tool_result>', re.DOTALL)
_ID_KEY = re.compile(r"(?:.*[_-])?(?:id|uuid|key|reference)_?|.*(?:Id|ID)")
_ID_VALUE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NAMED_KEY = re.compile(r"[A-Z0-9@.\s-]")
_SHARED_MAILBOXES = frozenset(
    ("info", "mail", "team", "support", "admin", "office", "contact", "hello", "news", "noreply", "service", "help")
)


class Leaf:
    """One field of a result, or the whole of a plain text."""

    __slots__ = ("__dict__", "at", "level", "source", "text")

    def __init__(self, source: ResultSource, at: tuple[str, ...], level: OriginLevel, text: str) -> None:
        self.source = source
        self.at = at
        self.level = level
        self.text = text

    @cached_property
    def forms(self) -> TextForms:
        return TextForms(self.text)

    @cached_property
    def record(self) -> tuple[str, ...]:
        """The position of the list item that the field belongs to; empty for the whole result."""
        at = self.at
        if len(at) > 1 and at[-1].isdigit() and not _is_item(at[-2]):
            at = at[:-1]  # One of several values of a field, such as the participants of an event.
        last = max((index for index, key in enumerate(at) if _is_item(key)), default=-1)
        return at[: last + 1]

    @cached_property
    def gives_orders_to_assistant(self) -> bool:
        return ORDERS_TO_ASSISTANT.search(self.text[:MAX_ORDER_CHARS]) is not None

    @property
    def is_id(self) -> bool:
        """Whether the field is the id of something, by its name and its form."""
        return bool(self.at) and bool(_ID_KEY.fullmatch(self.at[-1])) and bool(_ID_VALUE.fullmatch(self.text))

    @cached_property
    def is_name(self) -> bool:
        """Whether the field is short enough to be a name, a title or an address, and not a text or a number."""
        value = ValueForms(self.text)
        return (
            len(self.text) <= MAX_NAME_CHARS and value.kind != "number" and len(value.chunks.strip()) >= MIN_NAME_CHARS
        )

    @property
    def pointer(self) -> str:
        return pointer_of(self.at)

    @property
    def origin(self) -> ValueOrigin:
        source = self.source
        given = (value for _, value in leaves(source.arguments) if isinstance(value, str) and value.strip())
        about = next(given, "")
        return ValueOrigin(
            level=self.level,
            source=source.tool,
            call_id=source.call_id,
            pointer=self.pointer,
            about=about if len(about) <= MAX_ABOUT_CHARS else about[:MAX_ABOUT_CHARS] + "…",
        )

    def is_exactly(self, value: ValueForms) -> bool:
        """Whether the field is this value and nothing more."""
        return ValueForms(self.text).chunks == value.chunks

    def orders(self, value: ValueForms) -> bool:
        """Whether a sentence with this value is an order, or follows words to the assistant."""
        pattern = r"\W+".join(re.escape(chunk) for chunk in value.chunks.split())
        text = self.text[:MAX_ORDER_CHARS]
        places = list(islice(re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE), MAX_PLACES + 1))
        if len(places) > MAX_PLACES:
            return True  # A text that is made to hide something.
        words_to_assistant = ORDERS_TO_ASSISTANT.search(text) if places else None
        return any(
            (words_to_assistant is not None and place.start() >= words_to_assistant.start())
            or gives_order_about(text, place.start(), place.end())
            for place in places
        )


class SessionValues:
    """The words and fields of one session so far."""

    def __init__(self, sources: ValueSources) -> None:
        self._sources = sources
        self._read_words = 0
        self._read_results = 0
        self.words: list[tuple[int, TextForms]] = []
        self.trusted: list[Leaf] = []
        self.untrusted: list[Leaf] = []
        self._by_record: dict[tuple[int, tuple[str, ...]], list[Leaf]] = {}
        self._arguments: list[tuple[int, TextForms]] = []
        self._records: dict[int, set[tuple[str, ...]]] = {}

    def sync(self) -> None:
        """Read what was added since the last time."""
        sources = self._sources
        for question, text in sources.words[self._read_words :]:
            self.words.append((question, TextForms(text)))
        self._read_words = len(sources.words)
        for source in sources.results:
            if source.number >= self._read_results:
                self._read(source)
                self._read_results = source.number + 1

    def _read(self, source: ResultSource) -> None:
        for _, argument in leaves(source.arguments):
            if isinstance(argument, (str, int, float)) and not isinstance(argument, bool):
                self._arguments.append((source.number, TextForms(str(argument))))
        found = list(_fields(source))
        if any(leaf.level == "derived" for leaf in found):
            is_tainted = self._has_untrusted_argument(source)
            own = [leaf for leaf in found if leaf.level != "derived"]
            derived = [leaf for leaf in found if leaf.level == "derived"]
            # The id of something that a call created is the service's; what only repeats an argument does not count.
            own += [Leaf(source, leaf.at, "trusted", leaf.text) for leaf in derived if leaf.is_id]
            # What a tool computed from harmless arguments says nothing about its origin.
            own += [Leaf(source, leaf.at, "untrusted", leaf.text) for leaf in derived if is_tainted and not leaf.is_id]
            found = own
        for leaf in found:
            self._by_record.setdefault((source.number, leaf.record), []).append(leaf)
            self._records.setdefault(source.number, set()).add(leaf.record)
            if leaf.level == "person":
                self.words.append((source.question, leaf.forms))
            else:
                (self.trusted if leaf.level == "trusted" else self.untrusted).append(leaf)

    def _has_untrusted_argument(self, source: ResultSource) -> bool:
        given = [argument for _, argument in leaves(source.arguments) if isinstance(argument, str) and argument.strip()]
        unknown = [
            (argument, value)
            for argument in given
            if not self.in_words(value := ValueForms(argument))
            and not any(leaf.forms.has(value) for leaf in self.trusted)
        ]
        return any(
            leaf.forms.has(value) or _quotes(argument, leaf) for argument, value in unknown for leaf in self.untrusted
        )

    # The person's words

    @property
    def question(self) -> int:
        return self._sources.question

    @property
    def has_untrusted(self) -> bool:
        return bool(self.untrusted)

    def recent_words(self) -> str:
        """What the person asks for: the words of this question and the one before."""
        return "\n".join(forms.text for question, forms in self.words if question >= self.question - 1)

    def in_words(self, value: ValueForms) -> bool:
        return any(forms.has(value) for _, forms in self.words)

    @property
    def numbers_in_words(self) -> set[str]:
        return {number for _, forms in self.words for number in forms.numbers}

    # Fields

    def in_trusted(self, value: ValueForms, *, whole: bool = False) -> list[Leaf]:
        """The trusted fields with this value, except those that only repeat what a call was given."""
        found = [leaf for leaf in self.trusted if (leaf.is_exactly(value) if whole else leaf.forms.has(value))]
        if not found:
            return []
        given = min((number for number, forms in self._arguments if forms.has(value)), default=None)
        return [leaf for leaf in found if given is None or leaf.source.number < given]

    def numbers_in(self, leaves: Iterable[Leaf]) -> set[str]:
        return {number for leaf in leaves for number in leaf.forms.numbers}

    def in_untrusted(self, value: ValueForms) -> list[Leaf]:
        return [leaf for leaf in self.untrusted if leaf.forms.has(value)]

    def siblings(self, leaf: Leaf) -> list[Leaf]:
        """The fields of the same record."""
        return self._by_record.get((leaf.source.number, leaf.record), [leaf])

    def is_named(self, leaf: Leaf, *, only_now: bool = False) -> bool:
        """Whether the person named the record of a field: by one of its fields, or by what the call was asked for.

        With `only_now`, the words of the current question count alone.
        """
        words = [forms for question, forms in self.words if not only_now or question == self.question]
        if any(other is not leaf and self._names_record(other, words) for other in self.siblings(leaf)):
            return True
        if leaf.record and len(self._records.get(leaf.source.number, ())) > 1:
            return False  # A list: being found by a search does not name an item.
        given = [value for _, value in leaves(leaf.source.arguments) if isinstance(value, str) and value.strip()]
        return bool(given) and all(self._is_named_value(value, words) for value in given)

    def _names_record(self, leaf: Leaf, words: list[TextForms]) -> bool:
        """Whether the person called a record by this field, and not most of the others in the same result, too."""
        if not _identifies(leaf, words):
            return False
        records = self._records.get(leaf.source.number, ())
        alike = sum(
            any(other.text == leaf.text for other in self._by_record.get((leaf.source.number, record), ()))
            for record in records
        )
        return len(records) <= 1 or alike * 2 <= len(records)

    def _is_named_value(self, text: str, words: list[TextForms]) -> bool:
        value = ValueForms(text)
        if any(forms.has(value) for forms in words) or _has_name(text, words):
            return True
        return any(
            _identifies(other, words)
            for leaf in self.in_trusted_before_use(value)
            for other in self.siblings(leaf)
            if other is not leaf
        )

    def in_trusted_before_use(self, value: ValueForms) -> list[Leaf]:
        return [leaf for leaf in self.in_trusted(value) if leaf.is_exactly(value)]


def _is_item(key: str) -> bool:
    """Whether a key is the index of a list, or the name of a thing instead of a field."""
    return key.isdigit() or " " in key or key != key.lower()


def _fields(source: ResultSource) -> Iterator[Leaf]:
    """The fields of a result, with their levels; plain text is one field."""
    origins = OriginMap(source.origin)
    content: Any = source.content
    if isinstance(content, str):
        marked = _MARKED.match(content)
        content = marked[1] if marked else content
        content = _parsed(content, may_be_yaml=origins.has_fields)
    if isinstance(content, str):
        yield Leaf(source, (), origins.weakest, content)
        return
    for at, value in leaves(content):
        if value is None or isinstance(value, bool) or value == "":
            continue
        yield Leaf(source, at, origins.level_at(at), str(value))
    yield from _keys(source, origins, content, ())


def _keys(source: ResultSource, origins: OriginMap, value: Any, at: tuple[str, ...]) -> Iterator[Leaf]:
    """Keys that are values, such as the names in `{"Grand Hotel": 4.5}`."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _keys(source, origins, item, (*at, str(index)))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if _NAMED_KEY.search(str(key)):
                yield Leaf(source, (*at, str(key)), origins.level_at((*at, str(key))), str(key))
            yield from _keys(source, origins, item, (*at, str(key)))


def _parsed(text: str, *, may_be_yaml: bool) -> Any:
    """The JSON in a text; if its fields have levels of their own, also YAML; otherwise the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if not may_be_yaml:
            return text
        try:
            value = ruamel_yaml.YAML(typ="safe", pure=True).load(text)
        except (ruamel_yaml.error.YAMLError, ValueError, RecursionError):
            return text
    return value if isinstance(value, (dict, list)) else text


def _identifies(leaf: Leaf, words: list[TextForms]) -> bool:
    """Whether a field of a record is what the person called it by: its title, its file name, a name."""
    text = leaf.text.strip()
    if len(text) > MAX_IDENTIFYING_CHARS:
        return False
    value = ValueForms(text)
    if value.kind == "number" and len(value.canonical) < MIN_NAME_CHARS:
        return False
    if len(value.chunks.strip()) >= MIN_NAME_CHARS and any(forms.has(value) for forms in words):
        return True
    return _has_name(text, words)


def _has_name(text: str, words: list[TextForms]) -> bool:
    """Whether the person wrote a part of this name or address with a capital letter, as in `Anna` for Anna Miller."""
    return any(
        re.search(rf"(?<![\w@.]){re.escape(name)}(?![\w@])", forms.text) for name in name_parts(text) for forms in words
    )


def name_parts(text: str) -> list[str]:
    """The parts of a name or an address that a person may use instead of it, with a capital letter."""
    value = ValueForms(text)
    if value.kind == "email":
        parts = re.split(r"[._+-]", value.canonical.partition("@")[0])
    elif value.kind == "text" and len(value.chunks.split()) <= MAX_NAME_CHUNKS:
        parts = value.chunks.split()
    else:
        return []
    return [
        part.capitalize()
        for part in parts
        if len(part) >= MIN_NAME_CHARS and part.isalpha() and part not in _SHARED_MAILBOXES
    ]


def _quotes(argument: str, leaf: Leaf) -> bool:
    """Whether a longer argument contains a longer piece of an untrusted text."""
    chunks = ValueForms(argument).chunks.split()
    width = 6
    return any(
        f" {' '.join(chunks[start : start + width])} " in leaf.forms.chunks
        for start in range(0, max(0, len(chunks) - width + 1), width // 2)
    )
