"""Rewriting history and discarding work in version control."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import UNKNOWN
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, after_sub

DANGERS = (
    DangerClass(
        "git_history",
        "git history rewrite or loss of work",
        "this repository",
        r"\bgit\s+(?:reset\s+--hard|push\b.*(?:--force|-f\b)|clean\s+-\w*f|branch\s+-D)",
        "git reset --hard HEAD~3",
    ),
)


def cleans(call: CommandCall) -> bool:
    return call.arguments.has("-f", "--force") and not call.arguments.has("-n", "--dry-run")


def discards_checkout(call: CommandCall) -> bool:
    """`git checkout -- .` and `git checkout .` discard changes; a branch name does not."""
    texts = [word.text for word in call.words]
    behind = texts[texts.index("checkout") + 1 :] if "checkout" in texts else []
    if "--" in behind:
        return bool(behind[behind.index("--") + 1 :])
    if any(text in (".", ":/", "./", "*") for text in behind) or "-f" in behind or "--force" in behind:
        return True
    # The files after a commit are overwritten; what follows a new branch is only its starting point.
    makes_branch = call.arguments.has("-b", "-B", "--orphan", "-t", "--track", "-p", "--patch")
    return len(call.arguments.operands) > 2 and not makes_branch


def discards_restore(call: CommandCall) -> bool:
    staged_only = call.arguments.has("--staged", "-S") and not call.arguments.has("--worktree", "-W")
    return not staged_only and len(call.arguments.operands) > 1


def deletes_remote(call: CommandCall) -> bool:
    return any(re.match(r"[+:].", each.text) for each in call.arguments.operands[1:])


def overwrites_branches(call: CommandCall) -> bool:
    """A fetch that moves local branches even if commits get lost; branches of a remote are there to be moved."""
    forced = call.arguments.has("-f", "--force")
    for each in call.arguments.operands[1:]:
        source, colon, target = each.text.partition(":")
        own = target.startswith("refs/heads/") or (target and not target.startswith("refs/"))
        if colon and own and "://" not in each.text and (forced or source.startswith("+")):
            return True
    return False


def drops_reflog(call: CommandCall) -> bool:
    return [each.text for each in call.arguments.operands[1:2]] in (["expire"], ["delete"])


def prunes_now(call: CommandCall) -> bool:
    value = call.arguments.value("--prune")
    return (value is not None and value.text in ("now", "all")) or (
        call.arguments.has("--aggressive") and value is not None
    )


def hard_reset(call: CommandCall) -> bool:
    return call.arguments.has("--hard", "--merge") or any(UNKNOWN in word.text[:1] for word in call.words[1:2])


RULES = (
    Rule(
        "git",
        "apply",
        reason="writes files anywhere that a patch names",
        flags="--unsafe-paths",
        key="system_config",
        yes="git apply --unsafe-paths x.patch",
        no="git apply x.patch",
    ),
    Rule(
        "git",
        "reset",
        reason="discards uncommitted changes",
        where=hard_reset,
        yes="git reset --hard",
        no="git reset HEAD a.py",
    ),
    Rule(
        "git",
        "push",
        reason="rewrites or deletes history that others share",
        flags="-f --force --force-with-lease --force-if-includes --mirror --delete -d --prune",
        unless="-n --dry-run",
        yes="git push -f",
        no="git push origin main",
    ),
    Rule(
        "git",
        "push",
        reason="rewrites or deletes history that others share",
        where=deletes_remote,
        unless="-n --dry-run",
        yes="git push origin +main",
        no="git push origin main:main",
    ),
    Rule(
        "git",
        "fetch|pull",
        reason="overwrites local branches",
        where=overwrites_branches,
        unless="-n --dry-run",
        yes="git fetch upstream '+refs/heads/*:refs/heads/*'",
        no="git fetch origin '+refs/heads/*:refs/remotes/origin/*'",
    ),
    Rule(
        "git",
        "clean",
        reason="deletes untracked files",
        where=cleans,
        yes="git clean -fdx",
        no="git clean -nd",
    ),
    Rule(
        "git",
        "branch",
        reason="deletes a branch that may not be merged",
        flags="-D",
        yes="git branch -D x",
        no="git branch -d x",
    ),
    Rule(
        "git",
        "branch",
        reason="force-moves or deletes a branch",
        flags="-f --force -M -C",
        yes="git branch -f main HEAD~3",
        no="git branch -v",
    ),
    Rule(
        "git",
        "checkout",
        reason="discards uncommitted changes",
        where=discards_checkout,
        yes="git checkout -- .",
        no="git checkout main",
    ),
    Rule(
        "git",
        "read-tree",
        reason="discards uncommitted changes",
        flags="--reset",
        unless="-n --dry-run",
        yes="git read-tree --reset -u HEAD",
        no="git read-tree HEAD",
    ),
    Rule(
        "git",
        "checkout|switch",
        reason="discards uncommitted changes",
        flags="--discard-changes -f --force",
        yes="git switch --discard-changes main",
        no="git switch main",
    ),
    Rule(
        "git",
        "checkout|switch",
        reason="resets an existing branch",
        flags="-B -C --force-create",
        yes="git checkout -B main origin/x",
        no="git checkout -b x",
    ),
    Rule(
        "git",
        "restore",
        reason="discards uncommitted changes",
        where=discards_restore,
        yes="git restore .",
        no="git restore --staged a.py",
    ),
    Rule("git", "stash drop|clear", reason="discards stashed work", yes="git stash drop", no="git stash list"),
    Rule(
        "git",
        "filter-branch|filter-repo|replace",
        reason="rewrites the whole history",
        unless="--dry-run -l --list",
        yes="git filter-branch --all",
        no="git log --all",
    ),
    Rule(
        "git-filter-repo bfg",
        reason="rewrites the whole history",
        unless="--dry-run --analyze",
        yes="git-filter-repo --path x",
        no="git-filter-repo --analyze",
    ),
    Rule(
        "git",
        "reflog",
        reason="makes lost commits unrecoverable",
        where=drops_reflog,
        unless="-n --dry-run",
        yes="git reflog expire --expire=now --all",
        no="git reflog",
    ),
    Rule(
        "git",
        "gc",
        reason="makes lost commits unrecoverable",
        where=prunes_now,
        yes="git gc --prune=now",
        no="git gc",
    ),
    Rule(
        "git",
        "prune",
        reason="makes lost commits unrecoverable",
        unless="-n --dry-run",
        yes="git prune",
        no="git prune -n",
    ),
    Rule(
        "git",
        "update-ref",
        reason="moves or deletes a reference",
        flags="-d --delete --stdin",
        yes="git update-ref -d refs/heads/x",
        no="git update-ref refs/x abc",
    ),
    Rule(
        "git",
        "update-ref *",
        reason="moves a branch",
        where=lambda call: call.arguments.operands[1].text.startswith("refs/heads/"),
        yes="git update-ref refs/heads/main HEAD~5",
        no="git update-ref refs/notes/x abc",
    ),
    Rule(
        "git",
        "rebase",
        reason="rewrites the whole history",
        flags="--root",
        yes="git rebase --root",
        no="git rebase main",
    ),
    Rule(
        "git",
        "tag",
        reason="deletes or moves a tag",
        flags="-d --delete -f --force",
        yes="git tag -d v1",
        no="git tag v1",
    ),
    Rule(
        "git",
        "worktree remove",
        reason="removes a worktree and its changes",
        flags="-f --force",
        yes="git worktree remove --force wt",
        no="git worktree list",
    ),
    Rule(
        "git",
        "remote remove|rm",
        reason="removes a remote and its branches",
        yes="git remote remove origin",
        no="git remote -v",
    ),
    Rule(
        "git",
        "submodule deinit",
        reason="removes a submodule",
        flags="-f --force --all",
        yes="git submodule deinit -f x",
        no="git submodule status",
    ),
    Rule(
        "git",
        "rm",
        reason="deletes tracked directories and everything in them",
        flags="-r",
        unless="--cached -n --dry-run",
        yes="git rm -r src",
        no="git rm old.py",
    ),
    Rule(
        "git",
        "symbolic-ref",
        reason="deletes a reference",
        flags="-d --delete",
        yes="git symbolic-ref -d HEAD",
        no="git symbolic-ref HEAD",
    ),
    Rule(
        "git", "lfs prune", reason="deletes large files", unless="--dry-run", yes="git lfs prune", no="git lfs ls-files"
    ),
    Rule(
        "hg",
        reason="rewrites history",
        where=after_sub(0, lambda text: text in ("strip", "rollback", "purge", "histedit")),
        yes="hg strip 5",
        no="hg log",
    ),
    Rule(
        "hg",
        "push|update|revert",
        reason="overwrites history or work",
        flags="-f --force -C --clean --all -a",
        yes="hg push -f",
        no="hg push",
    ),
    Rule(
        "svn",
        "delete|rm|remove|del|revert|cleanup",
        reason="deletes or reverts files",
        flags="--force -R --remove-unversioned --recursive",
        yes="svn revert -R .",
        no="svn status",
    ),
    Rule(
        "svn",
        "delete|rm|remove|del|mv|move|rename|ren",
        reason="deletes or moves files in the shared repository",
        where=after_sub(1, lambda text: re.match(r"[a-z+]+://|\^/", text)),
        yes="svn delete https://svn.example.org/r/x -m gone",
        no="svn delete old.c",
    ),
    Rule(
        "svn svnadmin",
        "propdel|pdel|pd|propset|ps|rmtxns|rmlocks|setrevprop|load",
        reason="changes the repository's history",
        where=lambda call: call.program == "svnadmin" or call.arguments.has("--revprop"),
        yes="svn propset --revprop -r 5 svn:log x",
        no="svn propset svn:ignore x .",
    ),
    Rule(
        "p4",
        "obliterate|revert|clean|unshelve|purge|archive",
        reason="deletes files or discards work",
        unless="-n",
        where=lambda call: call.arguments.operands[0].text != "unshelve" or call.arguments.has("-f"),
        yes="p4 obliterate -y //depot/x",
        no="p4 revert -n x",
    ),
    Rule(
        "p4",
        "client|workspace|branch|label|depot|stream|user|change|shelve",
        reason="deletes data that others may share",
        flags="-d",
        yes="p4 depot -d old",
        no="p4 client -o",
    ),
    Rule(
        "fossil bzr brz darcs cvs pijul sl",
        "purge|shun|uncommit|obliterate|unrecord|unpull|rollback|admin|strip|hide|remove-tree|unrecord|revert",
        reason="rewrites history or discards work",
        unless="--dry-run",
        yes="darcs obliterate",
        no="fossil status",
    ),
    Rule(
        "jj",
        "abandon|undo|op",
        reason="rewrites history",
        where=after_sub(0, lambda text: text in ("abandon", "restore", "undo")),
        yes="jj abandon x",
        no="jj log",
    ),
)
