"""Lets tool files and plugins written for the reference system import the names they know.

The finder is last on `sys.meta_path`, so it answers only if no real module of that name exists. It knows the
compatibility modules only by name and imports each on demand. The base class of its loader is for type checkers only,
because `importlib.abc` costs 5 ms to import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
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
    "tools.environments.vercel_sandbox": "toolcrib.compat.tools_environments_backends",
    "tools.terminal_tool": "toolcrib.compat.tools_terminal_tool",
    "tools.process_registry": "toolcrib.compat.tools_process_registry",
    "tools.thread_context": "toolcrib.compat.tools_thread_context",
    "tools.tool_search": "toolcrib.compat.tools_tool_search",
    "tools.mcp_tool": "toolcrib.compat.tools_mcp",
    "tools.mcp_oauth": "toolcrib.compat.tools_mcp",
    "tools.url_safety": "toolcrib.compat.tools_url_safety",
    "tools.website_policy": "toolcrib.compat.tools_url_safety",
    "model_tools": "toolcrib.compat.model_tools",
    "toolsets": "toolcrib.compat.toolsets",
    "toolset_distributions": "toolcrib.compat.toolset_distributions",
    "run_agent": "toolcrib.compat.run_agent",
    "utils": "toolcrib.compat.utils",
    "hermes_constants": "toolcrib.compat.hermes_constants",
    "hermes_cli.config": "toolcrib.compat.hermes_cli_config",
    "hermes_cli.middleware": "toolcrib.compat.hermes_cli_middleware",
    "hermes_cli.plugins": "toolcrib.compat.hermes_cli_plugins",
    "agent.auxiliary_client": "toolcrib.compat.agent_auxiliary_client",
    "agent.browser_provider": "toolcrib.compat.agent_web_providers",
    "agent.file_safety": "toolcrib.compat.agent_file_safety",
    "agent.image_gen_provider": "toolcrib.compat.agent_image_gen_provider",
    "agent.memory_provider": "toolcrib.compat.agent_memory_provider",
    "agent.redact": "toolcrib.compat.agent_redact",
    "agent.secret_scope": "toolcrib.compat.agent_secret_scope",
    "agent.video_gen_provider": "toolcrib.compat.agent_video_gen_provider",
    "agent.web_search_provider": "toolcrib.compat.agent_web_providers",
    "cron.jobs": "toolcrib.compat.cron_jobs",
    "gateway.config": "toolcrib.compat.gateway_config",
    "gateway.platforms.base": "toolcrib.compat.gateway_platforms",
    "gateway.platforms.helpers": "toolcrib.compat.gateway_platforms",
    "gateway.session_context": "toolcrib.compat.gateway_session_context",
}
BUILTIN_TOOL_MODULES = frozenset(
    f"tools.{name}"
    for name in (
        *("clarify_tool", "code_execution_tool", "cronjob_tools", "delegate_tool", "file_tools", "memory_tool"),
        *("session_search_tool", "skill_manager_tool", "skills_tool", "todo_tool", "vision_tools", "web_tools"),
    )
)
"""The modules of built-in tools. A file of that name beside a user's tool wins, because it may be the user's own."""
BUILTIN_TOOLS = "toolcrib.compat.tools_builtin"
PACKAGES = frozenset({"agent", "cron", "gateway", "gateway.platforms", "hermes_cli", "tools", "tools.environments"})
"""Users may keep their own modules in a folder of that name; `tools.registry` works beside them."""
AWAITED_MODULES = {
    "tools.transcription_tools": "speech transcription",
}
"""Modules whose feature toolcrib does not have yet, and that feature."""
USER_TOOLS_NAMESPACE = "toolcrib_user_tools"


class CompatibilityFinder:
    """Finds the reference system's module names, and `tools.X` if X is a file beside a user's tool."""

    def __init__(self) -> None:
        self.tool_folders: list[Path] = []
        """The folders to search for files beside a tool, most recently loaded first."""
        self._found: dict[str, Path] = {}
        self._aliased: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        real_name = COMPATIBILITY_MODULES.get(fullname)
        if real_name is not None:
            return ModuleSpec(fullname, self._alias(fullname, real_name), is_package=fullname in PACKAGES)
        if fullname in PACKAGES:
            return ModuleSpec(fullname, PackageLoader(), is_package=True)
        if fullname == USER_TOOLS_NAMESPACE:
            return ModuleSpec(fullname, None, is_package=True)
        if fullname.partition(".")[0] == "plugins":
            return _plugin_by_folder(fullname)
        beside = self._beside_tool(fullname)
        if beside is not None:
            return beside
        if fullname in BUILTIN_TOOL_MODULES:
            return ModuleSpec(fullname, self._alias(fullname, BUILTIN_TOOLS))
        if fullname in AWAITED_MODULES:
            return ModuleSpec(fullname, AwaitedLoader())
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

    def _beside_tool(self, fullname: str) -> ModuleSpec | None:
        parent, _, stem = fullname.rpartition(".")
        if parent not in ("tools", USER_TOOLS_NAMESPACE):
            return None
        for folder in self.tool_folders:
            file = folder / f"{stem}.py"
            if file.is_file():
                self._found[fullname] = folder
                return self._spec(fullname, stem, file)
        return None

    def _alias(self, fullname: str, real_name: str) -> AliasLoader:
        # A test suite that deletes a module from `sys.modules` expects its next import to run the module again.
        again = fullname in self._aliased and fullname not in sys.modules
        self._aliased.add(fullname)
        return AliasLoader(real_name, again=again)

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


def _plugin_by_folder(fullname: str) -> ModuleSpec | None:
    """A plugin under the name that its code uses for itself: `plugins.web.exa` is the loaded plugin in a folder `exa`.

    In the reference system, plugins are part of a package and import their own modules by these names.
    """
    plugins = [sys.modules[name] for name in list(sys.modules) if _is_plugin(name)]
    _, *parts = fullname.split(".")
    for plugin in plugins:
        folders = getattr(plugin, "__path__", None) or ()
        if parts and any(Path(folder).name == parts[-1] for folder in folders):
            return ModuleSpec(fullname, AliasLoader(plugin.__name__), is_package=True)
    # `plugins` itself, and a category in it; their modules are known only while a plugin is loaded.
    return ModuleSpec(fullname, PackageLoader(), is_package=True) if plugins and len(parts) <= 1 else None


def _is_plugin(module: str) -> bool:
    return module.startswith("toolcrib_plugins.") and module.count(".") == 1


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
    """Loads an alias: returns the existing module object under another name; with `again`, after running it again."""

    def __init__(self, real_name: str, *, again: bool = False) -> None:
        self.real_name = real_name
        self._again = again

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.real_name)
        if self._again:
            importlib.reload(module)
        # The import system writes the alias's spec into the module; keep the real one for pickling and reloads.
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class PackageLoader(Loader):
    """Makes a package without a folder, whose modules the finder provides."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def attribute(wanted: str) -> ModuleType:
            # `from tools import registry` asks for an attribute before it asks for a module.
            if not wanted.startswith("__"):
                with suppress(ModuleNotFoundError):
                    return importlib.import_module(f"{name}.{wanted}")
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")

        module.__dict__["__getattr__"] = attribute


class AwaitedLoader(Loader):
    """Says that a feature is missing, when a module of it is imported."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        feature = AWAITED_MODULES[spec.name]
        sentence = f"{spec.name!r} belongs to Hermes Agent's {feature}, which toolcrib does not have yet"
        raise ModuleNotFoundError(sentence, name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Never reached."""


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
