"""The process of the embedded engine, and what can go wrong before a model is loaded."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

import pytest

from tests.providers.embedded_sources import Hub, make_store, small_model
from toolcrib.core.cancel import CancelToken
from toolcrib.core.messages import user_message
from toolcrib.core.models import Delta, ModelError, ModelRequest, Notice
from toolcrib.providers.embedded.catalog import MODELS, UnknownEmbeddedModel
from toolcrib.providers.embedded.provider import EmbeddedProvider, read_template, start_engine, threads_for, with_fences
from toolcrib.providers.embedded.weights import Weights

TEMPLATE = (
    "return a json object within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{...}\\n</tool_call>"
    "{{- '\\n<tool_call>\\n' }}{{- tool_call.name }}{{- '\\n</tool_call>' }}"
)
LIMIT_SECONDS = 60


def gguf(entries: dict[str, str]) -> bytes:
    """The header of a model file with these texts in it."""
    body = b"".join(
        struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IQ", 8, len(text.encode())) + text.encode()
        for key, text in entries.items()
    )
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + body


def test_the_template_is_read_out_of_the_file(tmp_path: Path) -> None:
    """The template is found whatever surrounds it and in any script; without one it is empty."""
    file = tmp_path / "m.gguf"
    file.write_bytes(
        gguf({"general.name": "tokenizer.chat_template", "tokenizer.chat_template": "{{ é }}", "z": "after"})
    )
    assert read_template(file) == "{{ é }}"

    file.write_bytes(gguf({"general.name": "tokenizer.chat_template"}))
    assert read_template(file) == ""


def test_the_template_gets_fences_for_its_call_tags() -> None:
    """The sentence and every tag change, and nothing else: variables keep their names."""
    fenced = with_fences(TEMPLATE)

    assert "<tool_call>" not in fenced
    assert "</tool_call>" not in fenced
    assert "return a json object in a json code block:\\n```json\\n{...}\\n```" in fenced
    assert "{{- tool_call.name }}" in fenced
    assert with_fences("no tools here") == "no tools here"


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7)])
def test_one_core_stays_free(cores: int, threads: int) -> None:
    """All cores but one work for the model, and at least one."""
    assert threads_for(cores) == threads


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing engine gives one sentence with the command to run."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(ModelError, match=r"pip install 'toolcrib\[embedded\]'") as caught:
        start_engine(Weights(model=small_model(), path=tmp_path / "m.gguf"), CancelToken())

    assert caught.value.kind == "missing_package"


def test_a_file_that_is_no_model_is_an_error_and_makes_no_noise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The engine's own messages do not reach the terminal; the error names the file."""
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf({"tokenizer.chat_template": TEMPLATE}))

    with pytest.raises(ModelError, match=r"cannot load '.*m\.gguf'") as caught:
        start_engine(Weights(model=small_model(), path=file), CancelToken())

    assert caught.value.kind == "weights"
    assert capfd.readouterr() == ("", "")


@pytest.mark.services
async def test_weights_that_went_bad_are_removed_and_said(tmp_path: Path) -> None:
    """A file that cannot be loaded and has a wrong hash is not tried forever."""
    model = MODELS["smollm2-135m"]
    with (tmp_path / model.file).open("wb") as file:
        file.truncate(model.bytes)
    provider = EmbeddedProvider(store=make_store(tmp_path))

    with pytest.raises(ModelError, match="were damaged on this machine and have been removed"):
        await provider.complete(ModelRequest(model=model.name, messages=[user_message("Hi")]), lambda delta: None)

    assert not (tmp_path / model.file).exists()


async def test_cancelling_a_request_stops_the_download(tmp_path: Path) -> None:
    """Cancelling during the download does not wait for the rest, and keeps what arrived."""
    arriving, told = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    model = MODELS["smollm2-135m"]
    seen: list[Delta] = []

    def emit(delta: Delta) -> None:
        seen.append(delta)
        told.set()

    def sent(at: int) -> None:
        if at > 2_000_000:
            loop.call_soon_threadsafe(arriving.set)

    with Hub(bytes(model.bytes)) as hub:
        hub.before_byte = sent
        provider = EmbeddedProvider(model=model.name, store=make_store(tmp_path / "models", hub=hub.address))
        asking = asyncio.create_task(provider.complete(ModelRequest(model="", messages=[user_message("Hi")]), emit))
        await asyncio.wait_for(arriving.wait(), LIMIT_SECONDS)
        await asyncio.wait_for(told.wait(), LIMIT_SECONDS)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asking, LIMIT_SECONDS)
        await provider.close()

    assert (tmp_path / f"models/.{model.file}.unfinished/hub.part").stat().st_size < model.bytes
    assert isinstance(seen[0], Notice)
    assert seen[0].kind == "loading"
    assert seen[0].message.startswith(f"downloading {model.title} (0 of 98 MB)")


async def test_an_unknown_model_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    """A misspelled name sends no request."""
    provider = EmbeddedProvider(store=make_store(tmp_path))

    with pytest.raises(UnknownEmbeddedModel):
        await provider.complete(ModelRequest(model="qwen", messages=[user_message("Hi")]), lambda delta: None)


def test_the_profile_is_that_of_a_small_model(tmp_path: Path) -> None:
    """Few tools, a short prompt, no project files, and outputs shown unchanged."""
    profile = EmbeddedProvider(store=make_store(tmp_path)).profile("")

    assert (profile.context_window, profile.max_prompt_tokens, profile.max_tools) == (4096, 1500, 8)
    assert (profile.small, profile.project_files, profile.sees_images) == (True, False, False)
