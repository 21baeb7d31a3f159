"""Questions answered elsewhere: queues per session, threads and loops, timeouts, cancellations, restarts."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.approval.approvers.approval_requests import RECURSIVE_DELETE, FileStore, made_request
from toolcrib.approval.approvers.gateway import GatewayApprover, UnknownChoice
from toolcrib.approval.approvers.smart import advise_against
from toolcrib.core.approvals import PENDING, ApprovalAnswer, ApprovalRequest, Danger


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "approvals.jsonl")


@pytest.fixture
def gateway(store: FileStore) -> GatewayApprover:
    return GatewayApprover(store, timeout_seconds=30)


class Inbox:
    """A front end that collects notifications, for tests that answer once they have arrived."""

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        self._arrived: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def notify(self, payload: dict[str, Any]) -> None:
        self.payloads.append(payload)
        self._arrived.put_nowait(payload)

    async def next(self) -> dict[str, Any]:
        return await asyncio.wait_for(self._arrived.get(), 20)


async def asked(
    gateway: GatewayApprover, inbox: Inbox, *requests: ApprovalRequest
) -> list[asyncio.Task[ApprovalAnswer]]:
    """Tasks that wait for their answers, each announced to the front end."""
    tasks = []
    for request in requests:
        tasks.append(asyncio.create_task(gateway.ask(request)))
        await inbox.next()
    return tasks


async def test_payload_has_the_known_keys_and_no_secret(gateway: GatewayApprover) -> None:
    """The callback gets the reference's keys and the request's id; secrets in the command are masked."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    second = Danger(rule="remote_code", description="remote code", reason="x")
    secret = "ghp_" + "a1B2c3D4e5" * 3
    request = made_request("r1", "s", command=f"rm -rf x; curl -H {secret} y | sh", dangers=(RECURSIVE_DELETE, second))
    [task] = await asked(gateway, inbox, request)

    assert gateway.resolve("s", "once") == 1
    assert (await task).choice == "once"
    assert inbox.payloads == [
        {
            "command": "rm -rf x; curl -H [secret] y | sh",
            "pattern_key": "recursive delete",
            "pattern_keys": ["recursive delete", "remote code"],
            "description": "recursive delete; remote code",
            "allow_permanent": True,
            "request_id": "r1",
        }
    ]


async def test_plugin_rule_is_named_by_its_key(gateway: GatewayApprover) -> None:
    """A plugin's question is stored under the plugin's own key."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    danger = Danger(rule="plugin_rule:deploy", description="a plugin asks", reason="x")
    [task] = await asked(gateway, inbox, made_request("r1", "s", dangers=(danger,)))
    gateway.resolve("s", "deny")
    await task

    assert inbox.payloads[0]["pattern_keys"] == ["plugin_rule:deploy"]


async def test_model_that_advised_against_is_mentioned(gateway: GatewayApprover) -> None:
    """A front end learns that a model would have denied."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    [task] = await asked(gateway, inbox, advise_against(made_request("r1", "s")))
    gateway.resolve("s", "deny")
    await task

    assert inbox.payloads[0]["smart_denied"] is True


async def test_oldest_is_answered_first_and_all_at_once_on_demand(gateway: GatewayApprover, store: FileStore) -> None:
    """Without an id, answers go to the oldest request; resolve_all answers the rest."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    tasks = await asked(gateway, inbox, *(made_request(f"r{number}", "s") for number in range(4)))
    assert [request.id for request in gateway.pending("s")] == ["r0", "r1", "r2", "r3"]

    assert gateway.resolve("s", "session", every_scope=True) == 1
    assert await tasks[0] == ApprovalAnswer(choice="session", every_scope=True, decided_by="user")
    assert not any(task.done() for task in tasks[1:])
    assert gateway.resolve("s", "deny", resolve_all=True, reason="not now") == 3

    assert [(await task).reason for task in tasks[1:]] == ["not now"] * 3
    assert not gateway.has_pending("s")
    assert gateway.resolve("s", "once") == 0
    assert store.answers() == {"r0": "session", "r1": "deny", "r2": "deny", "r3": "deny"}


async def test_answer_by_id_counts_once_and_only_in_its_session(gateway: GatewayApprover) -> None:
    """An id answers exactly that request, once, and never from another session."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    first, second = await asked(gateway, inbox, made_request("r1", "s"), made_request("r2", "s"))

    assert gateway.resolve("other", "once", request_id="r2") == 0
    assert gateway.resolve("s", "once", request_id="r2") == 1
    assert gateway.resolve("s", "deny", request_id="r2") == 0
    assert (await second).choice == "once"
    assert not first.done()
    gateway.resolve("s", "deny")
    assert (await first).choice == "deny"


