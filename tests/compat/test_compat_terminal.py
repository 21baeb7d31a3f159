"""The terminal and its background processes under the reference system's names, with real commands."""

from __future__ import annotations

import json
from typing import Any

import pytest

IMPORTS = """
import json, os, sys, threading, time
from tools import terminal_tool as t
from tools.process_registry import process_registry as p, format_process_notification, ProcessSession
def run(command, **arguments):
    return json.loads(t.terminal_tool(command, **arguments))
told = []
"""


def told(compat: Any, code: str, **options: Any) -> list[Any]:
    """What the code appends to `told`, in a process of its own."""
    done = compat("-c", f"{IMPORTS}{code}\nprint('TOLD' + json.dumps(told))", **options)
    assert "TOLD" in done.stdout, done.stderr
    values: list[Any] = json.loads(done.stdout.partition("TOLD")[2])
    return values


def test_a_command_answers_as_the_tool_does(compat):
    """Output, exit code and error as JSON text; the session is kept; time is limited."""
    first, second, late = told(
        compat,
        "told += [run('export X=7; cd /usr; echo out; exit 3'), run('echo $X; pwd'), run('sleep 30', timeout=1)]",
    )

    assert first == {"output": "out", "exit_code": 3, "error": None}
    assert second["output"] == "7\n/usr"
    assert late["exit_code"] == 124
    assert late["output"].endswith("[Command timed out after 1s]")


def test_the_gate_applies_and_force_forces_nothing(compat, tmp_path):
    """What policy denies is not run, and the answer is that of a blocked command."""
    kept = tmp_path / "kept"
    kept.mkdir()
    told_of = told(
        compat,
        f"told += [run('rm -rf {kept}'), run('rm -rf {kept}', force=True), run('rm -rf /', force=True)]",
    )

    assert [(one["exit_code"], one["status"], one["output"]) for one in told_of] == [(-1, "blocked", "")] * 3
    assert all(one["error"] for one in told_of)
    assert kept.is_dir()


def test_whoever_approves_elsewhere_is_asked_for_a_direct_call_too(compat, tmp_path):
    """One gate: an answer through `tools.approval` lets the command run."""
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    (answer,) = told(
        compat,
        "from tools import approval\n"
        "approval.register_gateway_notify('chat', lambda data: threading.Thread(\n"
        "    target=approval.resolve_gateway_approval, args=('chat', 'once')).start())\n"
        f"told.append(run('rm -rf {doomed}; echo done', session_id='chat'))",
    )

    assert answer["output"] == "done"
    assert not doomed.exists()


def test_tasks_can_want_another_folder(compat, tmp_path):
    """Overrides hold for one task, until they are cleared; an unknown one is an error."""
    values = told(
        compat,
        f"t.register_task_env_overrides('a', {{'cwd': {str(tmp_path)!r}}})\n"
        "told += [run('pwd', task_id='a')['output'], t.resolve_task_overrides('a'), t.resolve_task_overrides('b')]\n"
        "t.clear_task_env_overrides('a')\n"
        "told.append(t.resolve_task_overrides('a'))\n"
        "try:\n    t.register_task_env_overrides('a', {'docker_imag': 'x'})\n"
        "except Exception as error:\n    told.append(str(error))",
    )

    assert values[:4] == [str(tmp_path), {"cwd": str(tmp_path)}, {}, {}]
    assert "docker_image" in values[4]


def test_the_folder_of_a_session_can_be_asked_and_set(compat):
    """Before its first command, and afterwards; each session has its own."""
    values = told(
        compat,
        "told.append(t.get_session_cwd('s'))\n"
        "t.record_session_cwd('s', '/usr')\n"
        "told.append(t.get_session_cwd('s'))\n"
        "told.append(run('pwd; cd /tmp', session_id='s')['output'])\n"
        "told.append(t.get_session_cwd('s'))\n"
        "t.record_session_cwd('s', '/var')\n"
        "told.append(run('pwd', session_id='s')['output'])\n"
        "t.record_session_cwd('u', '/usr'); t.clear_session_cwd('u')\n"
        "told.append(t.get_session_cwd('u'))\n",
    )

    assert values == [None, "/usr", "/usr", "/tmp", "/var", None]


