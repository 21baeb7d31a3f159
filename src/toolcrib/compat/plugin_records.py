"""What is known about a plugin, in the fields that callers of the reference system read."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from toolcrib.core.attempt import attempt
from toolcrib.core.types import JsonObject
from toolcrib.plugins import load
from toolcrib.plugins.manifest import MANIFEST_NAMES, read_manifest
from toolcrib.plugins.modules import slug_of


@dataclass
class PluginManifest:
    """What a plugin says about itself, and where it was found."""

    name: str
    version: str = ""
    description: str = ""
    author: str = ""
    requires_env: list[Any] = field(default_factory=list)
    provides_tools: list[str] = field(default_factory=list)
    provides_hooks: list[str] = field(default_factory=list)
    source: str = ""
    path: str | None = None
    kind: str = "standalone"
    key: str = ""


@dataclass
class LoadedPlugin:
    """What became of one plugin: what it registered, or why it is not there."""

    manifest: PluginManifest
    module: ModuleType | None = None
    tools_registered: list[str] = field(default_factory=list)
    hooks_registered: list[str] = field(default_factory=list)
    middleware_registered: list[str] = field(default_factory=list)
    commands_registered: list[str] = field(default_factory=list)
    enabled: bool = False
    error: str | None = None
    deferred: bool = False

    def as_dict(self) -> JsonObject:
        """The line of this plugin in `PluginManager.list_plugins()`."""
        return {
            "name": self.manifest.name,
            "key": self.manifest.key,
            "kind": self.manifest.kind,
            "version": self.manifest.version,
            "description": self.manifest.description,
            "source": self.manifest.source,
            "path": self.manifest.path,
            "enabled": self.enabled,
            "tools": len(self.tools_registered),
            "hooks": len(self.hooks_registered),
            "middleware": len(self.middleware_registered),
            "commands": len(self.commands_registered),
            "error": self.error,
        }


def record_of(plugin: load.LoadedPlugin) -> LoadedPlugin:
    """One of our plugins in these fields."""
    return LoadedPlugin(
        manifest=_manifest_of(plugin),
        module=sys.modules.get(f"hermes_plugins.{slug_of(plugin.name, set())}"),
        tools_registered=list(plugin.tools),
        hooks_registered=list(plugin.hooks),
        middleware_registered=list(plugin.middleware),
        commands_registered=list(plugin.commands),
        enabled=not plugin.problem,
        error=plugin.problem or None,
    )


def _manifest_of(plugin: load.LoadedPlugin) -> PluginManifest:
    manifest = PluginManifest(
        name=plugin.name, version=plugin.version, source=plugin.origin, path=plugin.path or None, key=plugin.name
    )
    files = (Path(plugin.path) / name for name in MANIFEST_NAMES) if plugin.path else ()
    file = next((file for file in files if file.is_file()), None)
    # An installed package has no manifest file; one that cannot be read is the problem that the plugin itself shows.
    read, _ = attempt(read_manifest, file) if file is not None else (None, None)
    if read is not None:
        written = read[0]
        manifest.description, manifest.author, manifest.kind = written.description, written.author, written.kind
        manifest.requires_env = list(written.requires_env)
        manifest.provides_tools, manifest.provides_hooks = list(written.provides_tools), list(written.provides_hooks)
    return manifest
