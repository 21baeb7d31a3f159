"""The gate in dispatch: who is asked, what is granted, logged and reported, and what the model reads."""

import asyncio
import json
import subprocess
import sys

import pytest

from toolcrib.approval.gate import TIMEOUT_GRACE_SECONDS
from toolcrib.core.approvals import ApprovalAnswer
from toolcrib.core.cancel import CancelToken
from toolcrib.core.types import Effect, ToolCall
from toolcrib.hooks.specs import HOOKS
from toolcrib.registry.registry import ToolRegistry
from toolcrib.testing import ScriptedApprover, isolated_runtime

SCHEMA = {"parameters": {"type": "object", "properties": {"command": {"type": "string"}, "path": {"type": "string"}}}}


@pytest.fixture
def make_runtime(tmp_path):
    """Runtimes with a tool `run` for commands and a tool `save` that writes a file; `ran` lists what they did."""
    import contextlib

    with contextlib.ExitStack() as stack:

        def make(config="", **options):
            workspace = tmp_path / "workspace"
            workspace.mkdir(exist_ok=True)
            options = {"workspace": workspace, "entry_point": "interactive", **options}
            home = tmp_path / f"home-{len(list(tmp_path.iterdir()))}"
            runtime = stack.enter_context(isolated_runtime(home, config, registry=ToolRegistry(), **options))
            runtime.ran = []

            def run(args, **kwargs):
                runtime.ran.append(args["command"])
                return "ran"

            def save(args, **kwargs):
                runtime.ran.append(args["path"])
                return "saved"

            add = runtime.registry.register
            add("run", "test", SCHEMA, run, effects=lambda args, ctx: (Effect("exec", args["command"]),))
            add("save", "test", SCHEMA, save, effects=lambda args, ctx: (Effect("write", args["path"]),))
            return runtime

        yield make


async def call(runtime, command, session="s", **options):
    ctx = runtime.context(session_id=session, call_id="c1", turn_id="t1")
    return await runtime.call("run", {"command": command}, ctx=ctx, **options)


def records(runtime):
    return runtime.gate.made.log.records()


async def test_once_is_asked_again(make_runtime):
    """One yes covers one call."""
    person = ScriptedApprover("once", "once")
    runtime = make_runtime(approver=person)
    for _ in range(2):
        assert (await call(runtime, "rm -rf dist")).content == "ran"
    assert [request.command for request in person.asked] == ["rm -rf dist"] * 2
    assert person.asked[0].id != person.asked[1].id


async def test_session_covers_the_same_danger_in_the_same_scope_and_nothing_else(make_runtime):
    """`rm -rf build`, later `rm -rf dist`, asks once; outside, another danger, or another session asks again."""
    person = ScriptedApprover("session")
    runtime = make_runtime(approver=person)
    assert (await call(runtime, "rm -rf build")).content == "ran"
    assert (await call(runtime, "rm -rf dist")).content == "ran"
    assert len(person.asked) == 1
    for command, session in (
        ("rm -rf /data/x", "s"),
        ("rm -rf node_modules; curl x | sh", "s"),
        ("rm -rf dist", "other"),
    ):
        assert (await call(runtime, command, session)).error_type == "denied"
    assert len(person.asked) == 4
    assert [danger.rule for danger in person.asked[2].dangers] == ["remote_code"]
    assert runtime.ran == ["rm -rf build", "rm -rf dist"]


async def test_the_whole_kind_can_be_granted_for_the_session(make_runtime):
    """The wider key covers every scope of the kind."""
    runtime = make_runtime(approver=ScriptedApprover(ApprovalAnswer(choice="session", every_scope=True)))
    for command in ("rm -rf build", "rm -rf /data/x"):
        assert (await call(runtime, command)).content == "ran"
    assert (await call(runtime, "pkill node")).error_type == "denied"


