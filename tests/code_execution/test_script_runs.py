"""What a script gives back, however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.code_execution.running_scripts import PYTHON, MakeRuntime, Run, hidden
from toolcrib.core.cancel import CancelToken
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover

FORK_BOMB = hidden("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
DAEMON = """import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "987654"], {})
    os._exit(0)
os.wait()
print("left")"""


def running(words: str) -> list[str]:
    """The processes of this machine whose command line holds these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(") ")[2][0]
            except OSError:
                continue
            if words in line and state not in "ZX":
                found.append(line)
    return found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("print('héllo')", {"status": "success", "output": "héllo\n", "exit_code": 0}, id="prints"),
        pytest.param("pass", {"status": "success", "output": ""}, id="silent"),
        pytest.param(
            "import sys; print('x', file=sys.stderr)", {"status": "success", "error_output": "x\n"}, id="stderr"
        ),
        pytest.param("raise SystemExit", {"status": "success", "exit_code": 0}, id="leaves"),
        pytest.param("import sys; sys.exit(3)", {"error": "the script exited with code 3", "exit_code": 3}, id="code"),
        pytest.param("import sys; sys.exit('no')", {"error_output": "no\n", "exit_code": 1}, id="words"),
        pytest.param("import os; print(1, flush=True); os._exit(7)", {"output": "1\n", "exit_code": 7}, id="_exit"),
        pytest.param(
            "import os; print(1, flush=True); os.kill(os.getpid(), 9)",
            {"output": "1\n", "error": "the script was ended by SIGKILL"},
            id="kills-itself",
        ),
        pytest.param("import sys; sys.exit(143)", {"error": "the script exited with code 143"}, id="no-signal"),
        pytest.param(
            "import signal, time; signal.alarm(1); time.sleep(30)",
            {"error": "the script was ended by SIGALRM", "exit_code": 142},
            id="signal",
        ),
        pytest.param(
            "raise type('O\"dd\\n', (Exception,), {'__str__': lambda self: 1 / 0})",
            {"error": 'O"dd\n', "exit_code": 1},
            id="exception-with-an-odd-name",
        ),
        pytest.param("\ufeffprint(1)", {"output": "1\n", "exit_code": 0}, id="byte-order-mark"),
        pytest.param("print(1)\r\nif True:\r\n    print(2)\r\n", {"output": "1\n2\n"}, id="windows-lines"),
        pytest.param("input()", {"error": "EOFError: EOF when reading a line"}, id="no-input"),
        pytest.param(
            "x = bytearray(10 ** 11)", {"error": "MemoryError; a script may use 1024 MB of memory"}, id="memory"
        ),
        pytest.param(
            "import os; os.write(1, b'\\xff\\x00ok')", {"status": "success", "output": "\ufffd\u0000ok"}, id="binary"
        ),
        pytest.param("import os; os.system('echo from a child')", {"output": "from a child\n"}, id="child"),
        pytest.param("print('a\0b')", {"output": "", "exit_code": 1}, id="nul-in-the-code"),
        pytest.param("print(ascii('\ud800'))", {"output": "", "exit_code": 1}, id="half-a-character-in-the-code"),
        pytest.param("print(__name__, __file__)", {"output": "__main__ script.py\n"}, id="main"),
        pytest.param(
            "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
            {"status": "success", "output": "late\n"},
            id="threads-finish",
        ),
        pytest.param("import atexit\natexit.register(print, 'bye')", {"output": "bye\n"}, id="atexit"),
    ],
)
def test_a_script_gives_what_it_printed_and_how_it_ended(
    shared_runtime: Runtime, run_script: Run, code: str, expected: dict[str, Any]
) -> None:
    """Output, error output, exit code and reason are told, whatever the script does."""
    answer = run_script(shared_runtime, code)

    assert {name: answer.get(name) for name in expected} == expected


def test_an_exception_is_told_with_the_lines_of_the_script_alone(shared_runtime: Runtime, run_script: Run) -> None:
    """The traceback names script.py, counts its lines from 1, shows them, and nothing of ours or of the library."""
    code = "import json\n\ndef read(text):\n    return json.loads(text)\n\nread('{')"

    answer = run_script(shared_runtime, code)

    assert answer["status"] == "error"
    assert answer["error"].startswith("JSONDecodeError: Expecting property name")
    frames = [line.strip() for line in answer["traceback"].splitlines() if line.startswith("  File")]
    assert frames == ['File "script.py", line 6, in <module>', 'File "script.py", line 4, in read']
    assert "return json.loads(text)" in answer["traceback"]


