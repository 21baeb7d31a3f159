"""The desktop of this machine: an X display, driven by xdotool and photographed by scrot or ImageMagick.

The elements of windows come from the accessibility bus, where there is one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.integrations.accessibility import AccessibilityBus, AccessibilityFailed, DesktopElement
from toolcrib.registry.results import error_in, tool_error, tool_result

ANSWER_SECONDS = 15.0
MAX_WAIT_SECONDS = 30.0
MAX_WINDOWS = 50
SCREENSHOT_PROGRAMS = {"scrot": ("-o",), "import": ("-window", "root")}
"""Programs that photograph the screen, with what stands before the file."""
CLICKS = {
    "click": ("1",),
    "double_click": ("--repeat", "2", "--delay", "80", "1"),
    "middle_click": ("2",),
    "right_click": ("3",),
}
BUTTONS = {"left": "1", "middle": "2", "right": "3"}
WHEEL = {"up": "4", "down": "5", "left": "6", "right": "7"}
KEYS = {
    "cmd": "super", "command": "super", "win": "super", "control": "ctrl", "option": "alt", "enter": "Return",
    "return": "Return", "esc": "Escape", "escape": "Escape", "tab": "Tab", "backspace": "BackSpace",
    "delete": "Delete", "up": "Up", "down": "Down", "left": "Left", "right": "Right", "home": "Home", "end": "End",
    "pageup": "Prior", "pagedown": "Next",
}  # fmt: skip
NOT_A_KEY = re.compile(r"[^A-Za-z0-9_]")
POINTS = {"element": "coordinate", "from_element": "from_coordinate", "to_element": "to_coordinate"}
MAX_ELEMENTS = 100


class DesktopFailed(ToolcribError):
    """The desktop could not be used."""


class DesktopService:
    """`computer_use` for one runtime."""

    def __init__(self) -> None:
        self._elements: dict[str, list[DesktopElement]] = {}
        """By session: the elements of its last capture, which the model names by their numbers."""

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str | JsonObject:
        try:
            done = await self._act(str(args["action"]), args, ctx)
            is_picture = args["action"] == "capture" and args.get("mode") != "ax"
            if is_picture or args.get("capture_after"):
                return await self._seen(done, ctx)
        except ToolcribError as error:
            return tool_error(error, success=False)
        return tool_result(done)

    def target(self, args: JsonObject, ctx: ToolContext) -> str:
        """What an action is about, for the question before it."""
        for name in ("element", "to_element"):
            if args.get(name):
                try:
                    element = self._element(args, name, ctx)
                except DesktopFailed:
                    return f"element {args[name]}"
                return f"{element.role} {element.name!r} in {element.app!r}"
        given = args.get("text") or args.get("keys") or args.get("coordinate") or args.get("to_coordinate")
        return str(given or "desktop")

    async def _act(self, action: str, args: JsonObject, ctx: ToolContext) -> JsonObject:
        if action == "wait":
            seconds = min(float(args.get("seconds") or 1), MAX_WAIT_SECONDS)
            await asyncio.sleep(seconds)
            return {"success": True, "action": action, "seconds": seconds}
        if action in ("list_windows", "list_apps"):
            return {"success": True, "action": action, "windows": await self._windows()}
        if action == "capture":
            return {"success": True, "action": action, "windows": await self._windows(), **await self._look(args, ctx)}
        if action == "set_value":
            await self._set_value(self._element(args, "element", ctx), str(args.get("value") or ""))
            return {"success": True, "action": action}
        if args.get("delivery_mode") == "background":
            return await self._press_unseen(action, args, ctx)
        if action == "focus_app" or args.get("window_id") or args.get("app") or args.get("pid"):
            await self._focus(args)
        if action != "focus_app":
            placed = {point: self._element(args, name, ctx).center for name, point in POINTS.items() if args.get(name)}
            if placed and action in ("type", "key"):
                await _run("xdotool", *input_commands("click", {"action": "click", **placed})[0])
            commands, text = input_commands(action, {**args, **placed})
            await _run("xdotool", *commands, stdin=text)
        return {"success": True, "action": action}

    async def _set_value(self, element: DesktopElement, value: str) -> None:
        if not element.needs_typing:
            await asyncio.to_thread(_on_bus, lambda bus: bus.set_value(element, value))
            return
        x, y = map(str, element.center)
        await _run("xdotool", "mousemove", x, y, "click", "1", "key", "ctrl+a")
        await _run("xdotool", *input_commands("type", {})[0], stdin=value)

    async def _press_unseen(self, action: str, args: JsonObject, ctx: ToolContext) -> JsonObject:
        if action != "click" or not args.get("element"):
            raise DesktopFailed("in the background, only click and set_value work, and only with an element")
        element = self._element(args, "element", ctx)
        await asyncio.to_thread(_on_bus, lambda bus: bus.press(element))
        return {"success": True, "action": action}

    async def _look(self, args: JsonObject, ctx: ToolContext) -> JsonObject:
        """The elements on the screen, numbered; only a capture that wants nothing else fails without them."""
        if args.get("mode") == "vision":
            return {}
        app, limit = str(args.get("app") or ""), int(args.get("max_elements") or MAX_ELEMENTS)
        try:
            found: list[DesktopElement] = await asyncio.to_thread(_on_bus, lambda bus: bus.elements(app, limit))
        except AccessibilityFailed as error:
            if args.get("mode") == "ax":
                raise
            return {"note": f"no elements: {error}"}
        self._elements[ctx.session_id] = found
        return {"elements": [one.as_json(number) for number, one in enumerate(found, 1)]}

    def _element(self, args: JsonObject, name: str, ctx: ToolContext) -> DesktopElement:
        known, number = self._elements.get(ctx.session_id, []), int(args.get(name) or 0)
        if not number:
            raise DesktopFailed(f"{args['action']} needs {name}: a number from the last capture")
        if not 1 <= number <= len(known):
            raise DesktopFailed(f"the last capture has no element {number}; capture again, or pass a coordinate")
        return known[number - 1]

    async def _windows(self) -> list[JsonObject]:
        ids = (await _run("xdotool", "search", "--onlyvisible", "--name", ".")).split()
        found = []
        for id in ids[:MAX_WINDOWS]:
            name, *facts = (await _run("xdotool", "getwindowname", id, "getwindowgeometry", "--shell", id)).splitlines()
            at = dict(fact.partition("=")[::2] for fact in facts)
            box = {key.lower(): int(at[key]) for key in ("X", "Y", "WIDTH", "HEIGHT") if key in at}
            found.append({"window_id": int(id), "title": name, **box})
        return found

    async def _focus(self, args: JsonObject) -> None:
        wanted = args.get("window_id")
        if not wanted:
            app, pid = str(args.get("app") or ""), args.get("pid")
            if not (app or pid):
                raise DesktopFailed("name a window: by window_id, pid or app")
            by = ("--pid", str(int(pid))) if pid else ("--name", re.escape(app))
            found = (await _run("xdotool", "search", "--onlyvisible", *by)).split()
            if not found:
                raise DesktopFailed("no visible window fits; list_windows shows them")
            wanted = found[-1]
        # `windowactivate` would need a window manager.
        await _run("xdotool", "windowraise", str(int(wanted)), "windowfocus", str(int(wanted)))

    async def _seen(self, done: JsonObject, ctx: ToolContext) -> str | JsonObject:
        """What was done, with a picture of the screen after it."""
        program = next(filter(shutil.which, SCREENSHOT_PROGRAMS), "")
        if not program:
            raise DesktopFailed("no program takes screenshots; install scrot (`apt install scrot`)")
        with tempfile.TemporaryDirectory(prefix="toolcrib-screen-") as folder:
            file = Path(folder) / "screen.png"
            await _run(program, *SCREENSHOT_PROGRAMS[program], str(file))
            data = await asyncio.to_thread(file.read_bytes)
        answer = await ctx.services.vision.analyze([data], "What does the screen show, and where?", ctx, facts=done)
        error = error_in(answer) if isinstance(answer, str) else None
        return tool_error(error, **{**done, "success": False}) if error else answer


def _on_bus(work: Callable[[AccessibilityBus], Any]) -> Any:
    bus = AccessibilityBus()
    try:
        return work(bus)
    finally:
        bus.close()


def input_commands(action: str, args: JsonObject) -> tuple[list[str], str]:
    """What xdotool is told for an action with the mouse or the keyboard, and the text that it types."""
    if action == "type":
        return ["type", "--delay", "12", "--file", "-"], str(args.get("text") or "")
    if action == "key":
        return ["key", _chord(str(args.get("keys") or ""))], ""
    held = [_chord(str(one)) for one in args.get("modifiers") or []]
    if action == "drag":
        start, end = _point(args, "from_coordinate"), _point(args, "to_coordinate")
        button = BUTTONS[args.get("button") or "left"]
        did = ["mousemove", *start, "mousedown", button, "mousemove", *end, "mouseup", button]
    elif action == "scroll":
        at = ["mousemove", *_point(args, "coordinate")] if args.get("coordinate") else []
        did = [*at, "click", "--repeat", str(int(args.get("amount") or 3)), WHEEL[args.get("direction") or "down"]]
    else:
        chosen = (BUTTONS[args["button"]],) if action == "click" and args.get("button") else CLICKS[action]
        did = ["mousemove", *_point(args, "coordinate"), "click", *chosen]
    pressed = [word for one in held for word in ("keydown", one)]
    return [*pressed, *did, *(word for one in held for word in ("keyup", one))], ""


def _point(args: JsonObject, name: str) -> list[str]:
    given = args.get(name) or []
    if len(given) != 2:
        raise DesktopFailed(f"{args['action']} needs {name}: [x, y] on the screen")
    return [str(int(one)) for one in given]


def _chord(keys: str) -> str:
    """Keys in X's names; a word that is no key could be an option of the program."""
    parts = [KEYS.get(one.strip().lower(), one.strip()) for one in keys.split("+")]
    if not all(parts) or any(map(NOT_A_KEY.search, parts)):
        raise DesktopFailed(f"{keys[:40]!r} names no keys; write them like ctrl+s, Return or F5")
    return "+".join(parts)


async def _run(program: str, *arguments: str, stdin: str = "") -> str:
    """What the program prints; raises DesktopFailed. It sees the display, and no keys of services."""
    known = {name: os.environ[name] for name in ("DISPLAY", "XAUTHORITY", "PATH", "HOME") if name in os.environ}
    if "DISPLAY" not in known:
        raise DesktopFailed("there is no X display: DISPLAY is not set")
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env={**known, "LC_ALL": "C.UTF-8"}
        )
    except OSError as error:
        raise DesktopFailed(f"{program} cannot be started ({error}); install it (`apt install {program}`)") from error
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            output, problem = await process.communicate(stdin.encode())
    except (TimeoutError, asyncio.CancelledError) as error:
        process.kill()
        await process.wait()
        if isinstance(error, asyncio.CancelledError):
            raise
        raise DesktopFailed(f"{program} did not end within {ANSWER_SECONDS:g} seconds") from error
    if process.returncode and (problem or arguments[0] != "search"):
        # A search that finds nothing fails without a word.
        raise DesktopFailed(f"{program} failed: {problem.decode(errors='replace').strip()[:300]}")
    return output.decode(errors="replace")
