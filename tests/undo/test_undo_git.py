"""Commands of git that throw away changes are undone; what git keeps stays as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.undo.undo_work import SESSION, Work


def git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    return subprocess.run(
        ["git", "-C", str(folder), *words], env={**os.environ, **who}, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(work: Work) -> Work:
    """A repository with a second branch, changes that are not committed, and files that git does not know."""
    folder = work.folder
    git(folder, "init", "-q", "-b", "main")
    (folder / "sub").mkdir()
    for name in ("kept", "edited", "staged", "removed", "sub/inner"):
        (folder / name).write_text(f"{name} one\n")
    (folder / ".gitignore").write_text("*.ignored\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "checkout", "-q", "-b", "other")
    (folder / "kept").write_text("kept on other\n")
    (folder / "only-other").write_text("other\n")
    git(folder, "rm", "-q", "sub/inner")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "two")
    git(folder, "checkout", "-q", "main")
    (folder / "edited").write_text("edited and not committed\n")
    (folder / "staged").write_text("staged and not committed\n")
    git(folder, "add", "staged")
    (folder / "removed").unlink()
    (folder / "untracked").write_text("untracked\n")
    (folder / "new").mkdir()
    (folder / "new" / "deep").write_text("deep\n")
    (folder / "build.ignored").write_text("ignored\n")
    return work


def files(work: Work) -> dict[str, object]:
    return {name: entry for name, entry in work.tree().items() if not name.startswith(".git/") and name != ".git"}


@pytest.mark.services
@pytest.mark.parametrize(
    "command",
    [
        "git reset --hard",
        "git reset --hard other",
        "git reset -q --hard HEAD",
        "git checkout .",
        "git checkout -- edited removed",
        "git checkout HEAD edited staged",
        "git checkout other -- kept",
        "git checkout -f other",
        "git checkout other",
        "git switch other",
        "git switch -f other",
        "git restore .",
        "git restore --staged --worktree .",
        "git restore --source=other kept",
        "git clean -fd",
        "git clean -fdx",
        "git clean -fX",
        "git clean -fd new",
        "git stash",
        "git stash -u",
        "git -C sub checkout -- . && git checkout edited",
        "cd sub && git reset --hard",
        "git rm -qf kept",
        "git mv kept moved",
        "git stash -q && git stash pop",
        "git merge -q other",
        "git reset --hard && git clean -fdx",
    ],
)
def test_what_git_throws_away_comes_back(repository: Work, command: str) -> None:
    """Files that git changes, removes or makes are what they were, whatever became of branch and index."""
    before = files(repository)

    repository.run(command)
    undone = repository.history.undo_calls(SESSION)

    assert undone.refused == []
    assert files(repository) == before


def test_a_look_at_git_changes_nothing_in_it(repository: Work) -> None:
    """Asking git what a command would touch writes nothing into .git, and undo puts nothing there."""
    repository.run("true")

    def state() -> dict[str, bytes]:
        inside = (path for path in (repository.folder / ".git").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in inside}

    before = state()
    repository.run("git reset --hard nonsense; git checkout nonsense; git clean -n")
    assert state() == before

    repository.run("git reset -q --hard")
    after = state()
    repository.history.undo_calls(SESSION)
    assert state() == after


@pytest.mark.parametrize("command", ["git checkout -q other", "git reset -q --hard other", "git merge -q other"])
def test_an_undo_says_that_head_stays(repository: Work, command: str) -> None:
    """Files are restored, what git has checked out is not: the record says where HEAD is."""
    repository.run("git checkout -q -f .")
    before = files(repository)

    repository.run(command)
    undone = repository.history.undo_calls(SESSION)

    assert undone.refused == []
    assert files(repository) == before
    assert any(note.startswith("HEAD stays at") for call in undone.calls for note in call.notes)


def test_a_commit_alone_changes_no_file(repository: Work) -> None:
    """What only happens inside of .git is nothing to undo."""
    repository.run("git -c user.name=a -c user.email=a@b commit -q -m staged")

    assert repository.history.calls(SESSION) == []
