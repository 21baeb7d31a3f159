"""From the sandbox to the host through git: nothing that a sandboxed command leaves is run by git outside."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.environments.engines import IMAGE, docker_host
from toolcrib.config.terminal_settings import DockerSettings, TerminalSettings
from toolcrib.core.environments import EnvironmentSpec
from toolcrib.environments import git_guard
from toolcrib.environments.git_guard import GitGuards
from toolcrib.environments.specs import guarded_folders
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover, isolated_runtime

IDENTITY = "-c user.name=a -c user.email=a@b.example"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "a.txt").write_text("a\n")
    return folder


@pytest.fixture
def runtime(tmp_path: Path, work: Path) -> Iterator[Runtime]:
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": work}
    config = "terminal: {backend: sandbox, login_shell: false}\n"
    with isolated_runtime(tmp_path / "home", config, approver=ScriptedApprover(*["once"] * 99), **options) as made:
        yield made


def run(runtime: Runtime, command: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(str(runtime.call_sync("terminal", {"command": command, **more}).content))
    return answer


def use_git(folder: Path) -> None:
    """What a person would do there, outside the sandbox."""
    environ = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_EDITOR": "true"}
    for words in (
        "status",
        f"{IDENTITY} rebase --continue",
        "add -A",
        f"{IDENTITY} commit -q --allow-empty -m more",
        "checkout -q -B other",
        "diff HEAD",
        "log -1 -p",
        "st",
        "reset -q --hard",
    ):
        (folder / "changing").write_text(words)
        subprocess.run(["git", *words.split()], cwd=folder, env=environ, capture_output=True, check=False)


PROGRAM = 'M={marker}; printf "#!/bin/sh\\ntouch {marker}\\n" > evil.sh; chmod +x evil.sh; P=$PWD/evil.sh; '
PLANTS = {
    "hook": ("", "cp evil.sh .git/hooks/post-commit"),
    "fsmonitor": ("", "git config core.fsmonitor $P"),
    "hooks path": ("", "mkdir h; cp evil.sh h/pre-commit; git config core.hooksPath h"),
    "filter": ("", 'git config filter.x.clean "$P"; echo "* filter=x" > .gitattributes'),
    "external diff": ("", 'git config diff.external "$P"'),
    "include": ("", 'printf "[core]\\n\\tfsmonitor = $P\\n" > i; git config include.path ../i'),
    "same line": ("", 'printf "[core] fsmonitor = $P\\n" >> .git/config'),
    "new repository": (
        "new",
        "git init -q new; git -C new config core.fsmonitor $P; cp evil.sh new/.git/hooks/post-commit",
    ),
    "deep": ("a/b/c/d/e", "git init -q a/b/c/d/e; git -C a/b/c/d/e config core.fsmonitor $P"),
    "hidden": (".x/y", "git init -q .x/y; git -C .x/y config core.fsmonitor $P"),
    "bare layout": (
        "bare",
        'mkdir -p bare/objects bare/refs; echo "ref: refs/heads/x" > bare/HEAD; '
        'printf "[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = .\\n" > bare/config; '
        "git config -f bare/config core.fsmonitor $P",
    ),
    "git file": (
        "sub",
        "mkdir sub; git init -q --bare elsewhere; git -C elsewhere config core.bare false; "
        "git -C elsewhere config core.worktree ../sub; git -C elsewhere config core.fsmonitor $P; "
        'echo "gitdir: ../elsewhere" > sub/.git',
    ),
    "common folder": (
        "common",
        "git init -q common; mkdir shared; mv common/.git/objects common/.git/refs shared/; "
        "cp common/.git/config shared/config; git config -f shared/config core.fsmonitor $P; "
        "echo ../../shared > common/.git/commondir",
    ),
    "worktree settings": (
        "",
        "git config extensions.worktreeConfig true; git config -f .git/config.worktree core.fsmonitor $P",
    ),
    "alias with a setting": ("", 'git config alias.st "-c core.fsmonitor=$P status"'),
    "settings elsewhere": (
        "linked",
        "git init -q --bare made; mkdir linked shared; mv made/objects made/refs shared/; mv made/HEAD linked/; "
        "echo ../shared > linked/commondir; "
        'printf "[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n" > shared/config; '
        "git config -f shared/config alias.st \\!$P",
    ),
    "behind a false repository": (
        "logs/inner",
        "mkdir -p objects refs; echo x > HEAD; git init -q logs/inner; git -C logs/inner config core.fsmonitor $P",
    ),
    "unfinished rebase": (
        "",
        f"git {IDENTITY} commit -q --allow-empty -m One; git {IDENTITY} commit -q --allow-empty -m Two; "
        f"GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git {IDENTITY} rebase -q -i HEAD~1; "
        'echo "exec $P" >> .git/rebase-merge/git-rebase-todo',
    ),
    "work tree outside": (
        "",
        f'echo x > "$(basename $M)"; git add .; git {IDENTITY} commit -qm One; '
        'git config core.worktree "$(dirname $M)"',
    ),
    "replaced": ("", "mv .git old; cp -r old .git; git config core.fsmonitor $P"),
}


@pytest.mark.quick_rows(5)
@pytest.mark.parametrize("name", PLANTS)
def test_git_outside_runs_nothing_that_a_sandboxed_command_left(
    runtime: Runtime, work: Path, tmp_path: Path, name: str
) -> None:
    """Whether the repository was there before or is new, and whatever its layout is."""
    marker = tmp_path / "marker"
    folder, plant = PLANTS[name]
    answer = run(runtime, PROGRAM.format(marker=marker) + plant)
    assert answer["exit_code"] == 0, answer
    use_git(work / folder)
    assert not marker.exists()
    assert "git would run them outside the sandbox" in answer["note"]


@pytest.mark.services
def test_the_plants_would_work_without_a_sandbox(work: Path, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    idle = []
    for number, (folder, plant) in enumerate(PLANTS.values()):
        copy, marker = tmp_path / f"copy-{number}", tmp_path / f"marker-{number}"
        subprocess.run(["cp", "-r", str(work), str(copy)], check=True)
        subprocess.run(["bash", "-c", PROGRAM.format(marker=marker) + plant], cwd=copy, capture_output=True, check=True)
        use_git(copy / folder)
        idle += [] if marker.exists() else [plant]
    assert idle == []


def test_ordinary_work_with_git_goes_on_in_the_sandbox(runtime: Runtime, work: Path) -> None:
    """Commits, branches, remotes, new repositories and worktrees, without a word about the guard."""
    answer = run(
        runtime,
        f"git add a.txt && git {IDENTITY} commit -qm One && git config user.name Ada && "
        "git remote add origin https://example.org/a.git && git checkout -q -b topic && "
        f"git worktree add -q ../{work.name}/tree && git init -q new && cd new && echo b > b && git add b && "
        f"git {IDENTITY} commit -qm Two && git -C ../tree log --oneline",
    )
    assert (answer["exit_code"], answer.get("note")) == (0, None), answer
    assert "One" in answer["output"]
    settings = subprocess.run(["git", "config", "-l"], cwd=work, capture_output=True, text=True, check=True).stdout
    assert "user.name=Ada" in settings
    assert "remote.origin.url" in settings


@pytest.mark.services
def test_what_a_background_process_plants_later_is_undone_while_it_runs(
    runtime: Runtime, work: Path, tmp_path: Path
) -> None:
    """The guard goes on as long as something runs in the sandbox."""
    started = run(
        runtime,
        "until [ -e go ]; do sleep 0.05; done; echo x > .git/hooks/post-commit; touch done; sleep 600",
        background=True,
    )
    (work / "go").touch()
    while not (work / "done").exists():
        time.sleep(0.02)
    for _ in range(1000):
        if not (work / ".git/hooks/post-commit").exists():
            break
        time.sleep(0.02)
    assert not (work / ".git/hooks/post-commit").exists()
    runtime.call_sync("process", {"action": "kill", "session_id": started["session_id"]})


def test_hooks_in_the_folder_that_the_settings_name_are_guarded(runtime: Runtime, work: Path) -> None:
    """The person chose that folder; a sandboxed command does not decide what runs from it."""
    (work / ".hooks").mkdir()
    (work / ".hooks" / "pre-commit").write_text("#!/bin/sh\n")
    subprocess.run(["git", "config", "core.hooksPath", ".hooks"], cwd=work, check=True)
    answer = run(runtime, "echo touch x >> .hooks/pre-commit; echo y > .hooks/post-commit")
    assert (work / ".hooks" / "pre-commit").read_text() == "#!/bin/sh\n"
    assert not (work / ".hooks" / "post-commit").exists()
    assert (work / ".hooks" / "post-commit.of-script-1").read_text() == "y\n"
    assert ".hooks/pre-commit" in answer["note"]


@pytest.mark.services
def test_settings_files_that_a_repository_includes_are_guarded(runtime: Runtime, work: Path, tmp_path: Path) -> None:
    """The person included a file of the work tree; a sandboxed command adds nothing to it that git runs."""
    (work / "shared.cfg").write_text("[user]\n\tname = Ada\n")
    subprocess.run(["git", "config", "include.path", "../shared.cfg"], cwd=work, check=True)
    marker = tmp_path / "marker"
    answer = run(runtime, PROGRAM.format(marker=marker) + 'printf "[core]\\n\\tfsmonitor = $P\\n" >> shared.cfg')
    use_git(work)
    assert not marker.exists()
    assert "shared.cfg" in answer["note"]
    assert (work / "shared.cfg").read_text() == "[user]\n\tname = Ada\n"
    assert "note" not in run(runtime, 'printf "[user]\\n\\temail = a@b.example\\n" >> shared.cfg')


@pytest.fixture
def module(work: Path) -> Path:
    """A submodule inside the folder of another one: `.git/modules/lib` and `.git/modules/lib/inner`."""
    modules = work / ".git" / "modules"
    modules.mkdir()
    for name in ("lib", "lib/inner"):
        subprocess.run(["git", "init", "-q", "--separate-git-dir", str(modules / name), str(work / name)], check=True)
    return work / "lib" / "inner"


@pytest.mark.parametrize(
    "plant",
    [
        "git -C lib/inner config core.fsmonitor $P",
        "cd .git; cp -r modules copied; git config -f copied/lib/inner/config core.fsmonitor $P; rm -r modules; "
        "ln -s copied modules",
    ],
)
def test_repositories_inside_others_are_guarded(runtime: Runtime, module: Path, tmp_path: Path, plant: str) -> None:
    """Also if their folder is replaced by a link."""
    marker = tmp_path / "marker"
    answer = run(runtime, PROGRAM.format(marker=marker) + plant)
    use_git(module)
    assert not marker.exists()
    assert "outside the sandbox" in answer["note"]


def test_more_new_folders_than_can_be_looked_at_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of folders must not hide a repository without a word."""
    monkeypatch.setattr(git_guard, "MOST_FOLDERS", 3)
    monkeypatch.setattr(git_guard, "MOST_NEW_FOLDERS", 2)
    for name in ("a/b", "c/d", "e/f"):
        (tmp_path / name).mkdir(parents=True)
    guards = GitGuards("the command's")
    guards.enter(tmp_path)
    assert guards.check(tmp_path) == ""
    (tmp_path / "g" / "h").mkdir(parents=True)
    assert guards.check(tmp_path) == ""
    for number in range(9):
        (tmp_path / f"new-{number}").mkdir()
    assert "do not use git in them" in guards.leave(tmp_path)


