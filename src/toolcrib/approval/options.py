"""The options of a gate, known when a Runtime is created; lightweight, because every process loads this module."""

from __future__ import annotations

import msgspec

from toolcrib.approval.provenance import ProvenanceStore
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import EntryPoint
from toolcrib.core.ports import Approver, FireHook


class GateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a gate is built from, fixed when the Runtime is created."""

    settings: Settings
    workspace: str
    entry_point: EntryPoint = "library"
    approver: Approver | None = None
    yolo: bool = False
    fire: FireHook | None = None
    backend: str = "local"
    isolated: bool = False
    workspace_follows_cwd: bool = False
    provenance: ProvenanceStore | None = None
