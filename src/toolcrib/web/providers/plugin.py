"""A provider that a plugin registered: foreign code behind our protocol."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.web.providers.provider import ProviderFailed, ProviderPage, SearchHit, hit, hits, items, text_of

PLUGIN_SECONDS = 60.0


class PluginProvider:
    """Adapts the object that a plugin passed to `ctx.register_web_search_provider`."""

    host = ""

    def __init__(self, provider: Any, seconds: float = PLUGIN_SECONDS) -> None:
        self._provider = provider
        self._seconds = seconds

    @property
    def name(self) -> str:
        return str(self._ask("name", ""))

    @property
    def display_name(self) -> str:
        return str(self._ask("display_name", "") or self.name)

    @property
    def is_available(self) -> bool:
        return bool(self._ask("is_available", True))

    @property
    def can_search(self) -> bool:
        return bool(self._ask("supports_search", True))

    @property
    def can_extract(self) -> bool:
        return bool(self._ask("supports_extract", False))

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        answer = await self._call(self._provider.search, query, limit)
        self._require_success(answer)
        try:
            data = answer.get("data", answer) if isinstance(answer, Mapping) else {"web": answer}
            found = [hit(one, description=_snippet(one), date=text_of(one, "date")) for one in items(data, "web")]
        except LookupError:
            raise self._malformed() from None
        return hits(found, limit)

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        answer = await self._call(self._provider.extract, list(urls))
        self._require_success(answer)
        try:
            found = items(answer, "results") if isinstance(answer, Mapping) else items(answer)
        except LookupError:
            raise self._malformed() from None
        return [
            ProviderPage(
                url=text_of(one, "url"),
                title=text_of(one, "title"),
                content=text_of(one, "content", "raw_content"),
                error=text_of(one, "error")[:300],
            )
            for one in found
        ]

    def _ask(self, name: str, default: Any) -> Any:
        """An attribute or method of the plugin's object; the default if it is missing or raises."""

        def read() -> Any:
            value = getattr(self._provider, name, default)
            return value() if callable(value) else value

        answer, error = attempt(read)
        return default if error is not None and name != "is_available" else answer

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the plugin's method, sync or async, within the time limit; raises ProviderFailed."""
        try:
            async with asyncio.timeout(self._seconds):
                answer, error = await asyncio.to_thread(attempt, method, *arguments)
                if inspect.isawaitable(answer):
                    answer, error = await attempt_async(answer)
        except TimeoutError:
            late = f"{self.display_name} did not answer within {self._seconds:g} seconds"
            raise ProviderFailed(late, "timeout") from None
        if error is not None:
            raise ProviderFailed(f"{self.display_name} failed ({type(error).__name__})", "server") from error
        return answer

    def _require_success(self, answer: Any) -> None:
        if isinstance(answer, Mapping) and answer.get("success") is False:
            reason = text_of(answer, "error")[:200] or "it gave no reason"
            raise ProviderFailed(f"{self.display_name} failed: {reason}", "server")

    def _malformed(self) -> ProviderFailed:
        return ProviderFailed(f"{self.display_name} sent an answer that cannot be understood", "malformed")


def _snippet(found: Mapping[str, Any]) -> str:
    return text_of(found, "description", "snippet", "content")
