"""Finds plugins without running any of their code.

They come from the user's folder, from the project folder if allowed, and from installed packages. A project's plugin
replaces a user's plugin with the same name, and a folder replaces an installed package. Searching all installed
packages is slow, so this happens only for names without a folder.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.config.settings import PluginSettings, Settings
from toolcrib.core.errors import PluginError, nearest_names
from toolcrib.plugins.manifest import MANIFEST_NAMES, PluginManifest, read_manifest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger(__name__)

Origin = Literal["user", "project", "entry point", "missing"]
State = Literal["enabled", "disabled", "not enabled", "failed"]

MAX_DEPTH = 3
"""How deep below a plugin folder to look for plugins: `repository/src/plugin`."""
NOT_PLUGINS = frozenset({"__pycache__", "node_modules", "tests", "site-packages"})
PACKAGE_FILES = frozenset({"pyproject.toml", "setup.py"})

# Later ones replace earlier ones.
PROJECT_FOLDERS = (".hermes/plugins", ".toolcrib/plugins")
ENTRY_POINT_GROUPS = ("hermes_agent.plugins", "toolcrib.plugins")


class FoundPlugin(Struct, frozen=True, kw_only=True):
    """One plugin that exists, or that the config names although it does not exist (origin `missing`)."""

    manifest: PluginManifest
    origin: Origin
    state: State = "not enabled"
    path: Path | None = None
    """The plugin's folder; None for an installed package."""
    entry_point: EntryPoint | None = None
    problems: tuple[str, ...] = ()
    """What is wrong with it, one sentence each."""
    loadable: bool = True

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def description(self) -> str:
        return self.manifest.description

    @property
    def location(self) -> str:
        """Where its code is, for people: a folder, or `module:attribute` of an installed package."""
        if self.entry_point is not None:
            return self.entry_point.value
        return str(self.path or "")

    @property
    def names(self) -> frozenset[str]:
        """The names that the config may use for it: its name, or that of its folder, alone or as `category/folder`."""
        if self.path is None:
            return frozenset((self.name,))
        return frozenset((self.name, self.path.name, f"{self.path.parent.name}/{self.path.name}"))


Plugins = dict[str, FoundPlugin]


def discover_all(settings: Settings, project_folder: Path | None = None) -> list[FoundPlugin]:
    """Every plugin, sorted by name, then the unknown names in the config."""
    found = {**entry_point_plugins(), **folder_plugins(settings, project_folder)}
    known = sorted(found.values(), key=lambda plugin: plugin.name)
    wanted = _wanted(settings.plugins)
    missing = [_missing(name, found) for name in wanted if _answer(found, name) is None]
    return [replace(plugin, state=_state(plugin, settings.plugins)) for plugin in known] + missing


def find_enabled(settings: Settings, project_folder: Path | None = None) -> list[FoundPlugin]:
    """The plugins to load, in the order of the config; reads no file if the config names none."""
    wanted = _wanted(settings.plugins)
    if settings.safe_mode or not wanted:
        return []
    found = folder_plugins(settings, project_folder)
    if any(_answer(found, name) is None for name in wanted):
        found = {**entry_point_plugins(), **found}
    chosen: Plugins = {}
    for name in wanted:
        plugin = _answer(found, name) or _missing(name, found)
        if not plugin.names & set(settings.plugins.disabled):
            chosen.setdefault(plugin.name, replace(plugin, state="enabled"))
    return list(chosen.values())


def folder_plugins(settings: Settings, project_folder: Path | None = None) -> Plugins:
    """The plugins of the user's folder and, if the config allows it, of the project's folders."""
    users_folder = settings.home.plugins_dir
    found = _in_folder(users_folder, "user")
    if not settings.plugins.project:
        return found
    try:
        project = (project_folder or Path()).absolute()
    except FileNotFoundError:
        logger.warning("the folder that toolcrib was started in no longer exists; not loading the project's plugins")
        return found
    for path in (project / folder for folder in PROJECT_FOLDERS):
        if path == users_folder:
            continue
        for name, plugin in _in_folder(path, "project").items():
            if name in found:
                logger.info("plugin %r from %s replaces the one from %s", name, plugin.path, found[name].path)
            found[name] = plugin
    return found


