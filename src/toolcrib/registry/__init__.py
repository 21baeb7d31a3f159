"""The tool registry: declares, finds and checks tools.

The module forwards to the default registry, so `registry.register(...)` works both after `from toolcrib import
registry` and after `from toolcrib.registry import registry`.
"""

from typing import Any

from toolcrib.core.types import ToolEntry
from toolcrib.registry.default import registry
from toolcrib.registry.discovery import discover_builtin_tools
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import tool_error, tool_result

__all__ = [
    "ToolEntry",
    "ToolRegistry",
    "deregister",
    "discover_builtin_tools",
    "dispatch",
    "register",
    "registry",
    "tool_error",
    "tool_result",
]

# By name, because a submodule of the same name would take precedence over `__getattr__`.
entries = registry.entries
register = registry.register
deregister = registry.deregister
dispatch = registry.dispatch


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(registry, name)
