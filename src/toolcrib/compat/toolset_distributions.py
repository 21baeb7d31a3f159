"""`toolset_distributions`: the named mixtures from which a batch run samples toolsets."""

from __future__ import annotations

import sys

from toolcrib.toolsets.distributions import (
    DISTRIBUTIONS,
    describe_distribution,
    get_distribution,
    list_distributions,
    sample_toolsets_from_distribution,
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


def print_distribution_info(distribution_name: str) -> None:
    """Print a distribution for people, or that there is none of that name."""
    try:
        text = describe_distribution(distribution_name)
    except ValueError as error:
        text = str(error)
    sys.stdout.write(text + "\n")
