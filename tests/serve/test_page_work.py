"""The page in a real browser: what works in the background or is kept for later, and tokens."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.serve.page_browser import LIMIT_SECONDS, page_server, written_by_an_agent
from toolcrib.board.service import open_board
from toolcrib.config.browser_settings import find_chromium
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.cron.store import JobStore
from toolcrib.serve.tokens import ServerTokens
from toolcrib.sessions.memory import MemoryStore
from toolcrib.sessions.store import SessionStore
from toolcrib.skills.authorship import SkillAuthorship

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not find_chromium(), reason="no Chromium: run scripts/test-services up"),
]

expect.set_options(timeout=LIMIT_SECONDS * 1000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "work"


async def test_what_an_agent_wrote_is_approved_or_deleted(home: Path, folder: Path) -> None:
    """Memories and skills say that an agent wrote them; a person approves, adds and deletes."""
    written_by_an_agent(home)
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.goto(f"{server.url}/memory")
        await page.get_by_role("button", name="Approve: Prefers short answers.").click()
        await expect(page.get_by_role("button", name="Approve: Prefers")).to_have_count(0)
        await page.get_by_label("Remember, Notes").fill("The cat is called Rope.")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("The cat is called Rope.")).to_be_visible()
        authors = MemoryStore(Home(home).memories_dir).authors("user")
        await page.get_by_role("button", name="Delete: Prefers short answers.").click()
        await expect(page.get_by_text("Prefers short answers.")).to_have_count(0)
        await page.locator("li", has_text="knots").locator("summary").click()
        await expect(page.get_by_text("Tie it twice.")).to_be_visible()
        await page.get_by_role("button", name="Approve knots").click()
        await expect(page.get_by_text("not approved")).to_have_count(0)

    assert authors == {"Prefers short answers.": "person"}
    assert (
        MemoryStore(Home(home).memories_dir).entries("user"),
        MemoryStore(Home(home).memories_dir).entries("memory"),
    ) == ([], ["The cat is called Rope."])
    assert not SkillAuthorship(Home(home)).unreviewed_folders()


async def test_a_job_is_made_changed_and_deleted(home: Path, folder: Path) -> None:
    """A schedule that means nothing is refused in place, and nothing that was typed is lost."""
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.goto(f"{server.url}/jobs")
        await page.get_by_role("button", name="New job").click()
        form = page.get_by_role("form", name="New job")
        await form.get_by_label("Name").fill("news")
        await form.get_by_label("Schedule").fill("when it rains")
        await form.get_by_label("Task").fill("Summarise the news.")
        await form.get_by_role("button", name="Save").click()
        await expect(form.get_by_role("alert")).to_be_visible()
        await form.get_by_label("Schedule").fill("0 9 * * *")
        await form.get_by_role("button", name="Save").click()
        await page.get_by_role("button", name="Edit news").click()
        await page.get_by_label("Task").fill("Summarise the weather.")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("form")).to_have_count(0)
        with closing(JobStore(Home(home).cron_file, owner="")) as store:
            (job,) = store.jobs()
        await page.get_by_role("button", name="Delete news").click()
        await page.get_by_role("button", name="Delete it").click()
        await expect(page.get_by_text("No jobs yet.")).to_be_visible()

    assert (job.name, job.schedule, job.prompt) == ("news", "0 9 * * *", "Summarise the weather.")


async def test_a_card_is_made_moved_and_commented(home: Path, folder: Path) -> None:
    """A card goes from column to column, and what people say on it stays there."""
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.goto(f"{server.url}/board")
        await page.get_by_role("button", name="New card").click()
        form = page.get_by_role("form", name="New card")
        await form.get_by_label("Title").fill("Sort the nails")
        await form.get_by_label("What is to be done").fill("<img src=x onerror=alert(1)>")
        await form.get_by_role("button", name="Save").click()
        card = page.get_by_role("region", name="Ready").get_by_role("article")
        await card.get_by_text("Sort the nails").click()
        await expect(card.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
        await card.get_by_label("Comment").fill("By size.")
        await card.get_by_role("button", name="Comment").click()
        await expect(card.get_by_text("By size.")).to_be_visible()
        await card.get_by_label("Column of Sort the nails").select_option("done")
        await expect(page.get_by_role("region", name="Done").get_by_role("article")).to_have_count(1)
        with closing(open_board(load_settings(Home(home)), "")) as store:
            (found,) = store.cards()
            (comment,) = store.details(found).comments

    assert (found.status, found.author, comment.body, comment.author) == ("done", "person", "By size.", "person")


async def test_a_token_is_made_for_another_device_and_revoked(home: Path, folder: Path) -> None:
    """It is shown once, does what was ticked, and ends at once."""
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.goto(f"{server.url}/settings")
        await page.get_by_role("button", name="New token").click()
        await page.get_by_label("Name", exact=True).fill("phone")
        await page.get_by_label("answer approvals").check()
        await page.get_by_role("button", name="Create").click()
        token = await page.locator("dialog code").inner_text()
        await page.get_by_role("button", name="Done").click()
        tokens = ServerTokens(Home(home))
        identity = tokens.identify(token)
        await page.get_by_role("button", name="Revoke phone").click()
        await page.get_by_role("button", name="Revoke it").click()
        await expect(page.get_by_role("button", name="Revoke phone")).to_have_count(0)
        shown = await page.content()

    assert identity is not None
    assert identity.scopes == {"chat", "approve"}
    assert tokens.identify(token) is None
    assert token not in shown


async def test_the_first_load_stays_small_with_many_sessions(home: Path, folder: Path) -> None:
    """What the page asks for first does not grow with what was ever said."""
    with closing(SessionStore(Home(home).sessions_file)) as store:
        for n in range(300):
            store.create(source="serve", title=f"Conversation {n} about one thing and another, with a long title")
    async with page_server(home, folder, []) as server:
        page = await server.open()
        await page.get_by_text("Conversation 299").first.wait_for()
        fetched = "performance.getEntries().filter(one => one.transferSize).map(one => [one.name, one.transferSize])"
        sizes = await page.evaluate(fetched)
        await page.goto(f"{server.url}/sessions")
        await expect(page.locator(".rows li")).to_have_count(200)

    assert sum(size for _, size in sizes) <= 150_000, sizes
    assert len([name for name, _ in sizes if "/api/sessions" in name]) == 1
