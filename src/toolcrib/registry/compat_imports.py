"""Lets tool files and plugins written for the reference system import the names they know.

The finder is last on `sys.meta_path`, so it answers only if no real module of that name exists. It knows the
compatibility modules only by name and imports each on demand. The base class of its loader is for type checkers only,
because `importlib.abc` costs 5 ms to import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object

COMPATIBILITY_MODULES = {
    "tools": "toolcrib.compat.tools",
    "tools.registry": "toolcrib.compat.tools_registry",
    "tools.approval": "toolcrib.compat.tools_approval",
    "tools.interrupt": "toolcrib.compat.tools_interrupt",
    "tools.environments": "toolcrib.compat.tools_environments",
    "tools.environments.base": "toolcrib.compat.tools_environments",
    "tools.environments.local": "toolcrib.compat.tools_environments_backends",
    "tools.environments.docker": "toolcrib.compat.tools_environments_backends",
    "tools.environments.ssh": "toolcrib.compat.tools_environments_backends",
    "tools.environments.singularity": "toolcrib.compat.tools_environments_backends",
    "tools.environments.modal": "toolcrib.compat.tools_environments_backends",
    "tools.environments.daytona": "toolcrib.compat.tools_environments_backends",
    "tools.terminal_tool": "toolcrib.compat.tools_terminal_tool",
    "tools.process_registry": "toolcrib.compat.tools_process_registry",
    "tools.thread_context": "toolcrib.compat.tools_thread_context",
    "tools.tool_search": "toolcrib.compat.tools_tool_search",
    "tools.url_safety": "toolcrib.compat.tools_url_safety",
    "tools.website_policy": "toolcrib.compat.tools_url_safety",
    "model_tools": "toolcrib.compat.model_tools",
    "toolsets": "toolcrib.compat.toolsets",
    "toolset_distributions": "toolcrib.compat.toolset_distributions",
    "hermes_cli": "toolcrib.compat.hermes_cli",
    "hermes_cli.config": "toolcrib.compat.hermes_cli_config",
    "hermes_cli.middleware": "toolcrib.compat.hermes_cli_middleware",
    "hermes_cli.plugins": "toolcrib.compat.hermes_cli_plugins",
    "hermes_constants": "toolcrib.compat.hermes_constants",
}
# Users may keep their own modules in a folder of that name; `tools.registry` works beside them.
PACKAGES = frozenset({"tools", "tools.environments", "hermes_cli"})
USER_TOOLS_NAMESPACE = "toolcrib_user_tools"


class CompatibilityFinder:
    """Finds the reference system's module names, and `tools.X` if X is a file beside a user's tool."""

    def __init__(self) -> None:
        self.tool_folders: list[Path] = []
        """The folders to search for files beside a tool, most recently loaded first."""
        self._found: dict[str, Path] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        real_name = COMPATIBILITY_MODULES.get(fullname)
        if real_name is not None:
            return ModuleSpec(fullname, AliasLoader(real_name), is_package=fullname in PACKAGES)
        if fullname == USER_TOOLS_NAMESPACE:
            return ModuleSpec(fullname, None, is_package=True)
        parent, _, stem = fullname.rpartition(".")
        if parent not in ("tools", USER_TOOLS_NAMESPACE):
            return None
        for folder in self.tool_folders:
            file = folder / f"{stem}.py"
            if file.is_file():
                self._found[fullname] = folder
                return self._spec(fullname, stem, file)
        return None

    def use_folder(self, folder: Path) -> None:
        """Search this folder first, and forget modules found beside the tools of another folder."""
        if self.tool_folders[:1] == [folder]:
            return
        self.tool_folders = [folder, *(known for known in self.tool_folders if known != folder)]
        for fullname, found_in in list(self._found.items()):
            if found_in != folder:
                self._drop(fullname)

    def forget(self, stem: str) -> None:
        """Make the next `import tools.STEM` load the file again."""
        if f"tools.{stem}" in self._found:
            self._drop(f"tools.{stem}")

    def _spec(self, fullname: str, stem: str, file: Path) -> ModuleSpec | None:
        loaded = f"{USER_TOOLS_NAMESPACE}.{stem}"
        if fullname != loaded and getattr(sys.modules.get(loaded), "__file__", None) == str(file):
            return ModuleSpec(fullname, AliasLoader(loaded))
        return spec_from_file_location(fullname, file)

    def _drop(self, fullname: str) -> None:
        del self._found[fullname]
        module = sys.modules.pop(fullname, None)
        package, _, stem = fullname.rpartition(".")
        # `from tools import X` looks at the package before it asks any finder.
        if module is not None and vars(sys.modules.get(package, module)).get(stem) is module:
            delattr(sys.modules[package], stem)


class FolderGuard:
    """Finds a compatibility module even if a plain folder has the same name, such as `tests/toolsets/`.

    Python would treat such a folder as an empty package before it asks the last finder, so this one is first on
    `sys.meta_path`. The modules inside the folder can still be imported.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        real_name = COMPATIBILITY_MODULES.get(fullname)
        if real_name is None or fullname in PACKAGES:
            return None
        found = PathFinder.find_spec(fullname, path)
        if found is None or found.loader is not None:
            return None
        spec = ModuleSpec(fullname, AliasLoader(real_name))
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class AliasLoader(Loader):
    """Loads an alias: returns the existing module object under another name."""

    def __init__(self, real_name: str) -> None:
        self.real_name = real_name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.real_name)
        # The import system writes the alias's spec into the module; keep the real one for pickling and reloads.
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def install(tool_folder: Path | None = None) -> CompatibilityFinder:
    """The finder, added to `sys.meta_path` once; `tool_folder` is searched first for `tools.X`."""
    finder = next((found for found in sys.meta_path if isinstance(found, CompatibilityFinder)), None)
    if finder is None:
        finder = CompatibilityFinder()
        sys.meta_path.append(finder)
        sys.meta_path.insert(0, FolderGuard())
    if tool_folder is not None:
        finder.use_folder(tool_folder)
    return finder
