"""Decides whether a call may run: reads its effects, applies the policy, and asks for approval where needed.

The analyser of shell commands loads on first use of its names.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolcrib.approval.analyse import (
        DANGEROUS_PATTERNS,
        Assessment,
        Finding,
        analyse,
        detect_dangerous_command,
        detect_hardline_command,
    )
    from toolcrib.approval.grants import suggest

__all__ = [
    "DANGEROUS_PATTERNS",
    "Assessment",
    "Finding",
    "analyse",
    "detect_dangerous_command",
    "detect_hardline_command",
    "suggest",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'toolcrib.approval' has no attribute {name!r}")
    home = "toolcrib.approval.grants" if name == "suggest" else "toolcrib.approval.analyse"
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Keeps `analyse` the function: importing the module of the same name would otherwise replace it."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.analyse if name == "analyse" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
