"""Loading a file and checking a tool never install anything, however the code starts the installer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest

from tests.registry.declaring import declare
from toolcrib.registry.discovery import load_tool_file
from toolcrib.registry.install_guard import (
    InstallRefused,
    find_install,
    find_install_in_shell,
    refusing_installs,
)
from toolcrib.registry.registry import ToolRegistry

INSTALLS = {
    "python -m pip install -q foo": ("foo",),
    "python3.12 -m pip --no-input install 'foo>=1,<2' bar": ("foo>=1,<2", "bar"),
    "/usr/bin/pip3 install --user foo": ("foo",),
    "pip3.11 --proxy http://127.0.0.1:1 install foo": ("foo",),
    "pip install -r requirements.txt": ("requirements.txt",),
    "pip install --index-url http://127.0.0.1/simple foo": ("foo",),
    "pip uninstall -y foo": ("foo",),
    "uv pip install foo": ("foo",),
    "uv add foo": ("foo",),
    "uv tool install foo": ("foo",),
    "pipx install foo": ("foo",),
    "poetry add foo": ("foo",),
    "conda install -y -c forge foo": ("foo",),
    "sudo -n apt-get install -y ffmpeg": ("ffmpeg",),
    "npm install -g foo": ("foo",),
    "env PIP_USER=1 pip install foo": ("foo",),
    "cd /tmp && pip install foo": ("foo",),
    "which foo || pip install foo": ("foo",),
    "bash -lc 'pip install foo'": ("foo",),
    'sh -c "bash -c \\"pip install foo\\""': ("foo",),
    "true; echo $(pip install foo)": ("foo",),
    "echo `pip install foo`": ("foo",),
    "pip install 'foo": ("'foo",),
    "python -m ensurepip": ("pip",),
    "python setup.py develop": (),
    "python -c \"import pip; pip.main(['install', 'foo'])\"": (),
}
HARMLESS = [
    "docker version",
    "pip --version",
    "pip list",
    "pip show install",
    "python -m pip freeze",
    "python -c 'print(1)'",
    "uv --version",
    "uv run python script.py",
    "npm --version",
    "git clone install",
    "echo pip install foo",
    "grep 'pip install' README.md",
    "ffmpeg -version",
    "which pip",
    "",
]
FAKE_INSTALLER = '#!/bin/sh\ntouch "$0.ran"\n'


@pytest.mark.parametrize("command", INSTALLS)
def test_a_command_that_installs_is_recognised(command: str):
    """Whatever wraps an installer, its command is found, and so is what it would install."""
    found = find_install_in_shell(command)

    assert found is not None
    assert found.packages == INSTALLS[command]


@pytest.mark.parametrize("command", HARMLESS)
def test_a_command_that_installs_nothing_passes(command: str):
    """Probing for a program, or reading what is installed, is allowed."""
    assert find_install_in_shell(command) is None
    assert find_install(command.split()) is None


def test_the_command_for_the_person_is_for_the_python_that_runs_toolcrib():
    """A pip found somewhere on the path may belong to another Python."""
    found = find_install(["pip", "install", "--quiet", "foo>=1"])

    assert found is not None
    assert found.command == f"{sys.executable} -m pip install 'foo>=1'"


@pytest.fixture
def pip(tmp_path: Path) -> Path:
    """A program with the name of the installer that only shows that it ran."""
    program = tmp_path / "pip"
    program.write_text(FAKE_INSTALLER)
    program.chmod(0o755)
    return program


STARTERS = {
    "subprocess.run": lambda pip: subprocess.run([pip, "install", "foo"], check=False),
    "bytes": lambda pip: subprocess.run([os.fsencode(pip), b"install", b"foo"], check=False),
    "shell": lambda pip: subprocess.run(f"{pip} install foo", shell=True, check=False),
    "os.system": lambda pip: os.system(f"{pip} install foo"),
    "os.popen": lambda pip: os.popen(f"{pip} install foo"),
    "os.posix_spawn": lambda pip: os.posix_spawn(pip, [str(pip), "install", "foo"], {}),
    "os.execv": lambda pip: os.execv(pip, [str(pip), "install", "foo"]),
}


@pytest.mark.parametrize("start", STARTERS.values(), ids=STARTERS)
def test_no_way_to_start_a_process_starts_an_installer(pip: Path, start):
    """Every function of Python that starts a program is covered, because the hook is below all of them."""
    with refusing_installs() as installs, pytest.raises(InstallRefused, match="it tried to install 'foo'"):
        start(pip)

    assert [attempt.packages for attempt in installs.attempts] == [("foo",)]
    assert not Path(f"{pip}.ran").exists()


def test_a_forked_child_that_would_become_the_installer_ends(pip: Path):
    """It does not continue as a second copy of the program."""
    with refusing_installs():
        code = os.spawnv(os.P_WAIT, pip, [str(pip), "install", "foo"])

    assert code == 126
    assert not Path(f"{pip}.ran").exists()


PIP_INSIDE = """
    import runpy, sys
    from toolcrib.registry.install_guard import InstallRefused, refusing_installs

    sys.argv = ["pip", "install", "no-such-package-for-toolcrib"]
    with refusing_installs():
        try:
            {call}
        except InstallRefused as refusal:
            print(refusal)
