"""Which models a server has, by asking it. Nothing of an SDK is needed for that."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError, URLError

from toolcrib.core.models import ModelError
from toolcrib.providers.failures import is_on_this_machine
from toolcrib.providers.presets import Preset

LIST_SECONDS = 10.0
PROBE_SECONDS = 0.3
MAX_LIST_BYTES = 20_000_000
ANTHROPIC_VERSION = "2023-06-01"


def server_models(preset: Preset, base_url: str, key: str, *, seconds: float = LIST_SECONDS) -> list[str]:
    """The names of the models that the server says it has; raises ModelError, which says what to do."""
    request = _request(preset, base_url, key)
    # A proxy that is set for the world outside would not find a server on this machine.
    proxies = [urllib.request.ProxyHandler({})] if is_on_this_machine(base_url) else []
    try:
        with urllib.request.build_opener(*proxies).open(request, timeout=seconds) as answer:
            return _names(json.loads(answer.read(MAX_LIST_BYTES)))
    except HTTPError as error:
        error.close()
        raise _refused(preset, base_url, error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(preset, base_url, error) from error
    except ValueError as error:
        raise ModelError(
            f"what answers at {base_url} is no server with models; set the address of {preset.title} with "
            "`toolcrib setup`",
            kind="server",
        ) from error


def answering(places: Sequence[tuple[Preset, str]]) -> list[bool]:
    """Whether a server with models answers at each address, within a moment; all are asked at once."""
    if not places:
        return []
    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(lambda place: _answers(*place), places))


def _answers(preset: Preset, base_url: str) -> bool:
    try:
        server_models(preset, base_url, "", seconds=PROBE_SECONDS)
    except ModelError as error:
        # One that wants a key is there all the same.
        return error.kind == "key"
    return True


def _request(preset: Preset, base_url: str, key: str) -> urllib.request.Request:
    if not base_url.startswith(("http://", "https://")):
        raise ModelError(
            f"{base_url!r} is no address of a server; give one that begins with http:// or https://: "
            "`toolcrib setup --base-url URL`",
            kind="bad_request",
        )
    if preset.protocol == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": ANTHROPIC_VERSION}
        return urllib.request.Request(f"{base_url.rstrip('/')}/v1/models?limit=1000", headers=headers)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return urllib.request.Request(f"{base_url.rstrip('/')}/models", headers={**preset.headers, **headers})


def _names(answer: Any) -> list[str]:
    """The names in an answer, which some servers give as a bare list. Raises ValueError."""
    rows = answer.get("data") if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        raise ValueError("no list")
    names = [row.get("id") or row.get("name") for row in rows if isinstance(row, dict)]
    return sorted({name.removeprefix("models/") for name in names if isinstance(name, str)})


def _refused(preset: Preset, base_url: str, status: int) -> ModelError:
    if status in (401, 403):
        return ModelError(
            f"{preset.title} refuses to list its models without a valid key (HTTP {status}); "
            "set one with `toolcrib setup`",
            kind="key",
        )
    if status in (404, 405):
        return ModelError(
            f"{preset.title} has no list of models at {base_url}; take a name from its documentation: "
            f"`toolcrib model use {preset.name}/NAME`",
            kind="unknown_model",
        )
    return ModelError(f"{preset.title} answers with HTTP {status} at {base_url}; try again in a minute", kind="server")


def _unreachable(preset: Preset, base_url: str, error: Exception) -> ModelError:
    reason = error.reason if isinstance(error, URLError) else error
    if is_on_this_machine(base_url):
        return ModelError(
            f"nothing answers at {base_url}, where {preset.name} should be; start the server, or set another address "
            "with `toolcrib setup`",
            kind="network",
        )
    return ModelError(
        f"{preset.title} cannot be reached at {base_url} ({reason}); check your network and the address", kind="network"
    )
