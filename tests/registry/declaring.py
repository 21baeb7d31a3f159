"""How the tests of this folder declare a tool whose details do not matter."""

from typing import Any

from toolcrib.registry.registry import ToolRegistry


def schema(description: str = "Says ok.") -> dict[str, Any]:
    return {"description": description, "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}


def ok(args: dict[str, Any], **kwargs: Any) -> str:
    return '{"ok": true}'


def declare(registry: ToolRegistry, name: str, toolset: str = "some", **options: Any) -> None:
    registry.register(name=name, toolset=toolset, **{"schema": schema(), "handler": ok, **options})
