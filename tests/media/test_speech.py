"""`text_to_speech` and speech recognition, against servers by the services' public APIs, with the real ffmpeg."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import wave
from pathlib import Path
from typing import Any

import pytest

from tests.media.services import KEY, Asking, OpenMedia, as_json, called, content
from tests.web.sites import Site
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Unavailable
from toolcrib.media.speech import service as speech_service
from toolcrib.media.speech.audio import Speech, audio_format, encoded, joined, pcm_as_wav, pieces_of, samples_of
from toolcrib.tools.text_to_speech import KEY_VARIABLES, check_speech


def tone(seconds: float = 0.5, rate: int = 16_000) -> bytes:
    """A beep as samples."""
    count = int(seconds * rate)
    return struct.pack(f"<{count}h", *(int(12_000 * math.sin(at * 0.2)) for at in range(count)))


WAV = pcm_as_wav(tone(), 16_000)
BASE64 = base64.b64encode(WAV).decode()
SAMPLES = base64.b64encode(tone(rate=24_000)).decode()
SPEAKERS: dict[str, tuple[str, Any]] = {
    "openai": ("/audio/speech", (200, {"content-type": "audio/wav"}, WAV)),
    "elevenlabs": ("/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM", (200, {"content-type": "audio/wav"}, WAV)),
    "minimax": ("/v1/t2a_v2", as_json({"data": {"audio": WAV.hex()}, "base_resp": {"status_code": 0}})),
    "mistral": ("/v1/audio/speech", as_json({"audio_data": BASE64})),
    "gemini": (
        "/v1beta/models/gemini-2.5-flash-preview-tts:generateContent",
        as_json({"candidates": [{"content": {"parts": [{"inlineData": {"data": SAMPLES}}]}}]}),
    ),
}
LISTENERS = {
    "openai": "/audio/transcriptions",
    "groq": "/audio/transcriptions",
    "mistral": "/audio/transcriptions",
    "elevenlabs": "/v1/speech-to-text",
}


@pytest.fixture(autouse=True)
def no_speech_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEY_VARIABLES, "GROQ_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_KEY", KEY)


def config(site: Site, provider: str, **more: Any) -> dict[str, Any]:
    return {"provider": provider, "base_url": site.address, "key_env": "TEST_KEY", **more}


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("provider", SPEAKERS)
async def test_each_service_speaks(open_media: OpenMedia, site: Site, provider: str) -> None:
    """The text goes there with the key; the file is Opus in Ogg, as messengers want it."""
    path, answer = SPEAKERS[provider]
    site.pages[path] = answer

    found = await called(open_media(tts=config(site, provider)), "text_to_speech", text="Good morning.")

    assert found["success"] is True, found
    assert (found["provider"], found["format"], found["voice_compatible"]) == (provider, "ogg", True)
    assert found["media_tag"] == f"[[audio_as_voice]]\nMEDIA:{found['file_path']}"
    assert b"OpusHead" in content(found["file_path"])[:100]
    (asked,) = site.requests
    assert b"Good morning." in asked.body
    assert any(KEY in value for value in asked.headers.values())


@pytest.mark.parametrize(("code", "sentence"), [(1004, "refused the key in"), (1008, "request limit"), (1, "code 1")])
async def test_minimax_tells_failures_in_its_answer(
    open_media: OpenMedia, site: Site, code: int, sentence: str
) -> None:
    site.pages["/v1/t2a_v2"] = as_json({"base_resp": {"status_code": code, "status_msg": KEY}})

    found = await called(open_media(tts=config(site, "minimax")), "text_to_speech", text="Good morning.")

    assert sentence in found["error"]


async def test_a_long_text_is_spoken_in_pieces(open_media: OpenMedia, site: Site) -> None:
    """Each piece fits the service, nothing is lost, and the sound is as long as all of them."""
    site.pages["/audio/speech"] = SPEAKERS["openai"][1]
    text = " ".join(f"This is sentence number {number}." for number in range(300))
    runtime = open_media(tts=config(site, "openai", format="wav"))

    found = await called(runtime, "text_to_speech", text=text)

    said = [json.loads(asked.body)["input"] for asked in site.requests]
    assert len(said) == 3
    assert " ".join(said) == text
    assert all(len(piece) <= 4_000 and piece.endswith(".") for piece in said)
    with wave.open(io.BytesIO(content(found["file_path"]))) as spoken:
        assert spoken.getnframes() == 3 * 8_000


@pytest.mark.parametrize(("name", "mark"), [("a.mp3", "mp3"), ("a.ogg", "ogg"), ("a.flac", "flac"), ("a.wav", "wav")])
async def test_the_file_is_what_its_name_says(open_media: OpenMedia, site: Site, name: str, mark: str) -> None:
    """A file that the model names is written in the workspace, in the format of its extension."""
    site.pages["/audio/speech"] = SPEAKERS["openai"][1]
    runtime = open_media(tts=config(site, "openai"))

    found = await called(runtime, "text_to_speech", text="Good morning.", output_path=name)

    assert found["file_path"] == name
    assert audio_format(content(f"{runtime.workspace}/{name}")) == mark


async def test_other_names_and_empty_or_long_texts_are_refused_before_anything_is_sent(
    open_media: OpenMedia, site: Site
) -> None:
    runtime = open_media(tts=config(site, "openai", max_chars=20))

    assert ".mp3" in (await called(runtime, "text_to_speech", text="Hello", output_path="a.exe"))["error"]
    assert "empty" in (await called(runtime, "text_to_speech", text=" "))["error"]
    assert "at most 20" in (await called(runtime, "text_to_speech", text="x" * 21))["error"]
    assert not site.requests


async def test_the_price_of_a_text_is_in_the_question(open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIMAX_API_KEY", KEY)
    runtime = open_media()

    effects = runtime.services.speech.speak_effects({"text": "x" * 1_000}, runtime.context())

    assert [(one.kind, one.target) for one in effects] == [
        ("network", "api.minimax.io"),
        ("spend", "about $0.1000 for 1000 characters at MiniMax"),
    ]


async def test_without_anybody_who_speaks_the_remedy_is_named(
    open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    runtime = open_media()

    assert "apt install espeak-ng" in (await called(runtime, "text_to_speech", text="Hello"))["error"]
    for provider, sentence in {"edge": "edge-tts is not installed", "minimax": "MINIMAX_API_KEY is not set"}.items():
        missing = await called(open_media(tts={"provider": provider}), "text_to_speech", text="Hello")
        assert sentence in missing["error"]
    wrong = await called(open_media(tts={"provider": "elevenlab"}), "text_to_speech", text="Hello")
    assert "elevenlabs" in wrong["error"]
    answer = check_speech()
    assert isinstance(answer, Unavailable)
    monkeypatch.setenv("ELEVENLABS_API_KEY", KEY)
    assert check_speech() is True


PROGRAMS = {"espeak": "espeak-ng", "piper": "piper", "edge": "edge-tts"}
BAD_PROGRAMS = {
    "it fails": ("exit 3", "made no audio"),
    "no audio": ("for last; do :; done; echo words > $last", "made no audio"),
    "huge": ("for last; do :; done; printf RIFF > $last; truncate -s 1G $last", "is larger than"),
    "it hangs": ("exec sleep 30", "did not end within 0.5 seconds"),
}


@pytest.mark.parametrize("provider", PROGRAMS)
async def test_every_failure_of_a_program_is_one_sentence(
    open_media: OpenMedia, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of this machine, such as the client of edge-tts, fail in their own ways; none stays."""
    program, voice = tmp_path / "bin" / PROGRAMS[provider], tmp_path / "voice.onnx"
    program.parent.mkdir()
    voice.touch()
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    for how, (script, sentence) in BAD_PROGRAMS.items():
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        settings = {"provider": provider, "timeout": 0.5 if how == "it hangs" else 20, "piper_model": str(voice)}

        found = await called(open_media(tts=settings), "text_to_speech", text="Good morning.")

        assert sentence in found["error"] or (how == "it hangs" and "longer than 0.5" in found["error"]), how


