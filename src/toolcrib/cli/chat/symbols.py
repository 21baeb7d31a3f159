"""The symbols of the chat, in Unicode and ASCII, and short forms of times, counts and costs."""

from __future__ import annotations

from msgspec import Struct

from toolcrib.cli.output import cell_width


class Symbols(Struct, frozen=True, kw_only=True):
    """A set of symbols."""

    prompt: str
    more: str
    """The prefix of continuation lines in the input."""
    done: str
    failed: str
    stopped: str
    dot: str
    ellipsis: str
    spinner: str
    bar: str
    """In front of a command's output."""
    minus: str
    open: str
    current: str
    checked: str
    dropped: str
    """The marks of a plan's items."""
    emoji: bool


UNICODE = Symbols(
    prompt="❯ ", more="  ", done="✓", failed="✗", stopped="■", dot=" · ", ellipsis="…", spinner="⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏",
    bar="│", minus="−", open="☐", current="▶", checked="☑", dropped="☒", emoji=True,
)  # fmt: skip
ASCII = Symbols(
    prompt="> ", more="  ", done="ok", failed="failed", stopped="stopped", dot=" | ", ellipsis="...",
    spinner="-\\|/", bar="|", minus="-", open="[ ]", current="[>]", checked="[x]", dropped="[-]", emoji=False,
)  # fmt: skip


def symbols_for(encoding: str) -> Symbols:
    """The symbols that a stream with this encoding can write."""
    return UNICODE if encoding.lower().replace("-", "").startswith("utf") else ASCII


def fitted(text: str, columns: int, ellipsis: str = "…") -> str:
    """The text, cut to fit into this many columns."""
    if cell_width(text) <= columns:
        return text
    room = columns - len(ellipsis)
    used = 0
    for at, character in enumerate(text):
        used += cell_width(character)
        if used > room:
            return text[:at].rstrip() + ellipsis if room > 0 else ""
    return text


def short_duration(seconds: float) -> str:
    """A duration in short form: 0.4s, 12s, 3m 05s."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m"


def short_count(count: int) -> str:
    """A number of tokens in short form: 950, 12.3k, 1.2M."""
    if count < 1_000:
        return str(count)
    if count < 999_950:
        return f"{count / 1_000:.1f}k"
    return f"{count / 1_000_000:.1f}M"


def short_cost(cost_usd: float | None) -> str:
    """A cost in dollars; empty if unknown."""
    if cost_usd is None:
        return ""
    return f"${cost_usd:.2f}" if cost_usd >= 0.995 or not cost_usd else f"${cost_usd:.4f}"
