"""Handlers for single programs: each one judges the commands of its program."""

from __future__ import annotations

from toolcrib.approval.shell.handlers import (
    build_tools,
    builtins,
    database_clients,
    interpreters,
    programs,
    remote,
    wrappers,
)
from toolcrib.approval.shell.runner import Handler

HANDLERS: dict[str, Handler] = {
    **builtins.HANDLERS,
    **wrappers.HANDLERS,
    **remote.HANDLERS,
    **interpreters.HANDLERS,
    **programs.HANDLERS,
    **database_clients.HANDLERS,
    **build_tools.HANDLERS,
}
"""The handlers by program."""