def entry_point_plugins() -> Plugins:
    """The plugins in installed packages. Reads the metadata of all packages."""
    # Costs 20 ms to import, and most processes never look for installed plugins.
    from importlib.metadata import entry_points  # noqa: PLC0415

    found: Plugins = {}
    for group in ENTRY_POINT_GROUPS:
        for point in entry_points(group=group):
            about = point.dist.metadata.json if point.dist is not None else {}
            manifest = PluginManifest(
                name=point.name,
                version=str(about.get("version") or ""),
                description=str(about.get("summary") or ""),
                author=str(about.get("author") or ""),
                source="entry point",
                path=point.value,
            )
            found[point.name] = FoundPlugin(manifest=manifest, origin="entry point", entry_point=point)
    return found


def _in_folder(folder: Path, origin: Origin) -> Plugins:
    found: Plugins = {}
    for plugin in _plugins_below(folder, origin, MAX_DEPTH):
        first = found.get(plugin.name)
        if first is None:
            found[plugin.name] = plugin
            continue
        problem = (
            f"{plugin.path} is also named {plugin.name!r} and is ignored; change `name` in one of the two manifests"
        )
        found[plugin.name] = replace(first, problems=(*first.problems, problem))
    return found


def _plugins_below(folder: Path, origin: Origin, depth: int) -> Iterator[FoundPlugin]:
    """The plugins in the subfolders of a folder. Inside a plugin there are no others.

    A subfolder that is no plugin may be a category, such as `memory/mine`, or a repository with the plugin inside.
    """
    try:
        candidates = sorted(path for path in folder.iterdir() if _may_hold_plugins(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        logger.warning("the plugin folder %s cannot be read (%s); check its permissions", folder, error.strerror)
        return
    for path in candidates:
        plugin = _read(path, origin)
        may_be_deeper = depth > 1 and not any((path / name).exists() for name in MANIFEST_NAMES)
        inside = list(_plugins_below(path, origin, depth - 1)) if may_be_deeper and os.access(path, os.R_OK) else []
        if plugin is None or any(one.loadable for one in inside):
            yield from inside
        else:
            yield plugin


def _may_hold_plugins(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in NOT_PLUGINS and path.is_dir()


def _read(folder: Path, origin: Origin) -> FoundPlugin | None:
    """The plugin in a folder; None if it contains none."""
    named_after_folder = PluginManifest(name=folder.name)
    try:
        files = {path.name for path in folder.iterdir()}
    except OSError as error:
        problem = f"{folder} cannot be read ({error.strerror}); check its permissions"
        return _unusable(named_after_folder, problem, origin, folder)
    file = next((folder / name for name in MANIFEST_NAMES if name in files), None)
    if file is None:
        problem = _why_no_plugin(folder, files)
        return _unusable(named_after_folder, problem, origin, folder) if problem else None
    try:
        manifest, problems = read_manifest(file)
    except PluginError as error:
        return _unusable(named_after_folder, str(error), origin, folder)
    manifest = replace(manifest, source=origin, path=str(folder))
    return FoundPlugin(manifest=manifest, origin=origin, path=folder, problems=tuple(problems))


def _why_no_plugin(folder: Path, files: set[str]) -> str:
    """Why a folder without a manifest is no plugin; empty if nobody could take it for one."""
    if PACKAGE_FILES & files:
        command = shlex.join(("pip", "install", str(folder)))
        return f"{folder} has no plugin.yaml, but it is a Python package; if you trust it, install it: `{command}`"
    if "__init__.py" in files:
        return f"{folder} has no plugin.yaml; add one that says `name: {folder.name}`"
    return ""


def _unusable(manifest: PluginManifest, problem: str, origin: Origin, folder: Path | None = None) -> FoundPlugin:
    return FoundPlugin(manifest=manifest, origin=origin, path=folder, problems=(problem,), loadable=False)


def _missing(name: str, known: Plugins) -> FoundPlugin:
    nearest = nearest_names(name, known)
    meant = f"did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
    problem = f"no plugin is named {name!r}; {meant}run `toolcrib plugins list` to see all"
    return replace(_unusable(PluginManifest(name=name), problem, "missing"), state="enabled")


def _wanted(plugins: PluginSettings) -> list[str]:
    return [name for name in dict.fromkeys(plugins.enabled) if name not in plugins.disabled]


def _answer(found: Plugins, name: str) -> FoundPlugin | None:
    if name in found:
        return found[name]
    return next((plugin for plugin in found.values() if name in plugin.names), None)


def _state(plugin: FoundPlugin, plugins: PluginSettings) -> State:
    if plugin.names & set(plugins.disabled):
        return "disabled"
    return "enabled" if plugin.names & set(plugins.enabled) else "not enabled"