"""


@pytest.mark.parametrize(
    "call",
    [
        "__import__('pip').main(['install', 'no-such-package-for-toolcrib'])",
        "runpy.run_module('pip', run_name='__main__')",
    ],
)
def test_pip_inside_this_process_is_refused(call: str):
    """Pip's own functions start no process until it builds something, so its install command must not even run."""
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}

    ended = subprocess.run(
        [sys.executable, "-c", dedent(PIP_INSIDE).format(call=call)], capture_output=True, text=True, env=offline
    )

    assert ended.stdout.startswith("it tried to install 'no-such-package-for-toolcrib'")


def test_other_threads_may_install_meanwhile(pip: Path):
    """A user's own `pip install` must not fail because a plugin happens to be loading."""
    outside = threading.Thread(target=subprocess.run, args=([pip, "install", "foo"],))
    guarded, done = threading.Event(), threading.Event()

    def load() -> None:
        with refusing_installs():
            guarded.set()
            done.wait()

    loading = threading.Thread(target=load)
    loading.start()
    guarded.wait()
    outside.start()
    outside.join()
    done.set()
    loading.join()

    assert Path(f"{pip}.ran").exists()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 reports no new threads to audit hooks")
def test_a_thread_started_while_loading_cannot_install_either(pip: Path):
    """A thread is no way around the guard."""
    errors: list[BaseException] = []

    def install() -> None:
        try:
            subprocess.run([pip, "install", "foo"], check=False)
        except InstallRefused as error:
            errors.append(error)

    with refusing_installs():
        thread = threading.Thread(target=install)
        thread.start()
        thread.join()

    assert len(errors) == 1


def test_installing_works_again_after_the_block(pip: Path):
    """The guard ends with its block."""
    with refusing_installs():
        pass

    subprocess.run([pip, "install", "foo"], check=True)

    assert Path(f"{pip}.ran").exists()


def test_a_tool_file_that_installs_on_import_is_skipped_with_the_command(tmp_path: Path, pip: Path):
    """The reason names what it wanted, and the command for the person."""
    file = tmp_path / "greedy.py"
    file.write_text(f"import subprocess\nsubprocess.check_call([{str(pip)!r}, 'install', 'foo'])\n")

    loaded = load_tool_file(file, ToolRegistry())

    assert loaded.problem == (
        "it tried to install 'foo' while it was being loaded, which toolcrib does not allow; "
        f"if you trust that, run `{sys.executable} -m pip install foo` and start again"
    )
    assert not Path(f"{pip}.ran").exists()


@pytest.mark.parametrize("swallows", [True, False])
def test_a_check_that_installs_makes_its_tool_unavailable_and_says_why(pip: Path, swallows: bool):
    """A check never installs, whether or not it handles the refusal."""

    def check() -> bool:
        try:
            subprocess.check_call([pip, "install", "foo"])
        except InstallRefused:
            if not swallows:
                raise
            return False
        return True

    registry = ToolRegistry()
    declare(registry, "greedy", check_fn=check)

    (entry,) = registry.entries()
    outcome = registry.outcome(entry)

    assert (outcome.available, outcome.reason) == (
        False,
        "its availability check tried to install 'foo', which it must not do",
    )
    assert f"run `{sys.executable} -m pip install foo`" in outcome.remedy
    assert not Path(f"{pip}.ran").exists()


def test_the_guard_is_silent_when_the_interpreter_ends() -> None:
    """Objects that die last still raise events; by then the globals of every module are gone."""
    program = """
        import os, sys
        from toolcrib.registry import install_guard

        class LivesLongest:
            def __del__(self, open=open, compile=compile, exec=exec):
                open("/dev/null").close()
                exec(compile("1", "late", "exec"))

        with install_guard.refusing_installs():
            pass
        # Both modules stay to the end, and the one that was imported first is cleared last.
        sys.kept = os, install_guard
        os.kept = LivesLongest()
        """
    ended = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, "")
