"""Normalises the paths that a command touches and classifies them."""

from __future__ import annotations

import re
from functools import lru_cache
from posixpath import normpath
from typing import Literal

from toolcrib.approval.paths import (
    LOADED_BY_PYTHON,
    PROGRAMS_IN_HOME,
    PROTECTED_IN_HOME,
    RECIPES_IN_HOME,
    STARTS_IN_HOME,
)
from toolcrib.approval.shell.file_lookup import follow_made_links
from toolcrib.approval.shell.model import MAX_PATH, UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.state import ShellState

Place = Literal[
    "root",
    "home",
    "system_root",
    "system",
    "home_config",
    "secret",
    "disk",
    "device",
    "temporary",
    "workspace",
    "outside",
    "container",
]

SYSTEM_TOP = name_set(
    "bin boot dev etc home lib lib32 lib64 libx32 proc root run sbin sys usr var "
    "Applications Library System Users Volumes private cores Windows"
)
DEEP_SYSTEM_ROOTS = re.compile(
    r"/(?:usr/(?:bin|sbin|lib|lib64|libexec|share|local|include|local/bin|local/lib)|var/(?:lib|"
    r"log|spool|run|mail|cache|db)|home|"
    r"Users|System/Library|private/(?:etc|var)|mnt/[a-z]|boot/(?:efi|grub)|etc/ssh|etc/systemd|"
    r"etc/ssl|Windows/System32)"
)
SYSTEM_FILES = re.compile(
    r"/(?:etc|boot|usr(?!/local/(?:src|share/[^/]+))|bin|sbin|lib\w*|sys|proc|root|System|Library|Windows"
    r"|var/(?:lib|spool|mail|db|backups|named|yp|root|at|cron|log/(?:[wbu]tmp|lastlog|faillog|auth\.log|secure|audit|journal))|opt/[^/]+/etc|private/etc|dev(?!/(?:null|zero|stdout|stderr|"
    r"stdin|tty|fd|shm|full|random|urandom|ptmx|pts)\b))(?:/|$)"
)
DISK = re.compile(
    r"/dev/(?:r?disk\d|r?disk/|[hsv]d[a-z]|xvd[a-z]|nvme\d|mmcblk\d|mapper/|md\d|dm-\d|disk/by-|"
    r"sr\d|zd\d|drbd\d|nbd\d|pmem\d|bcache\d|vg|mtd)"
    r"|\\\\\.\\PhysicalDrive|//\./PhysicalDrive"
)
HOME_DIRECTORY = re.compile(r"/(?:home|Users)/[^/]+|/root|/var/root")
HOME_CONFIG = re.compile(r"\.(?:toolcrib|hermes)(?:/|$)")
SECRET_DIRECTORY = re.compile(
    r"/\.(?:ssh/(?:id_|identity|\*)|ssh/?$|aws/(?:credentials|config|sso|cli/cache)|aws/?$|kube(?:/config)?$"
    r"|docker/config\.json$|gnupg(?:/|$)|config/(?:gcloud|gh/hosts\.yml|op|doctl|rclone)|azure(?:/|$)"
    r"|password-store(?:/|$)|local/share/keyrings|terraform\.d/credentials|(?:toolcrib|hermes)/(?:\.env$|auth\.json$"
    r"|approvals\.jsonl|(?:sessions|cron)\.db|mcp_tokens(?:/|$)|logins(?:/|$)|serve(?:/|$)))"
)
"""Searched for in the whole path with a leading slash; every alternative starts with the same two characters."""
NAMED_LIKE_KEYS = name_set(
    "credentials credentials.json credentials.toml credentials.yml credentials.yaml auth.json auth.toml token tokens "
    "token.json tokens.json hub access_token access_tokens.json api_key apikey secrets secrets.json"
)
DATABASE_FILE = re.compile(
    r"\.(?:sql|dump|pgdump|sqlite3?|db|rdb|mdb|bson|bak|mysql|ldif)(?:\.(?:gz|zst|xz|bz2|enc|zip))?$"
)
"""A database, or a dump of one."""
IN_HIDDEN_FOLDER = re.compile(r"(?:/(?:home|Users)/[^/]+|/root|/var/root)/\.(?!cache/|git/)")
"""Where programs keep what they log in with."""
OWN_TOKENS = re.compile(r"/(?:serve/tokens?(?:\.json)?|logins/spotify\.json|mcp_tokens/[^/]+\.json)$")
"""Whoever has one of these answers approvals over HTTP, or is logged in; our home may be any folder."""
SSH_DIRECTORY = re.compile(r"/\.ssh/(?!known_hosts|config$|authorized_keys)")
PUBLIC_IN_SSH = re.compile(
    r"(?:.*\.pub|environment|rc|allowed_signers|config\.d(?:/.*)?|(?:sockets|cm|ctl|control)\b.*)?$"
)
SECRET_SYSTEM_FILE = re.compile(
    r"/etc/(?:shadow|gshadow|sudoers|master\.passwd|ssl/private|krb5\.keytab|kubernetes/[\w-]+\.conf$|ssh/ssh_host_\w+_key$)"
    r"|/proc/(?:[^/]+/)(?:environ|mem)$|/dev/k?mem$|/proc/kcore$"
)
SECRET_NAME = re.compile(
    r"id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?$"
    r"|\.(?:netrc|pgpass|pypirc|npmrc|git-credentials|my\.cnf|vault-token|boto|s3cfg|htpasswd)$"
    r"|\.(?:bash|zsh|python|mysql|psql)_history$|(?:credentials|secrets?)\.(?:json|ya?ml|toml|env)$"
    r"|(?:Login Data|Cookies|cookies\.sqlite|logins\.json|key4\.db)$|service[-_]?account\w*\.json$"
    r"|(?:private|master|secret)[-_]?key$|wallet\.dat$|settings-security\.xml$"
    r"|(?=[\w.-]+$)(?>.*?(?:private|server|client|tls|ssl|ca))[\w.-]*\.key$"
)
SECRET_SUFFIX = re.compile(r"\.(?:p12|pfx|jks|keystore|kdbx|ppk)$|(?:^|[-_.])(?:priv\w*+[-.]?|key[-.]?)\w*+\.pem$")
ENV_FILE = re.compile(r"\.env(?:\.(?!example|sample|template|dist|test)[\w.-]+)?$")
PUBLIC = re.compile(r"\.pub$|/etc/ssl/certs/|/(?:ca-certificates|cacert|fullchain|cert)[\w.-]*\.pem$|\.crt$")
CLIMBS = re.compile(
    r"(?:\.\./)+(?=(?:etc|usr|boot|proc|sys|root)(?:/|$))|(?:\.\./){3,}(?=(?:bin|sbin|lib|var|dev|home|opt)(?:/|$))"
)
SENSITIVE_PLACES = frozenset({"root", "home", "system_root", "system", "home_config", "secret", "disk", "device"})
SEEN_BY_PROCESS = re.compile(r"/proc/[^/]+/(root|cwd)(?=/|$)")
KERNEL_FILES = ("/dev/", "/proc/")
"""Links there change with the process that follows them."""
MAX_NAME = 256
TEMPORARY = re.compile(r"/(?:var/)?tmp/|/dev/shm/|/private/tmp/|/var/folders/")


