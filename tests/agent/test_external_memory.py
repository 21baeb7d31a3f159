"""Memories of vendors: what a conversation gets from one, what it gives to it, and that it never suffers from it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.media.services import KEY
from tests.web.sites import Page, Site, SiteRequest, serve
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.core.errors import ToolcribError
from toolcrib.plugins.context import Declaration
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore

JSON = {"content-type": "application/json"}
Open = Callable[..., AgentHost]


class Notebook:
    """A memory as a plugin's author writes one."""

    name = "notebook"

    def __init__(self) -> None:
        self.recalls: Any = "- The user's cat is called Tilda."
        self.remembered: list[tuple[str, str]] = []
        self.sessions: list[str] = []
        self.ended: list[list[dict[str, Any]]] = []
        self.is_shut_down = False
        self.changed = threading.Condition()

    def is_available(self) -> bool:
        return True

    def initialize(self, session_id: str, **_: Any) -> None:
        self.sessions.append(session_id)

    def system_prompt_block(self) -> str:
        return "You keep a notebook."

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [{"name": "notebook_read", "description": "Read it", "parameters": {"type": "object", "properties": {}}}]

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        if callable(self.recalls):
            return str(self.recalls())
        return str(self.recalls)

    def sync_turn(self, user_content: str, assistant_content: str, *, session_id: str = "", **_: Any) -> None:
        with self.changed:
            self.remembered.append((user_content, assistant_content))
            self.changed.notify_all()

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **_: Any) -> str:
        if args.get("fail"):
            raise ToolcribError("the ink is dry")
        return json.dumps({"success": True, "result": "Tilda"})

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        self.ended.append(messages)

    def shutdown(self) -> None:
        self.is_shut_down = True

    def wait(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.remembered) >= count, 10)


def as_plugin(provider: Any) -> Any:
    declaration = Declaration("memory_provider", "notebook", (provider,), {}, None)  # type: ignore[arg-type]
    return SimpleNamespace(declarations=(declaration,))


@pytest.fixture
def open_host(make_runtime: Callable[..., Runtime]) -> Open:
    def make(*steps: Any, notebook: Notebook | None = None, **memory: Any) -> AgentHost:
        runtime = make_runtime(json.dumps({"memory": memory, "security": {"allow_private_urls": True}}))
        if notebook is not None:
            runtime.load()
            runtime.loaded_plugins.append(as_plugin(notebook))
        return AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=ScriptedProvider(steps))

    return make


def agent_of(host: AgentHost, **options: Any) -> Agent:
    return Agent(host=host, model=host.provider_for()[0], toolsets=["notebook"], **options)


def asked(host: AgentHost, number: int = 0) -> str:
    model: Any = host.provider_for()[0]
    return json.dumps([str(message.text) for message in model.requests[number].messages])


async def test_a_question_gets_what_the_memory_knows_and_the_memory_gets_the_turn(open_host: Open) -> None:
    """Recall comes with this very question, marked as data; the exchange is remembered behind its back."""
    notebook = Notebook()
    host = open_host("It is Tilda.", "Yes.", notebook=notebook, provider="notebook")
    async with agent_of(host) as agent:
        assert "You keep a notebook." in agent.system_prompt
        result = await agent.run("What is my cat called?")
        assert notebook.wait(1)
        await agent.run("Are you sure?")
        assert notebook.wait(2)
    await host.close()

    assert result.answer == "It is Tilda."
    assert "untrusted_tool_result source=" in asked(host)
    assert "cat is called Tilda" in asked(host)
    # What the conversation contains already is not told again.
    assert asked(host, 1).count("cat is called Tilda") == 1
    assert notebook.remembered == [("What is my cat called?", "It is Tilda."), ("Are you sure?", "Yes.")]
    assert notebook.sessions == [agent.session_id]
    assert [one["role"] for one in notebook.ended[0]] == ["user", "assistant", "user", "assistant"]
    assert notebook.is_shut_down


