"""toolcrib's own API: sessions, runs, approvals and questions."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.serve.agent_serving import CONFIG, RunningServer, events_of, serving
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.models import Usage
from toolcrib.providers.scripted import calls, says
from toolcrib.sessions.store import SessionStore
from toolcrib.toolsets.resolve import NoRegistry, ToolsetResolver


async def start(http: httpx2.AsyncClient, text: str = "hello", **more: Any) -> dict[str, Any]:
    response = await http.post("/api/runs", json={"text": text, **more})
    assert response.status_code == 202, response.text
    body: dict[str, Any] = response.json()
    return body


async def follow(http: httpx2.AsyncClient, run: str, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
    async with http.stream("GET", f"/api/runs/{run}/events", headers={"Last-Event-ID": str(after)}) as response:
        return [one async for one in events_of(response)]


async def waiting(served: RunningServer, http: httpx2.AsyncClient, questions: int = 1) -> dict[str, Any]:
    """The approval that a run waits for, once it has asked so many questions."""
    (run,) = served.server.runs.working
    asked = 0
    async with asyncio.timeout(30):
        async for one in run.follow():
            asked += type(one.event).__name__ == "QuestionAsked"
            if asked == questions:
                (found,) = (await http.get("/api/approvals")).json()["approvals"]
                return dict(found)
    raise AssertionError("the run has ended")


async def test_events_are_numbered_and_resumed(home: Path) -> None:
    """A client that comes back gets what it missed, neither less nor more, also after the run."""
    async with serving(home, ["one two three"]) as served, served.http() as http:
        run = await start(http)
        all_events = await follow(http, run["id"])
        rest = await follow(http, run["id"], after=3)

    assert [number for number, _ in all_events] == list(range(1, len(all_events) + 1))
    assert rest == all_events[3:]
    assert all_events[-1][1]["event"] == "run_ended"
    assert all_events[-1][1]["result"]["answer"] == "one two three"


async def test_a_stream_that_has_all_events_does_not_come_back(home: Path) -> None:
    """A browser reconnects when a stream ends; 204 stops it, from memory as from the database."""
    async with serving(home, ["one"]) as served, served.http() as http:
        run = await start(http)
        last = (await follow(http, run["id"]))[-1][0]
        path, headers = f"/api/runs/{run['id']}/events", {"Last-Event-ID": str(last)}
        async with asyncio.timeout(30):
            again = await http.get(path, headers=headers)
    async with serving(home) as served, served.http() as http:
        restarted = await http.get(path, headers=headers)

    assert (again.status_code, restarted.status_code) == (204, 204)


async def test_an_idempotency_key_belongs_to_its_token(home: Path) -> None:
    """Another token with the same key starts a run of its own."""
    async with serving(home, ["one", "two"]) as served:
        key = {"Idempotency-Key": "k1"}
        async with served.http() as http, served.http(served.server.tokens.create("phone", ["chat"])) as phone:
            first = await http.post("/api/runs", json={"text": "a"}, headers=key)
            await follow(http, first.json()["id"])
            other = await phone.post("/api/runs", json={"text": "a"}, headers=key)
            await follow(http, other.json()["id"])

    assert other.status_code == 202
    assert other.json()["id"] != first.json()["id"]


async def test_an_approval_of_a_terminal_session_is_asked(home: Path) -> None:
    """A run on a session that the terminal opened asks here, where somebody waits for it."""
    async with serving(home, [calls("remove", {"path": "x"}), "ok"]) as served, served.http() as http:
        session = served.server.host.store.create(source="cli")
        run = await start(http, session_id=session.id)
        asked = await waiting(served, http)
        await http.post(f"/api/approvals/{asked['code']}", json={"choice": "once"})
        await follow(http, run["id"])

    assert served.removed == ["x"]


async def test_events_are_stored_with_the_time_of_day(home: Path) -> None:
    """Their times mean something after a restart."""
    async with serving(home, ["one"]) as served, served.http() as http:
        run = await start(http)
        await follow(http, run["id"])
        stored = served.server.runs.store.events(run["id"])

    assert all(one.at >= run["created_at"] for one in stored)


async def test_a_repeated_request_starts_one_run(home: Path) -> None:
    """An idempotency key gives the run that it started; another request with it is refused."""
    async with serving(home, ["one"]) as served, served.http() as http:
        key = {"Idempotency-Key": "k1"}
        first = await http.post("/api/runs", json={"text": "a"}, headers=key)
        await follow(http, first.json()["id"])
        again = await http.post("/api/runs", json={"text": "a"}, headers=key)
        other = await http.post("/api/runs", json={"text": "b"}, headers=key)

    assert again.json()["id"] == first.json()["id"]
    assert other.status_code == 409
    assert len(served.model.requests) == 1


async def test_an_approval_is_decided_once(home: Path) -> None:
    """The second decision is refused; a denial with its reason reaches the model."""
    async with serving(home, [calls("remove", {"path": "x"}), "ok"]) as served, served.http() as http:
        run = await start(http)
        asked = await waiting(served, http)
        first = await http.post(f"/api/approvals/{asked['id']}", json={"choice": "deny", "reason": "too risky"})
        second = await http.post(f"/api/approvals/{asked['id']}", json={"choice": "once"})
        await follow(http, run["id"])

    assert asked["command"] == "rm -rf build"
    assert (first.status_code, second.status_code) == (200, 404)
    assert served.removed == []
    assert "too risky" in served.model.requests[-1].messages[-1].text


async def test_sessions_are_listed_renamed_forked_and_deleted(home: Path) -> None:
    """A session's life over the API; unknown ids and prefixes of ids are 404."""
    async with serving(home, ["one"]) as served, served.http() as http:
        run = await start(http)
        await follow(http, run["id"])
        id = run["session_id"]
        renamed = await http.patch(f"/api/sessions/{id}", json={"title": "Mine"})
        fork = await http.post(f"/api/sessions/{id}/fork")
        messages = await http.get(f"/api/sessions/{id}/messages")
        prefix = await http.get(f"/api/sessions/{id[:-1]}")
        deleted = await http.delete(f"/api/sessions/{id}")
        listed = await http.get("/api/sessions")

    assert renamed.json()["title"] == "Mine"
    assert [one["role"] for one in messages.json()["messages"]] == ["user", "assistant"]
    assert (prefix.status_code, deleted.status_code) == (404, 200)
    assert [one["id"] for one in listed.json()["sessions"]] == [fork.json()["id"]]


