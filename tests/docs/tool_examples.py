"""Does what the page of a tool shows: saves its files, makes its calls, and compares what each gives.

On such a page a `python` block makes calls, and the `json` block below it is what the last of them gives. In texts `…`
stands for anything; as a key, or at the end of a list, it stands for more. The comment above a block says what happens
around it:

    <!-- file: NAME -->                     the block is a file in the folder of the session; ~/NAME is there before it
    <!-- earlier conversation: ASKED -->    the block is what was answered
    <!-- the person agrees -->              somebody is asked whether the calls may be made; also: refuses
    <!-- the person says: TEXT -->          what is answered to a question of the model
    <!-- the helper says: TEXT -->          what a helper reports
    <!-- served: NAME -->                   the block is a page of a web server on this machine, whose address is `site`
    <!-- the search service answers -->     the block is the answer of a SearXNG server to every query
    <!-- a service answers: VARIABLE/PATH --> the block is what the server at the address in VARIABLE answers there;
                                            `, with KEY and KEY` sets these variables to keys, and `, logged in to
                                            NAME` stores a login at that service
    <!-- a terminal shows: COMMAND -->      the block is what the front end's latest terminal, term-1 and so on, shows

What a server answers may name the server itself, as http://127.0.0.1:8080; a `base64` block is not text.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.docs_blocks import Block, PageError
from tests.web.sites import serve
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.context import FrontEndTerminal
from toolcrib.core.models import ModelRequest
from toolcrib.providers.scripted import ScriptedProvider

MORE = "…"
SHOWN_SITE = "http://127.0.0.1:8080"
"""How pages write the address of the server on this machine."""
CALL_SECONDS = 30.0
MARKS = (
    "",
    "file",
    "earlier conversation",
    "the person agrees",
    "the person refuses",
    "the person says",
    "the helper says",
    "served",
    "the search service answers",
    "a service answers",
    "a terminal shows",
)
LOGINS = {
    "spotify": {
        "server": "spotify",
        "url": "https://accounts.spotify.com",
        "tokens": {"access_token": "token-for-this-page"},
    }
}
TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json", ".txt": "text/plain; charset=utf-8"}


class People:
    """Everybody around a session: who is asked, who answers, who helps."""

    def __init__(self) -> None:
        self.block = Block("", "", 0)
        self.asked = 0

    async def ask(self, *about: Any) -> Any:
        """As approver with a request, as asker with context, question and choices."""
        if not isinstance(about[0], ApprovalRequest):
            return self._said("the person says")
        self.asked += 1
        return ApprovalAnswer(choice="once" if self.block.mark == "the person agrees" else "deny", decided_by="user")

    def report(self, _request: ModelRequest) -> str:
        return self._said("the helper says")

    def _said(self, mark: str) -> str:
        if self.block.mark != mark:
            raise PageError(f"line {self.block.line}: nobody says anything; add <!-- {mark}: … -->")
        return self.block.value


class ShownTerminals:
    """The terminals of a front end, with what each shows."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[FrontEndTerminal, str]] = {}

    def show(self, command: str, text: str) -> None:
        id = f"term-{len(self._shown) + 1}"
        self._shown[id] = (FrontEndTerminal(id, command, is_running=True), text)

    def of_session(self, session_id: str) -> list[FrontEndTerminal]:
        return [terminal for terminal, _ in self._shown.values()]

    async def read(self, session_id: str, process_id: str) -> str:
        return self._shown[process_id][1]

    async def close(self, session_id: str, process_id: str) -> None:
        del self._shown[process_id]


