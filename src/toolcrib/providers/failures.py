"""Whatever an SDK raises, as one ModelError: what happened, to which model, and what to do.

Decided by status codes, by the fields of the body and by class names, so that no SDK is imported for it.
"""

from __future__ import annotations

import email.utils
import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from toolcrib.config.redact import MASK, MIN_SECRET_CHARS, redact
from toolcrib.core.attempt import attempt
from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.models import ModelError, ModelErrorKind
from toolcrib.core.types import JsonObject

MAX_TEXT_CHARS = 8_000
MAX_CAUSES = 8


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One failed request."""

    status: int | None
    said: str
    """The provider's own sentence."""
    text: str
    """All that the provider says about it: the sentence, type, code, parameter, details."""
    words: str
    """The same in lower case."""
    types: str
    """Type, code and status of the error object, in lower case."""
    names: frozenset[str]
    """The class names of the exception and of what caused it, with their bases."""
    has_body: bool
    retry_after_seconds: float | None
    should_retry: bool | None
    """What the server itself advises."""


def facts_of(error: BaseException) -> ErrorFacts:
    """What an exception says about the failure; reads only attributes that the known SDKs share."""
    chain = list(_with_causes(error))
    body = getattr(error, "body", None)
    described = _error_object(body)
    said = _said(described) or _own_text(chain)
    types = " ".join(str(described.get(key) or "") for key in ("type", "code", "status", "error_code"))
    text = _text(said, types, described)
    headers = _headers(error)
    return ErrorFacts(
        status=_status(error, described),
        said=said,
        text=text,
        words=text.lower(),
        types=types.lower(),
        names=frozenset(base.__name__ for one in chain for base in type(one).__mro__),
        has_body=bool(described),
        retry_after_seconds=_retry_after(headers, text),
        should_retry={"true": True, "false": False}.get(headers.get("x-should-retry", "")),
    )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    waiting = [error]
    for _ in range(MAX_CAUSES):
        if not waiting:
            return
        one = waiting.pop(0)
        yield one
        waiting.extend(one.exceptions if isinstance(one, BaseExceptionGroup) else ())
        # Transports hide what they translate (`from None`), but it stays the context.
        cause = one.__cause__ or one.__context__
        if cause is not None:
            waiting.append(cause)


def _error_object(body: Any) -> dict[str, Any]:
    """The object that describes the error, however deep a provider wraps it."""
    if isinstance(body, str):
        parsed = attempt(json.loads, body).value
        return _error_object(parsed) if isinstance(parsed, dict | list) else _from_page(body)
    if isinstance(body, list):
        return _error_object(body[0]) if body and isinstance(body[0], dict) else {}
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    if isinstance(inner, dict):
        return inner
    if isinstance(inner, str):
        return {**body, "message": inner}
    detail = body.get("detail")
    if detail and not body.get("message"):
        return {"message": detail if isinstance(detail, str) else json.dumps(detail, default=str)}
    return body


def _from_page(text: str) -> dict[str, Any]:
    # A proxy answers with a page: its title says more than its markup.
    title = re.search(r"<title>([^<]{1,200})", text, re.IGNORECASE)
    if title:
        return {"message": title[1].strip()}
    return {} if text.lstrip().startswith("<") else {"message": text.strip()}


def _said(described: dict[str, Any]) -> str:
    message = described.get("message") or described.get("msg") or ""
    metadata = described.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if raw:
        # A router says only that somebody refused; the words of that somebody are in its metadata.
        inner = _error_object(raw)
        message = _said(inner) or str(raw) or message
    if not isinstance(message, str):
        return json.dumps(message, default=str)
    nested = attempt(json.loads, message).value if message.lstrip().startswith("{") else None
    return _said(_error_object(nested)) or message if isinstance(nested, dict) else message


def _own_text(chain: list[BaseException]) -> str:
    """The words of the first cause: what stands before it only says that something failed."""
    status = getattr(chain[0], "status_code", None)
    if isinstance(status, int):
        # It has no words but those of the HTTP library.
        return f"status {status}"
    texts = [text for one in chain if (text := str(one).strip())]
    return texts[-1] if texts else type(chain[0]).__name__