async def test_open_approvals_survive_a_restart(home: Path) -> None:
    """A stopped server interrupts its run and leaves the question open; the next one can still record the answer."""
    async with serving(home, [calls("remove", {"path": "x"}), "ok"]) as served, served.http() as http:
        run = await start(http)
        asked = await waiting(served, http)
    async with serving(home) as again, again.http() as http:
        listed = (await http.get("/api/approvals")).json()["approvals"]
        ended = (await http.get(f"/api/runs/{run['id']}")).json()
        answer = await http.post(f"/api/approvals/{asked['code']}", json={"choice": "once"})
        left = (await http.get("/api/approvals")).json()["approvals"]
        events = await follow(http, run["id"])

    assert [one["id"] for one in listed] == [asked["id"]]
    assert ended["state"] == "interrupted"
    assert answer.json()["late"] is True
    assert left == []
    assert events[-1][1]["result"]["outcome"] == "interrupted"
    assert served.removed == again.removed == []


async def test_an_unanswered_approval_is_denied(home: Path) -> None:
    """The model reads how long the server waited; the run goes on."""
    config = CONFIG + "  approval_timeout: 0.2\n"
    async with serving(home, [calls("remove", {"path": "x"}), "ok"], config=config) as served, served.http() as http:
        run = await start(http)
        events = await follow(http, run["id"])

    assert served.removed == []
    assert "within 0.2 seconds" in served.model.requests[-1].messages[-1].text
    assert events[-1][1]["result"]["answer"] == "ok"


