"""Webhooks: other services start runs, each with its own address and secret.

The signature of the raw body is the only way in. What was sent is data: the prompt comes from the config, and the run
has the toolsets that the config gives it. A delivery counts once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolcrib.config.environment import environment
from toolcrib.config.serve_settings import WebhookSettings
from toolcrib.core.errors import UsageError
from toolcrib.core.messages import user_message
from toolcrib.http_server import error_response
from toolcrib.registry.results import untrusted
from toolcrib.serve.run_store import LASTING
from toolcrib.serve.runs import RunManager, digest_of
from toolcrib.serve.tokens import ServerTokens, TokenError, TokenIdentity, UnsafeStart, require_strong

PREFIX = "/hooks/"
WINDOW_SECONDS = 300.0
"""How old a signed moment may be."""
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_PAYLOAD_CHARS = 50_000
SENDERS = TokenIdentity(name=" webhooks", scopes=frozenset())
"""Whose runs they are, for the limits; no token has such a name."""
TOO_LARGE = f"a delivery may have at most {MAX_BODY_BYTES:,} bytes"
TELEGRAM_URL, TELEGRAM_SECRET = "TELEGRAM_WEBHOOK_URL", "TELEGRAM_WEBHOOK_SECRET"
UNSIGNED = "the signature is missing, wrong, or too old"


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook and its secret."""

    name: str
    settings: WebhookSettings
    secret: str

    def delivery_id(self, headers: Headers, body: bytes, now: float) -> str | None:
        """What identifies a delivery whose signature is right; None for any other request."""
        if self.settings.scheme == "github":
            given = headers.get("x-hub-signature-256", "")
            is_right = hmac.compare_digest(given.encode(), b"sha256=" + self._digest(body).hex().encode())
            # The id in its header is not signed, so a replayed body is known by its signature.
            return given if is_right else None
        id, moment = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not id or not _is_recent(moment, now):
            return None
        expected = base64.b64encode(self._digest(f"{id}.{moment}.".encode() + body))
        signatures = [one.partition(",")[2].encode() for one in headers.get("webhook-signature", "").split()]
        return id if any(hmac.compare_digest(one, expected) for one in signatures) else None

    def _digest(self, content: bytes) -> bytes:
        return hmac.new(_key(self.secret), content, hashlib.sha256).digest()


class Webhooks:
    """`POST /hooks/NAME`."""

    def __init__(self, hooks: Mapping[str, Webhook], runs: RunManager, clock: Callable[[], float] = time.time) -> None:
        self._hooks = hooks
        self._runs = runs
        self._clock = clock

    def routes(self) -> list[Route]:
        return [Route(f"{PREFIX}{{name}}", self.deliver, methods=["POST"])] if self._hooks else []

    async def deliver(self, request: Request) -> Response:
        # Before the body is read, and the same for every name: nobody learns which ones there are.
        if not _may_be_signed(request.headers, self._clock()):
            return error_response(401, UNSIGNED)
        # The guard has seen that it is a number.
        if int(request.headers.get("content-length", "0")) > MAX_BODY_BYTES:
            return error_response(413, TOO_LARGE)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return error_response(413, TOO_LARGE)
        hook = self._hooks.get(request.path_params["name"])
        id = None if hook is None else hook.delivery_id(request.headers, body, self._clock())
        if hook is None or id is None:
            return error_response(401, UNSIGNED)
        key, digest = digest_of("webhook", hook.name, id), digest_of(body.hex())
        if hook.settings.scheme == "github":
            # Its signature holds no moment, so a delivery could be replayed as long as the secret is in use.
            key = f"{LASTING}{key}"
        known = await asyncio.to_thread(self._runs.repeated, key, digest)
        if known is not None:
            return JSONResponse({"run_id": known.id}, status_code=200)
        payload = body.decode("utf-8", "replace")
        cut = payload[:MAX_PAYLOAD_CHARS] + ("\n…" if len(payload) > MAX_PAYLOAD_CHARS else "")
        text = f"{hook.settings.prompt}\n\nWhat was sent to the webhook {hook.name!r}:\n{untrusted(cut, 'webhook')}"
        # Others wrote a part of it, so the whole is not the person's words.
        question = msgspec.structs.replace(user_message(text), origin="derived")
        run = await self._runs.start(None, question, SENDERS, key=key, digest=digest, toolsets=hook.settings.toolsets)
        return JSONResponse({"run_id": run.id}, status_code=202)


def _may_be_signed(headers: Headers, now: float) -> bool:
    """Whether a request has the headers of a signature, and says that it is recent."""
    if headers.get("x-hub-signature-256", "").startswith("sha256="):
        return True
    is_signed = "webhook-id" in headers and "," in headers.get("webhook-signature", "")
    return is_signed and _is_recent(headers.get("webhook-timestamp", ""), now)


def _is_recent(moment: str, now: float) -> bool:
    is_number = moment.isascii() and moment.isdigit() and len(moment) < 12
    return is_number and abs(now - int(moment)) <= WINDOW_SECONDS


def read_webhooks(settings: Mapping[str, WebhookSettings], tokens: ServerTokens) -> dict[str, Webhook]:
    """The webhooks with their secrets; raises UsageError for a secret that is missing, weak, or a token of the API."""
    found = {}
    for name, one in settings.items():
        where = f"`serve.webhooks.{name}`"
        if not one.prompt.strip():
            raise UsageError(f"{where} needs a `prompt`, which says what to do with what is sent")
        secret = environment().get(one.secret_env, "").strip() if one.secret_env else ""
        if not secret:
            raise UsageError(f"{where} needs a secret: set `secret_env` to a variable that holds it")
        _require_own_secret(secret, one.secret_env, where, tokens)
        found[name] = Webhook(name=name, settings=one, secret=secret)
    return found


def require_telegram_secret(tokens: ServerTokens) -> None:
    """Raises UnsafeStart if Telegram is to deliver messages over HTTP, and anybody could send them in its name."""
    secret = environment().get(TELEGRAM_SECRET, "").strip()
    if not environment().get(TELEGRAM_URL, "").strip():
        return
    if not secret:
        raise UnsafeStart(
            f"{TELEGRAM_URL} is set without {TELEGRAM_SECRET}, so anybody could send messages in Telegram's name; "
            "create a secret with `openssl rand -hex 32`"
        )
    _require_own_secret(secret, TELEGRAM_SECRET, f"`{TELEGRAM_URL}`", tokens)


def _require_own_secret(secret: str, source: str, where: str, tokens: ServerTokens) -> None:
    """Raises UnsafeStart for a secret that is weak, or a token of the API."""
    try:
        require_strong(secret, source)
    except TokenError as error:
        raise UnsafeStart(f"{where}: {str(error).replace('the token', 'the secret')}") from error
    if tokens.identify(secret) is not None:
        raise UnsafeStart(f"the secret of {where} is a token of the API; create a separate secret")


def _key(secret: str) -> bytes:
    """Standard Webhooks writes secrets in base64 after a prefix."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        return secret.encode()
