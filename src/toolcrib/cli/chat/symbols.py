"""The few signs that the chat draws with, for terminals that can show them and for those that cannot."""

from __future__ import annotations

from msgspec import Struct

from toolcrib.cli.output import cell_width


class Symbols(Struct, frozen=True, kw_only=True):
    """One set of signs."""

    prompt: str
    more: str
    """In front of the further lines of what is typed."""
    done: str
    failed: str
    dot: str
    ellipsis: str
    spinner: str
    emoji: bool


UNICODE = Symbols(
    prompt="❯ ", more="  ", done="✓", failed="✗", dot=" · ", ellipsis="…", spinner="⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", emoji=True
)  # fmt: skip
ASCII = Symbols(
    prompt="> ", more="  ", done="ok", failed="failed", dot=" | ", ellipsis="...", spinner="-\\|/", emoji=False
)


def symbols_for(encoding: str) -> Symbols:
    """The signs that a stream of this encoding can write."""
    return UNICODE if encoding.lower().replace("-", "").startswith("utf") else ASCII


def fitted(text: str, columns: int, ellipsis: str = "…") -> str:
    """The text in at most so many columns, cut at its end."""
    if cell_width(text) <= columns:
        return text
    room = columns - len(ellipsis)
    used = 0
    for at, character in enumerate(text):
        used += cell_width(character)
        if used > room:
            return text[:at].rstrip() + ellipsis if room > 0 else ""
    return text


def seconds_in_words(seconds: float) -> str:
    """A time that passed, as short as it can be said: 0.4s, 12s, 3m 05s."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m"


def count_in_words(count: int) -> str:
    """A number of tokens, as short as it can be said: 950, 12.3k, 1.2M."""
    if count < 1_000:
        return str(count)
    if count < 999_950:
        return f"{count / 1_000:.1f}k"
    return f"{count / 1_000_000:.1f}M"


def cost_in_words(cost_usd: float | None) -> str:
    """What something cost; empty when nobody knows."""
    if cost_usd is None:
        return ""
    return f"${cost_usd:.2f}" if cost_usd >= 0.995 else f"${cost_usd:.4f}"
