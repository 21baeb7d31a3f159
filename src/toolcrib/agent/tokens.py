"""About how many tokens things take, without asking the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolcrib.core.messages import Message, Text
from toolcrib.core.types import JsonObject
from toolcrib.definitions.search import estimate_tokens as tokens_of_tools

MESSAGE_FRAME_TOKENS = 4
IMAGE_TOKENS = 1_000
ASCII_CHARS_PER_TOKEN = 4

__all__ = ["tokens_in", "tokens_of", "tokens_of_prompt", "tokens_of_tools"]


def tokens_in(text: str) -> int:
    """A quarter of the characters; where the script is not Latin, a token for each character."""
    if text.isascii():
        return len(text) // ASCII_CHARS_PER_TOKEN + 1
    wide = sum(1 for char in text if char > "\u2e80")
    return wide + (len(text) - wide) // 3 + 1


def tokens_of(message: Message) -> int:
    """What one message takes, its calls and images included."""
    if isinstance(message.content, str):
        total = tokens_in(message.content)
    else:
        total = sum(tokens_in(part.text) if isinstance(part, Text) else IMAGE_TOKENS for part in message.content)
    total += sum(tokens_in(call.name) + tokens_in(call.arguments) for call in message.tool_calls)
    return total + MESSAGE_FRAME_TOKENS


def tokens_of_prompt(system: str, tools: Sequence[JsonObject], messages: Iterable[Message]) -> int:
    """What a whole request takes."""
    return tokens_in(system) + tokens_of_tools(tools) + sum(tokens_of(message) for message in messages)
