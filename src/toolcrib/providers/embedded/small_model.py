"""Gets the best out of a very small model: a schema makes it choose a tool, then it answers in text."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolcrib.core.messages import Message, RequestedCall, spoken_text, user_message
from toolcrib.core.models import CallDelta, Delta, Emit, ModelRequest, ModelResponse, Notice, Provider, TextDelta
from toolcrib.core.types import JsonObject
from toolcrib.providers.embedded.everyday_tools import (
    ANSWER,
    EVERYDAY_TOOLS,
    in_small_words,
    is_small_talk,
    named_tools,
    nearest_examples,
)

MAX_DESCRIPTION_CHARS = 160
MAX_PARAMETER_CHARS = 80
MIN_WORD_CHARS = 3
_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
# Words common to questions and descriptions, which tell nothing about a parameter.
_ARTICLES = "the and for are was not you can has its all any how who why out get set use one two say tell please your"
_POINTERS = "this that these those there here them they then than when where what which while with from into about"
_VERBS = "will would should could must have been does used using given"
_SCHEMA_WORDS = (
    "optional default defaults example true false tool tools value values string only also each other more most"
)
_EMPTY_WORDS = frozenset(" ".join((_ARTICLES, _POINTERS, _VERBS, _SCHEMA_WORDS, "much many")).split())


def lean(tools: Sequence[JsonObject], question: str) -> list[JsonObject]:
    """The tools with short descriptions, without optional parameters that the question does not mention."""
    words = content_words(question)
    return [tool | {"function": _lean_function(tool["function"], words)} for tool in tools]


def _lean_function(function: JsonObject, words: set[str]) -> JsonObject:
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    required = set(parameters.get("required") or ())
    properties: JsonObject = parameters.get("properties") or {}
    # "Use the terminal tool" means the tool, not a parameter whose text mentions a terminal.
    spoken = words - content_words(f"{function.get('name')} {function.get('description')}".replace("_", " "))
    kept = {
        name: _short(schema)
        for name, schema in properties.items()
        if name in required or not required or spoken & _words_of_parameter(name, schema)
    }
    return function | {
        "description": _first_sentence(str(function.get("description") or ""), MAX_DESCRIPTION_CHARS),
        "parameters": parameters | {"properties": kept},
    }


def _short(schema: Any) -> Any:
    if not isinstance(schema, dict) or not isinstance(schema.get("description"), str):
        return schema
    return schema | {"description": _first_sentence(schema["description"], MAX_PARAMETER_CHARS)}


def _first_sentence(text: str, limit: int) -> str:
    first = _SENTENCE_END.split(text.strip(), maxsplit=1)[0]
    return first if len(first) <= limit else first[: limit - 1].rsplit(" ", 1)[0] + "…"


def _words_of_parameter(name: str, schema: Any) -> set[str]:
    words = [name.replace("_", " ")]
    # A switch or list must be named to count: its description contains words of all kinds.
    if isinstance(schema, dict) and schema.get("type") in ("string", "integer", "number"):
        words += [str(schema.get("description") or ""), *(str(value) for value in schema.get("enum") or ())]
    return content_words(" ".join(words))


def content_words(text: str) -> set[str]:
    """The words of a text in lower case, without short and common ones."""
    return {word for word in _WORD.findall(text.lower()) if len(word) >= MIN_WORD_CHARS} - _EMPTY_WORDS


MAX_CANDIDATES = 4
MAX_EXAMPLES = 6
NAME_WEIGHT = 3
STEM_CHARS = 5
_PATH = re.compile(r"(?:^|\s)[\w~.-]*/[\w./~-]+|\b[\w-]+\.[a-z]{1,5}\b")
_PATH_WORDS = ("file", "path")
_WEB_ADDRESS = re.compile(r"https?://|\bwww\.")

_INSTRUCTION = 'Reply with one json object: {"name": <tool>, "arguments": {<parameter>: <value>}}'
_NO_TOOL_LINE = f"- {ANSWER}: no tool is needed, for greetings, thanks and questions that you can answer yourself"


def candidates(question: str, tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The few tools that share most with the question, best first; rare words count more. Empty if none does."""
    asked = _stems(question)
    if _PATH.search(question) and not _WEB_ADDRESS.search(question):
        asked |= {word[:STEM_CHARS] for word in _PATH_WORDS}
    spoken = [_weights(tool["function"]) for tool in tools]
    spread = Counter(stem for weights in spoken for stem in weights)
    scores = [sum(weights[stem] / spread[stem] for stem in asked if stem in weights) for weights in spoken]
    ranked = sorted(range(len(tools)), key=lambda at: -scores[at])[:MAX_CANDIDATES]
    return [tools[at] for at in ranked if scores[at] > 0]


