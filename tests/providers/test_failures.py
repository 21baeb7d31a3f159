"""Tables: what the known services and servers answer when something is wrong, and what the person reads."""

from __future__ import annotations

import json
import socket
import ssl
from email.utils import formatdate
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.core.models import ModelError
from toolcrib.providers.failures import model_error

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("alpha", "beta", "gamma", "delta")
]


def said(error: BaseException, **facts: Any) -> ModelError:
    asked = {"provider": "acme", "model": "m-1", "base_url": "https://api.acme.test/v1", "key_variable": "ACME_KEY"}
    return model_error(error, **{**asked, **facts})


def answered(status: int, body: Any, *, sdk: Any = openai, headers: dict[str, str] | None = None) -> BaseException:
    """The exception that the real SDK makes of a response."""
    client = sdk.AsyncOpenAI(api_key="k") if sdk is openai else sdk.AsyncAnthropic(api_key="k")
    text = body if isinstance(body, str) else json.dumps(body)
    request = httpx2.Request("POST", "https://api.acme.test/v1")
    response = httpx2.Response(status, text=text, headers=headers, request=request)
    error: BaseException = client._make_status_error_from_response(response)
    return error


def openai_error(message: str, type_: str = "invalid_request_error", code: Any = None, param: Any = None) -> Any:
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def anthropic_error(type_: str, message: str) -> Any:
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "req_1"}


def gemini_error(code: int, status: str, message: str, details: Any = None) -> Any:
    return [{"error": {"code": code, "message": message, "status": status, "details": details or []}}]


