"""Secrets that a command reaches without naming them: by a wildcard, a recursive walk or a search.

Patterns and folders are compared with the usual locations of secrets, and on this machine with the files that exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache

from toolcrib.approval.shell.file_lookup import WILDCARDS
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.paths import is_private, is_secret, place, reached, resolve, written_path
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.state import ShellState

IN_HOME = name_set(
    ".ssh/id_rsa .ssh/id_ed25519 .ssh/id_ecdsa .ssh/id_dsa .ssh/identity .aws/credentials .aws/config .netrc .pgpass "
    ".git-credentials .npmrc .pypirc .vault-token .boto .s3cfg .kube/config .docker/config.json "
    ".gnupg/secring.gpg .gnupg/private-keys-v1.d/0.key .azure/accessTokens.json .azure/msal_token_cache.json "
    ".config/gcloud/credentials.db .config/gcloud/application_default_credentials.json .config/gh/hosts.yml "
    ".config/rclone/rclone.conf .config/op/config .config/doctl/config.yaml .password-store/mail.gpg "
    ".local/share/keyrings/login.keyring .terraform.d/credentials.tfrc.json .bash_history .zsh_history "
    ".python_history .mysql_history .psql_history .my.cnf .toolcrib/.env .toolcrib/mcp_tokens/server.json "
    ".toolcrib/logins/spotify.json .toolcrib/serve/token .toolcrib/serve/tokens.json .toolcrib/auth.json "
    "Library/Keychains/login.keychain-db .mozilla/firefox/0.default/logins.json .mozilla/firefox/0.default/key4.db"
)
"""Secrets by their usual names, relative to a home folder."""
IN_SYSTEM = name_set(
    "/etc/shadow /etc/gshadow /etc/sudoers /etc/master.passwd /etc/krb5.keytab /etc/ssl/private/server.key "
    "/etc/ssh/ssh_host_rsa_key /etc/ssh/ssh_host_ed25519_key /proc/1/environ /proc/self/environ /run/secrets/token"
)
PROTECTED_IN_HOME = name_set(
    ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .kshrc "
    ".cshrc .tcshrc .inputrc .xinitrc .xprofile .pam_environment .gitconfig .vimrc .netrc .npmrc .pypirc "
    ".ssh/authorized_keys .ssh/config .ssh/id_rsa .ssh/id_ed25519 .aws/credentials .aws/config .kube/config "
    ".config/fish/config.fish .config/git/config .config/autostart/x.desktop .config/systemd/user/x.service "
    ".local/bin/x .toolcrib/config.yaml .toolcrib/.env .toolcrib/approvals.jsonl .toolcrib/plugins/x"
)
PROTECTED_IN_SYSTEM = name_set(
    "/etc/passwd /etc/shadow /etc/sudoers /etc/hosts /etc/crontab /etc/profile /etc/fstab /etc/ssh/sshd_config"
)
MAX_MATCHED_PATTERN = 512
FIRST_WILDCARD = re.compile(r"[*?\[]")
SENSITIVE = frozenset({"home_config", "secret", "disk", "system", "system_root", "root", "home"})

RECURSES = re.compile(r"(?:^| )(?:-d ?|--directories[ =])recurse(?: |$)")
INCLUDES = ("--include", "-g", "--glob", "-t", "--type")
HIDDEN = ("-.", "--hidden", "-u", "-uu", "-uuu", "--unrestricted", "-a", "--all-types")


@lru_cache(maxsize=8)
def known_secrets(home: str) -> tuple[str, ...]:
    homes = dict.fromkeys((home, "/root", "/home/user", "/Users/user"))
    return (*IN_SYSTEM, *(f"{each}/{name}" for each in homes for name in sorted(IN_HOME)))


@lru_cache(maxsize=8)
def protected_files(home: str) -> tuple[str, ...]:
    homes = dict.fromkeys((home, "/root", "/home/user"))
    return (*PROTECTED_IN_SYSTEM, *(f"{each}/{name}" for each in homes for name in sorted(PROTECTED_IN_HOME)))


@lru_cache(maxsize=8)
def folders_with_secrets(home: str) -> frozenset[str]:
    """Every folder above a usual secret."""
    found = {"/"}
    for path in known_secrets(home):
        parts = path.split("/")
        found |= {"/".join(parts[:count]) for count in range(2, len(parts))}
    return frozenset(found)


def matches_path(pattern: str, path: str, *, below: bool = False) -> bool:
    """Whether the shell could expand an absolute pattern to a path or, with `below`, to a folder above it."""
    patterns, parts = pattern.split("/"), path.split("/")
    if len(patterns) > len(parts) or (len(patterns) < len(parts) and not below):
        return False
    for each, part in zip(patterns, parts, strict=False):
        if each != part and not (
            WILDCARDS.intersection(each)
            and part.startswith(".") <= each.startswith(".")
            and fnmatchcase(part, each.replace("[^", "[!"))
        ):
            return False
    return True


def matched(word: ExpandedWord, state: ShellState, *, known: Iterable[str], below: bool = False) -> Iterator[str]:
    """What an unquoted pattern may expand to: the known paths that it matches, and files that exist."""
    if not word.glob or not WILDCARDS.intersection(word.text):
        return
    pattern = resolve(word, state)
    if not pattern.startswith("/") or UNKNOWN in pattern or len(pattern) > MAX_MATCHED_PATTERN:
        return
    literal = FIRST_WILDCARD.split(pattern, maxsplit=1)[0]
    for path in known:
        if path.startswith(literal) and matches_path(pattern, path, below=below):
            yield path
    if state.view is not None and not state.container and not state.remote:
        is_moved = state.view.real_folder(literal.rpartition("/")[0] or "/") + "/" != literal.rpartition("/")[0] + "/"
        for path, is_link in state.view.matches(pattern):
            yield reached(path, state) if is_link or is_moved else path


def secrets_by_pattern(word: ExpandedWord, state: ShellState, *, private: bool = False) -> str:
    """A secret that a pattern may expand to; empty if there is none. `private` includes files such as `.env`."""
    return once(word, state, "private" if private else "secret", lambda: first_secret(word, state, private))


def first_secret(word: ExpandedWord, state: ShellState, private: bool) -> str:
    for path in matched(word, state, known=known_secrets(state.home)):
        if is_secret(path) or (private and is_private(path)):
            return path
    return ""


def protected_by_pattern(word: ExpandedWord, state: ShellState) -> str:
    """A protected file that a pattern in the place of a target may expand to; empty if there is none."""
    return once(word, state, "protected", lambda: first_protected(word, state))


def first_protected(word: ExpandedWord, state: ShellState) -> str:
    for path in matched(word, state, known=protected_files(state.home)):
        if place(path, state) in SENSITIVE:
            return path
    return ""


def once(word: ExpandedWord, state: ShellState, kind: str, look: Callable[[], str]) -> str:
    """What `look` finds; on this machine it looks once for each pattern and folder."""
    if not word.glob or state.view is None:
        return look() if word.glob else ""
    key = (kind, written_path(word, state))
    if key not in state.view.sensitive:
        state.view.sensitive[key] = look()
    return state.view.sensitive[key]


# Folders


def secret_below(folder: ExpandedWord, state: ShellState) -> str:
    """The folder if a walk through it reads a secret; otherwise empty."""
    if not folder.text or not folder.known:
        return ""
    path = reached(folder, state)
    if state.container or state.remote:
        return ""
    if path in folders_with_secrets(state.home) or is_secret(path):
        return path
    if folder.glob:
        found = matched(folder, state, known=known_secrets(state.home), below=True)
        return next((each for each in found if is_secret(each)), "")
    if state.view is None or not path.startswith("/") or is_workspace(path, state):
        return ""
    return path if any(is_secret(each) for each in state.view.walk(path)) else ""


def is_workspace(path: str, state: ShellState) -> bool:
    """Whether a path is in the current folder: a search there is everyday work, whatever lies in it."""
    return state.cwd.startswith("/") and f"{path}/".startswith(state.cwd.rstrip("/") + "/")


def walked_secret(call: CommandCall) -> str:
    """A folder with secrets whose files the command reads; empty if there is none."""
    walks = WALKERS.get(call.program)
    if walks is None or (walks is searched and lists_names_only(call)):
        return ""
    return next((found for each in walks(call) if (found := secret_below(each, call.state))), "")


def lists_secrets(call: CommandCall) -> bool:
    """Whether the command prints the names of secrets: a search that only names files, or a list of hidden ones."""
    if WALKERS.get(call.program) is searched:
        return lists_names_only(call) and any(secret_below(each, call.state) for each in searched(call))
    if call.program not in ("ls", "exa", "eza", "tree") or not call.arguments.has("-a", "-A", "--all", "--almost-all"):
        return False
    return any(secret_below(each, call.state) for each in call.arguments.operands or [ExpandedWord(".")])


def searched(call: CommandCall) -> list[ExpandedWord]:
    """The folders that a recursive search reads."""
    arguments = call.arguments
    if call.program in ("grep", "egrep", "fgrep", "ggrep", "zgrep"):
        recursive = arguments.has("-r", "-R", "--recursive", "--dereference-recursive")
        if not recursive and not RECURSES.search(" ".join(word.text for word in call.words[:16])):
            return []
    elif call.program in ("rg", "ag") and not arguments.has(*HIDDEN):
        return []
    if only_other_names(call):
        return []
    given = arguments.has("-e", "-f", "--regexp", "--file") or call.program == "du"
    operands = arguments.operands if given else arguments.operands[1:]
    return operands or [ExpandedWord(".")]


def only_other_names(call: CommandCall) -> bool:
    """True when a search is limited to names that no secret has."""
    values = [word.text for word in call.arguments.values(*INCLUDES)]
    values += [word.text.partition("=")[2] for word in call.words if word.text.startswith("--include=")]
    return bool(values) and not any(may_name_secret(value) for value in values)


def lists_names_only(call: CommandCall) -> bool:
    return call.arguments.has("-l", "-L", "-c", "-q", "--files-with-matches", "--count", "--files", "--quiet")


def may_name_secret(pattern: str) -> bool:
    """Whether a pattern for names may match the name of a usual secret."""
    name = pattern.rpartition("/")[2].lower()
    return any(fnmatchcase(each.rpartition("/")[2].lower(), name) for each in (*IN_HOME, *IN_SYSTEM))


def copied(call: CommandCall) -> list[ExpandedWord]:
    """The folders that a copy takes with everything in them."""
    arguments = call.arguments
    if call.program == "rsync":
        if arguments.has("-n", "--dry-run", "--list-only"):
            return []
    elif call.program != "ditto" and not arguments.has("-r", "-R", "-a", "--recursive", "--archive"):
        return []
    directory = arguments.value("-t", "--target-directory")
    return arguments.operands if directory is not None else arguments.operands[:-1]


def archived(call: CommandCall) -> list[ExpandedWord]:
    """The folders that go into an archive."""
    words, arguments = call.words, call.arguments
    if call.program in ("tar", "bsdtar", "gtar"):
        first = words[0].text if words else ""
        bundled = first if first and not first.startswith("-") else ""
        creates = arguments.has("-c", "-r", "-u", "--create", "--append", "--update") or bool(
            set("cru").intersection(bundled)
        )
        operands = arguments.operands[1 + ("f" in bundled) :] if bundled else arguments.operands
        folder = arguments.value("-C", "--directory")
        return [*(operands if creates else []), *([folder] if creates and folder is not None else [])]
    if call.program == "zip" and not arguments.has("-r", "-R", "--recurse-paths"):
        return []
    if call.program in ("7z", "7za", "7zz", "rar") and [word.text for word in words[:1]] != ["a"]:
        return []
    skipped = {"restic": 1, "borg": 2, "duplicity": 0, "rclone": 1, "ar": 2}.get(call.program, 1)
    return arguments.operands[skipped:]


def every_operand(call: CommandCall) -> list[ExpandedWord]:
    return call.arguments.operands


def compared(call: CommandCall) -> list[ExpandedWord]:
    return call.arguments.operands if call.arguments.has("-r", "--recursive") else []


WALKERS: dict[str, Callable[[CommandCall], list[ExpandedWord]]] = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "ggrep", "zgrep", "rgrep", "rg", "ag", "ack", "ugrep"), searched),
    **dict.fromkeys(("cp", "gcp", "rsync", "scp", "ditto"), copied),
    **dict.fromkeys(
        ("tar", "bsdtar", "gtar", "zip", "7z", "7za", "7zz", "rar", "restic", "borg", "duplicity", "rclone"), archived
    ),
    **dict.fromkeys(("mksquashfs", "genisoimage", "mkisofs", "pax", "trufflehog", "gitleaks"), every_operand),
    "diff": compared,
}
"""Programs that read whole folders, and which of their words are folders that they read."""


# Searches by name

NAME_TESTS = frozenset({"-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-lname"})
OTHER_TESTS = frozenset({"-regex", "-iregex"})


def finds_secrets(call: CommandCall, roots: list[ExpandedWord]) -> bool:
    """Whether what `find` lists may be a secret: by where it looks, and by the names that it looks for."""
    texts = [word.text for word in call.words]
    tests = [(texts[at - 1] if at else "", texts[at + 1]) for at, text in enumerate(texts[:-1]) if text in NAME_TESTS]
    if any(
        is_secret("/" + name.replace("*", "x")) or is_private(name) or name.endswith((".pem", ".key"))
        for _, name in tests
    ):
        return True
    if not any(secret_below(root, call.state) for root in roots or [ExpandedWord(".")]):
        return False
    wanted = [name for before, name in tests if before not in ("!", "-not")]
    return not wanted or any(may_name_secret(name) for name in wanted)


PATH_IN_TEXT = re.compile(r"(?:~|\$HOME|\$\{HOME\}|\$ENV\{HOME\})?/[\w.@+*-][\w./@+*-]*")
QUOTES_TEXT = name_set(
    "echo printf grep egrep fgrep rg ag ack gh glab git logger notify-send say jira toolcrib hermes ssh docker podman "
    "kubectl : true export declare local readonly typeset alias trap sh bash zsh dash ksh cat tee test [ [[ llm "
    "python python2 python3 pypy pypy3"
)
"""Programs whose words are texts, or are judged as commands elsewhere."""


def secret_in_text(call: CommandCall) -> str:
    """A secret that is named inside a longer word, or in the commands on a program's input; otherwise empty."""
    if call.program in QUOTES_TEXT:
        return ""
    texts = [text for word in call.words if "/" in (text := word.text) and COMPOUND.search(text, 0, text.rindex("/"))]
    if call.stdin is not None and call.stdin.text and call.program not in READS_TEXT:
        texts.append(call.stdin.text)
    for text in texts:
        for found in PATH_IN_TEXT.finditer(text[:4096]):
            path = HOME_IN_TEXT.sub(call.state.home, found.group())
            if is_secret(path) and not is_workspace(path, call.state):
                return path
    return ""


COMPOUND = re.compile(r"[\s('\"=:,]")
HOME_IN_TEXT = re.compile(r"^(?:~|\$HOME|\$\{HOME\}|\$ENV\{HOME\})(?=/)")
READS_TEXT = name_set(
    "tac less more head tail bat nl strings xxd od hexdump base64 base32 awk gawk sed cut sort uniq jq yq cp mv tar "
    "zip gzip bzip2 xz dd diff comm paste rsync scp sftp cpio pr fold column openssl gpg age pbcopy xclip xsel wl-copy "
    "wc md5sum sha256sum sponge read mapfile readarray xargs curl wget nc ncat http https mail mailx while tr rev iconv"
)
"""Programs to which their input is data."""
