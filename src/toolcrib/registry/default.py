"""The one default registry, which `registry.register(...)` in a tool file fills: declarations, no live state."""

from toolcrib.registry.registry import ToolRegistry

registry = ToolRegistry()
