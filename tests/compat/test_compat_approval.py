"""`tools.approval`: the reference names over our gate. Each script runs in an interpreter of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NAMES = (
    "DANGEROUS_PATTERNS HARDLINE_PATTERNS DANGEROUS_PATTERNS_COMPILED HARDLINE_PATTERNS_COMPILED "
    "detect_dangerous_command detect_hardline_command check_dangerous_command check_all_command_guards "
    "check_execute_code_guard request_tool_approval request_elicitation_consent prompt_dangerous_approval "
    "approve_session approve_permanent is_approved load_permanent load_permanent_allowlist save_permanent_allowlist "
    "clear_session enable_session_yolo disable_session_yolo is_session_yolo_enabled is_current_session_yolo_enabled "
    "is_approval_bypass_active submit_pending register_gateway_notify unregister_gateway_notify "
    "resolve_gateway_approval has_blocking_approval set_current_session_key reset_current_session_key "
    "get_current_session_key set_hermes_interactive_context reset_hermes_interactive_context "
    "set_current_observability_context reset_current_observability_context"
)
START = "import json\nimport tools.approval as a\n"
SHELL_TOOL = """
from toolcrib.core.types import Effect
from tools.registry import registry

registry.register(
    name="shell", toolset="shell", handler=lambda args, **kw: "ran " + args["command"],
    schema={"description": "Runs a command.", "parameters": {
        "type": "object", "required": ["command"], "properties": {"command": {"type": "string"}}}},
    effects=lambda args, ctx: (Effect("exec", args["command"]),),
)
"""


@pytest.fixture
def script(compat, tmp_path: Path):
    """Runs a script and returns what it printed last, as JSON."""

    def run(body: str, **variables: str):
        file = tmp_path / "script.py"
        file.write_text(START + body)
        done = compat(str(file), **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_every_name_is_there(script):
    """A plugin that imports any of them finds it."""
    assert script(f"print(json.dumps([n for n in {NAMES.split()!r} if not hasattr(a, n)]))") == []


def test_the_hard_patterns_match_what_is_blocked(script):
    """Each row is a regex, and its class is blocked under that very name."""
    rows = script(
        "commands = ['rm -rf /', 'rm -rf /etc', 'mkfs.ext4 /dev/sda1', 'dd if=/dev/zero of=/dev/sda', "
        "'echo x > /dev/sda', ':(){ :|:& };:', 'kill -9 -1', 'reboot', 'init 0', 'systemctl poweroff']\n"
        "print(json.dumps([[bool(row[0].search(c)), row[1], a.detect_hardline_command(c)[1]]\n"
        "                  for c, row in zip(commands, a.HARDLINE_PATTERNS_COMPILED, strict=True)]))"
    )

    assert all(matched and description == found for matched, description, found in rows), rows


def test_detection_keeps_its_result(script):
    """`(is_dangerous, key, description)`, where the key is the description; `(is_hardline, description)`."""
    found = script(
        "print(json.dumps([a.detect_dangerous_command('rm -rf build'), a.detect_dangerous_command('ls'),\n"
        "                  a.detect_hardline_command('rm -rf /'), a.detect_hardline_command('ls')]))"
    )

    assert found == [
        [True, "recursive delete", "recursive delete"],
        [False, None, None],
        [True, "recursive delete"],
        [False, None],
    ]


def test_nobody_to_ask_means_no(script):
    """Without a person, a callback or a policy, what is dangerous does not run; what is harmless does."""
    harmless, dangerous = script(
        "print(json.dumps([a.check_all_command_guards('ls', 'local'),\n"
        "                  a.check_all_command_guards('rm -rf build', 'local')]))"
    )

    assert harmless["approved"] is True
    assert dangerous["approved"] is False
    assert (dangerous["pattern_key"], dangerous["outcome"]) == ("recursive delete", "denied")
    assert "no one is available to approve it" in dangerous["message"]


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("variables", [{}, {"HERMES_YOLO_MODE": "1"}, {"TOOLCRIB_YOLO": "1"}])
@pytest.mark.parametrize("backend", ["local", "docker", "modal"])
def test_nothing_goes_around_a_block(script, backend: str, variables: dict[str, str]):
    """No backend, switch, grant or friendly callback."""
    result = script(
        "a.approve_session('default', 'recursive delete'); a.approve_permanent('recursive delete')\n"
        "a.enable_session_yolo('default')\n"
        f"print(json.dumps(a.check_all_command_guards('rm -rf /', {backend!r}, lambda *x, **y: 'always')))",
        **variables,
    )

    assert (result["approved"], result["hardline"]) == (False, True)
    assert result["message"].startswith("BLOCKED (hardline):")


def test_a_deny_rule_says_so(script, home: Path):
    """The user's own rule is told apart from a block, and yolo does not lift it."""
    (home / "config.yaml").write_text("approvals:\n  deny: ['npm publish*']\n")

    result = script(
        "a.enable_session_yolo('default')\nprint(json.dumps(a.check_all_command_guards('npm publish', 'local')))"
    )

    assert (result["approved"], result["user_deny"]) == (False, True)


