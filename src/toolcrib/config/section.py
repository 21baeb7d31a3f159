"""The base class of all config sections, and the metadata that fields can have."""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct


class Section(Struct, frozen=True, kw_only=True):
    """One section of the config file. A Struct, because a dataclass takes forty times as long to define."""


class PrivateSection(Section, frozen=True, kw_only=True):
    """A section that may hold tokens, so its values never show in logs and tracebacks."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65_535)]

NOT_IN_FILE = Meta(extra={"in_file": False})
"""The environment sets this field, never the config file."""


def shorthand(key: str) -> Meta:
    """A single value in place of the section sets this key."""
    return Meta(extra={"shorthand": key})


def item_text(convert: Callable[[Any], str]) -> Meta:
    """The items of a list may be text or mappings; `convert` turns each into its line of text."""
    return Meta(extra={"item_text": convert})
