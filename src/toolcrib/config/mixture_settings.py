"""The settings of `mixture_of_agents`.

Annotations are real objects here, as in `settings.py`.
"""

from msgspec import field

from toolcrib.config.section import PositiveFloat, PositiveInt, Section


class MixtureSettings(Section, frozen=True, kw_only=True):
    """How `mixture_of_agents` asks several models."""

    reference_models: list[str] = field(default_factory=list)
    """The models that answer side by side, as `provider/model`; empty means the main model, its fallbacks and the
    auxiliary model."""
    aggregator: str = ""
    """The model that makes one answer of theirs, as `provider/model`; empty means the main model."""
    max_tokens: PositiveInt = 4096
    """The longest answer of each model, in tokens."""
    timeout: PositiveFloat = 180
    """How many seconds each model may take."""