def test_what_a_container_can_write_is_guarded(tmp_path: Path) -> None:
    """The mounted workspace and writable volumes; not what is read-only, named, or a single file."""
    for name in ("work", "data", "shown"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    volumes = [
        f"{tmp_path}/data:/data",
        f"{tmp_path}/shown:/shown:ro",
        f"{tmp_path}/file:/file",
        "named:/x",
    ]
    terminal = TerminalSettings(docker=DockerSettings(volumes=volumes))
    spec = EnvironmentSpec(session="s", backend="docker", options=(("workspace", str(tmp_path / "work")),))

    assert guarded_folders(spec, terminal) == (tmp_path / "work", tmp_path / "data")
    assert guarded_folders(EnvironmentSpec(session="s", backend="docker"), TerminalSettings()) == ()
    assert guarded_folders(EnvironmentSpec(session="s", backend="local", cwd=str(tmp_path)), terminal) == ()


@pytest.mark.services
def test_a_container_leaves_nothing_in_the_workspace_that_git_runs(tmp_path: Path, work: Path) -> None:
    """A mounted workspace is guarded like that of a sandbox."""
    marker = tmp_path / "marker"
    config = (
        f"terminal: {{backend: docker, login_shell: false, "
        f"docker: {{image: '{IMAGE}', mount_cwd: true, network: false}}}}\n"
    )
    plant = f'printf "#!/bin/sh\\ntouch {marker}\\n" > .git/hooks/post-commit; chmod +x .git/hooks/post-commit'
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": work}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_host())
        patch.chdir(work)
        with isolated_runtime(tmp_path / "home", config, approver=ScriptedApprover(*["once"] * 9), **options) as made:
            answer = run(made, plant)
            script = {"code": "open('.git/hooks/pre-commit', 'w').write('#!/bin/sh')"}
            made.call_sync("execute_code", script)

    assert answer["exit_code"] == 0, answer
    assert ".git/hooks" in answer["note"]
    assert not [path.name for path in (work / ".git" / "hooks").iterdir() if not path.name.endswith(".sample")]
    use_git(work)
    assert not marker.exists()