@pytest.mark.parametrize(
    ("said", "approved", "asked"),
    [("once", [True, True], 2), ("session", [True, True], 1), ("always", [True, True], 1), ("deny", [False] * 2, 2)],
)
def test_the_callback_answers(script, home: Path, said: str, approved: list[bool], asked: int):
    """Once asks again, session and always do not; always stands in the config, in words."""
    results, count = script(
        "asked = []\n"
        "def ask(command, description, *, allow_permanent=True):\n"
        f"    asked.append([command, description, allow_permanent]); return {said!r}\n"
        "results = [a.check_dangerous_command(c, 'local', ask) for c in ('rm -rf build', 'rm -rf dist')]\n"
        "assert asked[0] == ['rm -rf build', 'recursive delete', True], asked\n"
        "print(json.dumps([results, len(asked)]))"
    )

    config = home / "config.yaml"
    assert [result["approved"] for result in results] == approved
    assert results[0].get("user_approved", False) is approved[0]
    assert count == asked
    assert (
        ("recursive delete (inside the workspace)" in config.read_text()) if said == "always" else not config.exists()
    )


@pytest.mark.parametrize("body", ["return 'whatever'", "return None", "raise RuntimeError('broken')"])
def test_what_is_no_answer_is_a_no(script, body: str):
    """A callback that says something else, or fails, has not agreed."""
    result = script(
        f"def ask(command, description, **more):\n    {body}\n"
        "print(json.dumps(a.check_all_command_guards('rm -rf build', 'local', ask)))"
    )

    assert result["approved"] is False


def test_a_class_approved_by_name_holds_in_every_scope(script):
    """`approve_session` keeps the category meaning, for that session and for no other danger."""
    found = script(
        "a.approve_session('default', 'recursive delete')\n"
        "def ok(c): return a.check_all_command_guards(c, 'local')['approved']\n"
        "inside = [ok('rm -rf build'), ok('rm -rf /srv/data'), ok('rm -rf build; git push --force'),\n"
        "          a.is_approved('default', 'recursive delete'), a.is_approved('other', 'recursive delete')]\n"
        "a.clear_session('default')\n"
        "print(json.dumps([*inside, ok('rm -rf build')]))"
    )

    assert found == [True, True, False, True, False, False]


def test_the_permanent_list_is_the_one_in_the_config(script, home: Path):
    """Loading reads it, saving writes exactly what is given, comments stay."""
    config = home / "config.yaml"
    config.write_text("# mine\ncommand_allowlist:\n  - recursive delete  # cleaning\n  - filesystem format\n")

    found = script(
        "before = sorted(a.load_permanent_allowlist())\n"
        "a.save_permanent_allowlist({'recursive delete', 'process kill'})\n"
        "a.load_permanent({'process kill'})\n"
        "print(json.dumps([before, sorted(a.load_permanent_allowlist()), a.is_approved('x', 'process kill')]))"
    )

    assert found == [["filesystem format", "recursive delete"], ["process kill", "recursive delete"], True]
    assert "# mine" in config.read_text()
    assert "# cleaning" in config.read_text()


def test_a_session_without_questions_is_that_session_alone(script):
    """Switched on and off by key; another session still asks."""
    found = script(
        "def ok(): return a.check_all_command_guards('rm -rf build', 'local')['approved']\n"
        "a.enable_session_yolo('s1'); token = a.set_current_session_key('s1')\n"
        "on = [ok(), a.is_current_session_yolo_enabled(), a.is_approval_bypass_active()]\n"
        "a.reset_current_session_key(token)\n"
        "other = [ok(), a.is_session_yolo_enabled('s1'), a.is_approval_bypass_active()]\n"
        "a.disable_session_yolo('s1')\n"
        "print(json.dumps([on, other, a.is_session_yolo_enabled('s1')]))"
    )

    assert found == [[True, True, True], [False, True, False], False]


GATEWAY = """
import threading
seen = threading.Event(); payloads = []
def notify(payload): payloads.append(payload); seen.set()
a.register_gateway_notify('s1', notify)
results = []
def work():
    a.set_current_session_key('s1')
    results.append(CALL)
thread = threading.Thread(target=work); thread.start()
assert seen.wait(20)
blocking = a.has_blocking_approval('s1')
count = a.resolve_gateway_approval('s1', CHOICE, reason='because')
thread.join(20)
print(json.dumps([payloads, blocking, count, results, a.has_blocking_approval('s1')]))
"""


