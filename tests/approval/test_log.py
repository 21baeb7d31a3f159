"""The audit log: whole lines, one answer each, no secrets, whoever writes and dies."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.approval.audit_log import MAX_COMMAND_CHARS, ApprovalLog
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Danger

DANGER = Danger(rule="kill", description="process kill", reason="kills", scope="this host", span=(0, 5), paths=("/a",))


def request(number=1, command="pkill node", **more):
    return ApprovalRequest(id=f"id{number}", tool="terminal", command=command, dangers=(DANGER,), asked_at=5.0, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "approvals.jsonl"


@pytest.fixture
def log(path):
    return ApprovalLog(path)


def test_a_request_and_its_answer_are_read_back(log, path):
    """Questions and answers survive a restart, readable only by the owner."""
    asked = request(session_key="s", call_id="c", turn_id="t", cwd="/w", backend="docker", entry_point="gateway")
    log.requested(asked)
    assert ApprovalLog(path).pending() == [asked]
    assert log.answered("id1", ApprovalAnswer(choice="deny", reason="no", decided_by="user", every_scope=True))
    (record,) = ApprovalLog(path).records()
    assert record.request == asked
    assert record.answer == ApprovalAnswer(choice="deny", reason="no", decided_by="user", every_scope=True)
    assert record.answered_at > 0
    assert len(record.digest) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_decision_without_a_question_is_one_record(log):
    """Automatic decisions say who decided, and are not pending."""
    log.decided(request(), ApprovalAnswer(choice="deny", decided_by="block"))
    assert [record.answer.decided_by for record in log.records()] == ["block"]
    assert log.pending() == []


def test_a_request_is_answered_once(log, path):
    """A second answer is refused, even from another process; so is an answer to an unknown request."""
    other = ApprovalLog(path)
    log.requested(request())
    log.requested(request())
    assert other.answered("id1", ApprovalAnswer(choice="once"))
    assert not log.answered("id1", ApprovalAnswer(choice="deny"))
    assert not log.answered("unknown", ApprovalAnswer(choice="once"))
    assert [record.answer.choice for record in log.records()] == ["once"]


def test_many_writers_at_once_lose_nothing_and_one_answer_wins(path):
    """Lines of different writers never mix; of many answers to one request exactly one counts."""
    logs = [ApprovalLog(path) for _ in range(6)]
    logs[0].requested(request(0))
    won = []

    def write(number):
        for step in range(10):
            logs[number].requested(request(f"{number}-{step}", command="x" * 2000))
        if logs[number].answered("id0", ApprovalAnswer(choice="once", decided_by=str(number))):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(ApprovalLog(path).records()) == 61


def test_last_and_find(log):
    """The newest come first; a record is found by the beginning of its id."""
    for number in (1, 2, 12):
        log.requested(request(number))
    assert [record.id for record in log.last(2)] == ["id12", "id2"]
    assert [record.id for record in log.find("id1")] == ["id1", "id12"]


def test_secrets_are_masked_and_long_texts_are_cut(log, path):
    """The file contains a digest of the exact command, and no key."""
    key = "sk-abcdefghijklmnop1234567890"
    log.requested(request(1, command=f"curl -H 'x: {key}' a"))
    log.requested(request(2, command="y" * 1_000_000))
    log.answered("id1", ApprovalAnswer(choice="deny", reason=f"you used {key}"))
    text = path.read_text()
    assert key not in text
    first, second = log.records()
    assert "[secret]" in first.request.command
    assert "[secret]" in first.answer.reason
    assert len(second.request.command) < MAX_COMMAND_CHARS + 100
    assert max(len(line) for line in text.splitlines()) < 65_536
    assert first.digest != second.digest


@pytest.mark.parametrize(
    "torn", [b'{"v":1,"event":"requ', b"\xff\xfe", b'{"v":1}', b"[]", b"null", b'{"id":"id1","event":5}']
)
def test_a_line_that_was_left_half_costs_nothing_else(log, path, torn):
    """A partial or foreign line is skipped, and the next record starts on its own line."""
    log.requested(request(1))
    with path.open("ab") as stream:
        stream.write(torn)
    log.requested(request(2))
    log.answered("id1", ApprovalAnswer(choice="once"))
    assert [record.id for record in ApprovalLog(path).records()] == ["id1", "id2"]
    assert [asked.id for asked in ApprovalLog(path).pending()] == ["id2"]


@given(st.lists(st.binary(max_size=40), max_size=5), st.text(max_size=50))
@settings(max_examples=40, deadline=None)
def test_nothing_in_the_file_or_in_a_command_breaks_the_log(tmp_path_factory, rubbish, command):
    """Whatever the file contains, records can be added and read."""
    path = tmp_path_factory.mktemp("log") / "approvals.jsonl"
    path.write_bytes(b"\n".join(rubbish))
    log = ApprovalLog(path, masker=lambda: lambda text: text)
    log.requested(request(1, command=command))
    assert [record.request.command for record in log.records()] == [command]


def test_lone_surrogates_can_be_recorded(log):
    """A command need not be valid Unicode to be dangerous."""
    log.requested(request(1, command="rm -rf \udc80"))
    assert log.records()[0].request.command == "rm -rf \udc80"


def test_a_killed_writer_leaves_whole_records(path):
    """After kill -9 every confirmed record is there, and the log continues."""
    program = (
        "import sys; from pathlib import Path\n"
        "from toolcrib.approval.audit_log import ApprovalLog\n"
        "from toolcrib.core.approvals import ApprovalRequest\n"
        "log = ApprovalLog(Path(sys.argv[1]))\n"
        "for number in range(100_000):\n"
        "    log.requested(ApprovalRequest(id=f'k{number}', tool='t', command='x' * 500, dangers=()))\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(20):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        confirmed = 20 + len(child.stdout.read().splitlines())
    log = ApprovalLog(path)
    assert len(log.records()) >= confirmed
    log.requested(request(1))
    assert ApprovalLog(path).records()[-1].id == "id1"


def test_a_full_disk_is_an_error_of_the_writer_and_the_log_goes_on_afterwards(path):
    """A partial write raises, and the partial line is skipped later."""
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from toolcrib.approval.audit_log import ApprovalLog\n"
        "from toolcrib.core.approvals import ApprovalRequest\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))\n"
        "log = ApprovalLog(Path(sys.argv[1]))\n"
        "for number in range(100):\n"
        "    try:\n"
        "        log.requested(ApprovalRequest(id=f'k{number}', tool='t', command='x', dangers=()))\n"
        "    except OSError as error:\n"
        "        sys.exit(f'{number} {error}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    kept = int(done.stderr.split()[0])
    assert 0 < kept < 10
    ApprovalLog(path).requested(request(1))
    assert [record.id for record in ApprovalLog(path).records()] == [*(f"k{number}" for number in range(kept)), "id1"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_log(tmp_path, make):
    """A folder, a pipe or a device instead of the file is an immediate error, and never hangs."""
    make(tmp_path / "odd")
    for act in (
        lambda log: log.requested(request()),
        lambda log: log.decided(request(), ApprovalAnswer(choice="once")),
        lambda log: log.records(),
    ):
        with pytest.raises(OSError):
            act(ApprovalLog(tmp_path / "odd"))


def test_a_link_in_its_place_is_not_followed(tmp_path, path):
    """The log never writes to another file through a link."""
    victim = tmp_path / "victim"
    victim.write_text("")
    path.parent.mkdir()
    path.symlink_to(victim)
    with pytest.raises(OSError):
        ApprovalLog(path).decided(request(), ApprovalAnswer(choice="once"))
    assert victim.read_text() == ""


def test_a_log_that_was_removed_starts_anew(log, path):
    """Deleting the file loses the records, not the gate."""
    log.requested(request(1))
    assert log.records()
    path.unlink()
    assert log.records() == []
    log.requested(request(2))
    assert [record.id for record in log.records()] == ["id2"]


def test_lines_are_plain_json(log, path):
    """Other programs can read the file."""
    log.decided(request(), ApprovalAnswer(choice="once", decided_by="grant"))
    fields = json.loads(path.read_text())
    assert (fields["event"], fields["tool"], fields["choice"], fields["decided_by"]) == (
        "decided",
        "terminal",
        "once",
        "grant",
    )
