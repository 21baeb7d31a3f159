"""`tools.registry`: the default registry and related functions."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from toolcrib.core.types import CheckFn, ToolEntry
from toolcrib.registry import discovery
from toolcrib.registry.availability import FAILURE_GRACE_SECONDS, run
from toolcrib.registry.collisions import set_override_consent
from toolcrib.registry.compat_imports import USER_TOOLS_NAMESPACE
from toolcrib.registry.default import registry
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
    names = discovery.discover_builtin_tools(tools_dir)
    return [name.replace(f"{USER_TOOLS_NAMESPACE}.", "tools.", 1) for name in names]


def register_plugin_override_policy(namespace: str, allowed: bool) -> None:
    """Say whether the plugin in `namespace` (`hermes_plugins.NAME`) may replace tools from other sources."""
    set_override_consent(namespace, allowed)


class _CheckMemory:
    """What `_check_fn_cached` remembers: answers for half a minute, and when a check last passed.

    Only callers of that function see it; definitions run every check again. One per process, because the function
    takes only the check.
    """

    def __init__(self) -> None:
        self._answers: dict[CheckFn, tuple[float, bool]] = {}
        self._passed_at: dict[CheckFn, float] = {}
        self._lock = threading.Lock()

    def ask(self, check: CheckFn) -> bool:
        now = time.monotonic()
        with self._lock:
            known = self._answers.get(check)
        if known is not None and now - known[0] < _CHECK_FN_TTL_SECONDS:
            return known[1]
        passed = _passes(check)
        with self._lock:
            if passed:
                self._passed_at[check] = now
            elif now - self._passed_at.get(check, -float("inf")) < _CHECK_FN_FAILURE_GRACE_SECONDS:
                # Not cached, so the next caller runs it again.
                self._answers.pop(check, None)
                return True
            else:
                logger.warning("availability check %r does not pass", getattr(check, "__qualname__", check))
            self._answers[check] = (now, passed)
        return passed

    def forget(self) -> None:
        with self._lock:
            self._answers.clear()
            self._passed_at.clear()


_check_memory = _CheckMemory()


def _check_fn_cached(fn: CheckFn) -> bool:
    """Whether a check passes; its answer is kept for a while, and one failure shortly after a pass is forgiven."""
    return _check_memory.ask(fn)


def invalidate_check_fn_cache() -> None:
    """Clear the cached results of availability checks."""
    _check_memory.forget()
    registry.availability.forget()


def _passes(check: CheckFn) -> bool:
    return run(check) is True
