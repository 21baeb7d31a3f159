"""What an act would do, by the element it would reach: whether it submits a form, uploads a file, types a secret.

The gate needs to know before the act happens. A hostile page can make any click do anything; these facts separate the
ordinary cases, reading and sending, on ordinary pages.
"""

from __future__ import annotations

import re

import msgspec

from toolcrib.config.redact import has_secret
from toolcrib.core.types import Effect

_SPENDING = re.compile(
    r"\b(buy|pay|purchase|check ?out|place (the |your |my )?order|order now|donate|book now|reserve|subscribe|rent)\b",
    re.IGNORECASE,
)
_SENDING = re.compile(
    r"\b(send|post|publish|share|submit|delete|remove|confirm|transfer|sign up|register|create account|apply|"
    r"unsubscribe|accept|agree|approve|withdraw|cancel (order|booking|subscription|account)|save changes)\b",
    re.IGNORECASE,
)
_SECRET_FIELDS = ("password", "one-time-code", "cc-number", "cc-csc")
MAX_LABEL_CHARS = 60


class ElementFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an element before it is used."""

    tag: str = ""
    type: str = ""
    label: str = ""
    host: str = ""
    editable: bool = False
    in_form: bool = False
    submits: bool = False
    method: str = ""
    form_host: str = ""
    text_fields: int = 0
    has_private_fields: bool = False
    download: bool = False
    opens_window: bool = False
    """Whether a link or form names another window."""
    autocomplete: str = ""

    @property
    def is_upload(self) -> bool:
        return self.tag == "input" and self.type == "file"

    @property
    def takes_secret(self) -> bool:
        return self.type == "password" or any(name in self.autocomplete for name in _SECRET_FIELDS)

    @property
    def only_searches(self) -> bool:
        """Whether its form only asks for another page: what it sends ends up in the address, and nothing is private."""
        is_get = self.method == "get" or (not self.method and self.text_fields <= 1)
        return is_get and not self.has_private_fields


def click_effects(facts: ElementFacts) -> tuple[Effect, ...]:
    """What a click on the element does outside the browser."""
    network = Effect("network", facts.host)
    label = " ".join(facts.label.split())[:MAX_LABEL_CHARS]
    if facts.tag in ("button", "input", "a", "summary", "div", "span", "label") and not facts.editable:
        if _SPENDING.search(label) and facts.type not in ("checkbox", "radio", "file") and facts.tag != "a":
            return (network, Effect("spend", f"at {facts.host} (“{label}”)"))
        if facts.submits and not facts.only_searches:
            return (network, submission(facts, label))
        if not facts.in_form and facts.tag not in ("a", "label") and _SENDING.search(label):
            return (network, submission(facts, label))
    return (network,)


def press_effects(facts: ElementFacts, key: str) -> tuple[Effect, ...]:
    """What a key does: Enter submits the form of a field, and presses a button; Space presses a button."""
    network = Effect("network", facts.host)
    name = key.rpartition("+")[2].lower()
    is_field = facts.editable and facts.tag == "input"
    if name == "enter" and is_field and facts.in_form:
        return (network,) if facts.only_searches else (network, submission(facts, "Enter"))
    if name in ("enter", "numpadenter", "space", " ", "") and not facts.editable and facts.tag in ("button", "input"):
        return click_effects(facts)
    return (network,)


def type_effects(facts: ElementFacts, text: str) -> tuple[Effect, ...]:
    """What typing does; uploads are the caller's, because they name files."""
    network = Effect("network", facts.host)
    if facts.takes_secret or has_secret(text):
        field = f" into the field “{facts.label[:MAX_LABEL_CHARS]}”" if facts.label else ""
        return (network, Effect("secret", f"{field.strip() or 'in a field'} of {facts.host}"))
    return (network,)


def submission(facts: ElementFacts, label: str) -> Effect:
    """A form that is sent, or a button that sends something."""
    host = facts.form_host or facts.host
    return Effect("remote", f"a form (“{label}”)" if facts.in_form else f"“{label}”", service=host, action="submit")
