"""`computer_use`: what the driver is told, and a real X display."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.media.conftest import OpenVision
from tests.media.services import Asking
from toolcrib.integrations.desktop import DesktopFailed, input_commands


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"action": "click", "coordinate": [3, 4]}, "mousemove 3 4 click 1"),
        ({"action": "click", "coordinate": [3, 4], "button": "right"}, "mousemove 3 4 click 3"),
        ({"action": "middle_click", "coordinate": [3, 4]}, "mousemove 3 4 click 2"),
        (
            {"action": "click", "coordinate": [3, 4], "modifiers": ["cmd"]},
            "keydown super mousemove 3 4 click 1 keyup super",
        ),
        (
            {"action": "drag", "from_coordinate": [1, 2], "to_coordinate": [3, 4]},
            "mousemove 1 2 mousedown 1 mousemove 3 4 mouseup 1",
        ),
        ({"action": "scroll", "direction": "up"}, "click --repeat 3 4"),
        ({"action": "key", "keys": "ctrl+enter"}, "key ctrl+Return"),
    ],
)
def test_the_driver_is_told_what_the_action_says(args: dict[str, Any], told: str) -> None:
    assert input_commands(args["action"], args) == (told.split(), "")


@pytest.mark.parametrize(
    "args", [{"action": "key", "keys": "--help"}, {"action": "key", "keys": ""}, {"action": "click"}]
)
def test_what_names_no_key_or_point_is_an_error(args: dict[str, Any]) -> None:
    with pytest.raises(DesktopFailed):
        input_commands(args["action"], args)


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    missing = [name for name in ("Xvfb", "xdotool", "scrot") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is missing")
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "640x480x24", "-nolisten", "tcp", "-noreset"]
    with subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL) as server:
        os.close(write)
        with os.fdopen(read) as told:
            name = f":{told.readline().strip()}"
        monkeypatch.setenv("DISPLAY", name)
        yield name
        server.terminate()


@pytest.mark.services
@pytest.mark.may_skip
async def test_a_real_display_is_driven_after_approval(open_vision: OpenVision, display: str, asking: Asking) -> None:
    """The pointer is where the click was; looking needs no approval, and a denied click does nothing."""
    runtime = open_vision(approver=asking)

    async def use(**arguments: Any) -> dict[str, Any]:
        return dict(json.loads((await runtime.call("computer_use", arguments)).text))

    assert runtime.definitions(["computer_use"]).names == ["computer_use"]
    assert (await use(action="list_windows"))["windows"] == []
    assert asking.requests == []
    assert (await use(action="click", coordinate=[123, 45]))["success"] is True
    assert len(asking.requests) == 1
    where = subprocess.run(["xdotool", "getmouselocation"], capture_output=True, text=True, check=True).stdout  # noqa: ASYNC221
    assert where.startswith("x:123 y:45 ")
    assert (await use(action="type", text="hello"))["success"] is True
    assert "knows no elements" in (await use(action="click", element=3))["error"]
    asking.choice = "deny"
    await use(action="double_click", coordinate=[1, 1])
    where = subprocess.run(["xdotool", "getmouselocation"], capture_output=True, text=True, check=True).stdout  # noqa: ASYNC221
    assert where.startswith("x:123 y:45 ")
    seen = await use(action="capture")
    assert seen["analysis"] == "Left red, right blue."
    assert (seen["images"][0]["width"], seen["images"][0]["height"]) == (640, 480)
