"""What others can see of the running program: no key in its environment block, while tools still read theirs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolcrib

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc"),
    pytest.mark.quick_rows(2),
]

SOURCE = Path(toolcrib.__file__).parents[1]
DEADLINE_SECONDS = 30
KEY = "tide-5f0c9e7712aa"
UNNAMED = "no-name-says-that-this-is-a-secret"
FROM_FILE = "from-the-env-file-99"

WAITING_TOOL = """
import ctypes, json, os, subprocess
from pathlib import Path
from toolcrib.config.environment import child_environment
from toolcrib.registry import registry

def wait(args, **kw):
    folder = Path(args["folder"])
    (folder / "ready").write_text(str(os.getpid()))
    (folder / "go").read_text()
    child = subprocess.run(["cat", "/proc/self/environ"], env=child_environment(os.environ), capture_output=True)
    inherited = subprocess.run(["printenv", "TIDES_API_KEY"], capture_output=True, text=True)
    return json.dumps({
        "key": os.getenv("TIDES_API_KEY"), "other": os.environ["SOMETHING"], "file": os.getenv("FILE_API_KEY"),
        "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), "child": child.stdout.decode(),
        "inherited": inherited.stdout.strip(), "own_files": [str(len(os.listdir("/proc/self/fd")) > 0)],
    })

registry.register(name="wait", toolset="waiting", handler=wait, schema={"description": "Wait.", "parameters": {
    "type": "object", "required": ["folder"], "properties": {"folder": {"type": "string"}}}})
"""
CONSOLE_SCRIPT = "import sys; from toolcrib.__main__ import main; sys.exit(main())"


class Waiting:
    """The program, held inside a tool until `finish` is called."""

    def __init__(self, folder: Path, start: list[str], environ: dict[str, str]) -> None:
        self.folder = folder
        arguments = ["tools", "run", "wait", json.dumps({"folder": str(folder)})]
        self.process = subprocess.Popen(
            [sys.executable, *start, *arguments], env=environ, cwd=folder, stdout=subprocess.PIPE, text=True
        )

    def wait_until_inside(self) -> int:
        """The process id that the tool runs in."""
        # Not a plain read: that would wait for ever on a program that ended before it came here.
        reader = os.open(self.folder / "ready", os.O_RDONLY | os.O_NONBLOCK)
        try:
            ready, _, _ = select.select([reader], [], [], DEADLINE_SECONDS)
            assert ready, "the tool was never called"
            return int(os.read(reader, 100))
        finally:
            os.close(reader)

    def finish(self) -> dict[str, object]:
        (self.folder / "go").write_text("")
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 0, output
        found: dict[str, object] = json.loads(output)
        return found


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TOOLCRIB_HOME": str(tmp_path / "crib"),
        "PYTHONPATH": str(SOURCE),
        "TIDES_API_KEY": KEY,
        "SOMETHING": UNNAMED,
    }


@pytest.fixture(params=["module", "console script"])
def waiting(request: pytest.FixtureRequest, tmp_path: Path, environ: dict[str, str]) -> Iterator[Waiting]:
    tools = tmp_path / "crib" / "tools"
    tools.mkdir(parents=True)
    (tools / "wait.py").write_text(WAITING_TOOL)
    (tmp_path / "crib" / ".env").write_text(f"FILE_API_KEY={FROM_FILE}\n")
    script = tmp_path / "launcher"
    script.write_text(CONSOLE_SCRIPT)
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)
    held = Waiting(tmp_path, ["-m", "toolcrib"] if request.param == "module" else [str(script)], environ)
    yield held
    if held.process.poll() is None:
        held.process.kill()
        held.process.wait()
    assert held.process.stdout is not None
    held.process.stdout.close()


def visible(pid: int) -> str:
    """The environment of a process as seen from outside; empty if it may not be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode()
    except PermissionError:
        return ""


def test_keys_cannot_be_seen_from_outside_while_tools_read_them(waiting: Waiting) -> None:
    """`/proc/PID/environ` shows what any child may see; `os.getenv` in the process still has everything."""
    pid = waiting.wait_until_inside()

    seen = visible(pid)
    inside = waiting.finish()

    assert pid == waiting.process.pid
    for secret in (KEY, UNNAMED, FROM_FILE, "TIDES_API_KEY", "SOMETHING"):
        assert secret not in seen
    assert "PATH=" in seen or seen == ""
    assert (inside["key"], inside["other"], inside["file"]) == (KEY, UNNAMED, FROM_FILE)


def test_children_see_no_key_and_no_debugger_comes_in(waiting: Waiting) -> None:
    """A child with its own environment shows none; the process is closed to others of the same user."""
    waiting.wait_until_inside()

    inside = waiting.finish()

    child = str(inside["child"])
    assert "PATH=" in child
    assert not any(secret in child for secret in (KEY, UNNAMED, FROM_FILE))
    assert inside["dumpable"] == 0
    assert inside["own_files"] == ["True"]


