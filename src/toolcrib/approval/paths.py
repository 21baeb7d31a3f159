"""Classifies paths: inside the workspace or not, protected, sensitive or secret; follows links where it can."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

import msgspec

from toolcrib.approval.git_repositories import is_executed_by_git
from toolcrib.approval.hard_links import guarded_files, has_other_names, protected_name
from toolcrib.core.lazy import lazy_pattern

RealPath = Callable[[str], str]
GLOB_CHARACTERS = "*?["


def follow_links(path: str) -> str:
    """The path with links resolved, up to the first wildcard."""
    fixed = path
    for character in GLOB_CHARACTERS:
        fixed = fixed.partition(character)[0]
    try:
        if fixed == path:
            return os.path.realpath(path)
        fixed = fixed.rpartition("/")[0] + "/"
        return _normal(os.path.realpath(fixed) + "/" + path[len(fixed) :])
    except (OSError, ValueError):
        return path


def _normal(path: str) -> str:
    """The path without `..` and doubled slashes. POSIX keeps two leading slashes; on Linux they mean the root."""
    normal = os.path.normpath(path)
    return normal[1:] if normal.startswith("//") else normal


class PathScope(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that a call's paths are judged against, all absolute; `real` resolves links."""

    cwd: str
    workspace: str
    home: str
    real: RealPath = follow_links

    def absolute(self, path: str) -> str:
        """The path as written, absolute and normalised; a tilde is the home."""
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        return _normal(os.path.join(self.cwd or self.workspace or "/", path))  # noqa: PTH118 - text only

    def written_and_real(self, path: str) -> tuple[str, str]:
        """The path as written, and with links resolved; callers check both."""
        written = self.absolute(path)
        return written, self.real(written)

    def exists(self, path: str) -> bool:
        """Whether something is at this path on this machine."""
        try:
            return os.path.lexists(self.absolute(path))
        except ValueError:
            return False

    def in_workspace(self, path: str) -> bool:
        """Whether a path, with links resolved, is inside the workspace; the workspace itself is not."""
        if not self.workspace:
            return False
        root, real = self.real(self.workspace), self.real(self.absolute(path))
        if not is_inside(real, root):
            return False
        # A user who works in the home folder does not mean the settings of every program.
        return root != self.real(self.home) or not real[len(root) + 1 :].startswith(".")


def is_inside(path: str, folder: str) -> bool:
    """Whether the path is below the folder; both absolute and normalised."""
    return folder != "/" and path.startswith(folder.rstrip("/") + "/")


def is_at_or_inside(path: str, folder: str) -> bool:
    return path == folder or is_inside(path, folder) or folder == "/"


