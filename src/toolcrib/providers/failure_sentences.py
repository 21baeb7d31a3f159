"""What a person is told about each kind of failure: one sentence that ends with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal[
    "key", "unknown_model", "rate_limit", "quota", "too_long", "bad_request", "refused_tool", "server",
    "network", "timeout", "missing_package", "weights", "filtered",
]  # fmt: skip
MAX_QUOTED_CHARS = 300


class Asked(NamedTuple):
    """Whom we asked for what."""

    provider: str
    model: str
    base_url: str
    key_variable: str
    is_local: bool


class Judged(NamedTuple):
    """What a failure is. `cause` tells the sentences of one kind apart."""

    kind: Kind
    may_retry: bool = False
    cause: str = ""


def sentence(found: Judged, said: str, asked: Asked) -> str:
    """One sentence: what happened, to which model, with the provider's own words, and what to do."""
    said = " ".join(said.split())
    quoted = f" ({said[:MAX_QUOTED_CHARS]}{'…' if len(said) > MAX_QUOTED_CHARS else ''})" if said else ""
    return _SENTENCES[found.kind](found.cause, asked, quoted)


def _key(cause: str, asked: Asked, quoted: str) -> str:
    where = f"the key in {asked.key_variable}" if asked.key_variable else "the key"
    if cause == "unsendable":
        # The library's own words would show the key.
        return (
            f"{where} for {asked.provider} holds a character that cannot be sent; run `toolcrib setup` to set it anew"
        )
    if cause == "forbidden":
        return (
            f"{asked.provider} gives {where} no access to model {asked.model!r}{quoted}; "
            "use another key (`toolcrib setup`) or another model (`toolcrib model list`)"
        )
    return f"{asked.provider} refuses {where} for model {asked.model!r}{quoted}; set a valid one with `toolcrib setup`"


def _unknown_model(cause: str, asked: Asked, quoted: str) -> str:
    address = f", or set model.base_url if {asked.base_url} is not the right address" if cause == "address" else ""
    pull = f", or type `ollama pull {asked.model}`" if "pull" in quoted else ""
    return (
        f"{asked.provider} does not know the model {asked.model!r}{quoted}; "
        f"choose one of `toolcrib model list`{pull}{address}"
    )


def _network(cause: str, asked: Asked, quoted: str) -> str:
    if cause == "refused":
        if asked.is_local:
            return f"nothing answers at {asked.base_url}, where {asked.provider} should be; is the server running?"
        return f"{asked.provider} refuses connections at {asked.base_url}; check model.base_url and your network"
    if cause == "dns":
        return (
            f"the address {asked.base_url} of {asked.provider} cannot be found; check your network and model.base_url"
        )
    if cause == "tls":
        return (
            f"the connection to {asked.provider} at {asked.base_url} is not safe{quoted}; "
            "check the clock of this machine, a proxy in between, or model.base_url"
        )
    return f"the connection to {asked.provider} at {asked.base_url} broke{quoted}; check your network and try again"


def _server(cause: str, asked: Asked, quoted: str) -> str:
    if cause == "garbled":
        return f"{asked.provider} sent an answer for model {asked.model!r} that cannot be read; try again"
    if cause == "unknown":
        return f"the request to {asked.provider} for model {asked.model!r} failed{quoted}; try again or another model"
    return (
        f"{asked.provider} cannot answer with model {asked.model!r} just now{quoted}; "
        "try again in a minute, or another model of `toolcrib model list`"
    )


def _bad_request(cause: str, asked: Asked, quoted: str) -> str:
    if cause == "address":
        return (
            f"{asked.base_url!r} is not an address that {asked.provider} can be at; set model.base_url to http(s)://…"
        )
    return (
        f"{asked.provider} does not accept the request for model {asked.model!r}{quoted}; "
        "change what it names, or use another model (`toolcrib model list`)"
    )


_SENTENCES: dict[Kind, Callable[[str, Asked, str], str]] = {
    "key": _key,
    "unknown_model": _unknown_model,
    "network": _network,
    "server": _server,
    "bad_request": _bad_request,
    "rate_limit": lambda _, asked, quoted: (
        f"{asked.provider} takes no more requests for model {asked.model!r} just now{quoted}; "
        "wait a little, or use another model (`toolcrib model list`)"
    ),
    "quota": lambda _, asked, quoted: (
        f"the credit or quota of the account at {asked.provider} is used up for model {asked.model!r}{quoted}; "
        "add credit there, wait for the next period, or use another model (`toolcrib model list`)"
    ),
    "too_long": lambda _, asked, quoted: (
        f"the conversation is too long for model {asked.model!r} of {asked.provider}{quoted}; "
        "shorten it with /compress, or begin a new one with /new"
    ),
    "refused_tool": lambda cause, asked, quoted: (
        f"{asked.provider} takes no tools with model {asked.model!r}{quoted}; "
        "to have them, use another model (`toolcrib model list`)"
    ) if cause == "all" else (
        f"{asked.provider} refuses a tool that was offered to model {asked.model!r}{quoted}; "
        "`toolcrib tools lint` finds what is wrong with its schema"
    ),
    "timeout": lambda cause, asked, quoted: (
        f"{asked.provider} did not answer in time with model {asked.model!r}{quoted if cause else ''}; "
        "try again, or raise model.timeout"
    ),
    "missing_package": lambda _, asked, quoted: (
        f"a package that {asked.provider} needs is missing{quoted}; "
        "type `pip install 'toolcrib[openai]'` or `pip install 'toolcrib[anthropic]'`"
    ),
    "filtered": lambda _, asked, quoted: (
        f"the content filter of {asked.provider} stopped the request to model {asked.model!r}{quoted}; "
        "word it differently, or use another model (`toolcrib model list`)"
    ),
}  # fmt: skip