def test_libraries_in_the_process_still_find_the_variables(waiting: Waiting) -> None:
    """The C library has its own copies: a child that inherits everything inherits what it always did."""
    waiting.wait_until_inside()

    assert waiting.finish()["inherited"] == KEY


def test_a_signal_ends_the_program_as_before(waiting: Waiting) -> None:
    """Hiding the environment does not change how the program is stopped."""
    waiting.wait_until_inside()

    waiting.process.send_signal(signal.SIGTERM)

    assert waiting.process.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM


def test_a_repeated_name_and_odd_bytes_are_hidden_too(tmp_path: Path) -> None:
    """A block that no shell would write: a duplicate name, bytes that are not text, and an entry without a value."""
    code = (
        "import os\n"
        "from toolcrib.config.environment import hide_secrets\n"
        "assert hide_secrets()\n"
        "block = open('/proc/self/environ', 'rb').read()\n"
        "assert not set(block) - {0} or b'PATH=' in block, block\n"
        "for secret in (b'first', b'second', b'\\xff', b'ODD'):\n"
        "    assert secret not in block, block\n"
        "assert os.environb[b'ODD'] == b'\\xff\\xfe' and os.getenv('TWICE') == 'first'\n"
        "os.execv('/usr/bin/env', ['env'])\n"
    )
    helper = (
        "import ctypes, sys\n"
        "strings = [b'PATH=/usr/bin', b'TWICE=first', b'TWICE=second', b'ODD=\\xff\\xfe', b'NOVALUE', "
        f"b'PYTHONPATH={SOURCE}']\n"
        "block = (ctypes.c_char_p * (len(strings) + 1))(*strings, None)\n"
        "arguments = [sys.executable.encode(), b'-c', sys.argv[1].encode()]\n"
        "argv = (ctypes.c_char_p * 4)(*arguments, None)\n"
        "ctypes.CDLL(None).execve(arguments[0], argv, block)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", helper, code], capture_output=True, cwd=tmp_path, timeout=DEADLINE_SECONDS, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split(b"\n").count(b"TWICE=first") == 1


def test_importing_the_library_touches_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    """Only the program hides its environment; the library leaves its host's process alone."""
    code = (
        "import ctypes, toolcrib, toolcrib.runtime, toolcrib.config.environment, toolcrib.__main__\n"
        "toolcrib.get_tool_definitions()\n"
        "print(open('/proc/self/environ').read(), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert KEY in done.stdout
    assert done.stdout.endswith(" 1\n")


def test_commands_of_a_library_process_cannot_read_its_environment(environ: dict[str, str], tmp_path: Path) -> None:
    """A host that runs commands through a Runtime shows them no key in `/proc`, and keeps its own variables."""
    code = (
        "import ctypes, json, os, pathlib, subprocess\n"
        "from toolcrib.registry.default import registry\n"
        "from toolcrib.registry.registry import ToolRegistry\n"
        "from toolcrib.testing import ScriptedApprover, isolated_runtime\n"
        f"home = pathlib.Path({str(tmp_path / 'crib')!r})\n"
        "options = {'registry': ToolRegistry(parent=registry), 'approver': ScriptedApprover('once')}\n"
        "with isolated_runtime(home, 'terminal: {login_shell: false}', **options) as runtime:\n"
        "    command = f'cat -v /proc/{os.getpid()}/environ'\n"
        "    seen = str(runtime.call_sync('terminal', {'command': command}).content)\n"
        "inherited = subprocess.run(['printenv', 'TIDES_API_KEY'], capture_output=True, text=True).stdout\n"
        "print(json.dumps([seen, os.environ['TIDES_API_KEY'], inherited, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)]))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    seen, own, inherited, dumpable = json.loads(done.stdout)

    assert "PATH=" in seen
    assert not any(secret in seen for secret in (KEY, UNNAMED, "TIDES_API_KEY"))
    assert (own, inherited.strip(), dumpable) == (KEY, KEY, 1)


def test_the_exit_code_and_standard_input_stay(environ: dict[str, str], tmp_path: Path) -> None:
    """A wrong command line still exits with 2, and piped input still arrives."""
    start = [sys.executable, "-m", "toolcrib"]

    wrong = subprocess.run([*start, "nothing-like-that"], env=environ, cwd=tmp_path, capture_output=True, check=False)
    piped = subprocess.run(
        [*start, "tools", "run", "tool_search", "-"],
        env=environ, cwd=tmp_path, input='{"query": "tide"}', capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert wrong.returncode == 2
    assert piped.returncode == 0, piped.stderr
