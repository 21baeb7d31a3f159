"""Grants, the approvals that outlive a call: session grants in memory, permanent ones in `command_allowlist`."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cached_property

import msgspec

from toolcrib.approval.calls import UNKNOWN_TEXT, CommandReading, ProgramCall, Stack
from toolcrib.approval.paths import PathScope, is_at_or_inside, is_inside
from toolcrib.approval.shell.findings import Finding
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.paths import Home
from toolcrib.config.redact import redact
from toolcrib.core.approvals import UNTRUSTED_VALUE, ApprovalRequest, Danger

INSIDE_WORKSPACE = "inside the workspace"
WHOLE_WORKSPACE = "the whole workspace"
MAX_SHOWN_COMMAND = 160
MAX_LISTED_PATHS = 32
"""The analyser lists at most this many paths of a finding; a full list may be incomplete, so its paths don't count."""

# Wrappers that change neither where a command runs nor as which user.
TRANSPARENT = frozenset(
    ("sh", "bash", "dash", "zsh", "ksh", "nohup", "timeout", "nice", "ionice", "time", "command", "builtin", "exec")
)
# These change what a later command on the same line means.
MOVES = frozenset(
    ("cd", "pushd", "popd", "export", "declare", "typeset", "set", "source", ".", "alias", "eval", "unset", "read")
)
PATH_RULES = frozenset({"recursive_delete", "permissions", "system_config", "credential", "disk_write", "format"})
THIS_TEXT_ONLY = frozenset({"remote_code", "exfiltration"})
"""Approving one address does not approve any other."""
NEVER_PERMANENT = frozenset(
    {"unknown_code", "unknown_command", "not_understood", "changed", "workspace_edit", UNTRUSTED_VALUE}
)
"""Dangers whose command may mean something else tomorrow, and those that a mode asks about."""

ASSIGNS = re.compile(r"(?:^|[\s;&|('\"`])[A-Za-z_]\w*\+?=")
"""Variables such as PGHOST also choose a target."""

# The options that choose the target, for scopes named "this …".
CHOOSES = {
    "this cluster": ("--context", "--kubeconfig", "--cluster", "-n", "--namespace", "--kube-context", "-s", "--server"),
    "this cloud account": ("--profile", "--project", "--account", "--subscription", "--endpoint-url", "--region"),
    "this container engine": ("-H", "--host", "--context", "-c"),
    "this infrastructure": ("-chdir", "--chdir", "-state", "-var-file", "--stack", "-s"),
    "this repository": ("-C", "--git-dir", "--work-tree", "-R", "--repo"),
}
STATEMENT_OPTIONS = frozenset({"-c", "--command", "-e", "--execute", "-q", "--query", "-Q", "--eval"})


class DangerScopes:
    """Computes the dangers of one command line; properties of the whole line are computed once."""

    def __init__(self, reading: CommandReading, command: str, folders: PathScope) -> None:
        self._reading = reading
        self._command = command
        self._folders = folders

    @cached_property
    def exact(self) -> str:
        return exact_scope(self._command)

    @cached_property
    def changes_target(self) -> bool:
        """Whether the line changes folder or sets variables, so that its words alone don't tell the target."""
        moves = any(call.program in MOVES for call in self._reading.calls)
        return moves or ASSIGNS.search(self._command) is not None

    def dangers_of(self, finding: Finding) -> tuple[Danger, ...]:
        """One danger for each scope that a finding touches."""
        stacks = self._reading.stacks(finding)
        if not all(_is_plain(stack) for stack in stacks) or (not stacks and finding.rule in NEVER_PERMANENT):
            return (_danger(finding, self.exact, finding.paths),)
        if finding.paths and finding.rule in PATH_RULES and _paths_are_known(finding):
            by_scope: dict[str, list[str]] = {}
            for path in finding.paths:
                by_scope.setdefault(path_scope(path, self._folders), []).append(path)
            return tuple(_danger(finding, scope, tuple(paths)) for scope, paths in by_scope.items())
        if finding.paths or finding.rule in (PATH_RULES | THIS_TEXT_ONLY) or finding.scope in ("", "this command"):
            return (_danger(finding, self.exact, finding.paths),)
        if finding.scope != "this host" and self.changes_target:
            return (_danger(finding, self.exact, ()),)
        innermost = stacks[0][-1] if stacks and stacks[0] else None
        same = all(stack and stack[-1] == innermost for stack in stacks)
        return (_danger(finding, named_scope(finding, innermost, self._folders) if same else self.exact, ()),)


def path_scope(path: str, folders: PathScope) -> str:
    """The scope of a path, as a person would name it."""
    written = folders.absolute(_without_whole_folder_glob(path))
    real = folders.real(written)
    root = folders.real(folders.workspace) if folders.workspace else ""
    if root and real == root:
        return WHOLE_WORKSPACE
    if folders.in_workspace(written):
        # Git history is worth more than the rest of the folder.
        return f"in {real}" if ".git" in real[len(root) :].split("/") else INSIDE_WORKSPACE
    return f"in {real}"