# Relative to any user's home. Each is a file or folder that runs code later or grants access.
# Case is ignored, because many file systems ignore it.
PROTECTED_IN_HOME = lazy_pattern(
    r"\.(?:bash(?:rc|_profile|_login|_logout|_aliases)|profile|zsh(?:rc|env)|zprofile|zlogin|zlogout"
    r"|kshrc|cshrc|tcshrc"
    r"|login|xinitrc|xprofile|xsession|xsessionrc|pam_environment|inputrc|netrc|pgpass|pypirc|npmrc|git-credentials"
    r"|gitconfig)$"
    r"|\.(?:ssh|gnupg|aws|azure|kube|password-store|docker)(?:/|$)"
    r"|\.config/(?:fish|systemd|autostart|environment\.d|git|gcloud|gh|op|rclone)(?:/|$)"
    r"|\.local/share/(?:keyrings|systemd)(?:/|$)|Library/(?:Keychains|LaunchAgents|LaunchDaemons)(?:/|$)",
    re.IGNORECASE,
)
# Relative to any user's home: folders that programs are started from, then start-up files of shells, editors,
# interpreters and clients, settings that run commands, and the settings of other agents.
PROGRAMS_IN_HOME = lazy_pattern(
    r"(?:\.local/|\.cargo/|go/|\.npm-global/|\.bun/|\.deno/|\.volta/|\.krew/|\.rvm/|\.yarn/|\.pub-cache/|\.foundry/"
    r"|\.ghcup/|\.cabal/|\.nimble/|\.composer/vendor/|\.config/composer/vendor/|\.dotnet/|\.opam/[^/]+/|\.gem/.*/"
    r"|\.nvm/versions/.*/|\.sdkman/.*/|\.local/share/(?:pnpm|mise|uv|pipx)/.*|(?:mini|ana)(?:conda"
    r"|forge)\d?/|\.linuxbrew/)?"
    r"s?bin(?:/|$)|\.(?:pyenv|rbenv|asdf|nodenv|jenv|goenv)/(?:bin|shims|versions)(?:/|$)|\.dotnet/tools(?:/|$)"
    r"|\.local/share/(?:pnpm|mise/shims)(?:/|$)|\.nvm/nvm\.sh$",
    re.IGNORECASE,
)
STARTS_IN_HOME = lazy_pattern(
    r"\.(?:g?vimrc|exrc|ideavimrc|emacs|spacemacs|nanorc|tmux\.conf|screenrc|gdbinit|lldbinit|r(?:profile"
    r"|environ)|irbrc"
    r"|pryrc|gemrc|psqlrc|sqliterc|duckdbrc|my\.cnf|curlrc|wgetrc|pythonrc(?:\.py)?"
    r"|pythonstartup(?:\.py)?|pdbrc|mailcap"
    r"|procmailrc|forward|muttrc|mailrc|hgrc|bazelrc|condarc|mambarc|yarnrc(?:\.yml)?|bunfig\.toml|ghci"
    r"|ocamlinit|octaverc"
    r"|perldb|iex\.exs|erlang|mkshrc|xonshrc|editrc|lesskey|lessfilter|xbindkeysrc|xresources|xdefaults"
    r"|latexmkrc|sbclrc"
    r"|guile|envrc|direnvrc|aliases|functions|exports|shrc|zshrc\.local|bashrc\.local|aider\.conf\.yml|wezterm\.lua|claude\.json|ackrc|ripgreprc|asdfrc|ctags|zsh\w+|bash_completion|login|logout)$"
    r"|\.(?:vim|emacs\.d|doom\.d|gdbinit\.d|ipython|jupyter|mutt|bundle/config|gradle/(?:init\.d"
    r"|init\.gradle(?:\.kts)?|gradle\.properties)|m2/settings\.xml|sbt|rvm/hooks|oh-my-zsh|bash_it|zsh"
    r"|julia/config|cargo/(?:config(?:\.toml)?|env)|pip|vscode|vscode-server|cursor|claude|codex|gemini"
    r"|continue|i3|fvwm"
    r"|bash_completion\.d|xonsh|ctags\.d|kde\d?/autostart)(?:/|$)"
    r"|\.config/(?:nvim|vim|emacs|doom|tmux|nushell|xonsh|powershell|ipython|jupyter|pip|uv|direnv|i3"
    r"|sway|hypr|awesome|bspwm"
    r"|sxhkd|openbox|plasma-workspace|autostart-scripts|code|vscodium|cursor|zed|helix|kak|micro|kitty"
    r"|alacritty|wezterm"
    r"|ghostty|ranger|lf|lazygit|mise|containers|opencode|goose|upstart|bash|zsh|less|pdm|pypoetry|cargo"
    r"|npm|yarn|zellij|mpv|starship\.toml|mimeapps\.list)(?:/|$)"
    r"|\.local/share/(?:applications|dbus-1|nautilus/scripts|nvim/site|fish|bash-completion|zsh)(?:/|$)"
    r"|\.mozilla/firefox/[^/]+/(?:user\.js|extensions)(?:/|$)"
    r"|\.local/lib/python[\d.]+/site-packages(?:/|$)|library/(?:python|application support/code)(?:/|$)",
    re.IGNORECASE,
)
RECIPES_IN_HOME = frozenset({"makefile", "gnumakefile", "justfile"})
"""What `make` and the like run wherever they are called below the home folder itself."""
LOADED_BY_PYTHON = lazy_pattern(r"(?:\.pth|(?:^|/)(?:site|user)customize\.py)$", re.IGNORECASE)
"""What every Python that starts with this folder on its path runs."""
PROTECTED_ANYWHERE = lazy_pattern(
    r"^/etc/(?:g?shadow|passwd|group|sudoers|ssh/|pam\.d/|profile|bash\.bashrc|zsh/|ld\.so\.preload|cron|anacrontab)"
    r"|^/(?:boot|sys|proc|dev(?!/(?:null|stdout|stderr|tty|fd|shm)(?:/|$)))(?:/|$)|^/var/spool/cron(?:/|$)"
    r"|(?:^|/)id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?:\.pub)?$|(?:^|/)authorized_keys$",
    re.IGNORECASE,
)
# Part of ordinary work, but what is written here takes effect later, unseen.
ASK_ANYWHERE = lazy_pattern(
    r"(?:^|/)\.envrc$|(?:^|/)\.env(?:\.(?!example|sample|template)[\w.-]+)?$",
    re.IGNORECASE,
)
RUN_BY_TOOLS = lazy_pattern(
    r"(?:^|/)(?:\.vscode/tasks\.json|\.idea/(?:workspace\.xml|runconfigurations/.*|externaldependencies\.xml)"
    r"|\.devcontainer/.*|\.devcontainer\.json|\.husky/.*|\.githooks/.*|\.pre-commit-config\.yaml|\.?lefthook(?:-local)?\.ya?ml"
    r"|\.overcommit\.yml|\.hg/hgrc(?:-not-shared)?|\.jj/repo/config\.toml|_darcs/prefs/defaults|\.bzr/branch/branch\.conf"
    r"|\.mise\.toml|mise\.toml|\.yarnrc(?:\.yml)?|\.pnpmfile\.cjs|\.npmrc)$",
    re.IGNORECASE,
)
"""What editors, hooks and other version control systems of a project run without being told to; a makefile or a test is
only run by somebody who means it."""
SECRET_IN_HOME = lazy_pattern(
    r"\.ssh/(?!.*\.pub$|known_hosts|config$)|\.gnupg(?:/|$)|\.aws/(?:credentials|sso|cli)|\.azure(?:/|$)"
    r"|\.kube/config$"
    r"|\.(?:netrc|pgpass|pypirc|npmrc|git-credentials|vault-token|boto|s3cfg)$|\.password-store(?:/|$)"
    r"|\.docker/config\.json$|\.config/(?:gcloud|op|rclone)(?:/|$)|\.config/gh/hosts\.yml$"
    r"|\.local/share/keyrings(?:/|$)|Library/Keychains(?:/|$)",
    re.IGNORECASE,
)
SECRET_ANYWHERE = lazy_pattern(
    r"^/etc/(?:shadow|gshadow|sudoers|ssl/private|ssh/ssh_host_\w+_key$)|^/proc/[^/]+/(?:environ|mem)$"
    r"|(?:^|/)\.env(?:\.(?!example|sample|template|dist|test)[\w.-]+)?$"
    r"|(?:^|/)serve/tokens?(?:\.json)?$|(?:^|/)\.toolcrib/auth\.json$"
    r"|(?:^|/)(?:mcp_tokens/[^/]+|logins/spotify)\.json$"
    r"|(?:^|/)id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?$|\.(?:pem|p12|pfx|jks|keystore|kdbx|ppk)$",
    re.IGNORECASE,
)
ANY_HOME = re.compile(r"/(?:home|Users)/[^/]+|/(?:var/)?root")
OWN_FILES = (
    "config.yaml",
    ".env",
    "approvals.jsonl",
    "auth.json",
    "mcp_trust.json",
    "trusted_folders.json",
    "skill_authors.json",
    "cron.db",
    "cron.db-wal",
    "cron.db-shm",
    "board.db",
    "board.db-wal",
    "board.db-shm",
    "sessions.db",
    "sessions.db-wal",
    "sessions.db-shm",
)
OWN_FOLDERS = ("logs", "cache/undo", "mcp_tokens", "logins", "serve", "board_files")
OWN_CODE = ("tools", "plugins")
"""Folders whose code runs in our process at the next start."""
OWN_TEXTS = ("skills", "memories")
"""Folders whose texts later sessions follow."""
MANAGED_BY = {"skill_manage": "skills"}
"""The folder that one of our own tools manages; the tool checks everything it writes there."""


