"""Puts the models that tests run into the cache, and prints the folder on stdout; progress goes to stderr."""

from __future__ import annotations

import sys

from toolcrib.config.environment import environment
from toolcrib.core.cancel import CancelToken
from toolcrib.core.models import ModelError
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, find_model
from toolcrib.providers.embedded.weights import open_store

# The small one first: most tests of the engine make do with it.
NAMES = ("smollm2-135m", DEFAULT_MODEL)


class Progress:
    """One line for each thing that is being done."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, done: int, total: int, what: str) -> None:
        if what != self._said:
            self._said = what
            print(f"model: {what} ({done / 1e6:,.0f} of {total / 1e6:,.0f} MB)", file=sys.stderr)


def main() -> int:
    """0 when all of them are there."""
    store = open_store(environment())
    for name in NAMES:
        model = find_model(name)
        try:
            weights = store.obtain(model, Progress(), CancelToken())
        except ModelError as error:
            print(f"model: {error}", file=sys.stderr)
            return 1
        if weights.model is not model:
            print(f"model: {weights.notice}", file=sys.stderr)
            return 1
    print(store.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
