"""Decides for each delicate value of a call whether its origin vouches for it, and says why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cached_property

from toolcrib.approval.json_pointers import values_at
from toolcrib.approval.value_index import Leaf, SessionValues, TextForms, ValueForms, ValueKind, name_parts
from toolcrib.approval.wording import (
    DELEGATES,
    REFERS,
    REFERS_TO_FIELD,
    SEVERAL,
    asks_for,
    names_action,
    names_destination,
)
from toolcrib.core.origins import DelicateRole, ValueFinding, ValueOrigin, ValueSources
from toolcrib.core.types import Effect, JsonObject

MAX_SHOWN_VALUE = 200
MAX_KNOWN_NUMBERS = 400
"""Sums are looked for among this many numbers."""
MAX_RECORDS = 8
"""How many records of one value are compared with the orders in untrusted content."""
MAX_PARTS = 12
"""A share of an amount is one of up to this many equal parts."""
FORWARDED_SHARE = 0.8
"""A text that takes this much of its source passes it on; a smaller part may be what its author dictates."""
PERSON = ValueOrigin(level="person")
STRICT_ROLES = frozenset({"destination", "record"})
"""Roles whose value must be known: an unseen value needs approval."""
ADDRESS_KINDS: tuple[ValueKind, ...] = ("email", "url", "iban", "phone")
_DATE_WORDS = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|morning|noon|afternoon|evening|midnight|day|week|weekend|month|year)s?\b"
    r"|\b(?:hour|minute|mon|tues?|wednes|thurs?|fri|satur|sun)(?:day)?s?\b"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w*\b"
    r"|\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}(?:[./]\d{2,4})?\b|\b\d{1,2}(?:st|nd|rd|th)\b"
    r"|\b\d{1,2}(?::\d{2})? ?(?:am|pm|o'clock)\b|\b\d{1,2}:\d{2}\b",
    re.IGNORECASE,
)


class ValueIndex:
    """Looks up the values of one session."""

    def __init__(self, sources: ValueSources) -> None:
        self._sources = sources
        self._session = SessionValues(sources)

    def origin_of(self, value: str | float) -> ValueOrigin | None:
        """Where a value comes from, the most trustworthy place first."""
        session = self._session
        session.sync()
        forms = ValueForms(value)
        if session.in_words(forms):
            return PERSON
        found = session.in_trusted(forms) or session.in_untrusted(forms)
        return found[0].origin if found else None

    def findings(
        self, tool: str, arguments: JsonObject, effects: Iterable[Effect], limit: float
    ) -> tuple[ValueFinding, ...]:
        """One finding for each delicate value of the call, and one for each effect without any."""
        self._session.sync()
        found: dict[tuple[str, str], ValueFinding] = {}
        for effect in effects:
            call = _Call(self._session, tool, effect.kind, limit, is_incomplete=self._sources.is_incomplete)
            given = list(_delicate_values(arguments, effect.delicate or {}))
            for pointer, role, value in given:
                finding = call.finding(pointer, role, value)
                known = found.get((pointer, role))
                if known is None or (known.vouched and not finding.vouched):
                    found[pointer, role] = finding
            if not given and not call.is_asked_for:
                found[effect.kind, ""] = ValueFinding(
                    pointer="",
                    role="value",
                    value=tool,
                    vouched=False,
                    reason="is an action that the user did not ask for",
                )
        return tuple(found.values())


def _delicate_values(
    arguments: JsonObject, delicate: Mapping[str, DelicateRole]
) -> Iterable[tuple[str, DelicateRole, str | float]]:
    for pattern, role in delicate.items():
        for pointer, value in values_at(arguments, pattern):
            if isinstance(value, bool) or value is None:
                continue
            if isinstance(value, (int, float)):
                yield pointer, role, value
            elif isinstance(value, str):
                for part in _addresses_in_list(value) if role == "destination" else (value,):
                    if part.strip():
                        yield pointer, role, part


def _addresses_in_list(text: str) -> list[str]:
    """`a@x.org, b@y.org` as two values."""
    parts = [part.strip() for part in re.split(r"[,;]", text) if part.strip()]
    return parts if len(parts) > 1 and all(ValueForms(part).kind == "email" for part in parts) else [text]


class _Call:
    """Judges the values of one effect of a call."""

    def __init__(self, session: SessionValues, tool: str, kind: str, limit: float, *, is_incomplete: bool) -> None:
        self._session = session
        self._tool = tool
        self._kind = kind
        self._limit = limit
        self._is_incomplete = is_incomplete

    @cached_property
    def _words(self) -> str:
        return self._session.recent_words()

    @cached_property
    def is_asked_for(self) -> bool:
        """Whether the person asked for an action like this; without untrusted content, who else should have."""
        return not self._session.has_untrusted or asks_for(self._words, self._tool, self._kind)

    def finding(self, pointer: str, role: DelicateRole, value: str | float) -> ValueFinding:
        vouched, reason, origin = self._judged(role, value)
        shown = str(value)
        return ValueFinding(
            pointer=pointer,
            role=role,
            value=shown if len(shown) <= MAX_SHOWN_VALUE else shown[:MAX_SHOWN_VALUE] + "…",
            vouched=vouched,
            reason=reason,
            origin=origin,
        )

    def _judged(self, role: DelicateRole, value: str | float) -> tuple[bool, str, ValueOrigin | None]:
        forms = ValueForms(value)
        if forms.is_empty:
            return True, "is empty", None
        if self._session.in_words(forms):
            return True, "comes from the user's words", PERSON
        if role == "content":
            return self._judged_content(str(value))
        trusted = self._session.in_trusted(forms, whole=role == "record" and forms.kind == "number")
        if trusted:
            suspicion, leaf = self._suspicion(forms, trusted)
            if not suspicion:
                return True, f"comes from {leaf.origin}", leaf.origin
            return False, suspicion, leaf.origin
        untrusted = self._session.in_untrusted(forms)
        if self._is_composed(role, forms, value, untrusted):
            return True, "is composed of values that the user or a trusted source gave", None
        if untrusted:
            delegated = self._delegated(role, forms, untrusted)
            if delegated is not None:
                return True, f"comes from {delegated.origin}, which the user named in this question", delegated.origin
            if role == "date" and not any(leaf.orders(forms) for leaf in untrusted):
                return True, f"comes from {untrusted[0].origin}, which orders nothing for it", untrusted[0].origin
            return False, f"first appeared in {untrusted[0].origin}, which is untrusted content", untrusted[0].origin
        return self._judged_unknown(role, value)

    def _judged_unknown(self, role: DelicateRole, value: str | float) -> tuple[bool, str, ValueOrigin | None]:
        nowhere = "was found neither in the user's words nor in any trusted result"
        if role in STRICT_ROLES or self._is_incomplete:
            return False, nowhere, None
        if role == "amount" and _number(value) > self._limit:
            return False, f"{nowhere}, and is above the limit of {self._limit:g}", None
        return True, "was found nowhere, and the role allows that", None

    # Trusted fields

    def _suspicion(self, forms: ValueForms, trusted: list[Leaf]) -> tuple[str, Leaf]:
        """Why a trusted field does not vouch for the value after all, and the field that matters."""
        if not self._session.has_untrusted:
            return "", trusted[0]
        if not self.is_asked_for:
            return f"comes from {trusted[0].origin}, but the user did not ask for an action like this", trusted[0]
        named = next((leaf for leaf in trusted if leaf.is_exactly(forms) and self._session.is_named(leaf)), None)
        if named is not None and names_action(self._words, self._tool, self._kind):
            return "", named
        ordering = self._ordering([forms, *self._names_of(trusted)])
        if ordering is not None:
            return f"is what {ordering.origin}, untrusted content, tells the reader to use", ordering
        return "", trusted[0]

    def _names_of(self, trusted: list[Leaf]) -> list[ValueForms]:
        """What else the records of a value are called: an order may name a file where the call has its id."""
        others = [
            other
            for leaf in trusted[:MAX_RECORDS]
            for other in self._session.siblings(leaf)
            if other is not leaf and other.is_name
        ]
        senders = [part for other in others if "@" in other.text for part in name_parts(other.text)]
        return [ValueForms(name) for name in (*(other.text for other in others), *senders)]

    def _ordering(self, names: list[ValueForms]) -> Leaf | None:
        """Untrusted content that orders something with one of these; orders that the person delegated don't count."""
        for forms in names:
            for leaf in self._session.in_untrusted(forms):
                if leaf.is_exactly(forms):
                    continue
                if leaf.gives_orders_to_assistant and leaf.orders(forms):
                    return leaf
                if leaf.orders(forms) and not (DELEGATES.search(self._words) and self._is_named_now(leaf)):
                    return leaf
        return None

    # Delegation

    def _is_named_now(self, leaf: Leaf) -> bool:
        return leaf.source.question == self._session.question and self._session.is_named(leaf, only_now=True)

    def _delegated(self, role: DelicateRole, forms: ValueForms, untrusted: list[Leaf]) -> Leaf | None:
        """The field that the person left this value to; None if they didn't, or if it cannot be told which value."""
        if not self.is_asked_for:
            return None
        for leaf in untrusted:
            if not self._is_named_now(leaf) or self._is_suspicious_record(leaf):
                continue
            if role in STRICT_ROLES:
                if not self._is_left_to(leaf, role, forms):
                    continue
            elif role in ("value", "content") and not leaf.is_exactly(forms) and leaf.orders(forms):
                continue  # An order is what injected text looks like, and only a destination must come from one.
            return leaf
        return None

    @cached_property
    def _delegated_leaves(self) -> list[Leaf]:
        """The fields of everything that the person named in this question."""
        if not self.is_asked_for:
            return []
        return [
            leaf
            for leaf in self._session.untrusted
            if self._is_named_now(leaf) and not self._is_suspicious_record(leaf)
        ]

    def _is_suspicious_record(self, leaf: Leaf) -> bool:
        return any(
            other.level == "untrusted" and other.gives_orders_to_assistant for other in self._session.siblings(leaf)
        )

    def _is_left_to(self, leaf: Leaf, role: DelicateRole, forms: ValueForms) -> bool:
        """Whether the person's words leave a destination to this field, and it names only one.

        They must also name the action: "pay what the bill says", not "do what the mail says".
        """
        words = self._words
        if forms.kind == "email" and self._is_called_by_name(leaf, forms.canonical):
            return names_action(words, self._tool, self._kind)
        refers = DELEGATES.search(words) or REFERS.search(words)
        if leaf.is_exactly(forms):
            # Who names a record means its id; who else is in it must be asked for.
            return role == "record" or bool(refers or REFERS_TO_FIELD.search(words))
        if not refers or not names_action(words, self._tool, self._kind):
            return False
        if names_destination(words, self._tool, self._kind):
            return False
        if SEVERAL.search(words):
            return True
        if forms.kind in ADDRESS_KINDS:
            others = {one for one in leaf.forms.of_kind(forms.kind) if one != forms.canonical}
            return not any(not self._is_known_address(one) for one in others)
        return not leaf.orders(forms)

    def _is_called_by_name(self, leaf: Leaf, address: str) -> bool:
        """Whether the person wrote the name in an address, and no other address in the text has that name."""
        called = [part for part in name_parts(address) if re.search(rf"\b{re.escape(part)}\b", self._words)]
        others = leaf.forms.emails - {address}
        return bool(called) and not any(part.casefold() in other for part in called for other in others)

    def _is_known_address(self, address: str) -> bool:
        forms = ValueForms(address)
        return self._session.in_words(forms) or bool(self._session.in_trusted(forms))

    # Composed values

    def _is_composed(self, role: DelicateRole, forms: ValueForms, value: str | float, untrusted: list[Leaf]) -> bool:
        """Whether all parts of a value are known; one that untrusted content spells out must come from the words."""
        session = self._session
        if role == "amount":
            numbers = session.numbers_in_words
            if not untrusted:
                numbers |= session.numbers_in(session.trusted) | session.numbers_in(self._delegated_leaves)
            return _is_computed(_number(value), numbers)
        if role == "date":
            is_ordered = any(leaf.orders(forms) for leaf in untrusted)
            return not is_ordered and _DATE_WORDS.search(self._words) is not None
        if role in ("path", "value") and forms.kind == "text":
            parts = re.split(r"[/\\]", str(value)) if role == "path" else forms.chunks.split()
            known = [ValueForms(part) for part in parts if part.strip()]
            is_known = session.in_words if untrusted else self._is_known
            return len(known) > 1 and all(part.is_empty or is_known(part) for part in known)
        return False

    def _is_known(self, forms: ValueForms) -> bool:
        return forms.is_empty or self._session.in_words(forms) or bool(self._session.in_trusted(forms))

    # Free text

    def _judged_content(self, text: str) -> tuple[bool, str, ValueOrigin | None]:
        """Free text may come from anywhere; addresses in it, and texts that untrusted content dictates, may not."""
        forms = TextForms(text)
        for kind in ADDRESS_KINDS:
            for address in sorted(forms.of_kind(kind)):
                bad = self._untrusted_address(ValueForms(address))
                if bad is not None:
                    return (
                        False,
                        f"contains {address!r}, which first appeared in {bad.origin}, untrusted content",
                        bad.origin,
                    )
        dictating = self._dictating(text)
        if dictating is not None:
            return False, f"is what {dictating.origin}, untrusted content, tells the reader to write", dictating.origin
        return True, "is free text without addresses from untrusted content", None

    def _untrusted_address(self, forms: ValueForms) -> Leaf | None:
        if forms.is_empty or self._is_known(forms):
            return None
        untrusted = self._session.in_untrusted(forms)
        if not untrusted:
            return None
        return untrusted[0] if self._delegated("value", forms, untrusted) is None else None

    def _dictating(self, text: str) -> Leaf | None:
        forms = ValueForms(text)
        if len(forms.chunks.split()) < 2:
            return None
        for leaf in self._session.untrusted:
            if forms.chunks not in leaf.forms.chunks or len(forms.chunks) >= len(leaf.forms.chunks) * FORWARDED_SHARE:
                continue
            if not leaf.orders(forms):
                continue
            if leaf.gives_orders_to_assistant or not (DELEGATES.search(self._words) and self._is_named_now(leaf)):
                return leaf
        return None


def _number(value: str | float) -> float:
    try:
        return float(ValueForms(value).canonical)
    except ValueError:
        return float("inf")


def _is_computed(amount: float, known: set[str]) -> bool:
    """Whether an amount is a sum, a difference, a multiple, a share or a percentage of known numbers."""
    try:
        wanted = round(Decimal(repr(amount)), 2)
        numbers = [Decimal(text) for text in sorted(known)[:MAX_KNOWN_NUMBERS]]
    except InvalidOperation:
        return False
    rounded = {round(number, 2) for number in numbers}
    for number in numbers:
        if round(wanted - number, 2) in rounded or round(wanted + number, 2) in rounded:
            return True
        if any(wanted in (round(number * parts, 2), round(number / parts, 2)) for parts in range(2, MAX_PARTS + 1)):
            return True
    percentages = [number for number in numbers if 0 < number < 100]
    return any(
        wanted
        in (
            round(number * share / 100, 2),
            round(number * (100 + share) / 100, 2),
            round(number * (100 - share) / 100, 2),
        )
        for number in numbers
        for share in percentages[:40]
    )