async def test_the_tools_of_a_memory_are_tools(open_host: Open) -> None:
    """The model is offered them, and a failure is an error result."""
    host = open_host(calls("notebook_read", {}), "Tilda.", notebook=Notebook(), provider="notebook")
    async with agent_of(host) as agent:
        result = await agent.run("Look it up")
        assert agent.tools == ["notebook_read"]
        failed = await host.runtime.call("notebook_read", {"fail": 1})
    await host.close()

    assert result.answer == "Tilda."
    assert "Tilda" in asked(host, 1)
    assert json.loads(failed.text) == {"error": "the ink is dry", "success": False}


class TornNotebook(Notebook):
    """Nothing can be written into it."""

    def sync_turn(self, user_content: str, assistant_content: str, *, session_id: str = "", **_: Any) -> None:
        raise OSError("the page is torn")


async def test_a_memory_that_hangs_costs_a_moment_then_nothing(open_host: Open) -> None:
    """After a few failures it is left alone for a while; every question is answered."""
    notebook, released, asked_times = TornNotebook(), threading.Event(), []

    def hang() -> str:
        asked_times.append(1)
        released.wait(30)
        return "too late"

    notebook.recalls = hang
    host = open_host(*["Answer."] * 4, notebook=notebook, provider="notebook", recall_seconds=0.2)
    async with agent_of(host) as agent:
        for _ in range(4):
            assert (await agent.run("Hello?")).answer == "Answer."
    released.set()
    await host.close()

    assert len(asked_times) < 4
    assert "too late" not in asked(host, 3)


async def test_secrets_are_not_remembered(open_host: Open) -> None:
    """What looks like a key does not leave this machine."""
    notebook = Notebook()
    host = open_host("Noted.", notebook=notebook, provider="notebook")
    async with agent_of(host) as agent:
        await agent.run("My key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD, keep it")
        assert notebook.wait(1)
    await host.close()

    assert "abcdefghijklmnop" not in str(notebook.remembered)


PLUGIN = """
import json
import sys
import threading
from agent.memory_provider import MemoryProvider

heard = []
changed = threading.Condition()


def hear(what, *about):
    with changed:
        heard.append([what, *about])
        changed.notify_all()


class Diary(MemoryProvider):
    @property
    def name(self):
        return "diary"

    def is_available(self):
        return True

    def initialize(self, session_id, **kwargs):
        hear("initialize", session_id, sorted(kwargs))

    def system_prompt_block(self):
        return "There is a diary."

    def get_tool_schemas(self):
        return [{"name": "diary_read", "description": "Read", "parameters": {"type": "object", "properties": {}}}]

    def handle_tool_call(self, tool_name, args, **kwargs):
        return json.dumps({"read": tool_name})

    def on_turn_start(self, turn_number, message, **kwargs):
        hear("on_turn_start", turn_number, message)

    def prefetch(self, query, *, session_id=""):
        return "- It rained."

    def queue_prefetch(self, query, *, session_id=""):
        hear("queue_prefetch", query)

    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None):
        hear("sync_turn", user_content, assistant_content)

    def on_session_end(self, messages):
        hear("on_session_end", len(messages))

    def on_session_switch(self, new_session_id, *, parent_session_id="", reset=False, rewound=False, **kwargs):
        hear("on_session_switch", new_session_id, parent_session_id, reset, rewound)

    def on_pre_compress(self, messages):
        hear("on_pre_compress", len(messages))
        return "the umbrella is red"

    def on_delegation(self, task, result, *, child_session_id="", **kwargs):
        hear("on_delegation", task, result)

    def on_memory_write(self, action, target, content, metadata=None):
        hear("on_memory_write", action, target, content)

    def shutdown(self):
        hear("shutdown")


def register(ctx):
    ctx.register_memory_provider(Diary())
"""


