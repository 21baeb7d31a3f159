"""Recognises English speech with the model Moonshine tiny, in a separate process: it needs memory, and it may hang.

See `worker_processes.py`. A job names the folder with the model; its data are 16-bit mono samples, 16000 a second.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from pathlib import Path
from typing import Any

from toolcrib.worker_processes import WorkerAnswer, serve_jobs

SAMPLE_RATE = 16_000
CHUNK_SECONDS = 20
"""The model was trained with clips of up to half a minute."""
SEARCH_SECONDS = 6
"""How far before the end of a chunk a pause may be where it is cut."""
FRAME = SAMPLE_RATE // 20
TOKENS_PER_SECOND = 6.5
HEADS, HEAD_SIZE = 8, 36
START, END = 1, 2
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def main() -> int:
    return serve_jobs(_answer)


def _answer(job: dict[str, Any], data: bytes) -> WorkerAnswer:
    # An extra, and only this process needs it.
    import numpy  # noqa: PLC0415

    samples = numpy.frombuffer(data[: len(data) // 2 * 2], dtype="<i2").astype(numpy.float32) / 32_768
    model = _model(job["folder"])
    texts = [model.text(chunk) for chunk in chunks(samples)]
    return {"text": " ".join(text for text in texts if text)}, b""


def chunks(samples: Any) -> list[Any]:
    """The samples in parts of bounded length, cut at the quietest moment near the end of each."""
    found, start, size, search = [], 0, CHUNK_SECONDS * SAMPLE_RATE, SEARCH_SECONDS * SAMPLE_RATE
    while len(samples) - start > size:
        window = samples[start + size - search : start + size]
        loudness = [float(abs(window[at : at + FRAME]).mean()) for at in range(0, search, FRAME)]
        end = start + size - search + loudness.index(min(loudness)) * FRAME + FRAME // 2
        found.append(samples[start:end])
        start = end
    return [*found, samples[start:]]


@functools.cache
def _model(folder: str) -> Moonshine:
    return Moonshine(Path(folder))


class Moonshine:
    """The encoder and decoder of the model, and its words."""

    def __init__(self, folder: Path) -> None:
        onnxruntime = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self._encoder = onnxruntime.InferenceSession(str(folder / "encoder_model.onnx"), options)
        self._decoder = onnxruntime.InferenceSession(str(folder / "decoder_model_merged.onnx"), options)
        vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        self._words = {number: word for word, number in vocabulary.items()}

    def text(self, samples: Any) -> str:
        """What is said in a clip; empty for one that is too short to say anything."""
        if len(samples) < SAMPLE_RATE // 10:
            return ""
        limit = int(len(samples) / SAMPLE_RATE * TOKENS_PER_SECOND) + 8
        return self.words(self._tokens(samples, limit))

    def _tokens(self, samples: Any, limit: int) -> list[int]:
        import numpy  # noqa: PLC0415

        audio = samples[numpy.newaxis, :]
        given = {one.name for one in self._encoder.get_inputs()}
        mask = {"attention_mask": numpy.ones_like(audio, dtype=numpy.int64)} if "attention_mask" in given else {}
        heard = self._encoder.run(None, {"input_values": audio, **mask})[0]
        names = [one.name for one in self._decoder.get_outputs()][1:]
        memory = {
            name.replace("present", "past_key_values"): numpy.zeros((0, HEADS, 1, HEAD_SIZE), dtype=numpy.float32)
            for name in names
        }
        tokens, last = [], START
        for step in range(limit):
            inputs = {
                "input_ids": numpy.array([[last]], dtype=numpy.int64),
                "encoder_hidden_states": heard,
                "use_cache_branch": numpy.array([step > 0]),
                **memory,
            }
            scores, *present = self._decoder.run(None, inputs)
            last = int(scores[0, -1].argmax())
            if last == END:
                break
            tokens.append(last)
            for name, value in zip(memory, present, strict=True):
                # What was heard does not change, and only the first step gives it.
                if step == 0 or ".decoder." in name:
                    memory[name] = value
        return tokens

    def words(self, tokens: list[int]) -> str:
        data = b""
        for token in tokens:
            word = self._words.get(token, "")
            match = _BYTE.fullmatch(word)
            data += bytes.fromhex(match[1]) if match else b"" if token <= END else word.encode()
        return data.decode("utf-8", "replace").replace("\u2581", " ").strip()
