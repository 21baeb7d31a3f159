"""One canonical definition, rendered into what each provider accepts."""

from toolcrib.core.models import Dialect
from toolcrib.definitions.dialects.render import Rendered, SetAside, render

__all__ = ["Dialect", "Rendered", "SetAside", "render"]
