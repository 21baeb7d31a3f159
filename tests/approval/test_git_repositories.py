"""What git executes: which settings start a program, which paths decide it, and when git is asked about."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.approval.approval_cases import POLICY
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.git_repositories import changed_since
from toolcrib.approval.policy import Action, Decision, decide
from toolcrib.core.git_metadata import harmful_settings, harmless_settings, read_settings
from toolcrib.core.types import Effect

STARTING = [
    "[core]\n\tfsmonitor = /tmp/x\n",
    "[core] fsmonitor = /tmp/x\n",
    "[CORE]\nFsMonitor=/tmp/x",
    '[core]\n\thooksPath = ".hooks"\n',
    '[diff "x"]\n\ttextconv = cat\n',
    '[filter "x"]\n\tclean = x\n',
    "[filter.x]\n\tsmudge = x\n",
    "[alias]\n\tst = !sh -c x\n",
    '[includeIf "gitdir:x"]\n\tpath = y\n',
    "[include]\n\tpath = y\n",
    "[credential]\n\thelper = !x\n",
    '[submodule "a"]\n\tupdate = !x\n',
    '[remote "o"]\n\turl = ext::sh -c x\n',
    '[url "ext::sh -c x "]\n\tinsteadOf = https://\n',
    "[core]\n\tpager = le\\\nss\n",
    '[core]\n\t; a comment\n\tsshCommand = "x" # why\n',
    "[gpg]\n\tprogram = x\n",
]
HARMLESS = [
    '[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote "o"]\n\turl = git@example.org:a/b.git\n',
    '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n',
    "[alias]\n\tst = status\n",
    "[core]\n\tfsmonitor = true\n",
    "[pager]\n\tbranch = false\n",
    "[user]\n\tname = A # B\n\temail = a@b.example\n",
    "",
]


@pytest.mark.parametrize("text", STARTING)
def test_settings_that_start_a_program_are_found_and_left_out(text: str):
    """Whatever the spelling; what is written instead starts nothing."""
    assert harmful_settings(text)
    assert harmful_settings(harmless_settings(text)) == frozenset()


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_settings_start_nothing(text: str):
    """Remotes, branches, names and switches."""
    assert harmful_settings(text) == frozenset()


def test_a_file_that_cannot_be_read_with_certainty_is_not_harmless():
    """Git may read it in another way."""
    assert harmful_settings("[core\nfsmonitor = x") is None
    assert harmless_settings("[core\nfsmonitor = x") == ""


NAMES = st.text("abcXYZ-", min_size=1, max_size=4).filter(lambda name: name[0].isalpha())
VALUES = st.text("ab =\"\\;#\t'!/é[]", max_size=8)


@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), VALUES), NAMES, VALUES), max_size=4), st.booleans())
def test_settings_are_read_as_git_reads_them(entries, is_quoted):
    """What is written with git's own quoting comes back; text that git rejects may be rejected."""

    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = ""
    for section, subsection, key, value in entries:
        text += f"[{section}{' ' + quote(subsection) if subsection is not None else ''}]\n"
        text += f"\t{key} = {quote(value)}\n" if is_quoted else f" {key}={quote(value)}   # {section}\n"
    read = [(one.section, one.subsection, one.key, one.value) for one in read_settings(text)]
    assert read == [(section, sub or "", key, value.strip()) for section, sub, key, value in entries]


def test_git_agrees(tmp_path: Path):
    """The same entries as `git config --list` finds, for every text above."""
    for number, text in enumerate([*STARTING, *HARMLESS]):
        file = tmp_path / str(number)
        file.write_text(text)
        listed = subprocess.run(
            ["git", "config", "-z", "--no-includes", "-f", str(file), "--list"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        theirs = [tuple(entry.partition("\n")[::2]) for entry in listed.split("\0") if entry]
        ours = [(one.name, one.value) for one in read_settings(text)]
        assert [(name.lower(), value) for name, value in theirs] == ours


def write(workspace: Path, path: str) -> Decision:
    policy = replace(POLICY, workspace=str(workspace))
    return decide(policy, Action(tool="write_file", effects=(Effect("write", path),)), (), read_command)


@pytest.mark.parametrize(
    "path",
    [
        ".git",
        ".git/config",
        ".git/config.worktree",
        ".git/hooks/pre-commit",
        ".git/info/attributes",
        ".git/commondir",
        ".git/modules/lib/config",
        ".git/modules/a/b/hooks/post-checkout",
        ".git/worktrees/x/config.worktree",
        "sub/.git/hooks/x",
        "sub/.GIT/config",
        "r.git/hooks/post-receive",
        "srv/app.git/config",
    ],
)
def test_writing_what_git_executes_is_asked_about(tmp_path: Path, path: str):
    """In the repository itself, its modules and its worktrees."""
    assert write(tmp_path, path).outcome == "ask"


@pytest.mark.parametrize(
    "path",
    ["config", ".gitignore", ".gitattributes", "hooks/x", "refs/a", "HEAD", "src/git/config", "r.git/description"],
)
def test_files_with_similar_names_elsewhere_are_not_asked_about(tmp_path: Path, path: str):
    """Only in a folder that git would take for a repository."""
    assert write(tmp_path, path).outcome == "allow"


@pytest.mark.parametrize("last", ["HEAD", "objects/x", "refs/x", "config", "hooks/post-checkout"])
def test_a_bare_layout_cannot_be_completed_unasked(tmp_path: Path, last: str):
    """Whichever file comes last."""
    bare = tmp_path / "x"
    for name in {"HEAD", "objects", "refs"} - {last.partition("/")[0]}:
        (bare / name).mkdir(parents=True)
    assert write(tmp_path, f"x/{last}").outcome == "ask"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path / "r")], check=True)
    (tmp_path / "r" / "sub").mkdir()
    return tmp_path / "r"


