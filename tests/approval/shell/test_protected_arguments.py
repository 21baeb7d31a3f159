"""Protected paths: asked about in any word of any program that is not known to only read."""

from __future__ import annotations

import pytest

from toolcrib.approval.analyse import Assessment, analyse
from toolcrib.approval.paths import PathScope, SensitivePaths
from toolcrib.approval.shell.protected_arguments import READERS

CWD, HOME = "/home/anna/project", "/home/anna"
PROTECTED = (
    *(".bashrc", ".profile", ".zshenv", ".config/fish/config.fish", ".inputrc", ".xprofile", ".login"),
    *(".config/autostart/x.desktop", ".config/systemd/user/x.service", "Library/LaunchAgents/x.plist"),
    *("bin/ls", ".local/bin/git", ".cargo/bin/cargo", "go/bin/gopls", ".nvm/versions/node/v20/bin/node"),
    *(".local/lib/python3.12/site-packages/x.pth", ".ipython/profile_default/startup/0.py", ".pythonrc"),
    *(".vimrc", ".config/nvim/init.lua", ".emacs.d/init.el", ".tmux.conf", ".gdbinit", ".psqlrc", ".Rprofile"),
    *(".ssh/rc", ".gitconfig", ".config/git/config", ".npmrc", ".config/pip/pip.conf", ".cargo/config.toml"),
    *(".claude/settings.json", ".config/Code/User/settings.json", ".config/environment.d/x.conf"),
)
USES = (
    "frobnicate ~/{0}",
    "frobnicate --output=$HOME/{0}",
    "frobnicate -o$HOME/{0}",
    "frobnicate key=$HOME/{0}",
    "frobnicate 'a=b dest=/home/anna/{0}'",
    "cd ~ && frobnicate {0}",
    "sort -o ~/{0} in.txt",
    "git clone https://x.example/y ~/{0}",
    "git archive -o ~/{0} HEAD",
    "curl -o ~/{0} https://x.example/y",
    "uniq payload ~/{0}",
    "script ~/{0}",
    "time -o ~/{0} make",
    "python gen.py ~/{0}",
    'python -c \'import shutil; shutil.copy("x", "/home/anna/{0}")\'',
    'node -e \'fs.writeFileSync(process.env.HOME+"/{0}", "x")\'',
    "echo x > ~/{0}",
    "cp x ~/{0}",
    "yq -i .x=1 ~/{0}",
    "git log -1 --output=$HOME/{0}",
    "git -C sub diff --out ~/{0}",
    "git config -f ~/{0} core.pager x",
    "GIT_TRACE=$HOME/{0} git status",
    "env HISTFILE=$HOME/{0} bash -ic true",
    "awk -v f=$HOME/{0} '{{print > f}}' in.txt",
    "vim -es -c 'e ~/{0}' -c wq",
    "grep -rl x ~/{0} | xargs sed -i s/a/b/",
    "docker run --mount type=bind,src=$HOME/{0},dst=/k alpine true",
    "find . -fprint ~/{0}",
    "docker cp web:/x ~/{0}",
)


def judge(command: str) -> Assessment:
    return analyse(command, cwd=CWD, home=HOME)


@pytest.mark.parametrize("use", USES)
def test_a_protected_path_is_asked_about_however_it_is_given(use: str) -> None:
    """Every protected path, in every way to name it."""
    home_less = "process.env" in use
    # Code that puts the home folder before a name is recognised by the dot of the name.
    paths = [path for path in PROTECTED if path.startswith(".") or not home_less]

    assert [path for path in paths if judge(use.format(path)).verdict == "safe"] == []


@pytest.mark.parametrize("path", PROTECTED)
def test_tools_that_write_files_share_the_list(path: str) -> None:
    """What a command is asked about is refused or asked about for every other tool, too."""
    folders = PathScope(cwd=CWD, workspace=CWD, home=HOME, real=lambda one: one)
    sensitive = SensitivePaths(f"{HOME}/.toolcrib")

    assert sensitive.reason_to_deny_write(f"~/{path}", folders) or sensitive.reason_to_ask(f"~/{path}", folders)


def test_folders_of_programs_outside_the_workspace_are_protected() -> None:
    """A folder on PATH is protected unless it belongs to the project."""
    folders = PathScope(cwd=CWD, workspace=CWD, home=HOME, real=lambda one: one)
    sensitive = SensitivePaths(f"{HOME}/.toolcrib", (f"{HOME}/tools", f"{CWD}/.venv/bin"))

    assert sensitive.reason_to_ask(f"{HOME}/tools/ls", folders)
    assert not sensitive.reason_to_ask(f"{CWD}/.venv/bin/x", folders)
    assert sensitive.protected_paths(folders) == (f"{HOME}/tools",)


