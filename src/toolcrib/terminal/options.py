"""What the environments and background processes of one Runtime go by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolcrib.config.settings import Settings
from toolcrib.core.ports import SecretAsker
from toolcrib.core.types import JsonObject
from toolcrib.terminal.call import TerminalCall


@dataclass(frozen=True, kw_only=True)
class TerminalOptions:
    """What a TerminalService goes by."""

    settings: Settings
    workspace: Path
    environ: Callable[[], Mapping[str, str]]
    """The variables of this process, as they are now."""
    mask: Callable[[str], str]
    transform: Callable[[], Callable[[TerminalCall, JsonObject], str] | None]
    """What gives the output of an answer as the hooks leave it, which may block; None where there are no hooks."""
    secret_asker: Callable[[], SecretAsker | None] = lambda: None
    """Whom to ask for a password, as things are now."""