async def test_a_limit_on_the_cost_of_a_day(home: Path) -> None:
    """Once the runs of a day have cost too much, no other one starts; the limit can be raised without a restart."""
    dear = says("hello", usage=Usage(input_tokens=1, output_tokens=1, cost_usd=0.5))
    config = CONFIG + "  limits: {cost_per_day_usd: 0.4}\n"
    async with serving(home, [dear, "again"], config) as served, served.http() as http:
        await follow(http, (await start(http))["id"])
        refused = await http.post("/api/runs", json={"text": "another"})
        (home / "config.yaml").write_text(config.replace("0.4", "5"))
        await served.server._config.look()
        await follow(http, (await start(http))["id"])

    assert refused.status_code == 429
    assert "0.4" in refused.json()["error"]


async def test_a_limit_on_runs(home: Path) -> None:
    """Beyond the limit a run is refused with 429, and nothing starts."""
    config = CONFIG + "  limits: {max_runs: 1}\n"
    async with serving(home, [calls("remove", {"path": "x"}), "ok"], config=config) as served, served.http() as http:
        await start(http)
        await waiting(served, http)
        refused = await http.post("/api/runs", json={"text": "another"})
        chat = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})

    assert (refused.status_code, chat.status_code) == (429, 429)


async def test_a_run_can_be_stopped_and_steered(home: Path) -> None:
    """Stop ends the run and closes its question; steering an ended one is refused."""
    async with serving(home, [calls("remove", {"path": "x"}), "ok"]) as served, served.http() as http:
        run = await start(http)
        await waiting(served, http)
        steered = await http.post(f"/api/runs/{run['id']}/steer", json={"text": "hurry"})
        stopped = await http.post(f"/api/runs/{run['id']}/stop")
        events = await follow(http, run["id"])
        late = await http.post(f"/api/runs/{run['id']}/steer", json={"text": "hurry"})

    assert (steered.status_code, stopped.status_code, late.status_code) == (202, 202, 409)
    assert "question_answered" in [event["event"] for _, event in events]
    assert events[-1][1]["result"]["outcome"] == "interrupted"


ODD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'{"text": 1}',
    b'{"text": null}',
    b'{"x": "y"}',
    b"\xff\xfe",
    b'{"text": "\xff", "title": "\xff", "choice": "\xff", "input": "\xff", "model": "\xff"}',
    b'{"title": "\xff"}',
    b'"' + b"a" * 9000,
    b'{"input": [{"x": ' + b"[" * 9000 + b"]" * 9000 + b"}]}",
    b'{"messages": [{"role": "user", "content": [{"x": ' + b"[" * 9000 + b"]" * 9000 + b"}]}]}",
]


@pytest.mark.services
async def test_odd_requests_are_refused_without_a_fault(home: Path) -> None:
    """Whatever is sent to whichever route, the answer is an error of the client, never of the server."""
    paths = [
        "/api/runs",
        "/api/runs/x/steer",
        "/api/approvals/x",
        "/api/questions/x",
        "/v1/chat/completions",
        "/v1/responses",
    ]
    gets = [
        "/api/sessions?limit=x",
        "/api/sessions?limit=99999999999",
        "/api/sessions/%00",
        "/api/runs/../x",
        "/api/runs/x/events",
    ]
    async with serving(home) as served, served.http() as http:
        json_type = {"Content-Type": "application/json"}
        posted = [await http.post(path, content=body, headers=json_type) for path in paths for body in ODD_BODIES]
        patched = [await http.patch("/api/sessions/x", content=body, headers=json_type) for body in ODD_BODIES]
        got = [await http.get(path) for path in gets]

    codes = {(response.request.url.path, response.status_code) for response in [*posted, *patched, *got]}
    assert not [one for one in codes if not 400 <= one[1] < 500]


