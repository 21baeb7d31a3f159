"""What a person sees of a call: how it ended, its output while it runs and afterwards, and the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.chat.chat_program import CTRL_C, CTRL_O, ChatProgram, make_home, session_text, slow_call


def run(command: str) -> dict[str, Any]:
    return {"call": "terminal", "arguments": {"command": command}}


def line_with(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


@pytest.mark.services
def test_a_command_that_fails_is_marked_with_its_exit_code(home: Path) -> None:
    """The tool worked, but the command did not; one that found nothing has not failed."""
    steps = [run("exit 3"), run("echo hay | grep needle"), run("true"), {"say": "All done."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()

        chat.enter("go")
        shown = chat.wait_for("All done.")

        failed, found_nothing, fine = (line_with(shown, f"terminal  {what}") for what in ("exit 3", "echo", "true"))
        assert failed.startswith("✗")
        assert failed.endswith("· exit 3")
        assert found_nothing.startswith("✓")
        assert "exit 1, no line matched" in found_nothing
        assert fine.startswith("✓")
        assert "exit" not in fine


@pytest.mark.services
def test_an_interrupted_command_is_marked_as_stopped_and_nothing_is_stopping_any_more(home: Path) -> None:
    """Ctrl-C is neither a success nor a failure, and the status line says what is true now."""
    with ChatProgram(make_home(home, [run("echo begun; sleep 600"), {"say": "never"}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("│ begun")

        chat.type(CTRL_C)
        chat.wait_for("stopped; the session keeps")
        shown = chat.wait_idle()

        line = line_with(shown, "terminal  echo begun")
        assert line.startswith("■")
        assert line.endswith("interrupted")
        assert "stopping" not in chat.visible


@pytest.mark.services
def test_the_last_lines_of_an_output_are_shown_and_the_rest_on_request(home: Path) -> None:
    """Eight lines by default; Ctrl-O expands the latest call, /show any of them."""
    steps = [run("seq 101 120"), run("echo short"), {"say": "All done."}]
    with ChatProgram(make_home(home, steps), rows=40) as chat:
        chat.wait_idle()
        chat.enter("go")
        shown = chat.wait_for("All done.", "… 12 more lines (Ctrl-O, /show 1)", "│ 113", "│ 120", "│ short")
        assert "│ 112" not in shown

        chat.wait_idle()
        chat.type(CTRL_O)
        chat.wait_for("2. 💻 terminal  echo short")
        chat.enter("/show 1")

        assert "│ 101\n" in chat.wait_for("1. 💻 terminal  seq 101 120", "│ 112")


@pytest.mark.services
def test_the_number_of_shown_lines_is_a_setting_and_a_long_output_is_counted_in_full(home: Path) -> None:
    """What is too long for the model is still counted, and expanded from its file."""
    config = "chat:\n  output_lines: 2\n"
    with ChatProgram(make_home(home, [run("seq 100000"), {"say": "All done."}], config=config)) as chat:
        chat.wait_idle()
        chat.enter("go")
        shown = chat.wait_for("All done.", "… 99,998 more lines", "│ 99999", "│ 100000")
        assert "│ 99998" not in shown

        chat.wait_idle()
        chat.type(CTRL_O)

        chat.wait_for("… 98,000 earlier lines not shown; all of it is in")
        chat.wait_idle()


def test_the_output_of_a_running_command_is_shown_while_it_runs(home: Path, gate: Path) -> None:
    """The latest lines stand below the call and are redrawn; the input line stays usable."""
    command = f"seq 30; until [ -e {gate} ]; do sleep 0.05; done"
    with ChatProgram(make_home(home, [run(command), {"say": "All done."}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("… 22 lines above", "│ 23", "│ 30")

        chat.type("still typing")
        chat.wait_for("❯ still typing")
        gate.touch()

        shown = chat.wait_for("All done.")
        assert "… 22 more lines (Ctrl-O" in shown
        assert "lines above" not in chat.visible


@pytest.mark.services
def test_a_plan_is_a_checklist_when_it_changes_and_a_line_while_work_goes_on(home: Path, gate: Path) -> None:
    """The same plan is not drawn twice; what is done is ticked."""

    def plan(*statuses: str) -> dict[str, Any]:
        names = ("run the tests", "fix add", "run again")
        items = [{"id": n, "content": n, "status": s} for n, s in zip(names, statuses, strict=True)]
        return {"call": "todo", "arguments": {"todos": items}}

    steps = [plan("in_progress", "pending", "pending"), slow_call(gate), {"call": "todo", "arguments": {}}]
    done = ("completed", "completed", "cancelled")
    with ChatProgram(make_home(home, [*steps, plan(*done), {"say": "All done."}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        checklist = "\n  ▶ run the tests\n  ☐ fix add\n  ☐ run again\n"
        chat.wait_for("🐌 slow", "▶ run the tests   ☐ fix add   ☐ run again", checklist)

        gate.touch()
        chat.wait_for("All done.")
        shown = chat.wait_idle()

        assert shown.count("  ▶ run the tests\n") == 1
        assert "\n  ☑ run the tests\n  ☑ fix add\n  ☒ run again\n" in shown
        assert "☑ run the tests   ☑ fix add" not in chat.visible


def test_what_is_steered_too_late_is_shown_and_dropped(home: Path, gate: Path) -> None:
    """It never reaches the next question, which has nothing to do with it."""
    with ChatProgram(make_home(home, [slow_call(gate), {"say": "Second answer."}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")
        chat.enter("/steer only the tests in core")
        chat.wait_for("sees this before its next step")

        chat.type(CTRL_C)
        chat.wait_for("Not delivered, because the agent had stopped: only the tests in core")
        chat.wait_idle()
        chat.enter("something else")
        chat.wait_for("Second answer.")

    assert "only the tests in core" not in session_text(home)


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("heals", [True, False])
def test_a_request_that_is_retried_leaves_one_line_at_most(home: Path, heals: bool) -> None:
    """The retries are counted in place; only a failure of all of them stays, with their number."""
    told = "attic says HTTP 500, which is a long story and does not fit into one row of a narrow terminal"
    failure = {"fail": told, "may_retry": True}
    steps = [failure, {"say": "Here I am."}] if heals else [failure, failure]
    make_home(home, steps)
    config = home / "config.yaml"
    config.write_text(config.read_text().replace("provider: scripted\n", "provider: scripted\n  max_retries: 1\n", 1))
    with ChatProgram(home) as chat:
        chat.wait_idle()

        chat.enter("hello")
        shown = chat.wait_for("retrying in", "(1 of 1)", "Ctrl-C stops")
        assert next(line for line in shown.splitlines() if "retrying" in line).endswith("s · Ctrl-C stops")
        chat.wait_for("Here I am." if heals else "(tried 2 times)")
        shown = chat.wait_idle()

        assert shown.count("attic says HTTP 500") == (0 if heals else 1)
        assert "retrying" not in shown


SHOP = """
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal, TypedDict
from pydantic import BaseModel, Field
from toolcrib import tool

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

