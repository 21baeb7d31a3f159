"""The function that decides: effects, modes, entry points, backends, and what nothing overrides."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.approval.approval_cases import HOME, POLICY, WORKSPACE, do, run, with_rules
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.grants import Grant, grant_for, may_be_permanent, suggest
from toolcrib.approval.paths import SensitivePaths
from toolcrib.approval.policy import Action, decide
from toolcrib.core.approvals import ApprovalRequest
from toolcrib.core.types import Effect

BLOCKED = ["rm -rf /", "mkfs.ext4 /dev/sda1", "sudo rm -rf --no-preserve-root /", ":(){ :|:& };:"]
LENIENT = {
    "yolo": replace(POLICY, yolo=True),
    "mode off": replace(POLICY, mode="off"),
    "entry point": replace(POLICY, answer="allow"),
    "isolated": replace(POLICY, backend="docker", isolated=True),
}
DANGEROUS = [
    json.loads(line)["command"]
    for line in (Path(__file__).parent / "data" / "corpus_dangerous.jsonl").read_text().splitlines()[:400]
]


@pytest.mark.parametrize("command", ["ls -la", "git status", "echo hello > out.txt", "python -m pytest -q"])
def test_a_harmless_command_runs_without_a_question(command):
    """Calls that a person would be annoyed to be asked about are allowed, with nothing to record."""
    decision = run(command)
    assert (decision.outcome, decision.decided_by, decision.dangers) == ("allow", "nothing", ())


def test_a_dangerous_command_is_asked_about_with_its_words():
    """The question carries rule, scope and paths; the reason quotes the words behind it."""
    decision = run("ls && rm -rf dist")
    (danger,) = decision.dangers
    assert (decision.outcome, danger.rule, danger.scope) == ("ask", "recursive_delete", "inside the workspace")
    assert decision.command[slice(*danger.span)] == "rm -rf dist"
    assert "`rm -rf dist`" in decision.reasons[0]


@pytest.mark.parametrize("command", BLOCKED)
@pytest.mark.parametrize("policy", LENIENT.values(), ids=LENIENT.keys())
def test_a_catastrophic_command_is_denied_whatever_is_switched_off(command, policy):
    """Neither yolo, nor a mode, nor a backend, nor a grant overrides a block."""
    decision = run(command, "recursive delete", "filesystem format", "fork bomb", "*", policy=policy)
    assert (decision.outcome, decision.decided_by) == ("deny", "block")
    assert "no approval can allow it" in decision.reasons


@pytest.mark.parametrize("policy", LENIENT.values(), ids=LENIENT.keys())
@pytest.mark.parametrize("command", ["git push origin main", "sudo git push", "sh -c 'git push'", "ls; git  push"])
def test_a_deny_rule_holds_whatever_is_switched_off(command, policy):
    """The user's deny rules check every command of the line, including wrapped ones."""
    ruled = replace(policy, rules=with_rules("deny git push").rules)
    assert run(command, "*", policy=ruled).decided_by == "user_rule"
    assert run(command, "*", policy=ruled).outcome == "deny"
    patterned = replace(policy, deny=("git push*",))
    assert run(command, "*", policy=patterned).outcome == "deny"


@pytest.mark.parametrize(
    ("policy", "outcome", "decided_by"),
    [
        (POLICY, "ask", ""),
        (replace(POLICY, mode="smart"), "ask", ""),
        (LENIENT["yolo"], "allow", "yolo"),
        (LENIENT["mode off"], "allow", "mode"),
        (LENIENT["entry point"], "allow", "entry_point"),
        (LENIENT["isolated"], "allow", "backend"),
        (replace(POLICY, answer="deny"), "deny", "entry_point"),
        (replace(POLICY, attended=False), "deny", "nobody"),
    ],
)
def test_who_decides_about_a_danger(policy, outcome, decided_by):
    """Mode, switch, backend and entry point decide in this order; no one to ask means no."""
    decision = run("rm -rf dist", policy=policy)
    assert (decision.outcome, decision.decided_by) == (outcome, decided_by)
    assert [danger.rule for danger in decision.dangers] == ["recursive_delete"]


