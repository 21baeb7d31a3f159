"""The user's rules: how they are parsed, and what they match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.approval.approval_cases import HOME, POLICY, WORKSPACE, do, run, with_rules
from toolcrib.approval.user_rules import parse_rule
from toolcrib.config.load import check_settings, load_settings
from toolcrib.config.paths import Home
from toolcrib.core.types import Effect


@pytest.mark.parametrize(
    "text",
    ["allow rm", "deny git push --force|-f", "ask npm install in workspace", "deny * in ~/photos", "allow tool:mcp_*"],
)
def test_a_rule_reads_as_it_is_written(text):
    """A rule survives the round trip to text and back."""
    assert str(parse_rule(text)) == text


@pytest.mark.parametrize("text", ["", "allow", "permit rm", "allow in workspace", "deny rm in"])
def test_a_slip_is_no_rule(text):
    """A rule that would mean everything by accident is refused, with the expected form."""
    with pytest.raises(ValueError, match="a rule like"):
        parse_rule(text)


def config(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    return Home(tmp_path)


def test_the_config_takes_lines_and_mappings(tmp_path):
    """Both forms mean the same, and are stored as lines."""
    home = config(
        tmp_path,
        "approvals:\n  mode: off\n  rules:\n    - deny git push --force\n"
        "    - {allow: rm, flags: [-r], in: workspace}\n"
        "command_allowlist:\n  - recursive delete\n  - {rule: destructive SQL, scope: this database psql}\n",
    )
    settings = load_settings(home, {})
    assert settings.approvals.mode == "off"
    assert settings.approvals.rules == ["deny git push --force", "allow rm -r in workspace"]
    assert settings.command_allowlist == ["recursive delete", "destructive SQL (this database psql)"]


@pytest.mark.parametrize(
    "text",
    [
        "approvals: {mode: sometimes}",
        "approvals: {rules: [forbid rm]}",
        "approvals: {rules: [{deny: rm, when: never}]}",
        "approvals: {policies: {cron: maybe}}",
        "approvals: {timeout: 0}",
        "command_allowlist: [{scope: this host}]",
        "command_allowlist: [3]",
        "yolo: true",
    ],
)
def test_a_wrong_entry_is_an_error_of_the_config(tmp_path, text):
    """Nothing about approvals is guessed or ignored; the config file has no switch for yolo."""
    assert check_settings(config(tmp_path, text + "\n"))


@pytest.mark.parametrize(
    ("rule", "command", "outcome"),
    [
        ("allow rm", "rm -rf dist", "allow"),
        ("allow rm in workspace", "rm -rf dist", "allow"),
        ("allow rm in workspace", "rm -rf /data/x", "ask"),
        ("allow rm in workspace", "rm -rf dist /data/x", "ask"),
        ("allow rm in workspace", "rm -rf $X", "ask"),
        ("allow rm -r in workspace", "rm -rf dist", "allow"),
        ("allow rm in /data", "rm -rf /data/x", "allow"),
        ("allow rm in /data", "rm -rf /database", "ask"),
        ("allow rm in /data", "rm -rf /data/../home", "deny"),
        ("allow rm in ~/tmp*", f"rm -rf {HOME}/tmp1/x", "allow"),
        ("allow rm", "rm -rf dist; curl x | sh", "ask"),
        ("allow rm", "sudo rm -rf dist", "ask"),
        ("allow rm", "timeout 5 rm -rf dist", "allow"),
        ("allow rm", "ssh host rm -rf dist", "ask"),
        ("allow rm", "sh -c 'rm -rf dist'", "allow"),
        ("allow rm", "rm -rf /", "deny"),
        ("allow rm", "cp /bin/rm ./rm2; ./rm2 -rf dist; rm -rf a > /etc/hosts", "ask"),
        ("allow git push", "git push --force", "allow"),
        ("allow git push", "git reset --hard", "ask"),
        ("allow git push", "git -C other push --force", "allow"),
        ("ask npm install", "npm install left-pad", "ask"),
        ("ask npm install", "npm test", "allow"),
        ("ask ls in /secret", "ls /secret/x", "ask"),
        ("ask ls in /secret", "ls /public", "allow"),
        ("deny git push --force|-f", "git push -f", "deny"),
        ("deny git push --force|-f", "git push", "allow"),
        ("deny rm in ~/photos", f"rm {HOME}/photos/a.jpg", "deny"),
        ("deny rm in ~/photos", f"cd {HOME}/photos && rm a.jpg", "deny"),
        ("deny rm in ~/photos", "rm a.jpg", "allow"),
        ("deny * in ~/photos", f"mogrify {HOME}/photos/a.jpg", "deny"),
        ("deny g?t push", "git push", "deny"),
        ("deny curl", "/usr/bin/curl x", "deny"),
        ("deny curl", "X=curl; $X http://a", "deny"),
        ("deny curl", "echo curl", "allow"),
    ],
)
def test_what_a_rule_matches(rule, command, outcome):
    """Rules check the words of each command after quoting and wrapping, and its paths."""
    assert run(command, policy=with_rules(rule)).outcome == outcome


def test_deny_wins_over_ask_and_ask_over_allow():
    """The order of the rules does not matter, their strictness does."""
    assert run("rm -rf dist", policy=with_rules("allow rm", "ask rm", "deny rm")).outcome == "deny"
    assert run("rm -rf dist", policy=with_rules("allow rm", "ask rm")).outcome == "ask"


def test_a_wrapper_can_be_allowed_as_well():
    """Rules that allow sudo and rm allow both together."""
    assert run("sudo rm -rf dist", policy=with_rules("allow sudo", "allow rm in workspace")).outcome == "allow"


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ("allow tool:post_*", "allow"),
        ("allow tool:other", "ask"),
        ("deny tool:post_message", "deny"),
        ("ask tool:post_message", "ask"),
    ],
)
def test_a_rule_can_speak_of_a_tool(rule, outcome):
    """`tool:` names tools that are not commands."""
    assert do(Effect("publish"), tool="post_message", policy=with_rules(rule)).outcome == outcome


def test_a_rule_about_a_tool_is_no_rule_about_its_commands():
    """Allowing the terminal does not allow every command in it."""
    assert run("rm -rf dist", policy=with_rules("allow tool:terminal")).outcome == "ask"
    assert run("ls", policy=with_rules("deny tool:terminal")).outcome == "deny"


def test_a_tool_may_be_allowed_in_one_place():
    """With a location, every path of the call must be there."""
    policy = with_rules("allow tool:writer in /data")
    assert do(Effect("write", "/data/a"), tool="writer", policy=policy).outcome == "allow"
    assert do(Effect("write", "/data/a"), Effect("write", "/other/a"), tool="writer", policy=policy).outcome == "ask"
    assert do(Effect("write", "~/.ssh/config"), tool="writer", policy=with_rules("allow tool:*")).outcome == "deny"


@pytest.mark.parametrize(
    ("pattern", "command", "denied"),
    [
        ("git push*", "git push --force", True),
        ("GIT PUSH*", "git   push", True),
        ("git push*", "ls; git push", True),
        ("git push*", "sudo git push", True),
        ("git push*", "git 'pu'sh", True),
        ("git push*", "echo git push", False),
        ("*secret*", "cat secret.txt", True),
    ],
)
def test_patterns_to_deny_are_held_against_every_command(pattern, command, denied):
    """Case, quotes, spaces and wrappers do not matter."""
    from msgspec.structs import replace

    assert (run(command, policy=replace(POLICY, deny=(pattern,))).outcome == "deny") is denied


@given(st.text(max_size=60))
def test_any_text_is_a_rule_or_a_clear_error(text):
    """Parsing a rule fails in no other way, and every parsed rule can be matched."""
    try:
        rule = parse_rule(text)
    except ValueError:
        return
    assert run("rm -rf dist", policy=with_rules(str(rule))).outcome in ("allow", "ask", "deny")
    assert WORKSPACE
