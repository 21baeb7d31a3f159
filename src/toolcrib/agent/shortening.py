"""Long texts made short: the beginning and the end say most."""

from __future__ import annotations


def shortened(text: str, limit: int) -> str:
    """The text, or two thirds of the limit from its beginning and one third from its end."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit * 2 // 3], text[-(limit // 3) :]
    return f"{head}\n… [{len(text) - len(head) - len(tail)} characters left out] …\n{tail}"
