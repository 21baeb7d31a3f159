import random

import pytest

from toolcrib.toolsets.catalog import TOOLSETS
from toolcrib.toolsets.distributions import (
    DISTRIBUTIONS,
    describe_distribution,
    get_distribution,
    list_distributions,
    sample_toolsets_from_distribution,
    validate_distribution,
)

NAMES = [
    "default",
    "image_gen",
    "research",
    "science",
    "development",
    "safe",
    "balanced",
    "minimal",
    "terminal_only",
    "terminal_web",
    "creative",
    "reasoning",
    "browser_use",
    "browser_only",
    "browser_tasks",
    "terminal_tasks",
    "mixed_tasks",
]


class Rolls(random.Random):
    """A generator that rolls the given numbers and then fails."""

    def __init__(self, *rolls: float) -> None:
        super().__init__()
        self.rolls = iter(rolls)

    def random(self) -> float:
        return next(self.rolls)


def test_the_seventeen_distributions_exist():
    """Every documented distribution can be found by its name."""
    assert list(list_distributions()) == NAMES
    assert all(validate_distribution(name) and get_distribution(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_distribution_names_known_toolsets_with_percentages(name):
    """Each toolset exists, and each chance lies between 1 and 100."""
    distribution = DISTRIBUTIONS[name]

    assert distribution["description"]
    assert set(distribution["toolsets"]) <= set(TOOLSETS)
    assert all(1 <= percent <= 100 for percent in distribution["toolsets"].values())


def test_each_toolset_is_rolled_on_its_own():
    """A roll below the chance takes the toolset, a roll at it does not."""
    rolls = [percent / 100 - 0.01 for percent in DISTRIBUTIONS["balanced"]["toolsets"].values()]
    rolls[0] = 0.5

    chosen = sample_toolsets_from_distribution("balanced", Rolls(*rolls))

    assert chosen == list(DISTRIBUTIONS["balanced"]["toolsets"])[1:]


def test_the_likeliest_toolset_stands_in_when_all_rolls_fail():
    """A sample is never empty."""
    rolls = [0.999] * len(DISTRIBUTIONS["reasoning"]["toolsets"])

    assert sample_toolsets_from_distribution("reasoning", Rolls(*rolls)) == ["moa"]


def test_a_certain_toolset_is_always_chosen_and_a_seed_repeats_a_sample():
    """100 % means always; the same seed gives the same sample."""
    assert sample_toolsets_from_distribution("terminal_only") == ["terminal", "file"]
    samples = [sample_toolsets_from_distribution("mixed_tasks", random.Random(7)) for _ in range(2)]
    assert samples[0] == samples[1]


def test_an_unknown_distribution_is_refused_with_the_nearest_name():
    """Sampling and describing name what was probably meant; look-ups answer None and False."""
    with pytest.raises(ValueError, match=r"unknown distribution 'reserch'; did you mean 'research'\?"):
        sample_toolsets_from_distribution("reserch")
    with pytest.raises(ValueError, match="one of default"):
        describe_distribution("zzz")
    assert get_distribution("reserch") is None
    assert not validate_distribution("reserch")


def test_a_description_lists_the_toolsets_by_chance():
    """The text names the distribution and every toolset, the likeliest first."""
    assert describe_distribution("creative") == (
        "creative: Pictures first, ideas from the web\n   90 %  image_gen\n   80 %  vision\n   40 %  web\n   20 %  tts"
    )