class SensitivePaths(msgspec.Struct, frozen=True):
    """The sensitive paths of one user and one toolcrib home."""

    own_home: str
    search_path: tuple[str, ...] = ()
    """The folders that programs are started from, except those of the system."""
    server: str = ""
    """The address of our server as `//localhost:PORT`, if it has another port than usual."""

    def reason_to_deny_write(self, path: str, folders: PathScope) -> str:
        """Why no tool may write or delete this path; empty if a tool may."""
        for one in self._spellings(path, folders):
            if self.is_ours(one, folders):
                return "it belongs to toolcrib itself, and no tool may change it"
            if PROTECTED_ANYWHERE.search(one) or _matches_in_home(one, folders, PROTECTED_IN_HOME):
                return "no tool may write keys, shell profiles or system files"
            # Deleting a parent folder deletes everything in it.
            if any(is_inside(own.lower(), one.lower()) for own in self._own(folders)) or one in ("/", folders.home):
                return "it contains files that no tool may change"
        return ""

    def reason_to_ask(self, path: str, folders: PathScope) -> str:
        """Why writing this path needs approval even inside the workspace; empty if it doesn't."""
        roots = self._roots(folders)
        started_from = self.started_from(folders)
        for one in spellings(path, folders):
            code = (f"{root}/{name}".lower() for root in roots for name in OWN_CODE)
            if any(is_at_or_inside(one.lower(), folder) for folder in code):
                return "toolcrib runs the code in it at the next start"
            texts = (f"{root}/{name}" for root in roots for name in OWN_TEXTS)
            # Many users keep these in a separate folder and link to it.
            if any(
                is_at_or_inside(one.lower(), real.lower())
                for folder in texts
                for real in folders.written_and_real(folder)
            ):
                return "later sessions follow its text without anyone seeing it"
            if is_executed_by_git(one):
                return "git runs what it says"
            if RUN_BY_TOOLS.search(one):
                return "an editor, a hook or another tool runs what it says"
            if ASK_ANYWHERE.search(one) or (LOADED_BY_PYTHON.search(one) and not folders.in_workspace(one)):
                return "its content takes effect later without anyone seeing it"
            if one.lower().removeprefix(f"{folders.home.lower()}/") in RECIPES_IN_HOME:
                return "programs run it, or read from it what to run"
            if _matches_in_home(one, folders, STARTS_IN_HOME) or _matches_in_home(one, folders, PROGRAMS_IN_HOME):
                return "programs run it, or read from it what to run"
            if any(is_inside(one, folder) for folder in started_from):
                return "programs are started from its folder"
        return ""

    def started_from(self, folders: PathScope) -> tuple[str, ...]:
        """The folders that programs are started from, except those of the workspace, which are the project's."""
        root = folders.real(folders.workspace) if folders.workspace else ""
        return tuple(each for each in self.search_path if not (root and is_at_or_inside(folders.real(each), root)))

    def is_managed_by(self, tool: str, path: str, folders: PathScope) -> bool:
        """Whether a path, with links resolved, is in the folder that this built-in tool manages."""
        folder = MANAGED_BY.get(tool)
        return folder is not None and is_inside(
            folders.written_and_real(path)[1], folders.real(f"{self.own_home}/{folder}")
        )

    def is_ours(self, path: str, folders: PathScope) -> bool:
        """Whether an absolute path is one of our settings, grants, secrets or records."""
        at, inside = _own_locations(self._roots(folders))
        lowered = path.lower()
        return lowered in at or lowered.startswith(inside)

    def protected_paths(self, folders: PathScope) -> tuple[str, ...]:
        """What a command must not touch: folders of programs, our server, and a home outside its default location."""
        programs = (*self.started_from(folders), *([self.server] if self.server else []))
        if self.own_home == f"{folders.home}/.toolcrib":
            return programs
        names = (*OWN_CODE, *OWN_TEXTS)
        return (*self._own(folders), *(f"{root}/{name}" for root in self._roots(folders) for name in names), *programs)

    def is_secret(self, path: str, folders: PathScope) -> bool:
        """Whether reading a path reveals a key or a password."""
        return any(
            bool(SECRET_ANYWHERE.search(one)) or _matches_in_home(one, folders, SECRET_IN_HOME)
            for one in self._spellings(path, folders)
        )

    def _spellings(self, path: str, folders: PathScope) -> tuple[str, ...]:
        """The spellings of a path, and the protected file that it is another name of."""
        found = spellings(path, folders)
        if not has_other_names(found[1]):
            return found
        name = protected_name(found[1], guarded_files(folders.home, self._own(folders)))
        return (*found, name) if name else found

    def _own(self, folders: PathScope) -> tuple[str, ...]:
        return _own_paths(self._roots(folders))

    def _roots(self, folders: PathScope) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.own_home, folders.real(self.own_home))))


