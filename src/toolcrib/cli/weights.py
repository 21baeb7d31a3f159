"""Gets the small model of this machine before it is needed, with a bar that says how far that is."""

from __future__ import annotations

import sys
from collections.abc import Callable

from toolcrib.cli.output import note
from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.context import CancelToken
from toolcrib.providers.choose import explain_choice
from toolcrib.providers.embedded.catalog import find_model
from toolcrib.providers.embedded.weights import WeightsStore, open_store


def fetch_weights(
    settings: Settings, *, model: str = "", provider: str = "", check: Callable[[], None] = lambda: None
) -> None:
    """Make sure that the weights are here if the embedded model is the one that answers; Ctrl-C can be gone on from.

    `check` is called before anything is fetched: nobody waits for minutes to be told of a misspelt option.
    """
    choice = explain_choice(settings, model=model, provider=provider)
    if choice.provider != "embedded":
        return
    store = open_store(environment(), settings.home)
    if store.path(find_model(choice.model)) is None:
        check()
        _fetch(store, choice.model)


def _fetch(store: WeightsStore, name: str) -> None:
    cancel = CancelToken()
    model = find_model(name)
    size = f"{model.bytes / 1e6:,.0f} MB"
    note(f"{model.title} ({model.licence}) is fetched once: {size}. Ctrl-C stops; the next start goes on from there.")
    try:
        weights = store.obtain(model, _Bar() if sys.stderr.isatty() else _Lines(), cancel)
    except KeyboardInterrupt:
        cancel.cancel("interrupted")
        raise
    if weights.notice:
        note(weights.notice)


class _Bar:
    """One line that grows, redrawn in place."""

    WIDTH = 30

    def __call__(self, done: int, total: int, what: str) -> None:
        share = done / total if total else 0.0
        filled = int(share * self.WIDTH)
        bar = "#" * filled + "-" * (self.WIDTH - filled)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{bar}] {share:4.0%} of {total / 1e6:,.0f} MB  {what[:30]:30}{end}")
        sys.stderr.flush()


class _Lines:
    """A line for every tenth, where nobody watches."""

    def __init__(self) -> None:
        self._tenths = -1

    def __call__(self, done: int, total: int, what: str) -> None:
        tenths = done * 10 // total if total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            note(f"{what}: {tenths * 10} % of {total / 1e6:,.0f} MB")
