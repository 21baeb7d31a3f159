"""Tasks of MiniWoB++, solved by a script that sees and does only what the browser tools offer.

Twenty-two tasks with three seeds each. A model would do no better with refs alone than 62 of these 66: the links of
`click-link` have no role, and are reached by their visible text.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Approver, Browsing
from tests.web.sites import Site
from toolcrib.runtime import Runtime

pytestmark = pytest.mark.services

SEEDS = ("one", "two", "three")
MAX_MISSES = 4


class Task:
    """One episode: the words of the task, and the page."""

    def __init__(self, browsing: Browsing, words: str) -> None:
        self.browsing = browsing
        self.words = words
        self.lines: list[str] = []

    async def look(self) -> list[str]:
        self.lines = (await self.browsing.call("snapshot"))["snapshot"].splitlines()
        return self.lines

    def quoted(self) -> list[str]:
        return re.findall(r'"([^"]+)"', self.words)

    def ref(self, role: str, name: str = "", number: int = 0) -> str:
        """The ref of the element with this role and name, as the last look showed it."""
        start = f'- {role} "{name}"' if name else f"- {role}"
        shown = [line for line in self.lines if line.strip().startswith(start)]
        found = [match[1] for line in shown if (match := re.search(r"\[ref=(\w+)\]", line))]
        return found[number]

    async def click(self, target: str) -> None:
        assert "error" not in await self.browsing.call("click", ref=target)

    async def type(self, target: str, text: str) -> None:
        assert "error" not in await self.browsing.call("type", ref=target, text=text)

    async def press_button(self, name: str) -> None:
        await self.look()
        await self.click(self.ref("button", name))


async def click_named_button(task: Task) -> None:
    await task.click(task.ref("button", task.quoted()[0]))


async def click_only_button(task: Task) -> None:
    await task.click(task.ref("button"))


async def click_sequence(task: Task) -> None:
    for name in ("ONE", "TWO"):
        await task.click(task.ref("button", name))


async def click_first(task: Task) -> None:
    await task.click(task.ref("button", "ONE"))


async def check_boxes(task: Task) -> None:
    wanted = re.search(r"Select (.*) and click Submit", task.words)
    assert wanted
    for name in wanted[1].split(", "):
        if name != "nothing":
            await task.click(task.ref("checkbox", name))
    await task.press_button("Submit")


async def choose_radio(task: Task) -> None:
    wanted = re.search(r"Select (.*) and click Submit", task.words)
    assert wanted
    await task.click(task.ref("radio", wanted[1]))
    await task.press_button("Submit")


async def choose_from_list(task: Task) -> None:
    wanted = re.search(r"Select (.*) from the list", task.words)
    assert wanted
    await task.type(task.ref("combobox"), wanted[1])
    await task.press_button("Submit")


async def enter_quoted(task: Task) -> None:
    await task.type(task.ref("textbox"), task.quoted()[0])
    await task.press_button("Submit")


async def enter_in_capitals(task: Task) -> None:
    text = task.quoted()[0]
    await task.type(task.ref("textbox"), text.upper() if "upper case" in task.words else text.lower())
    await task.press_button("Submit")


async def enter_twice(task: Task) -> None:
    for number in (0, 1):
        await task.look()
        await task.type(task.ref("textbox", number=number), task.quoted()[0])
    await task.press_button("Submit")


async def log_in(task: Task) -> None:
    for number, text in enumerate(task.quoted()):
        await task.look()
        await task.type(task.ref("textbox", number=number), text)
    await task.press_button("Login")


async def focus(task: Task) -> None:
    await task.click(task.ref("textbox"))


async def focus_nth(task: Task) -> None:
    number = re.search(r"(\d)(?:st|nd|rd|th)", task.words)
    assert number
    await task.click(task.ref("textbox", number=int(number[1]) - 1))


async def close_dialog(task: Task) -> None:
    await task.click(task.ref("button", "Close"))


async def press_in_dialog(task: Task) -> None:
    wanted = task.quoted()[0]
    await task.click(task.ref("button", "Close" if wanted == "x" else wanted))


async def click_tab(task: Task) -> None:
    number = re.search(r"#(\d)", task.words)
    assert number
    await task.click(task.ref("link", f"Tab #{number[1]}"))


async def click_link(task: Task) -> None:
    target = task.quoted()[0]
    answer = await task.browsing.call("click", ref=f"text={target}")
    if "elements show the text" in str(answer.get("error")):
        # The same word also stands in the task itself.
        answer = await task.browsing.call("click", ref=f"text={target} #2")
    assert "error" not in answer


async def add_up(task: Task) -> None:
    text = " ".join(task.lines)
    found = re.search(r"(\d+)\s*([-+x*])\s*(\d+)\s*=", text)
    assert found, text
    first, second = int(found[1]), int(found[3])
    answer = {"+": first + second, "-": first - second, "x": first * second, "*": first * second}[found[2]]
    await task.type(task.ref("textbox"), str(answer))
    await task.press_button("Submit")


async def click_widget(task: Task) -> None:
    roles = {"text": "textbox", "textarea": "textbox", "button": "button", "radio": "radio", "checkbox": "checkbox"}
    wanted = re.search(r'Click on a "(\w+)" widget', task.words)
    assert wanted
    if wanted[1] in ("text", "textarea"):
        # A snapshot calls both a textbox, so look at what is drawn.
        script = "[...document.querySelectorAll('#area textarea, #area input[type=text]')].map(e => e.tagName)"
        tags = await task.browsing.evaluate(script)
        number = tags.index("TEXTAREA" if wanted[1] == "textarea" else "INPUT")
        await task.click(task.ref("textbox", number=number))
    else:
        await task.click(task.ref(roles[wanted[1]]))


SOLVERS: dict[str, Callable[[Task], Awaitable[None]]] = {
    "click-button": click_named_button,
    "click-button-sequence": click_sequence,
    "click-checkboxes": check_boxes,
    "click-checkboxes-large": check_boxes,
    "click-checkboxes-transfer": check_boxes,
    "click-dialog": close_dialog,
    "click-dialog-2": press_in_dialog,
    "click-link": click_link,
    "click-option": choose_radio,
    "click-tab": click_tab,
    "click-test": click_only_button,
    "click-test-2": click_first,
    "click-widget": click_widget,
    "choose-list": choose_from_list,
    "enter-password": enter_twice,
    "enter-text": enter_quoted,
    "enter-text-dynamic": enter_quoted,
    "enter-text-2": enter_in_capitals,
    "focus-text": focus,
    "focus-text-2": focus_nth,
    "login-user": log_in,
    "simple-arithmetic": add_up,
}


@pytest.fixture(scope="module")
def tasks() -> Iterator[str]:
    """The address of the pages, as the package ships them."""
    found = importlib.util.find_spec("miniwob")
    if found is None or found.origin is None:
        pytest.skip("no MiniWoB++: run scripts/test-services up")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    folder = str(Path(found.origin).parent / "html")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/miniwob"
    server.shutdown()
    server.server_close()
    thread.join(5)


async def solves(browsing: Browsing, address: str, name: str, seed: str) -> str:
    """What went wrong; empty if the task was solved."""
    await browsing.call("navigate", url=f"{address}/{name}.html")
    start = f"core.EPISODE_MAX_TIME = 1e8; Math.seedrandom('{seed}'); core.startEpisodeReal(); core.getUtterance()"
    words = await browsing.evaluate(start)
    task = Task(browsing, str(words.get("utterance") if isinstance(words, dict) else words))
    await task.look()
    try:
        await SOLVERS[name](task)
    except (AssertionError, LookupError) as error:
        return f"{name} {seed}: {type(error).__name__} {str(error)[:200]}; {task.words}\n" + "\n".join(task.lines[:12])
    reward = await browsing.evaluate("[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]")
    return "" if reward == [True, 1] else f"{name} {seed}: {reward}; {task.words}\n" + "\n".join(task.lines[:12])


async def test_a_script_with_only_our_tools_solves_miniwob(
    shared: tuple[Runtime, Approver], site: Site, tasks: str
) -> None:
    """At least 62 of 66 runs, among them all of `click-link`."""
    runtime, approver = shared
    approver.choice = "once"
    browsing = Browsing(runtime, site, approver)
    runs = [(name, seed) for name in SOLVERS for seed in SEEDS]
    assert len(runs) == 66

    misses = [miss for name, seed in runs if (miss := await solves(browsing, tasks, name, seed))]

    assert len(misses) <= MAX_MISSES, "\n\n".join(misses)
    assert not [miss for miss in misses if miss.startswith("click-link")], "\n\n".join(misses)
    print(f"solved {len(runs) - len(misses)} of {len(runs)}")
    await runtime.services.end_session(browsing.session_id)
