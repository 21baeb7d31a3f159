"""Paths that no tool may write: keys, shell profiles, and our own settings, grants and records."""

from __future__ import annotations

import re

import msgspec

from toolcrib.approval.places import Place, is_at_or_inside, is_inside

# Relative to the home of any user. Each is a file or a folder that runs code later or lets somebody in.
# Upper and lower case are the same here, because they are on many file systems.
PROTECTED_IN_HOME = re.compile(
    r"\.(?:bash(?:rc|_profile|_login|_logout|_aliases)|profile|zsh(?:rc|env)|zprofile|zlogin|zlogout|kshrc|cshrc|tcshrc"
    r"|login|xinitrc|xprofile|xsession|xsessionrc|pam_environment|inputrc|netrc|pgpass|pypirc|npmrc|git-credentials"
    r"|gitconfig)$"
    r"|\.(?:ssh|gnupg|aws|azure|kube|password-store|docker)(?:/|$)"
    r"|\.config/(?:fish|systemd|autostart|environment\.d|git|gcloud|gh|op|rclone)(?:/|$)"
    r"|\.local/share/(?:keyrings|systemd)(?:/|$)|Library/(?:Keychains|LaunchAgents|LaunchDaemons)(?:/|$)",
    re.IGNORECASE,
)
PROTECTED_ANYWHERE = re.compile(
    r"^/etc/(?:g?shadow|passwd|group|sudoers|ssh/|pam\.d/|profile|bash\.bashrc|zsh/|ld\.so\.preload|cron|anacrontab)"
    r"|^/(?:boot|sys|proc|dev(?!/(?:null|stdout|stderr|tty|fd|shm)(?:/|$)))(?:/|$)|^/var/spool/cron(?:/|$)"
    r"|(?:^|/)id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?:\.pub)?$|(?:^|/)authorized_keys$",
    re.IGNORECASE,
)
# Part of ordinary work, but what is written here runs or counts later, unseen.
ASKED_ANYWHERE = re.compile(
    r"(?:^|/)\.git/(?:hooks(?:/|$)|config$)|(?:^|/)\.env(?:\.(?!example|sample|template)[\w.-]+)?$",
    re.IGNORECASE,
)
SECRET_IN_HOME = re.compile(
    r"\.ssh/(?!.*\.pub$|known_hosts|config$)|\.gnupg(?:/|$)|\.aws/(?:credentials|sso|cli)|\.azure(?:/|$)|\.kube/config$"
    r"|\.(?:netrc|pgpass|pypirc|npmrc|git-credentials|vault-token|boto|s3cfg)$|\.password-store(?:/|$)"
    r"|\.docker/config\.json$|\.config/(?:gcloud|op|rclone)(?:/|$)|\.config/gh/hosts\.yml$"
    r"|\.local/share/keyrings(?:/|$)|Library/Keychains(?:/|$)",
    re.IGNORECASE,
)
SECRET_ANYWHERE = re.compile(
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

    def why_not_written(self, path: str, place: Place) -> str:
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

    def why_asked(self, path: str, place: Place) -> str:
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

    def is_kept_by(self, tool: str, path: str, place: Place) -> bool:
        """Whether a path lies, really, in the folder that this tool of ours keeps."""
        folder = KEPT_BY.get(tool)
        return folder is not None and is_inside(place.both(path)[1], place.real(f"{self.own_home}/{folder}"))

    def is_ours(self, path: str, place: Place) -> bool:
        """Whether an absolute path is one of our settings, grants, secrets or records."""
        return any(is_at_or_inside(path.lower(), own.lower()) for own in self._own(place))

    def in_home(self, place: Place) -> tuple[str, ...]:
        """What a command must not touch in a toolcrib home that is not at its usual place."""
        if self.own_home == f"{place.home}/.toolcrib":
            return ()
        folders = (*OWN_CODE, *OWN_TEXTS)
        return (*self._own(place), *(f"{root}/{name}" for root in self._roots(place) for name in folders))

    def is_secret(self, path: str, place: Place) -> bool:
        """Whether reading a path shows a key or a password."""
        return any(
            bool(SECRET_ANYWHERE.search(one)) or _in_a_home(one, place, SECRET_IN_HOME) for one in place.both(path)
        )

    def _own(self, place: Place) -> tuple[str, ...]:
        # A file is renamed into place under a name of this form, which must not be writable either.
        names = (*OWN_FILES, *(f".{name}.new" for name in OWN_FILES), *(f".{name}.lock" for name in OWN_FILES))
        return tuple(f"{root}/{name}" for root in self._roots(place) for name in (*names, *OWN_FOLDERS))

    def _roots(self, place: Place) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.own_home, place.real(self.own_home))))


def _in_a_home(path: str, place: Place, pattern: re.Pattern[str]) -> bool:
    if is_inside(path, place.home) and pattern.match(path[len(place.home.rstrip("/")) + 1 :]):
        return True
    home = ANY_HOME.match(path)
    return home is not None and bool(pattern.match(path[home.end() + 1 :]))
