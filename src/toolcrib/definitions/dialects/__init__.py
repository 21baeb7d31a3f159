"""One canonical definition, rendered into what each provider accepts."""

from toolcrib.definitions.dialects.render import Dialect, Rendered, SetAside, render

__all__ = ["Dialect", "Rendered", "SetAside", "render"]