def spellings(path: str, folders: PathScope) -> tuple[str, ...]:
    """The path as written and with links resolved; where letters are unusual, also as a file system may read them.

    Some file systems ignore case in every script, the way that accents are written, and characters without width.
    """
    both = folders.written_and_real(path)
    if path.isascii() and both[1].isascii():
        return both
    plain = (IGNORED_IN_NAMES.sub("", unicodedata.normalize("NFKC", one)).casefold() for one in both)
    return (*both, *plain)


IGNORED_IN_NAMES = lazy_pattern("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")


@lru_cache(maxsize=16)
def _own_paths(roots: tuple[str, ...]) -> tuple[str, ...]:
    # Files are replaced by renaming a file with such a name, which must be protected too.
    names = (*OWN_FILES, *(f".{name}.new" for name in OWN_FILES), *(f".{name}.lock" for name in OWN_FILES))
    return tuple(f"{root}/{name}" for root in roots for name in (*names, *OWN_FOLDERS))


@lru_cache(maxsize=16)
def _own_locations(roots: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Our own paths in lower case, and what the paths inside them start with."""
    lowered = [path.lower() for path in _own_paths(roots)]
    return frozenset(lowered), tuple(f"{path}/" for path in lowered)


def _matches_in_home(path: str, folders: PathScope, pattern: re.Pattern[str]) -> bool:
    if is_inside(path, folders.home) and pattern.match(path[len(folders.home.rstrip("/")) + 1 :]):
        return True
    home = ANY_HOME.match(path)
    return home is not None and bool(pattern.match(path[home.end() + 1 :]))