def resolve(field: ExpandedWord | str, state: ShellState) -> str:
    """The path that a word names, normalised and relative to the current directory; keeps globs and UNKNOWN.

    Links in its folder are followed if they lead to something sensitive; a link at its end is not, because `rm` and
    the like act on the link.
    """
    path = written_path(field, state)
    text = field if isinstance(field, str) else field.text
    return followed(path, state, final=text.endswith("/")) if state.links or state.view is not None else path


def reached(field: ExpandedWord | str, state: ShellState) -> str:
    """The same for a file that is opened: a link at the end of the path is followed, too."""
    path = written_path(field, state)
    return followed(path, state, final=True) if state.links or state.view is not None else path


def followed(path: str, state: ShellState, *, final: bool) -> str:
    """The path with links resolved if they lead to something sensitive; otherwise the path as it is."""
    if len(path) > MAX_PATH:
        return path
    if state.links:
        path = follow_made_links(path, state.links, final=final)
    view = state.view
    if view is None or path[:1] != "/" or path.startswith(KERNEL_FILES) or UNKNOWN in path or state.mounts:
        return path
    real = view.real(path) if final else view.real_place(path)
    if real == path or (real.startswith(KERNEL_FILES) and not DISK.match(real)):
        return path
    return real if place(real, state) in SENSITIVE_PLACES else path