def offered_tools(tools: Sequence[JsonObject], question: str, *, is_named: bool) -> list[JsonObject]:
    """The tools to choose from: those that fit the question, and unless it is small talk the everyday ones."""
    others = [tool for tool in tools if tool["function"]["name"] not in EVERYDAY_TOOLS]
    fitting = lean(others if is_named else candidates(question, others), question)
    return fitting if is_small_talk(question) and not is_named else [*fitting, *in_small_words(tools)]


def instruction(tools: Sequence[JsonObject], *, may_answer: bool) -> str:
    """The addition to the system prompt: one line per tool and parameter, and the form of the reply."""
    lines = [_line(tool["function"]) for tool in tools]
    return "\n".join(["# Tools", *lines, *([_NO_TOOL_LINE] if may_answer else []), "", _INSTRUCTION])


def _examples(messages: Sequence[Message], tools: Sequence[JsonObject], *, may_answer: bool) -> Iterator[Message]:
    """Similar questions with the right replies, as an earlier conversation: a small model imitates what it sees."""
    names = {tool["function"]["name"] for tool in tools} | ({ANSWER} if may_answer else set())
    for question, reply in nearest_examples(question_of(messages), names, MAX_EXAMPLES):
        yield user_message(question)
        yield Message(role="assistant", content=reply)


def reply_schema(tools: Sequence[JsonObject], *, may_answer: bool) -> JsonObject:
    """The schema of a reply: one call, or no tool."""
    choices = [_choice(tool["function"]["name"], tool["function"]["parameters"]) for tool in tools]
    if may_answer:
        choices.append(_choice(ANSWER, None))
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def parse_choice(reply: str) -> tuple[str, str] | None:
    """The name and the JSON arguments in a reply; None if it needs no tool or was cut off."""
    try:
        found = json.loads(reply, strict=False)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("name") == ANSWER or not isinstance(found.get("arguments"), dict):
        return None
    return str(found["name"]), json.dumps(found["arguments"], ensure_ascii=False)


def _choice(name: str, parameters: JsonObject | None) -> JsonObject:
    properties: JsonObject = {"name": {"const": name}}
    if parameters is not None:
        properties["arguments"] = parameters
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _line(function: JsonObject) -> str:
    parameters: JsonObject = function["parameters"].get("properties") or {}
    head = f"- {function['name']}({', '.join(parameters)}): {function['description']}"
    return "\n".join([head, *(f"    {name}: {_meaning(schema)}" for name, schema in parameters.items())])