def run(folder: Path, command: str, started_at: float) -> str:
    policy = replace(POLICY, workspace=str(folder), started_at=started_at)
    return decide(policy, Action(tool="terminal", effects=(Effect("exec", command),)), (), read_command).outcome


COMMANDS = [
    "git status",
    "cd sub && git diff",
    "git -C sub log -1",
    "git --git-dir=.git fetch",
    "GIT_DIR=.git git fetch",
    "export GIT_DIR=.git; git log -1",
    "true; (git commit -am x)",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_git_is_asked_about_where_the_session_changed_what_it_executes(repository: Path, command: str):
    """Hooks and settings that were there before are the person's."""
    config, hook = repository / ".git" / "config", repository / ".git" / "hooks" / "pre-commit"
    assert run(repository, command, time.time() - 100) == "allow"
    config.write_text(config.read_text() + "[core]\n\tfsmonitor = ./x\n")
    assert run(repository, command, time.time() - 100) == "ask"
    assert run(repository, command, time.time() + 100) == "allow"
    config.write_text("")
    hook.write_text("#!/bin/sh\n")
    assert run(repository, command, time.time() - 100) == "ask"


PARTS = "mkdir -p d/objects d/refs; cp cfg d/config; echo 'ref: refs/heads/main' > d/HEAD; "
MADE = [
    PARTS + "cd d; git status",
    PARTS + "git -C d log",
    PARTS + "git --git-dir=d log",
    PARTS + "GIT_DIR=d git diff",
    PARTS + "mkdir d/sub; cd d/sub && git status",
    "ln -s ../cfg nearly/config; mkdir nearly/refs; cd nearly; git status",
    "echo 'ref: refs/heads/main' | tee without-head/HEAD; (cd without-head && git add .)",
    "tar xf a.tar && cd a && git status",
    "mkdir q; tar xf a.tar -C q; git -C q/a status",
    "unzip -q a.zip -d q; cd q/a; git status",
    "cp -r planted r; cd r; git status",
    "cp -r planted/. r; cd r; git status",
    "cp -r planted r; mv r s; git -C s diff",
    "mkdir r; cp -a planted r; cd r/planted; git status",
    "rsync -a planted/ r/; cd r; git status",
    "mv planted elsewhere; cd elsewhere && git status",
    "python3 -c \"import shutil; shutil.copytree('planted', 'h')\"; cd h; git status",
]
MADE_HARMLESSLY = [
    "mkdir new && cd new && git init && git add . && git commit -m x",
    "git clone https://github.com/psf/requests && cd requests && git log -1",
    "cp -r sub sub2 && cd sub2 && git status",
    "mkdir -p src/objects && cd src && git status",
    "echo x > config && git add config",
    "tar czf a.tar sub && git status",
    "mkdir build && cd build && cmake .. && cd .. && git diff",
    "npx create-vite app && cd app && git add .",
    "unzip -l a.zip; tar tf a.tar; git status",
    "tar xf a.tar -C /tmp/x; git status",
]


@pytest.fixture
def workplace(repository: Path) -> Path:
    """A repository in which folders lie that are nearly repositories, or one with a planted setting."""
    (repository / "nearly" / "objects").mkdir(parents=True)
    (repository / "nearly" / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (repository / "without-head" / name).mkdir(parents=True)
        (repository / "planted" / name).mkdir(parents=True)
    (repository / "planted" / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("cfg", "planted/config"):
        (repository / name).write_text("[core]\n\tfsmonitor = ./x\n")
    return repository


@pytest.mark.parametrize("command", MADE)
def test_git_is_asked_about_where_the_same_line_makes_its_repository(workplace: Path, command: str):
    """From parts, from an archive, as a copy, or with a program of its own."""
    assert run(workplace, command, time.time() - 100) == "ask"


@pytest.mark.parametrize("command", MADE_HARMLESSLY)
def test_git_is_not_asked_about_in_folders_that_git_or_a_copy_makes(workplace: Path, command: str):
    """As long as nothing planted comes with them."""
    assert run(workplace, command, time.time() - 100) == "allow"


def test_worktrees_use_the_settings_of_their_repository(repository: Path, tmp_path: Path):
    """Found through the pointer in their `.git`."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], cwd=repository, check=True)
    subprocess.run(["git", "worktree", "add", "-q", str(tmp_path / "w")], cwd=repository, check=True)
    assert changed_since(str(tmp_path / "w"), ["status"], 1.0) == ""
    subprocess.run(["git", "config", "core.fsmonitor", "./x"], cwd=repository, check=True)
    assert "fsmonitor" not in changed_since(str(tmp_path / "w"), ["status"], 1.0)
    assert "changed during this session" in changed_since(str(tmp_path / "w"), ["status"], 1.0)