@pytest.mark.parametrize("policy", [replace(POLICY, attended=False), replace(POLICY, answer="deny"), POLICY])
@pytest.mark.parametrize("command", ["rm -rf dist", "rm -rf /", f"echo x >> {HOME}/.toolcrib/config.yaml"])
def test_a_denial_names_no_switch(policy, command):
    """What the model reads does not tell it how to turn the gate off."""
    said = " ".join(run(command, policy=policy).reasons).lower()
    assert not any(word in said for word in ("yolo", "approvals", "allowlist", "mode", "--", "toolcrib_", "hermes_"))


@pytest.mark.parametrize(
    "command", ["git push --force", "aws s3 rb s3://bucket --force", "kubectl delete ns prod", "psql -c 'drop table a'"]
)
def test_an_isolated_backend_is_still_asked_about_what_leaves_it(command):
    """A container keeps deletions inside; a remote repository, cluster or database is outside it."""
    assert run(command, policy=LENIENT["isolated"]).outcome == "ask"


def test_what_cannot_be_read_might_be_what_a_rule_denies():
    """With a deny rule, a command that is known only at run time needs approval even under yolo."""
    hidden = 'eval "$X"'
    assert run(hidden, policy=LENIENT["yolo"]).outcome == "allow"
    for policy in LENIENT.values():
        ruled = replace(policy, rules=with_rules("deny git push").rules)
        assert run(hidden, policy=ruled).outcome == "ask"
        assert run(hidden, policy=replace(ruled, attended=False)).outcome == "deny"


@pytest.mark.parametrize(
    ("effect", "outcome", "rule"),
    [
        (Effect("write", "a.txt"), "allow", ""),
        (Effect("write", f"{WORKSPACE}/sub/a.txt"), "allow", ""),
        (Effect("delete", "a.txt"), "allow", ""),
        (Effect("write", "../other/a.txt"), "ask", "write_outside_workspace"),
        (Effect("delete", "/data/a.txt"), "ask", "delete_outside_workspace"),
        (Effect("write", "sub/../../x"), "ask", "write_outside_workspace"),
        (Effect("write"), "ask", "write_somewhere"),
        (Effect("write", ".git/hooks/pre-commit"), "ask", "write_delicate"),
        (Effect("write", ".GIT/Hooks/pre-commit"), "ask", "write_delicate"),
        (Effect("write", ".env"), "ask", "write_delicate"),
        (Effect("write", "~/.bashrc"), "deny", "sensitive_path"),
        (Effect("write", "~/.toolcrib/config.yaml"), "deny", "sensitive_path"),
        (Effect("read", "/etc/hosts"), "allow", ""),
        (Effect("read", "~/.ssh/id_ed25519"), "ask", "credential"),
        (Effect("network", "example.org"), "allow", ""),
        (Effect("interactive"), "allow", ""),
        (Effect("publish", "the list"), "ask", "publish"),
        (Effect("spend"), "ask", "spend"),
        (Effect("secret"), "ask", "secret"),
    ],
)
def test_what_each_effect_means(effect, outcome, rule):
    """Effects decide, whatever the tool is called."""
    decision = do(effect)
    assert (decision.outcome, decision.dangers[0].rule if decision.dangers else "") == (outcome, rule)


@pytest.mark.parametrize(
    ("effect", "outcome", "rule"),
    [
        (Effect("write", "a.txt", "/work", "ssh", workspace="/work"), "allow", ""),
        (Effect("write", "/opt/a.txt", "/work", "ssh", workspace="/work"), "ask", "write_outside_workspace"),
        (Effect("write", f"{WORKSPACE}/a.txt", "/work", "ssh", workspace="/work"), "ask", "write_outside_workspace"),
        (Effect("write", "/etc/passwd", "/work", "ssh", workspace="/work"), "deny", "sensitive_path"),
        (Effect("read", "/home/user/.ssh/id_rsa", "/work", "ssh"), "ask", "credential"),
        (Effect("write", "/opt/a.txt", "/", "docker", isolated=True), "allow", "write_outside_workspace"),
        (Effect("write", "/etc/passwd", "/", "docker", isolated=True), "allow", "sensitive_path"),
        (Effect("read", "/root/.ssh/id_rsa", "/", "docker", isolated=True), "allow", "credential"),
    ],
)
def test_files_of_another_place_are_judged_there(effect, outcome, rule):
    """Another machine's own workspace counts, not ours; if nothing can leave it, no one is asked."""
    decision = do(effect)

    assert decision.outcome == outcome
    assert [danger.rule for danger in decision.dangers] == ([rule] if rule else [])