@pytest.mark.parametrize("choice", ["once", "deny"])
def test_a_gateway_is_asked_and_answers(script, choice: str):
    """The payload has the known keys; the call is held until it is resolved, and a reason to deny comes along."""
    call = "a.check_all_command_guards('rm -rf build', 'local')"

    payloads, blocking, count, results, still = script(GATEWAY.replace("CALL", call).replace("CHOICE", repr(choice)))

    assert (
        payloads[0].items()
        >= {
            "command": "rm -rf build",
            "pattern_key": "recursive delete",
            "pattern_keys": ["recursive delete"],
            "description": "recursive delete",
            "allow_permanent": True,
        }.items()
    )
    assert (blocking, count, still) == (True, 1, False)
    assert results[0]["approved"] is (choice == "once")
    assert results[0].get("deny_reason") == (None if choice == "once" else "because")


def test_a_gateway_is_asked_about_calls_in_dispatch_too(script, home: Path):
    """A tool that the runtime calls in that session waits for the same answer, even if the runtime was there first."""
    (home / "tools" / "shell.py").write_text(SHELL_TOOL)
    call = "model_tools.handle_function_call('shell', {'command': 'rm -rf build'}, session_id='s1')"
    body = "import model_tools\nmodel_tools.get_tool_definitions(quiet_mode=True)\n" + GATEWAY

    payloads, _, count, results, _ = script(body.replace("CALL", call).replace("CHOICE", "'once'"))

    assert (payloads[0]["command"], count, results) == ("rm -rf build", 1, ["ran rm -rf build"])


def test_a_session_without_questions_holds_in_dispatch_too(script, home: Path):
    """The runtime asks nothing in it; what is blocked stays blocked."""
    (home / "tools" / "shell.py").write_text(SHELL_TOOL)

    ran, other, blocked = script(
        "from model_tools import handle_function_call as call\na.enable_session_yolo('s1')\n"
        "print(json.dumps([call('shell', {'command': 'rm -rf build'}, session_id='s1'),\n"
        "                  call('shell', {'command': 'rm -rf build'}, session_id='s2'),\n"
        "                  call('shell', {'command': 'rm -rf /'}, session_id='s1')]))"
    )

    assert ran == "ran rm -rf build"
    assert "not allowed" in other
    assert "not allowed" in blocked


def test_a_session_nobody_listens_to_is_denied_in_dispatch(script, home: Path):
    """A gateway that answers for one session does not answer for another."""
    (home / "tools" / "shell.py").write_text(SHELL_TOOL)

    result = script(
        "import model_tools\na.register_gateway_notify('s1', lambda payload: None)\n"
        "print(json.dumps(model_tools.handle_function_call('shell', {'command': 'rm -rf build'}, session_id='s2')))"
    )

    assert "no one is available to approve it" in result


def test_a_gateway_without_a_listener_leaves_the_question_open(script):
    """The caller is told that it waits; the answer counts for the next try."""
    first, count, second = script(
        "first = a.check_all_command_guards('rm -rf build', 'local')\n"
        "count = a.resolve_gateway_approval('default', 'session')\n"
        "print(json.dumps([first, count, a.check_all_command_guards('rm -rf build', 'local')]))",
        HERMES_GATEWAY_SESSION="1",
    )

    assert (first["approved"], first["status"], first["approval_pending"]) == (False, "pending_approval", True)
    assert count == 1
    assert second["approved"] is True


def test_a_pending_question_can_be_submitted_and_denied(script):
    """It is on record until somebody answers, once."""
    found = script(
        "a.submit_pending('s1', {'command': 'rm -rf build', 'pattern_key': 'recursive delete', 'description': 'x'})\n"
        "print(json.dumps([a.resolve_gateway_approval('s1', 'deny', resolve_all=True),\n"
        "                  a.resolve_gateway_approval('s1', 'deny')]))"
    )

    assert found == [1, 0]


def test_a_scheduled_job_is_denied_even_with_a_callback(script):
    """Nobody watches it, so nobody can have answered."""
    result = script(
        "print(json.dumps(a.check_all_command_guards('rm -rf build', 'local', lambda *x, **y: 'once')))",
        HERMES_CRON_SESSION="1",
    )

    assert result["approved"] is False