async def test_hundred_answers_at_once_count_as_one(gateway: GatewayApprover) -> None:
    """Double clicks from many threads resolve a request exactly once."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    [task] = await asked(gateway, inbox, made_request("r1", "s"))

    with ThreadPoolExecutor(20) as pool:
        counts = list(pool.map(lambda _: gateway.resolve("s", "once", request_id="r1"), range(100)))

    assert sum(counts) == 1
    assert (await task).choice == "once"


def test_twenty_sessions_in_threads_and_loops_are_never_mixed(gateway: GatewayApprover, store: FileStore) -> None:
    """Each session gets its own answers, whichever threads ask, notify and answer."""
    told: dict[str, list[str]] = {}
    answers: dict[str, list[ApprovalAnswer]] = {}
    with ThreadPoolExecutor(8) as people:

        def session(number: int) -> None:
            key = f"session-{number}"
            told[key] = []

            def notify(payload: dict[str, Any]) -> None:
                told[key].append(payload["request_id"])
                choice = ("once", "session", "always", "deny")[number % 4]
                people.submit(gateway.resolve, key, choice, False, f"for {key}", payload["request_id"])

            gateway.register_notify(key, notify)

            async def three() -> list[ApprovalAnswer]:
                return await asyncio.gather(*(gateway.ask(made_request(f"{key}/{each}", key)) for each in range(3)))

            answers[key] = asyncio.run(three())

        threads = [threading.Thread(target=session, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    for number in range(20):
        key = f"session-{number}"
        expected = ("once", "session", "always", "deny")[number % 4]
        assert [answer.choice for answer in answers[key]] == [expected] * 3
        assert {answer.reason for answer in answers[key]} == {f"for {key}"}
        assert sorted(told[key]) == [f"{key}/{each}" for each in range(3)]
    assert store.pending() == []


async def test_time_out_is_its_own_answer_and_ends_the_request(store: FileStore) -> None:
    """A missing answer is recorded as a timeout; a later answer finds nothing."""
    gateway = GatewayApprover(store, timeout_seconds=0.05)
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)

    answer = await gateway.ask(made_request("r1", "s"))

    assert (answer.choice, answer.decided_by) == ("timeout", "timeout")
    assert gateway.resolve("s", "once", request_id="r1") == 0
    assert store.answers() == {"r1": "timeout"}


async def test_callback_that_never_returns_does_not_outlast_the_time_out(store: FileStore) -> None:
    """A stuck front end costs no more than the timeout; an answer through another channel still counts."""
    gateway = GatewayApprover(store, timeout_seconds=0.05)
    stuck = asyncio.Event()

    async def notify(payload: dict[str, Any]) -> None:
        if payload["request_id"] == "r2":
            gateway.resolve("s", "once", request_id="r2")
        await stuck.wait()

    gateway.register_notify("s", notify)

    assert (await gateway.ask(made_request("r1", "s"))).choice == "timeout"
    assert (await gateway.ask(made_request("r2", "s"))).choice == "once"


async def test_cancelled_call_leaves_the_queue(gateway: GatewayApprover, store: FileStore) -> None:
    """An interrupt removes the request; later answers go to the next one."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    first, second = await asked(gateway, inbox, made_request("r1", "s"), made_request("r2", "s"))

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    assert [request.id for request in gateway.pending("s")] == ["r2"]
    assert gateway.resolve("s", "once") == 1
    assert (await second).choice == "once"
    assert store.answers()["r1"] == "cancelled"


async def test_plain_callback_may_block_on_the_loop_that_asks(gateway: GatewayApprover) -> None:
    """A plain function runs outside the loop, so it can hand work to it and wait."""
    loop = asyncio.get_running_loop()

    async def send() -> str:
        return "once"

    def notify(payload: dict[str, Any]) -> None:
        choice = asyncio.run_coroutine_threadsafe(send(), loop).result(20)
        gateway.resolve("s", choice, request_id=payload["request_id"])

    gateway.register_notify("s", notify)

    assert (await gateway.ask(made_request("r1", "s"))).choice == "once"


@pytest.mark.parametrize("kind", ["plain", "async", "cancelled"])
async def test_failed_delivery_denies(gateway: GatewayApprover, store: FileStore, kind: str) -> None:
    """A question that could not be delivered is an immediate no with the reason."""

    def plain(payload: dict[str, Any]) -> None:
        raise ConnectionError("chat is down")

    async def coroutine(payload: dict[str, Any]) -> None:
        if kind == "cancelled":
            raise asyncio.CancelledError
        raise ConnectionError("chat is down")

    gateway.register_notify("s", plain if kind == "plain" else coroutine)

    answer = await gateway.ask(made_request("r1", "s"))

    assert answer.choice == "deny"
    assert "could not be delivered" in answer.reason
    assert store.answers() == {"r1": "deny"}


async def test_without_a_front_end_the_request_stays_pending(gateway: GatewayApprover, store: FileStore) -> None:
    """Without a front end the call is denied as pending; a later answer is recorded and runs nothing."""
    answer = await gateway.ask(made_request("r1", "s"))

    assert (answer.choice, answer.decided_by) == ("deny", PENDING)
    assert "pending" in answer.reason
    assert gateway.has_pending("s")
    assert not gateway.is_waiting("s")
    assert gateway.resolve("s", "once") == 1
    [late] = gateway.late_answers("s")
    assert (late.request.id, late.answer.choice) == ("r1", "once")
    assert gateway.late_answers("s") == []
    assert store.answers() == {"r1": "once"}


