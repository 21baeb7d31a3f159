"""The protocol of a service that generates images or videos, and what all of them share."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from toolcrib.media.images import MediaFailed, from_data_url
from toolcrib.media.video import container_of
from toolcrib.web.hosted_service import ApiService
from toolcrib.web.provider_access import ProviderAccess, ProviderFailed

RATIOS = {"landscape": "16:9", "square": "1:1", "portrait": "9:16"}
"""The shapes that a call may ask for, and what services call them."""
MAX_SOURCES = 8
FIRST_POLL_SECONDS = 0.2
LONGEST_POLL_SECONDS = 5.0


class SourceImage(msgspec.Struct, frozen=True):
    """An image to change or to follow, with the type that its first bytes show."""

    data: bytes
    extension: str

    @property
    def media_type(self) -> str:
        return f"image/{'jpeg' if self.extension == 'jpg' else self.extension}"

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    aspect_ratio: str = "landscape"
    """One of RATIOS."""
    images: Sequence[SourceImage] = ()
    """The image to change comes first; the others are references."""


class VideoRequest(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    model: str = ""
    images: Sequence[SourceImage] = ()
    """The first frame comes first; the others are references."""
    duration: int | None = None
    aspect_ratio: str = ""
    resolution: str = ""
    negative_prompt: str = ""
    audio: bool | None = None
    seed: int | None = None
    video_url: str = ""
    """The video to change or to extend; only with `task`."""
    task: Literal["generate", "edit", "extend"] = "generate"


class GeneratedMedia(msgspec.Struct, frozen=True, kw_only=True):
    """What a service made: the bytes, or a file that a plugin has saved already."""

    data: bytes = b""
    path: str = ""
    model: str = ""
    cost_usd: float | None = None
    """What it cost, if the service says so."""


class ImageGenerator(Protocol):
    """A service that makes images."""

    @property
    def name(self) -> str: ...

    @property
    def display_name(self) -> str: ...

    @property
    def host(self) -> str:
        """Where prompts go; empty if unknown."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether it costs nothing, because it runs on a machine of the user."""
        ...

    @property
    def can_edit(self) -> bool: ...

    @property
    def max_images(self) -> int:
        """How many images it takes for a change, with the references."""
        ...

    def model_for(self, *, is_edit: bool) -> str: ...

    async def make_image(self, request: ImageRequest) -> GeneratedMedia:
        """The image; raises ProviderFailed."""
        ...


class VideoGenerator(Protocol):
    """A service that makes videos."""

    @property
    def name(self) -> str: ...

    @property
    def display_name(self) -> str: ...

    @property
    def host(self) -> str: ...

    def model_for(self, request: VideoRequest) -> str: ...

    async def make_video(self, request: VideoRequest) -> GeneratedMedia:
        """The video; raises ProviderFailed."""
        ...


class HostedGenerator(ApiService):
    """A service that makes images or videos, with the models that the settings name."""

    def __init__(self, access: ProviderAccess, model: str = "", edit_model: str = "") -> None:
        super().__init__(access, model)
        self.edit_model = edit_model

    @property
    def max_images(self) -> int:
        return MAX_SOURCES

    async def fetched(self, url: Any) -> bytes:
        """What an answer names: a data URL or an address."""
        if not isinstance(url, str) or not url:
            raise self.access.malformed()
        if url.startswith("data:"):
            return bytes(self.read(lambda text: from_data_url(text, self.access.max_bytes), url))
        return await self.access.download(url)

    async def finished(self, ask: Callable[[], Awaitable[Any]], is_done: Callable[[Any], bool]) -> Any:
        """The first answer that is done. Ends with the time limit of the access; raises ProviderFailed."""
        pause = FIRST_POLL_SECONDS
        try:
            async with asyncio.timeout(self.access.seconds):
                while not self.read(is_done, answer := await ask()):
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
                return answer
        except TimeoutError:
            late = f"{self.display_name} was not done within {self.access.seconds:g} seconds"
            raise ProviderFailed(late, "timeout") from None


def image_extension(data: bytes) -> str:
    """The extension for an image by its first bytes; empty for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return "gif" if data.startswith((b"GIF87a", b"GIF89a")) else ""


def video_extension(data: bytes) -> str:
    """The extension for a video by its first bytes; empty for anything else."""
    try:
        return container_of(data)[0]
    except MediaFailed:
        return ""
