"""Paths that no tool may write, however they are spelled."""

import pytest

from tests.approval.approval_cases import HOME
from toolcrib.approval.paths import PathScope, SensitivePaths

OWN = f"{HOME}/.toolcrib"
SENSITIVE = SensitivePaths(OWN)
PLACE = PathScope(cwd="/work-area/project", workspace="/work-area/project", home=HOME)


@pytest.mark.parametrize(
    "path",
    [
        f"{OWN}/config.yaml",
        f"{OWN}/.env",
        f"{OWN}/approvals.jsonl",
        f"{OWN}/logs/toolcrib.log",
        f"{OWN}/sessions.db",
        f"{OWN}/serve/tokens.json",
        f"{OWN}/.config.yaml.new",
        f"{OWN}/tools/../config.yaml",
        "//home//anna/.toolcrib/./config.yaml",
        OWN,
        HOME,
        "/",
        "~/.bashrc",
        "~/.zshenv",
        "~/.ssh/authorized_keys",
        "~/.ssh",
        "~/.gnupg/pubring.kbx",
        "~/.aws/credentials",
        "~/.config/fish/config.fish",
        "~/.config/systemd/user/x.service",
        "/root/.bashrc",
        "/home/other/.ssh/id_rsa",
        "/Users/other/.zshrc",
        "/etc/passwd",
        "/etc/sudoers.d/x",
        "/etc/cron.d/job",
        "/proc/self/mem",
        "/dev/sda",
        "id_ed25519",
        "~/.SSH/Authorized_Keys",
        "~/.\u017fsh/authorized_keys",
        "~/.s\u200csh/authorized_keys",
        "~/.\uff53\uff53\uff48/id_rsa",
        f"{OWN}/approval\u017f.jsonl",
        f"{OWN}/con\u200dfig.yaml",
        f"{OWN}/Config.YAML",
        f"{OWN}/cache/undo/session/index.jsonl",
    ],
)
def test_protected_paths_are_not_written(path):
    """Each of them has a reason."""
    assert SENSITIVE.reason_to_deny_write(path, PLACE)


@pytest.mark.parametrize(
    "path",
    ["a.txt", "src/config.yaml", "logs/x.log", f"{OWN}/skills/x.md", f"{OWN}/cache/x", "/dev/null", "~/notes.txt",
     "/etc/hosts", "profile", "docs/.bashrc.md", "/data/.bashrc"],
)  # fmt: skip
def test_other_paths_may_be_thought_about(path):
    """Names that only look similar are not protected."""
    assert SENSITIVE.reason_to_deny_write(path, PLACE) == ""


@pytest.mark.parametrize(
    "path",
    [
        f"{OWN}/tools/x.py",
        f"{OWN}/plugins/p/__init__.py",
        f"{OWN}/skills/x/SKILL.md",
        f"{OWN}/Skills",
        ".git/hooks/x",
        ".env",
        ".env.prod",
        ".vscode/tasks.json",
        "web/.VSCode/Tasks.json",
        ".idea/runConfigurations/x.xml",
        ".devcontainer/devcontainer.json",
        ".devcontainer/post-create.sh",
        ".husky/pre-commit",
        ".husky/_/husky.sh",
        ".pre-commit-config.yaml",
        "lefthook.yml",
        ".hg/hgrc",
        "vendor/x/.hg/hgrc",
        ".jj/repo/config.toml",
        "_darcs/prefs/defaults",
        ".npmrc",
        "src/../.husky/pre-push",
    ],
)
def test_delicate_paths_are_asked_about_everywhere(path):
    """Files that take effect later, unseen, need approval even inside the workspace."""
    assert SENSITIVE.reason_to_ask(path, PLACE)
    assert not SENSITIVE.reason_to_ask("Makefile", PLACE)
    assert not SENSITIVE.reason_to_ask(".github/workflows/ci.yml", PLACE)
    assert not SENSITIVE.reason_to_ask("src/a.py", PLACE)
    assert not SENSITIVE.reason_to_ask(".env.example", PLACE)


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        ("~/.ssh/id_rsa", True),
        ("~/.ssh/id_rsa.pub", False),
        ("~/.ssh/known_hosts", False),
        ("~/.aws/credentials", True),
        ("~/.netrc", True),
        (".env", True),
        (".env.example", False),
        (f"{OWN}/.env", True),
        (f"{OWN}/serve/token", True),
        ("/srv/agent-home/serve/tokens.json", True),
        (f"{OWN}/auth.json", True),
        ("src/serve/tokens.py", False),
        ("/etc/shadow", True),
        ("/proc/1/environ", True),
        ("server.pem", True),
        ("README.md", False),
        ("/etc/hosts", False),
    ],
)
def test_what_is_secret_to_read(path, secret):
    """Keys and passwords are secret, but not everything beside them."""
    assert SENSITIVE.is_secret(path, PLACE) is secret


