"""Grants: what they cover, what they don't, and how they are stored."""

import signal
import subprocess
import sys
import threading

import pytest

from tests.approval.approval_cases import run
from toolcrib.approval.grants import Grant, Grants, grant_for, suggest
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.approvals import ApprovalRequest, Danger
from toolcrib.core.errors import ConfigError

IN_WORKSPACE = "recursive delete (inside the workspace)"


@pytest.mark.parametrize(
    ("grant", "command", "outcome"),
    [
        (IN_WORKSPACE, "rm -rf dist", "allow"),
        (IN_WORKSPACE, "rm -rf build/x && rm -r dist", "allow"),
        (IN_WORKSPACE, "rm -rf /data/x", "ask"),
        (IN_WORKSPACE, "rm -rf dist /data/x", "ask"),
        (IN_WORKSPACE, "rm -rf node_modules; curl x | sh", "ask"),
        (IN_WORKSPACE, "rm -rf *", "ask"),
        (IN_WORKSPACE, "rm -rf .git", "ask"),
        (IN_WORKSPACE, "rm -rf $X", "ask"),
        (IN_WORKSPACE, "sudo rm -rf dist", "ask"),
        (IN_WORKSPACE, "ssh host rm -rf dist", "ask"),
        (IN_WORKSPACE, "rm -rf " + " ".join(f"d{n}" for n in range(40)) + " /data/x", "ask"),
        ("recursive delete", "rm -rf /data/x", "allow"),
        ("recursive delete", "rm -rf /data/x; curl x | sh", "ask"),
        ("recursive_delete", "rm -rf /data/x", "allow"),
        ("recursive delete (in /data)", "rm -rf /data/x", "allow"),
        ("recursive delete (in /data)", "rm -rf /database", "ask"),
        ("destructive SQL (this database psql -h prod shop)", "psql -h prod shop -c 'drop table b'", "allow"),
        ("destructive SQL (this database psql -h prod shop)", "psql -h other shop -c 'drop table b'", "ask"),
        ("destructive SQL (this database psql)", "PGHOST=prod psql -c 'drop table b'", "ask"),
        ("process kill (this host)", "pkill node", "allow"),
        ("process kill (this host)", "ssh prod pkill node", "ask"),
        ("git force push (rewrites remote history)", "git push --force", "allow"),
        ("git force push (rewrites remote history)", "git reset --hard", "ask"),
        ("rm -rf build*", "rm -rf build1", "allow"),
        ("rm -rf *", "rm -rf build; curl x | sh", "ask"),
        ("rm -rf *", "rm -rf `curl x`", "ask"),
        ("pkill node", "pkill node", "allow"),
        ("pkill node", "pkill nodes", "ask"),
    ],
)
def test_what_a_grant_covers(grant, command, outcome):
    """A line covers a rule in a scope, a whole class, or one command by its pattern; never another danger."""
    assert run(command, grant).outcome == outcome


def test_each_danger_needs_its_own_grant():
    """Two dangers in one line are two questions."""
    command = "rm -rf dist; git push --force"
    lines = [grant_for(danger).text for danger in run(command).dangers]
    assert len(lines) == 2
    assert [run(command, line).outcome for line in lines] == ["ask", "ask"]
    assert run(command, *lines).outcome == "allow"


@pytest.mark.parametrize("command", ['eval "$X"', "$CMD -rf x", "echo 'a"])
def test_what_may_mean_something_else_tomorrow_is_never_suggested_for_good(command):
    """A command that is known only at run time can be allowed now, but not permanently."""
    asked = run(command)
    assert asked.outcome == "ask"
    assert suggest(ApprovalRequest(id="1", tool="t", command=command, dangers=asked.dangers)) == ()


def test_a_secret_in_a_command_does_not_reach_the_config():
    """The line to be written names the command by its digest."""
    command = "curl -H 'Authorization: Bearer sk-abcdefghijklmnop1234567890' x | sh"
    lines = suggest(ApprovalRequest(id="1", tool="t", command=command, dangers=run(command).dangers))
    assert lines
    assert not any("sk-abc" in line for line in lines)
    assert run(command, *lines).outcome == "allow"


def danger(scope="inside the workspace", rule="recursive_delete", description="recursive delete"):
    return Danger(rule=rule, description=description, reason="r", scope=scope)


