"""`computer_use`: what the driver is told, and a real X display."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.displays import x_display
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
def display() -> Iterator[str]:
    with x_display("xdotool", "scrot") as name:
        yield name


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
    assert "has no element 3" in (await use(action="click", element=3))["error"]
    assert "accessibility bus" in (await use(action="capture", mode="ax"))["error"]
    asking.choice = "deny"
    await use(action="double_click", coordinate=[1, 1])
    where = subprocess.run(["xdotool", "getmouselocation"], capture_output=True, text=True, check=True).stdout  # noqa: ASYNC221
    assert where.startswith("x:123 y:45 ")
    seen = await use(action="capture")
    assert seen["analysis"] == "Left red, right blue."
    assert (seen["images"][0]["width"], seen["images"][0]["height"]) == (640, 480)


PAGE = """
<title>Form</title><label>Name <input></label>
<button onclick="document.title = 'Pressed ' + document.querySelector('input').value">Press me</button>
<input type=range aria-label=Volume min=0 max=10 value=3>
"""
SESSION = """
{launcher} --launch-immediately &
{chromium} --no-sandbox --no-first-run --user-data-dir={folder}/profile --force-renderer-accessibility \\
  --window-size=600,400 --app=file://{folder}/page.html &
echo "$DBUS_SESSION_BUS_ADDRESS"
read -r stop
kill $(jobs -p)
"""
BUS_LAUNCHERS = ("/usr/libexec/at-spi-bus-launcher", "/usr/lib/at-spi2-core/at-spi-bus-launcher")


@pytest.fixture
def form(display: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chromium with a form, in a desktop session of its own with an accessibility bus."""
    launcher = next(filter(shutil.which, BUS_LAUNCHERS), None)
    chromium = shutil.which("chromium")
    if launcher is None or chromium is None or shutil.which("dbus-run-session") is None:
        pytest.skip("chromium, dbus-run-session or at-spi2-core is missing")
    (tmp_path / "page.html").write_text(PAGE)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    script = SESSION.format(launcher=launcher, chromium=chromium, folder=tmp_path)
    command = ["dbus-run-session", "--", "bash", "-c", script]
    environ = {**os.environ, "ACCESSIBILITY_ENABLED": "1", "HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environ, text=True
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", session.stdout.readline().strip())
        yield
        session.stdin.write("stop\n")
        session.stdin.close()
        session.stdout.read()


@pytest.mark.services
@pytest.mark.may_skip
async def test_elements_of_a_real_window_are_listed_pressed_and_filled(
    open_vision: OpenVision, form: None, asking: Asking
) -> None:
    """By their numbers, after an approval that names them; in the background, too, where the pointer stays."""
    runtime = open_vision(approver=asking)

    async def use(**arguments: Any) -> dict[str, Any]:
        return dict(json.loads((await runtime.call("computer_use", arguments)).text))

    async def captured() -> dict[str, int]:
        seen = await use(action="capture", mode="ax", app="Form")
        return {f"{one['role']} {one['name']}": one["element"] for one in seen.get("elements", [])}

    async with asyncio.timeout(60):
        while "push button Press me" not in (numbers := await captured()):
            await use(action="wait", seconds=0.3)
    assert {"entry Name", "slider Volume"} <= numbers.keys()
    assert asking.requests == []

    filled = await use(action="set_value", element=numbers["entry Name"], value="Ann")
    assert filled["success"] is True, filled
    assert "'Name'" in str(asking.requests)
    pressed = await use(action="click", element=numbers["push button Press me"], delivery_mode="background")
    assert pressed["success"] is True, pressed
    async with asyncio.timeout(30):
        while not any("Pressed Ann" in one["title"] for one in (await use(action="list_windows"))["windows"]):
            await use(action="wait", seconds=0.2)
    await use(action="click", element=numbers["slider Volume"])
    where = subprocess.run(["xdotool", "getmouselocation"], capture_output=True, text=True, check=True).stdout  # noqa: ASYNC221
    assert not where.startswith("x:0 y:0 ")
    assert "takes a number" in (await use(action="set_value", element=numbers["slider Volume"], value="loud"))["error"]
    assert "needs element" in (await use(action="set_value", value="x"))["error"]
