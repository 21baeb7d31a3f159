"""The elements of windows, as a screen reader sees them: AT-SPI over D-Bus, with the package of the extra `desktop`.

Applications answer on their own, so one that hangs must not hold up the others: every call and the whole walk have a
time limit. All of this blocks; run it on a thread.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from toolcrib.core.attempt import attempt
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject

PACKAGE = "jeepney"
INSTALL = "run `pip install 'toolcrib[desktop]'`"
CALL_SECONDS = 2.0
WALK_SECONDS = 10.0
MAX_NODES = 3_000
MAX_NAME_CHARS = 80
SHOWING = 1 << 25
"""The bit of the state that says: the element is on the screen."""
ROLES = frozenset(
    {
        *("push button", "toggle button", "check box", "radio button", "entry", "text", "password text", "combo box"),
        *("menu", "menu item", "check menu item", "radio menu item", "list item", "page tab", "slider", "spin button"),
        *("link", "tree item", "table cell", "icon", "switch", "button"),
    }
)
"""What a person can use; everything else is decoration."""
TEXT_ROLES = frozenset({"entry", "text", "password text"})
_ATSPI = "org.a11y.atspi."
_ROOT = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")


class AccessibilityFailed(ToolcribError):
    """The elements of windows cannot be read or used."""


class DesktopElement(msgspec.Struct, frozen=True, kw_only=True):
    """Something on the screen that a person can use."""

    role: str
    name: str
    app: str
    box: tuple[int, int, int, int]
    """x, y, width and height in pixels of the screen."""
    owner: tuple[str, str]
    """The bus name and the path under which its application knows it."""
    interfaces: frozenset[str]

    @property
    def needs_typing(self) -> bool:
        """Whether its text can only be changed with the keyboard, as in browsers."""
        return self.role in TEXT_ROLES and f"{_ATSPI}EditableText" not in self.interfaces

    @property
    def center(self) -> list[int]:
        x, y, width, height = self.box
        return [x + width // 2, y + height // 2]

    def as_json(self, number: int) -> JsonObject:
        x, y, width, height = self.box
        shown = {"element": number, "role": self.role, "name": self.name, "app": self.app}
        return {**shown, "x": x, "y": y, "width": width, "height": height}


class AccessibilityBus:
    """A connection to the accessibility bus of the desktop session."""

    def __init__(self) -> None:
        # An extra; few people let a model drive their desktop.
        try:
            self._library: Any = importlib.import_module(PACKAGE)
        except ImportError as error:
            missing = f"the elements of windows need a package that is not installed; {INSTALL}"
            raise AccessibilityFailed(missing) from error
        self._blocking: Any = importlib.import_module(f"{PACKAGE}.io.blocking")
        # The package raises its own errors, those of the system, and KeyError for a variable that is not set.
        connection, failure = attempt(self._connect)
        self._connection: Any = connection
        if failure is not None:
            raise AccessibilityFailed(
                "the desktop session has no accessibility bus; install at-spi2-core, and start toolcrib in that session"
            ) from failure

    def _connect(self) -> Any:
        with self._blocking.open_dbus_connection(bus="SESSION") as session:
            place = self._library.DBusAddress("/org/a11y/bus", "org.a11y.Bus", "org.a11y.Bus")
            asked = self._library.new_method_call(place, "GetAddress")
            address = session.send_and_get_reply(asked, timeout=CALL_SECONDS).body[0]
        return self._blocking.open_dbus_connection(bus=address)

    def close(self) -> None:
        self._connection.close()

    def elements(self, app: str, limit: int) -> list[DesktopElement]:
        """The elements on the screen, in the order of their windows; of applications whose name or title has `app`."""
        found: list[DesktopElement] = []
        deadline, left = time.monotonic() + WALK_SECONDS, MAX_NODES
        for window, title in self._windows():
            if app.lower() not in title.lower():
                continue
            for owner in self._below(window):
                left -= 1
                if left < 0 or time.monotonic() > deadline or len(found) >= limit:
                    return found
                element = self._element(owner, title)
                if element is not None:
                    found.append(element)
        return found

    def press(self, element: DesktopElement) -> None:
        """Do what a click on the element does, without the pointer."""
        if f"{_ATSPI}Action" not in element.interfaces:
            raise AccessibilityFailed(f"the {element.role} {element.name!r} has no action; click it in the foreground")
        self._require(self._call(element.owner, "Action", "DoAction", "i", (0,)), element)

    def set_value(self, element: DesktopElement, value: str) -> None:
        if f"{_ATSPI}EditableText" in element.interfaces:
            self._require(self._call(element.owner, "EditableText", "SetTextContents", "s", (value,)), element)
        elif f"{_ATSPI}Value" in element.interfaces:
            try:
                number = float(value)
            except ValueError:
                raise AccessibilityFailed(
                    f"the {element.role} {element.name!r} takes a number, not {value!r}"
                ) from None
            properties = self._library.Properties(self._place(element.owner, "Value"))
            self._require(self._answer(properties.set("CurrentValue", "d", number)), element)
        else:
            raise AccessibilityFailed(
                f"the {element.role} {element.name!r} has no value that can be set; click and type"
            )

    def _require(self, answer: Any, element: DesktopElement) -> None:
        if answer is None or answer == (False,):
            raise AccessibilityFailed(f"the {element.role} {element.name!r} did not accept it; capture again")

    def _windows(self) -> Iterator[tuple[tuple[str, str], str]]:
        """Each window with the name of its application and its title."""
        for application in self._children(_ROOT):
            name = self._name(application)
            for window in self._children(application):
                yield window, f"{name}: {self._name(window)}".strip(": ")

    def _below(self, owner: tuple[str, str]) -> Iterator[tuple[str, str]]:
        waiting = [owner]
        while waiting:
            current = waiting.pop()
            yield current
            waiting += reversed(self._children(current))

    def _element(self, owner: tuple[str, str], title: str) -> DesktopElement | None:
        role = self._first(self._call(owner, "Accessible", "GetRoleName"), "")
        state = self._first(self._call(owner, "Accessible", "GetState"), [0])
        if role not in ROLES or not state or not int(state[0]) & SHOWING:
            return None
        box = self._first(self._call(owner, "Component", "GetExtents", "u", (0,)), (0, 0, 0, 0))
        if box[2] <= 0 or box[3] <= 0:
            return None
        return DesktopElement(
            role=role,
            name=self._name(owner),
            app=title[:MAX_NAME_CHARS],
            box=(int(box[0]), int(box[1]), int(box[2]), int(box[3])),
            owner=owner,
            interfaces=frozenset(self._first(self._call(owner, "Accessible", "GetInterfaces"), [])),
        )

    def _name(self, owner: tuple[str, str]) -> str:
        answer = self._answer(self._library.Properties(self._place(owner, "Accessible")).get("Name"))
        variant = self._first(answer, ("s", ""))
        return str(variant[1])[:MAX_NAME_CHARS] if isinstance(variant, tuple) and len(variant) == 2 else ""

    def _children(self, owner: tuple[str, str]) -> list[tuple[str, str]]:
        listed = self._first(self._call(owner, "Accessible", "GetChildren"), [])
        return [(str(one[0]), str(one[1])) for one in listed]

    def _place(self, owner: tuple[str, str], interface: str) -> Any:
        return self._library.DBusAddress(owner[1], owner[0], f"{_ATSPI}{interface}")

    def _call(self, owner: tuple[str, str], interface: str, method: str, signature: str = "", body: Any = ()) -> Any:
        place = self._place(owner, interface)
        return self._answer(self._library.new_method_call(place, method, signature or None, body))

    def _answer(self, message: Any) -> Any:
        """What an application answers; None for an error, or for one that does not answer in time."""
        answered, error = attempt(self._connection.send_and_get_reply, message, timeout=CALL_SECONDS)
        reply: Any = answered
        if error is not None or reply.header.message_type == self._library.MessageType.error:
            return None
        return reply.body

    def _first(self, body: Any, default: Any) -> Any:
        return body[0] if body else default