def test_a_cause_is_part_of_the_traceback(shared_runtime: Runtime, run_script: Run) -> None:
    """What led to an exception is told with it."""
    code = "try:\n    {}['key']\nexcept KeyError as error:\n    raise ValueError('no such thing') from error"

    answer = run_script(shared_runtime, code)

    assert "KeyError: 'key'" in answer["traceback"]
    assert answer["error"] == "ValueError: no such thing"


def test_endless_recursion_and_wrong_syntax_are_errors_with_a_short_traceback(
    shared_runtime: Runtime, run_script: Run
) -> None:
    """Neither ends more than its own script."""
    deep = run_script(shared_runtime, "def f(): f()\nf()")
    wrong = run_script(shared_runtime, "x = 1\nif x\n    pass")

    assert deep["error"].startswith("RecursionError")
    assert len(deep["traceback"]) < 5_000
    assert 'File "script.py", line 2' in wrong["traceback"]


@pytest.mark.services
def test_long_output_keeps_its_beginning_and_end_and_is_kept_whole_in_a_file(
    make_script_runtime: MakeRuntime, run_script: Run
) -> None:
    """What reaches the model is bounded; nothing is lost."""
    runtime = make_script_runtime(code_max_output_bytes=1_000, code_max_error_bytes=500)
    code = "import sys\nprint('first')\nprint('x' * 5_000_000)\nprint('last')\nprint('e' * 5_000, file=sys.stderr)"

    answer = run_script(runtime, code)

    assert answer["output"].startswith("first\n")
    assert answer["output"].endswith("last\n")
    assert len(answer["output"]) < 1_200
    assert len(answer["error_output"]) < 700
    assert Path(answer["full_output"]).stat().st_size == 5_000_000 + len("first\n\nlast\n")


