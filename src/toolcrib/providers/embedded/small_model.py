"""One request to a very small model, answered as well as it can: a tool is chosen by schema, words come as text."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolcrib.core.messages import Message, RequestedCall, user_message
from toolcrib.core.models import CallDelta, Delta, Emit, ModelRequest, ModelResponse, Notice, Provider, TextDelta
from toolcrib.core.types import JsonObject

MAX_DESCRIPTION_CHARS = 160
MAX_PARAMETER_CHARS = 80
MIN_WORD_CHARS = 3
_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
# Words of questions and of descriptions alike, which say nothing about a parameter.
_ARTICLES = "the and for are was not you can has its all any how who why out get set use one two say tell please your"
_POINTERS = "this that these those there here them they then than when where what which while with from into about"
_VERBS = "will would should could must have been does used using given"
_SCHEMA_WORDS = (
    "optional default defaults example true false tool tools value values string only also each other more most"
)
_EMPTY_WORDS = frozenset(" ".join((_ARTICLES, _POINTERS, _VERBS, _SCHEMA_WORDS, "much many")).split())


def lean(tools: Sequence[JsonObject], question: str) -> list[JsonObject]:
    """The tools with short descriptions, without the optional parameters that the question does not touch."""
    words = content_words(question)
    return [tool | {"function": _lean_function(tool["function"], words)} for tool in tools]


def _lean_function(function: JsonObject, words: set[str]) -> JsonObject:
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    required = set(parameters.get("required") or ())
    properties: JsonObject = parameters.get("properties") or {}
    # "Use the terminal tool" speaks of the tool, not of a parameter that mentions a terminal.
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
    said = [name.replace("_", " ")]
    # A switch or a list is only asked for by its name: its description holds words of all kinds.
    if isinstance(schema, dict) and schema.get("type") in ("string", "integer", "number"):
        said += [str(schema.get("description") or ""), *(str(value) for value in schema.get("enum") or ())]
    return content_words(" ".join(said))


def content_words(text: str) -> set[str]:
    """The words of a text, in lower case, without short ones and those that say nothing."""
    return {word for word in _WORD.findall(text.lower()) if len(word) >= MIN_WORD_CHARS} - _EMPTY_WORDS


NO_TOOL = "answer"
MAX_CANDIDATES = 4
NAME_WEIGHT = 3
STEM_CHARS = 5
_PATH = re.compile(r"(?:^|\s)[\w~.-]*/[\w./~-]+|\b[\w-]+\.[a-z]{1,5}\b")
_PATH_WORDS = ("file", "path")
_WEB_ADDRESS = re.compile(r"https?://|\bwww\.")

_INSTRUCTION = 'Reply with one json object: {"name": <tool>, "arguments": {<parameter>: <value>}}'
_NO_TOOL_LINE = f"- {NO_TOOL}: no tool is needed, for greetings, thanks and questions that you can answer yourself"


def named_tools(question: str, tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The tools that the question asks for by name: "use the weather tool", "with the terminal", "read_file"."""
    text = question.lower()
    return [tool for tool in tools if _is_named(tool["function"]["name"].lower(), text)]


def _is_named(name: str, text: str) -> bool:
    if "_" in name and re.search(rf"\b{re.escape(name)}\b", text):
        return True
    spoken = re.escape(name.replace("_", " "))
    words = [re.escape(word) for word in re.split(r"[_\W]+", name) if len(word) > 2]
    asked = rf"\b(?:use|using|with|via|call|through)\s+(?:the\s+|a\s+|your\s+)?{spoken}\b"
    as_tool = rf"\b(?:{'|'.join([spoken, *words])})[\s-]+tool\b"
    return re.search(f"{asked}|{as_tool}", text) is not None


