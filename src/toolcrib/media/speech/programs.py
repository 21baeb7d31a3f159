"""Programs on this machine that speak: espeak-ng, piper, and edge-tts, which asks a free service of Microsoft.

Their licences (GPL, LGPL) let nobody but their user combine them with other programs, so they are used where they are
installed, as programs, and never depended on.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from toolcrib.config.environment import child_environment, environment
from toolcrib.media.images import MediaFailed
from toolcrib.media.speech.audio import Speech, audio_format


class SpeakingProgram:
    """One program that reads a text and writes an audio file."""

    name = ""
    display_name = ""
    programs: Sequence[str] = ()
    host = ""
    is_free = True
    max_chars = 20_000

    def __init__(self, program: str, voice: str, seconds: float) -> None:
        self.program = program
        self.voice = voice
        self.seconds = seconds

    @classmethod
    def find(cls) -> str:
        """Where the program is; empty if it is not installed. Looks beside Python, too, where pip puts programs."""
        beside = str(Path(sys.executable).parent)
        found = (shutil.which(name) or shutil.which(name, path=beside) for name in cls.programs)
        return next((path for path in found if path), "")

    def command(self, text_file: Path, audio_file: Path) -> list[str]:
        raise NotImplementedError

    async def speak(self, text: str) -> Speech:
        """The spoken text; raises MediaFailed."""
        with tempfile.TemporaryDirectory(prefix="toolcrib-speech-") as folder:
            text_file, audio_file = Path(folder) / "text", Path(folder) / "audio"
            await asyncio.to_thread(text_file.write_text, text, encoding="utf-8")
            await self._run(self.command(text_file, audio_file), text_file)
            data = await asyncio.to_thread(_content, audio_file)
        if not audio_format(data):
            raise MediaFailed(f"{self.display_name} made no audio; check tts.voice, or name another tts.provider")
        return Speech(data, audio_format(data))

    async def _run(self, command: Sequence[str], text_file: Path) -> None:
        with text_file.open("rb") as text:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=text,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=child_environment(environment()),
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(self.seconds):
                await process.wait()
        except TimeoutError:
            raise MediaFailed(f"{self.display_name} did not end within {self.seconds:g} seconds") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


class Espeak(SpeakingProgram):
    name = "espeak"
    display_name = "espeak-ng"
    programs = ("espeak-ng", "espeak")

    def command(self, text_file: Path, audio_file: Path) -> list[str]:
        voice = ["-v", self.voice] if self.voice else []
        return [self.program, *voice, "-f", str(text_file), "-w", str(audio_file)]


class Piper(SpeakingProgram):
    name = "piper"
    display_name = "piper"
    programs = ("piper",)
    model = ""
    """The file of the voice."""

    def command(self, text_file: Path, audio_file: Path) -> list[str]:
        # It reads the text from its standard input.
        return [self.program, "--model", self.model, "--output_file", str(audio_file)]


class EdgeTts(SpeakingProgram):
    name = "edge"
    display_name = "edge-tts"
    programs = ("edge-tts",)
    host = "speech.platform.bing.com"

    def command(self, text_file: Path, audio_file: Path) -> list[str]:
        voice = self.voice or "en-US-AriaNeural"
        return [self.program, "--voice", voice, "--file", str(text_file), "--write-media", str(audio_file)]