def named_scope(finding: Finding, call: ProgramCall | None, folders: PathScope) -> str:
    """The scope of a danger without paths: "this host", or "this database" with the words that choose it."""
    scope = finding.scope
    if scope == "this repository":
        folder = folders.workspace if is_at_or_inside(folders.cwd, folders.workspace) else folders.cwd
        scope = f"the repository in {folder or '.'}"
    if call is None:
        return scope
    if finding.scope == "this database":
        chosen = [call.program, *_without_statements(call.words)]
    else:
        chosen = _target_options(call.words, CHOOSES.get(finding.scope, ()))
    if any(UNKNOWN_TEXT in word for word in chosen):
        return exact_scope(call.text)
    return " ".join([scope, *(redact(word) for word in chosen)])


def exact_scope(command: str) -> str:
    """The narrowest scope: exactly this text, or its digest if it is long or contains a secret."""
    shown = command.strip()
    if len(shown) <= MAX_SHOWN_COMMAND and shown.isprintable() and redact(shown) == shown:
        return f"exactly: {shown}"
    return f"exactly: sha256 {hashlib.sha256(command.encode('utf-8', 'surrogatepass')).hexdigest()}"


def covers(granted: str, scope: str) -> bool:
    """Whether a granted scope covers another: the same scope, or a folder and anything in it."""
    if granted == scope:
        return True
    if not granted.startswith("in /") or not scope.startswith("in /"):
        return False
    return is_inside(scope[len("in ") :], granted[len("in ") :])


def _danger(finding: Finding, scope: str, paths: tuple[str, ...]) -> Danger:
    return Danger(
        rule=finding.rule,
        description=finding.description,
        reason=finding.reason,
        scope=scope,
        span=finding.span,
        paths=paths,
    )


def _is_plain(stack: Stack) -> bool:
    """Whether no wrapper moves the command to another machine, user or folder."""
    return all(call.program in TRANSPARENT for call in stack[:-1])


def _paths_are_known(finding: Finding) -> bool:
    if len(finding.paths) >= MAX_LISTED_PATHS:
        return False
    return all(path.startswith("/") and UNKNOWN_TEXT not in path for path in finding.paths)


def _without_whole_folder_glob(path: str) -> str:
    """`/x/*` means all of `/x`."""
    head, _, tail = path.rpartition("/")
    return head or "/" if tail in ("*", ".*", "**", ".[!.]*", "{*,.*}", "*.*", "?*") else path


