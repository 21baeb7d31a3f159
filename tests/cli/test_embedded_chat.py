"""A newcomer without a key: the small model of this machine answers, and uses a tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.chat.chat_program import CTRL_D, ChatProgram
from tests.cli.cli_program import Program

pytestmark = pytest.mark.services

MODEL_SECONDS = 240

WEATHER = """
import json
from toolcrib.registry import registry

def weather(args, **kw):
    return json.dumps({"location": args["location"], "temperature_c": 17, "sky": "light rain"})

registry.register(
    name="weather", toolset="weather", handler=weather, emoji="🌦️",
    schema={"name": "weather", "description": "Get the current weather for a place.", "parameters": {
        "type": "object", "required": ["location"],
        "properties": {"location": {"type": "string", "description": "City name, e.g. London"}}}},
)
"""


@pytest.fixture
def newcomer(toolcrib: Program, model_dir: str) -> Program:
    """Somebody without any key; the weights are there already."""
    toolcrib.environ["TOOLCRIB_MODEL_DIR"] = model_dir
    toolcrib.deadline_seconds = MODEL_SECONDS
    return toolcrib


def test_a_question_that_names_a_tool_is_answered_with_it(newcomer: Program) -> None:
    """Without any key, the tool is called, its output is printed as it is, and an answer follows."""
    newcomer.write("tools/weather.py", WEATHER)
    done = newcomer("chat", "-q", "Use the weather tool for London")

    lines = done.stdout.splitlines()
    assert done.code == 0, done.stderr
    assert lines[0] == '{"location": "London", "temperature_c": 17, "sky": "light rain"}'
    assert len("".join(lines[1:])) > 10
    assert "a small one on this machine answers" in done.stderr
    assert "weather London" in done.stderr


def test_a_command_is_run_and_its_output_shown(newcomer: Program) -> None:
    """The terminal tool works for the small model too; what the command printed stands above the answer."""
    done = newcomer("chat", "-q", "Which Linux kernel runs here? Use the terminal tool.")

    assert done.code == 0, done.stderr
    assert "terminal uname" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_chat_says_what_the_model_does_before_it_answers(tmp_path: Path, model_dir: str) -> None:
    """Reading a prompt takes seconds on a slow machine; nobody should take that for loading, or for being stuck."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("model:\n  default: qwen2.5-coder-0.5b\n  provider: embedded\n")
    with ChatProgram(home, columns=120, rows=40, TOOLCRIB_MODEL_DIR=model_dir) as chat:
        chat.wait_idle()
        chat.enter("Which Linux kernel runs here? Use the terminal tool.")
        chat.wait_for("reading the prompt · ", seconds=MODEL_SECONDS)
        chat.wait_for("choosing a tool · ", seconds=MODEL_SECONDS)
        chat.wait_for("✓ 💻 terminal", seconds=MODEL_SECONDS)
        chat.type(CTRL_D)
        chat.exit_code()
