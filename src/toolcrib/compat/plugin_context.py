"""`PluginContext` as callers of the reference system make one themselves: from a manifest and a manager."""

from __future__ import annotations

from typing import Any

from toolcrib.compat.plugin_manager import PluginManager
from toolcrib.compat.plugin_records import PluginManifest
from toolcrib.config.paths import find_home
from toolcrib.core.types import Source
from toolcrib.plugins import context
from toolcrib.plugins.manifest import PluginManifest as OurManifest
from toolcrib.registry.collisions import LoadScope
from toolcrib.registry.default import registry


class _AnyContext(type):
    """Makes what a plugin receives from our loader an instance of the class under the reference name too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, context.PluginContext)


class PluginContext(context.PluginContext, metaclass=_AnyContext):
    """The runtime as one plugin sees it; hooks take effect at once, since no loader finishes this context."""

    def __init__(self, manifest: PluginManifest | OurManifest, manager: PluginManager) -> None:
        source = Source("plugin", manifest.name)
        ours = manifest if isinstance(manifest, OurManifest) else OurManifest(name=manifest.name)
        super().__init__(ours, LoadScope(source, registry), registry, manager.hooks, find_home())
        # Shown as it was given; only the name counts for us.
        self.manifest: Any = manifest

    def _add(self, hooked: context._Hooked) -> None:
        self._require_callable(f"{hooked.table} {hooked.name!r}", hooked.callback)
        self._apply(hooked)
