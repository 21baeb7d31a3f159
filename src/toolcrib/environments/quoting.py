"""Writes values as bash reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def assignments(values: Mapping[str, str]) -> str:
    """One assignment a line."""
    return "\n".join(f"{name}={quote(value)}" for name, value in values.items())


def exports(variables: Mapping[str, str]) -> str:
    """One exported variable a line; what is no name for a variable is left out."""
    return "\n".join(f"export {name}={quote(value)}" for name, value in variables.items() if VARIABLE_NAME.match(name))
