"""Audio files: their types, how texts are split for speaking, and conversions with ffmpeg."""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
import wave
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolcrib.media.images import MediaFailed
from toolcrib.media.video import REMEDY, find_ffmpeg, run_ffmpeg

SAMPLE_RATE = 16_000
"""What recognition listens to."""
MAX_ENCODED_BYTES = 100_000_000
ENCODERS = {
    # Variable bit rate, made for voices: what messengers send themselves.
    "ogg": ["-c:a", "libopus", "-b:a", "32k", "-vbr", "on", "-application", "voip", "-ac", "1", "-ar", "48000"],
    "mp3": ["-c:a", "libmp3lame", "-q:a", "4"],
    "flac": ["-c:a", "flac"],
    "wav": ["-c:a", "pcm_s16le"],
}
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\s\"')\]]+|\n+")


class Speech(msgspec.Struct, frozen=True):
    """Spoken text, with the format that its first bytes show."""

    data: bytes
    format: str


def audio_format(data: bytes) -> str:
    """The extension for audio by its first bytes; empty for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    marks = {b"OggS": "ogg", b"fLaC": "flac", b"ID3": "mp3", b"\x1a\x45\xdf\xa3": "webm", b"#!AMR": "amr"}
    if found := next((name for mark, name in marks.items() if data.startswith(mark)), ""):
        return found
    if data[4:8] == b"ftyp":
        return "m4a"
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        # The layer is zero in ADTS, which holds AAC.
        return "mp3" if data[1] & 0x06 else "aac"
    return ""


DEMUXERS = {"webm": "matroska", "m4a": "mov"}


def pieces_of(text: str, max_chars: int) -> list[str]:
    """The text in pieces that end with sentences where possible, with words otherwise."""
    pieces: list[str] = []
    rest = text.strip()
    while len(rest) > max_chars:
        ends = [match.end() for match in _SENTENCE_END.finditer(rest[:max_chars])]
        # A sentence that fills less than a third is better joined with half of the next one.
        cut = ends[-1] if ends and ends[-1] > max_chars // 3 else rest.rfind(" ", 1, max_chars) + 1
        cut = cut if cut > 0 else max_chars
        pieces.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [piece for piece in (*pieces, rest) if piece]


def joined(parts: Sequence[Speech]) -> Speech:
    """Several pieces of one provider as one; raises MediaFailed for pieces that do not fit together."""
    if len(parts) == 1:
        return parts[0]
    if any(part.format != parts[0].format for part in parts):
        raise MediaFailed("its pieces have different formats")
    if parts[0].format != "wav":
        # MP3 and Ogg files may follow each other in one file.
        return Speech(b"".join(part.data for part in parts), parts[0].format)
    return Speech(_joined_wav([part.data for part in parts]), "wav")


def _joined_wav(parts: Sequence[bytes]) -> bytes:
    whole = io.BytesIO()
    try:
        with wave.open(whole, "wb") as out:
            for number, data in enumerate(parts):
                with wave.open(io.BytesIO(data)) as part:
                    if number == 0:
                        out.setparams(part.getparams())
                    out.writeframes(part.readframes(part.getnframes()))
    except (wave.Error, EOFError) as error:
        raise MediaFailed("one of its pieces is damaged") from error
    return whole.getvalue()


def pcm_as_wav(samples: bytes, rate: int) -> bytes:
    """16-bit mono samples as a file."""
    whole = io.BytesIO()
    with wave.open(whole, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples)
    return whole.getvalue()


async def encoded(speech: Speech, wanted: str) -> Speech:
    """The speech in another format; raises MediaFailed, also without ffmpeg."""
    data = await _converted(speech.data, speech.format, [*ENCODERS[wanted], "-f", wanted], MAX_ENCODED_BYTES)
    if audio_format(data) != wanted:
        raise MediaFailed(f"ffmpeg cannot make {wanted} of it")
    return Speech(data, wanted)


async def samples_of(data: bytes, max_seconds: float) -> bytes:
    """16-bit mono samples for recognition; raises MediaFailed."""
    limit = ["-t", f"{max_seconds:g}"]
    output = [*limit, "-vn", "-ac", "1", "-ar", str(SAMPLE_RATE), "-c:a", "pcm_s16le", "-f", "s16le"]
    found = await _converted(data, audio_format(data), output, int(max_seconds * SAMPLE_RATE * 2) + 1_000_000)
    if not found:
        raise MediaFailed("no sound of it can be decoded: it is damaged, or its codec is not known here")
    return found


async def _converted(data: bytes, kind: str, output: Sequence[str], max_bytes: int) -> bytes:
    ffmpeg = find_ffmpeg()
    if not ffmpeg:
        raise MediaFailed(f"ffmpeg is missing, which converts audio; {REMEDY}")
    if not kind:
        raise MediaFailed("it is not audio that can be read; known formats are wav, mp3, ogg, flac, m4a, aac and webm")
    with tempfile.TemporaryDirectory(prefix="toolcrib-audio-") as folder:
        path = Path(folder) / "audio"
        await asyncio.to_thread(path.write_bytes, data)
        # The format is told, so that ffmpeg never guesses one that opens other files or addresses.
        source = ["-f", DEMUXERS.get(kind, kind), "-i", f"file:{path}"]
        found, _ = await run_ffmpeg(ffmpeg, [*source, *output, "pipe:1"], max_bytes)
    return found
