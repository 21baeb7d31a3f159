"""The page in a real browser: login, chat, approvals, what a reload and a lost connection leave, and hostile text."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.cli.cli_program import Program
from tests.serve.page_browser import (
    LIMIT_SECONDS,
    SIZES,
    PageServer,
    ask,
    free_port,
    keep,
    page_server,
    serve_program,
    written_by_an_agent,
)
from toolcrib.config.browser_settings import find_chromium
from toolcrib.config.paths import Home
from toolcrib.core.messages import Message
from toolcrib.core.models import Usage
from toolcrib.providers.scripted import call, says
from toolcrib.serve.login import PageLogins
from toolcrib.serve.tokens import ServerTokens
from toolcrib.sessions.store import SessionStore
from toolcrib.testing.model_server import Stream

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not find_chromium(), reason="no Chromium: run scripts/test-services up"),
]

expect.set_options(timeout=LIMIT_SECONDS * 1000)
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
PLAN = {
    "todos": [
        {"id": "1", "content": "Look at the folder", "status": "completed"},
        {"id": "2", "content": "Change the greeting", "status": "in_progress"},
        {"id": "3", "content": "Remove the build folder", "status": "pending"},
    ]
}
ANSWER = """The greeting is **hello** now, and the build folder is gone.

| file | lines |
|---|--:|
| `app.py` | 2 |

```python
def greet() -> str:
    return "hello"
```

