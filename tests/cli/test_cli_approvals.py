"""`toolcrib approvals`: what was asked, why, what would be asked, and what was allowed for good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_program import Program
from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Danger

DELETE = Danger(
    rule="recursive_delete",
    description="recursive delete",
    reason="deletes directories and everything in them",
    scope="inside the workspace",
    span=(0, 12),
    paths=("/work/build",),
)
UNKNOWN = Danger(rule="not_understood", description="command that is not understood", reason="no end of a quote")
GRANT = "recursive delete (inside the workspace)"

SHELL_TOOL = """
from toolcrib.core.types import Effect
from toolcrib.registry import registry

registry.register(
    name="shell", toolset="shell", handler=lambda args, **kw: "ran " + args["command"],
    schema={"description": "Runs a command.", "parameters": {
        "type": "object", "required": ["command"], "properties": {"command": {"type": "string"}}}},
    effects=lambda args, ctx: (Effect("exec", args["command"]),),
)
"""


def request(identity: str, *dangers: Danger, command: str = "rm -rf build") -> ApprovalRequest:
    return ApprovalRequest(
        id=identity, tool="terminal", command=command, dangers=dangers, session_key="s1", cwd="/work", asked_at=1.0
    )


@pytest.fixture
def log(toolcrib: Program) -> ApprovalLog:
    return ApprovalLog(toolcrib.home / "approvals.jsonl")


@pytest.mark.parametrize(
    ("line", "options", "verdict", "code"),
    [
        ("ls -la", (), "allow", 0),
        ("rm -rf build", (), "ask", 1),
        ("rm -rf /", (), "deny", 3),
        ("rm -rf build", ("--entry-point", "cron"), "deny", 3),
        ("rm -rf build", ("--entry-point", "library"), "deny", 3),
        ("rm -rf build", ("--backend", "docker"), "allow", 0),
        ("rm -rf build", ("--backend", "docker", "--host-mounts"), "ask", 1),
        ("rm -rf /", ("--backend", "docker"), "deny", 3),
        ("echo 'no end", (), "ask", 1),
        ("s3://backups/2026", ("--effect", "delete", "--tool", "bucket_delete"), "ask", 1),
        ("s3://backups/2026", ("--effect", "read"), "allow", 0),
        ("notes.txt", ("--effect", "write"), "allow", 0),
    ],
)
def test_a_command_is_judged_without_running(
    toolcrib: Program, tmp_path: Path, line: str, options: tuple[str, ...], verdict: str, code: int
) -> None:
    """The exit code says it too: 0 allowed, 1 asked about, 3 denied."""
    (tmp_path / "build").mkdir()

    outcome = toolcrib("approvals", "test", line, *options, "--json")

    assert (json.loads(outcome.stdout)["verdict"], outcome.code) == (verdict, code), outcome.stderr
    assert (tmp_path / "build").is_dir()


def test_the_test_says_why_and_what_would_allow_it(toolcrib: Program) -> None:
    """Every danger stands there with its scope and reason, and with the line that "always" would write."""
    outcome = toolcrib("approvals", "test", "rm -rf build; git push --force")

    assert outcome.stdout.startswith("ask: it needs your approval\n")
    assert f"{GRANT}: deletes directories" in outcome.stdout
    assert "git history rewrite" in outcome.stdout
    assert f"always allow  {GRANT}\n" in outcome.stdout


def test_a_block_is_called_a_block(toolcrib: Program) -> None:
    """The person reads that nothing lifts it, and is offered nothing."""
    outcome = toolcrib("approvals", "test", "rm -rf /")

    assert outcome.stdout.startswith("blocked: ")
    assert "nothing can allow it" in outcome.stdout
    assert "always allow" not in outcome.stdout


def test_the_settings_count(toolcrib: Program) -> None:
    """Rules, grants and the folder decide in the test as they do when a tool is called."""
    toolcrib.write(
        "config.yaml",
        f"command_allowlist:\n  - {GRANT}\napprovals:\n  deny: ['npm publish*']\n  rules: [allow git push --force]\n",
    )

    granted = toolcrib("approvals", "test", "rm -rf build", "--json")
    elsewhere = toolcrib("approvals", "test", "rm -rf /srv/data", "--json")
    second = toolcrib("approvals", "test", "rm -rf build; kill -9 -1", "--json")
    denied = toolcrib("approvals", "test", "npm publish")
    ruled = toolcrib("approvals", "test", "git push --force")

    assert (granted.code, json.loads(granted.stdout)["grants"]) == (0, [GRANT])
    assert elsewhere.code == 1
    assert second.code != 0
    assert denied.code == 3
    assert "the pattern 'npm publish*' denies it" in denied.stdout
    assert ruled.code == 0
    assert "your rules allow what is dangerous about it" in ruled.stdout


def test_no_questions_does_not_mean_no_blocks(toolcrib: Program) -> None:
    """The switch for questions changes an ask, and never a block."""
    asked = toolcrib("approvals", "test", "rm -rf build", TOOLCRIB_YOLO="1")
    blocked = toolcrib("approvals", "test", "rm -rf /", TOOLCRIB_YOLO="1")

    assert (asked.code, blocked.code) == (0, 3)


def test_the_words_of_a_command_cannot_play_tricks(toolcrib: Program) -> None:
    """What a terminal would obey is spelled out."""
    outcome = toolcrib("approvals", "test", "rm -rf \x1b[2Kbuild\u202e")

    assert "\x1b" not in outcome.stdout
    assert "\u202e" not in outcome.stdout


def test_a_wrong_option_is_a_wrong_command_line(toolcrib: Program) -> None:
    """Exit code 2 keeps its meaning."""
    assert toolcrib("approvals", "test", "ls", "--backend", "cloud").code == 2
    assert toolcrib("approvals", "test").code == 2


def test_the_list_shows_grants_and_the_newest_requests_first(toolcrib: Program, log: ApprovalLog) -> None:
    """What is allowed for good, and what was asked with its outcome."""
    toolcrib.write("config.yaml", f"command_allowlist: [{GRANT}]\n")
    log.requested(request("aa11", DELETE))
    log.answered("aa11", ApprovalAnswer(choice="deny", decided_by="user", reason="not today"))
    log.requested(request("bb22", DELETE))

    text = toolcrib("approvals", "list").stdout
    listed = json.loads(toolcrib("approvals", "list", "--json").stdout)
    waiting = json.loads(toolcrib("approvals", "list", "--pending", "--json").stdout)

    assert f"  {GRANT}\n" in text
    assert text.index("bb22") < text.index("aa11")
    assert listed["grants"] == [GRANT]
    assert [(row["id"], row["outcome"]) for row in listed["requests"]] == [
        ("bb22", "not answered yet"),
        ("aa11", "denied"),
    ]
    assert [row["id"] for row in waiting["requests"]] == ["bb22"]


def test_a_request_is_found_by_the_beginning_of_its_id(toolcrib: Program, log: ApprovalLog) -> None:
    """An unknown or doubtful id is refused with what to type."""
    for identity in ("aa11", "aa22", "bb33"):
        log.requested(request(identity, DELETE))

    shown = toolcrib("approvals", "show", "bb")
    newest = json.loads(toolcrib("approvals", "show", "last", "--json").stdout)
    doubtful = toolcrib("approvals", "show", "aa")
    unknown = toolcrib("approvals", "show", "bb34")

    assert "bb33" in shown.stdout
    assert GRANT in shown.stdout
    assert newest["id"] == "bb33"
    assert (doubtful.code, unknown.code) == (2, 2)
    assert "aa11, aa22" in doubtful.stderr
    assert "did you mean 'bb33'" in unknown.stderr


def test_secrets_stay_out_of_what_is_shown(toolcrib: Program, log: ApprovalLog) -> None:
    """The record masks them before they reach the disk."""
    key = "sk-abcdefghijklmnop1234"
    log.requested(request("aa11", DELETE, command=f"curl -H 'x: {key}' https://x"))

    assert key not in toolcrib("approvals", "show", "aa11").stdout
    assert key not in (toolcrib.home / "approvals.jsonl").read_text()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            ApprovalAnswer(choice="deny", decided_by="user", reason="not today"),
            ["denied: a person answered", "not today"],
        ),
        (ApprovalAnswer(choice="deny", decided_by="block"), ["blocked: it is catastrophic"]),
        (ApprovalAnswer(choice="deny", decided_by="nobody"), ["denied: nobody could be asked"]),
        (ApprovalAnswer(choice="timeout", decided_by="timeout"), ["not answered in time"]),
        (ApprovalAnswer(choice="once", decided_by="grant"), ["allowed once: you allowed this kind"]),
        (None, ["waiting for your approval"]),
    ],
)
def test_it_is_explained_why(
    toolcrib: Program, log: ApprovalLog, answer: ApprovalAnswer | None, said: list[str]
) -> None:
    """What it was, what became of it and who decided, in sentences."""
    log.requested(request("aa11", DELETE))
    if answer is not None:
        log.answered("aa11", answer)

    text = toolcrib("approvals", "explain", "last").stdout

    assert "terminal wanted to run `rm -rf build`" in text
    assert all(words in text for words in said), text
    assert ("Nothing ran" in text or "nothing has run" in text) is not (answer is not None and answer.allows)


def test_a_suggestion_can_be_added_and_taken_back(toolcrib: Program, log: ApprovalLog) -> None:
    """It is the line that "always" writes; comments in the config stay."""
    config = toolcrib.write("config.yaml", "# mine\ntoolsets: [cli]\n")
    log.requested(request("aa11", DELETE))

    only_said = toolcrib("approvals", "suggest")
    unchanged = config.read_text()
    added = toolcrib("approvals", "suggest", "aa11", "--add")
    after_adding = toolcrib("approvals", "test", "rm -rf build").code
    revoked = toolcrib("approvals", "revoke", GRANT)
    after_revoking = toolcrib("approvals", "test", "rm -rf build").code

    assert (only_said.stdout, only_said.code) == (f"{GRANT}\n", 0)
    assert unchanged == "# mine\ntoolsets: [cli]\n"
    assert (added.code, after_adding) == (0, 0)
    assert (revoked.code, after_revoking) == (0, 1)
    assert "# mine" in config.read_text()


@pytest.mark.parametrize(
    ("danger", "answer"),
    [
        (DELETE, ApprovalAnswer(choice="deny", decided_by="block")),
        (DELETE, ApprovalAnswer(choice="deny", decided_by="user_rule")),
        (UNKNOWN, ApprovalAnswer(choice="deny", decided_by="user")),
    ],
)
def test_what_cannot_be_allowed_for_good_is_not_suggested(
    toolcrib: Program, log: ApprovalLog, danger: Danger, answer: ApprovalAnswer
) -> None:
    """A block, a deny rule, and what may mean something else tomorrow; `--add` writes nothing."""
    log.requested(request("aa11", danger))
    log.answered("aa11", answer)

    outcome = toolcrib("approvals", "suggest", "aa11", "--add")

    assert (outcome.stdout, outcome.code) == ("", 1)
    assert not (toolcrib.home / "config.yaml").exists()


def test_only_what_was_granted_can_be_taken_back(toolcrib: Program) -> None:
    """A misspelt grant is answered with the nearest one."""
    toolcrib.write("config.yaml", f"command_allowlist: [{GRANT}]\n")

    outcome = toolcrib("approvals", "revoke", "recursive delete (inside the workspac)")

    assert outcome.code == 2
    assert f"did you mean {GRANT!r}" in outcome.stderr


def test_nothing_on_record_is_said_plainly(toolcrib: Program) -> None:
    """In an empty home, the list is empty and an explanation is refused."""
    listed = toolcrib("approvals", "list")
    explained = toolcrib("approvals", "explain")

    assert listed.code == 0
    assert "There are no requests yet." in listed.stdout
    assert explained.code == 2
    assert "there are no requests yet" in explained.stderr


def test_a_call_that_was_denied_can_be_explained(toolcrib: Program) -> None:
    """A real call of a tool that runs a command leaves its trace."""
    toolcrib.write("tools/shell.py", SHELL_TOOL)

    denied = toolcrib("tools", "run", "shell", '{"command": "rm -rf build"}')
    blocked = toolcrib("tools", "run", "shell", '{"command": "rm -rf /"}')
    records = json.loads(toolcrib("approvals", "list", "--json").stdout)["requests"]

    assert (denied.code, blocked.code) == (1, 1)
    assert [(row["command"], row["outcome"]) for row in records] == [
        ("rm -rf /", "blocked"),
        ("rm -rf build", "denied"),
    ]
    assert "nothing can allow it" in toolcrib("approvals", "explain", "last").stdout


MAIL_TOOL = """
from toolcrib import Effect, registry

parameters = {"type": "object", "properties": {"to": {"type": "string"}}}
effects = (Effect("publish", delicate={"/to": "destination"}),)
registry.register("send_mail", "mailer", {"parameters": parameters}, lambda args, **_: "sent", effects=effects)
"""


def test_the_reasoning_of_provenance_can_be_explained(toolcrib: Program) -> None:
    """The record of a call says for each delicate value where it came from, or that it was found nowhere."""
    toolcrib.write("tools/mailer.py", MAIL_TOOL)

    denied = toolcrib("tools", "run", "send_mail", '{"to": "eve@shade.example"}')
    explained = toolcrib("approvals", "explain", "last").stdout
    record = json.loads(toolcrib("approvals", "explain", "last", "--json").stdout)

    assert denied.code == 1
    assert "the destination 'eve@shade.example' (/to) was found neither in the user's words" in explained
    assert [(one["pointer"], one["vouched"]) for one in record["findings"]] == [("/to", False)]