def test_a_container_needs_no_question_unless_it_reaches_the_host(script):
    """What cannot leave an isolated backend passes; with folders of the host in it, it is asked about."""
    found = script(
        "print(json.dumps([a.check_all_command_guards('rm -rf build', 'docker')['approved'],\n"
        "    a.check_all_command_guards('rm -rf build', 'docker', has_host_access=True)['approved'],\n"
        "    a.check_all_command_guards('rm -rf build', 'ssh')['approved']]))"
    )

    assert found == [True, False, False]


def test_callbacks_get_commands_without_keys(script):
    """What a callback shows or logs must not contain a secret, and neither must the result."""
    found = script(
        "import os; os.environ['WEATHER_API_KEY'] = 'zq81kfn2lla0'\n"
        "heard = []\n"
        "def ask(command, description, **more): heard.append([command, description]); return 'deny'\n"
        "result = a.check_all_command_guards('rm -rf dist/zq81kfn2lla0', 'local', approval_callback=ask)\n"
        "print(json.dumps([heard, result]))"
    )

    assert len(found[0]) == 1
    assert "rm -rf dist/" in found[0][0][0]
    assert "zq81kfn2lla0" not in str(found)


def test_a_plugin_can_have_a_call_approved(script):
    """By its own key, remembered for the session under that key, and denied without a person."""
    found = script(
        "alone = a.request_tool_approval('mailer', 'sends a mail', rule_key='mail')\n"
        "asked = []\n"
        "def ask(command, description, **more): asked.append(description); return 'session'\n"
        "results = [a.request_tool_approval('mailer', 'sends a mail', rule_key='mail', approval_callback=ask)\n"
        "           for _ in range(2)]\n"
        "print(json.dumps([alone, [r['approved'] for r in results], asked, results[0]['pattern_key'],\n"
        "                  a.is_approved('default', 'plugin_rule:mail')]))"
    )

    assert found[0]["approved"] is False
    assert found[1:] == [[True, True], ["sends a mail"], "plugin_rule:mail", True]


def test_scripts_are_guarded(script):
    """Without a person no script runs; at a terminal the harmless one does and the dangerous one is denied."""
    found = script(
        "alone = a.check_execute_code_guard('print(1)', 'local')\n"
        "token = a.set_hermes_interactive_context(True)\n"
        "here = [a.check_execute_code_guard(code, 'local')['approved']\n"
        "        for code in ('print(1)', 'import shutil; shutil.rmtree(\"/srv/data\")')]\n"
        "a.reset_hermes_interactive_context(token)\n"
        "print(json.dumps([alone, here, a.check_execute_code_guard('print(1)', 'modal')['approved']]))"
    )

    assert (found[0]["approved"], found[0]["pattern_key"]) == (False, "execute_code")
    assert found[1:] == [[True, False], True]


@pytest.mark.parametrize(
    ("said", "permanent", "expected"),
    [("once", True, "once"), ("always", True, "always"), ("always", False, "session"), ("no idea", True, "deny")],
)
def test_a_prompt_gives_the_choice_back(script, said: str, permanent: bool, expected: str):
    """Nothing wider than was offered; nothing is remembered by it."""
    found = script(
        f"choice = a.prompt_dangerous_approval('x', 'thing', allow_permanent={permanent},\n"
        f"                                     approval_callback=lambda *p, **k: {said!r})\n"
        "print(json.dumps([choice, a.is_approved('default', 'thing'), a.prompt_dangerous_approval('x', 'thing')]))"
    )

    assert found == [expected, False, "deny"]


@pytest.mark.parametrize(("choice", "expected"), [("once", "accept"), ("deny", "decline")])
def test_consent_is_asked_for_and_never_assumed(script, choice: str, expected: str):
    """A session without questions has not consented to what a server wants; without a person it is declined."""
    call = "a.request_elicitation_consent('which account?', 'server asks')"
    body = f"a.enable_session_yolo('s1')\nalone = {call}\nassert alone == 'decline', alone\n" + GATEWAY

    *_, results, _ = script(body.replace("CALL", call).replace("CHOICE", repr(choice)))

    assert results == [expected]


def test_every_question_is_on_record(script, home: Path):
    """What was asked through these names is in the same log, with its answer and without secrets."""
    script(
        "a.set_current_observability_context(turn_id='t1', tool_call_id='c1')\n"
        "a.check_all_command_guards('rm -rf build # sk-abcdefghijklmnop1234', 'local', lambda *x, **y: 'deny')\n"
        "print(json.dumps(1))"
    )

    lines = [json.loads(line) for line in (home / "approvals.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["requested", "answered"]
    assert (lines[0]["turn_id"], lines[0]["call_id"], lines[1]["choice"]) == ("t1", "c1", "deny")
    assert "sk-abc" not in json.dumps(lines)
