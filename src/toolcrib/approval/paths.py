"""Where a path is: inside the workspace or not, with links followed where that can be told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from toolcrib.core.lazy import lazy_pattern

RealPath = Callable[[str], str]
GLOB_CHARACTERS = "*?["


def follow_links(path: str) -> str:
    """The path without links; the part from the first wildcard on is left as it is."""
    fixed = path
    for character in GLOB_CHARACTERS:
        fixed = fixed.partition(character)[0]
    if fixed != path:
        fixed = fixed.rpartition("/")[0] + "/"
    try:
        return _normal(os.path.realpath(fixed) + "/" + path[len(fixed) :])
    except (OSError, ValueError):
        return path


def _normal(path: str) -> str:
    """The path without `..` and doubled slashes; POSIX keeps two in front, and Linux means the root by them."""
    normal = os.path.normpath(path)
    return normal[1:] if normal.startswith("//") else normal


class PathScope(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that a call is judged by. Everything absolute; `real` says what a path is behind its links."""

    cwd: str
    workspace: str
    home: str
    real: RealPath = follow_links

    def absolute(self, path: str) -> str:
        """The path as written, made absolute and normal; the home for a tilde."""
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        return _normal(os.path.join(self.cwd or self.workspace or "/", path))  # noqa: PTH118 - text only

    def both(self, path: str) -> tuple[str, str]:
        """The path as written and as it really is; what matters must hold for both, or for either."""
        written = self.absolute(path)
        return written, self.real(written)

    def in_workspace(self, path: str) -> bool:
        """Whether a path, followed to its end, lies inside the workspace; the workspace itself does not."""
        if not self.workspace:
            return False
        root, real = self.real(self.workspace), self.real(self.absolute(path))
        if not is_inside(real, root):
            return False
        # Who works in his home folder does not mean the settings of all his programs.
        return root != self.real(self.home) or not real[len(root) + 1 :].startswith(".")


def is_inside(path: str, folder: str) -> bool:
    """Whether the path lies below the folder; both absolute and normal."""
    return folder != "/" and path.startswith(folder.rstrip("/") + "/")


def is_at_or_inside(path: str, folder: str) -> bool:
    return path == folder or is_inside(path, folder) or folder == "/"


# Relative to the home of any user. Each is a file or a folder that runs code later or lets somebody in.
# Upper and lower case are the same here, because they are on many file systems.
PROTECTED_IN_HOME = lazy_pattern(
    r"\.(?:bash(?:rc|_profile|_login|_logout|_aliases)|profile|zsh(?:rc|env)|zprofile|zlogin|zlogout|kshrc|cshrc|tcshrc"
    r"|login|xinitrc|xprofile|xsession|xsessionrc|pam_environment|inputrc|netrc|pgpass|pypirc|npmrc|git-credentials"
    r"|gitconfig)$"
    r"|\.(?:ssh|gnupg|aws|azure|kube|password-store|docker)(?:/|$)"
    r"|\.config/(?:fish|systemd|autostart|environment\.d|git|gcloud|gh|op|rclone)(?:/|$)"
    r"|\.local/share/(?:keyrings|systemd)(?:/|$)|Library/(?:Keychains|LaunchAgents|LaunchDaemons)(?:/|$)",
    re.IGNORECASE,
)
PROTECTED_ANYWHERE = lazy_pattern(
    r"^/etc/(?:g?shadow|passwd|group|sudoers|ssh/|pam\.d/|profile|bash\.bashrc|zsh/|ld\.so\.preload|cron|anacrontab)"
    r"|^/(?:boot|sys|proc|dev(?!/(?:null|stdout|stderr|tty|fd|shm)(?:/|$)))(?:/|$)|^/var/spool/cron(?:/|$)"
    r"|(?:^|/)id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?:\.pub)?$|(?:^|/)authorized_keys$",
    re.IGNORECASE,
)
# Part of ordinary work, but what is written here runs or counts later, unseen.
ASKED_ANYWHERE = lazy_pattern(
    r"(?:^|/)\.git/(?:hooks(?:/|$)|config$)|(?:^|/)\.env(?:\.(?!example|sample|template)[\w.-]+)?$",
    re.IGNORECASE,
)
SECRET_IN_HOME = lazy_pattern(
    r"\.ssh/(?!.*\.pub$|known_hosts|config$)|\.gnupg(?:/|$)|\.aws/(?:credentials|sso|cli)|\.azure(?:/|$)|\.kube/config$"
    r"|\.(?:netrc|pgpass|pypirc|npmrc|git-credentials|vault-token|boto|s3cfg)$|\.password-store(?:/|$)"
    r"|\.docker/config\.json$|\.config/(?:gcloud|op|rclone)(?:/|$)|\.config/gh/hosts\.yml$"
    r"|\.local/share/keyrings(?:/|$)|Library/Keychains(?:/|$)",
    re.IGNORECASE,
)
SECRET_ANYWHERE = lazy_pattern(
    r"^/etc/(?:shadow|gshadow|sudoers|ssl/private|ssh/ssh_host_\w+_key$)|^/proc/[^/]+/(?:environ|mem)$"
    r"|(?:^|/)\.env(?:\.(?!example|sample|template|dist|test)[\w.-]+)?$"
    r"|(?:^|/)mcp_tokens/[^/]+\.json$|(?:^|/)id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?$|\.(?:pem|p12|pfx|jks|keystore|kdbx|ppk)$",
    re.IGNORECASE,
)
ANY_HOME = re.compile(r"/(?:home|Users)/[^/]+|/(?:var/)?root")
OWN_FILES = (
    "config.yaml",
    ".env",
    "approvals.jsonl",
    "auth.json",
    "mcp_trust.json",
    "cron.db",
    "cron.db-wal",
    "cron.db-shm",
)
OWN_FOLDERS = ("logs", "cache/undo", "mcp_tokens")
OWN_CODE = ("tools", "plugins")
"""Folders whose code runs in our process at the next start."""
OWN_TEXTS = ("skills",)
"""Folders whose texts later sessions follow."""
KEPT_BY = {"skill_manage": "skills"}
"""The folder that one of our own tools keeps, and checks all that it puts there."""


