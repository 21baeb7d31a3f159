"""The one place where a call is allowed, asked about or denied, by the effects that its tool declares."""

from __future__ import annotations

from toolcrib.core.context import ToolContext
from toolcrib.core.ports import Approver
from toolcrib.core.types import ALLOW, Effect, EffectKind, JsonObject, ToolEntry, Verdict

# What a person wants to be asked about; reading, looking something up and asking the person are not among them.
ASK_ABOUT: dict[EffectKind, str] = {
    "exec": "runs a command",
    "write": "writes to",
    "delete": "deletes",
    "publish": "publishes something",
    "spend": "spends money",
    "secret": "uses a secret",
}


class EffectGate:
    """Allows what has no effect, asks about the rest, and denies where nobody can be asked."""

    def __init__(self, approver: Approver | None = None) -> None:
        self._approver = approver

    def judge(self, entry: ToolEntry, effects: tuple[Effect, ...] | None) -> Verdict:
        if effects is None:
            if entry.source.kind == "mcp":
                return Verdict("ask", (f"{entry.name} of {entry.source} does not say what it does",), "mcp_undeclared")
            return ALLOW
        asked = [effect for effect in effects if effect.kind in ASK_ABOUT]
        if not asked:
            return ALLOW
        reasons = tuple(f"{entry.name} {ASK_ABOUT[effect.kind]} {effect.target}".rstrip() for effect in asked)
        return Verdict("ask", reasons, asked[0].kind)

    async def settle(self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, ctx: ToolContext) -> Verdict:
        if self._approver is None:
            return Verdict("deny", (*verdict.reasons, "nobody is here to approve it"), verdict.rule)
        return await self._approver.ask(entry, arguments, verdict, ctx)
