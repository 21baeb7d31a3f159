"""Reading the text in images without any model: needs the extra `ocr`, which brings its weights."""

from __future__ import annotations

import importlib.util
import json

import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.media.conftest import OpenVision
from tests.media.pictures import clip, encoded

pytestmark = [
    pytest.mark.services,
    pytest.mark.may_skip,
    pytest.mark.skipif(importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="needs toolcrib[ocr]"),
]


async def test_without_a_model_the_text_is_read_and_the_result_says_so(open_vision: OpenVision) -> None:
    """ "OCR only" tells the model that nothing was looked at."""
    image = Image.new("RGB", (600, 160), "white")
    font = ImageFont.load_default(size=40)
    ImageDraw.Draw(image).text((20, 20), "INVOICE", font=font, fill="black")
    ImageDraw.Draw(image).text((20, 90), "129.50", font=font, fill="black")
    runtime = open_vision(auxiliary={}, vision={"ocr": True})
    path = runtime.settings.home.root / "cache" / "invoice.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(image))

    result = await runtime.call("vision_analyze", {"image_url": str(path), "question": "How much?"})

    found = json.loads(result.text)
    assert found["analysis"].split() == ["INVOICE", "129.50"]
    assert found["model"] == "OCR only"
    assert "OCR only" in found["note"]


async def test_text_in_a_video_is_read_frame_by_frame(open_vision: OpenVision) -> None:
    """Each frame has its time, also one without text."""
    runtime = open_vision(auxiliary={}, vision={"ocr": True})
    path = runtime.settings.home.root / "cache" / "clip.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(clip())

    result = await runtime.call("video_analyze", {"video_url": str(path), "question": "What does it say?"})

    found = json.loads(result.text)
    assert found["analysis"].count("(no text)") == len(found["video"]["frames"])
