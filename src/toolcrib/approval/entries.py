"""What was allowed, as lines that a person can read and edit: `recursive delete (inside the workspace)`."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from toolcrib.approval.scopes import NEVER_FOR_GOOD, covers
from toolcrib.core.approvals import ApprovalRequest, Danger

JOINING = ("\n", "&", ";", "|", "<", ">", "`", "$(")
"""A pattern of a command never covers a line that holds one of these: what follows is another command."""

# Names that lists of Hermes Agent hold, with our class and the word that the command must hold to be meant.
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
    """One line. It covers a class of danger in a scope, a class in every scope, or a command by its pattern."""

    text: str

    def covers(self, danger: Danger, command: str = "") -> bool:
        """Whether this danger of this command was agreed to."""
        if self.text in (danger.rule, danger.description):
            return True
        for name in (danger.description, danger.rule):
            # Compared by the name first: a scope may hold anything, and brackets too.
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
    """The lines that "always allow" adds: one for each danger; empty where nothing can be allowed for good."""
    if not may_be_permanent(request.dangers):
        return ()
    return tuple(dict.fromkeys(grant_for(danger).text for danger in request.dangers))


def may_be_permanent(dangers: tuple[Danger, ...]) -> bool:
    """Whether "always" can be offered: not for what may mean something else the next time."""
    return bool(dangers) and all(danger.rule not in NEVER_FOR_GOOD and danger.rule != "user_rule" for danger in dangers)