def test_the_time_limit_ends_the_whole_tree_and_keeps_what_was_printed(
    make_script_runtime: MakeRuntime, run_script: Run
) -> None:
    """A script that takes too long is ended with its children."""
    runtime = make_script_runtime(code_timeout=6)
    code = "import subprocess, time\nsubprocess.Popen(['sleep', '876543'])\nprint('begun', flush=True)\ntime.sleep(60)"

    answer = run_script(runtime, code)

    assert (answer["status"], answer["output"]) == ("timeout", "begun\n")
    assert "longer than 6 seconds" in answer["error"]
    assert running("sleep 876543") == []


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_a_cancelled_call_ends_the_tree_at_once(make_script_runtime: MakeRuntime, sandbox: str) -> None:
    """Cancel is heard while the script runs, and nothing of it runs when the call returns."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    runtime = make_script_runtime(code_sandbox=sandbox, on_progress=lambda _: loop.call_soon_threadsafe(begun.set))
    cancel = CancelToken()
    code = (
        "import subprocess, time\nsubprocess.Popen(['sleep', '765432'], start_new_session=True, env={})\n"
        "print('begun')\ntime.sleep(60)"
    )
    calling = asyncio.ensure_future(runtime.call("execute_code", {"code": code}, cancel=cancel))
    await asyncio.wait_for(begun.wait(), 30)

    cancel.cancel()
    result = await asyncio.wait_for(calling, 20)

    assert result.is_error
    assert running("sleep 765432") == []


@pytest.mark.services
async def test_a_deadline_gives_what_was_printed_until_then(script_runtime: Runtime) -> None:
    """The script ends before its call would be given up."""
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    outputs = []

    # A busy machine may need longer to start a script and to end it again.
    for seconds in (5, 20, 80):
        result = await script_runtime.call("execute_code", {"code": code}, timeout_seconds=seconds)
        outputs.append(json.loads(str(result.content)).get("output"))
        if outputs[-1]:
            break

    assert outputs[-1] == "begun\n", outputs


async def test_output_is_streamed_while_the_script_runs(make_script_runtime: MakeRuntime, project: Path) -> None:
    """Whoever watches sees lines before the script has ended: here it waits for a file that the watcher makes."""
    seen: list[str] = []

    def watch(message: str) -> None:
        seen.append(message)
        (project / "go").write_text("")

    runtime = make_script_runtime(on_progress=watch)
    code = "import os, time\nprint('one')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"

    result = await asyncio.wait_for(runtime.call("execute_code", {"code": code}), 60)

    assert not result.is_error
    assert "\n".join(seen).splitlines() == ["one", "two"]


@pytest.mark.services
async def test_who_watches_sees_a_bounded_part_of_a_line_without_end(make_script_runtime: MakeRuntime) -> None:
    """It would else be put together again with every piece of it."""
    seen: list[int] = []
    runtime = make_script_runtime(on_progress=lambda message: seen.append(len(message)))

    result = await runtime.call("execute_code", {"code": "print('x' * 20_000_000, end='')"})

    assert not result.is_error
    assert sum(seen) <= 64 * 1024


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize("code", [DAEMON, "import subprocess\nsubprocess.Popen(['sleep', '987654'])\nprint('left')"])
def test_what_a_script_leaves_running_is_ended_and_told(
    make_script_runtime: MakeRuntime, run_script: Run, sandbox: str, code: str
) -> None:
    """Also a process that hides in a session of its own without a name."""
    answer = run_script(make_script_runtime(code_sandbox=sandbox), code)

    assert answer["output"] == "left\n"
    assert "left running were ended" in answer["note"]
    assert running("sleep 987654") == []


@pytest.mark.services
def test_a_script_that_forks_without_end_is_ended_and_leaves_nothing(
    make_script_runtime: MakeRuntime, run_script: Run
) -> None:
    """The count of processes is bounded, also for root, whom the kernel does not bound."""
    runtime = make_script_runtime(code_timeout=20)

    answer = run_script(runtime, FORK_BOMB)
    after = run_script(runtime, "print('fine')")

    assert answer["error"] == "the script was ended because it started too many processes"
    assert after["output"] == "fine\n"


@pytest.mark.services
@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_processes_that_have_ended_and_that_nobody_waits_for_count_too(
    make_script_runtime: MakeRuntime, run_script: Run, sandbox: str
) -> None:
    """They use up the numbers that the machine has for processes; orphans among them are waited for."""
    runtime = make_script_runtime(
        code_sandbox=sandbox, code_max_processes=16, approver=ScriptedApprover("once", "once")
    )
    kept = "import os, time\nfor _ in range(40):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(30)"
    left = (
        "import os\nfor _ in range(40):\n    if (pid := os.fork()) == 0:\n"
        "        os.fork()\n        os._exit(0)\n    os.waitpid(pid, 0)"
    )

    assert run_script(runtime, hidden(kept))["error"] == "the script was ended because it started too many processes"
    assert run_script(runtime, hidden(left))["status"] == "success"


@pytest.mark.services
@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_the_bound_on_memory_is_for_all_processes_of_a_script(
    make_script_runtime: MakeRuntime, run_script: Run, sandbox: str
) -> None:
    """Each may be below it; what they share counts once."""
    runtime = make_script_runtime(code_sandbox=sandbox, code_memory_mb=200, approver=ScriptedApprover("once", "once"))
    code = (
        "import os, time\n{first}\nfor _ in range(4):\n    if os.fork() == 0:\n"
        "        {each}\n        time.sleep({seconds})\n        os._exit(0)\n"
        "for _ in range(4): os.wait()\nprint('done')"
    )

    apart = run_script(runtime, hidden(code.format(first="", each="x = b'x' * 90_000_000", seconds=30)))
    shared = run_script(runtime, hidden(code.format(first="x = b'x' * 90_000_000", each="", seconds=1)))

    assert apart["error"] == "the script was ended because it and its processes used more than 200 MB of memory"
    assert shared["output"] == "done\n"


@pytest.mark.services
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "import os\nfolder = f'/proc/{os.getppid()}/fd'\n"
            'hello = b\'{"called": "x", "executable": "a\\\\u0000b"}\'\nfor fd in os.listdir(folder):\n'
            "    try: f = os.open(f'{folder}/{fd}', os.O_WRONLY | os.O_NONBLOCK)\n    except OSError: continue\n"
            "    os.write(f, b'H' + len(hello).to_bytes(4, 'big') + hello)",
            id="says-hello-again",
        ),
        pytest.param("import os; os.kill(os.getppid(), 9)", id="kills-its-supervisor"),
        pytest.param("import os; os.closerange(0, 200)", id="closes-everything"),
        pytest.param(
            "import os\nfor fd in os.listdir('/proc/self/fd'):\n"
            "    try: os.write(int(fd), b'garbage' * 1000)\n    except OSError: pass\n"
            "read = globals().get('terminal')\nprint(read('echo 1') if read else '')",
            id="garbage-in-its-own-channel",
        ),
        pytest.param(
            "import os\nfolder = f'/proc/{os.getppid()}/fd'\nfor fd in os.listdir(folder):\n"
            "    try: os.write(os.open(f'{folder}/{fd}', os.O_WRONLY | os.O_NONBLOCK), b'Zgarbage' * 1000)\n"
            "    except OSError: pass",
            id="garbage-in-the-channel-of-its-supervisor",
        ),
        pytest.param(
            "import os\nfolder = f'/proc/{os.getppid()}/fd'\nfor fd in os.listdir(folder):\n"
            "    try: f = os.open(f'{folder}/{fd}', os.O_WRONLY)\n    except OSError: continue\n"
            "    for _ in range(20): os.write(f, b'O\\x00\\x0f\\xff\\xff' + b'x' * 0xfffff)",
            id="floods-it",
            marks=pytest.mark.services,
        ),
    ],
)
@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_a_script_that_attacks_its_channel_harms_its_own_call_alone(
    make_script_runtime: MakeRuntime, run_script: Run, code: str, sandbox: str
) -> None:
    """There is one answer, and the next script runs as if nothing had been."""
    # Without a sandbox, the gate asks about scripts that write to files of other processes.
    approver = ScriptedApprover("once", "once")
    runtime = make_script_runtime(code_sandbox=sandbox, code_timeout=15, approver=approver)

    answer = run_script(runtime, code)
    after = run_script(runtime, "print('fine')")

    assert answer["status"]
    assert after["output"] == "fine\n"


@pytest.mark.services
@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_fifty_scripts_leave_no_process_and_no_descriptor(
    make_script_runtime: MakeRuntime, run_script: Run, sandbox: str
) -> None:
    """What one script needs is given back before the next comes."""
    runtime = make_script_runtime(code_sandbox=sandbox)
    for _ in range(3):
        run_script(runtime, "print(1)")

    def counted() -> tuple[int, int]:
        ours = Path(f"/proc/{os.getpid()}")
        children = sum(len(task.joinpath("children").read_text().split()) for task in ours.joinpath("task").iterdir())
        return len(list(ours.joinpath("fd").iterdir())), children

    before = counted()
    for number in range(50):
        assert run_script(runtime, f"print({number})")["output"] == f"{number}\n"
    limit = time.monotonic() + 10
    while (now := counted()) > before and time.monotonic() < limit:
        # The last one leaves in the background.
        threading.Event().wait(0.02)

    assert now[0] <= before[0] + 4
    assert now[1] <= before[1] + 1


def test_strict_mode_runs_in_an_empty_folder_with_the_standard_library_alone(
    make_script_runtime: MakeRuntime, run_script: Run, project: Path
) -> None:
    """Nothing of the project, nothing that was installed, and the folder is gone afterwards."""
    (project / "mine.py").write_text("x = 1")
    code = "import os, sys\nprint(os.getcwd(), os.listdir(), any('site-packages' in p for p in sys.path))\nimport mine"

    answer = run_script(make_script_runtime(code_mode="strict"), code)

    folder, _, rest = answer["output"].partition(" ")
    assert rest == "[] False\n"
    assert folder != str(project)
    assert answer["error"] == "ModuleNotFoundError: No module named 'mine'"


def test_project_mode_works_in_the_folder_of_the_session_and_imports_from_it(
    script_runtime: Runtime, run_script: Run, project: Path
) -> None:
    """A folder that the terminal went to is the script's, too."""
    (project / "sub").mkdir()
    (project / "sub" / "mine.py").write_text("x = 41")
    assert not script_runtime.call_sync("terminal", {"command": "cd sub"}).is_error

    answer = run_script(script_runtime, "import os, mine\nprint(os.getcwd(), mine.x)\nopen('made', 'w').close()")

    assert answer["output"] == f"{project / 'sub'} 41\n"
    assert (project / "sub" / "made").exists()


@pytest.mark.services
def test_the_interpreter_of_the_project_is_used(
    make_script_runtime: MakeRuntime, run_script: Run, project: Path
) -> None:
    """A `.venv` in the folder comes before any other Python, also one that is made later."""
    runtime = make_script_runtime(code_python="")
    first = run_script(runtime, "import sys; print(sys.prefix)")
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(PYTHON).parent}\n")
    (project / ".venv" / "bin" / "python").symlink_to(PYTHON)

    second = run_script(runtime, "import sys; print(sys.prefix)")

    assert first["output"] != second["output"]
    assert second["output"] == f"{project / '.venv'}\n"


def test_a_missing_interpreter_is_a_clear_error(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """It says what to install or to set."""
    answer = run_script(make_script_runtime(code_python="/no/such/python"), "print(1)")

    assert (
        answer["error"] == "no Python was found in the environment; install python3 there, or set code_execution.python"
    )


def test_a_program_that_is_no_python_is_a_clear_error(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """What it said instead is told."""
    answer = run_script(make_script_runtime(code_python="/bin/ls"), "print(1)")

    assert answer["error"].startswith("the interpreter could not run the script: ")
