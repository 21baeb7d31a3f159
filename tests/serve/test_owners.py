"""Owners: nobody reaches what belongs to another one, whatever the route."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.serve.agent_serving import CONFIG, RunningServer, serving
from tests.serve.test_native_api import follow, start, waiting
from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.board.cards import Card
from toolcrib.board.service import open_board
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.approvals import ApprovalRequest
from toolcrib.core.messages import user_message
from toolcrib.cron.jobs import Job
from toolcrib.cron.store import JobStore
from toolcrib.process_identity import Identity
from toolcrib.processes.process import ProcessRecord
from toolcrib.providers.scripted import calls
from toolcrib.serve.api_routes import ApiRoute
from toolcrib.serve.tokens import ServerTokens, TokenError, UnsafeStart, require_separate_owners
from toolcrib.sessions.memory import MemoryOperation
from toolcrib.sessions.search import SessionSearchService

APART = CONFIG + "terminal: {backend: docker}\n"
SECRET = "marzipan"
SHARED = {
    "/api/tools/{name}/call",
    "/api/skills/{name}",
    "/api/skills/{name}/approve",
    "/api/mcp/{name}/reconnect",
    "/api/settings/{key}",
    "/api/tokens/{name}",
}
"""Routes whose ids belong to the server and not to an owner."""
BODIES: dict[str, Any] = {
    "RunRequest": {"text": "hello"},
    "SteerRequest": {"text": "hello"},
    "DecisionRequest": {"choice": "once"},
    "AnswerRequest": {"text": "hello"},
    "SessionChange": {"title": "mine"},
    "JobDraft": {"prompt": "other"},
    "CardChange": {"status": "done"},
    "CardComment": {"body": "mine"},
}


class OwnedResources:
    """One thing of each kind that belongs to the owner of a token."""

    def __init__(self, ids: dict[str, str], response: str) -> None:
        self.ids = ids
        self.response = response

    def path(self, route: ApiRoute) -> str:
        """The route with the id of one of them; fails for a kind that this test does not know."""
        kind = route.path.split("/")[2]
        return re.sub(r"{\w+}", self.ids[kind], route.public_path)


@asynccontextmanager
async def belongings(served: RunningServer, http: httpx2.AsyncClient, owner: str) -> AsyncIterator[OwnedResources]:
    """Sessions with a secret, a run that waits, a job, a process, a question, a stored answer and a memory."""
    host = served.server.host
    answered = (await http.post("/v1/responses", json={"input": f"{SECRET} cake"})).json()
    run = await start(http, f"the {SECRET} is hidden")
    asked = await waiting(served, http)
    session = run["session_id"]
    store = JobStore(host.settings.home.cron_file, owner=owner)
    job = store.add(Job(id="", name=f"job of {owner}", schedule="every 2h", since=0.0, prompt=SECRET))
    store.close()
    with closing(open_board(host.settings, owner)) as cards:
        card, _ = cards.add(Card(title=f"card about {SECRET}"))
    record = ProcessRecord(
        id=f"proc_{owner or 'home'}", session_key=session, command=f"echo {SECRET}", owner=Identity(1),
        started_at=0.0, status="exited", ended_at=1.0,
    )  # fmt: skip
    host.runtime.terminal.processes.registry.remember_finished(record)
    host.memories_of(owner).change("memory", [MemoryOperation(action="add", content=f"knows {SECRET}")])
    question = asyncio.ensure_future(served.server.questions.ask_text(session, f"Which {SECRET}?", ()))
    try:
        async with asyncio.timeout(30):
            while not (found := (await http.get("/api/questions")).json()["questions"]):  # noqa: ASYNC110
                await asyncio.sleep(0)
        ids = {"sessions": session, "runs": run["id"], "approvals": asked["id"], "jobs": job.id, "board": card.id}
        yield OwnedResources({**ids, "processes": record.id, "questions": found[0]["id"]}, answered["id"])
    finally:
        question.cancel()
        await http.post(f"/api/runs/{run['id']}/stop")
        await follow(http, run["id"])


async def test_no_route_reaches_what_belongs_to_somebody_else(home: Path) -> None:
    """Every route of the table: with the id of another owner it is 404; without an id it shows nothing of theirs."""
    steps = ["sweet", calls("remove", {"path": "x"}), "ok"]
    async with serving(home, steps, APART) as served, served.http() as http:
        token = served.server.tokens.create("anna", ["chat", "approve"], "anna")
        async with served.http(token) as anna, belongings(served, http, "") as theirs:
            for route in served.server.api_routes():
                if "{" not in route.path and route.method == "GET":
                    shown = await anna.get(route.path, params={"q": SECRET})
                    leaked = [id for id in theirs.ids.values() if id in shown.text]
                    assert (SECRET in shown.text, leaked) == (False, []), route.path
                elif "{" in route.path and route.path not in SHARED:
                    body = BODIES.get(route.body.__name__, {}) if route.body is not None else None
                    response = await anna.request(
                        route.method, theirs.path(route), json=body, params={"path": "x", "format": "openai"}
                    )
                    expected = 403 if route.scope == "admin" else 404
                    assert response.status_code == expected, (route.method, route.path, response.text)
            others = [
                await anna.get(f"/v1/responses/{theirs.response}"),
                await anna.delete(f"/v1/responses/{theirs.response}"),
                await anna.post("/api/runs", json={"text": "x", "session_id": theirs.ids["sessions"]}),
                await anna.post("/api/tools/echo/call", json={"session_id": theirs.ids["sessions"]}),
                await anna.post(
                    "/v1/chat/completions",
                    json={"messages": [{"role": "user", "content": "x"}]},
                    headers={"X-Toolcrib-Session-Id": theirs.ids["sessions"]},
                ),
                await anna.post(
                    "/v1/chat/completions",
                    json={"messages": [{"role": "user", "content": f"/approve {theirs.ids['approvals']}"}]},
                ),
            ]
            still = (await http.get(f"/api/sessions/{theirs.ids['sessions']}")).json()

    assert [one.status_code for one in others] == [404] * len(others)
    assert served.removed == []
    assert still["title"] != "mine"


async def test_not_even_the_owner_of_the_home_reaches_other_owners_by_id(home: Path) -> None:
    async with serving(home, ["sweet", calls("remove", {"path": "x"}), "ok"], APART) as served, served.http() as http:
        token = served.server.tokens.create("anna", ["chat", "approve"], "anna")
        async with served.http(token) as anna, belongings(served, anna, "anna") as hers:
            codes = {
                route.path: (await http.get(hers.path(route), params={"path": "x"})).status_code
                for route in served.server.api_routes()
                if "{" in route.path and route.method == "GET" and route.path not in SHARED
            }
            listed = (await http.get("/api/sessions")).text

    assert set(codes.values()) == {404}, codes
    assert hers.ids["sessions"] not in listed


async def test_agents_search_and_remember_for_their_owner_only(home: Path) -> None:
    """The tools session_search and memory see what belongs to the owner of their session."""
    async with serving(home, config=APART) as served:
        host = served.server.host
        mine, hers = (host.store.create(source="serve", owner=owner) for owner in ("", "anna"))
        child = host.store.create(source="subagent", parent_id=hers.id)
        host.store.append(mine.id, user_message(f"the {SECRET} recipe"))
        host.memories_of("").change("memory", [MemoryOperation(action="add", content=f"knows {SECRET}")])
        search = SessionSearchService(host.store)
        answers = [
            await search.handle(args, host.runtime.context(session_id=session))
            for session in (hers.id, child.id)
            for args in ({"query": SECRET}, {"session_id": mine.id}, {"around_message_id": 1}, {"profile": "x"})
        ]
        browsed = [await search.handle({}, host.runtime.context(session_id=one)) for one in (hers.id, child.id)]
        remembered = [host.memory.snapshot(one) for one in (mine.id, hers.id, child.id)]

    assert not [answer for answer in answers if "recipe" in answer]
    assert not [answer for answer in browsed if mine.id in answer]
    assert [SECRET in text for text in remembered] == [True, False, False]
    assert child.owner == "anna"


async def test_what_a_deleted_session_did_stays_its_owners(home: Path) -> None:
    """A subagent may still work when its session is deleted; neither its tools nor what it did become those of the
    home's owner."""
    async with serving(home, config=APART) as served, served.http() as http:
        token = served.server.tokens.create("anna", ["chat", "approve"], "anna")
        host = served.server.host
        mine, hers = (host.store.create(source="serve", owner=owner) for owner in ("", "anna"))
        child = host.store.create(source="subagent", parent_id=hers.id)
        host.store.append(mine.id, user_message(f"the {SECRET} recipe"))
        host.memories_of("").change("memory", [MemoryOperation(action="add", content=f"knows {SECRET}")])
        record = ProcessRecord(
            id="proc_anna", session_key=child.id, command="echo hers", owner=Identity(1),
            started_at=0.0, status="exited", ended_at=1.0,
        )  # fmt: skip
        host.runtime.terminal.processes.registry.remember_finished(record)
        request = ApprovalRequest(id="1", session_key=child.id, tool="run", command="echo hers", dangers=())
        ApprovalLog(host.settings.home.approvals_file).requested(request)
        async with served.http(token) as anna:
            deleted = await anna.delete(f"/api/sessions/{child.id}")
        searched = await SessionSearchService(host.store).handle(
            {"query": SECRET}, host.runtime.context(session_id=child.id)
        )
        remembered = host.memory.snapshot(child.id)
        shown = [(await http.get(f"/api/{one}")).text for one in ("processes", "audit")]

    assert deleted.status_code == 200
    assert "recipe" not in searched
    assert SECRET not in remembered
    assert not [one for one in shown if "hers" in one]