def _target_options(words: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    chosen: list[str] = []
    for number, word in enumerate(words):
        if word in names:
            chosen += words[number : number + 2]
        elif any(word.startswith(name + "=") or (len(name) == 2 and word.startswith(name)) for name in names):
            chosen.append(word)
    return chosen


def _without_statements(words: tuple[str, ...]) -> list[str]:
    """The words of a database client without the statement it runs."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or " " in word.strip() or word.startswith(("--eval=", "--execute=")):
            skip = False
        elif word in STATEMENT_OPTIONS:
            skip = True
        else:
            kept.append(word)
    return kept


JOINING = ("\n", "&", ";", "|", "<", ">", "`", "$(")
"""A command pattern never covers a line with one of these: another command follows."""

# Names from Hermes Agent's lists, with our rule and a word that the command must contain.
OLD_NAMES = {
    "recursive delete (long flag)": ("recursive_delete", "rm"),
    "delete in root path": ("recursive_delete", "rm"),
    "xargs with rm": ("recursive_delete", "xargs"),
    "find -exec rm": ("recursive_delete", "-exec"),
    "find -delete": ("recursive_delete", "-delete"),
    "world-writable permissions": ("permissions", "chmod"),
    "world/other-writable permissions": ("permissions", "chmod"),
    "recursive chown to root": ("permissions", "chown"),
    "overwrite system config": ("system_config", "/etc"),
    "stop system service": ("service", "systemctl"),
    "stop/restart system service": ("service", "systemctl"),
    "kill all processes": ("kill", "kill"),
    "force kill processes": ("kill", "kill"),
    "SQL DROP": ("sql", "drop"),
    "SQL DELETE without WHERE": ("sql", "delete"),
    "SQL TRUNCATE": ("sql", "truncate"),
    "pipe remote content to shell": ("remote_code", "|"),
    "git force push (rewrites remote history)": ("git_history", "push"),
    "git force push short flag (rewrites remote history)": ("git_history", "push"),
    "git reset --hard (destroys uncommitted changes)": ("git_history", "reset"),
    "git clean with force (deletes untracked files)": ("git_history", "clean"),
    "git branch force delete": ("git_history", "branch"),
}


class Grant(msgspec.Struct, frozen=True):
    """One line of the allowlist. It covers a danger in one scope, a danger in every scope, or a command pattern."""

    text: str

    def covers(self, danger: Danger, command: str = "") -> bool:
        """Whether this grant covers this danger of this command."""
        if self.text in (danger.rule, danger.description):
            return True
        for name in (danger.description, danger.rule):
            # Compare the name first: a scope may contain anything, even brackets.
            opening = f"{name} ("
            if self.text.startswith(opening) and self.text.endswith(")"):
                return covers(self.text[len(opening) : -1], danger.scope)
        old = OLD_NAMES.get(self.text)
        if old is not None:
            start, end = danger.span or (0, len(command))
            return danger.rule == old[0] and old[1] in command[start:end].lower()
        return self._is_pattern_of(command)

    def _is_pattern_of(self, command: str) -> bool:
        line = command.strip()
        return bool(line) and not any(mark in line for mark in JOINING) and fnmatchcase(line, self.text)


def grant_for(danger: Danger, *, every_scope: bool = False) -> Grant:
    """The grant that covers a danger in its scope, or its class in every scope."""
    name = danger.description if danger.description.isprintable() and not is_plugin_rule(danger) else danger.rule
    return Grant(name if every_scope or not danger.scope else f"{name} ({danger.scope})")


def is_plugin_rule(danger: Danger) -> bool:
    return danger.rule.startswith("plugin_rule:")


def suggest(request: ApprovalRequest) -> tuple[str, ...]:
    """The lines that "always allow" would add, one per danger; empty if no permanent grant is possible."""
    if not may_be_permanent(request.dangers):
        return ()
    return tuple(dict.fromkeys(grant_for(danger).text for danger in request.dangers))


def may_be_permanent(dangers: tuple[Danger, ...]) -> bool:
    """Whether to offer "always": not if the command may mean something else next time."""
    return bool(dangers) and all(
        danger.rule not in NEVER_PERMANENT and danger.rule != "user_rule" for danger in dangers
    )


ALLOWLIST = "command_allowlist"


class Grants:
    """The grants of one runtime. It writes the config file but never rereads it: a tool may have changed it since."""

    def __init__(self, home: Home, permanent: Iterable[str] = ()) -> None:
        self._home = home
        self._permanent = dict.fromkeys(Grant(text) for text in permanent)
        self._sessions: dict[str, dict[Grant, None]] = {}
        self._lock = threading.Lock()

    def in_force(self, session_key: str) -> tuple[Grant, ...]:
        """All grants that apply to a session, permanent ones included."""
        with self._lock:
            return (*self._permanent, *self._sessions.get(session_key, ()))

    def of_session(self, session_key: str) -> tuple[Grant, ...]:
        with self._lock:
            return tuple(self._sessions.get(session_key, ()))

    def sessions(self) -> list[str]:
        """The sessions that have grants of their own."""
        with self._lock:
            return [key for key, grants in self._sessions.items() if grants]

    def forget(self, session_key: str | None, grant: Grant) -> None:
        """Drop a grant of a session, or with None a permanent one, in this process; the config file stays as it is."""
        with self._lock:
            (self._permanent if session_key is None else self._sessions.get(session_key, {})).pop(grant, None)

    def permanent(self) -> tuple[Grant, ...]:
        with self._lock:
            return tuple(self._permanent)

    def allow_in_session(self, session_key: str, dangers: Iterable[Danger], *, every_scope: bool = False) -> None:
        """Grant these dangers until the session ends."""
        self.add_to_session(session_key, *(grant_for(danger, every_scope=every_scope) for danger in dangers))

    def add_to_session(self, session_key: str, *grants: Grant) -> None:
        with self._lock:
            self._sessions.setdefault(session_key, {}).update(dict.fromkeys(grants))

    def allow_permanently(self, dangers: Iterable[Danger], *, every_scope: bool = False) -> None:
        """Grant these dangers permanently; raises ConfigError if the config file cannot be written."""
        for danger in dangers:
            self.add_permanent(grant_for(danger, every_scope=every_scope))

    def add_permanent(self, grant: Grant) -> None:
        """Write the grant to the config file and apply it from now on."""
        add_to_list(self._home, ALLOWLIST, grant.text)
        with self._lock:
            self._permanent[grant] = None

    def load(self, texts: Iterable[str]) -> None:
        """Apply permanent grants in this process without writing them."""
        with self._lock:
            self._permanent.update(dict.fromkeys(Grant(text) for text in texts))

    def revoke(self, text: str) -> bool:
        """Revoke a grant, permanent or of any session; False if it doesn't exist."""
        grant = Grant(text)
        with self._lock:
            held = [self._permanent, *self._sessions.values()]
            found = [grants.pop(grant, self) is None for grants in held]
        remove_from_list(self._home, ALLOWLIST, text)
        return any(found)

    def forget_tool(self, tool: str) -> None:
        """Revoke every grant for one tool by name, permanent ones included."""
        with self._lock:
            held = {grant for grants in (self._permanent, *self._sessions.values()) for grant in grants}
        for grant in held:
            if grant.text.endswith(f"(by {tool})"):
                self.revoke(grant.text)

    def clear_session(self, session_key: str) -> None:
        """Drop the grants of a session."""
        with self._lock:
            self._sessions.pop(session_key, None)