@pytest.fixture
def diary(make_runtime: Callable[..., Runtime], tmp_path: Path) -> Callable[..., AgentHost]:
    """Hosts with a plugin in their home that knows nothing but the names of the reference."""

    def make(*steps: Any, **config: Any) -> AgentHost:
        sections = {"memory": {"provider": "diary"}, "plugins": {"enabled": ["diary"]}, **config}
        runtime = make_runtime(json.dumps(sections), registry=ToolRegistry(parent=default_registry))
        folder = runtime.settings.home.plugins_dir / "diary"
        folder.mkdir(parents=True)
        (folder / "plugin.yaml").write_text("name: diary\nversion: 1.0.0\ndescription: A diary\n")
        (folder / "__init__.py").write_text(PLUGIN)
        runtime.load()
        return AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=ScriptedProvider(steps))

    return make


def heard_by(host: AgentHost) -> list[list[Any]]:
    (plugin,) = host.runtime.loaded_plugins
    provider = plugin.declarations[0].arguments[0]
    heard: list[list[Any]] = sys.modules[type(provider).__module__].heard
    return heard


async def test_a_plugin_of_the_reference_hears_everything_that_it_may(diary: Callable[..., AgentHost]) -> None:
    """Written from its interface alone, it runs unmodified; each of its methods is called at its moment."""
    remember = calls("memory", {"target": "user", "action": "add", "content": "Likes rain"})
    host = diary(remember, "Noted.", calls("delegate_task", {"goal": "Count drops"}), "Nine.", "There are nine.")
    async with Agent(host=host, model=host.provider_for()[0], toolsets=["memory", "delegation", "diary"]) as agent:
        assert "There is a diary." in agent.system_prompt
        assert "diary_read" in agent.tools
        await agent.run("I like rain")
        await agent.run("Count the drops")
        agent.undo()
        copy = agent.branch()
        await copy.close()
    session = agent.session_id
    await host.close()

    heard = heard_by(host)
    assert "It rained." in asked(host)
    assert heard[0] == ["initialize", session, ["hermes_home", "platform"]]
    assert [one for one in heard if one[0] == "on_turn_start"] == [
        ["on_turn_start", 1, "I like rain"],
        ["on_turn_start", 2, "Count the drops"],
    ]
    assert ["on_memory_write", "add", "user", "Likes rain"] in heard
    assert ["sync_turn", "I like rain", "Noted."] in heard
    assert ["queue_prefetch", "I like rain"] in heard
    assert ["on_delegation", "Count drops", "Nine."] in heard
    assert ["on_session_switch", session, session, False, True] in heard
    assert ["on_session_switch", copy.session_id, session, False, False] in heard
    assert ["on_session_end", 3] in heard
    assert heard[-1] == ["shutdown"]


async def test_what_a_memory_wants_to_keep_is_in_the_summary(diary: Callable[..., AgentHost]) -> None:
    """It is asked before older messages are replaced."""
    host = diary(*["Answer."] * 6, "The umbrella is red.", compression={"keep_messages": 2})
    async with Agent(host=host, model=host.provider_for()[0], toolsets=[]) as agent:
        for _ in range(6):
            await agent.run("Tell me about the weather")
        assert await agent.compress() is not None
    await host.close()

    assert "worth keeping: the umbrella is red" in asked(host, 6)
    assert ["on_pre_compress", 12] in heard_by(host)


async def test_a_new_conversation_is_told_with_the_one_before(diary: Callable[..., AgentHost]) -> None:
    """As `/new` in the chat fires it."""
    host = diary("Hello.")
    async with Agent(host=host, model=host.provider_for()[0], toolsets=[]) as agent:
        await agent.run("Hi")
        host.runtime.hooks.invoke("on_session_reset", old_session_id=agent.session_id, new_session_id="next")
    await host.close()

    assert ["on_session_switch", "next", agent.session_id, True, False] in heard_by(host)