def _text(said: str, types: str, described: dict[str, Any]) -> str:
    message = described.get("message")
    parts = [said, types, str(described.get("param") or ""), message if isinstance(message, str) else ""]
    parts += [json.dumps(described[key], default=str) for key in ("details", "metadata") if described.get(key)]
    return "\n".join(parts)[:MAX_TEXT_CHARS]


def _status(error: BaseException, described: dict[str, Any]) -> int | None:
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return status
    code = described.get("code")
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return status if isinstance(status, int) else None


def _headers(error: BaseException) -> dict[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    if not isinstance(headers, Mapping):
        return {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


_IN_WORDS = lazy_pattern(
    r"(?:retry|try again|retrying) (?:in|after) (?:(\d{1,4}) ?h(?:ours?)?)? ?(?:(\d{1,6}) ?m(?:in(?:ute)?s?)?(?!s))? ?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(s|ms|sec))?"
    r"|\"retrydelay\": ?\"(\d+(?:\.\d+)?)s",
    re.IGNORECASE,
)


def _retry_after(headers: dict[str, str], text: str) -> float | None:
    """How long the server wants to be left alone, in seconds."""
    milliseconds = attempt(float, headers.get("retry-after-ms", "")).value
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    told = headers.get("retry-after", "")
    seconds = attempt(float, told).value
    if seconds is not None:
        return max(0.0, seconds)
    until = _moment(told)
    if until is not None:
        # By the server's own clock, where it says what that is: ours may be wrong.
        return max(0.0, until - (_moment(headers.get("date", "")) or time.time()))
    return _retry_in_words(text)


def _moment(date: str) -> float | None:
    parsed = email.utils.parsedate_tz(date) if date else None
    return email.utils.mktime_tz(parsed) if parsed else None


def _retry_in_words(text: str) -> float | None:
    for found in _IN_WORDS.finditer(text):
        hours, minutes, number, unit, delay = found.groups()
        if delay:
            return float(delay)
        if hours or minutes or number:
            seconds = float(number or 0) / (1000 if unit and unit.lower() == "ms" else 1)
            return int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds
    return None


MAX_QUOTED_CHARS = 300


class FailedRequest(NamedTuple):
    """Whom we asked for what."""

    provider: str
    model: str
    base_url: str
    key_variable: str
    is_local: bool


class FailureKind(NamedTuple):
    """What a failure is. `cause` tells the sentences of one kind apart."""

    kind: ModelErrorKind
    may_retry: bool = False
    cause: str = ""


def sentence(found: FailureKind, said: str, asked: FailedRequest) -> str:
    """One sentence: what happened, to which model, with the provider's own words, and what to do."""
    said = " ".join(said.split())
    quoted = f" ({said[:MAX_QUOTED_CHARS]}{'…' if len(said) > MAX_QUOTED_CHARS else ''})" if said else ""
    return _SENTENCES[found.kind](found.cause, asked, quoted)


def _key(cause: str, asked: FailedRequest, quoted: str) -> str:
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


def _unknown_model(cause: str, asked: FailedRequest, quoted: str) -> str:
    address = f", or set model.base_url if {asked.base_url} is not the right address" if cause == "address" else ""
    pull = f", or type `ollama pull {asked.model}`" if "pull" in quoted else ""
    return (
        f"{asked.provider} does not know the model {asked.model!r}{quoted}; "
        f"choose one of `toolcrib model list`{pull}{address}"
    )


def _network(cause: str, asked: FailedRequest, quoted: str) -> str:
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


def _server(cause: str, asked: FailedRequest, quoted: str) -> str:
    if cause == "garbled":
        return f"{asked.provider} sent an answer for model {asked.model!r} that cannot be read; try again"
    if cause == "unknown":
        return f"the request to {asked.provider} for model {asked.model!r} failed{quoted}; try again or another model"
    return (
        f"{asked.provider} cannot answer with model {asked.model!r} just now{quoted}; "
        "try again in a minute, or another model of `toolcrib model list`"
    )


def _bad_request(cause: str, asked: FailedRequest, quoted: str) -> str:
    if cause == "address":
        return (
            f"{asked.base_url!r} is not an address that {asked.provider} can be at; set model.base_url to http(s)://…"
        )
    return (
        f"{asked.provider} does not accept the request for model {asked.model!r}{quoted}; "
        "change what it names, or use another model (`toolcrib model list`)"
    )


_SENTENCES: dict[ModelErrorKind, Callable[[str, FailedRequest, str], str]] = {
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


def model_error(
    error: BaseException,
    *,
    provider: str,
    model: str,
    base_url: str,
    key_variable: str = "",
    tools: Sequence[JsonObject] | None = None,
    secret: str = "",
) -> ModelError:
    """The failure of a request as a ModelError.

    `tools` are those of the request, to name one that was refused; `secret` is its key, which some servers repeat.
    """
    if isinstance(error, ModelError):
        return error
    facts = facts_of(error)
    found = FailureKind("missing_package") if isinstance(error, ImportError) else _judge(facts)
    if found.kind == "refused_tool" and tools is not None and not tools:
        found = FailureKind("bad_request")
    elif found.kind == "refused_tool" and _NO_TOOLS.search(facts.words):
        found = FailureKind("refused_tool", cause="all")
    asked = FailedRequest(provider, model, base_url, key_variable, is_local=is_on_this_machine(base_url))
    # Nobody starts a local server while we wait for it, so that is said at once.
    hopeless = facts.should_retry is False or (found.cause == "refused" and asked.is_local)
    may_retry = found.may_retry and not hopeless
    return ModelError(
        redact(sentence(found, _without(secret, facts.said), asked)),
        kind=found.kind,
        may_retry=may_retry,
        retry_after_seconds=facts.retry_after_seconds if may_retry else None,
        refused_tools=_refused_tools(facts, tools or ()) if found.kind == "refused_tool" else (),
        status=facts.status,
    )


def _without(secret: str, said: str) -> str:
    return said.replace(secret, MASK) if len(secret) >= MIN_SECRET_CHARS else said


def is_on_this_machine(base_url: str) -> bool:
    """Whether an address is one of this machine's own."""
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _judge(facts: ErrorFacts) -> FailureKind:
    for rule in (_by_class, _by_words, _by_status):
        found = rule(facts)
        if found is not None:
            return found
    return FailureKind("server", cause="unknown")


_BY_CLASS: tuple[tuple[frozenset[str], FailureKind], ...] = (
    (frozenset({"ContentFilterFinishReasonError"}), FailureKind("filtered")),
    (frozenset({"SSLError", "SSLCertVerificationError", "CertificateError"}), FailureKind("network", cause="tls")),
    (frozenset({"ConnectionRefusedError"}), FailureKind("network", True, "refused")),
    (frozenset({"UnsupportedProtocol", "InvalidURL"}), FailureKind("bad_request", cause="address")),
    (frozenset({"UnicodeEncodeError"}), FailureKind("key", cause="unsendable")),
    (frozenset({"TimeoutException", "TimeoutError", "APITimeoutError"}), FailureKind("timeout", True)),
    (frozenset({"APIConnectionError", "TransportError", "ConnectionError"}), FailureKind("network", True)),
    (frozenset({"JSONDecodeError", "DecodeError", "DecodingError", "ValidationError", "UnicodeDecodeError"}),
     FailureKind("server", True, "garbled")),
)  # fmt: skip


_NO_SUCH_HOST = lazy_pattern(r"name or service|name resolution|nodename|getaddrinfo")


def _by_class(facts: ErrorFacts) -> FailureKind | None:
    """What never got an answer is known by the exception alone."""
    if facts.status is not None or facts.has_body:
        return None
    # Some transports keep the cause only as text.
    if "gaierror" in facts.names or ("ConnectError" in facts.names and _NO_SUCH_HOST.search(facts.words)):
        return FailureKind("network", "temporary" in facts.words, "dns")
    if "ConnectError" in facts.names and "certificate" in facts.words:
        return FailureKind("network", cause="tls")
    if "ConnectError" in facts.names and "refused" in facts.words:
        return FailureKind("network", True, "refused")
    if "port must be" in facts.words:
        return FailureKind("bad_request", cause="address")
    if "illegal header value" in facts.words:
        return FailureKind("key", cause="unsendable")
    for names, found in _BY_CLASS:
        if names & facts.names:
            return found
    if "could not resolve authentication" in facts.words or "api_key client option must be set" in facts.words:
        return FailureKind("key")
    return FailureKind("network", True) if "OSError" in facts.names else None


_WORDS: tuple[tuple[re.Pattern[str], FailureKind], ...] = tuple(
    (lazy_pattern(pattern, re.MULTILINE), found)
    for pattern, found in (
        (r"content[_ -]?filter|content[_ ]policy|content management policy|responsibleaipolicy|prohibited_content"
         r"|input was flagged|flagged by (?:our|the) (?:moderation|safety)|safety system|data_inspection_failed",
         FailureKind("filtered")),
        # What the model wrote was no valid call; asked again, it writes another.
        (r"tool_use_failed", FailureKind("server", True)),
        (r"per[ -]?day\b|requestsperday", FailureKind("quota", cause="period")),
        (r"please retry in|retrydelay", FailureKind("rate_limit", True)),
        (r"insufficient_quota|exceeded your current quota|credit balance|insufficient (?:credits?|balance|funds)"
         r"|exceeded_current_quota|(?:any|more|enough) credits"
         r"|billing_error|billing_hard_limit|billing_not_active|spend(?:ing)?[_ ]limit|quota_exceeded"
         r"|out of credits|account is not active", FailureKind("quota")),
        (r"api[_ ]key[_ ](?:not valid|invalid|expired)|(?:invalid|incorrect|missing|no)[_ ](?:x-)?api[_ -]?key"
         r"|authentication_error|invalid_authentication|unauthenticated|no auth credentials",
         FailureKind("key")),
        (r"context_length_exceeded|exceed_context_size|context[_ -](?:length|size|window|limit)[^.]{0,60}exceed"
         r"|exceeds?[^.]{0,60}context|maximum context length|maximum model length|max_model_len"
         r"|prompt is too long|input is too long|prompt contains [\d,]+ tokens|input token count"
         r"|context the overflows|greater than the context length|longer than the context"
         r"|request too large|request_too_large|reduce the length of the (?:messages|prompt|input)"
         r"|input tokens exceed|`inputs` tokens \+|string_above_max_length|too many (?:input )?tokens in",
         FailureKind("too_long")),
        (r"model_not_found|unknown[_ ]model|invalid[_ ]model\b|not a valid model|no such model"
         r"|no (?:allowed )?(?:endpoints|providers|models?) (?:found|available) for|^model: [\w./:@-]+$"
         r"|model\W{1,3}\S{1,120}? (?:(?:does not|doesn't) exist|(?:is |was )?not (?:found|loaded))"
         r"|model\W{1,3}\S{1,120}? is not supported by any provider"
         r"|models/\S{1,120}? is not found|no model(?:s)? (?:is |are )?loaded|not have access to (?:the )?model",
         FailureKind("unknown_model")),
    )
)  # fmt: skip


def _by_words(facts: ErrorFacts) -> FailureKind | None:
    """What a refusal says. A server that breaks may say anything, so only some of it is believed."""
    if facts.status is not None and facts.status >= 500:
        if _speaks_of_tools(facts):
            return FailureKind("refused_tool")
        return FailureKind("too_long") if _TOO_LONG.search(facts.words) else None
    # The words of a schema may be any; where the tool is named, they are not about the request.
    if facts.status in (400, 422) and (_POSITION.search(facts.words) or _BAD_SCHEMA.search(facts.words)):
        return FailureKind("refused_tool")
    if facts.status not in (401, 402):
        for pattern, found in _WORDS:
            if pattern.search(facts.words) and _believable(found, facts):
                return found
    if facts.status in (None, 200, 400, 404, 422) and _speaks_of_tools(facts):
        return FailureKind("refused_tool")
    return None


_TOO_LONG = next(pattern for pattern, found in _WORDS if found.kind == "too_long")


def _believable(found: FailureKind, facts: ErrorFacts) -> bool:
    # "Limit 1000 per day" and "retry in 30s" only mean a limit where the status says so too.
    if found.kind == "rate_limit" or found.cause == "period":
        return facts.status == 429 or "resource_exhausted" in facts.words
    return True


_TYPES: tuple[tuple[str, FailureKind], ...] = (
    ("overloaded", FailureKind("server", True)),
    ("rate_limit", FailureKind("rate_limit", True)),
    ("resource_exhausted", FailureKind("rate_limit", True)),
    ("timeout_error", FailureKind("timeout", True)),
    ("not_found_error", FailureKind("unknown_model")),
    ("permission", FailureKind("key", cause="forbidden")),
    ("invalid_request", FailureKind("bad_request")),
    ("invalid_argument", FailureKind("bad_request")),
    ("unavailable", FailureKind("server", True)),
    ("api_error", FailureKind("server", True)),
    ("server_error", FailureKind("server", True)),
    ("internal", FailureKind("server", True)),
)


_BY_STATUS = {
    401: FailureKind("key"),
    402: FailureKind("quota"),
    403: FailureKind("key", cause="forbidden"),
    404: FailureKind("unknown_model", cause="address"),
    413: FailureKind("too_long"),
    501: FailureKind("bad_request"),
}


def _by_status(facts: ErrorFacts) -> FailureKind | None:
    status = facts.status
    if status is None or status < 400:
        # An error that came within a stream: the status was sent before anything went wrong.
        found = next((found for word, found in _TYPES if word in facts.types), None)
        return found or (FailureKind("server", True) if facts.has_body else None)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status == 429:
        return FailureKind("rate_limit", True)
    if status in (408, 504, 524):
        return FailureKind("timeout", True, "gateway")
    if status >= 500 or status in (409, 425):
        return FailureKind("server", True)
    return FailureKind("bad_request")


_TOOL_WORDS = lazy_pattern(
    r"\b(?:tools?|functions?|function_declarations?|functiondeclarations?)\b|input_schema|grammar|json schema"
)
# Pairing of calls and results, the choice of a tool, and the schema of an answer are not about a definition.
_NOT_A_TOOL = lazy_pattern(
    r"tool_calls?\b|tool[_ ]choice|tool_use|tool_result|tool_call_id|tool messages?|role 'tool'"
    r"|response_format|output_config|output_format|\bmessages(?:\.|\[)\d"
)
_NO_TOOLS = lazy_pattern(
    r"(?:does not|doesn't|not) support (?:any )?(?:tools?|functions?)\b|support tool use|tool use is not supported"
    r"|(?:tools?|function calling|tool calling) (?:is|are) not supported|enable-auto-tool-choice|tools param requires"
)
_POSITION = lazy_pattern(
    r"(?:function_?declarations|tools|functions)(?:\[|\.|/| ?-> ?|['\"], ?)(\d+)"
    r"(?!\d*\]?[./]?function_?declarations)",
    re.IGNORECASE,
)
_TOO_MANY = lazy_pattern(r"'tools' ?: (?:array too long|maximum number of items)[^\d]{1,60}(\d{1,4})")
_BAD_SCHEMA = lazy_pattern(r"(?:invalid|bad) (?:json )?schema (?:for|of|in) (?:the )?(?:function|tool)")
_QUOTED = lazy_pattern(r"\b(?:function|tool)s?(?: named| name)?:? *['\"`]([\w.-]{1,64})['\"`]", re.IGNORECASE)


def _speaks_of_tools(facts: ErrorFacts) -> bool:
    if _NO_TOOLS.search(facts.words) or _POSITION.search(facts.words):
        return True
    if facts.status is not None and facts.status >= 500:
        return "grammar" in facts.words or "json schema conversion" in facts.words
    return bool(_TOOL_WORDS.search(facts.words)) and not _NOT_A_TOOL.search(facts.words)


def _refused_tools(facts: ErrorFacts, tools: Sequence[JsonObject]) -> tuple[str, ...]:
    """The names that the provider complains about; all of them when it takes no tools, none when it does not say."""
    sent = [tool_name(tool) for tool in tools]
    if _NO_TOOLS.search(facts.words):
        return tuple(sent)
    if limit := _TOO_MANY.search(facts.words):
        return tuple(sent[int(limit[1]) :])
    by_position = [sent[at] for at in map(int, _POSITION.findall(facts.text)) if at < len(sent)]
    quoted = [name for name in _QUOTED.findall(facts.text) if not sent or name in sent]
    return tuple(dict.fromkeys(by_position + quoted))


def tool_name(tool: JsonObject) -> str:
    """The name of a tool as it stands in a request, whatever the dialect."""
    function = tool.get("function")
    return str((function if isinstance(function, dict) else tool).get("name", ""))
