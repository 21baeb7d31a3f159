"""`hermes_cli`: the package of the reference system's command line."""

import importlib
from types import ModuleType

# A package without a folder: every `hermes_cli.X` is answered by the finder.
__path__: list[str] = []


def __getattr__(name: str) -> ModuleType:
    # `from hermes_cli import plugins` asks for an attribute before it asks for a module.
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"hermes_cli.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'hermes_cli' has no attribute {name!r}") from error
