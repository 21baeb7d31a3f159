"""What was asked for on the command line of `toolcrib chat`."""

from __future__ import annotations

from msgspec import Struct


class ChatOptions(Struct, frozen=True, kw_only=True):
    """The options of one chat, checked and with names split."""

    query: str | None = None
    model: str = ""
    provider: str = ""
    toolsets: tuple[str, ...] | None = None
    """None: those of the config. Empty: no tools."""
    disabled_toolsets: tuple[str, ...] = ()
    yolo: bool | None = None
    max_turns: int | None = None
    cwd: str | None = None
    resume: str | None = None
    """The session to go on with, or `last`."""
    quiet: bool = False
    as_json: bool = False
    dry_run: bool = False