@pytest.mark.services
async def test_what_runs_did_goes_with_their_session(home: Path) -> None:
    """Events and stored answers of a deleted session are deleted; what it cost still counts, and a repeated request
    starts nothing. The same goes for a session that somebody deletes in the terminal, at the next start."""
    key = {"Idempotency-Key": "k1"}
    steps = [says("secret one", usage=Usage(cost_usd=2.0)), "secret two", "secret three"]
    async with serving(home, steps) as served, served.http() as http:
        run = (await http.post("/api/runs", json={"text": "a"}, headers=key)).json()
        await follow(http, run["id"])
        answer = await served.openai.responses.create(model="toolcrib", input="b")
        kept = await start(http, "c")
        await follow(http, kept["id"])
        store, sessions = served.server.runs.store, served.server.host.store
        answered = store.response(answer.id, "")
        assert answered is not None
        for id in (run["session_id"], answered.session_id):
            assert (await http.delete(f"/api/sessions/{id}")).status_code == 200
        gone = [await http.get(f"/api/runs/{run['id']}/events"), await http.get(f"/v1/responses/{answer.id}")]
        listed = (await http.get("/api/runs")).json()["runs"]
        again = await http.post("/api/runs", json={"text": "a"}, headers=key)
        cost, events = store.cost_since(0), store.events(run["id"])
        sessions.delete(kept["session_id"])
    async with serving(home) as served, served.http() as http:
        await http.get("/health")
        later = served.server.runs.store.events(kept["id"])

    assert [one.status_code for one in gone] == [404, 404]
    assert [one["id"] for one in listed] == [kept["id"]]
    assert again.json()["id"] == run["id"]
    assert cost == 2.0
    assert (events, later) == ([], [])


async def test_a_session_is_busy_while_it_is_deleted(home: Path) -> None:
    """So no run starts in it, whose events would outlive it."""
    async with serving(home) as served, served.http() as http, asyncio.timeout(10):
        session = (await http.post("/api/sessions", json={})).json()["id"]
        with closing(sqlite3.connect(Home(home).sessions_file)) as other:
            other.execute("BEGIN IMMEDIATE")
            deleting = asyncio.ensure_future(http.delete(f"/api/sessions/{session}"))
            while not served.server.runs.is_busy(session):  # noqa: ASYNC110
                await asyncio.sleep(0)
        deleted = await deleting
        with served.server.runs.reserved(session):
            again = await http.delete(f"/api/sessions/{session}")

    assert (deleted.status_code, again.status_code) == (200, 404)


async def test_an_edited_command_is_judged_anew(home: Path) -> None:
    """Another danger is asked about again, with a question of its own; what is always refused stays so."""
    steps = [calls("run", {"command": "rm -rf build"}), "first", calls("run", {"command": "rm -rf build"}), "second"]
    async with serving(home, steps) as served, served.http() as http:
        run = await start(http)
        asked = await waiting(served, http)
        await http.post(f"/api/approvals/{asked['id']}", json={"choice": "once", "command": "rm -rf ../other"})
        again = await waiting(served, http, questions=2)
        await http.post(f"/api/approvals/{again['id']}", json={"choice": "deny"})
        await follow(http, run["id"])

        run = await start(http)
        asked = await waiting(served, http)
        await http.post(f"/api/approvals/{asked['id']}", json={"choice": "once", "command": "rm -rf ~"})
        events = await follow(http, run["id"])

    assert (asked["editable"], again["command"]) == (True, "rm -rf ../other")
    assert served.removed == []
    assert [one["status"] for _, one in events if one["event"] == "call_finished"] == ["blocked"]


async def test_a_deleted_session_takes_its_subagents_along(home: Path) -> None:
    """The sessions that its subagents worked in, and theirs; a branch is a conversation of its own and stays."""
    async with serving(home, ["hi"]) as served, served.http() as http:
        parent = (await http.post("/api/sessions", json={})).json()["id"]
        store = served.server.host.store
        child = store.create(source="subagent", parent_id=parent, parent_kind="delegate").id
        grandchild = store.create(source="subagent", parent_id=child, parent_kind="delegate").id
        branch = store.branch(parent).id
        deleted = (await http.delete(f"/api/sessions/{parent}")).json()

    assert deleted == {"deleted": parent, "subagents": 2}
    assert SessionStore(home / "sessions.db").existing([parent, child, grandchild, branch]) == {branch}


def test_agents_of_a_server_can_ask_without_any_settings(home: Path) -> None:
    """The toolset for programs has no `clarify`, because elsewhere nobody can answer there; here somebody can."""
    home.mkdir()
    wanted = load_settings(Home(home)).serve.toolsets

    assert {"clarify", "terminal"} <= {*ToolsetResolver(NoRegistry()).resolve_many(wanted)}