@pytest.mark.services
def test_open_environments_can_be_used_and_given_back(compat):
    """They are those of the sessions, share what their commands left, and take their processes with them."""
    values = told(
        compat,
        "told.append(t.get_active_env('a'))\n"
        "run('export X=5; cd /usr', task_id='a'); run('true', task_id='b')\n"
        "env = t.get_active_env('a')\n"
        "told += [env.cwd, env.execute('echo $X; pwd; cat', stdin_data='typed')]\n"
        "env.execute('cd /tmp')\n"
        "told += [run('pwd', task_id='a')['output'], sorted(t._active_environments), t.is_persistent_env('a')]\n"
        "started = run('sleep 60', task_id='a', background=True)\n"
        "t.cleanup_vm('a')\n"
        "told += [sorted(t._active_environments), p.poll(started['session_id'])['status']]\n"
        "told += [t.cleanup_all_environments(), len(t._active_environments), run('echo $X', task_id='a')['output']]",
    )

    assert values[0] is None
    assert values[1:3] == ["/usr", {"output": "5\n/usr\ntyped", "returncode": 0}]
    assert values[3:6] == ["/tmp", ["a", "b"], False]
    assert values[6:8] == [["b"], "killed"]
    assert values[8:] == [1, 0, ""]


def test_an_interrupt_of_the_thread_ends_its_command(compat):
    """130, and soon; its next command is not run either, until the interrupt is taken back."""
    answer, seconds, refused, following = told(
        compat,
        "run('true')\n"
        "mine = threading.get_ident()\n"
        "from tools.interrupt import set_interrupt\n"
        "threading.Timer(1, set_interrupt, (True, mine)).start()\n"
        "begun = time.monotonic()\n"
        "told += [run('sleep 60'), time.monotonic() - begun]\n"
        "told.append(run('echo not run'))\n"
        "t._interrupt_event.clear()\n"
        "told.append(run('echo on')['output'])",
    )

    assert answer["exit_code"] == 130
    assert seconds < 20
    assert refused == {"output": "[Command interrupted]", "exit_code": 130, "error": None}
    assert following == "on"


def test_what_the_module_says_about_itself(compat):
    """Schema, limits and settings are those in force."""
    schema, longest, usable, config = told(
        compat,
        "told += [t.TERMINAL_SCHEMA, t.FOREGROUND_MAX_TIMEOUT, t.check_terminal_requirements(), t._get_env_config()]",
        TERMINAL_MAX_FOREGROUND_TIMEOUT="99",
        TERMINAL_SSH_HOST="example.org",
    )

    assert schema["parameters"]["required"] == ["command"]
    assert longest == 99
    assert usable is True
    assert (config["env_type"], config["ssh_host"]) == ("local", "example.org")


def test_an_environment_of_ones_own(compat):
    """It is made by the name of its backend, and shares nothing with the sessions."""
    values = told(
        compat,
        "env = t._create_environment('local', '', '/usr', 20)\n"
        "told += [env.execute('pwd'), len(t._active_environments)]\n"
        "env.cleanup()\n"
        "try:\n    t._create_environment('cloud9', '', '/', 20)\n"
        "except Exception as error:\n    told.append(str(error))",
    )

    assert values[:2] == [{"output": "/usr\n", "returncode": 0}, 0]
    assert "cloud9" in values[2]


def test_a_background_process_from_its_start_to_its_end(compat):
    """Started, typed to, polled, read, waited for; then it is known as ended."""
    values = told(
        compat,
        "one = p.spawn_local('read x; echo got $x $Y; exit 4', cwd='/usr', task_id='a', env_vars={'Y': 'y z'})\n"
        "told += [isinstance(one, ProcessSession), one.id[:5], one.exited, p.count_running()]\n"
        "told += [p.has_active_processes('a'), p.has_active_for_session('a'), p.has_active_processes('b')]\n"
        "told += [p.submit_stdin(one.id, 'hello')['status'], p.wait(one.id, timeout=20)['exit_code']]\n"
        "told += [p.read_log(one.id)['output'], p.poll(one.id)['status'], p.get(one.id).exit_code]\n"
        "told += [len(p.list_sessions(task_id='a')), len(p.list_sessions(session_key='b')), p.get('proc_0')]",
    )

    assert values[:4] == [True, "proc_", False, 1]
    assert values[4:7] == [True, True, False]
    assert values[7:12] == ["ok", 4, "got hello y z", "exited", 4]
    assert values[12:] == [1, 0, None]


