"""Loads the enabled plugins into one runtime, each completely or not at all; a failure does not affect the others."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.environment import unset_variables
from toolcrib.config.settings import PluginEntry, Settings
from toolcrib.core.errors import PluginError, ToolcribError
from toolcrib.core.types import Source
from toolcrib.hooks.manager import HookManager
from toolcrib.plugins.context import Declaration, FindService, PluginContext
from toolcrib.plugins.discover import FoundPlugin, Origin, find_enabled
from toolcrib.plugins.manifest import PluginManifest
from toolcrib.registry import compat_imports
from toolcrib.registry.compat_imports import AliasLoader
from toolcrib.registry.discovery import LoadedFile, ScanCache, explain_import_error, import_file, tool_files
from toolcrib.registry.install_guard import InstallGuard, refusing_installs
from toolcrib.registry.registration import PLUGIN_NAMESPACE, SOURCE_ATTRIBUTE
from toolcrib.registry.registry import ToolRegistry

logger = logging.getLogger(__name__)


class LoadedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of loading one enabled plugin."""

    name: str
    version: str = ""
    origin: Origin = "missing"
    source: Source
    path: str = ""
    """Its folder, or the module and attribute that an installed package offers."""
    tools: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()
    declarations: tuple[Declaration, ...] = ()
    files: tuple[LoadedFile, ...] = ()
    """The tool files in its folder; one that could not be imported has a `problem`, and the others are loaded."""
    problem: str = ""
    """Why it was not loaded, as a sentence; empty on success."""
    notes: tuple[str, ...] = ()
    """What a person should know about a plugin that was loaded, one sentence each."""
    missing_env: tuple[str, ...] = ()
    """The variables that it needs and that are not set. The plugin loads anyway."""

    @property
    def commands(self) -> tuple[str, ...]:
        return self._declared("command")

    @property
    def skills(self) -> tuple[str, ...]:
        return self._declared("skill")

    def _declared(self, kind: str) -> tuple[str, ...]:
        return tuple(declaration.name for declaration in self.declarations if declaration.kind == kind)


def load_plugins(
    settings: Settings,
    registry: ToolRegistry,
    hooks: HookManager,
    *,
    cache: ScanCache | None = None,
    project_folder: Path | None = None,
    services: FindService | None = None,
) -> list[LoadedPlugin]:
    """Loads every enabled plugin, in the order of the config. Their tools go to `registry`.

    `project_folder` is where to find the project's plugins; by default the current folder.
    `services` returns the services of a running agent that plugins may use.
    """
    enabled = find_enabled(settings, project_folder)
    if enabled:
        compat_imports.install()
        # Plugins often have a `tools.py`, and some put their folder on `sys.path`: that must not hide `tools.registry`.
        import_module("tools")
    taken: set[str] = set()
    loaded = []
    for found in enabled:
        slug = slug_of(found.name, taken)
        taken.add(slug)
        loader = _Loader(found, slug, settings, registry, hooks, cache or ScanCache(), services)
        loaded.append(loader.load())
    return loaded


def with_outcomes(plugins: Iterable[FoundPlugin], loaded: Iterable[LoadedPlugin]) -> list[FoundPlugin]:
    """The plugins with what happened when they were loaded: a failed one has that state, and its problem."""
    outcomes = {outcome.name: outcome for outcome in loaded}
    return [
        _with_outcome(plugin, outcomes[plugin.name])
        if plugin.state == "enabled" and plugin.name in outcomes
        else plugin
        for plugin in plugins
    ]


def _with_outcome(plugin: FoundPlugin, outcome: LoadedPlugin) -> FoundPlugin:
    # Most problems start with the file and line.
    files = [
        file.problem if file.problem.startswith(str(file.path)) else f"{file.path}: {file.problem}"
        for file in outcome.files
        if file.problem
    ]
    told = [*([outcome.problem] if outcome.problem else []), *files, *outcome.notes]
    # The loader repeats what discovery found.
    problems = tuple(dict.fromkeys((*plugin.problems, *told)))
    return replace(plugin, state="failed" if outcome.problem else plugin.state, problems=problems)