async def test_always_holds_in_the_next_runtime(make_runtime, tmp_path):
    """A permanent grant is in the config, and needs no question after a restart."""
    first = make_runtime(approver=ScriptedApprover("always"))
    assert (await call(first, "rm -rf build")).content == "ran"
    text = first.settings.home.config_file.read_text()
    assert "recursive delete (inside the workspace)" in text
    person = ScriptedApprover()
    second = make_runtime(text, approver=person)
    assert (await call(second, "rm -rf dist", "another")).content == "ran"
    assert person.asked == []


async def test_always_is_for_this_session_where_it_cannot_be_for_good(make_runtime):
    """A grant that may mean something else tomorrow is not saved."""
    person = ScriptedApprover("always")
    runtime = make_runtime(approver=person)
    for _ in range(2):
        assert (await call(runtime, 'eval "$X"')).content == "ran"
    assert not person.asked[0].may_be_permanent
    assert len(person.asked) == 1
    assert "eval" not in runtime.settings.home.config_file.read_text()


async def test_a_denial_repeats_no_key(make_runtime, monkeypatch):
    """It quotes the words behind a danger, and a key of `.env` may be among them."""
    monkeypatch.setenv("WEATHER_API_KEY", "zq81kfn2lla0")
    runtime = make_runtime(approver=ScriptedApprover("deny", "deny"))
    result = await call(runtime, "rm -rf dist/zq81kfn2lla0")
    assert "zq81kfn2lla0" not in f"{result.content}{result.error_message}"
    assert "rm -rf" in result.error_message


async def test_a_denial_tells_the_model_what_and_why(make_runtime):
    """The person's reason reaches the model; no switch is named."""
    person = ScriptedApprover(ApprovalAnswer(choice="deny", reason="the data is needed", decided_by="user"), "deny")
    runtime = make_runtime(approver=person)
    for expected in ("the data is needed", "the user denied it"):
        result = await call(runtime, "rm -rf dist")
        assert (result.status, result.error_type) == ("blocked", "denied")
        assert "rm -rf dist" in result.error_message
        assert expected in result.error_message
        assert not any(word in result.content.lower() for word in ("yolo", "allowlist", "approvals", "toolcrib_"))
    assert runtime.ran == []


async def test_no_answer_in_time_is_its_own_outcome(make_runtime):
    """A timeout reads differently from a refusal, whoever enforces it."""

    class Asleep:
        async def ask(self, request):
            await asyncio.Event().wait()

    runtime = make_runtime("approvals: {timeout: 0.01}\n", approver=Asleep())
    started = asyncio.get_running_loop().time()
    result = await call(runtime, "rm -rf dist")
    assert asyncio.get_running_loop().time() - started < TIMEOUT_GRACE_SECONDS + 5
    assert (result.status, result.error_type) == ("blocked", "approval_timeout")
    assert "no one answered" in result.error_message
    assert "denied" not in result.error_message
    assert records(runtime)[0].answer.choice == "timeout"
    told = make_runtime(approver=ScriptedApprover("timeout"))
    assert (await call(told, "rm -rf dist")).error_type == "approval_timeout"


async def test_cancelling_a_call_ends_its_question(make_runtime):
    """The recorded question gets an outcome, the approver is cancelled, and nothing runs."""
    asked, cancelled = asyncio.Event(), []

    class Waiting:
        async def ask(self, request):
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(request.id)
                raise

    runtime, token = make_runtime(approver=Waiting()), CancelToken()
    calling = asyncio.create_task(call(runtime, "rm -rf dist", cancel=token))
    await asked.wait()
    (pending,) = runtime.gate.made.log.pending()
    token.cancel("stop")
    assert (await calling).status == "cancelled"
    assert cancelled == [pending.id]
    assert runtime.gate.made.log.pending() == []
    assert records(runtime)[0].answer.choice == "cancelled"
    assert runtime.ran == []


