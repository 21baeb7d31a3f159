"""toolcrib's own API besides runs: files, jobs, processes, memory, skills, costs, tools and settings."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.serve.agent_serving import CONFIG, serving
from tests.serve.test_native_api import follow, start, waiting
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.types import Effect
from toolcrib.providers.scripted import calls
from toolcrib.sessions.memory import Author, MemoryOperation
from toolcrib.skills.authorship import SkillAuthorship


async def body(http: httpx2.AsyncClient, path: str, /, **query: Any) -> dict[str, Any]:
    response = await http.get(path, params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_sessions_are_created_searched_and_exported(home: Path) -> None:
    async with serving(home, ["Paris is the capital."]) as served, served.http() as http:
        made = (await http.post("/api/sessions", json={"title": "Capitals"})).json()
        run = await start(http, "Which one of France?", session_id=made["id"])
        await follow(http, run["id"])
        hits = (await body(http, "/api/sessions/search", q="capital"))["hits"]
        exported = await body(http, f"/api/sessions/{made['id']}/export", format="markdown")
        odd = await http.get(f"/api/sessions/{made['id']}/export", params={"format": "pdf"})
        empty = await http.get("/api/sessions/search")

    assert [(hit["session_id"], hit["title"]) for hit in hits] == [(made["id"], "Capitals")]
    assert "Paris is the capital." in exported["text"]
    assert (odd.status_code, empty.status_code) == (422, 422)


@pytest.mark.services
async def test_a_timeline_says_where_the_time_went(home: Path) -> None:
    async with serving(home, [calls("remove", {"path": "x"}), "done"]) as served, served.http() as http:
        run = await start(http)
        asked = await waiting(served, http)
        await http.post(f"/api/approvals/{asked['id']}", json={"choice": "once"})
        await follow(http, run["id"])
        spans = (await body(http, f"/api/runs/{run['id']}/timeline"))["spans"]

    kinds = [span["kind"] for span in spans]
    assert kinds.count("model") == 2
    assert sorted(set(kinds)) == ["model", "tool", "waiting"]
    assert all(span["ended_at"] >= span["started_at"] for span in spans)
    (tool,) = [span for span in spans if span["kind"] == "tool"]
    assert (tool["name"], tool["status"]) == ("remove", "ok")


async def test_a_tool_is_called_by_hand_through_the_gate(home: Path) -> None:
    """A dangerous call waits for its approval; a token without the scope admin calls only the server's tools."""
    async with serving(home) as served, served.http() as http:
        held = asyncio.ensure_future(http.post("/api/tools/remove/call", json={"arguments": {"path": "x"}}))
        async with asyncio.timeout(30):
            while not (found := (await body(http, "/api/approvals"))["approvals"]):  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0)
        before = list(served.removed)
        await http.post(f"/api/approvals/{found[0]['code']}", json={"choice": "once"})
        result = (await held).json()
        tools = {one["name"]: one for one in (await body(http, "/api/tools"))["tools"]}
        unknown = await http.post("/api/tools/nothing/call", json={})

    assert (before, served.removed) == ([], ["x"])
    assert (result["status"], result["session_id"]) == ("ok", found[0]["session_id"])
    assert tools["remove"]["available"] is True
    assert "path" in tools["remove"]["parameters"]["properties"]
    assert unknown.status_code == 404


async def test_tools_outside_the_servers_toolsets_need_admin(home: Path) -> None:
    config = CONFIG.replace("[test]", "[web]")
    async with serving(home, config=config) as served, served.http() as http:
        token = served.server.tokens.create("phone", ["chat"])
        async with served.http(token) as phone:
            refused = await phone.post("/api/tools/echo/call", json={"arguments": {"text": "x"}})
            allowed = await http.post("/api/tools/echo/call", json={"arguments": {"text": "x"}})
            settings = await phone.get("/api/settings")
            changed = await phone.put("/api/settings/approvals.mode", json={"value": "off"})

    assert (refused.status_code, allowed.status_code) == (403, 200)
    assert (settings.status_code, changed.status_code) == (403, 403)