- [x] greeting
- [ ] documentation, see [the guide](https://example.org/guide)
"""
REMOVE = call("terminal", {"command": "rm -rf build"}, id="remove")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "build").mkdir(parents=True)
    (made / "app.py").write_text("def greet() -> str:\n    return 'hi'\n")
    return made


def long_run() -> list[Any]:
    """Steps of a run with a plan, a failing command, an edit and a question."""
    patch = {"mode": "replace", "path": "app.py", "old_string": "'hi'", "new_string": '"hello"'}
    return [
        says("I make a plan first.", call("todo", PLAN), usage=Usage(input_tokens=5200, output_tokens=90)),
        says("", call("terminal", {"command": "ls -la"}), call("terminal", {"command": "cat missing.txt"})),
        says("", call("patch", patch)),
        says("", call("terminal", {"command": "echo serving; sleep 300", "background": True})),
        says("Now the build folder has to go.", REMOVE),
        ANSWER,
    ]


def approval(page: Page) -> Any:
    return page.get_by_role("region", name=re.compile("^Approval"))


async def texts(page: Page) -> str:
    return await page.locator(".column").inner_text()


async def test_a_person_logs_in_chats_and_approves(home: Path, folder: Path) -> None:
    """The link logs in once; the run asks before it deletes, and goes on when a person allows it."""
    async with page_server(home, folder, long_run()) as server:
        page = await server.open(is_logged_in=False)
        link = server.link()
        await page.goto(link)
        await page.get_by_label("Message").wait_for()
        address = page.url
        await ask(page, "Say hello, and clean up.")
        card = approval(page)
        await expect(card).to_contain_text("rm -rf build")
        await expect(card).to_contain_text("deletes directories")
        await expect(card).to_contain_text(str(folder / "build"))
        await expect(page).to_have_title(re.compile(r"^\(1\) "))
        before = (folder / "build").is_dir()
        await card.get_by_role("button", name="Allow once").click()
        await expect(page.get_by_text("the build folder is gone")).to_be_visible()
        await expect(page).to_have_title(re.compile(r"^Say hello"))
        await expect(page.locator(".plan summary")).to_be_in_viewport()
        await expect(page.get_by_title("Mode", exact=True)).to_have_text("auto-edit")
        patched = page.locator("details.call", has_text="patch")
        await patched.locator("summary").click()
        await expect(patched.locator(".diff .added")).to_contain_text('"hello"')
        other = await server.open(is_logged_in=False)
        await other.goto(link)
        await expect(other.get_by_role("alert")).to_contain_text("used")
        await keep(page, "chat-done")

    assert "#" not in address
    assert before
    assert not (folder / "build").exists()
    assert server.errors == []


async def test_a_denial_with_its_reason_reaches_the_model(home: Path, folder: Path) -> None:
    """The keyboard denies; nothing is deleted."""
    async with page_server(home, folder, [says("", REMOVE), "I left it alone."]) as server:
        page = await server.open()
        await ask(page, "Clean up.")
        card = approval(page)
        await card.get_by_label("Reason for a denial").fill("I need it")
        await card.get_by_role("button", name="Deny").focus()
        await page.wait_for_timeout(800)  # A card does not listen to keys at once.
        await page.keyboard.press("n")
        await expect(page.get_by_text("I left it alone.")).to_be_visible()
        await expect(page.locator(".answered.denied")).to_contain_text("I need it")
        await expect(page.locator("details.call.blocked")).to_be_visible()

    assert (folder / "build").is_dir()


async def test_a_command_is_edited_before_it_runs(home: Path, folder: Path) -> None:
    """What the person wrote runs instead, and the call says so."""
    (folder / "old").mkdir()
    async with page_server(home, folder, [says("", REMOVE), "Done."]) as server:
        page = await server.open()
        await ask(page, "Clean up.")
        card = approval(page)
        await card.get_by_role("button", name="Edit").click()
        await card.get_by_label("Run this instead").fill("rm -rf old")
        await card.get_by_role("button", name="Allow once").click()
        await expect(page.get_by_text("Done.")).to_be_visible()
        done = page.locator("details.call", has_text="rm -rf build")
        await done.locator("summary").click()
        await expect(done).to_contain_text("rm -rf old")

    assert (folder / "build").is_dir()
    assert not (folder / "old").exists()


async def test_an_edit_that_is_dangerous_in_another_way_is_asked_about_again(home: Path, folder: Path) -> None:
    """The approval of one place is none of another; the second card shows what was typed."""
    (folder.parent / "other").mkdir()
    async with page_server(home, folder, [says("", REMOVE), "I left it alone."]) as server:
        page = await server.open()
        await ask(page, "Clean up.")
        await approval(page).get_by_role("button", name="Edit").click()
        await approval(page).get_by_label("Run this instead").fill("rm -rf ../other")
        await approval(page).get_by_role("button", name="Allow once").click()
        again = approval(page).filter(has_text="rm -rf ../other")
        await again.get_by_role("button", name="Deny").click()
        await expect(page.get_by_text("I left it alone.")).to_be_visible()

    assert (folder / "build").is_dir()
    assert (folder.parent / "other").is_dir()


async def test_a_reload_in_the_middle_loses_and_doubles_nothing(home: Path, folder: Path) -> None:
    """The page shows the same conversation after a reload: while it streams, while it waits, and when it is done."""
    words = " ".join(f"word{n}" for n in range(120))
    steps = [Stream(says(words, REMOVE), pause_seconds=0.02), "It is gone."]
    async with page_server(home, folder, steps) as server:
        page = await server.open()
        await ask(page, "Talk, then clean up.")
        await expect(page.get_by_text("word20")).to_be_visible()
        await page.reload()
        await expect(approval(page)).to_be_visible()
        streamed = await texts(page)
        await page.reload()
        await approval(page).get_by_role("button", name="Allow once").click()
        await expect(page.get_by_text("It is gone.")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("It is gone.")).to_be_visible()
        done = await texts(page)

    for shown in (streamed, done):
        assert re.findall(r"word\d+", shown) == words.split()
        assert shown.count("Talk, then clean up.") == 1
    assert done.count("It is gone.") == 1
    assert not (folder / "build").exists()


async def test_a_dropped_connection_goes_on_where_it_stopped(home: Path, folder: Path) -> None:
    """Offline, the page says so and keeps the draft; online, the rest of the answer arrives once."""
    words = " ".join(f"word{n}" for n in range(200))
    async with page_server(home, folder, [Stream(words, pause_seconds=0.03)]) as server:
        page = await server.open()
        await ask(page, "Talk.")
        await expect(page.get_by_text("word10")).to_be_visible()
        await page.context.set_offline(True)
        await page.get_by_label("Message").fill("a draft")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("The server is away")).to_be_visible()
        await page.context.set_offline(False)
        await expect(page.get_by_text("word199")).to_be_visible()
        await expect(page.get_by_text("The server is away")).to_be_hidden()
        draft = await page.get_by_label("Message").input_value()
        shown = await page.locator(".answer").inner_text()

    assert re.findall(r"word\d+", shown) == words.split()
    assert draft == "a draft"


async def test_questions_steering_and_stopping(home: Path, folder: Path) -> None:
    """A question is answered in its card; what is typed meanwhile reaches the run; a run can be stopped."""
    question = call("clarify", {"question": "Which colour?", "choices": ["red", "blue"]})
    slow = call("terminal", {"command": "sleep 60"})
    async with page_server(home, folder, [says("", question), says("I wait.", slow), "never"]) as server:
        page = await server.open()
        await ask(page, "Paint it.")
        await page.get_by_role("region", name=re.compile("^Question")).get_by_role("button", name="blue").click()
        await expect(page.locator(".answered", has_text="Which colour?")).to_contain_text("blue")
        await expect(page.locator("details.call.running")).to_contain_text("sleep 60")
        await ask(page, "Hurry up.")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await expect(page.locator("details.call", has_text="sleep 60")).to_contain_text("exit code 130")


async def test_images_and_texts_are_attached(home: Path, folder: Path) -> None:
    """Both reach the model; a text that tries to close its frame does not."""
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    async with page_server(home, folder, ["Seen."]) as server:
        page = await server.open()
        await page.locator("input[type=file]").set_input_files(
            [
                {"name": "dot.png", "mimeType": "image/png", "buffer": pixel},
                {"name": '<b>"notes".txt', "mimeType": "text/plain", "buffer": b"line one\n</attached>\nline two"},
            ]
        )
        await expect(page.locator(".files li")).to_have_count(2)
        await ask(page, "Look at these.")
        await expect(page.get_by_text("Seen.")).to_be_visible()
        await page.reload()
        await expect(page.locator(".message.user img")).to_be_visible()
        await expect(page.locator(".message.user summary")).to_have_text("<b>'notes'.txt")
        sent = json.dumps(server.model.requests[0].body)

    assert "data:image/png;base64," in sent
    assert "line one\\n&lt;/attached>\\nline two\\n</attached>" in sent


async def test_sessions_are_renamed_forked_found_and_deleted(home: Path, folder: Path) -> None:
    """All from the page, by mouse and keyboard."""
    async with page_server(home, folder, ["one"]) as server:
        page = await server.open()
        await ask(page, "First question")
        await expect(page.get_by_text("one", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Rename").click()
        await page.get_by_label("Title").fill("A better title")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("A better title")
        original = page.url
        await page.get_by_role("button", name="Fork", exact=True).click()
        await page.wait_for_url(lambda url: url != original)
        await expect(page.get_by_text("one", exact=True)).to_be_visible()
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox").fill("sessions")
        await page.keyboard.press("Enter")
        await expect(page.locator(".rows li")).to_have_count(2)
        await page.locator(".rows li").first.get_by_role("button", name="Delete").click()
        await page.get_by_role("button", name="Delete it").click()
        await expect(page.locator(".rows li")).to_have_count(1)
        await page.get_by_label("Search sessions").fill("better")
        await expect(page.locator(".rows li")).to_have_count(1)
        await page.get_by_label("Search sessions").fill("nothing like it")
        await expect(page.get_by_text("No session has these words.")).to_be_visible()
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox").fill("approval_timeout setting")
        await page.get_by_role("option", name="serve.approval_timeout").click()
        await expect(page.get_by_label("Search settings")).to_have_value("serve.approval_timeout")


async def test_sessions_are_filtered(home: Path, folder: Path) -> None:
    """By platform, model and day, where there is more than one."""
    store = SessionStore(Home(home).sessions_file)
    for source, title in (("cli", "In the terminal"), ("serve", "On the server")):
        store.append(store.create(source=source, title=title).id, Message(role="user", content="hello"))
    store.close()
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.goto(f"{server.url}/sessions")
        await expect(page.locator(".rows li")).to_have_count(2)
        await page.get_by_label("Platform").select_option("cli")
        await expect(page.locator(".rows li")).to_have_count(1)
        await expect(page.locator(".rows li")).to_contain_text("In the terminal")
        days = await page.get_by_label("Day").count()

    assert days == 0


HOSTILE = """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">
<svg><script>window.hacked = 3</script></svg><iframe srcdoc="<script>top.hacked = 4</script>"></iframe>
<form action="/logout" method="post"><input name="a"><button>x</button></form><style>body { display: none }</style>
<a id="main" href="javascript:window.hacked = 5">click</a> <math><mtext><table><mglyph><style><img src=x>
"""
HOSTILE_MARKDOWN = (
    HOSTILE
    + """
[link](javascript:window.hacked=6) [data](data:text/html,<script>window.hacked=7</script>) [relative](/logout)
![pixel](https://evil.example/pixel.png?secret) <https://example.org/"onmouseover="window.hacked=8>

```html"><script>window.hacked=9</script>
<script>window.hacked = 10</script>
```

| <img src=x onerror="window.hacked=11"> | b |
|---|---|
| [x](vbscript:1) | <b onclick="window.hacked=12">b</b> |
"""
)


async def test_hostile_text_stays_text(home: Path, folder: Path) -> None:
    """HTML and scripts in answers, results, titles and names of files run nothing, load nothing and hide nothing."""
    name = '<img src=x onerror="window.hacked=13">.txt'
    (folder / name).write_text(HOSTILE)
    steps = [
        says(HOSTILE_MARKDOWN, call("terminal", {"command": "cat *.txt; ls"})),
        says("", call("terminal", {"command": f"rm -rf '{name}' \u202e build"})),
        "The end.",
    ]
    asked: list[str] = []
    async with page_server(home, folder, steps) as server:
        page = await server.open()
        page.on("request", lambda request: asked.append(request.url))
        await ask(page, f"{HOSTILE} title")
        await expect(approval(page)).to_contain_text("\\u202e")
        for one in await page.locator("details.call > summary").all():
            await one.click()
        await expect(page.locator(".call-body").first).to_contain_text("<script>")
        found = await page.locator(".column").evaluate(
            "node => [...node.querySelectorAll('script, img, iframe, form, style, svg, object, [onclick], [onerror]')]"
            ".map(one => one.outerHTML)"
        )
        links = await page.locator(".markdown a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        ids = await page.locator(".column [id], .markdown [style], .markdown [name]").count()
        await page.locator(".markdown a").first.hover()
        await page.goto(f"{server.url}/sessions")
        await expect(page.locator(".rows li")).to_contain_text("<script>")
        hacked = await page.evaluate("window.hacked")
        await keep(page, "hostile-sessions")

    assert found == []
    assert hacked is None
    assert ids == 0
    assert all(link is None or link.startswith(("http://", "https://", "mailto:")) for link in links)
    assert all(url.startswith(server.url) for url in asked)
    assert server.errors == []


async def test_inline_scripts_and_markup_are_refused_by_the_browser(home: Path, folder: Path) -> None:
    """Even if a mistake let markup through, the policy of the page would not run it."""
    async with page_server(home, folder, []) as server:
        page = await server.open()
        refused = await page.evaluate(
            """() => {
                const attempts = [
                    () => { document.body.innerHTML = '<b>x</b>' },
                    () => document.body.setAttribute('onclick', 'window.ran = 1'),
                    () => { document.createElement('script').text = 'window.ran = 2' },
                ];
                return attempts.map((one) => { try { one(); return 'allowed' } catch { return 'refused' } })
            }"""
        )

    assert refused == ["refused"] * 3


async def test_a_page_of_another_site_gets_nothing(home: Path, folder: Path) -> None:
    """A page on another port of this machine has the cookie's site, but not the origin: it can neither read nor ask."""
    async with page_server(home, folder, ["x"]) as server, page_server(home.parent / "other", folder, []) as other:
        page = await server.open()
        await page.goto(f"{other.url}/login")
        tried = await page.evaluate(
            """async (url) => {
                const attempt = async (path, options) => {
                    try { return (await fetch(url + path, { credentials: 'include', ...options })).status }
                    catch { return 'refused' }
                };
                return [
                    await attempt('/api/sessions', {}),
                    await attempt('/api/runs', { method: 'POST', body: '{"text": "x"}', mode: 'no-cors' }),
                    await attempt('/logout', { method: 'POST', mode: 'no-cors' }),
                ]
            }""",
            server.url,
        )
        back = await page.goto(server.url)
        await page.get_by_label("Message").wait_for()
        runs = await page.evaluate(
            "async () => (await (await fetch('/api/runs', { headers: "
            "{ 'X-Toolcrib-Key': localStorage.getItem('toolcrib.key') } })).json()).runs.length"
        )

    assert tried == ["refused"] * 3
    assert back is not None
    assert runs == 0


SCREENS = ("sessions", "approvals", "tools", "memory", "board", "jobs", "processes", "costs", "settings")
SHOWN = {
    "sessions": ".rows li",
    "approvals": ".rows li",
    "tools": ".rows li",
    "memory": ".badge",
    "board": ".board-card",
    "jobs": ".rows li .dots, .rows li",
    "processes": ".process",
    "costs": "svg.days",
    "settings": ".group",
    "files": ".rows li",
    "runs": ".waterfall li",
}


async def violations(page: Page) -> list[str]:
    """What axe finds: rules of WCAG 2.2 AA and good practice, with the elements."""
    await page.evaluate(AXE)
    found = await page.evaluate("async () => (await axe.run(document, { resultTypes: ['violations'] })).violations")
    return [f"{one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in found]


async def look(server: PageServer, page: Page, name: str) -> list[str]:
    """Check one screen: accessible, no sideways scrolling; a screenshot is kept."""
    await page.wait_for_timeout(300)
    await keep(page, name)
    width = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    found = await violations(page)
    return [f"{name}: {one}" for one in found + (["scrolls sideways"] if width > 0 else [])]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", sorted(SIZES))
async def test_every_screen_is_accessible(home: Path, folder: Path, size: str, scheme: str) -> None:
    """At both widths and in both colour schemes: names, roles, contrast, focus; and nothing is cut off."""
    found: list[str] = []
    run_cli = Program(home.parent)
    run_cli("cron", "create", "0 9 * * *", "Summarise the news", "--name", "news", TOOLCRIB_HOME=str(home))
    for title in ("Sort the nails", "Paint the shed"):
        run_cli("board", "add", title, "--body", "By size.", TOOLCRIB_HOME=str(home))
    run_cli("board", "move", "Paint", "blocked", TOOLCRIB_HOME=str(home))
    written_by_an_agent(home)
    ServerTokens(Home(home)).create("phone", ["chat"])
    async with page_server(home, folder, long_run()) as server:
        page = await server.open(size, scheme, is_logged_in=False)
        await page.goto(server.url)
        await page.get_by_label("One-time code").wait_for()
        found += await look(server, page, f"login-{size}-{scheme}")
        await page.goto(server.link())
        await page.get_by_label("Message").wait_for()
        found += await look(server, page, f"start-{size}-{scheme}")
        await ask(page, "Say hello, and clean up.")
        await approval(page).get_by_role("button", name="Deny").wait_for()
        await expect(approval(page).locator("pre.command")).to_be_in_viewport(ratio=0.9)
        await expect(approval(page).get_by_role("button", name="Deny")).to_be_in_viewport()
        await page.locator("details.call > summary", has_text="patch").click()
        found += await look(server, page, f"approval-{size}-{scheme}")
        await approval(page).get_by_role("button", name="Allow once").click()
        await expect(page.get_by_text("the build folder is gone")).to_be_visible()
        found += await look(server, page, f"chat-{size}-{scheme}")
        session = page.url.rpartition("/")[2]
        run = await page.get_by_role("link", name="Timeline").get_attribute("href")
        for screen in (*SCREENS, f"files/{session}", str(run).strip("/")):
            await page.goto(f"{server.url}/{screen}")
            await page.locator(SHOWN[screen.partition("/")[0]]).first.wait_for()
            for one in await page.locator(".screen summary").all():
                await one.click()
            for name in ("New job", "New card", "New token"):
                if await page.get_by_role("button", name=name).count():
                    await page.get_by_role("button", name=name).click()
            found += await look(server, page, f"{screen.partition('/')[0]}-{size}-{scheme}")
        await page.keyboard.press("Control+k")
        found += await look(server, page, f"palette-{size}-{scheme}")
        await page.keyboard.press("Escape")
        await page.keyboard.press("?")
        found += await look(server, page, f"keys-{size}-{scheme}")

    assert "\n".join(found) == ""
    assert server.errors == []


async def test_an_undo_is_shown_before_it_is_done(home: Path, folder: Path) -> None:
    """The files of a conversation, their diffs, and the way back."""
    patch = {"mode": "replace", "path": "app.py", "old_string": "'hi'", "new_string": '"hello"'}
    async with page_server(home, folder, [says("", call("patch", patch)), "Done."]) as server:
        page = await server.open()
        await ask(page, "Say hello.")
        await expect(page.get_by_text("Done.")).to_be_visible()
        changed = (folder / "app.py").read_text()
        await page.get_by_role("link", name="Files").click()
        await page.locator("details.file > summary").click()
        await expect(page.locator(".diff .added")).to_contain_text('"hello"')
        await page.get_by_role("button", name="Undo… back to").click()
        preview = page.get_by_role("region", name="Preview")
        await expect(preview).to_contain_text("comes back as it was")
        untouched = (folder / "app.py").read_text()
        await preview.get_by_role("button", name="Undo", exact=True).click()
        await expect(page.get_by_text("undone")).to_be_visible()

    assert untouched == changed
    assert "'hi'" in (folder / "app.py").read_text()


async def test_a_tool_is_tried_by_hand_through_the_gate(home: Path, folder: Path) -> None:
    """The form comes from the schema; a dangerous call asks, and what it did is shown."""
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.goto(f"{server.url}/tools")
        await page.get_by_label("Search tools").fill("terminal")
        await page.get_by_role("button", name="Try terminal").click()
        await page.get_by_label("command", exact=True).fill("rm -rf build")
        await page.get_by_role("button", name="Call", exact=True).click()
        await approval(page).get_by_role("button", name="Deny").click()
        await expect(page.locator(".try [role=status]")).to_contain_text("blocked")
        denied = (folder / "build").is_dir()
        await page.get_by_label("command", exact=True).fill("echo it works")
        await page.get_by_role("button", name="Call", exact=True).click()
        await expect(page.locator(".try .output").first).to_contain_text("it works")

    assert denied


async def test_a_setting_is_changed_and_reset(home: Path, folder: Path) -> None:
    """What is not valid is refused in place; what is valid is in the config file."""
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.goto(f"{server.url}/settings")
        await page.get_by_label("Search settings").fill("serve.approval_timeout")
        await page.get_by_role("button", name="Change serve.approval_timeout").click()
        await page.get_by_label("Value of serve.approval_timeout").fill("-1")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_label("Value of serve.approval_timeout").fill("77")
        await page.keyboard.press("Enter")
        await expect(page.locator(".setting")).to_contain_text("from config.yaml")
        changed = (home / "config.yaml").read_text()
        await page.get_by_role("button", name="Reset serve.approval_timeout").click()
        await expect(page.locator(".setting .muted")).to_have_text("default")

    assert "77" in changed
    assert "77" not in (home / "config.yaml").read_text()


async def test_an_approval_is_answered_after_a_restart(home: Path, folder: Path) -> None:
    """The page stays open while the server restarts; the answer starts a run that goes on."""
    port = free_port()
    steps = [says("", REMOVE), says("", call("terminal", {"command": "rm -rf build"}, id="again")), "It is gone."]
    config = {"serve": {"port": port, "toolsets": ["terminal"]}}
    async with page_server(home, folder, steps, config) as server:
        page = await server.open()
        await ask(page, "Clean up.")
        await expect(approval(page)).to_be_visible()
        server.process.kill()
        await server.process.wait()
        await expect(page.get_by_text("The server is away")).to_be_visible()
        async with serve_program(home, folder):
            await expect(page.get_by_text("The server is away")).to_be_hidden()
            untouched = (folder / "build").is_dir()
            await approval(page).get_by_role("button", name="Allow once").click()
            await expect(page.get_by_text("It is gone.")).to_be_visible()
            await expect(page.get_by_text("It is gone.")).to_have_count(1)

    assert untouched
    assert not (folder / "build").exists()


async def test_open_hands_a_link_to_the_browser(home: Path, folder: Path, tmp_path: Path) -> None:
    """`--open` starts the browser with a link that logs in; the output has no code for a log to keep."""
    noted, opener = tmp_path / "noted", tmp_path / "opener"
    os.mkfifo(noted)
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {noted}\n')
    opener.chmod(0o700)
    (home / "config.yaml").parent.mkdir(exist_ok=True)
    (home / "config.yaml").write_text("serve: {port: 0}")
    async with serve_program(home, folder, "--open", BROWSER=f"{opener} %s") as (process, url):
        link = await asyncio.wait_for(asyncio.to_thread(noted.read_text), LIMIT_SECONDS)
        made = PageLogins(Home(home), ServerTokens(Home(home))).redeem(link.partition("#")[2])
        assert process.stderr is not None
        said = await asyncio.wait_for(process.stderr.readline(), LIMIT_SECONDS)

    assert link.startswith(f"{url}/login#")
    assert made is not None
    assert b"#" not in said


async def test_the_page_says_that_the_server_is_gone_and_comes_back(home: Path, folder: Path) -> None:
    """A stopped server loses nothing that was typed."""
    async with page_server(home, folder, ["hello"]) as server:
        page = await server.open()
        await page.get_by_label("Message").fill("my question")
        server.process.send_signal(signal.SIGTERM)
        await server.process.wait()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
        kept = await page.get_by_label("Message").input_value()
        stored = json.loads(await page.evaluate("JSON.stringify(localStorage.getItem('toolcrib.draft.'))"))

    assert (kept, stored) == ("my question", "my question")
