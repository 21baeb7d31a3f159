"""Questions about the process environment, for layers that do not read it themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping


def environment() -> Mapping[str, str]:
    """The variables of this process, as they are now."""
    return os.environ


def unset_variables(names: Iterable[str]) -> list[str]:
    """Those of the names that are not set, or set to nothing."""
    return [name for name in names if not os.environ.get(name)]


def model_hub_address(environ: Mapping[str, str] | None = None) -> str:
    """Where models are published: HF_ENDPOINT, as the hub's own tools read it for mirrors, else the hub itself."""
    environ = os.environ if environ is None else environ
    return (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
