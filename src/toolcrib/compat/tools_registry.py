"""`tools.registry`: the default registry and related functions."""

from __future__ import annotations

import ast
import importlib
import logging
import threading
import time
from pathlib import Path

from toolcrib.core.attempt import attempt
from toolcrib.core.types import CheckFn, Source, ToolEntry
from toolcrib.registry import compat_imports, discovery
from toolcrib.registry.availability import FAILURE_GRACE_SECONDS, run
from toolcrib.registry.default import registry
from toolcrib.registry.registration import set_override_consent
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import tool_error, tool_result

__all__ = [
    "ToolEntry",
    "ToolRegistry",
    "discover_builtin_tools",
    "invalidate_check_fn_cache",
    "register_plugin_override_policy",
    "registry",
    "tool_error",
    "tool_result",
]

logger = logging.getLogger(__name__)

_CHECK_FN_TTL_SECONDS = 30.0
_CHECK_FN_FAILURE_GRACE_SECONDS = FAILURE_GRACE_SECONDS


def discover_builtin_tools(tools_dir: str | Path | None = None) -> list[str]:
    """Import the tool files of a folder (the built-in ones by default) and return their module names."""
    if tools_dir is None:
        return discovery.discover_builtin_tools()
    folder = Path(tools_dir).absolute()
    finder = compat_imports.install(folder)
    names = []
    for path in discovery.tool_files(folder, discovery.ScanCache()):
        finder.forget(path.stem)
        with registry.loading(Source("user", path.name, str(path))) as loading:
            _, error = attempt(importlib.import_module, f"tools.{path.stem}")
        if error is None:
            names.append(f"tools.{path.stem}")
            continue
        registry.take_back(loading)
        logger.warning("skipped tool file %s: %s", path, discovery.explain_import_error(error))
    return names


def register_plugin_override_policy(namespace: str, allowed: bool) -> None:
    """Say whether the plugin in `namespace` (`hermes_plugins.NAME`) may replace tools from other sources."""
    set_override_consent(namespace, allowed)


# What `_check_fn_cached` remembers: its answers with their time, and when a check last passed. Definitions do not use
# them. They belong to the process, because the function takes only the check, and test suites clear them by name.
_check_fn_cache: dict[CheckFn, tuple[float, bool]] = {}
_check_fn_last_good: dict[CheckFn, float] = {}
_check_fn_cache_lock = threading.Lock()


def _check_fn_cached(fn: CheckFn) -> bool:
    """Whether a check passes; its answer is kept for a while, and one failure shortly after a pass is forgiven."""
    now = time.monotonic()
    with _check_fn_cache_lock:
        known = _check_fn_cache.get(fn)
    if known is not None and now - known[0] < _CHECK_FN_TTL_SECONDS:
        return known[1]
    passed = run(fn) is True
    with _check_fn_cache_lock:
        if passed:
            _check_fn_last_good[fn] = now
        elif now - _check_fn_last_good.get(fn, -float("inf")) < _CHECK_FN_FAILURE_GRACE_SECONDS:
            # Not cached, so the next caller runs it again.
            _check_fn_cache.pop(fn, None)
            return True
        else:
            logger.warning("availability check %r does not pass", getattr(fn, "__qualname__", fn))
        _check_fn_cache[fn] = (now, passed)
    return passed


def invalidate_check_fn_cache() -> None:
    """Clear the cached results of availability checks."""
    with _check_fn_cache_lock:
        _check_fn_cache.clear()
        _check_fn_last_good.clear()
    registry.availability.forget()


def _module_registers_tools(module_path: Path) -> bool:
    """Whether a file declares tools at its top level; False if it cannot be read or parsed."""
    try:
        ast.parse(Path(module_path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return discovery.declares_tools(Path(module_path))