@pytest.mark.parametrize(
    "program", ["cat", "ls -l", "grep x", "diff a", "stat", "head -5", "wc -l", "sha256sum", "file"]
)
def test_reading_a_protected_path_is_not_asked_about(program: str) -> None:
    """Start-up files are no secrets."""
    paths = [path for path in PROTECTED if not path.startswith((".ssh", ".npmrc"))]

    assert [path for path in paths if judge(f"{program} ~/{path}").verdict != "safe"] == []


@pytest.mark.parametrize(
    "command",
    [
        "bash ~/bin/report.sh",
        "python ~/.local/bin/tool.py --list",
        "~/.cargo/bin/cargo build",
        "source ~/.nvm/nvm.sh",
        "cp ~/.bashrc dotfiles/",
        "rsync -a ~/.vimrc dotfiles/",
        "tar czf dotfiles.tgz ~/.bashrc ~/.vimrc",
        "mkdir -p ~/.local/bin ~/.config/autostart",
        "chmod +x ~/.local/bin/foo",
        "ssh -i ~/.ssh/deploy host uptime",
        "kubectl --kubeconfig ~/.kube/config get pods",
        "docker run --rm -v ~/.m2:/root/.m2 maven mvn verify",
        "cd ~/.config/nvim && git status",
        "cd ~/.ssh && ls",
        "export PATH=$HOME/.local/bin:$PATH",
        "git commit -m 'change ~/.bashrc'",
        "sort ~/.bashrc",
        "find ~/.local/bin -type l",
        "git log --output=log.txt -- src",
        "git config -f ~/.gitconfig --get user.name",
        "git config --file ~/.gitconfig user.name",
        "GIT_TRACE=1 git fetch",
        "HISTFILE=~/.bash_history history 5",
        "grep -l x ~/.bashrc | wc -l",
        "cp -r src/. build/",
        "rsync -a src/ ~/backup/",
        'for f in ~/.*; do ls -d "$f"; done',
        "cd - && npm test > out.log",
        "docker run --rm -v ~/.aws:/root/.aws:ro amazon/aws-cli s3 ls",
    ],
)
def test_everyday_use_of_protected_paths_is_not_asked_about(command: str) -> None:
    """Running, copying from and listing what is protected changes nothing."""
    assert judge(command).findings == ()


@pytest.mark.parametrize(
    "command",
    [
        "cd ~/.config/autostart && frobnicate build",
        "tar xzf x.tgz -C ~",
        "unzip -o x.zip -d ~/.config",
        "(cd ~ && tar xf /tmp/x.tar)",
        "patch -d ~ -p1 < p.diff",
        "docker run -v ~/.ssh:/s alpine true",
        "echo x > .envrc",
        "direnv allow",
        "cp x.pth /opt/lib/python3/",
        "cp evil/.bashrc ~/",
        "mv -t ~ .profile",
        "cp -r dotfiles/. ~",
        "rsync -a dotfiles/ ~/",
        "mv dotfiles/.[a-z]* ~",
        "docker run -v $HOME:/h alpine true",
        "cd - && cp x .bashrc",
        "CDPATH=/home; cd anna; echo x > .zshrc",
        'for f in ~/.conf*/autostart/x.desktop; do echo x > "$f"; done',
        'set -- ~/.bash*; echo x > "$1"',
    ],
)
def test_folders_that_hold_protected_files_are_asked_about(command: str) -> None:
    """The folder that a program works in, unpacks into or is given counts as well."""
    assert judge(command).verdict == "ask"


def test_a_workspace_in_a_protected_folder_is_the_persons_choice() -> None:
    """Where the person works, programs may run; files that are written by name are still asked about."""
    where = f"{HOME}/.config/nvim"

    assert analyse("stylua --check lua && make test", cwd=where, home=HOME).verdict == "safe"
    assert analyse("echo x > init.lua", cwd=where, home=HOME).verdict == "ask"
    assert analyse("frobnicate ~/.bashrc", cwd=where, home=HOME).verdict == "ask"


def test_readers_are_plain_names() -> None:
    """A program cannot be both a reader and an interpreter of other code."""
    assert not READERS & {"python", "perl", "ruby", "node", "php", "sh", "bash"}
