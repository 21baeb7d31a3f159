"""`video_analyze`, with real videos and a model server that shows which frames and sound it got."""

from __future__ import annotations

import base64
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.media.conftest import OpenVision
from tests.media.pictures import clip, sent_images
from tests.web.sites import Site
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.config.media_settings import VisionSettings
from toolcrib.media import service
from toolcrib.media.images import MediaFailed
from toolcrib.media.video import VideoReader, container_of, find_ffmpeg
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore
from toolcrib.testing.model_server import ScriptedModelServer

QUESTION = "What happens?"
made = functools.cache(clip)


async def watch(runtime: Runtime, video_url: str) -> dict[str, Any]:
    result = await runtime.call("video_analyze", {"video_url": video_url, "question": QUESTION})
    return dict(json.loads(result.text))


def video_in(runtime: Runtime, name: str = "a.mp4", data: bytes | None = None) -> Path:
    path = Path(runtime.workspace) / name
    path.write_bytes(made() if data is None else data)
    return path


def colour(image: Any) -> str:
    red, _, blue = image.convert("RGB").getpixel((30, 20))
    return "red" if red > blue else "blue"


RARER = [pytest.param(kind, marks=pytest.mark.services) for kind in ("webm", "mov", "avi", "mkv", "mpeg")]


@pytest.mark.parametrize("kind", ["mp4", *RARER])
async def test_every_format_is_taken_apart(kind: str) -> None:
    """Frames come from the whole length of a video, each with its time, and the sound as MP3."""
    found = await VideoReader(find_ffmpeg(), VisionSettings(max_frames=2)).read(made(kind), with_sound=True)

    assert found.format == kind
    assert (found.width, found.height, len(found.frames)) == (64, 48, 2)
    assert found.duration_seconds == pytest.approx(2, abs=0.2)
    assert found.frames[0].seconds < 1 < found.frames[1].seconds
    assert found.sound[:3] == b"ID3" or found.sound[0] == 0xFF


async def test_the_frames_go_to_the_vision_model(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """The model gets the frames in order with their times; the result says that the sound was not heard."""
    runtime = open_vision()
    video_in(runtime)

    found = await watch(runtime, "a.mp4")

    assert found["analysis"] == "Left red, right blue."
    images = sent_images(eyes.requests[0].body)
    assert [colour(image) for image in images] == ["red", "red", "blue", "blue"]
    texts = [part["text"] for part in eyes.requests[0].body["messages"][-1]["content"] if part["type"] == "text"]
    assert texts[1:] == [f"At {time}:" for time in found["video"]["frames"]]
    assert "sound was not heard" in found["video"]["note"]
    assert found["video"]["duration_seconds"] == pytest.approx(2, abs=0.2)


async def test_a_model_that_hears_gets_the_sound(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """Models that their vendor documents as hearing get the sound with the frames."""
    runtime = open_vision(auxiliary={"vision": "eyes/gemini-9"})
    video_in(runtime)

    found = await watch(runtime, "a.mp4")

    kinds = [part["type"] for part in eyes.requests[0].body["messages"][-1]["content"]]
    assert kinds.count("input_audio") == 1
    assert "note" not in found["video"]


async def test_a_model_that_takes_videos_gets_the_whole_one(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """With `takes_video` the file itself is sent, and ffmpeg is not needed."""
    runtime = open_vision(auxiliary={"vision": {"model": "eyes/look-1", "takes_video": True}})
    video_in(runtime)

    found = await watch(runtime, "a.mp4")

    assert found["video"] == {"source": "a.mp4", "format": "mp4"}
    part = eyes.requests[0].body["messages"][-1]["content"][-1]
    head, _, data = part["video_url"]["url"].partition(",")
    assert head == "data:video/mp4;base64"
    assert base64.b64decode(data) == made()


async def test_a_main_model_that_sees_gets_the_frames_itself(
    open_vision: OpenVision, eyes: ScriptedModelServer
) -> None:
    """Without `auxiliary.vision`, the frames are parts of the tool's result."""
    runtime = open_vision(auxiliary={})
    video_in(runtime)
    provider = ScriptedProvider([calls("video_analyze", {"video_url": "a.mp4", "question": QUESTION}), "I saw it."])
    host = AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=provider)

    await Agent(host=host, model=provider, toolsets=["video"]).run("Watch a.mp4")
    await host.close()

    result = provider.requests[-1].messages[-1]
    assert len(result.images) == 4
    assert len(json.loads(result.text)["video"]["frames"]) == 4
    assert not eyes.requests


async def test_videos_are_fetched_by_the_guarded_client(open_vision: OpenVision, site: Site) -> None:
    """An address works as for images, and private ones are refused."""
    site.pages["/clip"] = (200, {"content-type": "video/mp4"}, made())

    found = await watch(open_vision(), f"{site.address}/clip")
    refused = await watch(open_vision(security={"allow_private_urls": False}), f"{site.address}/clip")

    assert found["success"] is True
    assert "private address" in refused["error"]


HOSTILE = {
    "playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n", "not a video that can be read"),
    "concat": (b"ffconcat version 1.0\nfile /etc/hostname\n", "not a video that can be read"),
    "text": (b"no video", "not a video that can be read"),
    "hollow": (b"\x00\x00\x00\x18ftypisom" + b"\0" * 500, "no pictures that can be decoded"),
    "empty": (b"", "not a video that can be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_no_video_is_refused_with_a_reason(open_vision: OpenVision, name: str) -> None:
    """The first bytes decide, so that nothing in disguise makes ffmpeg open other files."""
    data, reason = HOSTILE[name]
    runtime = open_vision()
    video_in(runtime, "clip.mp4", data)

    found = await watch(runtime, "clip.mp4")

    assert found["error"].startswith("clip.mp4 cannot be watched: ")
    assert reason in found["error"]


def test_a_cut_off_video_never_makes_the_reader_guess() -> None:
    """Only the formats that are known by their first bytes are passed on."""
    assert container_of(made("webm")) == ("webm", "matroska")
    with pytest.raises(MediaFailed):
        container_of(b"RIFF\0\0\0\0WAVE")


async def test_without_ffmpeg_the_remedy_is_named(open_vision: OpenVision, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is an error that says how to get it."""
    monkeypatch.setattr(service, "find_ffmpeg", lambda: "")
    runtime = open_vision()
    video_in(runtime)

    found = await watch(runtime, "a.mp4")

    assert "apt install ffmpeg" in found["error"]
    assert "toolcrib[video]" in found["error"]
