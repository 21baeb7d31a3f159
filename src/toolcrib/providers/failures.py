"""Whatever an SDK raises, as one ModelError: what happened, to which model, and what to do.

Decided by status codes, by the fields of the body and by class names, so that no SDK is imported for it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from toolcrib.config.redact import MASK, MIN_SECRET_CHARS, redact
from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.models import ModelError
from toolcrib.core.types import JsonObject
from toolcrib.providers.failure_facts import Facts, facts_of
from toolcrib.providers.failure_sentences import Asked, Judged, sentence


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
    found = Judged("missing_package") if isinstance(error, ImportError) else _judge(facts)
    if found.kind == "refused_tool" and tools is not None and not tools:
        found = Judged("bad_request")
    elif found.kind == "refused_tool" and _NO_TOOLS.search(facts.words):
        found = Judged("refused_tool", cause="all")
    asked = Asked(provider, model, base_url, key_variable, is_local=is_on_this_machine(base_url))
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


def _judge(facts: Facts) -> Judged:
    for rule in (_by_class, _by_words, _by_status):
        found = rule(facts)
        if found is not None:
            return found
    return Judged("server", cause="unknown")


_BY_CLASS: tuple[tuple[frozenset[str], Judged], ...] = (
    (frozenset({"ContentFilterFinishReasonError"}), Judged("filtered")),
    (frozenset({"SSLError", "SSLCertVerificationError", "CertificateError"}), Judged("network", cause="tls")),
    (frozenset({"ConnectionRefusedError"}), Judged("network", True, "refused")),
    (frozenset({"UnsupportedProtocol", "InvalidURL"}), Judged("bad_request", cause="address")),
    (frozenset({"UnicodeEncodeError"}), Judged("key", cause="unsendable")),
    (frozenset({"TimeoutException", "TimeoutError", "APITimeoutError"}), Judged("timeout", True)),
    (frozenset({"APIConnectionError", "TransportError", "ConnectionError"}), Judged("network", True)),
    (frozenset({"JSONDecodeError", "DecodeError", "DecodingError", "ValidationError", "UnicodeDecodeError"}),
     Judged("server", True, "garbled")),
)  # fmt: skip


_NO_SUCH_HOST = lazy_pattern(r"name or service|name resolution|nodename|getaddrinfo")


def _by_class(facts: Facts) -> Judged | None:
    """What never got an answer is known by the exception alone."""
    if facts.status is not None or facts.has_body:
        return None
    # Some transports keep the cause only as text.
    if "gaierror" in facts.names or ("ConnectError" in facts.names and _NO_SUCH_HOST.search(facts.words)):
        return Judged("network", "temporary" in facts.words, "dns")
    if "ConnectError" in facts.names and "certificate" in facts.words:
        return Judged("network", cause="tls")
    if "ConnectError" in facts.names and "refused" in facts.words:
        return Judged("network", True, "refused")
    if "port must be" in facts.words:
        return Judged("bad_request", cause="address")
    if "illegal header value" in facts.words:
        return Judged("key", cause="unsendable")
    for names, found in _BY_CLASS:
        if names & facts.names:
            return found
    if "could not resolve authentication" in facts.words or "api_key client option must be set" in facts.words:
        return Judged("key")
    return Judged("network", True) if "OSError" in facts.names else None


_WORDS: tuple[tuple[re.Pattern[str], Judged], ...] = tuple(
    (lazy_pattern(pattern, re.MULTILINE), found)
    for pattern, found in (
        (r"content[_ -]?filter|content[_ ]policy|content management policy|responsibleaipolicy|prohibited_content"
         r"|input was flagged|flagged by (?:our|the) (?:moderation|safety)|safety system|data_inspection_failed",
         Judged("filtered")),
        # What the model wrote was no valid call; asked again, it writes another.
        (r"tool_use_failed", Judged("server", True)),
        (r"per[ -]?day\b|requestsperday", Judged("quota", cause="period")),
        (r"please retry in|retrydelay", Judged("rate_limit", True)),
        (r"insufficient_quota|exceeded your current quota|credit balance|insufficient (?:credits?|balance|funds)"
         r"|exceeded_current_quota|(?:any|more|enough) credits"
         r"|billing_error|billing_hard_limit|billing_not_active|spend(?:ing)?[_ ]limit|quota_exceeded"
         r"|out of credits|account is not active", Judged("quota")),
        (r"api[_ ]key[_ ](?:not valid|invalid|expired)|(?:invalid|incorrect|missing|no)[_ ](?:x-)?api[_ -]?key"
         r"|authentication_error|invalid_authentication|unauthenticated|no auth credentials",
         Judged("key")),
        (r"context_length_exceeded|exceed_context_size|context[_ -](?:length|size|window|limit)[^.]{0,60}exceed"
         r"|exceeds?[^.]{0,60}context|maximum context length|maximum model length|max_model_len"
         r"|prompt is too long|input is too long|prompt contains [\d,]+ tokens|input token count"
         r"|context the overflows|greater than the context length|longer than the context"
         r"|request too large|request_too_large|reduce the length of the (?:messages|prompt|input)"
         r"|input tokens exceed|`inputs` tokens \+|string_above_max_length|too many (?:input )?tokens in",
         Judged("too_long")),
        (r"model_not_found|unknown[_ ]model|invalid[_ ]model\b|not a valid model|no such model"
         r"|no (?:allowed )?(?:endpoints|providers|models?) (?:found|available) for|^model: [\w./:@-]+$"
         r"|model\W{1,3}\S{1,120}? (?:(?:does not|doesn't) exist|(?:is |was )?not (?:found|loaded))"
         r"|model\W{1,3}\S{1,120}? is not supported by any provider"
         r"|models/\S{1,120}? is not found|no model(?:s)? (?:is |are )?loaded|not have access to (?:the )?model",
         Judged("unknown_model")),
    )
)  # fmt: skip


def _by_words(facts: Facts) -> Judged | None:
    """What a refusal says. A server that breaks may say anything, so only some of it is believed."""
    if facts.status is not None and facts.status >= 500:
        if _speaks_of_tools(facts):
            return Judged("refused_tool")
        return Judged("too_long") if _TOO_LONG.search(facts.words) else None
    # The words of a schema may be any; where the tool is named, they are not about the request.
    if facts.status in (400, 422) and (_POSITION.search(facts.words) or _BAD_SCHEMA.search(facts.words)):
        return Judged("refused_tool")
    if facts.status not in (401, 402):
        for pattern, found in _WORDS:
            if pattern.search(facts.words) and _believable(found, facts):
                return found
    if facts.status in (None, 200, 400, 404, 422) and _speaks_of_tools(facts):
        return Judged("refused_tool")
    return None


_TOO_LONG = next(pattern for pattern, found in _WORDS if found.kind == "too_long")


def _believable(found: Judged, facts: Facts) -> bool:
    # "Limit 1000 per day" and "retry in 30s" only mean a limit where the status says so too.
    if found.kind == "rate_limit" or found.cause == "period":
        return facts.status == 429 or "resource_exhausted" in facts.words
    return True


_TYPES: tuple[tuple[str, Judged], ...] = (
    ("overloaded", Judged("server", True)),
    ("rate_limit", Judged("rate_limit", True)),
    ("resource_exhausted", Judged("rate_limit", True)),
    ("timeout_error", Judged("timeout", True)),
    ("not_found_error", Judged("unknown_model")),
    ("permission", Judged("key", cause="forbidden")),
    ("invalid_request", Judged("bad_request")),
    ("invalid_argument", Judged("bad_request")),
    ("unavailable", Judged("server", True)),
    ("api_error", Judged("server", True)),
    ("server_error", Judged("server", True)),
    ("internal", Judged("server", True)),
)


_BY_STATUS = {
    401: Judged("key"),
    402: Judged("quota"),
    403: Judged("key", cause="forbidden"),
    404: Judged("unknown_model", cause="address"),
    413: Judged("too_long"),
    501: Judged("bad_request"),
}


def _by_status(facts: Facts) -> Judged | None:
    status = facts.status
    if status is None or status < 400:
        # An error that came within a stream: the status was sent before anything went wrong.
        found = next((found for word, found in _TYPES if word in facts.types), None)
        return found or (Judged("server", True) if facts.has_body else None)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status == 429:
        return Judged("rate_limit", True)
    if status in (408, 504, 524):
        return Judged("timeout", True, "gateway")
    if status >= 500 or status in (409, 425):
        return Judged("server", True)
    return Judged("bad_request")


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


def _speaks_of_tools(facts: Facts) -> bool:
    if _NO_TOOLS.search(facts.words) or _POSITION.search(facts.words):
        return True
    if facts.status is not None and facts.status >= 500:
        return "grammar" in facts.words or "json schema conversion" in facts.words
    return bool(_TOOL_WORDS.search(facts.words)) and not _NOT_A_TOOL.search(facts.words)


def _refused_tools(facts: Facts, tools: Sequence[JsonObject]) -> tuple[str, ...]:
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