def test_pieces_end_with_sentences_then_words_then_anywhere() -> None:
    assert pieces_of("One two. Three four. Five.", 22) == ["One two. Three four.", "Five."]
    assert pieces_of("one two three four", 9) == ["one two", "three", "four"]
    assert pieces_of("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert pieces_of("   ", 10) == []


async def test_damaged_audio_is_an_error_with_its_reason() -> None:
    """ffmpeg is told the format, fails, and leaves nothing behind."""
    with pytest.raises(ToolcribError, match="no sound of it can be decoded"):
        await samples_of(b"RIFF\x00\x00\x00\x00WAVE" + b"\x07" * 500, 10)
    with pytest.raises(ToolcribError, match="not audio that can be read"):
        await samples_of(b"#EXTM3U\nfile:///etc/passwd\n", 10)
    with pytest.raises(ToolcribError, match="damaged"):
        joined([Speech(WAV, "wav"), Speech(b"RIFF\x00\x00\x00\x00WAVE", "wav")])
    assert len(await samples_of((await encoded(Speech(WAV, "wav"), "ogg")).data, 10)) == pytest.approx(16_000, rel=0.1)


# Listening


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on this machine recognises speech."""
    monkeypatch.setattr(speech_service, "is_installed", lambda: False)


@pytest.mark.parametrize("provider", LISTENERS)
async def test_read_file_gives_what_a_service_understood(
    open_media: OpenMedia, site: Site, asking: Asking, provider: str, no_model: None
) -> None:
    """The file is sent once; the next part of the text comes from memory."""
    site.pages[LISTENERS[provider]] = as_json({"text": " Hello there. "})
    runtime = open_media(stt=config(site, provider, language="en"))
    await write(runtime.workspace, "voice.wav", WAV)

    found = await called(runtime, "read_file", path="voice.wav")

    assert found["content"] == "     1|Hello there."
    assert "understood" in found["note"]
    (asked,) = site.requests
    assert WAV in asked.body
    assert any(KEY in value for value in asked.headers.values())


async def write(folder: str, name: str, data: bytes) -> None:
    (Path(folder) / name).write_bytes(data)


async def test_a_voice_message_leaves_this_machine_only_if_that_was_approved(
    open_media: OpenMedia, asking: Asking, no_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service elsewhere is in the question; audio without such a name is not sent at all."""
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    asking.choice = "deny"
    runtime = open_media()
    await write(runtime.workspace, "voice.wav", WAV)
    await write(runtime.workspace, "voice.dat", WAV)

    result = await runtime.call("read_file", {"path": "voice.wav"})

    assert result.is_error
    assert "recognising speech at Groq" in str(asking.requests)
    assert (await called(runtime, "read_file", path="voice.dat"))["binary"] is True


async def test_without_recognition_an_audio_file_says_what_to_install(open_media: OpenMedia, no_model: None) -> None:
    runtime = open_media()
    await write(runtime.workspace, "voice.wav", WAV)

    found = await called(runtime, "read_file", path="voice.wav")

    assert "pip install 'toolcrib[speech]'" in found["note"]