def _meaning(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    values = ", ".join(str(value) for value in schema.get("enum") or ())
    return " ".join(
        part for part in (str(schema.get("description") or ""), f"One of {values}" if values else "") if part
    )


def _weights(function: JsonObject) -> dict[str, float]:
    """The word stems of a tool; those of its name count most."""
    parameters: JsonObject = function.get("parameters", {}).get("properties") or {}
    # Ignore a parameter's values: "list" and "write" occur in many questions.
    described = [str(one.get("description") or "") for one in parameters.values() if isinstance(one, dict)]
    told = " ".join([str(function.get("description") or ""), *parameters, *described])
    weights = dict.fromkeys(_stems(told), 1.0)
    return weights | dict.fromkeys(_stems(function["name"]), float(NAME_WEIGHT))


def _stems(text: str) -> set[str]:
    return {word[:STEM_CHARS] for word in content_words(text.replace("_", " "))}


MAX_RESULT_CHARS = 2_400
"""The model takes too long to read more than this; beginnings and ends tell most."""
MIN_RESULT_CHARS = 400
MAX_FAILED_CALLS = 2
"""After this many failures the model answers with what it has instead of trying again."""


def question_of(messages: Sequence[Message]) -> str:
    """The person's latest words."""
    return next((spoken_text(message.text) for message in reversed(messages) if message.role == "user"), "")


def results_of(messages: Sequence[Message]) -> list[Message]:
    """The tool results since the latest question."""
    return [message for message in messages[_latest(messages) + 1 :] if message.role == "tool"]


def is_time_to_word(messages: Sequence[Message]) -> bool:
    """Whether to answer in words: there is a result, or calls have failed too often."""
    results = results_of(messages)
    if not results:
        return False
    return results[-1].status == "ok" or sum(one.status != "ok" for one in results) >= MAX_FAILED_CALLS


def retell(messages: Sequence[Message]) -> list[Message]:
    """The conversation with calls and results in words; earlier questions keep only their text.

    If such a model sees its own calls in the usual form, it keeps writing calls.
    """
    at = _latest(messages)
    if at < 0:
        return list(messages)
    spoken = [Message(role=one.role, content=one.text) for one in messages[:at] if _is_spoken(one)]
    return [*spoken, user_message(messages[at].text), *_describe_result(messages[at + 1 :], is_time_to_word(messages))]


def _describe_result(since: Sequence[Message], is_last_word: bool) -> Iterator[Message]:
    calls = {call.id: call for message in since for call in message.tool_calls}
    results = [message for message in since if message.role == "tool"]
    limit = max(MIN_RESULT_CHARS, MAX_RESULT_CHARS // max(1, len(results)))
    for result in results:
        call = calls.get(result.call_id)
        arguments = f" with {call.arguments}" if call is not None else ""
        yield Message(role="assistant", content=f"I called {result.name}{arguments}.")
        text = f"It {'returned' if result.status == 'ok' else 'failed'}:\n{_cut(_readable(result.text), limit)}"
        yield user_message(f"{text}\n\n{_request(result, is_last_word)}" if result is results[-1] else text)


def _request(result: Message, is_last_word: bool) -> str:
    if not is_last_word:
        return "Call the tool again, with other arguments."
    if result.status == "ok":
        return "What is the answer? Say it in one or two plain sentences."
    return "What went wrong? Say it in one or two plain sentences."


def _readable(text: str) -> str:
    """A result that is a JSON object, as lines of names and values with real line breaks."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if not isinstance(found, dict):
        return text
    told = {name: value for name, value in found.items() if value not in (None, "", [], {})}
    # The success of a command distracts from its output.
    if told.get("exit_code") == 0 and len(told) > 1:
        del told["exit_code"]
    if len(told) == 1:
        return _plain(next(iter(told.values()))).strip()
    return "\n".join(f"{name}: {_plain(value)}" for name, value in told.items())


def _cut(text: str, limit: int) -> str:
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}\n…\n{text[-half:]}"


def _plain(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"\n{value.rstrip()}" if "\n" in value.rstrip() else value.rstrip()


def _is_spoken(message: Message) -> bool:
    return message.role in ("user", "assistant") and bool(message.text.strip())


def _latest(messages: Sequence[Message]) -> int:
    return max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)


_FENCED = re.compile(
    r"```(?:json|tool_call)?\s*\n?(\{.*?)(?:```|\Z)|<tool_call>\s*(\{.*?)(?:</tool_call>|\Z)", re.DOTALL
)
_CALL_KEYS = ({"name", "arguments"}, {"name", "parameters"})
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
MOST_MISSING_BRACES = 2


def may_become_a_call(text: str) -> bool:
    """Whether a text with this beginning may turn out to be a call, so it is not shown yet."""
    start = text.lstrip()
    return not start or any(start.startswith(mark) or mark.startswith(start) for mark in ("{", "```", "<tool_call>"))


def take_calls(text: str) -> tuple[str, list[RequestedCall]]:
    """The text without the calls in it, and the calls, without ids."""
    calls: list[RequestedCall] = []
    rest = text
    for whole, candidate in _candidates(text):
        call = _call(candidate)
        if call is not None:
            calls.append(call)
            rest = rest.replace(whole, "", 1)
    return (rest.strip(), calls) if calls else (text, [])


def _candidates(text: str) -> Iterator[tuple[str, str]]:
    found = list(_FENCED.finditer(text))
    for match in found:
        yield match.group(0), match.group(1) or match.group(2)
    if not found and text.lstrip().startswith("{"):
        yield text, text


def _call(text: str) -> RequestedCall | None:
    found = _object(text.strip())
    # Require exactly these keys: other JSON is what the person asked for.
    if found is None or set(found) not in _CALL_KEYS or not isinstance(found["name"], str):
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if not isinstance(arguments, dict):
        return None
    return RequestedCall(id="", name=found["name"], arguments=json.dumps(arguments, ensure_ascii=False))


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object at the start; repairs only a surplus comma or missing closing braces."""
    for attempt in (
        text,
        _TRAILING_COMMA.sub(r"\1", text),
        *(text + "}" * n for n in range(1, MOST_MISSING_BRACES + 1)),
    ):
        try:
            # Not strict: small models write raw line breaks into strings.
            found, _ = json.JSONDecoder(strict=False).raw_decode(attempt)
        except ValueError:
            continue
        return found if isinstance(found, dict) else None
    return None


READING, CALLING = "reading the prompt", "choosing a tool"
MAX_ANSWER_TOKENS = 700
MAX_CALL_TOKENS = 400
"""A call that contains a text to write may be long; an endless one is cut here."""


class SmallModel:
    """Asks the engine for one answer, in steps that a small model can manage."""

    def __init__(self, engine: Provider) -> None:
        self._engine = engine

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """The complete answer; `emit` receives its pieces."""
        request = _with_limits(request)
        if request.response_schema is not None:
            return await self._engine.complete(request, emit)
        if not request.tools or request.tool_choice == "none" or is_time_to_word(request.messages):
            return await self._answer_in_words(request, emit)
        question = question_of(request.messages)
        asked_for = named_tools(question, request.tools)
        must_call = request.tool_choice == "required" or bool(asked_for)
        fitting = offered_tools(asked_for or request.tools, question, is_named=bool(asked_for))
        if must_call or fitting:
            tools = fitting or lean(request.tools, question)
            return await self._choose(request, tools, emit, may_answer=not must_call)
        return await self._answer_in_words(request, emit)

    async def _choose(
        self, request: ModelRequest, tools: Sequence[JsonObject], emit: Emit, *, may_answer: bool
    ) -> ModelResponse:
        """A call of one of these tools, or words if the model says it needs none."""
        emit(Notice(kind="working", message=READING))
        decide = msgspec.structs.replace(
            request,
            system=f"{request.system}\n\n{instruction(tools, may_answer=may_answer)}".strip(),
            messages=[*_examples(request.messages, tools, may_answer=may_answer), *retell(request.messages)],
            tools=(),
            response_schema=reply_schema(tools, may_answer=may_answer),
            max_output_tokens=MAX_CALL_TOKENS,
        )
        reply = await self._engine.complete(decide, _CallEmitter(emit))
        found = parse_choice(reply.message.text)
        if found is None:
            response = await self._answer_in_words(request, emit)
            return msgspec.structs.replace(response, usage=response.usage + reply.usage)
        return _calling(reply, "", [RequestedCall(id="", name=found[0], arguments=found[1])], emit)

    async def _answer_in_words(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """An answer in words, without tools: offered any, the model repeats its call or says nothing."""
        emit(Notice(kind="working", message=READING))
        held = _HoldingEmitter(emit)
        plain = msgspec.structs.replace(request, messages=retell(request.messages), tools=(), tool_choice="auto")
        response = await self._engine.complete(plain, held)
        text, calls = take_calls(response.message.text)
        results = results_of(request.messages)
        offered = {tool["function"]["name"] for tool in request.tools}
        if calls and not results and request.tool_choice != "none" and offered:
            held.withdraw()
            return _calling(response, text, calls, emit)
        if results and (calls or not text.strip()):
            held.withdraw()
            # It found no words of its own, so the tool's output is the answer.
            words = Message(role="assistant", content=results[-1].text)
            emit(TextDelta(words.text))
            return msgspec.structs.replace(response, message=words, stop="end")
        held.release()
        return response


class _HoldingEmitter:
    """An `emit` that holds text back while it may still turn out to be a call."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._kept = ""
        self._is_open = False
        self._has_shown = False

    def __call__(self, delta: Delta) -> None:
        if not isinstance(delta, TextDelta) or self._is_open:
            self._emit(delta)
            return
        self._kept += delta.text
        if not may_become_a_call(self._kept):
            self.release()

    def release(self) -> None:
        """Show the held-back text, and pass on everything from here."""
        kept, self._kept, self._is_open = self._kept, "", True
        if kept:
            self._has_shown = True
            self._emit(TextDelta(kept))

    def withdraw(self) -> None:
        """Discard what was shown, because it was a call."""
        self._kept = ""
        if self._has_shown:
            self._emit(Notice(kind="restart", message="the model wrote a tool call into its answer"))


class _CallEmitter:
    """An `emit` that hides the text of a call, and says once that it is being written."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._has_begun = False

    def __call__(self, delta: Delta) -> None:
        if isinstance(delta, Notice):
            self._emit(delta)
        elif not self._has_begun:
            self._has_begun = True
            self._emit(Notice(kind="working", message=CALLING))


def _calling(reply: ModelResponse, text: str, calls: Sequence[RequestedCall], emit: Emit) -> ModelResponse:
    named = tuple(msgspec.structs.replace(call, id=f"call_{uuid.uuid4().hex[:12]}") for call in calls)
    if text:
        emit(TextDelta(text))
    for index, call in enumerate(named):
        emit(CallDelta(index=index, id=call.id, name=call.name, arguments=call.arguments))
    message = Message(role="assistant", content=text, tool_calls=named)
    return msgspec.structs.replace(reply, message=message, stop="tool_calls")


def _with_limits(request: ModelRequest) -> ModelRequest:
    """Limits length and, unless asked otherwise, randomness: a small model that digresses does not recover."""
    return msgspec.structs.replace(
        request,
        max_output_tokens=min(request.max_output_tokens or MAX_ANSWER_TOKENS, MAX_ANSWER_TOKENS),
        temperature=0.0 if request.temperature is None else request.temperature,
    )