def test_a_handler_on_this_machine_is_asked_about_whatever_backend_commands_have():
    """Commands running in a container say nothing about a tool that writes here."""
    assert do(Effect("write", "/data/a.txt"), policy=LENIENT["isolated"]).outcome == "ask"


def test_publishing_and_spending_are_asked_about_in_isolated_backends_too():
    """These effects reach outside, wherever they run."""
    for kind in ("publish", "spend", "secret"):
        assert do(Effect(kind), policy=LENIENT["isolated"]).outcome == "ask"


def test_an_mcp_tool_without_declared_effects_is_asked_about():
    """Undeclared effects mean ask for MCP tools, and trust for others."""
    asked = decide(POLICY, Action(tool="remote", effects=None, mcp_server="far"), (), read_command)
    trusted = decide(POLICY, Action(tool="ours", effects=None), (), read_command)
    assert (asked.outcome, asked.dangers[0].scope, trusted.outcome) == ("ask", "by remote", "allow")


@pytest.mark.parametrize(
    "command",
    [
        "toolcrib config set approvals.mode off",
        "python -m toolcrib config set approvals.mode off",
        "t''oolcrib config set approvals.mode off",
        f"sh -c 'echo x > {HOME}/.toolcrib/config.yaml'",
        f"cp evil.yaml {HOME}/.toolcrib/config.yaml",
        f"cd {HOME}/.toolcrib && echo x >> config.yaml",
    ],
)
def test_the_gate_s_own_settings_are_out_of_reach(command):
    """No command changes what later sessions are allowed to do, even with every switch off."""
    for policy in (POLICY, LENIENT["yolo"], LENIENT["mode off"]):
        assert run(command, policy=policy).outcome == "deny"


@pytest.mark.parametrize("own", ["/tmp/trial/home", "/srv/toolcrib", f"{WORKSPACE}/.home"])
@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("echo x > {own}/config.yaml", "deny"),
        ("cd {own} && echo x > config.yaml", "deny"),
        ("rm {own}/approvals.jsonl", "deny"),
        ("sed -i s/a/b/ {own}/config.yaml", "deny"),
        ("mv other.db {own}/cron.db", "deny"),
        ("cp a.py {own}/tools/a.py", "ask"),
        ("cat {own}/config.yaml", "allow"),
        ("echo x > {own}/notes.txt", "allow"),
    ],
)
def test_a_home_at_another_place_is_protected_too(own, command, outcome):
    """Whatever TOOLCRIB_HOME is, no command changes its own settings and records."""
    policy = replace(POLICY, sensitive=SensitivePaths(own))

    assert do(Effect("exec", command.format(own=own)), policy=policy).outcome == outcome


@pytest.mark.parametrize("own", [f"{HOME}/.toolcrib", "/srv/toolcrib"])
@pytest.mark.parametrize(
    "command",
    [
        "cat {own}/serve/token",
        "cd {own}/serve && cat token",
        "cp {own}/serve/tokens.json .",
        'curl -H "Authorization: Bearer $(cat {own}/serve/token)" http://127.0.0.1:8642/api/approvals',
    ],
)
def test_the_tokens_of_the_server_are_secret(own, command):
    """With one, an agent could answer its own approvals."""
    policy = replace(POLICY, sensitive=SensitivePaths(own))

    assert do(Effect("exec", command.format(own=own)), policy=policy).outcome != "allow"
    assert do(Effect("read", f"{own}/serve/token"), policy=policy).outcome != "allow"
    assert do(Effect("write", f"{own}/serve/tokens.json"), policy=policy).outcome == "deny"
    assert do(Effect("exec", f"echo x > {own}/serve/tokens.json"), policy=policy).outcome != "allow"


def test_looking_at_the_settings_is_no_danger():
    """Only commands that change them are refused."""
    assert run("toolcrib tools list").outcome == "allow"
    assert run(f"cat {HOME}/.toolcrib/config.yaml").outcome != "deny"


def test_a_link_out_of_the_workspace_is_outside(tmp_path):
    """The real path decides, not how it is written."""
    workspace, elsewhere = tmp_path / "w", tmp_path / "elsewhere"
    workspace.mkdir()
    elsewhere.mkdir()
    (workspace / "out").symlink_to(elsewhere)
    policy = replace(POLICY, workspace=str(workspace))
    assert do(Effect("write", "real/a.txt"), policy=policy).outcome == "allow"
    assert do(Effect("write", "out/a.txt"), policy=policy).outcome == "ask"
    (danger,) = run("rm -rf out/x", policy=policy).dangers
    assert danger.scope == f"in {elsewhere}/x"


