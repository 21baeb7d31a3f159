"""Reads a plugin's manifest, its `plugin.yaml`.

Unknown keys are ignored, because plugins are written for other hosts too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from toolcrib.config.yaml_text import Document, parse
from toolcrib.core.errors import ConfigError, PluginError
from toolcrib.core.types import JsonObject

MANIFEST_NAMES = ("plugin.yaml", "plugin.yml")
CHECK_COMMAND = "toolcrib plugins list"
BOM = "\ufeff"

PluginKind = Literal["standalone", "backend", "exclusive", "platform", "model-provider"]


class PluginManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one plugin. Plugins see it as `ctx.manifest`."""

    name: str
    version: str = ""
    description: str = ""
    author: str = ""
    kind: PluginKind = "standalone"
    requires_env: list[str | JsonObject] = msgspec.field(default_factory=list)
    """As written: names of variables, or objects with a `name` and texts for the setup wizard."""
    provides_tools: list[str] = msgspec.field(default_factory=list)
    provides_hooks: list[str] = msgspec.field(default_factory=list)
    source: str = ""
    """Where the plugin was found: user, project or entry point."""
    path: str = ""
    """Its folder; for an installed package its module and attribute."""

    @property
    def variables(self) -> dict[str, JsonObject]:
        """The details of each variable that the plugin needs, by name."""
        return {
            item if isinstance(item, str) else item["name"]: {} if isinstance(item, str) else item
            for item in self.requires_env
        }


def read_manifest(file: Path) -> tuple[PluginManifest, list[str]]:
    """The manifest and its problems, one sentence each; raises PluginError if it is unusable."""
    try:
        text = file.read_bytes().decode("utf-8").removeprefix(BOM)
    except UnicodeDecodeError as error:
        raise PluginError(f"{file}: the manifest is not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise PluginError(f"{file}: the manifest cannot be read ({error.strerror}); check its permissions") from error
    try:
        document = parse(text, str(file), CHECK_COMMAND)
    except ConfigError as error:
        raise PluginError(str(error)) from error
    if document.data is not None and not isinstance(document.data, dict):
        raise PluginError(f"{file}: the manifest has no keys; write at least `name: {file.parent.name}`")
    return _Reading(file, document).manifest()


class _Reading:
    """Converts one manifest from YAML to values and collects its problems."""

    def __init__(self, file: Path, document: Document) -> None:
        self._file = file
        self._document = document
        self._data: dict[Any, Any] = document.data or {}
        self._problems = [f"{file}:{line}: {message}" for line, message in document.problems]
        # The text as written in the file: a version 1.10 must not become the number 1.1.
        pairs = document.root.value if document.root is not None and self._data else []
        self._texts = {
            key.value: value.value
            for key, value in pairs
            if isinstance(key.value, str) and isinstance(value.value, str)
        }

    def manifest(self) -> tuple[PluginManifest, list[str]]:
        manifest = PluginManifest(
            name=self._text("name") or self._file.parent.name,
            version=self._text("version"),
            description=self._text("description"),
            author=self._text("author"),
            kind=self._kind(),
            requires_env=self._requires_env(),
            provides_tools=self._names("provides_tools"),
            provides_hooks=self._names("provides_hooks"),
        )
        return manifest, self._problems

    def _text(self, key: str) -> str:
        value = self._data.get(key)
        if value is None:
            return ""
        if isinstance(value, (dict, list)):
            self._odd(key, f"{key!r} is a {_kind_of(value)}; write text")
            return ""
        return str(self._texts.get(key, value)).strip()

    def _kind(self) -> PluginKind:
        written = self._text("kind")
        kinds: tuple[PluginKind, ...] = get_args(PluginKind)
        for kind in kinds:
            if written == kind:
                return kind
        if written:
            self._odd("kind", f"kind {written!r} is treated as 'standalone'; known kinds are {', '.join(kinds)}")
        return "standalone"

    def _items(self, key: str) -> list[Any]:
        value = self._data.get(key)
        if value is None:
            return []
        if isinstance(value, dict):
            return [{**(about if isinstance(about, dict) else {}), "name": name} for name, about in value.items()]
        return value if isinstance(value, list) else [value]

    def _names(self, key: str) -> list[str]:
        return [item if isinstance(item, str) else item["name"] for item in self._named(key)]

    def _requires_env(self) -> list[str | JsonObject]:
        return self._named("requires_env")

    def _named(self, key: str) -> list[str | JsonObject]:
        """The items of a list that are names, or objects with a name; anything else is reported and ignored."""
        named: list[str | JsonObject] = []
        for item in self._items(key):
            name = item.get("name") if isinstance(item, dict) else item
            if isinstance(name, str) and name:
                named.append(item)
            else:
                self._odd(key, f"{key!r} has an item without a name, {item!r}; write the name as text")
        return named

    def _odd(self, key: str, message: str) -> None:
        self._problems.append(f"{self._file}:{self._document.line_of((key,))}: {message}")


def _kind_of(value: object) -> str:
    return "mapping" if isinstance(value, dict) else "list"