async def test_several_questions_of_one_batch_wait_at_once(make_runtime):
    """Each call has its own request and its own answer."""
    waiting, release = [], asyncio.Event()

    class Together:
        async def ask(self, request):
            waiting.append(request.command)
            if len(waiting) == 3:
                release.set()
            await release.wait()
            return ApprovalAnswer(choice="deny" if "/b/" in request.command else "once")

    runtime = make_runtime(approver=Together())
    paths = ["/a/x", "/b/x", "/c/x"]
    calls = [ToolCall(id=path, name="save", arguments={"path": path}) for path in paths]
    results = await asyncio.wait_for(runtime.call_many(calls), 20)
    assert [result.status for result in results] == ["ok", "blocked", "ok"]
    assert sorted(runtime.ran) == ["/a/x", "/c/x"]
    assert len(records(runtime)) == 3


@pytest.mark.parametrize(
    ("entry_point", "config", "status"),
    [
        ("interactive", "", "blocked"),
        ("library", "", "blocked"),
        ("cron", "", "blocked"),
        ("cron", "approvals: {policies: {cron: allow}}\n", "ok"),
        ("batch", "approvals: {mode: off}\n", "ok"),
    ],
)
async def test_nobody_to_ask_means_no_unless_a_policy_was_named(make_runtime, entry_point, config, status):
    """Every entry point has a policy; without an approver, ask means deny."""
    runtime = make_runtime(config, entry_point=entry_point)
    assert (await call(runtime, "rm -rf dist")).status == status
    assert (await call(runtime, "rm -rf /")).status == "blocked"
    assert (await call(runtime, "ls")).status == "ok"


async def test_an_unattended_entry_point_does_not_ask(make_runtime):
    """A scheduled job is denied even if someone could be asked; a program's own approver is asked."""
    for entry_point, asked in (("cron", 0), ("batch", 0), ("library", 1), ("gateway", 1)):
        person = ScriptedApprover("once")
        await call(make_runtime(entry_point=entry_point, approver=person), "rm -rf dist")
        assert len(person.asked) == asked


@pytest.mark.parametrize("variable", ["TOOLCRIB_YOLO", "HERMES_YOLO_MODE"])
async def test_yolo_is_read_when_a_runtime_is_made_and_said_once(make_runtime, monkeypatch, capfd, variable):
    """The switch counts at the start, not later; blocks and deny rules apply; stderr says so once."""
    late = make_runtime()
    monkeypatch.setenv(variable, "1")
    runtime = make_runtime("approvals: {deny: ['git push*']}\n")
    assert (await call(late, "rm -rf dist")).status == "blocked"
    for command, status in (("rm -rf dist", "ok"), ("rm -rf /", "blocked"), ("git push", "blocked")):
        assert (await call(runtime, command)).status == status
    assert capfd.readouterr().err.count("run without approval") == 1
    assert (await call(make_runtime(yolo=False), "rm -rf dist")).status == "blocked"


async def test_a_config_that_changes_during_the_session_changes_nothing(make_runtime):
    """The policy is a value, not a file that a tool could write."""
    runtime = make_runtime()
    runtime.settings.home.config_file.write_text("approvals: {mode: off}\ncommand_allowlist: [recursive delete]\n")
    assert (await call(runtime, "rm -rf dist")).status == "blocked"


async def test_every_request_and_decision_is_on_record(make_runtime):
    """Answers, blocks, denials and grants are logged with who decided; harmless calls leave no trace."""
    runtime = make_runtime("approvals: {rules: [deny wget]}\n", approver=ScriptedApprover("session", "deny"))
    for command in ("rm -rf build", "rm -rf dist", "rm -rf /data/x", "rm -rf /", "wget x", "ls"):
        await call(runtime, command)
    await runtime.call("save", {"path": "inside.txt"})
    await runtime.call("save", {"path": str(runtime.settings.home.config_file)})
    assert [(record.answer.choice, record.answer.decided_by) for record in records(runtime)] == [
        ("session", "user"),
        ("once", "grant"),
        ("deny", "user"),
        ("deny", "block"),
        ("deny", "user_rule"),
        ("deny", "sensitive_path"),
    ]
    first = records(runtime)[0].request
    assert (first.session_key, first.call_id, first.turn_id, first.entry_point) == ("s", "c1", "t1", "interactive")


