"""Turns any exception of an SDK into one ModelError: what happened, to which model, and what to do.

Reads status codes, fields of the body and class names, so it imports no SDK.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from toolcrib.config.redact import MASK, MIN_SECRET_CHARS, redact
from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.models import ModelError, ModelErrorKind
from toolcrib.core.types import JsonObject
from toolcrib.providers.presets import is_on_this_machine

MAX_TEXT_CHARS = 8_000
MAX_CAUSES = 8


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One failed request."""

    status: int | None
    provider_text: str
    """The provider's own sentence."""
    text: str
    """Everything the provider says about it: the sentence, type, code, parameter, details."""
    words: str
    """The same in lower case."""
    types: str
    """Type, code and status of the error object, in lower case."""
    names: frozenset[str]
    """The class names of the exception and its causes, with their bases."""
    has_body: bool
    retry_after_seconds: float | None
    should_retry: bool | None
    """The server's own advice."""


def facts_of(error: BaseException) -> ErrorDetails:
    """What an exception tells about the failure; reads only attributes that the known SDKs share."""
    chain = list(_with_causes(error))
    body = getattr(error, "body", None)
    described = _error_object(body)
    provider_text = _message_of(described) or _innermost_text(chain)
    types = " ".join(str(described.get(key) or "") for key in ("type", "code", "status", "error_code"))
    text = _text(provider_text, types, described)
    headers = _headers(error)
    return ErrorDetails(
        status=_status(error, described),
        provider_text=provider_text,
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
        # Transports hide the original error (`from None`), but it stays in the context.
        cause = one.__cause__ or one.__context__
        if cause is not None:
            waiting.append(cause)


def parse_json(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _error_object(body: Any) -> dict[str, Any]:
    """The object that describes the error, however deeply a provider nests it."""
    if isinstance(body, str):
        parsed = _parsed(body)
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


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _from_page(text: str) -> dict[str, Any]:
    # A proxy answers with a page; its title says more than its markup.
    title = re.search(r"<title>([^<]{1,200})", text, re.IGNORECASE)
    if title:
        return {"message": title[1].strip()}
    return {} if text.lstrip().startswith("<") else {"message": text.strip()}


def _message_of(described: dict[str, Any]) -> str:
    message = described.get("message") or described.get("msg") or ""
    metadata = described.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if raw:
        # A router says only that the upstream refused; the upstream's words are in its metadata.
        inner = _error_object(raw)
        message = _message_of(inner) or str(raw) or message
    if not isinstance(message, str):
        return json.dumps(message, default=str)
    nested = _parsed(message) if message.lstrip().startswith("{") else None
    return _message_of(_error_object(nested)) or message if isinstance(nested, dict) else message


def _innermost_text(chain: list[BaseException]) -> str:
    """The text of the innermost cause: outer exceptions only say that something failed."""
    status = getattr(chain[0], "status_code", None)
    if isinstance(status, int):
        # It has only the HTTP library's text.
        return f"status {status}"
    texts = [text for one in chain if (text := str(one).strip())]
    return texts[-1] if texts else type(chain[0]).__name__


def _text(provider_text: str, types: str, described: dict[str, Any]) -> str:
    message = described.get("message")
    parts = [provider_text, types, str(described.get("param") or ""), message if isinstance(message, str) else ""]
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


_RETRY_TEXT = lazy_pattern(
    r"(?:retry|try again|retrying) (?:in|after) (?:(\d{1,4}) ?h(?:ours?)?)? ?(?:(\d{1,6}) ?m(?:in(?:ute)?s?)?(?!s))? ?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(s|ms|sec))?"
    r"|\"retrydelay\": ?\"(\d+(?:\.\d+)?)s",
    re.IGNORECASE,
)


def _retry_after(headers: dict[str, str], text: str) -> float | None:
    """How many seconds the server wants us to wait."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    retry_after = headers.get("retry-after", "")
    seconds = _number(retry_after)
    if seconds is not None:
        return max(0.0, seconds)
    until = _moment(retry_after)
    if until is not None:
        # Use the server's clock if it sends one: ours may be wrong.
        return max(0.0, until - (_moment(headers.get("date", "")) or time.time()))
    return _retry_in_text(text)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _moment(date: str) -> float | None:
    parsed = email.utils.parsedate_tz(date) if date else None
    return email.utils.mktime_tz(parsed) if parsed else None


def _retry_in_text(text: str) -> float | None:
    for found in _RETRY_TEXT.finditer(text):
        hours, minutes, number, unit, delay = found.groups()
        if delay:
            return float(delay)
        if hours or minutes or number:
            seconds = float(number or 0) / (1000 if unit and unit.lower() == "ms" else 1)
            return int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds
    return None


MAX_QUOTED_CHARS = 300


class FailedRequest(NamedTuple):
    """The provider and model of a failed request."""

    provider: str
    model: str
    base_url: str
    key_variable: str
    is_local: bool


class FailureKind(NamedTuple):
    """The kind of a failure. `cause` distinguishes the messages of one kind."""

    kind: ModelErrorKind
    may_retry: bool = False
    cause: str = ""


def sentence(found: FailureKind, provider_text: str, failed: FailedRequest) -> str:
    """One sentence: what happened, to which model, in the provider's words, and what to do."""
    provider_text = " ".join(provider_text.split())
    quoted = (
        f" ({provider_text[:MAX_QUOTED_CHARS]}{'…' if len(provider_text) > MAX_QUOTED_CHARS else ''})"
        if provider_text
        else ""
    )
    return _SENTENCES[found.kind](found.cause, failed, quoted)


def _key(cause: str, failed: FailedRequest, quoted: str) -> str:
    where = f"the key in {failed.key_variable}" if failed.key_variable else "the key"
    if cause == "unsendable":
        # The library's own text would reveal the key.
        return f"{where} for {failed.provider} contains an invalid character; run `toolcrib setup` to set it again"
    if cause == "forbidden":
        return (
            f"{failed.provider} gives {where} no access to model {failed.model!r}{quoted}; "
            "use another key (`toolcrib setup`) or another model (`toolcrib model list`)"
        )
    return (
        f"{failed.provider} rejects {where} for model {failed.model!r}{quoted}; set a valid one with `toolcrib setup`"
    )


def _unknown_model(cause: str, failed: FailedRequest, quoted: str) -> str:
    address = f", or set model.base_url if {failed.base_url} is not the right address" if cause == "address" else ""
    pull = f", or run `ollama pull {failed.model}`" if "pull" in quoted else ""
    return (
        f"{failed.provider} does not know the model {failed.model!r}{quoted}; "
        f"choose one from `toolcrib model list`{pull}{address}"
    )


def _network(cause: str, failed: FailedRequest, quoted: str) -> str:
    if cause == "refused":
        if failed.is_local:
            return f"{failed.provider} does not answer at {failed.base_url}; is the server running?"
        return f"{failed.provider} refuses connections at {failed.base_url}; check model.base_url and your network"
    if cause == "dns":
        return f"cannot find the address {failed.base_url} of {failed.provider}; check your network and model.base_url"
    if cause == "tls":
        return (
            f"the connection to {failed.provider} at {failed.base_url} is not secure{quoted}; "
            "check this machine's clock, any proxy in between, and model.base_url"
        )
    return f"the connection to {failed.provider} at {failed.base_url} broke{quoted}; check your network and try again"


def _server(cause: str, failed: FailedRequest, quoted: str) -> str:
    if cause == "garbled":
        return f"{failed.provider} sent an unreadable answer for model {failed.model!r}; try again"
    if cause == "unknown":
        return (
            f"the request to {failed.provider} for model {failed.model!r} failed{quoted}; try again, or another model"
        )
    return (
        f"{failed.provider} cannot answer with model {failed.model!r} right now{quoted}; "
        "try again in a minute, or use another model (`toolcrib model list`)"
    )


def _bad_request(cause: str, failed: FailedRequest, quoted: str) -> str:
    if cause == "address":
        return f"{failed.base_url!r} is not a valid address for {failed.provider}; set model.base_url to http(s)://…"
    return (
        f"{failed.provider} rejects the request for model {failed.model!r}{quoted}; "
        "change what it names, or use another model (`toolcrib model list`)"
    )


_SENTENCES: dict[ModelErrorKind, Callable[[str, FailedRequest, str], str]] = {
    "key": _key,
    "unknown_model": _unknown_model,
    "network": _network,
    "server": _server,
    "bad_request": _bad_request,
    "rate_limit": lambda _, failed, quoted: (
        f"{failed.provider} accepts no more requests for model {failed.model!r} right now{quoted}; "
        "wait a little, or use another model (`toolcrib model list`)"
    ),
    "quota": lambda _, failed, quoted: (
        f"the credit or quota of your {failed.provider} account is used up for model {failed.model!r}{quoted}; "
        "add credit there, wait for the next period, or use another model (`toolcrib model list`)"
    ),
    "too_long": lambda _, failed, quoted: (
        f"the conversation is too long for model {failed.model!r} of {failed.provider}{quoted}; "
        "shorten it with /compress, or start a new one with /new"
    ),
    "refused_tool": lambda cause, failed, quoted: (
        f"{failed.provider} accepts no tools with model {failed.model!r}{quoted}; "
        "to use tools, switch to another model (`toolcrib model list`)"
    ) if cause == "all" else (
        f"{failed.provider} rejects a tool offered to model {failed.model!r}{quoted}; "
        "`toolcrib tools lint` shows what is wrong with its schema"
    ),
    "timeout": lambda cause, failed, quoted: (
        f"{failed.provider} did not answer in time with model {failed.model!r}{quoted if cause else ''}; "
        "try again, or increase model.timeout"
    ),
    "missing_package": lambda _, failed, quoted: (
        f"a package that {failed.provider} needs is missing{quoted}; "
        "run `pip install 'toolcrib[openai]'` or `pip install 'toolcrib[anthropic]'`"
    ),
    "filtered": lambda _, failed, quoted: (
        f"the content filter of {failed.provider} stopped the request to model {failed.model!r}{quoted}; "
        "rephrase it, or use another model (`toolcrib model list`)"
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

    `tools` are the tools of the request, to name a rejected one; `secret` is the key, which some servers echo.
    """
    if isinstance(error, ModelError):
        return error
    facts = facts_of(error)
    found = FailureKind("missing_package") if isinstance(error, ImportError) else _judge(facts)
    if found.kind == "refused_tool" and tools is not None and not tools:
        found = FailureKind("bad_request")
    elif found.kind == "refused_tool" and _NO_TOOLS.search(facts.words):
        found = FailureKind("refused_tool", cause="all")
    failed = FailedRequest(provider, model, base_url, key_variable, is_local=is_on_this_machine(base_url))
    # No one starts a local server while we retry, so report it at once.
    hopeless = facts.should_retry is False or (found.cause == "refused" and failed.is_local)
    may_retry = found.may_retry and not hopeless
    return ModelError(
        redact(sentence(found, _without(secret, facts.provider_text), failed)),
        kind=found.kind,
        may_retry=may_retry,
        retry_after_seconds=facts.retry_after_seconds if may_retry else None,
        refused_tools=_refused_tools(facts, tools or ()) if found.kind == "refused_tool" else (),
        status=facts.status,
    )


def _without(secret: str, provider_text: str) -> str:
    return provider_text.replace(secret, MASK) if len(secret) >= MIN_SECRET_CHARS else provider_text


def _judge(facts: ErrorDetails) -> FailureKind:
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


def _by_class(facts: ErrorDetails) -> FailureKind | None:
    """Classify a failure without any response by its exception alone."""
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
        # The model wrote an invalid call; asked again, it writes another.
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


def _by_words(facts: ErrorDetails) -> FailureKind | None:
    """Classify a rejection by its words. A broken server may say anything, so only some words count."""
    if facts.status is not None and facts.status >= 500:
        if _mentions_tools(facts):
            return FailureKind("refused_tool")
        return FailureKind("too_long") if _TOO_LONG.search(facts.words) else None
    # A schema may contain any word; if the error names a tool, the words are not about the request.
    if facts.status in (400, 422) and (_POSITION.search(facts.words) or _BAD_SCHEMA.search(facts.words)):
        return FailureKind("refused_tool")
    if facts.status not in (401, 402):
        for pattern, found in _WORDS:
            if pattern.search(facts.words) and _is_credible(found, facts):
                return found
    if facts.status in (None, 200, 400, 404, 422) and _mentions_tools(facts):
        return FailureKind("refused_tool")
    return None


_TOO_LONG = next(pattern for pattern, found in _WORDS if found.kind == "too_long")


def _is_credible(found: FailureKind, facts: ErrorDetails) -> bool:
    # "Limit 1000 per day" and "retry in 30s" mean a limit only if the status agrees.
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


def _by_status(facts: ErrorDetails) -> FailureKind | None:
    status = facts.status
    if status is None or status < 400:
        # The error arrived inside a stream, after the status was sent.
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
# Matching of calls and results, tool choice, and answer schemas are not about a definition.
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


def _mentions_tools(facts: ErrorDetails) -> bool:
    if _NO_TOOLS.search(facts.words) or _POSITION.search(facts.words):
        return True
    if facts.status is not None and facts.status >= 500:
        return "grammar" in facts.words or "json schema conversion" in facts.words
    return bool(_TOOL_WORDS.search(facts.words)) and not _NOT_A_TOOL.search(facts.words)


def _refused_tools(facts: ErrorDetails, tools: Sequence[JsonObject]) -> tuple[str, ...]:
    """The rejected tools; all of them if the model accepts no tools, none if the provider names none."""
    sent = [tool_name(tool) for tool in tools]
    if _NO_TOOLS.search(facts.words):
        return tuple(sent)
    if limit := _TOO_MANY.search(facts.words):
        return tuple(sent[int(limit[1]) :])
    by_position = [sent[at] for at in map(int, _POSITION.findall(facts.text)) if at < len(sent)]
    quoted = [name for name in _QUOTED.findall(facts.text) if not sent or name in sent]
    return tuple(dict.fromkeys(by_position + quoted))


def tool_name(tool: JsonObject) -> str:
    """The name of a tool in a request, in any dialect."""
    function = tool.get("function")
    return str((function if isinstance(function, dict) else tool).get("name", ""))
