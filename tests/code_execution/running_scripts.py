"""What tests of scripts share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolcrib.runtime import Runtime

PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
"""Named, because the first one on the way may be a slow program that looks for one."""
MakeRuntime = Callable[..., Runtime]
Run = Callable[..., dict[str, Any]]


def hidden(code: str) -> str:
    """The script in a form that no analyser reads: what is then kept from it, the sandbox keeps from it."""
    return f"exec((lambda text: text[::-1])({code[::-1]!r}))"
