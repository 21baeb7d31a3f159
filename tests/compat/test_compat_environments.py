"""Backends under the reference system's names: those that others subclass, and ours for callers that are not async."""

from __future__ import annotations

import json

import pytest

RUNNER = """
import json, subprocess, time
from tools.environments.base import BaseEnvironment

class Mine(BaseEnvironment):
    def _run_bash(self, cmd_string, *, login=False, timeout=120, stdin_data=None):
        process = subprocess.Popen(
            ["bash", *(["-l"] if login else []), "-c", cmd_string],
            text=True, env={"PATH": "/usr/bin:/bin", **self.env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        if stdin_data:
            process.stdin.write(stdin_data)
        process.stdin.close()
        return process

    def cleanup(self):
        print("cleaned")
"""
LOCAL = "import json\nfrom tools.environments.local import LocalEnvironment as Mine\n"
SESSION = """
environment = Mine("/tmp", 20, {"GIVEN": "1"})
commands = json.loads(COMMANDS)
print(json.dumps([environment.execute(command) for command in commands]), environment.cwd)
environment.stop()
"""


def run(compat, code: str, commands: list[str]) -> tuple[list[tuple[str, int]], str]:
    done = compat("-c", f"COMMANDS = {json.dumps(json.dumps(commands))}\n{code}{SESSION}")
    assert done.returncode == 0, done.stderr
    results, end = json.JSONDecoder().raw_decode(done.stdout)
    return [(result["output"], result["returncode"]) for result in results], done.stdout[end:].split()[0]


@pytest.mark.parametrize("code", [RUNNER, LOCAL], ids=["a third party's", "ours"])
def test_the_session_is_kept_between_commands(compat, code):
    """Folder, exported variables, functions and aliases, also after `exit`; output and exit codes as they are."""
    results, cwd = run(
        compat,
        code,
        [
            "pwd; echo $GIVEN",
            "export X='a b'; f() { echo f-$X; }; alias g='echo aliased'; cd /usr; exit 3",
            "f; g; pwd",
            "echo partial >&2; false",
            "printf 'no newline'",
        ],
    )

    assert results == [
        ("/tmp\n1\n", 0),
        ("", 3),
        ("f-a b\naliased\n/usr\n", 0),
        ("partial\n", 1),
        ("no newline", 0),
    ]
    assert cwd == "/usr"


@pytest.mark.parametrize("code", [RUNNER, LOCAL], ids=["a third party's", "ours"])
def test_a_command_that_takes_too_long_is_ended(compat, code):
    """124 and a sentence in the output, soon after its time is over."""
    done = compat(
        "-c",
        code + "import time\nenvironment = Mine('/tmp', 20)\nenvironment.execute('true')\nstart = time.monotonic()\n"
        "result = environment.execute('echo begun; exec sleep 60', timeout=1)\n"
        "print(result['returncode'], time.monotonic() - start < 15, repr(result['output']))\n"
        "environment.stop()",
    )

    line = done.stdout.splitlines()[0]
    assert line.startswith("124 True 'begun\\n"), done.stderr
    assert line.endswith("\\n[Command timed out after 1s]'")


@pytest.mark.parametrize("code", [RUNNER, LOCAL], ids=["a third party's", "ours"])
def test_input_and_long_output(compat, code):
    """`stdin_data` is what the command reads; with `bounded_capture` the middle of a long output is left out."""
    done = compat(
        "-c",
        code + "environment = Mine('/tmp', 20)\n"
        "print(environment.execute('cat', stdin_data='typed')['output'])\n"
        "text = environment.execute('seq 1 20000', bounded_capture=True)['output']\n"
        "print(len(text) < 51000, text.startswith('1\\n2\\n'), text.endswith('20000\\n'), 'OUTPUT TRUNCATED' in text)\n"
        "environment.stop()",
    )

    assert done.stdout.startswith("typed\nTrue True True True\n"), done.stderr


def test_a_class_without_the_two_methods_cannot_be_used(compat):
    """A subclass says how a command is started and how the place is given back."""
    code = (
        "from tools.environments.base import BaseEnvironment\n"
        "class Half(BaseEnvironment):\n    def cleanup(self): pass\n"
        "try:\n    Half('/', 1)\nexcept TypeError as error:\n    print('_run_bash' in str(error))\n"
    )

    assert compat("-c", code).stdout == "True\n"


def test_stop_is_another_word_for_cleanup(compat):
    """Both give the place back."""
    done = compat("-c", RUNNER + "environment = Mine('/tmp', 5)\nenvironment.stop(); environment.cleanup()")

    assert done.stdout == "cleaned\ncleaned\n", done.stderr


def test_somebody_can_watch_a_long_command(compat):
    """The callback of a thread hears of its commands, and only when it is time again."""
    code = (
        "from tools.environments.base import set_activity_callback, touch_activity_if_due\n"
        "heard = []\nset_activity_callback(heard.append)\n"
        "touch_activity_if_due({'last_touch': -1000.0}, 'still busy')\n"
        "touch_activity_if_due({}, 'just started')\n"
        "print(len(heard), heard[0].startswith('still busy'))"
    )

    assert compat("-c", code).stdout == "1 True\n"


def test_the_folder_of_sandboxes_is_in_the_home(compat, home):
    """It is made when it is asked for, and is the owner's alone."""
    done = compat("-c", "from tools.environments.base import get_sandbox_dir; print(get_sandbox_dir())")

    assert done.stdout == f"{home / 'sandboxes'}\n", done.stderr
    assert (home / "sandboxes").stat().st_mode & 0o777 == 0o700