async def test_files_are_undone_after_a_preview(home: Path, tmp_path: Path) -> None:
    """The preview changes nothing; the undo brings the file back, and redo takes it away again."""
    file = tmp_path / "notes.txt"
    file.write_text("first\n")
    async with serving(home, [calls("overwrite", {}), "ok"]) as served:
        served.server.host.runtime.registry.register(
            name="overwrite",
            toolset="test",
            schema={"description": "Overwrites."},
            handler=lambda *_, **__: str(file.write_text("second\n")),
            effects=(Effect("write", str(file)),),
        )
        async with served.http() as http:
            run = await start(http)
            asked = await waiting(served, http)
            await http.post(f"/api/approvals/{asked['id']}", json={"choice": "once"})
            await follow(http, run["id"])
            path = f"/api/sessions/{run['session_id']}"
            written = file.read_text()
            changes = await body(http, f"{path}/changes")
            diff = await body(http, f"{path}/diff", path=str(file))
            preview = await http.post(f"{path}/undo", json={"dry_run": True})
            after_preview = file.read_text()
            undone = await http.post(f"{path}/undo", json={"to": changes["calls"][0]["call_id"]})
            after_undo = file.read_text()
            await http.post(f"{path}/undo", json={"action": "redo"})

    assert (written, after_preview, after_undo, file.read_text()) == ("second\n", "second\n", "first\n", "second\n")
    assert [one["path"] for one in changes["files"]] == [str(file)]
    assert "-first" in diff["diff"]
    assert preview.json()["files"][0]["what"] == undone.json()["files"][0]["what"] == "restored"


async def test_jobs_over_the_api(home: Path) -> None:
    async with serving(home) as served, served.http() as http:
        made = await http.post("/api/jobs", json={"schedule": "every 2h", "prompt": "Look.", "name": "look"})
        path = f"/api/jobs/{made.json()['job_id']}"
        paused = await http.post(f"{path}/pause")
        listed = await body(http, "/api/jobs")
        odd = await http.post("/api/jobs", json={"schedule": "whenever", "prompt": "x"})
        again = await http.post("/api/jobs", json={"schedule": "every 2h", "prompt": "Look.", "name": "look"})
        deleted = await http.delete(path)
        gone = await http.get(path)

    assert (made.status_code, paused.json()["state"]) == (201, "paused")
    assert [job["name"] for job in listed["jobs"]] == ["look"]
    assert (odd.status_code, again.status_code, deleted.status_code, gone.status_code) == (422, 409, 200, 404)


@pytest.mark.services
async def test_memory_skills_costs_and_settings(home: Path) -> None:
    async with serving(home, ["hi"]) as served, served.http() as http:
        run = await start(http)
        await follow(http, run["id"])
        operation = {"action": "add", "content": "Likes tea."}
        memory = await http.post("/api/memory", json={"target": "user", "operations": [operation]})
        skills = (await body(http, "/api/skills"))["skills"]
        skill = await body(http, f"/api/skills/{skills[0]['name']}")
        costs = await body(http, "/api/costs", days=7)
        status = await body(http, "/api/status")
        put = await http.put("/api/settings/tools.max_parallel", json={"value": 3})
        odd = await http.put("/api/settings/tools.max_parallel", json={"value": "many"})
        unknown = await http.put("/api/settings/tools.nothing", json={"value": 1})
        settings = {one["key"]: one for one in (await body(http, "/api/settings"))["settings"]}
        unset = await http.delete("/api/settings/tools.max_parallel")

    assert memory.json()["memory"]["user"]["entries"] == [{"text": "Likes tea.", "by": "person"}]
    assert skill["text"]
    assert costs["total"]["requests"] == 1
    assert [day["day"] for day in costs["by_day"]] == [time.strftime("%Y-%m-%d")]
    assert status["token"]["name"] == "owner"
    assert (put.status_code, odd.status_code, unknown.status_code, unset.status_code) == (200, 422, 422, 200)
    assert settings["tools.max_parallel"]["value"] == 3
    assert settings["tools.max_parallel"]["origin"] == "config.yaml"
    assert load_settings(Home(home)).tools.max_parallel != 3


