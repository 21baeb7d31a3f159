"""Lets tool files and plugins written for the reference system import its module names; explains missing ones.

The finder is last on `sys.meta_path`, so it answers only if no real module of that name exists. It knows the
compatibility modules only by name and imports each on demand. The base class of its loader is for type checkers only,
because `importlib.abc` costs 5 ms to import.

An import name is not the name of a package: `agent`, `utils` and `cli` on the package index have nothing to do with the
reference system. So a missing module is named for what it is, and a command to install something is shown only if it
is known to be the right one.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from toolcrib.core.attempt import attempt
from toolcrib.core.lazy import lazy_pattern

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
    "toolset_distributions": "toolcrib.compat.toolsets",
    "run_agent": "toolcrib.compat.run_agent",
    "utils": "toolcrib.compat.utils",
    "hermes_constants": "toolcrib.compat.hermes_constants",
    "hermes_cli.config": "toolcrib.compat.hermes_cli_config",
    "hermes_cli.middleware": "toolcrib.compat.hermes_cli_middleware",
    "hermes_cli.plugins": "toolcrib.compat.hermes_cli_plugins",
    "agent.auxiliary_client": "toolcrib.compat.agent_auxiliary_client",
    "agent.browser_provider": "toolcrib.compat.agent_providers",
    "agent.file_safety": "toolcrib.compat.agent_file_safety",
    "agent.image_gen_provider": "toolcrib.compat.agent_image_gen_provider",
    "agent.memory_provider": "toolcrib.compat.agent_memory_provider",
    "agent.redact": "toolcrib.compat.agent_redact",
    "agent.secret_scope": "toolcrib.compat.agent_providers",
    "agent.video_gen_provider": "toolcrib.compat.agent_video_gen_provider",
    "agent.web_search_provider": "toolcrib.compat.agent_providers",
    "cron.jobs": "toolcrib.compat.cron_jobs",
    "gateway.config": "toolcrib.compat.gateway",
    "gateway.platforms.base": "toolcrib.compat.gateway",
    "gateway.platforms.helpers": "toolcrib.compat.gateway",
    "gateway.session_context": "toolcrib.compat.gateway_session_context",
}
BUILTIN_TOOL_MODULES = frozenset(
    name if "." in name else f"tools.{name}"
    for name in (
        *("clarify_tool", "code_execution_tool", "cronjob_tools", "delegate_tool", "file_tools", "memory_tool"),
        *("session_search_tool", "skill_manager_tool", "skills_tool", "todo_tool", "vision_tools", "web_tools"),
        *("image_generation_tool", "video_generation_tool", "xai_video_tools", "tts_tool", "transcription_tools"),
        *("mixture_of_agents_tool", "homeassistant_tool", "x_search_tool", "discord_tool"),
        *("feishu_doc_tool", "feishu_drive_tool", "browser_tool", "browser_cdp_tool", "browser_dialog_tool"),
        *("kanban_tools", "project_tools", "read_terminal_tool", "close_terminal_tool", "computer_use_tool"),
        *("tools.computer_use.tool", "plugins.spotify.tools"),
    )
)
"""The modules of built-in tools. A file of that name beside a user's tool wins, because it may be the user's own."""
BUILTIN_TOOLS = "toolcrib.compat.tools_builtin"
BUILTIN_TOOL_PACKAGES = frozenset({"tools.computer_use", "plugins.spotify"})
PACKAGES = frozenset({"agent", "cron", "gateway", "gateway.platforms", "hermes_cli", "tools", "tools.environments"})
"""Users may keep their own modules in a folder of that name; `tools.registry` works beside them."""
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
        of_user = _plugin_by_folder(fullname) or self._beside_tool(fullname)
        if of_user is not None:
            return of_user
        if fullname in BUILTIN_TOOL_PACKAGES:
            return ModuleSpec(fullname, PackageLoader(), is_package=True)
        if fullname in BUILTIN_TOOL_MODULES:
            return ModuleSpec(fullname, self._alias(fullname, BUILTIN_TOOLS))
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
    if fullname.partition(".")[0] != "plugins":
        return None
    plugins = [sys.modules[name] for name in list(sys.modules) if _is_plugin(name)]
    _, *parts = fullname.split(".")
    for plugin in plugins:
        folders = getattr(plugin, "__path__", None) or ()
        if parts and any(Path(folder).name == parts[-1] for folder in folders):
            return ModuleSpec(fullname, AliasLoader(plugin.__name__), is_package=True)
    # `plugins` itself, and a category in it, whose modules are known only while a plugin is loaded.
    if not parts or (plugins and len(parts) == 1):
        return ModuleSpec(fullname, PackageLoader(), is_package=True)
    return None


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


REFERENCE_PACKAGES = frozenset(
    {
        *("acp_adapter", "agent", "batch_runner", "cli", "cron", "gateway", "hermes_bootstrap", "hermes_cli"),
        *("hermes_constants", "hermes_logging", "hermes_state", "hermes_time", "mcp_serve", "model_tools", "plugins"),
        *("providers", "run_agent", "tools", "toolset_distributions", "toolsets", "trajectory_compressor"),
        *("tui_gateway", "utils"),
    }
)
"""The top-level modules of Hermes Agent."""
_TOOL_MODULE_NAMES = """
ansi_strip approval async_delegation binary_extensions blueprints browser_camofox browser_camofox_state
browser_cdp_tool browser_dialog_tool browser_supervisor browser_tool budget_config checkpoint_manager
clarify_gateway clarify_tool close_terminal_tool code_execution_tool computer_use computer_use_tool credential_files
cronjob_tools daemon_pool debug_helpers delegate_tool delegation_live_log discord_tool env_passthrough env_probe
environments fal_common feishu_doc_tool feishu_drive_tool file_operations file_state file_tools fuzzy_match
homeassistant_tool hook_output_spill image_generation_tool image_source interrupt kanban_tools lazy_deps
managed_tool_gateway mcp_dashboard_oauth mcp_oauth mcp_oauth_manager mcp_stdio_watchdog mcp_tool memory_tool
microsoft_graph_auth microsoft_graph_client neutts_synth openrouter_client osv_check patch_parser path_security
process_registry project_tools read_extract read_terminal_tool registry schema_sanitizer send_message_tool
session_search_tool skill_manager_tool skill_provenance skill_usage skills_ast_audit skills_guard skills_hub
skills_sync skills_tool slash_confirm terminal_tool thread_context threat_patterns tirith_security todo_tool
tool_backend_helpers tool_output_limits tool_result_storage tool_search transcription_tools tts_tool url_safety
video_generation_tool vision_tools voice_mode web_tools website_policy write_approval x_search_tool xai_http
xai_video_tools yuanbao_tools
"""
_REFERENCE_TOOL_MODULES = frozenset(_TOOL_MODULE_NAMES.split())
"""The modules of its package `tools`, where users keep files of their own too."""

HERMES_PACKAGES = {
    "croniter": "croniter",
    "jinja2": "jinja2",
    "psutil": "psutil",
    "tenacity": "tenacity",
    "websockets": "websockets",
    "yaml": "PyYAML",
}
"""What the extra `hermes` installs, by import name: packages that files written for Hermes Agent take for granted."""
# Only modules whose package is beyond doubt, by import name.
_PACKAGES = {
    **{name: name for name in ("aiohttp", "anthropic", "httpx", "numpy", "openai", "pandas", "pydantic", "requests")},
    **{name: name for name in ("rich", "tqdm")},
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
}
_MISSING_NAME = lazy_pattern(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")


def explain_missing_module(name: str) -> str:
    """Why a module cannot be imported, and what to do about it if that is known."""
    package, _, rest = name.partition(".")
    stem = rest.partition(".")[0]
    if package == USER_TOOLS_NAMESPACE or (package == "tools" and stem and stem not in _REFERENCE_TOOL_MODULES):
        return f"it imports {name!r}, which does not exist; put {stem}.py beside it"
    if package in REFERENCE_PACKAGES:
        return f"it imports {name!r}, an internal module of Hermes Agent that toolcrib does not provide"
    if package in HERMES_PACKAGES:
        return (
            f"it needs the package {HERMES_PACKAGES[package]!r}, which Hermes Agent brings with it; "
            "run `pip install 'toolcrib[hermes]'` and start again"
        )
    if package in _PACKAGES:
        command = f"pip install {_PACKAGES[package]}"
        return f"it imports {package!r}, which is not installed; install it (`{command}`) and start again"
    return (
        f"it imports {package!r}, which is not installed; install the package that provides it "
        "(the author of the file knows its name) and start again"
    )


def explain_missing_name(error: ImportError) -> str:
    """Why a name cannot be imported from a module under a reference name; "" for every other module."""
    found = _MISSING_NAME.match(str(error))
    if found is None:
        return ""
    modules = _reference_names(found["module"])
    if modules[0].partition(".")[0] not in REFERENCE_PACKAGES:
        return ""
    # The error does not say which of several names the file used.
    source = f" from {modules[0]!r}" if len(modules) == 1 else ""
    return f"it imports {found['name']!r}{source}, an internal name of Hermes Agent that toolcrib does not provide"


def missing_internals(path: Path) -> list[str]:
    """The parts of the reference system that a tool file imports, now or when it runs, and that are not here.

    An import that the file guards with `except ImportError` is optional. Imports for type checkers do not count.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for node in _required_imports(tree):
        if isinstance(node, ast.Import):
            found += [item.name for item in node.names if _is_internal(item.name) and _load(item.name) is None]
        elif node.module and not node.level and _is_internal(node.module):
            found += _missing_from(node.module, [item.name for item in node.names])
    return list(dict.fromkeys(found))


def _required_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.Try) and any(_catches_imports(handler) for handler in child.handlers):
            for part in (*child.handlers, *child.orelse, *child.finalbody):
                yield from _required_imports(part)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for part in child.orelse:
                yield from _required_imports(part)
        else:
            yield from _required_imports(child)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
    return any(isinstance(kind, ast.Name) and kind.id in names for kind in caught)


def _missing_from(module: str, names: list[str]) -> list[str]:
    loaded = _load(module)
    if loaded is None:
        return [module]
    return [
        f"{module}.{name}"
        for name in names
        if name != "*" and not hasattr(loaded, name) and _load(f"{module}.{name}") is None
    ]


def _load(name: str) -> ModuleType | None:
    """The module, if there is one that can be imported."""
    return attempt(importlib.import_module, name)[0]


def _is_internal(name: str) -> bool:
    return name.partition(".")[0] in REFERENCE_PACKAGES


def _reference_names(module: str) -> list[str]:
    """The names that a file may have used for one of our modules; at least one."""
    if module == BUILTIN_TOOLS:
        return ["tools"]
    return [name for name, real in COMPATIBILITY_MODULES.items() if real == module] or [module]
