"""Runtimes that look at images, with a scripted model server for eyes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.media.services import Asking, OpenMedia
from tests.web.sites import Site, serve
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing.model_server import ScriptedModelServer
from toolcrib.tools.vision import vision_analyze  # noqa: F401 - registers the tools
from toolcrib.web.service import WebService

MODEL_KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "GEMINI_API_KEY")
OpenVision = Callable[..., Runtime]


@pytest.fixture(autouse=True)
def no_model_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's real keys are used."""
    for name in MODEL_KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as one:
        yield one


@pytest.fixture
def eyes() -> Iterator[ScriptedModelServer]:
    """A model server that always sees a red and a blue half."""
    with ScriptedModelServer(otherwise="Left red, right blue.") as server:
        yield server


@pytest.fixture
def open_vision(
    make_runtime: Callable[..., Runtime], site: Site, eyes: ScriptedModelServer, tmp_path: Path
) -> Iterator[OpenVision]:
    """Makes runtimes in a workspace, whose `auxiliary.vision` is the model server unless the test says otherwise."""

    async def resolve(host: str, _port: int) -> Sequence[str]:
        if host.endswith(".example"):
            return ["127.0.0.1"]
        raise OSError("no such host")

    def make(*, security: dict[str, Any] | None = None, **sections: Any) -> Runtime:
        options = {key: sections.pop(key) for key in ("approver", "entry_point", "yolo") if key in sections}
        config = {
            "providers": {"eyes": {"base_url": eyes.base_url, "model": "look-1"}},
            "auxiliary": {"vision": "eyes/look-1"},
            "web": {"ports": [80, 443, site.port]},
            "security": {"allow_private_urls": True, **(security or {})},
            "vision": {"ocr": False},
            # A service without a key: loading the recognition of this machine takes long.
            "stt": {"provider": "openai"},
            **sections,
        }
        workspace = tmp_path / "work"
        workspace.mkdir(exist_ok=True)
        registry = ToolRegistry(parent=default_registry)
        runtime = make_runtime(json.dumps(config), registry=registry, workspace=workspace, **options)
        service = WebService(runtime.settings, runtime.services, resolver=resolve)
        runtime.services.provide("web", service)
        closing.append(service)
        return runtime

    closing: list[WebService] = []
    yield make
    for service in closing:
        service.close()


@pytest.fixture
def asking() -> Asking:
    return Asking()


@pytest.fixture
def open_media(make_runtime: Callable[..., Runtime], site: Site, tmp_path: Path, asking: Asking) -> OpenMedia:
    """Makes runtimes in a workspace with these sections of the config; they may reach the site."""

    def make(**sections: Any) -> Runtime:
        config = {
            "web": {"ports": [80, 443, site.port]},
            "security": {"allow_private_urls": True},
            **sections,
        }
        workspace = tmp_path / "work"
        workspace.mkdir(exist_ok=True)
        registry = ToolRegistry(parent=default_registry)
        return make_runtime(json.dumps(config), registry=registry, workspace=workspace, approver=asking)

    return make