async def test_a_late_approval_goes_on_with_the_session(home: Path) -> None:
    """After a restart, the approval starts a run in which exactly that call runs, once."""
    steps = [calls("remove", {"path": "x"}), "ok"]
    async with serving(home, steps) as served, served.http() as http:
        await start(http)
        asked = await waiting(served, http)
    async with serving(home, [*steps, calls("remove", {"path": "x"}), "ok"]) as again, again.http() as http:
        answer = (await http.post(f"/api/approvals/{asked['code']}", json={"choice": "once"})).json()
        await follow(http, answer["run_id"])
        first = list(again.removed)
        second = await start(http, session_id=asked["session_id"])
        asked_again = await waiting(again, http)
        await http.post(f"/api/runs/{second['id']}/stop")

    assert answer["late"] is True
    assert (first, again.removed) == (["x"], ["x"])
    assert asked_again["id"] != asked["id"]


async def test_a_late_approval_covers_no_other_call(home: Path) -> None:
    """The same command with other arguments is asked again; and what was not used goes with the run."""
    first = [calls("remove", {"path": "x"}), "ok"]
    async with serving(home, first) as served, served.http() as http:
        await start(http)
        asked = await waiting(served, http)
    steps = [calls("remove", {"path": "other"}), "denied", calls("remove", {"path": "x"}), "ok"]
    async with serving(home, steps) as again, again.http() as http:
        answer = (await http.post(f"/api/approvals/{asked['id']}", json={"choice": "once"})).json()
        other = await waiting(again, http)
        await http.post(f"/api/approvals/{other['id']}", json={"choice": "deny"})
        await follow(http, answer["run_id"])
        said = again.server.host.store.messages(asked["session_id"])
        later = await start(http, session_id=asked["session_id"])
        asked_again = await waiting(again, http)
        await http.post(f"/api/runs/{later['id']}/stop")

    assert again.removed == []
    assert asked_again["id"] not in (asked["id"], other["id"])
    assert [one.message.origin for one in said if "I approve now" in one.message.text] == ["derived"]


async def test_old_runs_are_deleted(home: Path) -> None:
    """Runs and answers are kept for `serve.keep_days`; the session stays."""
    async with serving(home, ["one"]) as served, served.http() as http:
        run = await start(http)
        await follow(http, run["id"])
        # Its stream ends a moment before its end is stored.
        await asyncio.gather(*served.server.runs._tasks.values())
        store = served.server.runs.store
        kept = store.delete_before(run["created_at"] - 1)
        deleted = store.delete_before(time.time() + 1)
        session = await http.get(f"/api/sessions/{run['session_id']}")
        events = store.events(run["id"])

    assert (kept, deleted, session.status_code, len(events)) == (0, 1, 200, 0)


async def test_metrics_are_for_their_own_scope(home: Path) -> None:
    async with serving(home, ["hi"]) as served, served.http() as http:
        run = await start(http)
        await follow(http, run["id"])
        tokens = served.server.tokens
        async with served.http(tokens.create("watch", ["metrics"])) as watch:
            shown = await watch.get("/metrics")
            sessions = await watch.get("/api/sessions")
        async with served.http(tokens.create("phone", ["chat"])) as phone:
            refused = await phone.get("/metrics")

    assert (shown.status_code, sessions.status_code, refused.status_code) == (200, 403, 403)
    assert 'toolcrib_runs_total{outcome="answered"} 1' in shown.text
    assert 'toolcrib_requests_total{method="POST",status="202"} 1' in shown.text


