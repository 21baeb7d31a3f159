"""Looking at what a scripted model was asked."""

from __future__ import annotations

from toolcrib.agent.agent import Agent
from toolcrib.core.models import ModelRequest
from toolcrib.providers.scripted import ScriptedProvider


def requests_of(agent: Agent) -> list[ModelRequest]:
    provider = agent.provider
    assert isinstance(provider, ScriptedProvider)
    return provider.requests
