"""Which files a git command would change in the working tree, found with read-only git commands."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolcrib.config.environment import child_environment, environment

ASK_SECONDS = 3.0
MAX_NAMES = 20_000
# Git locks and refreshes nothing, and starts no program that a repository configures.
READ_ONLY = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "diff.relative=false")
DIFF = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")


@dataclass(frozen=True, slots=True)
class GitCall:
    """A git command: the folder that it works in, its sub-command, options and operands."""

    folder: str
    sub: str
    options: frozenset[str]
    operands: tuple[str, ...]
    """Those after the sub-command."""

    source: str = ""
    """The commit that `--source` names."""

    def has(self, *names: str) -> bool:
        return not self.options.isdisjoint(names)


class GitUnknown(Exception):
    """It is unknown what the command would change; the text says why."""


def changed_by(call: GitCall) -> list[str]:
    """The absolute paths of the files that a command would change, delete or create in the repository."""
    question = QUESTIONS.get(call.sub)
    if question is None:
        return []
    if any(word.startswith("-") for word in (*call.operands, call.source)):
        raise GitUnknown("a name begins like an option")
    top = _ask(call.folder, "rev-parse", "--show-toplevel")
    if not top:
        raise GitUnknown("git does not report the root of the repository")
    root = top[0].rstrip("\n")
    names = dict.fromkeys(question(call))
    return [f"{root}/{name}" for name in list(names)[:MAX_NAMES]]


def _reset(call: GitCall) -> list[str]:
    if not call.has("--hard", "--merge", "--keep"):
        return []
    return [*_changes(call), *_towards(call, call.operands[:1])]


def _checkout(call: GitCall) -> list[str]:
    """Check out another commit, or files from one."""
    operands = list(call.operands)
    source: list[str] = []
    if operands and (call.has("-b", "-B", "--orphan", "-c", "-C") or _is_commit(call.folder, operands[0])):
        source = [operands.pop(0)]
    if operands:
        return _differing(call, source, operands)
    if call.has("-f", "--force", "-m", "--merge", "--discard-changes"):
        return [*_changes(call), *_towards(call, source)]
    return _towards(call, source)


def _restore(call: GitCall) -> list[str]:
    if call.has("--staged", "-S") and not call.has("--worktree", "-W"):
        return []
    return _differing(call, [call.source] if call.source else [], call.operands)


def _switch(call: GitCall) -> list[str]:
    changes = _changes(call) if call.has("-f", "--force", "--discard-changes", "-m", "--merge") else []
    return [*changes, *_towards(call, call.operands[:1])]


def _clean(call: GitCall) -> list[str]:
    if call.has("-n", "--dry-run"):
        return []
    which = ["--exclude-standard"]
    if call.has("-x"):
        which = []
    elif call.has("-X"):
        which = ["--ignored", "--exclude-standard"]
    # Like `git clean`, in the folder of the call and below.
    return _ask(call.folder, "ls-files", "--others", "-z", "--full-name", *which, "--", *call.operands)


def _stash(call: GitCall) -> list[str]:
    verb = call.operands[0] if call.operands else "push"
    if verb in ("list", "show", "drop", "clear", "create", "store"):
        return []
    if verb in ("pop", "apply", "branch"):
        stash = call.operands[1] if len(call.operands) > 1 and verb != "branch" else "stash@{0}"
        kept = _ask(call.folder, *DIFF, f"{stash}^1", stash)
        untracked = _ask(call.folder, "ls-tree", "-r", "-z", "--name-only", "--full-tree", f"{stash}^3", may_fail=True)
        return [*kept, *untracked]
    everything = call.has("-u", "--include-untracked", "-a", "--all")
    others = _ask(call.folder, "ls-files", "--others", "-z", "--full-name", "--exclude-standard", ":/")
    return [*_changes(call), *(others if everything else [])]


def _towards_operand(call: GitCall) -> list[str]:
    """Move to another commit by a merge, cherry-pick or revert."""
    if not call.operands:
        raise GitUnknown(f"what `git {call.sub}` changes is only known when it runs")
    names: list[str] = []
    for commit in call.operands:
        against = [f"{commit}^", commit] if call.sub in ("cherry-pick", "revert") else ["HEAD", commit]
        names += _ask(call.folder, *DIFF, *against)
    return names


def _remove(call: GitCall) -> list[str]:
    if call.has("--cached", "-n", "--dry-run"):
        return []
    return _ask(call.folder, "ls-files", "-z", "--full-name", "--", *call.operands)


def _unknown(call: GitCall) -> list[str]:
    raise GitUnknown(f"what `git {call.sub}` changes is only known when it runs")


QUESTIONS: dict[str, Callable[[GitCall], list[str]]] = {
    "reset": _reset,
    "checkout": _checkout,
    "restore": _restore,
    "switch": _switch,
    "clean": _clean,
    "stash": _stash,
    "merge": _towards_operand,
    "rebase": _towards_operand,
    "cherry-pick": _towards_operand,
    "revert": _towards_operand,
    "rm": _remove,
    "pull": _unknown,
    "am": _unknown,
    "filter-branch": _unknown,
    "checkout-index": _unknown,
    "read-tree": _unknown,
}


def _changes(call: GitCall) -> list[str]:
    """The files that differ from the last commit, including those that are new in the index."""
    return _ask(call.folder, *DIFF, "HEAD")


def _differing(call: GitCall, source: Sequence[str], pathspecs: Sequence[str]) -> list[str]:
    """The files among the pathspecs that differ from a commit: the last one, or the index."""
    sides = ([], ["HEAD"], list(source)) if source else ([], ["HEAD"])
    return [name for side in sides for name in _ask(call.folder, *DIFF, *side, "--", *pathspecs)]


def _towards(call: GitCall, target: Sequence[str]) -> list[str]:
    """The files that differ between the current commit and another."""
    return _ask(call.folder, *DIFF, "HEAD", target[0]) if target else []


def _is_commit(folder: str, name: str) -> bool:
    return bool(_ask(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", may_fail=True))


def _ask(folder: str, *words: str, may_fail: bool = False) -> list[str]:
    """The zero-separated output of a read-only git command."""
    try:
        done = subprocess.run(
            ["git", *READ_ONLY, "-C", folder, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ASK_SECONDS,
            env={**child_environment(environment()), "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitUnknown(f"git cannot be run ({error})") from error
    if done.returncode != 0:
        if may_fail:
            return []
        raise GitUnknown("git failed: " + " ".join(done.stderr.decode(errors="replace").split())[:200])
    return [name for name in done.stdout.decode(errors="surrogateescape").split("\0") if name]