def written_path(field: ExpandedWord | str, state: ShellState) -> str:
    """The path that a word names, as text."""
    text = field if isinstance(field, str) else field.text
    if not text:
        return text
    if text[0] != "/":
        base = state.cwd if state.cwd_known else UNKNOWN
        text = f"{base}/{text}" if base and base[-1] != "/" else base + text
    path = normpath(climbed(text, state) if "/.." in text and (state.links or state.view is not None) else text)
    # POSIX keeps a leading double slash; to Linux it is the root.
    path = path[1:] if path.startswith("//") and not path.startswith("//./") else path
    if path.startswith("/proc/"):
        path = own_view(path, state)
    for inside, outside in state.mounts:
        if path == inside or path.startswith(inside.rstrip("/") + "/"):
            return normpath(outside.rstrip("/") + "/" + path[len(inside) :].lstrip("/"))
    return path


def climbed(text: str, state: ShellState) -> str:
    """The path without `..`: after a link it means the folder above the link's target, not above the link."""
    if len(text) > MAX_PATH or UNKNOWN in text:
        return text
    path, is_absolute = "", text[:1] == "/"
    for name in text.split("/"):
        if name in ("", "."):
            continue
        if name != "..":
            path = f"{path}/{name}" if path or is_absolute else name
            continue
        path = follow_made_links(path, state.links, final=True)
        if state.view is not None and path[:1] == "/" and not path.startswith(KERNEL_FILES):
            path = state.view.real(normpath(path))
        path = normpath(f"{path}/..") if path else "/" if is_absolute else ".."
    return path or text


def own_view(path: str, state: ShellState) -> str:
    """The path behind `/proc/self/root` and `/proc/self/cwd`, and those of any other process."""
    found = SEEN_BY_PROCESS.match(path)
    if found is None:
        return path
    base = "/" if found.group(1) == "root" else state.cwd if state.cwd_known else UNKNOWN
    return normpath(f"{base}/{path[found.end() :].lstrip('/')}").replace("//", "/")


def trimmed(path: str) -> str:
    """The directory that a whole-directory glob covers: `/etc/*` and `/etc/.*` mean all of `/etc`."""
    while True:
        head, _, tail = path.rpartition("/")
        if tail in ("*", ".*", "**", "{*,.*}", ".[!.]*", ".??*", ".[^.]*", "?*", "*.*"):
            path = head or ("/" if path.startswith("/") else ".")
        else:
            return path


def place(path: str, state: ShellState) -> Place:
    """The kind of a resolved path; the most sensitive kind wins."""
    path = path[:MAX_PATH]
    climbing = CLIMBS.match(path)
    if climbing:
        path = "/" + path[climbing.end() :]
    whole = trimmed(path)
    if state.container and not mounted(path, state):
        return "container"
    if whole in ("/", "/.", "/.."):
        return "root"
    if (
        whole == state.home
        or HOME_DIRECTORY.fullmatch(whole)
        or (whole.startswith("/home/*") and whole.count("/") == 2)
    ):
        return "home"
    if DISK.match(path):
        return "disk"
    if (whole.count("/") == 1 and whole[1:] in SYSTEM_TOP) or DEEP_SYSTEM_ROOTS.fullmatch(whole):
        return "system_root"
    if is_secret(path):
        return "secret"
    if is_protected(whole, state):
        return "home_config"
    if TEMPORARY.match(path):
        return "temporary"
    if SYSTEM_FILES.match(path):
        return "system" if not path.startswith("/dev/") else "device"
    if path.startswith("/") and not (state.cwd.startswith("/") and path.startswith(state.cwd.rstrip("/") + "/")):
        return "outside"
    return "outside" if path.startswith("..") else "workspace"