def candidates(question: str, tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The few tools that share most with the question, best first; rare words count more. Empty when none does."""
    asked = _stems(question)
    if _PATH.search(question) and not _WEB_ADDRESS.search(question):
        asked |= {word[:STEM_CHARS] for word in _PATH_WORDS}
    spoken = [_weights(tool["function"]) for tool in tools]
    spread = Counter(stem for weights in spoken for stem in weights)
    scores = [sum(weights[stem] / spread[stem] for stem in asked if stem in weights) for weights in spoken]
    ranked = sorted(range(len(tools)), key=lambda at: -scores[at])[:MAX_CANDIDATES]
    return [tools[at] for at in ranked if scores[at] > 0]


def instruction(tools: Sequence[JsonObject], *, may_answer: bool) -> str:
    """What to add to the system prompt: the tools, a line for each and each parameter, and the form of the reply."""
    lines = [_line(tool["function"]) for tool in tools]
    return "\n".join(["# Tools", *lines, *([_NO_TOOL_LINE] if may_answer else []), "", _INSTRUCTION])


def reply_schema(tools: Sequence[JsonObject], *, may_answer: bool) -> JsonObject:
    """The schema of a reply: one call, or that no tool is needed."""
    choices = [_choice(tool["function"]["name"], tool["function"]["parameters"]) for tool in tools]
    if may_answer:
        choices.append(_choice(NO_TOOL, None))
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def chosen(reply: str) -> tuple[str, str] | None:
    """The name and the arguments, as JSON text, that a reply holds; None when no tool is needed or it was cut off."""
    try:
        found = json.loads(reply, strict=False)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("name") == NO_TOOL or not isinstance(found.get("arguments"), dict):
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
    # Not the values that a parameter may have: "list" and "write" are words of many questions.
    described = [str(one.get("description") or "") for one in parameters.values() if isinstance(one, dict)]
    told = " ".join([str(function.get("description") or ""), *parameters, *described])
    weights = dict.fromkeys(_stems(told), 1.0)
    return weights | dict.fromkeys(_stems(function["name"]), float(NAME_WEIGHT))


def _stems(text: str) -> set[str]:
    return {word[:STEM_CHARS] for word in content_words(text.replace("_", " "))}


MAX_RESULT_CHARS = 2_400
"""More than this of all results would take the model too long to read; beginnings and ends say most."""
MIN_RESULT_CHARS = 400
MAX_FAILED_CALLS = 2
"""After so many failures the model words what it has instead of trying again."""


def question_of(messages: Sequence[Message]) -> str:
    """The latest that the person said."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def results_of(messages: Sequence[Message]) -> list[Message]:
    """What tools gave since the latest question."""
    return [message for message in messages[_latest(messages) + 1 :] if message.role == "tool"]


def is_time_to_word(messages: Sequence[Message]) -> bool:
    """Whether there is a result to speak of, or calls have failed too often."""
    results = results_of(messages)
    if not results:
        return False
    return results[-1].status == "ok" or sum(one.status != "ok" for one in results) >= MAX_FAILED_CALLS


def retold(messages: Sequence[Message]) -> list[Message]:
    """The conversation with calls and results in words; of earlier questions only what was said.

    Shown its own calls in their usual form, such a model goes on to write calls.
    """
    at = _latest(messages)
    if at < 0:
        return list(messages)
    spoken = [Message(role=one.role, content=one.text) for one in messages[:at] if _is_spoken(one)]
    return [*spoken, user_message(messages[at].text), *_told(messages[at + 1 :], is_time_to_word(messages))]


def _told(since: Sequence[Message], is_last_word: bool) -> Iterator[Message]:
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
    """A result that is a JSON object as lines of names and values, with its line breaks as such."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if not isinstance(found, dict):
        return text
    told = {name: value for name, value in found.items() if value not in (None, "", [], {})}
    # That a command succeeded distracts from what it said.
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
    """Whether a text that begins like this may turn out to be a call, so that it is not shown yet."""
    start = text.lstrip()
    return not start or any(start.startswith(mark) or mark.startswith(start) for mark in ("{", "```", "<tool_call>"))


def take_calls(text: str) -> tuple[str, list[RequestedCall]]:
    """The text without the calls written in it, and the calls, which have no id yet."""
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
    # Exactly these keys: other JSON is what the person asked for.
    if found is None or set(found) not in _CALL_KEYS or not isinstance(found["name"], str):
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if not isinstance(arguments, dict):
        return None
    return RequestedCall(id="", name=found["name"], arguments=json.dumps(arguments, ensure_ascii=False))


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object at the start; a comma too many or closing braces too few are put right, nothing else is."""
    for attempt in (
        text,
        _TRAILING_COMMA.sub(r"\1", text),
        *(text + "}" * n for n in range(1, MOST_MISSING_BRACES + 1)),
    ):
        try:
            # Not strict: small models put line breaks into strings as they are.
            found, _ = json.JSONDecoder(strict=False).raw_decode(attempt)
        except ValueError:
            continue
        return found if isinstance(found, dict) else None
    return None


MAX_ANSWER_TOKENS = 700
MAX_CALL_TOKENS = 400
"""A call that holds a text to write may be long; one that never ends is cut here."""


class SmallModel:
    """Asks the engine for one answer, in the steps that a small model manages."""

    def __init__(self, engine: Provider) -> None:
        self._engine = engine

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """The whole answer; its pieces go to `emit`."""
        request = _with_limits(request)
        if request.response_schema is not None:
            return await self._engine.complete(request, emit)
        if not request.tools or request.tool_choice == "none" or is_time_to_word(request.messages):
            return await self._worded(request, emit)
        question = question_of(request.messages)
        asked_for = named_tools(question, request.tools)
        must_call = request.tool_choice == "required" or bool(asked_for)
        fitting = asked_for or candidates(question, request.tools)
        if must_call or fitting:
            return await self._chosen(request, lean(fitting or request.tools, question), emit, may_answer=not must_call)
        return await self._worded(request, emit)

    async def _chosen(
        self, request: ModelRequest, tools: Sequence[JsonObject], emit: Emit, *, may_answer: bool
    ) -> ModelResponse:
        """A call of one of these tools; or words, where the model says that it needs none."""
        decide = msgspec.structs.replace(
            request,
            system=f"{request.system}\n\n{instruction(tools, may_answer=may_answer)}".strip(),
            messages=retold(request.messages),
            tools=(),
            response_schema=reply_schema(tools, may_answer=may_answer),
            max_output_tokens=MAX_CALL_TOKENS,
        )
        reply = await self._engine.complete(decide, _ignore_text(emit))
        found = chosen(reply.message.text)
        if found is None:
            response = await self._worded(request, emit)
            return msgspec.structs.replace(response, usage=response.usage + reply.usage)
        return _calling(reply, "", [RequestedCall(id="", name=found[0], arguments=found[1])], emit)

    async def _worded(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """Words. No tools are shown: offered any, the model repeats its call, or answers a result with nothing."""
        held = _Held(emit)
        plain = msgspec.structs.replace(request, messages=retold(request.messages), tools=(), tool_choice="auto")
        response = await self._engine.complete(plain, held)
        text, calls = take_calls(response.message.text)
        results = results_of(request.messages)
        offered = {tool["function"]["name"] for tool in request.tools}
        if calls and not results and request.tool_choice != "none" and offered:
            held.withdraw()
            return _calling(response, text, calls, emit)
        if results and (calls or not text.strip()):
            held.withdraw()
            # It found no words of its own: what the tool said is the answer.
            said = Message(role="assistant", content=results[-1].text)
            emit(TextDelta(said.text))
            return msgspec.structs.replace(response, message=said, stop="end")
        held.release()
        return response


class _Held:
    """An `emit` that keeps text back as long as it may turn out to be a call."""

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
        """Show what was kept, and hand on everything from now."""
        kept, self._kept, self._is_open = self._kept, "", True
        if kept:
            self._has_shown = True
            self._emit(TextDelta(kept))

    def withdraw(self) -> None:
        """It was a call: take back what was shown of it."""
        self._kept = ""
        if self._has_shown:
            self._emit(Notice(kind="restart", message="the model wrote a tool call into its answer"))


def _ignore_text(emit: Emit) -> Emit:
    return lambda delta: emit(delta) if isinstance(delta, Notice) else None


def _calling(reply: ModelResponse, text: str, calls: Sequence[RequestedCall], emit: Emit) -> ModelResponse:
    named = tuple(msgspec.structs.replace(call, id=f"call_{uuid.uuid4().hex[:12]}") for call in calls)
    if text:
        emit(TextDelta(text))
    for index, call in enumerate(named):
        emit(CallDelta(index=index, id=call.id, name=call.name, arguments=call.arguments))
    message = Message(role="assistant", content=text, tool_calls=named)
    return msgspec.structs.replace(reply, message=message, stop="tool_calls")


def _with_limits(request: ModelRequest) -> ModelRequest:
    """Bounded, and without chance unless it is asked for: a small model that wanders does not come back."""
    return msgspec.structs.replace(
        request,
        max_output_tokens=min(request.max_output_tokens or MAX_ANSWER_TOKENS, MAX_ANSWER_TOKENS),
        temperature=0.0 if request.temperature is None else request.temperature,
    )