async def test_tokens_are_made_and_revoked_over_the_api(home: Path) -> None:
    """Only an admin does that; a token is shown once, and never again."""
    async with serving(home) as served, served.http() as http:
        made = await http.post("/api/tokens", json={"name": "phone", "scopes": ["chat", "approve"]})
        token = made.json()["token"]
        listed = await http.get("/api/tokens")
        refused = [
            await http.post("/api/tokens", json={"name": "phone"}),
            await http.post("/api/tokens", json={"name": "x", "scopes": []}),
            await http.post("/api/tokens", json={"name": "anna", "scopes": ["admin"], "owner": "anna"}),
        ]
        async with served.http(token) as phone:
            allowed = await phone.get("/api/sessions")
            forbidden = [await phone.get("/api/tokens"), await phone.delete("/api/tokens/phone")]
            revoked = await http.delete("/api/tokens/phone")
            after = await phone.get("/api/sessions")
        again = await http.delete("/api/tokens/phone")

    assert (made.status_code, allowed.status_code, revoked.status_code) == (201, 200, 200)
    assert listed.json() == {"tokens": [{"name": "phone", "owner": "", "scopes": ["approve", "chat"]}]}
    assert [one.status_code for one in refused] == [422, 422, 422]
    assert [one.status_code for one in forbidden] == [403, 403]
    assert (after.status_code, again.status_code) == (401, 404)


async def test_what_agents_wrote_is_approved_over_the_api(home: Path) -> None:
    """A memory becomes the person's own, and a skill one that agents follow."""
    folder = home / "skills" / "knots"
    folder.mkdir(parents=True)
    text = "---\nname: knots\ndescription: Ties knots.\n---\nTie it.\n"
    (folder / "SKILL.md").write_text(text)
    SkillAuthorship(Home(home)).record_text(folder / "SKILL.md", text)
    async with serving(home) as served, served.http() as http:
        operation = MemoryOperation(action="add", content="likes rope")
        served.server.host.memories_of("").change("memory", [operation], by=Author(who="agent"))
        before = (await http.get("/api/memory")).json()["memory"]["memory"]["entries"]
        done = await http.post("/api/memory/approve", json={"target": "memory", "entry": "likes rope"})
        skill = (await http.get("/api/skills/knots")).json()
        approved = await http.post("/api/skills/knots/approve")
        token = served.server.tokens.create("phone", ["chat"])
        async with served.http(token) as phone:
            entry = {"target": "memory", "entry": "likes rope"}
            refused = [await phone.post("/api/memory/approve", json=entry), await phone.post("/api/skills/x/approve")]

    assert [one["by"] for one in before] == ["agent"]
    assert [one["by"] for one in done.json()["memory"]["memory"]["entries"]] == ["person"]
    assert (skill["unreviewed"], approved.json()["unreviewed"]) == (True, False)
    assert [one.status_code for one in refused] == [403, 403]


async def test_the_board_is_read_and_changed(home: Path) -> None:
    """Cards are created, shown, moved and commented on as a person's; a token without `approve` only reads."""
    async with serving(home) as served, served.http() as http:
        empty = (await http.get("/api/board")).json()
        first = (await http.post("/api/board", json={"title": "Build", "priority": 2})).json()
        then = (await http.post("/api/board", json={"title": "Ship", "parents": [first["id"]]})).json()
        path = f"/api/board/{first['id']}"
        await http.post(f"{path}/comments", json={"body": "Mind the gap."})
        moved = (await http.patch(path, json={"status": "done", "assignee": "anna"})).json()
        listed = (await http.get("/api/board")).json()
        async with served.http(served.server.tokens.create("phone", ["chat"])) as phone:
            shown = await phone.get(path)
            refused = [
                await phone.post("/api/board", json={"title": "x"}),
                await phone.patch(path, json={"status": "ready"}),
                await phone.post(f"{path}/comments", json={"body": "x"}),
            ]
        wrong = [
            await http.get("/api/board/Build"),
            await http.post("/api/board", json={"title": " "}),
            await http.patch(path, json={"status": "gone"}),
        ]

    assert (empty["cards"], empty["columns"][0]) == ([], "triage")
    assert then["status"] == "todo"
    assert (moved["status"], moved["assignee"], moved["created_by"]) == ("done", "anna", "person")
    assert {card["title"]: card["status"] for card in listed["cards"]} == {"Build": "done", "Ship": "ready"}
    assert [one["body"] for one in shown.json()["comments"]] == ["Mind the gap."]
    assert [one["title"] for one in shown.json()["children"]] == ["Ship"]
    assert [one.status_code for one in refused] == [403] * 3
    assert [one.status_code for one in wrong] == [404, 400, 422]