class ToolPage:
    """One session that makes the calls of a page, in a home and a folder of its own."""

    def __init__(self, user: Path) -> None:
        self._user = user
        self._folder = user / "project"
        self._folder.mkdir(parents=True)
        self._people = People()
        self._terminals = ShownTerminals()
        self._names: dict[str, Any] = {}
        self._given: Any = None

    async def follow(self, blocks: list[Block]) -> None:
        """Raises PageError, naming the line, at the first block that does not do what the page says."""
        for block in blocks:
            if block.mark == "file" and block.value.startswith("~/"):
                self._save(block, self._user / block.value[2:])
        with serve() as site, pytest.MonkeyPatch.context() as patch:
            self._site, self._patch, self._names["site"] = site, patch, site.address
            await self._follow_in_session(blocks)

    async def _follow_in_session(self, blocks: list[Block]) -> None:
        provider = ScriptedProvider(otherwise=self._people.report)
        home = self._user / ".toolcrib"
        options: dict[str, Any] = {"approver": self._people, "asker": self._people, "workspace": self._folder}
        async with (
            AgentHost(home=home, model=provider, **options) as host,
            Agent(host=host, model=provider, toolsets=["all"], cwd=self._folder) as agent,
        ):
            for number, block in enumerate(blocks):
                await self._do(block, agent, f"call_{number}")

    async def _do(self, block: Block, agent: Agent, call_id: str) -> None:
        self._people.block = block
        if block.mark == "file":
            if not block.value.startswith("~/"):
                self._save(block, self._folder / block.value)
        elif block.mark == "served":
            kind = TYPES[Path(block.value).suffix]
            self._site.pages[f"/{block.value}"] = (200, {"content-type": kind}, block.body.encode())
        elif block.mark == "the search service answers":
            self._site.pages["/search"] = (200, {"content-type": "application/json"}, block.body.encode())
            self._patch.setenv("SEARXNG_URL", self._site.address)
        elif block.mark == "a service answers":
            where, _, service = block.value.partition(", logged in to ")
            where, _, keys = where.partition(", with ")
            variable, _, path = where.partition("/")
            for key in filter(None, keys.split(" and ")):
                self._patch.setenv(key, "key-for-this-page")
            if service:
                login = Block("json", json.dumps(LOGINS[service]), block.line)
                self._save(login, self._user / ".toolcrib" / "logins" / f"{service}.json")
            if block.language == "base64":
                answer = ("application/octet-stream", base64.b64decode(block.body))
            else:
                answer = ("application/json", block.body.replace(SHOWN_SITE, self._site.address).encode())
            self._site.pages[f"/{path}"] = (200, {"content-type": answer[0]}, answer[1])
            self._patch.setenv(variable, self._site.address)
        elif block.mark == "a terminal shows":
            agent.host.runtime.services.provide("front_end_terminals", self._terminals)
            self._terminals.show(block.value, block.body)
        elif block.mark == "earlier conversation":
            model = ScriptedProvider([block.body.strip()])
            async with Agent(host=agent.host, model=model, toolsets=[]) as earlier:
                await earlier.run(block.value)
        elif block.language == "python":
            await self._make_calls(block, agent, call_id)
        elif block.language == "json":
            self._compare(block)
        else:
            raise PageError(f"line {block.line}: nobody knows what to do with this {block.language!r} block")

    def _save(self, block: Block, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.body, encoding="utf-8")

    async def _make_calls(self, block: Block, agent: Agent, call_id: str) -> None:
        runtime, loop = agent.host.runtime, asyncio.get_running_loop()
        offered = frozenset(runtime.registry.get_all_tool_names())
        around = {"session_id": agent.session_id, "call_id": call_id, "cwd": agent.cwd, "allowed_tools": offered}

        def tool(name: str) -> Callable[..., Any]:
            def call(**arguments: Any) -> Any:
                work = runtime.call(name, arguments, ctx=runtime.context(tool_name=name, **around))
                result = asyncio.run_coroutine_threadsafe(work, loop).result(CALL_SECONDS)
                self._given = json.loads(result.text)
                return self._given

            return call

        asked = self._people.asked
        names = {name: tool(name) for name in offered}
        await asyncio.to_thread(exec, compile(block.body, "page", "exec"), names | self._names, self._names)
        if (self._people.asked > asked) != (block.mark in ("the person agrees", "the person refuses")):
            how = "is asked, and the page does not say so" if self._people.asked > asked else "is not asked"
            raise PageError(f"line {block.line}: the person {how}")

    def _compare(self, block: Block) -> None:
        shown = _as_at_home(self._given, str(self._user))
        shown = json.loads(json.dumps(shown).replace(self._site.address, SHOWN_SITE))
        if not fits(json.loads(block.body), shown):
            raise PageError(f"line {block.line}: the answer is\n{json.dumps(shown, ensure_ascii=False, indent=2)}")


def fits(expected: Any, given: Any) -> bool:
    """Equal, where `…` in a text stands for any text, and as a key or last item for more."""
    if isinstance(expected, str):
        if expected == MORE:
            return True
        pattern = ".*?".join(re.escape(part) for part in expected.split(MORE))
        return isinstance(given, str) and re.fullmatch(pattern, given, re.DOTALL) is not None
    if isinstance(expected, dict) and isinstance(given, dict):
        named = {key: value for key, value in expected.items() if key != MORE}
        if not (named.keys() <= given.keys() if MORE in expected else named.keys() == given.keys()):
            return False
        return all(fits(value, given[key]) for key, value in named.items())
    if isinstance(expected, list) and isinstance(given, list):
        more = expected[-1:] == [MORE]
        named_items = expected[:-1] if more else expected
        if len(named_items) > len(given) or (not more and len(named_items) < len(given)):
            return False
        return all(map(fits, named_items, given))
    return type(expected) is type(given) and bool(expected == given)


def _as_at_home(value: Any, user: str) -> Any:
    """With the home of somebody called "you", as pages show it."""
    return json.loads(json.dumps(value).replace(json.dumps(user)[1:-1], "/home/you"))
