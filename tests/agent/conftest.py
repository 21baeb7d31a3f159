"""Agents with a scripted model and tools of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.core.models import Provider
from toolcrib.providers.scripted import ScriptedProvider, Step
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore

MakeAgent = Callable[..., Agent]


@pytest.fixture
def store() -> SessionStore:
    return SessionStore.in_memory()


@pytest.fixture
def make_agent(runtime: Runtime, store: SessionStore) -> MakeAgent:
    """An agent over the fixture `runtime`, whose tools are those that the test adds to it."""

    def make(*steps: Step, model: Provider | None = None, **options: Any) -> Agent:
        provider = model or ScriptedProvider(steps)
        host = options.pop("host", None) or AgentHost(
            runtime=options.pop("runtime", runtime), store=options.pop("store", store), model=provider
        )
        options.setdefault("toolsets", ["test"] if host.runtime.registry.get_tool_names_for_toolset("test") else [])
        return Agent(host=host, model=provider, **options)

    return make
