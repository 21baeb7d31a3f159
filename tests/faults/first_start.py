"""Several processes that open the same store at the same moment, each round on a new home. Run as a program.

Reads lines of JSON `{"store": NAME, "home": FOLDER, "processes": N}`. Answers each with a line of JSON: what each of
the processes could not do, empty if all went well. Forks, so that nothing is imported twice; all of them wait for the
same pipe to close.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.board.cards import Card
from toolcrib.board.store import BoardStore
from toolcrib.config.edit import set_value
from toolcrib.config.paths import Home
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.messages import user_message
from toolcrib.cron.delivery import Inbox
from toolcrib.cron.store import open_database
from toolcrib.process_identity import own_identity
from toolcrib.processes.ledger import Ledger
from toolcrib.sessions.health import examine_database
from toolcrib.sessions.memory import MemoryOperation, MemoryStore
from toolcrib.sessions.store import SessionStore
from toolcrib.undo.store import CallStart, UndoStore


def use_sessions(home: Home) -> None:
    store = SessionStore(home.sessions_file)
    session = store.create()
    store.append(session.id, user_message("hello"))
    assert [one.message.text for one in store.messages(session.id)] == ["hello"]
    store.close()


def check_sessions(home: Home) -> None:
    """Half of the processes look, while the others create the file."""
    if os.getpid() % 2:
        use_sessions(home)
    found = examine_database(home.sessions_file)
    assert not found.problem, found.problem


def use_jobs(home: Home) -> None:
    database = open_database(home.cron_file)
    with database.write() as connection:
        connection.execute("INSERT INTO schedulers VALUES (?, 0)", (str(os.getpid()),))
    database.close()
    assert Inbox(home.cron_file, "a session").waiting() == []


def use_board(home: Home) -> None:
    store = BoardStore(home.board_file)
    card, _ = store.add(Card(title=f"card {os.getpid()}"))
    assert store.find(card.id) == card
    store.close()


def use_approvals(home: Home) -> None:
    log = ApprovalLog(home.approvals_file)
    mine = f"request-{os.getpid()}"
    request = ApprovalRequest(id=mine, tool="terminal", command="ls", dangers=(), entry_point="interactive")
    log.requested(request)
    assert log.answered(mine, ApprovalAnswer(choice="once"))
    assert [record.id for record in log.find(mine)] == [mine]


def use_processes(home: Home) -> None:
    ledger = Ledger(home.processes_dir, own_identity())
    ledger.environment_opened({"kind": "local", "number": str(os.getpid())})
    ledger.take_orphans()
    assert len(list(ledger._environments())) >= 1


def use_undo(home: Home) -> None:
    store = UndoStore(home.undo_dir)
    for session in ("shared", f"own-{os.getpid()}"):
        call = f"call-{session}-{os.getpid()}"
        with store.write() as connection:
            store.begin(connection, session, CallStart(id=call, tool="write_file", at=1.0), {})
        assert call in {one.id for one in store.calls(session)}


def use_memory(home: Home) -> None:
    store = MemoryStore(home.memories_dir)
    store.change("memory", [MemoryOperation(action="add", content=f"note {os.getpid()}")])
    assert f"note {os.getpid()}" in store.entries("memory")


def use_config(home: Home) -> None:
    set_value(home, f"providers.server{os.getpid()}.base_url", "http://localhost:1/v1")
    assert f"server{os.getpid()}" in home.config_file.read_text(encoding="utf-8")


STORES: dict[str, Callable[[Home], None]] = {
    "sessions": use_sessions,
    "doctor": check_sessions,
    "jobs": use_jobs,
    "board": use_board,
    "approvals": use_approvals,
    "processes": use_processes,
    "undo": use_undo,
    "memory": use_memory,
    "config": use_config,
}


def race(use: Callable[[Home], None], home: Home, processes: int) -> list[str]:
    """Let the processes run at once; returns what went wrong in each."""
    gate, opener = os.pipe()
    reports = []
    for _ in range(processes):
        report, to_report = os.pipe()
        if os.fork() == 0:
            os.close(opener)
            os.read(gate, 1)
            problem = ""
            try:
                use(home)
            except BaseException:  # noqa: BLE001 - whatever it is, it is reported
                problem = traceback.format_exc()
            os.write(to_report, problem.encode()[-4000:])
            os._exit(0)
        os.close(to_report)
        reports.append(report)
    os.close(opener)
    os.close(gate)
    problems = []
    for report in reports:
        with os.fdopen(report, "rb") as stream:
            problems.append(stream.read().decode())
    for _ in range(processes):
        os.wait()
    return problems


def main() -> None:
    for line in sys.stdin:
        wanted = json.loads(line)
        problems = race(STORES[wanted["store"]], Home(Path(wanted["home"])), wanted["processes"])
        print(json.dumps(problems), flush=True)


if __name__ == "__main__":
    main()