class _Loader:
    """Loads one plugin into one registry."""

    def __init__(
        self,
        found: FoundPlugin,
        slug: str,
        settings: Settings,
        registry: ToolRegistry,
        hooks: HookManager,
        cache: ScanCache,
        services: FindService | None,
    ) -> None:
        consent = settings.plugins.entries.get(found.name, PluginEntry()).allow_tool_override
        self._found = found
        self._slug = slug
        self._source = Source("plugin", found.name, found.location, may_override=consent)
        self._settings = settings
        self._registry = registry
        self._hooks = hooks
        self._cache = cache
        self._services = services

    def load(self) -> LoadedPlugin:
        found = self._found
        if not found.loadable:
            return self._failed(found.problems[0])
        for problem in found.problems:
            logger.warning("plugin %r: %s", found.name, problem)
        if found.path is not None:
            _drop_namesakes(found.path, self._source)
        known_modules = set(sys.modules)
        with self._registry.loading(self._source) as loading, refusing_installs() as installs:
            ctx = PluginContext(
                found.manifest, loading, self._registry, self._hooks, self._settings.home, self._services
            )
            try:
                with fresh_namespace(self._slug):
                    files = self._run(ctx)
            except (Exception, SystemExit) as error:  # the contract: a failing plugin does not affect others
                ctx.abandon()
                logger.debug("plugin %r failed", found.name, exc_info=error)
                return self._failed(_explain(error, found, installs))
        if found.path is not None:
            attribute_modules(found.path, self._source, known_modules)
        hooks, middleware, declarations = ctx.finish()
        registered = [*loading.registered, *(name for file in files for name in file.tools)]
        tools = tuple(name for name in dict.fromkeys(registered) if self._owns(name))
        _offer_to_setup(found.manifest, tools)
        return LoadedPlugin(
            name=found.name,
            version=found.version,
            origin=found.origin,
            source=self._source,
            path=found.location,
            tools=tools,
            hooks=hooks,
            middleware=middleware,
            declarations=declarations,
            files=tuple(files),
            notes=self._notes(installs),
            missing_env=tuple(unset_variables(found.manifest.variables)),
        )

    def _notes(self, installs: InstallGuard) -> tuple[str, ...]:
        refused = tuple(attempt.sentence() for attempt in installs.attempts)
        for note in refused:
            logger.warning("plugin %r: %s", self._found.name, note)
        return refused

    def _run(self, ctx: PluginContext) -> list[LoadedFile]:
        """Import the plugin, call its `register(ctx)`, and load the tool files that it did not import itself."""
        found = self._found
        register = self._register_of_package() if found.path is None else self._register_of_folder(found.path)
        files = [] if found.path is None else tool_files(found.path, self._cache)
        if register is None and not files:
            raise PluginError(f"plugin {found.name!r} has no function `register(ctx)`; add one to its __init__.py")
        if register is not None:
            if not callable(register):
                raise PluginError(f"`register` of plugin {found.name!r} is not a function; write `def register(ctx):`")
            answer = register(ctx)
            if isinstance(answer, Coroutine):
                answer.close()
                raise PluginError(f"`register` of plugin {found.name!r} is async; write `def register(ctx):`")
        return [self._load_file(file) for file in files]

    def _register_of_folder(self, folder: Path) -> Callable[..., Any] | None:
        return getattr(import_folder(folder, self._slug, self._source), "register", None)

    def _register_of_package(self) -> Callable[..., Any] | None:
        """The target of the entry point: a module with `register`, or the function itself."""
        point = self._found.entry_point
        if point is None:
            return None
        module = import_module(point.module)
        setattr(module, SOURCE_ATTRIBUTE, self._source)
        answer_for(self._slug, module)
        offered = point.load()
        if isinstance(offered, type) and hasattr(offered, "register"):
            offered = offered()
        return offered if point.attr and not hasattr(offered, "register") else getattr(offered, "register", None)

    def _load_file(self, file: Path) -> LoadedFile:
        name = f"{PLUGIN_NAMESPACE}.{self._slug}.{file.stem}"
        with self._registry.loading(self._source) as loading, refusing_installs() as installs:
            try:
                import_module(name)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the contract: a failing file is reported, the rest load
                self._registry.take_back(loading)
                problem = _explain(error, self._found, installs)
                logger.warning("skipped tool file %s of plugin %r: %s", file, self._found.name, problem)
                return LoadedFile(file, name, problem=problem, traceback="".join(traceback.format_exception(error)))
        return LoadedFile(file, name, list(loading.registered))

    def _owns(self, name: str) -> bool:
        entry = self._registry.get_entry(name)
        return entry is not None and entry.source == self._source

    def _failed(self, problem: str) -> LoadedPlugin:
        found = self._found
        logger.warning("plugin %r was not loaded: %s", found.name, problem)
        return LoadedPlugin(
            name=found.name,
            version=found.version,
            origin=found.origin,
            source=self._source,
            path=found.location,
            problem=problem,
            missing_env=tuple(unset_variables(found.manifest.variables)),
        )


