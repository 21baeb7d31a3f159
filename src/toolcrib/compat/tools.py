"""`tools`: the package that tool files of the reference system belong to."""

import importlib
from types import ModuleType

# A package without a folder: every `tools.X` is answered by the finder.
__path__: list[str] = []


def __getattr__(name: str) -> ModuleType:
    # `from tools import registry` asks for an attribute before it asks for a module.
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"tools.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'tools' has no attribute {name!r}") from error
