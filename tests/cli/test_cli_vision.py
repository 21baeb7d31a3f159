"""What the command line says about the tools that look: availability with a remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.cli_program import Program
from toolcrib.providers.presets import PRESETS, known_profile
from toolcrib.tools import vision


def state_of(toolcrib: Program, tool: str, **environ: str) -> dict[str, object]:
    listed = json.loads(toolcrib("tools", "list", "--json", **environ).stdout)
    return next(one for one in listed if one["name"] == tool)


def test_looking_is_available_with_a_model_that_sees(toolcrib: Program) -> None:
    """A model in the config is enough."""
    toolcrib.write(
        "config.yaml", "auxiliary: {vision: {model: mine/eyes}}\nproviders: {mine: {base_url: 'http://a/v1'}}\n"
    )

    assert state_of(toolcrib, "vision_analyze")["available"] is True


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No keys, no config, and only the packages of one folder."""
    for name in vision.MODEL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOOLCRIB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "modules", {})
    return tmp_path


def test_each_missing_piece_is_named_with_its_remedy(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the library, then a model or text recognition, then ffmpeg."""
    library = str(vision.check_vision())
    (bare / "PIL").mkdir()
    model = str(vision.check_vision())
    monkeypatch.setenv("GEMINI_API_KEY", "key")
    ffmpeg = str(vision.check_video())

    assert "pip install 'toolcrib[vision]'" in library
    assert "toolcrib setup vision_analyze" in model
    assert vision.check_vision() is True
    assert "apt install ffmpeg" in ffmpeg
    (bare / "bin").mkdir()
    (bare / "bin" / "ffmpeg").touch()
    assert vision.check_video() is True


def test_text_recognition_alone_is_enough(bare: Path) -> None:
    """Without any model, `vision_analyze` still reads the text in images."""
    (bare / "PIL").mkdir()
    (bare / vision.OCR_PACKAGE).mkdir()

    assert vision.check_vision() is True


def test_the_keys_that_make_looking_available_are_those_of_services_that_see() -> None:
    """The short list of the check follows the table of services."""
    seeing = [one for one in PRESETS.values() if one.chosen_by_key and known_profile(one.default_model).sees_images]
    named = {variable for one in seeing for variable in one.key_variables}

    assert set(vision.MODEL_VARIABLES) == named | {"OPENAI_BASE_URL"}