def _offer_to_setup(manifest: PluginManifest, tools: tuple[str, ...]) -> None:
    """Let the setup wizard ask for the variables that a plugin needs, with the plugin's own texts."""
    for name, said in manifest.variables.items():
        about = {
            "description": str(said.get("description") or f"Required by the plugin {manifest.name}"),
            "prompt": str(said.get("prompt") or name),
            "url": str(said.get("url") or ""),
            "tools": list(tools),
            # Hide the input unless the plugin says that it is harmless.
            "password": bool(said.get("password", said.get("secret", True))),
        }
        OPTIONAL_ENV_VARS.setdefault(name, about)


def _explain(error: BaseException, found: FoundPlugin, installs: InstallGuard) -> str:
    """Why a plugin could not be loaded: the line of its own code that was running, the reason, and what to do."""
    if installs.attempts:
        reason = installs.attempts[-1].sentence()
    elif isinstance(error, ToolcribError):
        return str(error)
    elif isinstance(error, SystemExit):
        reason = f"it tried to end the program (SystemExit: {error.code}) while being loaded; remove that from its code"
    elif isinstance(error, AttributeError) and isinstance(error.obj, PluginContext):
        reason = f"it uses `ctx.{error.name}`, which toolcrib does not have; ask its author for a version without it"
    else:
        reason = _own_module_problem(error, found) or explain_import_error(error)
    if ";" not in reason:
        reason += "; correct that line, or tell the author of the plugin"
    where = _line_of(error, found)
    if not where:
        return reason
    # A syntax error already says which line it means.
    return f"{where}: {reason.removeprefix('line ' + where.rpartition(':')[2] + ': ')}"


def _own_module_problem(error: BaseException, found: FoundPlugin) -> str:
    """What is wrong with an import of the plugin's own code; empty if it imports something else."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    own_module = f"{PLUGIN_NAMESPACE}."
    if error.name.startswith(own_module):
        missing = error.name.removeprefix(own_module).partition(".")[2]
        return f"it imports its own module {missing!r}, which is not in {found.location}; add the file"
    package = error.name.partition(".")[0]
    if found.path is None or not _is_in_folder(package, found.path):
        return ""
    return f"it imports its own code as {error.name!r}, as if it was installed; write `from . import …` instead"


def _is_in_folder(package: str, folder: Path) -> bool:
    return package == folder.name or (folder / f"{package}.py").is_file() or (folder / package).is_dir()


def _line_of(error: BaseException, found: FoundPlugin) -> str:
    """The last line of the plugin's own code that was running, as `file:line`; empty if none was."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    frames = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_own_file(frame.filename, found)
    ]
    return frames[-1] if frames else ""