def is_protected(path: str, state: ShellState) -> bool:
    """True for what the user's programs run, or read as settings that run commands, wherever the workspace is."""
    if path[:1] == "~":
        path = state.home + path[1:]
    if path in state.own or path.startswith(_insides(state.own)):
        return True
    in_home = home_relative(path, state)
    if in_home is not None and (in_home.lower() in RECIPES_IN_HOME or any(each.match(in_home) for each in IN_HOME)):
        return True
    return path[-4:] in (".pth", "e.py") and LOADED_BY_PYTHON.search(path) is not None and not in_workspace(path, state)


@lru_cache(maxsize=16)
def _insides(folders: tuple[str, ...]) -> tuple[str, ...]:
    """What the paths inside these folders start with; kept, because every word of a command is compared with them."""
    return tuple(f"{folder}/" for folder in folders)


IN_HOME = (HOME_CONFIG, PROTECTED_IN_HOME, STARTS_IN_HOME, PROGRAMS_IN_HOME)
INSTALLED = re.compile(r"/(?:usr|bin|sbin|lib\w*|opt|nix|snap|System|Library|Applications|home/linuxbrew)/")


def is_trusted_program(path: str, state: ShellState) -> bool:
    """True for a program in a folder that is protected from tools, or belongs to the system."""
    in_home = home_relative(path, state)
    return bool(INSTALLED.match(path)) or (in_home is not None and bool(PROGRAMS_IN_HOME.match(in_home)))


def in_workspace(path: str, state: ShellState) -> bool:
    return not path.startswith(("/", "..")) or (
        state.cwd.startswith("/") and path.startswith(state.cwd.rstrip("/") + "/")
    )


def mounted(path: str, state: ShellState) -> bool:
    return any(path == outside or path.startswith(outside.rstrip("/") + "/") for _, outside in state.mounts)


def home_relative(path: str, state: ShellState) -> str | None:
    if path.startswith(state.home + "/"):
        return path[len(state.home) + 1 :]
    match = HOME_DIRECTORY.match(path)
    return path[match.end() + 1 :] if match and path[match.end() :].startswith("/") else None


def is_private(path: str) -> bool:
    """True for files that may be read but should not leave the machine: `.env`, the list of users."""
    return bool(ENV_FILE.match(file_name(path[:MAX_PATH]))) or path in ("/etc/passwd", "/etc/group")


def is_personal(path: str, state: ShellState) -> bool:
    """True for a file in a home folder that does not belong to the workspace: nobody asked for it to leave."""
    if path[:1] != "/" or state.remote or state.container:
        return False
    # Without a known start, the folder that the command line went to is the workspace.
    workspace = state.start or state.cwd
    if workspace[:1] == "/" and path.startswith(workspace) and path[len(workspace) : len(workspace) + 1] in ("", "/"):
        return False
    return home_relative(path, state) is not None


def is_secret(path: str) -> bool:
    """True for keys, passwords and the like, judging by their directories and names."""
    path = path[:MAX_PATH]
    name = file_name(path)
    found = (
        SECRET_DIRECTORY.search("/" + path)
        or SECRET_NAME.match(name)
        or SECRET_SUFFIX.search(name)
        or SECRET_SYSTEM_FILE.match(path)
        or "/run/secrets/" in path
        or (name in NAMED_LIKE_KEYS and IN_HIDDEN_FOLDER.match(path))
        or OWN_TOKENS.search("/" + path)
        or "Library/Keychains" in path
        or holds_ssh_key("/" + path)
    )
    return bool(found) and not PUBLIC.search(path)


def is_own_record(path: str, state: ShellState) -> bool:
    """True for the log of decisions and the stored sessions, wherever our home is."""
    return path.rpartition("/")[2] in OWN_RECORDS and path in state.own


OWN_RECORDS = name_set("approvals.jsonl sessions.db sessions.db-wal cron.db cron.db-wal")


def holds_ssh_key(path: str) -> bool:
    """True for a file in an ssh directory, except those that are no secret."""
    found = SSH_DIRECTORY.search(path)
    return found is not None and PUBLIC_IN_SSH.match(path, found.end()) is None


def file_name(path: str) -> str:
    return path.rpartition("/")[2][-MAX_NAME:]
