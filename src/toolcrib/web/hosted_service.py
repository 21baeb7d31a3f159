"""A service behind a web API: the configuration it needs, and how to read its answers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from toolcrib.config.environment import environment
from toolcrib.core.errors import ToolcribError
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.provider_access import ProviderAccess

T = TypeVar("T")


class ServiceSpec(msgspec.Struct, frozen=True):
    """What a hosted service needs to be configured."""

    display_name: str
    base_url: str
    key_variables: tuple[str, ...]
    """The first one that is set counts."""
    url_variable: str = ""

    def access(
        self, client: Callable[[], GuardedClient], tool: str, *, own_url: str = "", key_env: str = ""
    ) -> ProviderAccess | None:
        """How to reach the service; None if it is not configured."""
        environ = environment()
        variables = (key_env,) if key_env else self.key_variables
        key_variable = next((name for name in variables if environ.get(name, "").strip()), variables[0])
        key = environ.get(key_variable, "").strip()
        own_url = own_url or environ.get(self.url_variable, "").strip()
        # With an address of one's own, a key may not be needed.
        if not key and not own_url:
            return None
        url = own_url or self.base_url
        name = self.display_name if url == self.base_url else f"{self.display_name} ({url})"
        return ProviderAccess(
            client=client(),
            display_name=name,
            base_url=url.rstrip("/"),
            key_variable=key_variable,
            key=key,
            tool=tool,
        )


class ApiService:
    """One service, as an API is called: by address and key."""

    name = ""

    def __init__(self, access: ProviderAccess, model: str = "") -> None:
        self.access = access
        self.model = model

    @property
    def display_name(self) -> str:
        return self.access.display_name

    @property
    def host(self) -> str:
        return self.access.host

    @property
    def is_free(self) -> bool:
        """Whether it costs nothing, because it runs on a machine of the user."""
        return self.access.is_private

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.access.key}"} if self.access.key else {}

    def read(self, read: Callable[[Any], T], answer: Any) -> T:
        """A part of an answer; raises ProviderFailed if it is not what the service documents."""
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError, ToolcribError):
            raise self.access.malformed() from None


def from_base64(text: str) -> bytes:
    """The bytes; raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("it is no Base64") from error
