"""What one grant covers: the dangers of a command, each with a scope as wide as a person means it, and no wider."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property

from toolcrib.approval.calls import UNKNOWN_TEXT, CommandReading, ProgramCall, Stack
from toolcrib.approval.places import Place, is_at_or_inside, is_inside
from toolcrib.approval.shell.model import Finding
from toolcrib.config.redact import redact
from toolcrib.core.approvals import Danger

INSIDE_WORKSPACE = "inside the workspace"
WHOLE_WORKSPACE = "the whole workspace"
MAX_SHOWN_COMMAND = 160
MAX_LISTED_PATHS = 32
"""The analyser lists so many paths of a finding; where there may be more, none of them says enough."""

# Wrappers that change neither where a command runs nor as whom.
TRANSPARENT = frozenset(
    ("sh", "bash", "dash", "zsh", "ksh", "nohup", "timeout", "nice", "ionice", "time", "command", "builtin", "exec")
)
# These change what a later command of the same line means.
MOVES = frozenset(
    ("cd", "pushd", "popd", "export", "declare", "typeset", "set", "source", ".", "alias", "eval", "unset", "read")
)
PATH_RULES = frozenset({"recursive_delete", "permissions", "system_config", "credential", "disk_write", "format"})
THIS_TEXT_ONLY = frozenset({"remote_code", "exfiltration"})
"""Who agrees to one address does not mean every other."""
NEVER_FOR_GOOD = frozenset({"unknown_code", "unknown_command", "not_understood", "changed"})
"""Dangers whose text may mean something else tomorrow."""

ASSIGNS = re.compile(r"(?:^|[\s;&|('\"`])[A-Za-z_]\w*\+?=")
"""Variables such as PGHOST choose a target too."""

# The options that say which one is meant, where a scope is "this …".
CHOOSES = {
    "this cluster": ("--context", "--kubeconfig", "--cluster", "-n", "--namespace", "--kube-context", "-s", "--server"),
    "this cloud account": ("--profile", "--project", "--account", "--subscription", "--endpoint-url", "--region"),
    "this container engine": ("-H", "--host", "--context", "-c"),
    "this infrastructure": ("-chdir", "--chdir", "-state", "-var-file", "--stack", "-s"),
    "this repository": ("-C", "--git-dir", "--work-tree", "-R", "--repo"),
}
STATEMENT_OPTIONS = frozenset({"-c", "--command", "-e", "--execute", "-q", "--query", "-Q", "--eval"})


class Scopes:
    """Gives the dangers of one command line; what holds for the whole line is looked at once."""

    def __init__(self, reading: CommandReading, command: str, place: Place) -> None:
        self._reading = reading
        self._command = command
        self._place = place

    @cached_property
    def exact(self) -> str:
        return exactly(self._command)

    @cached_property
    def chooses_elsewhere(self) -> bool:
        """Whether the line moves to another folder or sets variables, so that words alone do not say what is meant."""
        moves = any(call.program in MOVES for call in self._reading.calls)
        return moves or ASSIGNS.search(self._command) is not None

    def dangers_of(self, finding: Finding) -> tuple[Danger, ...]:
        """One danger for each scope that a finding reaches into."""
        stacks = self._reading.stacks(finding)
        if not all(_is_plain(stack) for stack in stacks) or (not stacks and finding.rule in NEVER_FOR_GOOD):
            return (_danger(finding, self.exact, finding.paths),)
        if finding.paths and finding.rule in PATH_RULES and _paths_are_known(finding):
            by_scope: dict[str, list[str]] = {}
            for path in finding.paths:
                by_scope.setdefault(path_scope(path, self._place), []).append(path)
            return tuple(_danger(finding, scope, tuple(paths)) for scope, paths in by_scope.items())
        if finding.paths or finding.rule in (PATH_RULES | THIS_TEXT_ONLY) or finding.scope in ("", "this command"):
            return (_danger(finding, self.exact, finding.paths),)
        if finding.scope != "this host" and self.chooses_elsewhere:
            return (_danger(finding, self.exact, ()),)
        innermost = stacks[0][-1] if stacks and stacks[0] else None
        same = all(stack and stack[-1] == innermost for stack in stacks)
        return (_danger(finding, named_scope(finding, innermost, self._place) if same else self.exact, ()),)


def path_scope(path: str, place: Place) -> str:
    """Where a path is, as a person says it."""
    written = place.absolute(_without_whole_folder_glob(path))
    real = place.real(written)
    root = place.real(place.workspace) if place.workspace else ""
    if root and real == root:
        return WHOLE_WORKSPACE
    if place.in_workspace(written):
        # The history is worth more than the rest of the folder.
        return f"in {real}" if ".git" in real[len(root) :].split("/") else INSIDE_WORKSPACE
    return f"in {real}"


def named_scope(finding: Finding, call: ProgramCall | None, place: Place) -> str:
    """The scope of a danger without paths: "this host", or "this database" with the words that choose it."""
    scope = finding.scope
    if scope == "this repository":
        folder = place.workspace if is_at_or_inside(place.cwd, place.workspace) else place.cwd
        scope = f"the repository in {folder or '.'}"
    if call is None:
        return scope
    if finding.scope == "this database":
        chosen = [call.program, *_without_statements(call.words)]
    else:
        chosen = _chosen(call.words, CHOOSES.get(finding.scope, ()))
    if any(UNKNOWN_TEXT in word for word in chosen):
        return exactly(call.text)
    return " ".join([scope, *(redact(word) for word in chosen)])


def exactly(command: str) -> str:
    """The narrowest scope: this very text, by its digest where it is long or holds a secret."""
    shown = command.strip()
    if len(shown) <= MAX_SHOWN_COMMAND and shown.isprintable() and redact(shown) == shown:
        return f"exactly: {shown}"
    return f"exactly: sha256 {hashlib.sha256(command.encode('utf-8', 'surrogatepass')).hexdigest()}"


def covers(granted: str, scope: str) -> bool:
    """Whether a grant of one scope covers another: the same one, or a folder and what is in it."""
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
    """Whether nothing around the command moves it to another machine, user or folder."""
    return all(call.program in TRANSPARENT for call in stack[:-1])


def _paths_are_known(finding: Finding) -> bool:
    if len(finding.paths) >= MAX_LISTED_PATHS:
        return False
    return all(path.startswith("/") and UNKNOWN_TEXT not in path for path in finding.paths)


def _without_whole_folder_glob(path: str) -> str:
    """`/x/*` means all of `/x`."""
    head, _, tail = path.rpartition("/")
    return head or "/" if tail in ("*", ".*", "**", ".[!.]*", "{*,.*}", "*.*", "?*") else path


def _chosen(words: tuple[str, ...], names: tuple[str, ...]) -> list[str]:
    chosen: list[str] = []
    for number, word in enumerate(words):
        if word in names:
            chosen += words[number : number + 2]
        elif any(word.startswith(name + "=") or (len(name) == 2 and word.startswith(name)) for name in names):
            chosen.append(word)
    return chosen


def _without_statements(words: tuple[str, ...]) -> list[str]:
    """The words of a database client without the statement that it runs."""
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
