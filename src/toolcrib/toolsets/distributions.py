"""Named mixtures of toolsets from which a batch run samples the tools of each prompt.

A distribution gives every toolset a chance, in percent, of being included. Tool files and plugins may add their own to
`DISTRIBUTIONS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from toolcrib.core.errors import nearest_names

Distribution = dict[str, Any]


def _mix(description: str, **percent: int) -> Distribution:
    return {"description": description, "toolsets": percent}


DISTRIBUTIONS: dict[str, Distribution] = {
    "default": _mix("Everything, every time", web=100, vision=100, image_gen=100, terminal=100, file=100, browser=100),
    "image_gen": _mix("Image generation, with research for it", image_gen=90, vision=90, web=55, terminal=45),
    "research": _mix("Web research", web=90, browser=70, vision=50, terminal=10),
    "science": _mix(
        "Research with computation: the web, files and commands",
        web=94,
        terminal=94,
        file=94,
        vision=65,
        browser=50,
        image_gen=15,
    ),
    "development": _mix("Writing software", terminal=80, file=80, web=30, vision=10),
    "safe": _mix("Nothing that runs commands or writes files", web=80, browser=70, vision=60, image_gen=60),
    "balanced": _mix(
        "Every toolset with a 50 % chance", web=50, vision=50, image_gen=50, terminal=50, file=50, browser=50
    ),
    "minimal": _mix("Only the web", web=100),
    "terminal_only": _mix("Commands and files", terminal=100, file=100),
    "terminal_web": _mix("Commands, files and the web", terminal=100, file=100, web=100),
    "creative": _mix("Mostly image generation, with ideas from the web", image_gen=90, vision=90, web=30),
    "reasoning": _mix("Hard questions, with research and reasoning", web=90, file=60, terminal=20),
    "browser_use": _mix("The browser, often with web search", browser=100, web=80, vision=70),
    "browser_only": _mix("Only the browser", browser=100),
    "browser_tasks": _mix("Tasks on websites, sometimes with a shell", browser=97, vision=12, terminal=15),
    "terminal_tasks": _mix(
        "Tasks in a shell, with the web", terminal=97, file=97, web=97, browser=75, vision=50, image_gen=10
    ),
    "mixed_tasks": _mix(
        "Shell and browser tasks together", browser=92, terminal=92, file=92, web=35, vision=15, image_gen=15
    ),
}


def get_distribution(name: str) -> Distribution | None:
    """The distribution with that name, or None."""
    return DISTRIBUTIONS.get(name)


def list_distributions() -> dict[str, Distribution]:
    """All distributions by name."""
    return DISTRIBUTIONS.copy()


def validate_distribution(distribution_name: str) -> bool:
    """Whether there is a distribution with that name."""
    return distribution_name in DISTRIBUTIONS


def sample_toolsets_from_distribution(
    distribution_name: str,
    rng: random.Random | None = None,
    known: Callable[[str], bool] | None = None,
) -> list[str]:
    """Roll for each toolset independently; take the most likely one if all rolls fail. Unknown names raise ValueError.

    Toolsets for which `known` returns False are ignored.
    """
    percents = _require(distribution_name)["toolsets"]
    if known is not None:
        percents = {toolset: percent for toolset, percent in percents.items() if known(toolset)}
    # The default is the shared generator, so that `random.seed` makes a whole batch repeatable.
    roll = random.random if rng is None else rng.random
    chosen = [toolset for toolset, percent in percents.items() if roll() * 100 < percent]
    if chosen or not percents:
        return chosen
    return [max(percents, key=percents.__getitem__)]


def describe_distribution(name: str) -> str:
    """A distribution as readable text, the likeliest toolset first. Unknown names raise ValueError."""
    distribution = _require(name)
    by_chance = sorted(distribution["toolsets"].items(), key=lambda pair: (-pair[1], pair[0]))
    lines = [f"  {percent:>3} %  {toolset}" for toolset, percent in by_chance]
    return "\n".join([f"{name}: {distribution['description']}", *lines])


def _require(name: str) -> Distribution:
    distribution = DISTRIBUTIONS.get(name)
    if distribution is not None:
        return distribution
    nearest = nearest_names(name, DISTRIBUTIONS)
    advice = f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else f"one of {', '.join(DISTRIBUTIONS)}"
    raise ValueError(f"Unknown distribution: {name}; {advice}")
