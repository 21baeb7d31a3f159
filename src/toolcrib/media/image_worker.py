"""Prepares images for models and reads text in them, in a separate process because an image may attack its parser.

See `worker_processes.py`. Prepared images are upright, small enough for the model, and have no metadata: where and with
what a photo was taken is nobody's business.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import PIL.Image
import PIL.ImageOps

from toolcrib.worker_processes import WorkerAnswer, serve_jobs

# Pillow knows more formats, but some start programs (EPS) or load plugins, and no model needs them.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "ICO", "PPM", "JPEG2000")
LOSSLESS = frozenset({"PNG", "GIF", "BMP", "ICO", "PPM"})
JPEG_QUALITIES = (88, 75, 60)
MAX_LOSSLESS_BYTES = 1_000_000
"""Larger pictures are photos, which JPEG stores in a fraction of that."""


def main() -> int:
    return serve_jobs(_answer)


def _answer(job: dict[str, Any], data: bytes) -> WorkerAnswer:
    return read_text(data) if job["task"] == "ocr" else prepare(data, job)


def prepare(data: bytes, limits: dict[str, Any]) -> WorkerAnswer:
    """The image as a PNG or JPEG within the limits, and what is known about it."""
    PIL.Image.MAX_IMAGE_PIXELS = None  # ours is the limit below
    PIL.Image.init()
    try:
        # Some builds lack some formats.
        image: Any = PIL.Image.open(io.BytesIO(data), formats=[name for name in FORMATS if name in PIL.Image.OPEN])
    except PIL.UnidentifiedImageError:
        return {"error": f"it is not an image that can be read; known formats are {', '.join(FORMATS)}"}, b""
    width, height = image.size
    if width * height > limits["max_pixels"]:
        return {"error": f"it has {width} x {height} pixels, more than the {limits['max_pixels']} allowed"}, b""
    known = {"format": str(image.format), "original_width": width, "original_height": height}
    frames = int(getattr(image, "n_frames", 1)) if image.format != "MPO" else 1
    # Lets the JPEG decoder skip detail that is thrown away below anyway.
    image.draft("RGB", (limits["max_side"], limits["max_side"]))
    image.load()
    upright = PIL.ImageOps.exif_transpose(image)
    plain = _flattened(upright)
    plain.thumbnail((limits["max_side"], limits["max_side"]), PIL.Image.Resampling.LANCZOS)
    media_type, (shown_width, shown_height), encoded = _encoded(plain, known["format"] in LOSSLESS, limits["max_bytes"])
    note = f"only the first of {frames} frames is shown" if frames > 1 else ""
    return {**known, "media_type": media_type, "width": shown_width, "height": shown_height, "note": note}, encoded


def _flattened(image: Any) -> Any:
    """A new image in RGB or grey, on white where it was transparent, with nothing but its pixels."""
    if image.mode.startswith(("I", "F")):
        low, high = image.getextrema()
        scale = 255 / (high - low) if high > low else 0
        image = image.convert("F").point(lambda value: value * scale - low * scale).convert("L")
    is_transparent = image.has_transparency_data
    if image.mode in ("1", "L") and not is_transparent:
        image = image.convert("L")
    else:
        image = image.convert("RGBA" if is_transparent else "RGB")
    mode = "L" if image.mode == "L" else "RGB"
    clean = PIL.Image.new(mode, image.size, 255 if mode == "L" else (255, 255, 255))
    clean.paste(image, mask=image.getchannel("A") if is_transparent else None)
    return clean


def _encoded(image: Any, is_lossless: bool, max_bytes: int) -> tuple[str, tuple[int, int], bytes]:
    """The media type, the size and the bytes of an image that is not larger than allowed."""
    if is_lossless:
        found = _saved(image, "PNG", compress_level=6)
        if len(found) <= min(max_bytes, MAX_LOSSLESS_BYTES):
            return "image/png", image.size, found
    while True:
        for quality in JPEG_QUALITIES:
            found = _saved(image, "JPEG", quality=quality)
            if len(found) <= max_bytes:
                return "image/jpeg", image.size, found
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def read_text(data: bytes) -> WorkerAnswer:
    """The lines of text in a prepared image, from top to bottom."""
    # Comes with the extra for text recognition.
    import numpy  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    with PIL.Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        # The recogniser expects the channels in the order of OpenCV.
        pixels = numpy.asarray(image.convert("RGB"))[:, :, ::-1]
    found, _ = _recogniser()(pixels)
    lines = [str(line[1]) for line in found or ()]
    return {"lines": len(lines)}, "\n".join(lines).encode("utf-8", "replace")


@functools.cache
def _recogniser() -> Any:
    from rapidocr_onnxruntime import RapidOCR  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: PLC0415

    return RapidOCR()
