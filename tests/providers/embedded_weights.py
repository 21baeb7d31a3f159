"""The weights that `scripts/test-services up` put into the cache; a missing model skips the test."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.providers.embedded_sources import make_store
from toolcrib.providers.embedded.catalog import find_model
from toolcrib.providers.embedded.weights import Weights, WeightsStore

STATE_FILE = Path(__file__).parents[2] / ".services" / "env"
KEY = "TOOLCRIB_TEST_MODEL_DIR="


def cached_store() -> WeightsStore:
    """Only the cache: a test downloads nothing."""
    lines = STATE_FILE.read_text().splitlines() if STATE_FILE.exists() else []
    found = [shlex.split(line.removeprefix(KEY))[0] for line in lines if line.startswith(KEY)]
    if not found:
        pytest.skip("no model: run scripts/test-services up")
    return make_store(Path(found[0]))


def cached_weights(name: str = "") -> Weights:
    model = find_model(name)
    path = cached_store().path(model)
    if path is None:
        pytest.skip(f"the weights of {model.title} are missing: run scripts/test-services up")
    return Weights(model=model, path=path)