@pytest.mark.services
def test_processes_can_be_ended(compat):
    """One, those of a task, or all; what is unknown or has ended is said."""
    values = told(
        compat,
        "a, b, c = (p.spawn_local('sleep 60', task_id=task) for task in 'abb')\n"
        "told += [p.kill_process(a.id, source='test')['status'], p.get(a.id).termination_source]\n"
        "told += [p.kill_process(a.id)['status'], p.kill_process('proc_0')['status']]\n"
        "told += [p.kill_all('b'), p.kill_all(), p.count_running()]",
    )

    assert values == ["killed", "test", "already_exited", "not_found", 2, 0, 0]


@pytest.mark.services
def test_the_gate_applies_to_spawning_and_typing(compat, tmp_path):
    """A shell in the background is no way around it."""
    kept = tmp_path / "kept"
    kept.mkdir()
    values = told(
        compat,
        f"try:\n    p.spawn_local('rm -rf {kept}')\nexcept PermissionError as error:\n    told.append(str(error))\n"
        "one = p.spawn_local('bash')\n"
        f"told.append(p.submit_stdin(one.id, 'rm -rf {kept}'))\n"
        "from tools.environments.local import LocalEnvironment\n"
        "env = LocalEnvironment('/tmp', 20)\n"
        f"try:\n    p.spawn_via_env(env, 'rm -rf {kept}')\n"
        "except PermissionError as error:\n    told.append(str(error))\n"
        "env.cleanup()",
    )

    assert len(values) == 3
    assert "not allowed" in values[0]
    assert "error" in values[1]
    assert kept.is_dir()


@pytest.mark.services
def test_what_happened_is_told_once(compat):
    """Completions and matches, to whoever they belong to, with a text."""
    values = told(
        compat,
        "one = run('echo ready; exit 2', background=True, notify_on_complete=True, task_id='a')['session_id']\n"
        "while p.count_running(): time.sleep(0.01)\n"
        "told.append(p.drain_notifications(session_key='b'))\n"
        "told.append(p.drain_notifications(owns_event=lambda event: event['session_id'] == one))\n"
        "told += [p.drain_notifications(), p.completion_queue.empty(), p.pending_watchers]\n"
        "told.append(format_process_notification({'type': 'nothing of ours'}))\n",
    )

    assert values[0] == []
    ((event, text),) = values[1]
    assert (event["type"], event["exit_code"], event["completion_reason"]) == ("completion", 2, "exited")
    assert "exit code 2" in text
    assert values[2:] == [[], True, [], None]


@pytest.mark.services
def test_a_process_in_somebodys_environment(compat):
    """Ours, or that of a third party, which is not closed with it."""
    values = told(
        compat,
        "from tools.environments.local import LocalEnvironment\n"
        "env = LocalEnvironment('/usr', 20)\n"
        "one = p.spawn_via_env(env, 'pwd; exit 5', task_id='a')\n"
        "told += [p.wait(one.id, timeout=20)['exit_code'], p.read_log(one.id)['output']]\n"
        "told.append(env.execute('echo still there')['output'])\n"
        "env.cleanup()\n"
        "run('export X=9', task_id='b')\n"
        "two = p.spawn_via_env(t.get_active_env('b'), 'echo $X', task_id='b')\n"
        "p.wait(two.id, timeout=20)\n"
        "told += [p.read_log(two.id)['output'], p.recover_from_checkpoint()]",
    )

    assert values == [5, "/usr", "still there\n", "9", 0]


@pytest.mark.services
def test_tasks_of_one_session_are_told_apart(compat):
    """Each has its own shell, is found by its id, and is cleaned up alone or with its session."""
    values = told(
        compat,
        "for task in ('a', 'b', None):\n"
        "    run(f'export WHO={task}', task_id=task, session_id='s')\n"
        "run('cd /usr', task_id='a', session_id='s')\n"
        "told += [run('echo $WHO', task_id=task, session_id='s')['output'] for task in ('a', 'b', None)]\n"
        "told += [sorted(t._active_environments), t.get_active_env('a').cwd, t.get_session_cwd('a')]\n"
        "told.append(t.get_active_env('b').execute('echo $WHO')['output'])\n"
        "t.cleanup_vm('a')\n"
        "told += [sorted(t._active_environments), run('echo ${WHO-new}', task_id='a', session_id='s')['output']]\n"
        "t.cleanup_vm('s')\n"
        "told.append(sorted(t._active_environments))",
    )

    assert values[:3] == ["a", "b", "None"]
    assert values[3:7] == [["a", "b", "s"], "/usr", "/usr", "b\n"]
    assert values[7:] == [["b", "s"], "new", []]