class SensitivePaths(msgspec.Struct, frozen=True):
    """Knows the delicate paths of one user and of one toolcrib home."""

    own_home: str

    def why_not_written(self, path: str, place: PathScope) -> str:
        """Why no tool may write or delete this path; empty when it may be thought about."""
        for one in place.both(path):
            if self.is_ours(one, place):
                return "it belongs to toolcrib itself, and no tool may change that"
            if PROTECTED_ANYWHERE.search(one) or _in_a_home(one, place, PROTECTED_IN_HOME):
                return "keys, shell profiles and system files are never written by a tool"
            # Deleting the folder above takes everything in it along.
            if any(is_inside(own.lower(), one.lower()) for own in self._own(place)) or one in ("/", place.home):
                return "it holds files that no tool may change"
        return ""

    def why_asked(self, path: str, place: PathScope) -> str:
        """Why writing this path is asked about even inside the workspace; empty when it is not."""
        for one in place.both(path):
            code = (f"{root}/{name}".lower() for root in self._roots(place) for name in OWN_CODE)
            if any(is_at_or_inside(one.lower(), folder) for folder in code):
                return "code in it runs inside toolcrib at the next start"
            texts = (f"{root}/{name}" for root in self._roots(place) for name in OWN_TEXTS)
            # Many keep these in a folder of their own and link to it.
            if any(is_at_or_inside(one.lower(), real.lower()) for folder in texts for real in place.both(folder)):
                return "later sessions follow what it says without its being seen"
            if ASKED_ANYWHERE.search(one):
                return "what it holds is used later without being seen"
        return ""

    def is_kept_by(self, tool: str, path: str, place: PathScope) -> bool:
        """Whether a path lies, really, in the folder that this tool of ours keeps."""
        folder = KEPT_BY.get(tool)
        return folder is not None and is_inside(place.both(path)[1], place.real(f"{self.own_home}/{folder}"))

    def is_ours(self, path: str, place: PathScope) -> bool:
        """Whether an absolute path is one of our settings, grants, secrets or records."""
        at, inside = _own_spots(self._roots(place))
        lowered = path.lower()
        return lowered in at or lowered.startswith(inside)

    def in_home(self, place: PathScope) -> tuple[str, ...]:
        """What a command must not touch in a toolcrib home that is not at its usual place."""
        if self.own_home == f"{place.home}/.toolcrib":
            return ()
        folders = (*OWN_CODE, *OWN_TEXTS)
        return (*self._own(place), *(f"{root}/{name}" for root in self._roots(place) for name in folders))

    def is_secret(self, path: str, place: PathScope) -> bool:
        """Whether reading a path shows a key or a password."""
        return any(
            bool(SECRET_ANYWHERE.search(one)) or _in_a_home(one, place, SECRET_IN_HOME) for one in place.both(path)
        )

    def _own(self, place: PathScope) -> tuple[str, ...]:
        return _own_paths(self._roots(place))

    def _roots(self, place: PathScope) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.own_home, place.real(self.own_home))))


@lru_cache(maxsize=16)
def _own_paths(roots: tuple[str, ...]) -> tuple[str, ...]:
    # A file is renamed into place under a name of this form, which must not be writable either.
    names = (*OWN_FILES, *(f".{name}.new" for name in OWN_FILES), *(f".{name}.lock" for name in OWN_FILES))
    return tuple(f"{root}/{name}" for root in roots for name in (*names, *OWN_FOLDERS))


@lru_cache(maxsize=16)
def _own_spots(roots: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Our own paths in lower case, and what the paths inside them start with."""
    lowered = [path.lower() for path in _own_paths(roots)]
    return frozenset(lowered), tuple(f"{path}/" for path in lowered)


def _in_a_home(path: str, place: PathScope, pattern: re.Pattern[str]) -> bool:
    if is_inside(path, place.home) and pattern.match(path[len(place.home.rstrip("/")) + 1 :]):
        return True
    home = ANY_HOME.match(path)
    return home is not None and bool(pattern.match(path[home.end() + 1 :]))
