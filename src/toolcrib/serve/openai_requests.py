"""Requests of OpenAI's APIs: their formats, what they mean for an agent, and how they are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec
from starlette.responses import JSONResponse, Response

from toolcrib.core.errors import UsageError
from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.messages import Image, Message, Text, image_at

MODEL = "toolcrib"
"""The model that clients can always choose: the agent with the configured model."""
MAX_INSTRUCTIONS_CHARS = 100_000

# Prompts that chat front ends send on their own, to get a title, tags or follow-up questions: a task and the transcript
# of a chat. A person who asks for a title sends no such transcript.
# The groups are atomic: a long prompt takes linear time.
_HOUSEKEEPING = lazy_pattern(
    r"\A\s*(?:(?>### Task:\s.*?<chat_history>).*</chat_history>"
    r"|(?:provide|write|generate|create)\s+an?\s+(?:concise|short|brief)\b[^\n]{0,80}\btitle\s+for\s+(?:the|this|a)\s+"
    r"conversation\b(?>.*?^\W{0,4}(?:user|human|input)\s*:).*?^\W{0,4}(?:ai|assistant|output)\s*:)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)


class BadRequest(UsageError):
    """A request that means nothing; `param` is the part at fault."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class StreamOptions(msgspec.Struct, frozen=True):
    """OpenAI's options for a stream."""

    include_usage: bool = False


class InputMessage(msgspec.Struct, frozen=True):
    """A message, as chat clients send it."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """The body of `POST /v1/chat/completions`. Tools of the client are ignored: ours run on the server."""

    messages: list[InputMessage]
    model: str = MODEL
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1


class ResponsesRequest(msgspec.Struct, frozen=True):
    """The body of `POST /v1/responses`."""

    input: str | list[dict[str, Any]]
    model: str = MODEL
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = False
    store: bool | None = True
    metadata: dict[str, str] | None = None


class AgentQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the agent."""

    question: Message
    history: tuple[Message, ...] = ()
    """The messages before it, as the client shows them."""
    instructions: str = ""
    """The client's system prompt, which is added to ours."""

    @property
    def is_housekeeping(self) -> bool:
        """Whether a front end asks on its own behalf, for a title or tags: no agent runs for that."""
        return not self.history and bool(_HOUSEKEEPING.search(self.question.text[:20_000]))

    def before(self) -> list[tuple[str, str]]:
        """The transcript up to this question, as it is compared."""
        return _compared(self.history)

    def after(self, answer: str) -> list[tuple[str, str]]:
        """The transcript with this question and its answer, as the client's next request compares."""
        return _compared([*self.history, self.question, Message(role="assistant", content=answer)])


def _compared(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Who said what, without spaces: clients send an answer back in one message or in several, and trim it."""
    said: list[tuple[str, str]] = []
    for role, group in groupby(messages, key=lambda one: one.role):
        text = "".join("".join(one.text.split()) for one in group)
        if text:
            said.append((role, text))
    return said


def question_of_chat(request: ChatRequest) -> AgentQuestion:
    """The last user message is the question; raises BadRequest if there is none."""
    if (request.n or 1) != 1:
        raise BadRequest("this server gives one answer; leave `n` out", "n")
    return _question([(one.role, one.content) for one in request.messages], "messages")


def question_of_response(request: ResponsesRequest) -> AgentQuestion:
    """The same for the Responses API, whose input is a text or a list of items."""
    if isinstance(request.input, str):
        rows: list[tuple[str, Any]] = [("user", request.input)]
    else:
        rows = [_item(item) for item in request.input]
    found = _question([row for row in rows if row[0]], "input")
    given = "\n\n".join(text for text in (request.instructions or "", found.instructions) if text)
    return msgspec.structs.replace(found, instructions=_bounded(given))


def _item(item: dict[str, Any]) -> tuple[str, Any]:
    kind = item.get("type", "message")
    if kind != "message":
        # Calls and results of our own tools, which the session has already.
        return "", None
    role, content = item.get("role"), item.get("content")
    if role not in ("system", "developer", "user", "assistant") or not isinstance(content, (str, list)):
        raise BadRequest("an input message needs a role and a content", "input")
    return role, content


def _question(rows: Sequence[tuple[str, Any]], param: str) -> AgentQuestion:
    instructions = [_text(content, param) for role, content in rows if role in ("system", "developer")]
    spoken = [
        Message(role="user" if role == "user" else "assistant", content=content_of(content, param))
        for role, content in rows
        if role in ("user", "assistant")
    ]
    while spoken and spoken[-1].role != "user":
        # A client that wants an answer continued ends with the assistant's words; they are history.
        spoken.pop()
    if not spoken or not (spoken[-1].text.strip() or spoken[-1].images):
        raise BadRequest("there is no user message to answer", param)
    *history, question = spoken
    return AgentQuestion(
        question=question,
        history=tuple(one for one in history if one.text.strip() or one.images),
        instructions=_bounded("\n\n".join(text for text in instructions if text.strip())),
    )


def _bounded(text: str) -> str:
    if len(text) > MAX_INSTRUCTIONS_CHARS:
        raise BadRequest(f"the instructions have more than {MAX_INSTRUCTIONS_CHARS:,} characters", "instructions")
    return text


def content_of(content: Any, param: str) -> str | tuple[Text | Image, ...]:
    """The content of a message; raises BadRequest for parts that are neither text nor images."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = list(_parts(content, param))
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    return tuple(parts)


def _text(content: Any, param: str) -> str:
    found = content_of(content, param)
    return found if isinstance(found, str) else "\n".join(part.text for part in found if isinstance(part, Text))


def _parts(content: Any, param: str) -> Iterable[Text | Image]:
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            raise BadRequest("a part of a message must be an object", param)
        if isinstance(block.get("text"), str):
            yield Text(block["text"])
            continue
        address = block.get("image_url")
        address = address.get("url") if isinstance(address, dict) else address
        if not isinstance(address, str):
            raise BadRequest(
                f"a message part of type {block.get('type')!r} is not supported; send text or images", param
            )
        if not address.startswith("data:image/"):
            raise BadRequest("send images as data URLs; the server fetches none", param)
        yield image_at(address)


def api_error(status: int, message: str, param: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """An error in OpenAI's format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param or None, "code": None}}
    return JSONResponse(body, status_code=status, headers=headers)


def refusal_for(path: str, refusal: Response) -> Response:
    """A refusal in the format of the API that a path belongs to: clients of OpenAI show no other message."""
    if not path.startswith("/v1/"):
        return refusal
    kept = {name: value for name in ("WWW-Authenticate", "Retry-After") if (value := refusal.headers.get(name))}
    return api_error(refusal.status_code, json.loads(bytes(refusal.body))["error"], headers=kept)
