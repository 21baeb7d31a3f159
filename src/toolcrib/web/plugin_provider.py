"""A provider that a plugin registered: foreign code, which may raise, hang or return anything."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.web.provider_access import ProviderFailed


class PluginProvider:
    """Adapts the object that a plugin passed to `ctx.register_…_provider`."""

    host = ""

    def __init__(self, provider: Any, seconds: float) -> None:
        self.provider = provider
        self.seconds = seconds

    @property
    def name(self) -> str:
        return str(self.ask("name", ""))

    @property
    def display_name(self) -> str:
        return str(self.ask("display_name", "") or self.name)

    @property
    def is_available(self) -> bool:
        return bool(self.ask("is_available", True))

    def ask(self, name: str, default: Any) -> Any:
        """An attribute or method of the plugin's object; the default if it is missing or raises."""

        def read() -> Any:
            value = getattr(self.provider, name, default)
            return value() if callable(value) else value

        answer, error = attempt(read)
        return default if error is not None and name != "is_available" else answer

    async def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call the plugin's method, sync or async, within the time limit; raises ProviderFailed."""
        try:
            async with asyncio.timeout(self.seconds):
                answer, error = await asyncio.to_thread(attempt, method, *arguments, **options)
                if inspect.isawaitable(answer):
                    answer, error = await attempt_async(answer)
        except TimeoutError:
            late = f"{self.display_name} did not answer within {self.seconds:g} seconds"
            raise ProviderFailed(late, "timeout") from None
        if error is not None:
            raise ProviderFailed(f"{self.display_name} failed ({type(error).__name__})", "server") from error
        return answer

    def require_success(self, answer: Any) -> None:
        if isinstance(answer, Mapping) and answer.get("success") is False:
            given = answer.get("error")
            reason = given.strip()[:200] if isinstance(given, str) and given.strip() else "it gave no reason"
            raise ProviderFailed(f"{self.display_name} failed: {reason}", "server")

    def malformed(self) -> ProviderFailed:
        return ProviderFailed(f"{self.display_name} sent an answer that cannot be understood", "malformed")


def declared_objects(plugins: Sequence[Any], kind: str) -> Iterable[Any]:
    """What the loaded plugins passed to `ctx.register_KIND`."""
    for plugin in plugins:
        for declaration in plugin.declarations:
            # Passed by position or by whatever name the plugin's author knows.
            given = (*declaration.arguments, *declaration.options.values())
            if declaration.kind == kind and given:
                yield given[0]
