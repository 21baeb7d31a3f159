"""Shared by the provider tests: scripted servers, and providers that are closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.core.models import ModelProfile
from toolcrib.providers.openai import OpenAIChat
from toolcrib.testing.model_server import ScriptedModelServer, ServerStep

STREAMS = Path(__file__).parent / "streams"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the keys and addresses of the person who runs the tests."""
    for name in (
        *OPTIONAL_ENV_VARS,
        "OPENAI_BASE_URL",
        "ANTHROPIC_BASE_URL",
        "GITHUB_TOKEN",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedModelServer]]:
    """Starts scripted servers, which stop with the test."""
    with ExitStack() as opened:

        def start(*steps: ServerStep, **options: Any) -> ScriptedModelServer:
            return opened.enter_context(ScriptedModelServer(steps, **options))

        yield start


@pytest.fixture
async def chat() -> AsyncIterator[Callable[..., OpenAIChat]]:
    """Creates providers for an address, which are closed with the test."""
    made: list[OpenAIChat] = []

    def make(base_url: str, **options: Any) -> OpenAIChat:
        options = {"name": "test", "api_key": "sk-test", "profile": lambda _: ModelProfile(), **options}
        made.append(OpenAIChat(base_url=base_url, **options))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


@pytest.fixture
def recorded() -> Callable[[str], bytes]:
    """The bytes of a stream as a server sends it."""
    return lambda name: (STREAMS / f"{name}.sse").read_bytes()
