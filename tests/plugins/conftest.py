"""Real plugin folders in the test's own home, and a registry with one built-in tool to load them into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from toolcrib.config.paths import Home
from toolcrib.config.settings import PluginEntry, PluginSettings, Settings
from toolcrib.core.types import Source
from toolcrib.hooks.manager import HookManager
from toolcrib.plugins.load import LoadedPlugin, load_plugins
from toolcrib.registry.registry import ToolRegistry

BUILTIN = Source("builtin", "toolcrib.tools.terminal")


class PluginHome:
    """A home with plugins, and one registry and hook manager that they are loaded into."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.registry = ToolRegistry()
        self.hooks = HookManager()
        with self.registry.loading(BUILTIN):
            self.registry.register("terminal", "terminal", {"description": "Run"}, lambda args, **_: "built in")

    def write(
        self,
        name: str,
        code: str | None = None,
        *,
        manifest: str | None = None,
        folder: Path | None = None,
        **files: str,
    ) -> Path:
        """A plugin folder; each further keyword is a module of it."""
        path = (folder or self.home / "plugins") / name
        path.mkdir(parents=True)
        (path / "plugin.yaml").write_text(manifest if manifest is not None else f"name: {name}\nversion: 1.0\n")
        if code is not None:
            (path / "__init__.py").write_text(dedent(code))
        for module, text in files.items():
            (path / f"{module}.py").write_text(dedent(text))
        return path

    def settings(
        self,
        *enabled: str,
        disabled: tuple[str, ...] = (),
        project: bool = False,
        consent: tuple[str, ...] = (),
        safe_mode: bool = False,
    ) -> Settings:
        return Settings(
            home=Home(self.home),
            safe_mode=safe_mode,
            plugins=PluginSettings(
                enabled=list(enabled),
                disabled=list(disabled),
                project=project,
                entries={name: PluginEntry(allow_tool_override=True) for name in consent},
            ),
        )

    def load(self, *enabled: str, consent: tuple[str, ...] = (), disabled: tuple[str, ...] = ()) -> list[LoadedPlugin]:
        settings = self.settings(*enabled, consent=consent, disabled=disabled)
        return load_plugins(settings, self.registry, self.hooks)

    def load_one(self, name: str, consent: tuple[str, ...] = ()) -> LoadedPlugin:
        (loaded,) = self.load(name, consent=consent)
        return loaded

    def owner(self, tool: str) -> Source | None:
        entry = self.registry.get_entry(tool)
        return entry.source if entry is not None else None


@pytest.fixture
def crib(home: Path) -> PluginHome:
    return PluginHome(home)


@pytest.fixture
def make_crib(home: Path) -> Callable[[], PluginHome]:
    return lambda: PluginHome(home)
