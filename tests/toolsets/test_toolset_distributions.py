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

PERCENTS = {
    "default": {"web": 100, "vision": 100, "image_gen": 100, "terminal": 100, "file": 100, "browser": 100},
    "image_gen": {"image_gen": 90, "vision": 90, "web": 55, "terminal": 45},
    "research": {"web": 90, "browser": 70, "vision": 50, "terminal": 10},
    "science": {"web": 94, "terminal": 94, "file": 94, "vision": 65, "browser": 50, "image_gen": 15},
    "development": {"terminal": 80, "file": 80, "web": 30, "vision": 10},
    "safe": {"web": 80, "browser": 70, "vision": 60, "image_gen": 60},
    "balanced": {"web": 50, "vision": 50, "image_gen": 50, "terminal": 50, "file": 50, "browser": 50},
    "minimal": {"web": 100},
    "terminal_only": {"terminal": 100, "file": 100},
    "terminal_web": {"terminal": 100, "file": 100, "web": 100},
    "creative": {"image_gen": 90, "vision": 90, "web": 30},
    "reasoning": {"web": 90, "file": 60, "terminal": 20},
    "browser_use": {"browser": 100, "web": 80, "vision": 70},
    "browser_only": {"browser": 100},
    "browser_tasks": {"browser": 97, "vision": 12, "terminal": 15},
    "terminal_tasks": {"terminal": 97, "file": 97, "web": 97, "browser": 75, "vision": 50, "image_gen": 10},
    "mixed_tasks": {"browser": 92, "terminal": 92, "file": 92, "web": 35, "vision": 15, "image_gen": 15},
}
NAMES = list(PERCENTS)


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
    """Each distribution is described, and gives existing toolsets these chances, in this order of rolls."""
    distribution = DISTRIBUTIONS[name]

    assert distribution["description"]
    assert set(distribution["toolsets"]) <= set(TOOLSETS)
    assert list(distribution["toolsets"].items()) == list(PERCENTS[name].items())


def test_each_toolset_is_rolled_on_its_own():
    """A roll below the chance takes the toolset, a roll at it does not."""
    rolls = [percent / 100 - 0.01 for percent in DISTRIBUTIONS["balanced"]["toolsets"].values()]
    rolls[0] = 0.5

    chosen = sample_toolsets_from_distribution("balanced", Rolls(*rolls))

    assert chosen == list(DISTRIBUTIONS["balanced"]["toolsets"])[1:]


def test_the_likeliest_toolset_stands_in_when_all_rolls_fail():
    """A sample is never empty."""
    rolls = [0.999] * len(DISTRIBUTIONS["reasoning"]["toolsets"])

    assert sample_toolsets_from_distribution("reasoning", Rolls(*rolls)) == ["web"]


def test_a_toolset_that_does_not_exist_is_neither_rolled_for_nor_chosen():
    """What `known` denies takes no part in a sample, not even as the one that stands in."""
    chosen = sample_toolsets_from_distribution("research", Rolls(0.99, 0.99, 0.99), known=lambda name: name != "web")

    assert chosen == ["browser"]


def test_a_certain_toolset_is_always_chosen_and_a_seed_repeats_a_sample():
    """100 % means always; the same seed gives the same sample."""
    assert sample_toolsets_from_distribution("terminal_only") == ["terminal", "file"]
    samples = [sample_toolsets_from_distribution("mixed_tasks", random.Random(7)) for _ in range(2)]
    assert samples[0] == samples[1]


def test_an_unknown_distribution_is_refused_with_the_nearest_name():
    """Sampling and describing name what was probably meant; look-ups answer None and False."""
    with pytest.raises(ValueError, match=r"Unknown distribution: reserch; did you mean 'research'\?"):
        sample_toolsets_from_distribution("reserch")
    with pytest.raises(ValueError, match="one of default"):
        describe_distribution("zzz")
    assert get_distribution("reserch") is None
    assert not validate_distribution("reserch")


def test_a_description_lists_the_toolsets_by_chance():
    """The text names the distribution and every toolset, the likeliest first."""
    assert describe_distribution("creative") == (
        "creative: Mostly image generation, with ideas from the web\n   90 %  image_gen\n   90 %  vision\n   30 %  web"
    )
