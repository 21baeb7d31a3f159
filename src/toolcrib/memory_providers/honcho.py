"""Honcho: a service that learns about its user from conversations. Uses the official client, in the extra `honcho`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolcrib.core.errors import ToolcribError

PACKAGE = "honcho"
INSTALL = "run `pip install 'toolcrib[honcho]'`"
SECONDS = 30.0
MAX_MESSAGE_CHARS = 24_000
MAX_ANSWER_BYTES = 8_000_000
ASSISTANT = "assistant"
_QUERY = {"type": "string", "minLength": 1}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "honcho_profile",
        "description": "The facts about the user that Honcho considers most important. Quick.",
        "parameters": {"type": "object", "properties": {}},
    },
    {
        "name": "honcho_search",
        "description": "Search what the user said in earlier conversations.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {**_QUERY, "description": "What to search for"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
            },
            "required": ["query"],
        },
    },
    {
        "name": "honcho_context",
        "description": "What Honcho concluded about the user, as far as it matters for a topic. Quick.",
        "parameters": {
            "type": "object",
            "properties": {"query": {**_QUERY, "description": "The topic"}},
            "required": ["query"],
        },
    },
    {
        "name": "honcho_reasoning",
        "description": "Ask Honcho a question about the user; a model answers it from everything it knows. Slow.",
        "parameters": {
            "type": "object",
            "properties": {"query": {**_QUERY, "description": "The question, in a sentence"}},
            "required": ["query"],
        },
    },
    {
        "name": "honcho_conclude",
        "description": "Remember a fact about the user that they told you.",
        "parameters": {
            "type": "object",
            "properties": {"conclusion": {**_QUERY, "description": "The fact, in a sentence"}},
            "required": ["conclusion"],
        },
    },
]


class HonchoFailed(ToolcribError):
    """Honcho did not answer; the message is one sentence without any text of the service."""


class BoundedTransport:
    """Sends requests of httpx, and refuses answers that are too large."""

    def __init__(self, httpx: Any) -> None:
        self._response = httpx.Response
        self._inner = httpx.HTTPTransport()

    def __enter__(self) -> BoundedTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def handle_request(self, request: Any) -> Any:
        answer = self._inner.handle_request(request)
        if answer.headers.get("content-encoding", "identity") != "identity":
            answer.close()
            raise HonchoFailed("Honcho sent an answer that cannot be understood")
        return self._response(answer.status_code, headers=answer.headers, content=self._bounded(answer))

    def _bounded(self, answer: Any) -> Iterator[bytes]:
        left = MAX_ANSWER_BYTES
        try:
            for part in answer.stream:
                left -= len(part)
                if left < 0:
                    raise HonchoFailed(f"the answer of Honcho is larger than {MAX_ANSWER_BYTES // 1_000_000} MB")
                yield part
        finally:
            answer.close()

    def close(self) -> None:
        self._inner.close()


class HonchoMemory:
    """The memory of Honcho; see `MemoryProvider` in the compatibility package for what each method is for."""

    name = "honcho"
    host = "api.honcho.dev"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._user = _peer_id(environ.get("HONCHO_USER") or environ.get("USER") or "user")
        url = environ.get("HONCHO_URL", "")
        if url:
            self.host = url.partition("://")[2].partition("/")[0]

    def is_available(self) -> bool:
        return not self.missing()

    def missing(self) -> str:
        """What is missing, with a remedy; empty if nothing is."""
        if importlib.util.find_spec(PACKAGE) is None:
            return f"the client of Honcho is not installed; {INSTALL}"
        # A server of one's own may need no key.
        if not self._environ.get("HONCHO_API_KEY") and not self._environ.get("HONCHO_URL"):
            return "HONCHO_API_KEY is not set; run `toolcrib setup honcho`"
        return ""

    def get_config_schema(self) -> list[dict[str, Any]]:
        return [
            {
                "key": "api_key",
                "description": "The key of your Honcho account",
                "secret": True,
                "env_var": "HONCHO_API_KEY",
                "url": "https://app.honcho.dev/api-keys",
            },
            {
                "key": "url",
                "description": "The address of your own Honcho server, if you have one",
                "env_var": "HONCHO_URL",
            },
        ]

    @functools.cached_property
    def _client(self) -> Any:
        # An extra that takes half a second to import.
        honcho = importlib.import_module(PACKAGE)
        return honcho.Honcho(
            api_key=self._environ.get("HONCHO_API_KEY") or None,
            base_url=self._environ.get("HONCHO_URL") or None,
            workspace_id=self._environ.get("HONCHO_WORKSPACE_ID") or "toolcrib",
            timeout=SECONDS,
            # Whoever asks has a time limit, and does not wait for more.
            max_retries=0,
            http_client=self._connections,
        )

    @functools.cached_property
    def _connections(self) -> Any:
        """Ours, so that they can be closed, and no answer is without end."""
        httpx = importlib.import_module("httpx")
        # A compressed answer would hide its size.
        headers = {"accept-encoding": "identity"}
        return httpx.Client(timeout=SECONDS, headers=headers, transport=BoundedTransport(httpx))

    def initialize(self, session_id: str, **_: Any) -> None:
        """Nothing to do: sessions and peers are made when they are used."""

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return TOOLS

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        return self._asked(lambda: _context(self._me.context(search_query=query[:2_000], max_conclusions=20)))

    def sync_turn(self, user_content: str, assistant_content: str, *, session_id: str = "", **_: Any) -> None:
        def add() -> str:
            session, assistant = self._client.session(_peer_id(session_id)), self._client.peer(ASSISTANT)
            said = [(self._me, user_content), (assistant, assistant_content)]
            messages = [peer.message(text[:MAX_MESSAGE_CHARS]) for peer, text in said if text.strip()]
            if messages:
                session.add_messages(messages)
            return ""

        self._asked(add)

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **_: Any) -> str:
        query = str(args.get("query") or "")
        answer = {
            "honcho_profile": lambda: "\n".join(self._me.get_card() or []),
            "honcho_search": lambda: "\n\n".join(
                one.content for one in self._me.search(query, limit=int(args.get("limit") or 10))
            ),
            "honcho_context": lambda: _context(self._me.context(search_query=query)),
            "honcho_reasoning": lambda: str(self._me.chat(query) or ""),
            "honcho_conclude": lambda: self._conclude(str(args.get("conclusion") or "")),
        }[tool_name]
        return json.dumps({"success": True, "result": self._asked(answer) or "(nothing yet)"}, ensure_ascii=False)

    def _conclude(self, text: str) -> str:
        self._me.conclusions.create([{"content": text}])
        return "remembered"

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        """Nothing to do: every turn is there already."""

    def shutdown(self) -> None:
        """Close the connections."""
        if "_client" in vars(self):
            self._connections.close()

    @property
    def _me(self) -> Any:
        return self._client.peer(self._user)

    def _asked(self, ask: Any) -> str:
        """The answer of the client; raises HonchoFailed with one sentence for whatever it raises."""
        errors = importlib.import_module("honcho.http.exceptions")
        try:
            return str(ask())
        except errors.HonchoError as error:
            raise HonchoFailed(_sentence(error)) from error
        except ValueError as error:
            # What pydantic raises, too, about an answer that is none.
            raise HonchoFailed("Honcho sent an answer that cannot be understood") from error


def _sentence(error: Any) -> str:
    status = getattr(error, "status_code", None) or getattr(error, "status", None) or 0
    if status in (401, 403):
        return "Honcho refused the key in HONCHO_API_KEY; run `toolcrib setup honcho`"
    if status == 402:
        return "the Honcho account has no credit left"
    if status == 429:
        return "the request limit of Honcho is reached; try again later"
    if status >= 500:
        return f"Honcho has a problem (HTTP {status}); try again later"
    if status >= 400:
        return f"Honcho did not accept the request (HTTP {status})"
    if isinstance(error.__cause__, HonchoFailed):
        return str(error.__cause__)
    if isinstance(error.__cause__, ValueError):
        return "Honcho sent an answer that cannot be understood"
    kind = type(error).__name__
    return f"Honcho did not answer within {SECONDS:g} seconds" if "Timeout" in kind else "Honcho cannot be reached"


def _context(found: Any) -> str:
    card = "\n".join(found.peer_card or [])
    return f"{card}\n{found.representation or ''}".strip()


def _peer_id(text: str) -> str:
    """A name as an id that Honcho accepts."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:100] or "user"