async def test_skills_are_changed_for_the_owner_of_the_home_only(home: Path) -> None:
    """Agents of all owners follow the same skills."""
    skill = Home(home).skills_dir / "brew" / "SKILL.md"
    text = "---\nname: brew\ndescription: Brews tea.\n---\nBoil water.\n"
    async with serving(home, config=APART) as served:
        runtime, store = served.server.host.runtime, served.server.host.store
        mine, hers = (store.create(source="serve", owner=owner).id for owner in ("", "anna"))
        skills = runtime.context().services.skills
        create = {"action": "create", "name": "brew", "content": text}
        refused = [skills.manage(create, runtime.context(session_id=hers))]
        created = skills.manage(create, runtime.context(session_id=mine))
        refused.append(skills.manage({"action": "delete", "name": "brew"}, runtime.context(session_id=hers)))

    assert all("belong to the owner" in one for one in refused)
    assert "success" in created
    assert skill.read_text() == text


def test_several_owners_need_environments_of_their_own(home: Path) -> None:
    """With the backend `local` the server does not start."""
    home.mkdir(parents=True, exist_ok=True)
    settings = load_settings(Home(home))
    tokens = ServerTokens(settings.home)
    require_separate_owners(settings, tokens.owners())
    tokens.create("laptop", ["chat"], "anna")

    with pytest.raises(UnsafeStart, match="anna"):
        require_separate_owners(settings, tokens.owners())
    (home / "config.yaml").write_text(APART)
    require_separate_owners(load_settings(Home(home)), tokens.owners())
    (home / "config.yaml").write_text(APART + "memory: {provider: mem0}\n")
    with pytest.raises(UnsafeStart, match="mem0"):
        require_separate_owners(load_settings(Home(home)), tokens.owners())


