"""Imports the code of plugins: a folder becomes the package `toolcrib_plugins.<slug>`.

The same modules answer to `hermes_plugins.<slug>`, the name that plugins of the reference system know.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from toolcrib.core.types import Source
from toolcrib.registry.collisions import PLUGIN_NAMESPACE, SOURCE_ATTRIBUTE
from toolcrib.registry.compat_imports import AliasLoader
from toolcrib.registry.discovery import import_file

HERMES_NAMESPACE = "hermes_plugins"


def slug_of(name: str, taken: set[str]) -> str:
    """The plugin's name as part of a module name, different from those that are taken."""
    slug = re.sub(r"\W", "_", name) or "_"
    while slug in taken:
        slug += "_"
    return slug


def import_folder(folder: Path, slug: str, source: Source) -> ModuleType:
    """The package in a folder, imported anew; a folder without `__init__.py` gives an empty package."""
    name = f"{PLUGIN_NAMESPACE}.{slug}"
    # The import system lists a folder once and may miss a file that was saved just now.
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
    """A block in which the package of a slug is imported anew; if it fails, the modules from before are back."""
    _make_namespaces()
    before = _take_modules(slug)
    with ExitStack() as on_failure:
        on_failure.callback(sys.modules.update, before)
        on_failure.callback(_take_modules, slug)
        yield
        on_failure.pop_all()


def answer_for(slug: str, module: ModuleType) -> None:
    """Let a module, whatever its own name, be found as the package of a plugin under both namespaces."""
    for namespace in (PLUGIN_NAMESPACE, HERMES_NAMESPACE):
        sys.modules[f"{namespace}.{slug}"] = module
        setattr(sys.modules[namespace], slug, module)


def attribute_modules(folder: Path, source: Source, known: set[str]) -> None:
    """Mark modules that came from the plugin's folder by another way, such as `sys.path`, as the plugin's."""
    for name in sys.modules.keys() - known:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and folder in Path(file).parents and not hasattr(module, SOURCE_ATTRIBUTE):
            setattr(module, SOURCE_ATTRIBUTE, source)


class _HermesNames:
    """Gives `hermes_plugins.X` as the very module `toolcrib_plugins.X`.

    It stands first on `sys.meta_path`: a package's folder would otherwise be searched, and its modules made twice.
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
