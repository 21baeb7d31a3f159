"""`agent.video_gen_provider`: what plugins subclass to make videos, and the form of their results."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from toolcrib.compat.agent_providers import MediaProvider, failure, success

COMMON_ASPECT_RATIOS = ("16:9", "9:16", "1:1", "4:3", "3:4", "3:2", "2:3")
COMMON_RESOLUTIONS = ("480p", "540p", "720p", "1080p")
DEFAULT_ASPECT_RATIO = "16:9"
DEFAULT_RESOLUTION = "720p"


class VideoGenProvider(MediaProvider):
    """A service that makes videos."""

    def capabilities(self) -> dict[str, Any]:
        return {
            "modalities": ["text"],
            "aspect_ratios": list(COMMON_ASPECT_RATIOS),
            "resolutions": list(COMMON_RESOLUTIONS),
            "max_duration": 10,
            "min_duration": 1,
            "supports_audio": False,
            "supports_negative_prompt": False,
            "max_reference_images": 0,
        }

    @abstractmethod
    def generate(
        self,
        prompt: str,
        *,
        model: str | None = None,
        image_url: str | None = None,
        reference_image_urls: list[str] | None = None,
        duration: int | None = None,
        aspect_ratio: str = DEFAULT_ASPECT_RATIO,
        resolution: str = DEFAULT_RESOLUTION,
        negative_prompt: str | None = None,
        audio: bool | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Make a video; returns `success_response(…)` or `error_response(…)`."""


def success_response(
    *,
    video: str,
    model: str,
    prompt: str,
    modality: str = "text",
    aspect_ratio: str = "",
    duration: int = 0,
    provider: str,
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of a generation; `video` is a path or URL."""
    details = {"video": video, "model": model, "prompt": prompt, "modality": modality, "aspect_ratio": aspect_ratio}
    return success({**details, "duration": duration, "provider": provider}, extra)


def error_response(
    *,
    error: str,
    error_type: str = "provider_error",
    provider: str = "",
    model: str = "",
    prompt: str = "",
    aspect_ratio: str = "",
) -> dict[str, Any]:
    """The result of a generation that failed."""
    details = {"error": error, "error_type": error_type, "model": model, "prompt": prompt}
    return failure("video", {**details, "aspect_ratio": aspect_ratio, "provider": provider})
