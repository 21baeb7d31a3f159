"""The options of `toolcrib chat`."""

from __future__ import annotations

from msgspec import Struct

from toolcrib.core.approvals import Mode


class ChatOptions(Struct, frozen=True, kw_only=True):
    """The checked options of a chat."""

    query: str | None = None
    prompt: str = ""
    """The first message of an interactive chat."""
    model: str = ""
    provider: str = ""
    toolsets: tuple[str, ...] | None = None
    """None means those of the config, empty means no tools."""
    disabled_toolsets: tuple[str, ...] = ()
    yolo: bool | None = None
    max_turns: int | None = None
    cwd: str | None = None
    resume: str | None = None
    """The session to resume, or `last`."""
    quiet: bool = False
    as_json: bool = False
    dry_run: bool = False
    mode: Mode | None = None
    """None means that of the config."""