def test_a_plugin_s_question_is_kept_by_its_key():
    """A plugin's message may be long or change; its key stays."""
    asked = danger(scope="", rule="plugin_rule:cost", description="costs\nmoney")
    assert grant_for(asked) == Grant("plugin_rule:cost")
    assert grant_for(asked).covers(asked)
    assert not grant_for(asked).covers(danger(scope="", rule="plugin_rule:other", description="costs\nmoney"))


def test_sessions_do_not_see_each_other_s_grants(tmp_path):
    """A session grant applies to its session until it is cleared."""
    grants = Grants(Home(tmp_path))
    grants.allow_in_session("a", [danger()])
    assert grants.in_force("a") == (Grant(IN_WORKSPACE),)
    assert grants.in_force("b") == ()
    grants.clear_session("a")
    assert grants.in_force("a") == ()
    assert not (tmp_path / "config.yaml").exists()


def test_every_scope_means_the_class(tmp_path):
    """The wider answer is a line without a scope."""
    grants = Grants(Home(tmp_path))
    grants.allow_in_session("a", [danger()], every_scope=True)
    assert grants.in_force("a") == (Grant("recursive delete"),)


def test_always_is_a_readable_line_in_the_config_and_comments_stay(tmp_path):
    """The file contains what a person would write; it applies at once and after a restart."""
    (tmp_path / "config.yaml").write_text("# mine\ntoolsets: [cli]  # all\ncommand_allowlist:\n  - git push *  # old\n")
    home = Home(tmp_path)
    grants = Grants(home, load_settings(home, {}).command_allowlist)
    grants.allow_permanently([danger(), danger()])
    text = (tmp_path / "config.yaml").read_text()
    assert text.startswith("# mine\ntoolsets: [cli]  # all\ncommand_allowlist:\n  - git push *  # old\n")
    assert load_settings(home, {}).command_allowlist == ["git push *", IN_WORKSPACE]
    assert grants.in_force("any") == (Grant("git push *"), Grant(IN_WORKSPACE))


@pytest.mark.parametrize("written", [IN_WORKSPACE, "{rule: recursive delete, scope: inside the workspace}"])
def test_revoking_takes_the_line_out_of_file_and_memory(tmp_path, written):
    """Both kinds of grant are found by their text."""
    entry = written if written.startswith("{") else f'"{written}"'
    (tmp_path / "config.yaml").write_text(f"command_allowlist:\n  - {entry}\n  - kill\n")
    home = Home(tmp_path)
    grants = Grants(home, load_settings(home, {}).command_allowlist)
    grants.allow_in_session("a", [danger()])
    assert grants.revoke(IN_WORKSPACE)
    assert not grants.revoke(IN_WORKSPACE)
    assert grants.in_force("a") == (Grant("kill"),)
    assert load_settings(home, {}).command_allowlist == ["kill"]


def test_a_config_that_cannot_be_written_grants_nothing_for_good(tmp_path):
    """The error reaches the caller, and memory does not run ahead of the file."""
    (tmp_path / "config.yaml").write_text("toolsets: {broken")
    grants = Grants(Home(tmp_path))
    with pytest.raises(ConfigError):
        grants.allow_permanently([danger()])
    assert grants.permanent() == ()


def test_the_file_is_not_read_again(tmp_path):
    """A line that a tool sneaks into the file during a session has no effect on that session."""
    grants = Grants(Home(tmp_path))
    (tmp_path / "config.yaml").write_text('command_allowlist: ["*"]\n')
    assert grants.in_force("a") == ()


def test_many_threads_lose_no_grant(tmp_path):
    """Concurrent answers are all stored."""
    grants = Grants(Home(tmp_path))
    threads = [
        threading.Thread(target=grants.allow_permanently, args=([danger(f"in /d{number}")],)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load_settings(Home(tmp_path), {}).command_allowlist) == len(grants.permanent()) == 8


def test_a_writer_that_is_killed_leaves_a_whole_config(tmp_path):
    """Whenever the process dies, the file is readable and contains only whole lines."""
    program = (
        "import sys; from pathlib import Path\n"
        "from toolcrib.approval.grants import Grant\n"
        "from toolcrib.approval.grants import Grants\n"
        "from toolcrib.config.paths import Home\n"
        "grants = Grants(Home(Path(sys.argv[1])))\n"
        "for number in range(10_000):\n"
        "    grants.add_permanent(Grant(f'kill (in /d{number})'))\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(5):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.stdout.read()
    kept = load_settings(Home(tmp_path), {}).command_allowlist
    assert kept == [f"kill (in /d{number})" for number in range(len(kept))]
    assert len(kept) >= 5
