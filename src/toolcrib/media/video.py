"""Splits videos with ffmpeg: frames at even intervals, and the sound.

A video may be made to attack its reader, so ffmpeg gets the one format that the first bytes show (a playlist in
disguise would make it open other files and addresses), no protocol but local files, and limits on time and memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolcrib.config.media_settings import VisionSettings
from toolcrib.media.images import MediaFailed

BUNDLED = "imageio_ffmpeg"
"""The package that brings an ffmpeg, for machines without one."""
REMEDY = "install ffmpeg (`apt install ffmpeg`), or run `pip install 'toolcrib[video]'`"
STEP_SECONDS = 40
MEMORY_BYTES = 4 * 1024**3
MAX_ALLOCATION = 500_000_000
FRAME_SIDE = 768
"""Several frames are shown at once, so each of them is small."""
MAX_FRAME_BYTES = 3_000_000
MAX_SOUND_BYTES = 3_000_000
_DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)")
_VIDEO = re.compile(r"Stream #\d+:\d+.*?: Video: (\w+).*?, (\d{1,6})x(\d{1,6})")
_AUDIO = re.compile(r"Stream #\d+:\d+.*?: Audio: ")


class Frame(msgspec.Struct, frozen=True):
    """One picture of a video, as JPEG."""

    seconds: float
    data: bytes

    @property
    def time(self) -> str:
        minutes, seconds = divmod(round(self.seconds, 1), 60)
        return f"{int(minutes)}:{seconds:04.1f}"


class VideoContent(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a video."""

    format: str
    duration_seconds: float | None
    width: int
    height: int
    has_sound: bool
    frames: Sequence[Frame] = ()
    sound: bytes = b""
    """As MP3, if it was asked for."""
    speech: str = ""
    """What is said in it, if speech recognition listened."""
    unheard: str = ""
    """Why nobody listened."""


def container_of(data: bytes) -> tuple[str, str]:
    """The format of a video by its first bytes, and ffmpeg's name for it; raises MediaFailed for anything else."""
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"):
        return ("mov" if data[8:10] == b"qt" or data[4:8] != b"ftyp" else "mp4"), "mov"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return ("webm" if b"webm" in data[:64] else "mkv"), "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi", "avi"
    if data.startswith(b"\x00\x00\x01\xba"):
        return "mpeg", "mpeg"
    if data.startswith(b"\x00\x00\x01\xb3"):
        return "mpeg", "mpegvideo"
    if data[:1] == b"\x47" and data[188:189] == b"\x47":
        return "mpeg", "mpegts"
    raise MediaFailed("it is not a video that can be read; known formats are mp4, webm, mov, avi, mkv and mpeg")


def find_ffmpeg() -> str:
    """The ffmpeg program; empty if there is none."""
    found = shutil.which("ffmpeg")
    if found or importlib.util.find_spec(BUNDLED) is None:
        return found or ""
    # An extra, and only videos need it.
    return str(importlib.import_module(BUNDLED).get_ffmpeg_exe())


