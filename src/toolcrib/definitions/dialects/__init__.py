"""Renders canonical definitions into the format that each provider accepts."""

from toolcrib.core.models import Dialect
from toolcrib.definitions.dialects.render import Rendered, SkippedTool, render

__all__ = ["Dialect", "Rendered", "SkippedTool", "render"]
