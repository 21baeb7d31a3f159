"""Notices when a model repeats itself: the same call failing, the same tool failing, the same result again."""

from __future__ import annotations

import hashlib
import json

import msgspec

from toolcrib.config.agent_settings import GuardrailSettings
from toolcrib.core.messages import RequestedCall
from toolcrib.core.types import ToolResult

REPEATED_STOPS = 3
"""So many turns in a row in which every call was stopped, and the run ends."""

NOT_RUN = ("guardrail_block", "budget", "dry_run")
"""The kinds of results that say nothing about a tool, because it was not run."""
WAITED_MS = 1_000
"""A call that took so long has waited for something: asking the same again afterwards is no loop."""


class _Seen(msgspec.Struct):
    digest: bytes
    times: int


class Guardrails(msgspec.Struct):
    """The memory of one run. Progress elsewhere wipes it: a test may well fail again after an edit."""

    settings: GuardrailSettings
    _failures: dict[str, _Seen] = msgspec.field(default_factory=dict)
    _results: dict[str, _Seen] = msgspec.field(default_factory=dict)
    _failed_in_a_row: dict[str, int] = msgspec.field(default_factory=dict)
    _stopped_turns: int = 0

    def refusal(self, call: RequestedCall) -> str:
        """Why this call is not run any more; empty when it may run."""
        limits = self.settings.stop_after
        key = _key(call)
        if (seen := self._failures.get(key)) and seen.times >= limits.exact_failure:
            return f"this exact call failed {seen.times} times in the same way; change it or do something else"
        if (times := self._failed_in_a_row.get(call.name, 0)) >= limits.same_tool_failure:
            return f"{call.name} failed {times} times in a row; use another tool or say what is in the way"
        if (seen := self._results.get(key)) and seen.times >= limits.no_progress:
            return f"this exact call gave the same result {seen.times} times; use what it said, or do something else"
        return ""

    def note(self, call: RequestedCall, result: ToolResult, *, may_change_things: bool) -> str:
        """Takes the result in; returns what the model should be told about it, which is mostly nothing."""
        if result.status == "cancelled" or result.error_type in NOT_RUN:
            return ""
        key, limits = _key(call), self.settings.warn_after
        digest = hashlib.blake2b(result.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if not result.is_error:
            self._failures.pop(key, None)
            self._failed_in_a_row.pop(call.name, None)
            if result.duration_ms >= WAITED_MS:
                self._results.clear()
                return ""
            seen = _count(self._results, key, digest)
            if may_change_things and seen.times == 1:
                self._forget_all_but(key)
            if seen.times > limits.no_progress:
                return f"This call gave this same result {seen.times} times now; calling it again will not help."
            return ""
        self._results.pop(key, None)
        seen = _count(self._failures, key, digest)
        in_a_row = self._failed_in_a_row[call.name] = self._failed_in_a_row.get(call.name, 0) + 1
        if seen.times >= limits.exact_failure:
            return f"This exact call failed {seen.times} times in the same way; do not repeat it unchanged."
        if in_a_row >= limits.same_tool_failure:
            return f"{call.name} failed {in_a_row} times in a row; consider another way."
        return ""

    def is_hopeless(self, *, all_stopped: bool) -> bool:
        """Whether the model keeps asking for nothing but calls that are not run any more; asked after each turn."""
        self._stopped_turns = self._stopped_turns + 1 if all_stopped else 0
        return self._stopped_turns >= REPEATED_STOPS

    def _forget_all_but(self, key: str) -> None:
        self._failures.clear()
        self._failed_in_a_row.clear()
        self._results = {key: self._results[key]}


def _count(table: dict[str, _Seen], key: str, digest: bytes) -> _Seen:
    seen = table.get(key)
    if seen is None or seen.digest != digest:
        seen = table[key] = _Seen(digest, 0)
    seen.times += 1
    return seen


def _key(call: RequestedCall) -> str:
    """The call without the difference between two ways to write the same arguments."""
    try:
        arguments = json.dumps(json.loads(call.arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return f"{call.name}\n{arguments}"
