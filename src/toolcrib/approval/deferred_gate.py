"""A gate that is put together when the first call needs it: most processes never judge a command."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolcrib.approval.options import GateOptions
from toolcrib.core.context import ToolContext
from toolcrib.core.lazy import lazy
from toolcrib.core.ports import Approver
from toolcrib.core.types import Effect, JsonObject, ToolEntry, Verdict

if TYPE_CHECKING:
    from toolcrib.approval.gate import ApprovalGate


class DeferredGate:
    """Stands for the gate; everything that it goes by is fixed already."""

    def __init__(self, options: GateOptions) -> None:
        self.options = options
        self._lock = threading.Lock()

    @lazy
    def made(self) -> ApprovalGate:
        """The gate itself, with its policy, grants and log."""
        # Loaded here: the analyser and its rules cost more than the whole start of a process may.
        from toolcrib.approval.build import build_gate  # noqa: PLC0415

        return build_gate(self.options)

    def attend(self, approver: Approver) -> bool:
        """Ask this approver where nobody could be asked so far; False where somebody can be asked already."""
        with self._lock:
            if self.options.approver is not None:
                return False
            self.options = replace(self.options, approver=approver)
            if DeferredGate.made.is_built(self):
                # As above.
                from toolcrib.approval.build import build_policy  # noqa: PLC0415

                self.made.attend(approver, build_policy(self.options))
        return True

    def forget_tool(self, tool: str) -> None:
        """Take back what was agreed to for one tool by its name."""
        self.made.grants.forget_tool(tool)

    def judge(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...] | None, ctx: ToolContext
    ) -> Verdict:
        return self.made.judge(entry, arguments, effects, ctx)

    async def settle(self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, ctx: ToolContext) -> Verdict:
        return await self.made.settle(entry, arguments, verdict, ctx)