class VideoReader:
    """Reads one video with ffmpeg."""

    def __init__(self, ffmpeg: str, settings: VisionSettings) -> None:
        self._ffmpeg = ffmpeg
        self._settings = settings

    async def read(self, data: bytes, *, with_sound: bool, max_frames: int = 0) -> VideoContent:
        """The frames of a video, and its sound if the caller can use it; raises MediaFailed."""
        name, demuxer = container_of(data)
        with tempfile.TemporaryDirectory(prefix="toolcrib-video-") as folder:
            path = Path(folder) / "video"
            await asyncio.to_thread(path.write_bytes, data)
            source = ["-f", demuxer, "-i", f"file:{path}"]
            video = await self._probe(name, source)
            frames = await self._frames(source, video.duration_seconds, max_frames or self._settings.max_frames)
            sound = await self._sound(source) if with_sound and video.has_sound else b""
        if not frames:
            raise MediaFailed("no frame of it can be decoded: it is damaged, or its codec is not known here")
        return msgspec.structs.replace(video, frames=frames, sound=sound)

    async def _probe(self, name: str, source: Sequence[str]) -> VideoContent:
        _, said = await self._run(source, 0)
        shape, length = _VIDEO.search(said), _DURATION.search(said)
        if shape is None:
            raise MediaFailed("it has no pictures that can be decoded: it is damaged, or contains only sound")
        width, height = int(shape[2]), int(shape[3])
        if width * height > self._settings.max_megapixels * 1_000_000:
            raise MediaFailed(f"its frames have {width} x {height} pixels, more than `vision.max_megapixels` allows")
        seconds = None if length is None else int(length[1]) * 3600 + int(length[2]) * 60 + float(length[3])
        has_sound = _AUDIO.search(said) is not None
        return VideoContent(format=name, duration_seconds=seconds, width=width, height=height, has_sound=has_sound)

    async def _frames(self, source: Sequence[str], duration: float | None, count: int) -> list[Frame]:
        # A short clip needs no more than two pictures a second.
        count = min(count, max(1, int(duration * 2))) if duration else count
        # Without a duration nobody knows where its middle is: the first seconds are better than nothing.
        times = [(duration * (index + 0.5) / count if duration else float(index)) for index in range(count)]
        frames = []
        for seconds in times:
            data = await self._frame(source, seconds)
            if data:
                frames.append(Frame(seconds, data))
            elif not duration:
                break
        return frames

    async def _frame(self, source: Sequence[str], seconds: float) -> bytes:
        """The picture at a time, found without decoding what comes before; empty if there is none."""
        scale = f"scale='min({FRAME_SIDE},iw)':'min({FRAME_SIDE},ih)':force_original_aspect_ratio=decrease"
        output = ["-an", "-frames:v", "1", "-vf", scale, "-f", "image2pipe", "-c:v", "mjpeg", "-q:v", "4", "pipe:1"]
        data, _ = await self._run(["-ss", f"{seconds:.3f}", *source, *output], MAX_FRAME_BYTES)
        return data

    async def _sound(self, source: Sequence[str]) -> bytes:
        length = ["-t", f"{self._settings.max_sound_seconds:g}"]
        output = ["-vn", "-ac", "1", "-ar", "16000", "-c:a", "libmp3lame", "-b:a", "48k", "-f", "mp3", "pipe:1"]
        data, _ = await self._run([*source, *length, *output], MAX_SOUND_BYTES)
        return data

    async def _run(self, arguments: Sequence[str], max_bytes: int) -> tuple[bytes, str]:
        return await run_ffmpeg(self._ffmpeg, arguments, max_bytes)


async def run_ffmpeg(ffmpeg: str, arguments: Sequence[str], max_bytes: int) -> tuple[bytes, str]:
    """The output and what ffmpeg said; nothing if it fails, takes too long, or gives more than allowed."""
    common = ["-hide_banner", "-nostdin", "-protocol_whitelist", "file,pipe", "-max_alloc", str(MAX_ALLOCATION)]
    process = await asyncio.create_subprocess_exec(
        ffmpeg,
        *common,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        start_new_session=True,
    )
    _limit(process.pid)
    try:
        async with asyncio.timeout(STEP_SECONDS), asyncio.TaskGroup() as tasks:
            assert process.stdout is not None
            assert process.stderr is not None
            output = tasks.create_task(_bounded(process.stdout, max_bytes))
            said = tasks.create_task(_bounded(process.stderr, 200_000))
            await process.wait()
        return output.result(), said.result().decode("utf-8", "replace")
    except TimeoutError:
        return b"", ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _limit(pid: int) -> None:
    if sys.platform != "linux":
        return
    # It may have ended already.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CPU, (STEP_SECONDS, STEP_SECONDS))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))


async def _bounded(stream: asyncio.StreamReader, max_bytes: int) -> bytes:
    """All of a stream; nothing if it is longer than allowed. Reads to the end, so that its writer can finish."""
    pieces, total = [], 0
    while piece := await stream.read(65_536):
        total += len(piece)
        if total <= max_bytes:
            pieces.append(piece)
    return b"".join(pieces) if total <= max_bytes else b""
