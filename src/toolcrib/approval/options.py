"""What a Runtime knows about its gate when it is made."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from toolcrib.config.settings import Settings
from toolcrib.core.approvals import EntryPoint
from toolcrib.core.ports import Approver


class FireHook(Protocol):
    """Tells the hooks of a name; what they raise is logged, and what they answer is nobody's business."""

    def __call__(self, name: str, **keywords: Any) -> object: ...


class GateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that a gate goes by, fixed from the start."""

    settings: Settings
    workspace: str
    entry_point: EntryPoint = "library"
    approver: Approver | None = None
    yolo: bool = False
    fire: FireHook | None = None
    backend: str = "local"
    isolated: bool = False
    workspace_follows_cwd: bool = False