def test_a_link_does_not_hide_a_protected_file(tmp_path):
    """Both the written path and the real path are checked."""
    own, workspace = tmp_path / "own", tmp_path / "w"
    own.mkdir()
    workspace.mkdir()
    (own / "config.yaml").write_text("")
    (workspace / "harmless.yaml").symlink_to(own / "config.yaml")
    (workspace / "folder").symlink_to(own)
    folders = PathScope(cwd=str(workspace), workspace=str(workspace), home=HOME)
    for path in ("harmless.yaml", "folder/config.yaml", "folder/.env"):
        assert SensitivePaths(str(own)).reason_to_deny_write(path, folders)


def test_another_name_of_a_protected_file_is_that_file(tmp_path):
    """A hard link is the file itself; ordinary files with several names are not protected."""
    home, workspace = tmp_path / "home", tmp_path / "home" / "w"
    for name in (".bashrc", ".ssh/id_rsa", ".toolcrib/config.yaml", "w/plain"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")
    for number, name in enumerate((".bashrc", ".toolcrib/config.yaml", ".ssh/id_rsa", "w/plain")):
        (workspace / f"other{number}").hardlink_to(home / name)
    folders = PathScope(cwd=str(workspace), workspace=str(workspace), home=str(home))
    sensitive = SensitivePaths(str(home / ".toolcrib"))
    assert [bool(sensitive.reason_to_deny_write(f"other{n}", folders)) for n in range(4)] == [True, True, True, False]
    assert [sensitive.is_secret(f"other{n}", folders) for n in range(4)] == [False, False, True, False]


def test_a_home_behind_a_link_is_protected_under_both_names(tmp_path):
    """TOOLCRIB_HOME may be a link; the folder behind it is protected too."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folders = PathScope(cwd=str(tmp_path), workspace=str(tmp_path), home=HOME)
    for name in ("real", "link"):
        assert SensitivePaths(str(tmp_path / "link")).reason_to_deny_write(f"{name}/config.yaml", folders)


def test_skills_are_kept_by_the_tool_for_them_and_by_no_other():
    """Only paths inside that folder, with links resolved, and only for that tool."""
    kept = SENSITIVE.is_managed_by
    assert kept("skill_manage", f"{OWN}/skills/x/SKILL.md", PLACE)
    assert not kept("write_file", f"{OWN}/skills/x/SKILL.md", PLACE)
    for path in (f"{OWN}/skills", f"{OWN}/skills/../tools/x.py", f"{OWN}/skills-old/x", "src/a.py", "/"):
        assert not kept("skill_manage", path, PLACE)


def test_skills_in_a_linked_folder_are_asked_about_where_they_really_are(tmp_path):
    """If skills are kept in another folder, that folder needs approval too."""
    own, real = tmp_path / "own", tmp_path / "dotfiles"
    own.mkdir()
    (real / "x").mkdir(parents=True)
    (own / "skills").symlink_to(real)
    paths = SensitivePaths(str(own))
    folders = PathScope(cwd=str(tmp_path), workspace=str(tmp_path), home="/home/anna")
    assert paths.reason_to_ask(str(real / "x/SKILL.md"), folders)
    assert paths.is_managed_by("skill_manage", str(real / "x/SKILL.md"), folders)
    (real / "x/out").symlink_to(tmp_path / "elsewhere")
    assert not paths.is_managed_by("skill_manage", str(own / "skills/x/out/a.md"), folders)
