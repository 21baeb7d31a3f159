"""What can go wrong with a server, by what the caller can do about it.

ServerFailed          the server is unavailable; the message is for both the person and the model
├── RequestNotSent    the request certainly never reached the server, so it is safe to send again
└── LoginRequired     the server wants somebody to log in
    └── NotLoggedIn   no login is stored, so the server was not even asked
RequestFailed         the server responded with an error or with something unusable
ConnectionLost        the connection ended during a request, so nobody knows whether it was carried out
"""

from __future__ import annotations

from toolcrib.core.errors import ToolcribError


class ServerFailed(ToolcribError):
    """The server is unavailable; the message says why."""


class RequestNotSent(ServerFailed):
    """The request certainly did not reach the server."""


class LoginRequired(ServerFailed):
    """The server requires a login."""


class NotLoggedIn(LoginRequired):
    """No login is stored for the server."""


class ConnectionLost(ToolcribError):
    """The connection ended after the request was sent, or may have been."""


class RequestFailed(ToolcribError):
    """The server refused the request or sent an unusable response."""
