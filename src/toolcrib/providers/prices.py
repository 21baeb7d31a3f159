"""What an answer cost, by the prices in the config, where the provider does not say."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolcrib.config.agent_settings import Prices
from toolcrib.core.models import Emit, ModelProfile, ModelRequest, ModelResponse, Provider, Usage

MILLION = 1_000_000


def with_cost(usage: Usage, prices: Prices) -> Usage:
    """The usage with its cost; what the provider says it cost stays."""
    if usage.cost_usd is not None:
        return usage
    fresh = max(usage.input_tokens - usage.cached_tokens, 0)
    # Who leaves the price of cached tokens out does not mean that they are free.
    cached = usage.cached_tokens * (prices.cached or prices.input)
    cost = (fresh * prices.input + cached + usage.output_tokens * prices.output) / MILLION
    return msgspec.structs.replace(usage, cost_usd=cost)


class Priced:
    """A provider whose answers say what they cost; see Provider."""

    def __init__(self, inner: Provider, prices: Mapping[str, Prices]) -> None:
        self._inner = inner
        self._prices = prices
        self.name = inner.name
        self.dialect = inner.dialect
        self.base_url = inner.base_url
        self.api_mode = inner.api_mode

    def profile(self, model: str) -> ModelProfile:
        return self._inner.profile(model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        response = await self._inner.complete(request, emit)
        prices = self._prices.get(f"{self.name}/{request.model}") or self._prices.get(request.model)
        if prices is None:
            return response
        return msgspec.structs.replace(response, usage=with_cost(response.usage, prices))

    async def close(self) -> None:
        await self._inner.close()
