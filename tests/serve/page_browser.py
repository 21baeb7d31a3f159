"""The page of a running `toolcrib serve` in a real Chromium, with a scripted model behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from toolcrib.config.browser_settings import find_chromium
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.serve.login import PageLogins
from toolcrib.serve.tokens import ServerTokens
from toolcrib.sessions.memory import Author, MemoryOperation, MemoryStore
from toolcrib.skills.authorship import SkillAuthorship
from toolcrib.testing.model_server import ScriptedModelServer, ServerStep

LIMIT_SECONDS = 90.0
SIZES = {"phone": {"width": 390, "height": 844}, "desktop": {"width": 1280, "height": 860}}
ARTEFACTS = Path(__file__).parents[2] / ".artefacts" / "page"
TOOLSETS = ["terminal", "file", "todo", "clarify"]


class PageServer:
    """A running server, and browsers that are logged in."""

    def __init__(
        self,
        home: Path,
        url: str,
        process: asyncio.subprocess.Process,
        browser: Browser,
        model: ScriptedModelServer,
    ) -> None:
        self.home = home
        self.model = model
        self.url = url
        self.process = process
        self.browser = browser
        self.logins = PageLogins(Home(home), ServerTokens(Home(home)))
        self.errors: list[str] = []
        """What the console of the pages said about failed scripts and broken policies."""

    def link(self) -> str:
        return self.logins.create_link(ServeSettings())

    async def open(self, size: str = "desktop", scheme: Any = "light", *, is_logged_in: bool = True) -> Page:
        context = await self.browser.new_context(viewport=SIZES[size], color_scheme=scheme)
        page = await context.new_page()
        page.set_default_timeout(LIMIT_SECONDS * 1000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda said: self.errors.append(said.text) if said.type == "error" and "Security" in said.text else None,
        )
        if is_logged_in:
            await page.goto(self.link())
            await page.get_by_label("Message").wait_for()
        return page


@asynccontextmanager
async def page_server(
    home: Path, folder: Path, steps: Iterable[ServerStep], config: dict[str, Any] | None = None
) -> AsyncIterator[PageServer]:
    """`toolcrib serve` in a folder, as a program, and a browser for its page."""
    for one in (home, folder):
        one.mkdir(parents=True, exist_ok=True)
    with ScriptedModelServer(list(steps)) as model:
        settings = {
            "model": {"provider": "fake", "default": "test"},
            "providers": {"fake": {"base_url": model.base_url}},
            "serve": {"port": 0, "toolsets": TOOLSETS},
            **(config or {}),
        }
        (home / "config.yaml").write_text(json.dumps(settings))
        async with serve_program(home, folder) as (process, url), async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"]
            )
            try:
                yield PageServer(home, url, process, browser, model)
            finally:
                await browser.close()


@asynccontextmanager
async def serve_program(
    home: Path, folder: Path, *arguments: str, **environment: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "toolcrib", "serve", *arguments),
        cwd=folder,
        env={**os.environ, "TOOLCRIB_HOME": str(home), **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), LIMIT_SECONDS)).decode()
        yield process, line.partition("Serving at ")[2].partition(";")[0]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), LIMIT_SECONDS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def keep(page: Page, name: str) -> None:
    """Keep a screenshot, for people to look at."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=ARTEFACTS / f"{name}.png")


def written_by_an_agent(home: Path) -> None:
    """A memory and a skill that nobody has approved."""
    folder, text = home / "skills" / "knots", "---\nname: knots\ndescription: Ties knots.\n---\nTie it twice.\n"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    SkillAuthorship(Home(home)).record_text(folder / "SKILL.md", text)
    entry = MemoryOperation(action="add", content="Prefers short answers.")
    MemoryStore(Home(home).memories_dir).change("user", [entry], by=Author(who="agent"))