async def test_no_token_is_made_that_the_next_start_would_refuse(home: Path) -> None:
    """The API says so at once, in the same words, and creates nothing."""
    async with serving(home) as served, served.http() as http:
        refused = await http.post("/api/tokens", json={"name": "laptop", "scopes": ["chat"], "owner": "anna"})
        tokens = (await http.get("/api/tokens")).json()["tokens"]

    assert refused.status_code == 422
    assert "tokens belong to several owners (anna), who could read each other's files" in refused.text
    assert tokens == []


async def test_a_token_of_another_owner_is_refused_while_the_server_runs(home: Path) -> None:
    """One that was created after the start, on a backend that keeps nobody apart."""
    async with serving(home) as served:
        token = served.server.tokens.create("anna", ["chat"], "anna")
        async with served.http(token) as anna:
            response = await anna.get("/api/sessions")

    assert response.status_code == 403


async def test_the_name_of_a_token_is_no_key_to_what_its_last_owner_did(home: Path) -> None:
    """Revoked, and created again for somebody else: neither a transcript nor an idempotency key finds a session."""
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    history = [*chat["messages"], {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and?"}]
    sessions, runs = [], []
    async with serving(home, ["hi", "run", "first", "run", "second"], APART) as served:
        for owner in ("anna", "bob"):
            token = served.server.tokens.create("laptop", ["chat"], owner)
            async with served.http(token) as http:
                if owner == "anna":
                    await http.post("/v1/chat/completions", json=chat)
                started = await http.post("/api/runs", json={"text": "x"}, headers={"Idempotency-Key": "1"})
                await follow(http, started.json()["id"])
                runs.append(started.json()["id"])
                response = await http.post("/v1/chat/completions", json={"messages": history})
                sessions.append(response.headers["X-Toolcrib-Session-Id"])
            served.server.tokens.revoke("laptop")
        owners = served.server.host.store.owners(sessions)

    assert len(set(runs)) == 2
    assert [owners[one] for one in sessions] == ["anna", "bob"]


def test_only_the_owner_of_the_home_administers(home: Path) -> None:
    tokens = ServerTokens(load_settings(Home(home)).home)
    with pytest.raises(TokenError, match="admin"):
        tokens.create("anna", ["chat", "admin"], "anna")
    with pytest.raises(TokenError, match="no name"):
        tokens.create("anna", ["chat"], "../anna")
    assert tokens.owners() == {""}