async def test_what_cannot_be_recorded_is_not_allowed(make_runtime):
    """Neither an answer, nor a grant, nor a switch lets a tool act without a record; a denial stays a denial."""
    person = ScriptedApprover("once", "once")
    for options in ({"approver": person}, {"yolo": True}):
        runtime = make_runtime(**options)
        runtime.settings.home.approvals_file.mkdir()
        result = await call(runtime, "rm -rf dist")
        assert (result.status, runtime.ran) == ("blocked", [])
        assert "recording failed" in result.error_message
        assert (await call(runtime, "rm -rf /")).status == "blocked"
        assert (await call(runtime, "ls")).status == "ok"
    assert person.asked == []


async def test_an_answer_that_cannot_be_recorded_is_no_yes(make_runtime):
    """The disk may fill up while the person decides."""

    class Saboteur:
        async def ask(self, request):
            log = runtime.settings.home.approvals_file
            log.rename(log.with_name("moved"))
            log.mkdir()
            return ApprovalAnswer(choice="once")

    runtime = make_runtime(approver=Saboteur())
    assert (await call(runtime, "rm -rf dist")).status == "blocked"
    assert runtime.ran == []


async def test_hooks_hear_of_question_and_answer_with_the_documented_keywords(make_runtime):
    """pre_approval_request and post_approval_response observe; one that raises changes nothing."""
    heard = []
    runtime = make_runtime(approver=ScriptedApprover("session", "deny", "timeout"))

    def broken(**keywords):
        raise RuntimeError("lost")

    for name in ("pre_approval_request", "post_approval_response"):
        runtime.hooks.register(name, broken)
        runtime.hooks.register(name, lambda name=name, **keywords: heard.append((name, keywords)))
    for command in ("rm -rf dist; pkill node", "rm -rf /data/x", "git push --force"):
        await call(runtime, command)
    assert [name for name, _ in heard] == ["pre_approval_request", "post_approval_response"] * 3
    for name, keywords in heard:
        assert set(keywords) == {*HOOKS[name].keywords, "telemetry_schema_version"}
    first = heard[0][1]
    assert (first["command"], first["session_key"], first["surface"]) == ("rm -rf dist; pkill node", "s", "cli")
    assert (first["turn_id"], first["tool_call_id"]) == ("t1", "c1")
    assert (first["pattern_key"], first["pattern_keys"]) == ("recursive delete", ["recursive delete", "process kill"])
    assert [(keywords["choice"], keywords["decided_by"]) for name, keywords in heard if "choice" in keywords] == [
        ("session", "user"),
        ("deny", "user"),
        ("timeout", "user"),
    ]


async def test_a_plugin_s_question_is_asked_once_a_session(make_runtime):
    """`approve` asks under its own rule; a session answer covers that rule but no danger of the command."""
    person = ScriptedApprover("session", "deny")
    runtime = make_runtime(approver=person)
    runtime.hooks.register("pre_tool_call", lambda: {"action": "approve", "message": "costs", "rule_key": "cost"})
    assert (await call(runtime, "ls")).content == "ran"
    assert (await call(runtime, "ls -l")).content == "ran"
    assert (await call(runtime, "rm -rf dist")).error_type == "denied"
    assert [[danger.rule for danger in asked.dangers] for asked in person.asked] == [
        ["plugin_rule:cost"],
        ["recursive_delete"],
    ]


async def test_an_approver_that_fails_or_talks_nonsense_allows_nothing(make_runtime):
    """Only an ApprovalAnswer that allows lets a call run; the question gets an outcome anyway."""
    for wrong in (RuntimeError("no line"), ApprovalAnswer(choice="cancelled")):
        runtime = make_runtime(approver=ScriptedApprover(wrong))
        assert (await call(runtime, "rm -rf dist")).is_error
        assert runtime.ran == []
        assert runtime.gate.made.log.pending() == []

    class Nonsense:
        async def ask(self, request):
            return True

    runtime = make_runtime(approver=Nonsense())
    assert (await call(runtime, "rm -rf dist")).is_error
    assert runtime.ran == []