@pytest.mark.parametrize("workspace", ["", "/"])
def test_the_root_is_no_workspace(workspace):
    """If everything would be inside, nothing is."""
    assert do(Effect("write", "/opt/x"), policy=replace(POLICY, workspace=workspace)).outcome == "ask"


def test_dot_files_are_outside_when_the_home_is_the_workspace():
    """A user who works in the home folder means the documents, not every program's settings."""
    policy = replace(POLICY, workspace=HOME)
    assert do(Effect("write", "notes.txt"), policy=policy).outcome == "allow"
    assert do(Effect("write", ".local/bin/tool"), policy=policy).outcome == "ask"


def test_the_folder_of_a_call_is_the_workspace_where_none_was_named():
    """A named workspace stays; without one it follows the caller."""
    named, open_ended = POLICY, replace(POLICY, workspace_follows_cwd=True)
    effect = (Effect("write", "a.txt"),)
    for policy, outcome in ((named, "ask"), (open_ended, "allow")):
        action = Action(tool="t", effects=effect, cwd="/srv/other")
        assert decide(policy, action, (), read_command).outcome == outcome


@given(st.sampled_from(DANGEROUS), st.sampled_from(DANGEROUS))
@settings(max_examples=150, deadline=None)
def test_what_is_suggested_allows_the_same_command_and_no_other_danger(command, other):
    """Deciding again with the suggested lines allows the command; a second danger beside it still needs approval."""
    asked = run(command)
    if asked.outcome != "ask":
        return
    lines = suggest(ApprovalRequest(id="1", tool="terminal", command=command, dangers=asked.dangers))
    if not lines:
        return
    assert run(command, *lines).outcome == "allow"
    more = run(other)
    granted = {(danger.rule, danger.scope) for danger in asked.dangers}
    new = {(danger.rule, danger.scope) for danger in more.dangers} - granted
    if more.outcome == "ask" and all(not scope.startswith("in /") for _, scope in new) and new:
        assert run(other, *lines).outcome == "ask"


@given(st.sampled_from(DANGEROUS))
@settings(max_examples=100, deadline=None)
def test_a_session_answer_covers_the_command_that_it_was_given_for(command):
    """Whatever the danger, its own grant covers it: no one is asked twice about the same words."""
    from toolcrib.approval.grants import grant_for

    asked = run(command)
    if asked.outcome == "ask":
        assert run(command, *(grant_for(danger).text for danger in asked.dangers)).outcome == "allow"


SKILL = f"{HOME}/.toolcrib/skills/brew/SKILL.md"


def keep(*effects, policy=POLICY, is_builtin=True, tool="skill_manage", grants=()):
    action = Action(tool=tool, effects=effects, is_builtin=is_builtin)
    return decide(policy, action, [Grant(text) for text in grants], read_command)


@pytest.mark.parametrize("kind", ["write", "delete"])
def test_the_tool_for_skills_may_change_skills_without_a_question(kind):
    """The tool checks what it writes; other tools, and a foreign tool of the same name, need approval."""
    assert keep(Effect(kind, SKILL)).outcome == "allow"
    assert keep(Effect(kind, SKILL), policy=replace(POLICY, attended=False)).outcome == "allow"
    assert keep(Effect(kind, SKILL), is_builtin=False).outcome == "ask"
    assert keep(Effect(kind, SKILL), tool="write_file").outcome == "ask"
    assert keep(Effect(kind, SKILL), tool="write_file").dangers[0].rule == f"{kind}_delicate"
    assert keep(Effect(kind, f"{HOME}/.toolcrib/tools/x.py")).outcome == "ask"
    assert keep(Effect(kind, f"{HOME}/.toolcrib/config.yaml")).outcome == "deny"
    assert keep(Effect(kind, f"{HOME}/notes.md")).outcome == "ask"


def test_rules_of_the_user_hold_for_the_tool_for_skills_too():
    """A user can require approval for writing skills."""
    assert keep(Effect("write", SKILL), policy=with_rules("deny tool:skill_manage")).outcome == "deny"


