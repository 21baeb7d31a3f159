"""`agent.image_gen_provider`: what plugins subclass to make images, and the form of their results."""

from __future__ import annotations

import base64
import re
import secrets
import urllib.request
from abc import abstractmethod
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolcrib.compat.agent_providers import MediaProvider, failure, success
from toolcrib.compat.hermes_constants import get_hermes_dir
from toolcrib.compat.tools_url_safety import is_safe_url
from toolcrib.config.files import make_folder

VALID_ASPECT_RATIOS = ("landscape", "square", "portrait")
DEFAULT_ASPECT_RATIO = "landscape"
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/jpg": "jpg", "image/webp": "webp", "image/gif": "gif"}


class ImageGenProvider(MediaProvider):
    """A service that makes images."""

    def capabilities(self) -> dict[str, Any]:
        return {"modalities": ["text"], "max_reference_images": 0}

    @abstractmethod
    def generate(
        self,
        prompt: str,
        aspect_ratio: str = DEFAULT_ASPECT_RATIO,
        *,
        image_url: str | None = None,
        reference_image_urls: list[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Make an image; returns `success_response(…)` or `error_response(…)`."""


def resolve_aspect_ratio(value: str | None) -> str:
    """One of VALID_ASPECT_RATIOS; landscape for anything else."""
    wanted = value.strip().lower() if isinstance(value, str) else ""
    return wanted if wanted in VALID_ASPECT_RATIOS else DEFAULT_ASPECT_RATIO


def normalize_reference_images(value: Any) -> list[str] | None:
    """Paths or URLs of images as a list, without empty ones; None if there are none."""
    given = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    return [one.strip() for one in given if isinstance(one, str) and one.strip()] or None


def success_response(
    *,
    image: str,
    model: str,
    prompt: str,
    aspect_ratio: str,
    provider: str,
    modality: str = "text",
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of a generation; `image` is a path or URL."""
    details = {"image": image, "model": model, "prompt": prompt, "aspect_ratio": aspect_ratio, "modality": modality}
    return success({**details, "provider": provider}, extra)


def error_response(
    *,
    error: str,
    error_type: str = "provider_error",
    provider: str = "",
    model: str = "",
    prompt: str = "",
    aspect_ratio: str = DEFAULT_ASPECT_RATIO,
) -> dict[str, Any]:
    """The result of a generation that failed."""
    details = {"error": error, "error_type": error_type, "model": model, "prompt": prompt}
    return failure("image", {**details, "aspect_ratio": aspect_ratio, "provider": provider})


def save_b64_image(b64_data: str, *, prefix: str = "image", extension: str = "png") -> Path:
    """Write an image to the cache of the home; raises ValueError if it is no base64."""
    return _save(base64.b64decode(b64_data), prefix, extension)


def save_url_image(
    url: str, *, prefix: str = "image", timeout: float = 60.0, max_bytes: int = 25 * 1024 * 1024
) -> Path:
    """Download an image to the cache of the home; raises ValueError for anything but a public image of that size."""
    if not is_safe_url(url):
        raise ValueError(f"{url!r} is not an address on the public network")
    try:
        with urllib.request.build_opener(_PublicRedirects).open(url, timeout=timeout) as response:
            kind = response.headers.get_content_type()
            data = response.read(max_bytes + 1)
    except (OSError, HTTPException) as error:
        raise ValueError(f"cannot download the image {url!r}: {error}") from error
    extension = _EXTENSIONS.get(kind) or Path(urlsplit(url).path).suffix.lstrip(".").lower()
    if extension not in _EXTENSIONS.values():
        raise ValueError(f"{url!r} is a {kind}, not an image")
    if len(data) > max_bytes:
        raise ValueError(f"the image {url!r} is larger than {max_bytes:,} bytes")
    return _save(data, prefix, extension)


class _PublicRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect must stay on the public network, too."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not is_safe_url(newurl):
            raise ValueError(f"{req.full_url!r} leads to {newurl!r}, which is not on the public network")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _save(data: bytes, prefix: str, extension: str) -> Path:
    folder = get_hermes_dir("cache/images", "image_cache")
    make_folder(folder)
    name = re.sub(r"[^\w-]", "_", prefix) or "image"
    suffix = re.sub(r"\W", "", extension) or "png"
    file = folder / f"{name}_{datetime.now():%Y%m%d_%H%M%S}_{secrets.token_hex(4)}.{suffix}"
    file.write_bytes(data)
    return file