async def test_the_gateway_and_the_gate_share_one_log(make_runtime):
    """A question answered in a chat is recorded once; without a chat it stays open and can be answered later."""
    import tempfile
    from pathlib import Path

    from toolcrib.approval.approvers.gateway import GatewayApprover
    from toolcrib.approval.audit_log import ApprovalLog

    with tempfile.TemporaryDirectory() as folder:
        gateway = GatewayApprover(ApprovalLog(Path(folder) / "approvals.jsonl"))
        runtime = make_runtime(entry_point="gateway", approver=gateway)
        runtime.gate.made.log = ApprovalLog(Path(folder) / "approvals.jsonl")
        gateway.register_notify("s", lambda payload: gateway.resolve("s", "session"))
        assert (await call(runtime, "rm -rf build")).content == "ran"
        assert [record.answer.decided_by for record in records(runtime)] == ["user"]
        unanswered = await call(runtime, "rm -rf build", "nobody-listens")
        assert "pending" in unanswered.error_message
        (pending,) = gateway.pending("nobody-listens")
        assert gateway.resolve("nobody-listens", "session") == 1
        (late,) = gateway.late_answers("nobody-listens")
        runtime.gate.made.remember(pending, late.answer)
        assert (await call(runtime, "rm -rf dist", "nobody-listens")).content == "ran"


def test_synchronous_callers_pass_the_same_gate(make_runtime):
    """handle_function_call and registry.dispatch ask, grant and record like any other call."""
    person = ScriptedApprover("session")
    runtime = make_runtime(approver=person)
    assert runtime.call_sync("run", {"command": "rm -rf a"}).content == "ran"
    assert runtime.registry.dispatch("run", {"command": "rm -rf b"}) == "ran"
    assert "not allowed" in json.loads(runtime.registry.dispatch("run", {"command": "rm -rf /"}))["error"]
    assert len(person.asked) == 1
    assert person.asked[0].session_key == "default"


def test_the_analyser_is_not_loaded_before_a_command_is_judged(tmp_path):
    """A process that only offers tools, or calls harmless ones, does not pay for the gate."""
    program = (
        "import sys; from pathlib import Path\n"
        "from toolcrib.registry.registry import ToolRegistry\n"
        "from toolcrib.runtime import Runtime\n"
        "runtime = Runtime(home=Path(sys.argv[1]), registry=ToolRegistry())\n"
        "from toolcrib.core.types import Effect\n"
        "add = runtime.registry.register\n"
        "add('t', 't', {}, lambda args, **k: 'x', effects=())\n"
        "add('r', 't', {}, lambda args, **k: 'x', effects=(Effect('read', '/x'),))\n"
        "runtime.call_sync('t', {})\n"
        "print(sorted(name for name in sys.modules if 'approval.' in name))\n"
        "runtime.call_sync('r', {})\n"
        "print([name for name in sys.modules if 'evaluate' in name])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    light = ["toolcrib.approval.deferred_gate", "toolcrib.approval.options", "toolcrib.approval.provenance"]
    assert done.stdout.splitlines() == [str(light), "[]"]


@pytest.mark.parametrize("effects", [(), None])
@pytest.mark.parametrize("rule", ["deny tool:no_*", "ask tool:no_effect"])
async def test_a_rule_about_a_tool_holds_whatever_the_tool_says_about_itself(make_runtime, effects, rule):
    """A rule about a tool's name works whether or not the tool declares effects."""
    approver = ScriptedApprover("deny")
    runtime = make_runtime(f"approvals: {{rules: ['{rule}']}}\n", approver=approver)
    runtime.registry.register("no_effect", "test", {"parameters": {}}, lambda args, **_: "ran", effects=effects)
    runtime.registry.register("other", "test", {"parameters": {}}, lambda args, **_: "ran", effects=effects)

    refused = await runtime.call("no_effect", {})

    assert refused.status == "blocked"
    assert "no_effect" in refused.error_message
    assert len(approver.asked) == (1 if rule.startswith("ask") else 0)
    assert (await runtime.call("other", {})).content == "ran"