class Address(BaseModel):
    street: str
    code: Annotated[str, Field(pattern="^[0-9]{5}$")]

class Order(BaseModel):
    address: Address
    items: list[str] = Field(min_length=1)

@dataclass
class Box:
    width: int
    tags: list[str] = field(default_factory=list)

class Limits(TypedDict, total=False):
    low: int

@tool(effects=())
def ship(order: Order, box: Box, colour: Colour, limits: Limits, speed: Literal["slow", "fast"],
         count: Annotated[int, Field(ge=1, le=5)] = 1) -> str:
    \"\"\"Ship an order.\"\"\"
    return f"{order.address.street}, {type(box).__name__} {box.width}, {colour.name}, {limits['low']}, {speed}, {count}"

@tool(effects=())
def lost(thing: "Missing") -> str:
    \"\"\"Cannot be described.\"\"\"
"""


@pytest.mark.services
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_a_model_is_told_which_parts_of_typed_arguments_are_wrong(home: Path, columns: int, rows: int) -> None:
    """Models, dataclasses, enums and what is nested in them are checked by name, then built; a refused tool is none."""
    wrong: dict[str, Any] = {
        "order": {"address": {"street": "Main 1", "code": "abc"}, "items": []},
        "box": {"width": "wide"},
        "colour": "green",
        "limits": {"low": 1},
        "speed": "fast",
    }
    address = {"street": "Main 1", "code": "12345"}
    right = wrong | {"order": {"address": address, "items": ["a"]}, "box": {"width": 3}, "colour": "red"}
    steps = [{"call": "ship", "arguments": one} for one in (wrong, right)]
    make_home(home, [*steps, {"call": "lost", "arguments": {}}, {"say": "Shipped."}])
    (home / "tools" / "shop.py").write_text(SHOP)
    with ChatProgram(home, columns=columns, rows=rows) as chat:
        chat.wait_idle()
        chat.enter("ship it")
        shown = " ".join(chat.wait_for("Shipped.").split())
        for part in ("'box.width' must be", "'order.address.code' must be", "'order.items' must", "'colour' must be"):
            assert part in shown
        assert "lost · 0.0s · failed: Unknown tool: lost" in shown
        chat.wait_idle()
        chat.enter("/show 2")
        chat.wait_for_answer("/show 2", "Main 1, Box 3, RED, 1, fast, 1")