def _is_own_file(filename: str, found: FoundPlugin) -> bool:
    if found.path is not None:
        return found.path in Path(filename).parents
    package = found.entry_point.module.partition(".")[0] if found.entry_point is not None else ""
    return package in Path(filename).parts or Path(filename).name == f"{package}.py"


HERMES_NAMESPACE = "hermes_plugins"


def slug_of(name: str, taken: set[str]) -> str:
    """The plugin's name as part of a module name, different from those in use."""
    slug = re.sub(r"\W", "_", name) or "_"
    while slug in taken:
        slug += "_"
    return slug


def import_folder(folder: Path, slug: str, source: Source) -> ModuleType:
    """The package in a folder, freshly imported; a folder without `__init__.py` is an empty package."""
    name = f"{PLUGIN_NAMESPACE}.{slug}"
    # The import system caches folder listings and may miss a file that was just saved.
    sys.path_importer_cache.pop(str(folder), None)
    if (folder / "__init__.py").is_file():
        module = import_file(name, folder / "__init__.py", source)
    else:
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        setattr(module, SOURCE_ATTRIBUTE, source)
    answer_for(slug, module)
    return module


@contextmanager
def fresh_namespace(slug: str) -> Iterator[None]:
    """A block that imports the package of a slug again; if it fails, the previous modules come back."""
    _make_namespaces()
    before = _take_modules(slug)
    with ExitStack() as on_failure:
        on_failure.callback(sys.modules.update, before)
        on_failure.callback(_take_modules, slug)
        yield
        on_failure.pop_all()


def answer_for(slug: str, module: ModuleType) -> None:
    """Register a module, whatever its own name, as a plugin's package under both namespaces."""
    for namespace in (PLUGIN_NAMESPACE, HERMES_NAMESPACE):
        sys.modules[f"{namespace}.{slug}"] = module
        setattr(sys.modules[namespace], slug, module)


def attribute_modules(folder: Path, source: Source, known: set[str]) -> None:
    """Mark modules that were imported from the plugin's folder in another way, such as `sys.path`, as the plugin's."""
    for name in sys.modules.keys() - known:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and folder in Path(file).parents and not hasattr(module, SOURCE_ATTRIBUTE):
            setattr(module, SOURCE_ATTRIBUTE, source)


def _drop_namesakes(folder: Path, source: Source) -> None:
    """Forget modules that another plugin put on `sys.path` under names that this plugin also has.

    The other plugin keeps what it imported; only a later import of that name finds the new module.
    """
    for name in [name for name in sys.modules if "." not in name]:
        owner = getattr(sys.modules.get(name), SOURCE_ATTRIBUTE, None)
        if not isinstance(owner, Source) or owner == source or owner.kind != "plugin":
            continue
        if (folder / f"{name}.py").is_file() or (folder / name).is_dir():
            for inner in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
                del sys.modules[inner]


class _HermesNames:
    """Finds `hermes_plugins.X` as the same module object as `toolcrib_plugins.X`.

    It is first on `sys.meta_path`: otherwise Python would search the package's folder and create its modules twice.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(HERMES_NAMESPACE + "."):
            return None
        real_name = PLUGIN_NAMESPACE + fullname.removeprefix(HERMES_NAMESPACE)
        if real_name not in sys.modules and importlib.util.find_spec(real_name) is None:
            return None
        return ModuleSpec(fullname, AliasLoader(real_name))


def _make_namespaces() -> None:
    for name in (PLUGIN_NAMESPACE, HERMES_NAMESPACE):
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = []
            sys.modules[name] = package
    if not any(isinstance(finder, _HermesNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HermesNames())


def _take_modules(slug: str) -> dict[str, ModuleType]:
    """The modules of a slug under both names, removed from `sys.modules`."""
    packages = (f"{PLUGIN_NAMESPACE}.{slug}", f"{HERMES_NAMESPACE}.{slug}")
    inside = tuple(f"{package}." for package in packages)
    own = [name for name in list(sys.modules) if name in packages or name.startswith(inside)]
    return {name: sys.modules.pop(name) for name in own}
