"""The gate, built when the first call needs it: most processes never judge a command."""

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
    """Builds the gate on first use, from options that are fixed beforehand."""

    def __init__(self, options: GateOptions) -> None:
        self.options = options
        self._lock = threading.Lock()

    @lazy
    def made(self) -> ApprovalGate:
        """The gate itself, with its policy, grants and log."""
        # Imported here, because the gate and its rules would take longer to load than everything else at start-up.
        from toolcrib.approval.build import build_gate  # noqa: PLC0415

        return build_gate(self.options)

    def attend(self, approver: Approver) -> bool:
        """Use this approver if there is none yet; False if there already is one."""
        with self._lock:
            if self.options.approver is not None:
                return False
            self.options = replace(self.options, approver=approver)
            if DeferredGate.made.is_built(self):
                # Imported here for the same reason.
                from toolcrib.approval.build import build_policy  # noqa: PLC0415

                self.made.attend(approver, build_policy(self.options))
        return True

    def forget_tool(self, tool: str) -> None:
        """Revoke the grants for one tool."""
        self.made.grants.forget_tool(tool)

    def judge(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...] | None, ctx: ToolContext
    ) -> Verdict:
        return self.made.judge(entry, arguments, effects, ctx)

    async def resolve(self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, ctx: ToolContext) -> Verdict:
        return await self.made.resolve(entry, arguments, verdict, ctx)