@pytest.mark.parametrize(
    ("provider", "sentence"),
    [("honcoh", "honcho"), ("mem0", "MEM0_API_KEY is not set"), ("honcho", "HONCHO_API_KEY is not set")],
)
async def test_a_memory_that_cannot_be_used_is_named_and_left_out(
    open_host: Open, provider: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MEM0_API_KEY", "MEM0_BASE_URL", "HONCHO_API_KEY", "HONCHO_URL"):
        monkeypatch.delenv(name, raising=False)
    host = open_host("Hello.", provider=provider)
    async with Agent(host=host, model=host.provider_for()[0], toolsets=[]) as agent:
        assert (await agent.run("Hi")).answer == "Hello."
        assert sentence in agent.warnings[0]
    await host.close()


async def test_nothing_happens_without_a_provider(open_host: Open) -> None:
    """Nothing is registered, and nothing is sent."""
    host = open_host("Hello.", notebook=Notebook())
    async with Agent(host=host, model=host.provider_for()[0], toolsets=[]) as agent:
        await agent.run("Hi")
        assert host.runtime.hooks.is_empty
    await host.close()


# The two that come with toolcrib, against servers by their public APIs


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as one:
        yield one


NOW = "2026-11-01T00:00:00Z"
HONCHO_PATHS = {
    "/v3/workspaces": {"id": "toolcrib", "created_at": NOW},
    "/v3/workspaces/toolcrib/peers": {"id": "me", "workspace_id": "toolcrib", "created_at": NOW},
    "/v3/workspaces/toolcrib/peers/me/context": {
        "peer_id": "me",
        "target_id": "me",
        "representation": "The user has a cat called Tilda.",
        "peer_card": ["Likes cats"],
    },
    "/v3/workspaces/toolcrib/peers/me/card": {"peer_card": ["Likes cats"]},
    "/v3/workspaces/toolcrib/peers/me/chat": {"content": "Tilda."},
    "/v3/workspaces/toolcrib/peers/me/search": [],
}


def honcho_server(site: Site) -> None:
    for path, answer in HONCHO_PATHS.items():
        site.pages[path] = (200, JSON, json.dumps(answer).encode())

    def any_session(asked: SiteRequest) -> Page:
        return (
            200,
            JSON,
            json.dumps(
                []
                if asked.path.endswith("/messages")
                else {"id": "s", "is_active": True, "workspace_id": "toolcrib", "created_at": NOW}
            ).encode(),
        )

    class Pages(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            return any_session if "/sessions" in key else super().get(key, default)

    site.pages = Pages(site.pages)


def mem0_server(site: Site) -> None:
    found = {"results": [{"id": "7", "memory": "The user has a cat called Tilda."}]}
    site.pages["/v3/memories/search/"] = (200, JSON, json.dumps(found).encode())
    site.pages["/v3/memories/add/"] = (200, JSON, b'{"results": []}')


VENDORS: dict[str, tuple[Callable[[Site], None], dict[str, str], str, str]] = {
    "honcho": (
        honcho_server,
        {"HONCHO_API_KEY": KEY, "HONCHO_URL": "{}", "HONCHO_USER": "me"},
        "/peers/me/context",
        "/messages",
    ),
    "mem0": (mem0_server, {"MEM0_API_KEY": KEY, "MEM0_BASE_URL": "{}"}, "/v3/memories/search/", "/v3/memories/add/"),
}


@pytest.mark.parametrize("vendor", VENDORS)
async def test_each_vendor_recalls_and_remembers(
    open_host: Open, site: Site, vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official client of Honcho, and mem0 over HTTP, by their routes, with the key."""
    prepare, variables, recall, remember = VENDORS[vendor]
    prepare(site)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(site.address))
    host = open_host("Tilda.", provider=vendor, recall_seconds=20)
    async with Agent(host=host, model=host.provider_for()[0], toolsets=[vendor]) as agent:
        result = await agent.run("What is my cat called?")
        names = agent.tools
    await host.close()

    assert result.answer == "Tilda."
    assert "cat called Tilda" in asked(host), agent.warnings
    paths = [one.path for one in site.requests]
    assert any(recall in path for path in paths)
    (sent,) = [one for one in site.requests if one.path.endswith(remember)]
    assert b"What is my cat called?" in sent.body
    assert KEY in sent.headers["authorization"]
    assert all(name.startswith(f"{vendor}_") for name in names)