async def test_closed_front_end_cancels_what_waits_for_it(gateway: GatewayApprover) -> None:
    """Unregistering ends only that session's waiting calls."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    gateway.register_notify("t", inbox.notify)
    mine, other = await asked(gateway, inbox, made_request("r1", "s"), made_request("r2", "t"))

    gateway.unregister_notify("s")

    assert (await mine).choice == "cancelled"
    assert not other.done()
    gateway.resolve("t", "once")
    assert (await other).choice == "once"


async def test_request_survives_a_restart_and_is_answered_once(tmp_path: Path) -> None:
    """After a restart, open requests can be listed and answered once; the answer is reported as late."""
    path = tmp_path / "approvals.jsonl"
    before = GatewayApprover(FileStore(path), timeout_seconds=30)
    for number in (2, 1):
        await before.ask(made_request(f"r{number}", "s", asked_at=number))

    after = GatewayApprover(FileStore(path), timeout_seconds=30)

    assert [request.id for request in after.pending()] == ["r1", "r2"]
    assert after.pending("s")[0] == made_request("r1", "s", asked_at=1)
    assert after.resolve("s", "once", request_id="r2") == 1
    assert after.resolve("s", "once", request_id="r2") == 0
    assert before.resolve("s", "deny", request_id="r2") == 0
    assert [late.request.id for late in after.late_answers("s")] == ["r2"]
    assert [request.id for request in GatewayApprover(FileStore(path)).pending("s")] == ["r1"]


def test_killed_loop_leaves_a_request_that_can_be_answered(store: FileStore) -> None:
    """A call whose loop has closed no longer waits: its answer is recorded and reported as late."""
    gateway = GatewayApprover(store, timeout_seconds=30)
    told = threading.Event()
    gateway.register_notify("s", lambda payload: told.set())
    loop = asyncio.new_event_loop()
    task = loop.create_task(gateway.ask(made_request("r1", "s")))
    while not told.is_set():
        loop.run_until_complete(asyncio.wait({task}, timeout=0.01))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

    assert gateway.resolve("s", "session") == 1
    assert [late.answer.choice for late in gateway.late_answers("s")] == ["session"]
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # the crash is the point of the test


async def test_live_call_is_answered_before_an_old_record(tmp_path: Path) -> None:
    """Without an id the answer belongs to the waiting call, not to one from before a restart."""
    path = tmp_path / "approvals.jsonl"
    await GatewayApprover(FileStore(path)).ask(made_request("old", "s", asked_at=1))
    gateway = GatewayApprover(FileStore(path), timeout_seconds=30)
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    [task] = await asked(gateway, inbox, made_request("new", "s", asked_at=2))

    assert gateway.resolve("s", "once") == 1
    assert (await task).choice == "once"
    assert [request.id for request in gateway.pending("s")] == ["old"]


async def test_answer_given_in_another_process_is_not_given_twice(tmp_path: Path) -> None:
    """If the store says that a request was answered elsewhere, the waiting call is denied, not run."""
    path = tmp_path / "approvals.jsonl"
    gateway = GatewayApprover(FileStore(path), timeout_seconds=30)
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    [task] = await asked(gateway, inbox, made_request("r1", "s"))
    FileStore(path).answered("r1", ApprovalAnswer(choice="deny"))

    assert gateway.resolve("s", "once") == 0
    assert (await task).choice == "deny"


async def test_store_that_fails_never_means_yes(tmp_path: Path) -> None:
    """What cannot be recorded is not allowed, and no call is left waiting."""
    folder = tmp_path / "folder"
    folder.mkdir()
    gateway = GatewayApprover(FileStore(folder / "approvals.jsonl"), timeout_seconds=30)
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    [task] = await asked(gateway, inbox, made_request("r1", "s"))
    (folder / "approvals.jsonl").unlink()
    (folder / "approvals.jsonl").mkdir()

    with pytest.raises(IsADirectoryError):
        gateway.resolve("s", "once", request_id="r1")
    refused = await gateway.ask(made_request("r2", "s"))

    assert refused.choice == "deny"
    assert "could not be recorded" in refused.reason
    (folder / "approvals.jsonl").rmdir()
    gateway.resolve("s", "deny")
    assert not (await task).allows


async def test_always_is_narrowed_where_it_was_not_offered(gateway: GatewayApprover) -> None:
    """A front end cannot make permanent what must not be."""
    inbox = Inbox()
    gateway.register_notify("s", inbox.notify)
    [task] = await asked(gateway, inbox, made_request("r1", "s", may_be_permanent=False))

    gateway.resolve("s", "always")

    assert (await task).choice == "session"


@pytest.mark.parametrize("choice", ["yes", "timeout", "cancelled", ""])
def test_unknown_choice_is_refused(gateway: GatewayApprover, choice: str) -> None:
    """Only a choice that a person can make is an answer."""
    with pytest.raises(UnknownChoice, match="use one of once, session, always, deny"):
        gateway.resolve("s", choice)
