"""What a connection asks of the rest of the program, each in one function; all of it is optional.

The functions are asked when a server is connected, on the loop of the hub, so that what they need of the SDK is not
loaded before. `contexts` gives the contexts of the calls that the server is working on, the latest last: whoever
answers for a person asks the one of that call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.ports import Gate
from toolcrib.core.types import JsonObject
from toolcrib.mcp.servers import Server

if TYPE_CHECKING:
    from toolcrib.core.services import Services

Contexts = Callable[[], list[ToolContext]]
MakeCallback = Callable[[Server, Contexts], Any]


class HubSide(Protocol):
    """The hub, as far as whoever answers its servers needs it."""

    settings: Settings
    workspace: str
    gate: Gate | None
    """Decides about what servers want of us; None means that nobody can be asked."""
    services: Callable[[], Services | None]
    """Gives what the runtime serves; a function, because a hub must not keep its runtime alive."""

    async def do(
        self, server: str, work: Callable[..., Awaitable[str | JsonObject]], ctx: ToolContext, /
    ) -> str | JsonObject:
        """What `work` gives with the connection of a server; every failure is an answer too."""
        ...


class Seams(msgspec.Struct, frozen=True, kw_only=True):
    """The callbacks that a server is given; None for what this program does not do."""

    sampling: MakeCallback | None = None
    """Gives the SDK's `sampling_callback`, or None for a server that may not ask."""
    sampling_capabilities: MakeCallback | None = None
    elicitation: MakeCallback | None = None
    """Gives the SDK's `elicitation_callback`."""
    roots: MakeCallback | None = None
    """Gives the SDK's `list_roots_callback`."""
    auth: MakeCallback | None = None
    """Gives the `httpx2.Auth` for a server with `auth: oauth`; raises NeedsLogin where nobody has logged in."""
    more_tools: Callable[[Server, Any], list[Any]] | None = None
    """From a server and its Connection to further tools, such as those for resources and prompts: pairs of an
    `Offered` and the function that is called (with arguments and context, on the caller's loop; see `McpHub.do`)."""
    close: Callable[[], Awaitable[None]] | None = None
    """Gives back what the others have opened; called on the loop of the hub when it closes."""
