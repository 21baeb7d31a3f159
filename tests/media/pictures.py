"""Small images in many formats, drawn for the tests."""

from __future__ import annotations

import base64
import io
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from toolcrib.media.video import find_ffmpeg

RED, BLUE = (200, 30, 30), (30, 30, 200)


def picture(width: int = 40, height: int = 20, mode: str = "RGB") -> Image.Image:
    """The left half is red, the right half blue."""
    image = Image.new("RGB", (width, height), RED)
    ImageDraw.Draw(image).rectangle((width // 2, 0, width, height), fill=BLUE)
    return image.convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def sent_images(body: dict[str, Any]) -> list[Image.Image]:
    """The images in a request to an OpenAI server, decoded."""
    parts = [
        part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [decoded(base64.b64decode(url.partition(",")[2])) for url in urls]


def clip(kind: str = "mp4", *, seconds: int = 2, sound: bool = True) -> bytes:
    """A video: red in its first half, then blue."""
    colours = [f"color=c={name}:size=64x48:rate=25:duration={seconds / 2}" for name in ("red", "blue")]
    inputs = [argument for colour in colours for argument in ("-f", "lavfi", "-i", colour)]
    tone = ["-f", "lavfi", "-i", f"sine=frequency=440:duration={seconds}"] if sound else []
    joined = ["-filter_complex", "[0:v][1:v]concat=n=2:v=1[v]", "-map", "[v]", *(["-map", "2:a"] if sound else [])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"clip.{kind}"
        subprocess.run([find_ffmpeg(), "-loglevel", "error", *inputs, *tone, *joined, str(path)], check=True)
        return path.read_bytes()


def is_close(pixel: Any, colour: tuple[int, int, int]) -> bool:
    return all(abs(one - other) < 40 for one, other in zip(pixel, colour, strict=True))
