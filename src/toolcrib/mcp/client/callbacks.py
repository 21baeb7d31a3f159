"""The callbacks through which a connection asks the rest of the program; all of them are optional.

They are created when a server connects, on the manager's loop, so that the SDK is not loaded earlier. `contexts` gives
the contexts of the calls in flight, the latest last: a handler that needs a person asks the one behind that call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.mcp.client.servers import Server

Contexts = Callable[[], list[ToolContext]]
CallbackFactory = Callable[[Server, Contexts], Any]


class ClientCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """What servers may ask of us; None for anything this program does not support."""

    sampling: CallbackFactory | None = None
    """Makes the SDK's `sampling_callback`, or None for a server that may not sample."""
    sampling_capabilities: CallbackFactory | None = None
    elicitation: CallbackFactory | None = None
    """Makes the SDK's `elicitation_callback`."""
    roots: CallbackFactory | None = None
    """Makes the SDK's `list_roots_callback`."""
    auth: CallbackFactory | None = None
    """Makes the `httpx2.Auth` for a server with `auth: oauth`; raises LoginRequired if nobody has logged in."""
    extra_tools: Callable[[Server, Any], list[Any]] | None = None
    """Takes a server and its Connection and returns additional tools, such as those for resources and prompts, as pairs
    of an `McpTool` and its handler (called with arguments and context on the caller's loop)."""
    close: Callable[[], Awaitable[None]] | None = None
    """Releases what the other callbacks opened; called on the manager's loop when it closes."""
