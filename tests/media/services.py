"""Runtimes whose media services are on loopback, and the answers that every service must survive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tests.web.sites import Page, Site, SiteRequest
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.runtime import Runtime

KEY = "sk-very-secret-0123456789abcdef"
JSON = {"content-type": "application/json"}

FAILURES: dict[str, tuple[Page | str, str]] = {
    "wrong key": ((401, JSON, f'{{"error": "bad key {KEY}"}}'.encode()), "refused the key in"),
    "no credit": ((402, JSON, b"{}"), "has no credit left"),
    "quota": ((429, {**JSON, "retry-after": "7"}, b"{}"), "request limit of"),
    "server": ((503, JSON, KEY.encode()), "has a problem (HTTP 503); try again later"),
    "request": ((400, JSON, b"{}"), "did not accept the request (HTTP 400)"),
    "malformed": ((200, JSON, b'{"data": [{'), "sent an answer that cannot be understood"),
    "another shape": ((200, JSON, b'{"data": 7, "images": {}, "candidates": "x", "status": []}'), "be understood"),
    "a list": ((200, JSON, b"[7]"), "be understood"),
    "huge": ("huge", "is larger than"),
    "slow": ("slow", "did not answer within"),
}
"""How a service fails, and what the result must say."""


def failing(site: Site, how: Page | str) -> Page | Callable[[SiteRequest], Page]:
    if how == "huge":
        # What is told at once costs the test nothing; what comes is for a client that does not look at it.
        return 200, {**JSON, "content-length": "99999999999"}, b'"' + b"x" * 1_200_000
    if how == "slow":

        def wait(_: SiteRequest) -> Page:
            site.released.wait(30)
            return 200, JSON, b"{}"

        return wait
    assert not isinstance(how, str)
    return how


def as_json(value: Any) -> Page:
    return 200, JSON, json.dumps(value).encode()


class Asking:
    """Approves everything unless told otherwise, and remembers what it was asked."""

    def __init__(self) -> None:
        self.choice: Literal["once", "deny"] = "once"
        self.requests: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.requests.append(request)
        return ApprovalAnswer(choice=self.choice, decided_by="user")


OpenMedia = Callable[..., Runtime]


async def called(runtime: Runtime, tool: str, **arguments: Any) -> dict[str, Any]:
    """The tool's answer as JSON; the key is never in it."""
    result = await runtime.call(tool, arguments)
    assert KEY not in result.text
    return dict(json.loads(result.text))


def content(path: str) -> bytes:
    """What a result's file contains."""
    return Path(path).read_bytes()
