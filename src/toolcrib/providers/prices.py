"""What well-known models cost, as data: US dollars per million tokens, as their makers publish them (November 2026).

A model that is not listed has an unknown cost, never a guessed one; `model.prices` in the config adds to this table and
wins over it. Makers that charge more for very long prompts are listed with the price of the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolcrib.config.agent_settings import Prices
from toolcrib.core.lazy import lazy_pattern

# provider: {model: (input, input from the cache, output)}
TABLE: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "anthropic": {
        "claude-opus-5-5": (4, 0.4, 20),
        "claude-opus-5": (5, 0.5, 25),
        "claude-opus-4-8": (5, 0.5, 25),
        "claude-opus-4-7": (5, 0.5, 25),
        "claude-opus-4-6": (5, 0.5, 25),
        "claude-opus-4-5": (5, 0.5, 25),
        "claude-opus-4-1": (15, 1.5, 75),
        "claude-opus-4": (15, 1.5, 75),
        "claude-sonnet-5-5": (2, 0.1, 10),
        "claude-sonnet-5": (2, 0.2, 10),
        "claude-sonnet-4-6": (3, 0.3, 15),
        "claude-sonnet-4-5": (3, 0.3, 15),
        "claude-sonnet-4": (3, 0.3, 15),
        "claude-3-7-sonnet": (3, 0.3, 15),
        "claude-haiku-4-5": (1, 0.1, 5),
        "claude-3-5-haiku": (0.8, 0.08, 4),
    },
    "openai": {
        "gpt-5.5": (5, 0.5, 30),
        "gpt-5.4": (2.5, 0.25, 15),
        "gpt-5.4-mini": (0.75, 0.075, 4.5),
        "gpt-5.4-nano": (0.2, 0.02, 1.25),
        "gpt-5.1": (1.25, 0.125, 10),
        "gpt-5": (1.25, 0.125, 10),
        "gpt-5-mini": (0.25, 0.025, 2),
        "gpt-5-nano": (0.05, 0.005, 0.4),
        "gpt-4.1": (2, 0.5, 8),
        "gpt-4.1-mini": (0.4, 0.1, 1.6),
        "gpt-4.1-nano": (0.1, 0.025, 0.4),
        "gpt-4o": (2.5, 1.25, 10),
        "gpt-4o-mini": (0.15, 0.075, 0.6),
        "o3": (2, 0.5, 8),
        "o4-mini": (1.1, 0.275, 4.4),
    },
    "gemini": {
        "gemini-3.8-flash": (0.75, 0, 3.75),
        "gemini-2.5-pro": (1.25, 0.31, 10),
        "gemini-2.5-flash": (0.3, 0.075, 2.5),
        "gemini-2.5-flash-lite": (0.1, 0.025, 0.4),
    },
}
FREE = frozenset({"embedded", "ollama", "lmstudio", "vllm", "llamacpp"})
"""The providers on this machine."""
_VERSION = lazy_pattern(r"[-@](?:\d{8}|\d{4}-\d\d-\d\d|latest)$")
"""A date that names a version of a model; it costs what the model does."""


def prices_of(provider: str, model: str, configured: Mapping[str, Prices]) -> Prices | None:
    """What a model costs: as the config says, else as its maker publishes it; None if that is unknown."""
    found = configured.get(f"{provider}/{model}") or configured.get(model)
    if found is not None:
        return found
    if provider in FREE:
        return Prices()
    row = TABLE.get(provider, {}).get(_VERSION.sub("", model.lower()))
    return None if row is None else Prices(input=row[0], cached=row[1], output=row[2])
