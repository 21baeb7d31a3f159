"""What the generations of Claude take: the length of an answer, how thinking is asked for, which fields they refuse."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from toolcrib.core.models import ModelRequest
from toolcrib.core.types import JsonObject

_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_NEWEST = (99, 0)
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 24_576}
MIN_BUDGET_TOKENS = 1_024
OTHER_MAX_TOKENS = 8_192

# The first generation that a model is not older than decides.
_MAX_TOKENS: tuple[tuple[tuple[int, int], int], ...] = (
    ((4, 6), 64_000),
    ((4, 0), 32_000),
    ((3, 7), 32_000),
    ((3, 5), 8_192),
    ((0, 0), 4_096),
)


class Family(NamedTuple):
    """What is known of a model by its name."""

    version: tuple[int, int] | None
    """None: not a Claude, but somebody else's model behind the same protocol."""
    always_thinks: bool = False

    @property
    def max_tokens(self) -> int:
        if self.version is None:
            return OTHER_MAX_TOKENS
        return next(tokens for first, tokens in _MAX_TOKENS if self.version >= first)

    @property
    def thinks_adaptively(self) -> bool:
        """It decides itself how long to think, by an effort; the older ones get a budget of tokens."""
        return self.version is not None and self.version >= (4, 6)

    @property
    def can_think(self) -> bool:
        return self.version is None or self.version >= (3, 7)

    @property
    def takes_temperature(self) -> bool:
        return self.version is None or self.version < (4, 7)

    @property
    def promises_schemas(self) -> bool:
        return self.version is not None and self.version >= (4, 5)


def family_of(model: str) -> Family:
    """The family of a model name, also as cloud services spell it. Without a number it is the newest."""
    name = model.lower()
    found = _VERSION.search(name)
    if found is None:
        return Family(_NEWEST, always_thinks=_is_always_on(name, _NEWEST)) if "claude" in name else Family(None)
    version = (int(found[1]), int(found[2] or 0))
    return Family(version, always_thinks=_is_always_on(name, version))


def _is_always_on(name: str, version: tuple[int, int]) -> bool:
    return "fable" in name or "mythos" in name or ("opus" in name and version >= (5, 5))


def thinking_fields(request: ModelRequest, family: Family, max_tokens: int) -> JsonObject:
    """The fields of a request that say how long to think: none where that is left to the provider."""
    effort = request.reasoning_effort
    if not effort or not family.can_think:
        return {}
    if family.thinks_adaptively:
        if effort != "none":
            thinking = {"type": "adaptive", "display": "summarized"}
            return {"thinking": thinking, "output_config": {"effort": effort}}
        return {"output_config": {"effort": "low"}} if family.always_thinks else {"thinking": {"type": "disabled"}}
    if effort == "none":
        return {"thinking": {"type": "disabled"}} if family.version is None else {}
    budget = min(_BUDGETS[effort], max_tokens // 2)
    # A budget cannot be combined with a forced call.
    if budget < MIN_BUDGET_TOKENS or request.tool_choice == "required":
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def is_thinking(fields: dict[str, Any]) -> bool:
    return fields.get("thinking", {}).get("type") in ("adaptive", "enabled")