OPENAI = [
    (401, openai_error("Incorrect API key provided: sk-abc***xyz.", code="invalid_api_key"), "key"),
    (429, openai_error("You exceeded your current quota, please check your plan.", "insufficient_quota",
                       "insufficient_quota"), "quota"),
    (429, openai_error("Rate limit reached for gpt-5 in organization org-1 on requests per min (RPM): Limit 3, "
                       "Used 3. Please try again in 20s.", "requests", "rate_limit_exceeded"), "rate_limit"),
    (429, openai_error("Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 40000.", "tokens",
                       "rate_limit_exceeded"), "too_long"),
    (404, openai_error("The model `gpt-9` does not exist or you do not have access to it.", code="model_not_found"),
     "unknown_model"),
    (403, openai_error("Project `proj_1` does not have access to model `gpt-5`", code="model_not_found"),
     "unknown_model"),
    (403, openai_error("Country, region, or territory not supported", "request_forbidden",
                       "unsupported_country_region_territory"), "key"),
    (400, openai_error("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 "
                       "tokens (8000 in the messages, 1000 in the functions).", code="context_length_exceeded"),
     "too_long"),
    (400, openai_error("Your input exceeds the context window of this model. Please adjust your input."), "too_long"),
    (400, openai_error("An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                       "'tool_call_id'.", param="messages.[3].role"), "bad_request"),
    (400, openai_error("Unsupported value: 'temperature' does not support 0.2 with this model.", param="temperature",
                       code="unsupported_value"), "bad_request"),
    (400, openai_error("Invalid schema for response_format 'answer': schema must be an object.",
                       param="response_format"), "bad_request"),
    (400, openai_error("The response was filtered due to the prompt triggering Azure OpenAI's content management "
                       "policy.", code="content_filter"), "filtered"),
    (500, openai_error("The server had an error while processing your request.", "server_error"), "server"),
    (503, "upstream connect error or disconnect/reset before headers", "server"),
    (502, "<html><head><title>502 Bad Gateway</title></head></html>", "server"),
    (504, "<html><title>504 Gateway Time-out</title></html>", "timeout"),
    (408, "", "timeout"),
    (409, openai_error("Lock contention"), "server"),
    (404, "<html><title>404 Not Found</title></html>", "unknown_model"),
]  # fmt: skip

ANTHROPIC = [
    (401, anthropic_error("authentication_error", "invalid x-api-key"), "key"),
    (403, anthropic_error("permission_error", "Your API key does not have permission to use the resource"), "key"),
    (402, anthropic_error("billing_error", "Your payment details are out of date"), "quota"),
    (400, anthropic_error("invalid_request_error", "Your credit balance is too low to access the Anthropic API. "
                          "Please go to Plans & Billing to upgrade or purchase credits."), "quota"),
    (404, anthropic_error("not_found_error", "model: claude-nothing-9"), "unknown_model"),
    (429, anthropic_error("rate_limit_error", "This request would exceed your organization's rate limit of 50,000 "
                          "input tokens per minute"), "rate_limit"),
    (400, anthropic_error("invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum"), "too_long"),
    (400, anthropic_error("invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + "
                          "20000 > 200000, decrease input length or `max_tokens` and try again"), "too_long"),
    (413, anthropic_error("request_too_large", "Request exceeds the maximum size"), "too_long"),
    (529, anthropic_error("overloaded_error", "Overloaded"), "server"),
    (500, anthropic_error("api_error", "Internal server error"), "server"),
    (400, anthropic_error("invalid_request_error", "messages.2: `tool_use` ids were found without `tool_result` "
                          "blocks immediately after: toolu_1."), "bad_request"),
    (400, anthropic_error("invalid_request_error", "Output blocked by content filtering policy"), "filtered"),
    (400, anthropic_error("invalid_request_error", "tools.2.custom.input_schema: JSON schema is invalid. It must "
                          "match JSON Schema draft 2020-12"), "refused_tool"),
    (400, anthropic_error("invalid_request_error", "tools: Tool names must be unique."), "refused_tool"),
]  # fmt: skip

OTHERS = [
    (400, gemini_error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."), "key"),
    (404, gemini_error(404, "NOT_FOUND", "models/gemini-9 is not found for API version v1main, or is not supported "
                       "for generateContent."), "unknown_model"),
    (400, gemini_error(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens "
                       "allowed (1048576)."), "too_long"),
    (429, gemini_error(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan and billing "
                       "details. Please retry in 37.4s.", [{"retryDelay": "37s"}]), "rate_limit"),
    (429, gemini_error(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.",
                       [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]), "quota"),
    (503, gemini_error(503, "UNAVAILABLE", "The model is overloaded. Please try again later."), "server"),
    (402, {"error": {"code": 402, "message": "Insufficient credits. Add more using https://router.test"}}, "quota"),
    (400, {"error": {"code": 400, "message": "acme/m-9 is not a valid model ID"}}, "unknown_model"),
    (404, {"error": {"code": 404, "message": "No endpoints found for acme/m-9."}}, "unknown_model"),
    (400, openai_error("Your credit balance is too low today"), "quota"),
    (400, openai_error("'temperature' is not supported for model: m-1"), "bad_request"),
    (400, openai_error("Invalid schema for function 'content_filter': context_length_exceeded is no type"),
     "refused_tool"),
    (400, openai_error("tools.3.custom.input_schema.properties.invalid api key: bad pattern"), "refused_tool"),
    (429, {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-day."}}, "quota"),
    (400, openai_error("Tool choice 'required' is not supported by this model", param="tool_choice"), "bad_request"),
    (404, {"error": {"code": 404, "message": "No endpoints found that support tool use."}}, "refused_tool"),
    (403, {"error": {"code": 403, "message": "Your chosen model requires moderation and your input was flagged"}},
     "filtered"),
    (400, {"error": {"code": 400, "message": "Provider returned error", "metadata": {"provider_name": "Acme", "raw":
           '{"error":{"message":"This model\'s maximum context length is 4096 tokens."}}'}}}, "too_long"),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you requested "
           "5000 tokens.", "type": "BadRequestError", "code": 400}, "too_long"),
    (404, {"object": "error", "message": "The model `m-9` does not exist.", "type": "NotFoundError", "code": 404},
     "unknown_model"),
    (400, {"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be '
                     "set", "type": "BadRequestError", "code": 400}}, "refused_tool"),
    (404, openai_error('model "m-9" not found, try pulling it first', "api_error"), "unknown_model"),
    (400, openai_error("registry.ollama.ai/library/m-9:latest does not support tools", "api_error"), "refused_tool"),
    (400, {"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it",
                     "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}}, "too_long"),
    (500, {"error": {"code": 500, "message": "Failed to parse grammar", "type": "server_error"}}, "refused_tool"),
    (400, {"error": {"code": 400, "message": "JSON schema conversion failed: Unrecognized schema"}}, "refused_tool"),
    (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, "server"),
    (400, {"error": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded "
           "with context length of only 4096 tokens"}, "too_long"),
    (400, openai_error("Failed to call a function. Please adjust your prompt.", code="tool_use_failed"), "server"),
    (403, {"code": "no permission", "error": "Your newly created team doesn't have any credits yet."}, "quota"),
    (429, openai_error("Your account is suspended", "exceeded_current_quota_error"), "quota"),
    (422, openai_error("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193."), "too_long"),
    (400, {"error": "The requested model 'm-9' is not supported by any provider you have enabled."}, "unknown_model"),
    (500, {"error": {"code": 500, "message": "tools param requires --jinja flag"}}, "refused_tool"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sdk", "status", "body", "kind"),
    [(openai, *row) for row in OPENAI + OTHERS] + [(anthropic, *row) for row in ANTHROPIC],
)
def test_answers_of_known_services_are_told_apart(sdk: Any, status: int, body: Any, kind: str) -> None:
    """Each rejection gets the kind that the agent acts on, and one sentence that names the provider and a next step."""
    error = said(answered(status, body, sdk=sdk))

    assert error.kind == kind
    assert error.status == status
    assert error.may_retry == (kind in ("rate_limit", "server", "timeout"))
    text = str(error)
    assert "acme" in text
    assert "\n" not in text
    assert ";" in text


@pytest.mark.parametrize(
    ("message", "param", "names"),
    [
        ("Invalid schema for function 'beta': array schema missing items", "tools[1].function.parameters", ("beta",)),
        ("Invalid 'tools[3].function.name': string does not match pattern", None, ("delta",)),
        ("tools.2.custom.input_schema: JSON schema is invalid", None, ("gamma",)),
        ("tools.0.custom.name and tools.3.custom.input_schema are wrong", None, ("alpha", "delta")),
        ("functions[2].parameters: unexpected keyword", None, ("gamma",)),
        ("Invalid JSON payload received. Unknown name \"$schema\" at 'tools[0].function_declarations[2].parameters'",
         None, ("gamma",)),
        ("1 validation error: {'loc': ('body', 'tools', 1, 'function', 'name'), 'msg': 'bad'}", None, ("beta",)),
        ("the tool `gamma` has a schema that I cannot use", None, ("gamma",)),
        ("one of the tool schemas is invalid", None, ()),
        ("tools[17] is wrong", None, ()),
        ("too many tools, 3 are allowed", None, ()),
        ("you sent too many tools. 2 are allowed", None, ()),
        ("body -> tools -> 1 -> function: bad", None, ("beta",)),
        ("this model does not support tools", None, ("alpha", "beta", "gamma", "delta")),
    ],
)  # fmt: skip
def test_a_refused_tool_is_named_by_position_or_by_its_name(
    message: str, param: str | None, names: tuple[str, ...]
) -> None:
    """The names come from positions in the request or from quoted names; nothing is guessed."""
    error = said(answered(400, openai_error(message, param=param)), tools=TOOLS)

    assert error.kind == "refused_tool"
    assert error.refused_tools == names


def test_a_quoted_name_is_found_without_the_tools_of_the_request() -> None:
    """A name in the provider's text is enough."""
    error = said(answered(400, openai_error("Invalid schema for function 'get_weather': bad")))

    assert error.refused_tools == ("get_weather",)


@pytest.mark.parametrize(
    "message",
    [
        "Invalid 'tools': array too long. Expected an array with maximum length 2, but got an array with length 4.",
        "'tools' : maximum number of items is 2",
    ],
)
def test_of_too_many_tools_the_last_are_named(message: str) -> None:
    """If the provider says how many tools it accepts, that many stay."""
    error = said(answered(400, openai_error(message, param="tools")), tools=TOOLS)

    assert (error.kind, error.refused_tools) == ("refused_tool", ("gamma", "delta"))


def test_a_model_without_tools_is_said_to_be_one() -> None:
    """Nothing is wrong with any schema then."""
    error = said(answered(400, openai_error("this model does not support tools")), tools=TOOLS)

    assert "accepts no tools" in str(error)
    assert "lint" not in str(error)


def test_a_failure_without_words_has_none_of_the_library() -> None:
    """The HTTP library's own text leads to pages for developers."""
    assert "(status 521)" in str(said(answered(521, "")))


def test_a_key_that_the_server_repeats_is_masked() -> None:
    """This includes a key that does not look like one, and one that is in no variable."""
    error = answered(401, openai_error("the token plainwords1 is not valid"))

    told = model_error(error, provider="p", model="m", base_url="http://h", secret="plainwords1")

    assert "plainwords1" not in str(told)


def test_a_request_without_tools_cannot_fail_because_of_one() -> None:
    """Words about a schema mean something else if no tool was offered."""
    error = said(answered(400, openai_error("the JSON schema is invalid")), tools=())

    assert error.kind == "bad_request"


def test_validation_details_of_a_server_name_the_tool() -> None:
    """A FastAPI server answers with a list of positions; that of the tool counts."""
    body = {"detail": [{"loc": ["body", "tools", 1, "function", "name"], "msg": "Field required", "type": "missing"}]}

    error = said(answered(422, body), tools=TOOLS)

    assert (error.kind, error.refused_tools) == ("refused_tool", ("beta",))


@pytest.mark.parametrize(
    ("headers", "text", "seconds"),
    [
        ({"retry-after": "7"}, "slow down", 7.0),
        ({"retry-after": "1.5"}, "slow down", 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, "slow down", 0.25),
        ({"retry-after": formatdate(1_000_060, usegmt=True), "date": formatdate(1_000_000, usegmt=True)}, "x", 60.0),
        ({"retry-after": "soon"}, "slow down", None),
        ({"retry-after": "-5"}, "slow down", 0.0),
        ({}, "Rate limit reached. Please try again in 20s.", 20.0),
        ({}, "Rate limit reached. Please try again in 6m30s.", 390.0),
        ({}, "Rate limit reached. Please try again in 320ms.", 0.32),
        ({}, "Please try again in 2 minutes.", 120.0),
        ({}, "Please retry after 6 seconds.", 6.0),
        ({}, "slow down", None),
    ],
)
def test_the_time_to_wait_is_read_from_headers_and_words(
    headers: dict[str, str], text: str, seconds: float | None
) -> None:
    """Retry-After counts as seconds or as a date by the server's clock, retry-after-ms before it, text after it."""
    error = said(answered(429, openai_error(text), headers=headers))

    assert error.retry_after_seconds == seconds


def test_the_server_can_forbid_a_retry() -> None:
    """`x-should-retry: false` is obeyed."""
    error = said(answered(503, "no", headers={"x-should-retry": "false"}))

    assert not error.may_retry


def chained(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


REQUEST = httpx2.Request("POST", "https://api.acme.test/v1")


@pytest.mark.parametrize(
    ("error", "kind", "may_retry", "word"),
    [
        (openai.APITimeoutError(REQUEST), "timeout", True, "model.timeout"),
        (anthropic.APITimeoutError(REQUEST), "timeout", True, "model.timeout"),
        (httpx2.ReadTimeout("late"), "timeout", True, "in time"),
        (TimeoutError(), "timeout", True, "in time"),
        (chained(openai.APIConnectionError(request=REQUEST), ConnectionRefusedError(111, "refused")),
         "network", True, "refuses connections"),
        (chained(anthropic.APIConnectionError(request=REQUEST), socket.gaierror(-2, "Name or service not known")),
         "network", False, "cannot find the address"),
        (chained(openai.APIConnectionError(request=REQUEST), httpx2.ConnectError("[Errno -3] Temporary failure in "
         "name resolution")), "network", True, "cannot find the address"),
        (chained(openai.APIConnectionError(request=REQUEST), ssl.SSLCertVerificationError("self-signed certificate")),
         "network", False, "not secure"),
        (httpx2.RemoteProtocolError("peer closed connection without sending complete message body"),
         "network", True, "broke"),
        (ConnectionResetError(104, "reset"), "network", True, "broke"),
        (httpx2.UnsupportedProtocol("Request URL is missing an 'http://'"), "bad_request", False, "model.base_url"),
        (UnicodeEncodeError("ascii", "kéy", 1, 2, "ordinal"), "key", False, "ACME_KEY"),
        (httpx2.LocalProtocolError("Illegal header value b'Bearer k\\n'"), "key", False, "ACME_KEY"),
        (httpx2.LocalProtocolError("Can't send data when our state is ERROR"), "network", True, "broke"),
        (json.JSONDecodeError("bad", "{", 0), "server", True, "unreadable"),
        (ModuleNotFoundError("No module named 'openai'"), "missing_package", False, "pip install"),
        (ZeroDivisionError("division by zero"), "server", False, "division by zero"),
    ],
)  # fmt: skip
def test_what_never_got_an_answer_is_known_by_its_class(
    error: BaseException, kind: str, may_retry: bool, word: str
) -> None:
    """Timeouts, names, TLS, refused and broken connections each have their own sentence."""
    found = said(error)

    assert (found.kind, found.may_retry) == (kind, may_retry)
    assert word in str(found)


def test_a_local_server_that_is_not_there_is_asked_about_at_once() -> None:
    """Nothing at a loopback address means that the server is not running, and waiting does not start it."""
    error = chained(openai.APIConnectionError(request=REQUEST), ConnectionRefusedError(111, "Connection refused"))

    found = said(error, base_url="http://127.0.0.1:8000/v1")

    assert not found.may_retry
    assert "is the server running?" in str(found)
    assert "http://127.0.0.1:8000/v1" in str(found)


def test_an_error_within_a_stream_is_known_by_its_type() -> None:
    """A stream that started with 200 and then reports an overload may be retried."""
    body = anthropic_error("overloaded_error", "Overloaded")
    request = httpx2.Request("POST", "https://api.acme.test/v1")
    error = anthropic.AsyncAnthropic(api_key="k")._make_status_error(
        str(body), body=body, response=httpx2.Response(200, request=request)
    )

    found = said(error)

    assert (found.kind, found.may_retry) == ("server", True)


def test_a_numbered_error_within_a_stream_is_known_by_its_number() -> None:
    """Routers put the upstream status into the error object of the stream."""
    error = openai.APIError("x", REQUEST, body={"code": 429, "message": "Provider is rate-limited upstream"})

    found = said(error)

    assert (found.kind, found.status, found.may_retry) == ("rate_limit", 429, True)


def test_secrets_are_masked() -> None:
    """A key in the provider's text does not reach the person's screen."""
    error = said(answered(401, openai_error("Incorrect API key provided: sk-proj-abcdefghijklmnopqrstuvwx1234")))

    assert "abcdefghijklmnop" not in str(error)
    assert "ACME_KEY" in str(error)
    assert "toolcrib setup" in str(error)


def test_a_model_error_stays_what_it_is() -> None:
    """An error that was already classified stays as it is."""
    first = ModelError("x", kind="weights")

    assert said(first) is first


@settings(max_examples=150, deadline=None)
@given(
    status=st.sampled_from([200, 400, 401, 403, 404, 413, 418, 422, 429, 500, 503, 529]),
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=40),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["error", "message", "type", "code", "detail", "metadata", "raw", "status"])
                | st.text(),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
)
def test_any_body_becomes_a_sentence(status: int, body: Any) -> None:
    """However odd the answer, the failure is a ModelError with one line of text."""
    error = said(answered(status, body), tools=TOOLS)

    assert str(error)
    assert "\n" not in str(error)
