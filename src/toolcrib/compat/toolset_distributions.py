"""`toolset_distributions`: the named mixtures from which a batch run samples toolsets."""

from __future__ import annotations

import logging
import sys

from toolcrib.compat import toolsets
from toolcrib.toolsets import distributions
from toolcrib.toolsets.distributions import (
    DISTRIBUTIONS,
    describe_distribution,
    get_distribution,
    list_distributions,
    validate_distribution,
)

__all__ = [
    "DISTRIBUTIONS",
    "get_distribution",
    "list_distributions",
    "print_distribution_info",
    "sample_toolsets_from_distribution",
    "validate_distribution",
]


logger = logging.getLogger(__name__)


def sample_toolsets_from_distribution(distribution_name: str) -> list[str]:
    """Roll for each toolset on its own; one that does not exist is left out. Unknown names raise ValueError."""

    def known(toolset: str) -> bool:
        exists = toolsets.validate_toolset(toolset)
        if not exists:
            logger.warning("distribution %r names the unknown toolset %r", distribution_name, toolset)
        return exists

    return distributions.sample_toolsets_from_distribution(distribution_name, known=known)


def print_distribution_info(distribution_name: str) -> None:
    """Print a distribution, or that no distribution has that name."""
    try:
        text = describe_distribution(distribution_name)
    except ValueError as error:
        text = str(error)
    sys.stdout.write(text + "\n")
