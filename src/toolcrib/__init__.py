"""toolcrib: the tools runtime for LLM agents.

Names load on first use, so that `import toolcrib` costs nothing.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolcrib.version import __version__

if TYPE_CHECKING:
    from toolcrib.agent.agent import Agent
    from toolcrib.agent.host import AgentHost
    from toolcrib.api import get_tool_definitions, handle_function_call
    from toolcrib.core.context import ToolContext
    from toolcrib.core.types import Effect, ToolResult
    from toolcrib.registry.decorator import tool
    from toolcrib.registry.default import registry
    from toolcrib.runtime import Runtime

__all__ = [
    "Agent",
    "AgentHost",
    "Effect",
    "Runtime",
    "ToolContext",
    "ToolResult",
    "__version__",
    "get_tool_definitions",
    "handle_function_call",
    "registry",
    "tool",
]

_HOMES = {
    "Agent": "toolcrib.agent.agent",
    "AgentHost": "toolcrib.agent.host",
    "Effect": "toolcrib.core.types",
    "Runtime": "toolcrib.runtime",
    "ToolContext": "toolcrib.core.context",
    "ToolResult": "toolcrib.core.types",
    "get_tool_definitions": "toolcrib.api",
    "handle_function_call": "toolcrib.api",
    "registry": "toolcrib.registry",
    "tool": "toolcrib.registry.decorator",
}

_RENAMED = {"Workshop": "AgentHost"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"toolcrib.{name} is now toolcrib.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    module = import_module(home)
    value = module if name == "registry" else getattr(module, name)
    globals()[name] = value
    return value