def test_a_caution_is_asked_about_anywhere():
    """A tool's own caution reaches the person in its words, even inside the workspace."""
    for path in (SKILL, f"{WORKSPACE}/a.md"):
        decision = keep(Effect("write", path, caution="it has the command `rm -rf build`"))
        assert decision.outcome == "ask"
        assert "`rm -rf build`" in decision.reasons[0]
    assert keep(Effect("write", SKILL, caution="x"), policy=replace(POLICY, attended=False)).outcome == "deny"


def test_a_yes_to_one_caution_is_none_to_another():
    """The scope of the question is the path with its caution."""
    first = keep(Effect("write", SKILL, caution="one")).dangers[0]
    second = keep(Effect("write", SKILL, caution="two")).dangers[0]
    assert first.scope != second.scope


def test_what_is_agreed_to_for_a_server_does_not_hold_for_another():
    """Allowing this kind of call everywhere covers only the tools of the server that asked."""
    near = decide(POLICY, Action(tool="mcp__near__a", effects=None, mcp_server="near"), (), read_command)
    everywhere = grant_for(near.dangers[0], every_scope=True)

    def outcome(server):
        action = Action(tool=f"mcp__{server}__b", effects=None, mcp_server=server)
        return decide(POLICY, action, (everywhere,), read_command).outcome

    assert (outcome("near"), outcome("far"), outcome("nearby")) == ("allow", "ask", "ask")


@pytest.mark.parametrize(
    ("effects", "outcome"),
    [
        ((), "allow"),
        ((Effect("read", "a.txt"),), "allow"),
        ((Effect("network", "example.org"), Effect("interactive")), "allow"),
        ((Effect("remote", "42", action="read"),), "allow"),
        ((Effect("write", "a.txt"),), "deny"),
        ((Effect("read", "a.txt"), Effect("delete", "a.txt")), "deny"),
        ((Effect("exec", "ls -la src | head -3"),), "allow"),
        ((Effect("exec", "git log --oneline && grep -rn x . 2> /dev/null"),), "allow"),
        ((Effect("exec", "ls", "/work", "docker", True),), "allow"),
        ((Effect("exec", "ls > files.txt"),), "deny"),
        ((Effect("exec", "cat a; touch b"),), "deny"),
        ((Effect("exec", "make test"),), "deny"),
        ((Effect("exec", "kill 4711"),), "deny"),
        ((Effect("exec", "git reflog expire --all"),), "deny"),
        ((Effect("exec", "ls $(unknown)"),), "deny"),
        ((Effect("exec", "cat", caution="types into 'vi'"),), "deny"),
        ((Effect("remote", "42", action="update"),), "deny"),
        ((Effect("schedule", "x"),), "deny"),
        ((Effect("process", "proc_1"),), "deny"),
        (None, "deny"),
    ],
)
def test_plan_mode_allows_only_what_reads_whatever_is_switched_off(effects, outcome):
    """A tool that does not say what it does might change something; neither yolo nor a grant makes it run."""
    policy = replace(POLICY, session_mode="plan", yolo=True, mode="off")
    decision = decide(policy, Action(tool="x", effects=effects, cwd=WORKSPACE), [Grant("*")], read_command)
    assert decision.outcome == outcome
    assert outcome == "allow" or "plan mode allows only tools and commands that read" in decision.reasons[-1]


@pytest.mark.parametrize("mode", ["ask", "auto-edit"])
def test_ending_a_process_of_the_session_is_not_asked_about(mode):
    """Only plan mode refuses it."""
    decision = do(Effect("process", "proc_1"), tool="process", policy=replace(POLICY, session_mode=mode))
    assert decision.outcome == "allow"


@pytest.mark.parametrize("mode", ["ask", "auto-edit"])
@pytest.mark.parametrize("kind", ["write", "delete"])
def test_ask_mode_asks_about_edits_in_the_workspace(mode, kind):
    """For the rest of the session if the person likes, but never for ever: the mode says how long."""
    action = Action(tool="x", effects=(Effect(kind, "a.txt"),), cwd=WORKSPACE)
    decision = decide(replace(POLICY, session_mode=mode), action, [], read_command)
    assert decision.outcome == ("ask" if mode == "ask" else "allow")
    if mode == "ask":
        (danger,) = decision.dangers
        granted = decide(replace(POLICY, session_mode=mode), action, [grant_for(danger)], read_command)
        assert granted.outcome == "allow"
        assert not may_be_permanent(decision.dangers)
        assert decide(replace(POLICY, session_mode=mode, yolo=True), action, [], read_command).outcome == "allow"
