"""What goes wrong with a server, told apart by what may be done about it.

ServerFailed          the server cannot be used now; the message is for the person and for the model
├── NotSent           a request that surely never reached it, so that it may be sent again
└── NeedsLogin        it wants somebody to log in
    └── NoLogin       likewise, and nobody had to ask the server to know
RequestFailed         the server answered, but with an error or with something that is no answer
ConnectionLost        the connection ended under a request: nobody knows whether it was carried out
"""

from __future__ import annotations

from toolcrib.core.errors import ToolcribError


class ServerFailed(ToolcribError):
    """A server cannot be used now; says why."""


class NotSent(ServerFailed):
    """A request surely did not reach the server."""


class NeedsLogin(ServerFailed):
    """The server wants somebody to log in first."""


class NoLogin(NeedsLogin):
    """No login is kept for the server."""


class ConnectionLost(ToolcribError):
    """The connection ended after a request had been sent, or may have been."""


class RequestFailed(ToolcribError):
    """The server refused a request, or answered it with something that nobody can use."""
