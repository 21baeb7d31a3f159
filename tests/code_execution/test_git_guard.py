"""What a script did to files that git acts on."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.code_execution.running_scripts import Run, hidden
from toolcrib.runtime import Runtime

HOOK = "#!/bin/sh\ntrue\n"


@pytest.fixture
def repository(project: Path) -> Path:
    """A repository one folder down, with a hook of its owner."""
    folder = project / "service"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    hook = folder / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(HOOK)
    hook.chmod(0o755)
    return folder / ".git"


def skip_if_refused(answer: dict[str, Any]) -> None:
    """Older versions of Landlock let nobody move a file to another folder."""
    if "Errno 18" in answer.get("error", ""):
        pytest.skip("the sandbox of this kernel refuses to move files between folders")


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and bytes of what git acts on."""
    files = [folder / "config", *(path for path in (folder / "hooks").iterdir() if path.suffix != ".sample")]
    return {path.name: (path.lstat().st_mode, path.read_bytes()) for path in files}


@pytest.mark.services
@pytest.mark.parametrize(
    "script",
    [
        "open('service/.git/hooks/post-checkout', 'w').write('#!/bin/sh')",
        "open('service/.git/hooks/pre-push', 'a').write('echo more')",
        "import os; os.chmod('service/.git/hooks/pre-push', 0o4777)",
        "import os; os.remove('service/.git/hooks/pre-push'); os.symlink('/bin/sh', 'service/.git/hooks/pre-push')",
        "open('service/.git/config', 'a').write('[core]\\n\\thooksPath = /nowhere\\n')",
        "import os; os.rename('service/.git/hooks', 'x'); os.symlink('../../x', 'service/.git/hooks')",
        "import shutil; shutil.rmtree('service/.git/hooks'); open('service/.git/hooks', 'w')",
        "import os; p = 'service/.git/hooks/post-merge'; open(p, 'w'); os.chmod('service/.git/hooks', 0)",
        "import os; os.mkfifo('service/.git/hooks/post-merge')",
    ],
)
def test_hooks_and_settings_are_as_they_were(
    script_runtime: Runtime, run_script: Run, repository: Path, script: str
) -> None:
    """Whatever was done to them is undone byte for byte, and the answer says so."""
    before = state(repository)
    answer = run_script(script_runtime, hidden(script))
    assert state(repository) == before
    skip_if_refused(answer)
    assert "service/.git/" in answer["note"]
    assert "undone" in answer["note"]


@pytest.mark.services
def test_another_repository_in_its_place_is_set_aside(
    script_runtime: Runtime, run_script: Run, repository: Path
) -> None:
    """Git does not find it, and nothing of it, or of the first one, is deleted."""
    script = "import os; os.rename('service/.git', 'kept'); os.mkdir('service/.git'); open('service/.git/config', 'w')"
    answer = run_script(script_runtime, hidden(script))
    skip_if_refused(answer)
    assert not repository.exists()
    assert (repository.parent / ".git.of-script-1" / "config").exists()
    assert (repository.parent.parent / "kept" / "hooks" / "pre-push").read_text() == HOOK
    assert "service/.git (now .git.of-script-1)" in answer["note"]


def test_links_of_a_script_lead_nothing_out_of_the_project(
    script_runtime: Runtime, run_script: Run, repository: Path, tmp_path: Path
) -> None:
    """What is put back goes where it was, not where a link that the script left points to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    script = f"import os; os.rename('service/.git/hooks', 'x'); os.symlink({str(outside)!r}, 'service/.git/hooks')"
    run_script(script_runtime, hidden(script))
    assert list(outside.iterdir()) == []
    assert stat.S_ISDIR((repository / "hooks").lstat().st_mode)


@pytest.mark.services
def test_ordinary_work_in_a_repository_stays(script_runtime: Runtime, run_script: Run, repository: Path) -> None:
    """A commit is no setting, and a script that leaves those alone hears nothing."""
    script = (
        "import subprocess\n"
        "open('service/a.txt', 'w').write('a')\n"
        "subprocess.run(['git', '-C', 'service', 'add', 'a.txt'], check=True)\n"
        "subprocess.run(['git', '-C', 'service', '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'One'],"
        " check=True)\n"
    )
    answer = run_script(script_runtime, script)
    assert answer["status"] == "success"
    assert "note" not in answer
    log = subprocess.run(["git", "log", "--oneline"], cwd=repository.parent, capture_output=True, text=True, check=True)
    assert "One" in log.stdout


@pytest.mark.services
async def test_scripts_at_once_cannot_vouch_for_each_other(script_runtime: Runtime, repository: Path) -> None:
    """What one puts there while another one runs is not taken for what was there before."""
    before = state(repository)
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    writes = "open('service/.git/hooks/post-merge', 'w').write('x')\nopen('go', 'w')"
    answers = await asyncio.gather(
        *(script_runtime.call("execute_code", {"code": hidden(code)}) for code in (waits, writes))
    )
    assert all(json.loads(str(answer.content))["status"] == "success" for answer in answers)
    assert state(repository) == before
