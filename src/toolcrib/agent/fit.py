"""Cuts a conversation down to what a model with a tight limit can take, without touching what is stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from toolcrib.agent.conversation import whole_groups
from toolcrib.agent.shortening import shortened
from toolcrib.agent.tokens import ASCII_CHARS_PER_TOKEN, tokens_of
from toolcrib.core.messages import Message

SMALLEST_RESULT_CHARS = 400


def within(messages: Sequence[Message], budget_tokens: int) -> list[Message]:
    """The latest messages that fit, calls and results together; the newest question always stays, results are cut."""
    newest = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    share = max(SMALLEST_RESULT_CHARS, budget_tokens * ASCII_CHARS_PER_TOKEN // 2)
    left = budget_tokens - sum(tokens_of(message) for message in messages[newest : newest + 1])
    kept: list[Message] = []
    for start, end in reversed(whole_groups(messages)):
        if start == newest:
            kept = [messages[newest], *kept]
            continue
        group = [_cut(message, share) for message in messages[start:end]]
        left -= sum(tokens_of(message) for message in group)
        if left < 0:
            # The question comes before everything that follows it, whether or not all of that fits.
            kept = [messages[newest], *kept] if start > newest else kept
            break
        kept = [*group, *kept]
    first = next((at for at, message in enumerate(kept) if message.role == "user"), 0)
    return kept[first:]


def _cut(message: Message, limit: int) -> Message:
    if message.role != "tool" or len(message.text) <= limit:
        return message
    return msgspec.structs.replace(message, content=shortened(message.text, limit))
