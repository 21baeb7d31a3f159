"""Open WebUI, a chat front end that others wrote, in front of our server: its page in a real Chromium."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import async_playwright, expect

from tests.conftest import SERVICES_FILE
from tests.serve.agent_serving import RunningServer, serving
from tests.serve.page_browser import ARTEFACTS, free_port
from toolcrib.config.browser_settings import find_chromium
from toolcrib.core.models import ModelRequest, ModelResponse
from toolcrib.providers.scripted import call, says

pytestmark = [pytest.mark.services, pytest.mark.may_skip]
START_SECONDS = 200.0
LIMIT_MS = 90_000.0


@asynccontextmanager
async def open_webui(served: RunningServer, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an Open WebUI that asks our server, logged in."""
    lines = SERVICES_FILE.read_text().splitlines() if SERVICES_FILE.exists() else []
    found = [line.partition("=")[2] for line in lines if line.startswith("TOOLCRIB_TEST_OPEN_WEBUI=")]
    if not found:
        pytest.skip("no Open WebUI: run scripts/test-services up")
    port = free_port()
    settings = {
        "DATA_DIR": str(folder / "data"),
        "WEBUI_AUTH": "False",
        "ENABLE_OLLAMA_API": "False",
        "OPENAI_API_BASE_URL": f"{served.url}/v1",
        "OPENAI_API_KEY": served.token,
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        # What would load models of its own is asked of a server, and never is.
        "RAG_EMBEDDING_ENGINE": "openai",
        "AUDIO_STT_ENGINE": "openai",
        "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
        "ENABLE_FORWARD_USER_INFO_HEADERS": "True",
    }
    with (folder / "open-webui.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(shlex.split(found[0])[0], "serve", "--host", "127.0.0.1", "--port", str(port)),
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **settings},
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=url, timeout=LIMIT_MS / 1000, trust_env=False) as client:
                await wait_for(client, process)
                user = (await client.post("/api/v1/auths/signin", json={"email": "", "password": ""})).json()
                client.headers["Authorization"] = f"Bearer {user['token']}"
                yield client
        finally:
            process.kill()
            await process.wait()


async def wait_for(client: httpx2.AsyncClient, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_SECONDS):
        while process.returncode is None:
            try:
                if (await client.get("/health")).status_code == 200:
                    return
            except httpx2.TransportError:
                # Nothing to wait on: it says nowhere that it listens.
                await asyncio.sleep(0.2)
    raise AssertionError("Open WebUI does not start")


def reaction(request: ModelRequest) -> str | ModelResponse:
    """The answers of the model: to a front end's own prompts, to a person, and after a tool."""
    asked = request.messages[-1]
    if not request.tools:
        return '{"title": "Talk about ropes", "tags": ["Ropes"], "follow_ups": ["Which rope is best?"]}'
    if asked.role == "user":
        return says("I'll look. ", call("echo", {"text": "42"}))
    return "The answer\nis 42 ropes."


async def test_open_webui_talks_to_the_agent(home: Path, tmp_path: Path) -> None:
    """It lists our model, shows the answer of an agent that used its tools, and gets titles, tags and follow-up
    questions without starting an agent; its own tools are ignored."""
    async with serving(home, otherwise=reaction) as served, open_webui(served, tmp_path) as client:
        models = (await client.get("/api/models")).json()["data"]
        assert [one["id"] for one in models] == ["toolcrib"]

        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"]
            )
            page = await browser.new_page()
            page.set_default_timeout(LIMIT_MS)
            await page.goto(str(client.base_url))
            # It greets with its news, which are a dialogue over the page.
            await page.get_by_role("dialog").get_by_role("button").last.click()
            await page.locator("#chat-input").click()
            await page.keyboard.type("How many ropes?")
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("is 42 ropes.")).to_be_visible(timeout=LIMIT_MS)
            # The title of the page is the one that the model gave the chat, so its prompt was answered.
            await expect(page).to_have_title(re.compile("^Talk about ropes"), timeout=LIMIT_MS)
            await expect(page.get_by_text("Which rope is best?").first).to_be_visible(timeout=LIMIT_MS)
            ARTEFACTS.mkdir(parents=True, exist_ok=True)
            await page.screenshot(path=ARTEFACTS / "open-webui.png")
            await browser.close()

        listed = served.server.runs.store.list(owner="")
        agents = [one for one in listed if one.session_id]
        assert len(agents) == 1
        offered = {tool["function"]["name"] for request in served.model.requests for tool in request.tools}
        assert "echo" in offered
