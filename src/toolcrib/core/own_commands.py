"""What each toolcrib command does, so that a tool call may use those that only read.

The gate judges command lines with this table, and a toolcrib process that a tool call started applies it to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

CommandKind = Literal["reads", "authors", "runs_tool", "agent", "changes", "unknown"]
"""What a command does.

- `reads`: shows something.
- `authors`: writes new files of its own, as an editor would.
- `runs_tool`: calls one tool under the gate of its own process.
- `agent`: starts an agent.
- `changes`: changes settings, grants, servers, sessions, history or schedules, or works without the gate.
- `unknown`: not one of our commands.
"""

OWN_PROGRAMS = frozenset({"toolcrib", "hermes"})
KINDS: dict[str, CommandKind] = {
    "chat": "agent",
    "tools list": "reads",
    "tools explain": "reads",
    "tools run": "runs_tool",
    "tools new": "authors",
    "tools lint": "reads",
    "toolsets list": "reads",
    "toolsets show": "reads",
    "plugins list": "reads",
    "plugins enable": "changes",
    "plugins disable": "changes",
    "config get": "reads",
    "config set": "changes",
    "config unset": "changes",
    "config path": "reads",
    "config show": "reads",
    "config check": "reads",
    "approvals list": "reads",
    "approvals show": "reads",
    "approvals explain": "reads",
    "approvals suggest": "reads",
    "approvals revoke": "changes",
    "approvals test": "reads",
    "approvals answer": "changes",
    "env list": "reads",
    "env shell": "changes",
    "env clean": "changes",
    "env check": "reads",
    "model get": "reads",
    "model list": "reads",
    "model use": "changes",
    "model test": "reads",
    "sessions list": "reads",
    "sessions show": "reads",
    "sessions search": "reads",
    "sessions stats": "reads",
    "sessions replay": "reads",
    "sessions resume": "agent",
    "sessions export": "authors",
    "sessions delete": "changes",
    "undo": "changes",
    "skills list": "reads",
    "skills view": "reads",
    "skills approve": "changes",
    "skills check": "reads",
    "cron list": "reads",
    "cron show": "reads",
    "cron pause": "changes",
    "cron resume": "changes",
    "cron remove": "changes",
    "cron create": "changes",
    "cron update": "changes",
    "cron run": "changes",
    "cron serve": "changes",
    "board list": "reads",
    "board show": "reads",
    "board add": "changes",
    "board move": "changes",
    "board assign": "changes",
    "board comment": "changes",
    "board done": "changes",
    "board block": "changes",
    "board link": "changes",
    "board attach": "changes",
    "mcp list": "reads",
    "mcp tools": "reads",
    "mcp remove": "changes",
    "mcp serve": "changes",
    "mcp add": "changes",
    "mcp test": "reads",
    "mcp login": "changes",
    "mcp logout": "changes",
    "serve": "changes",
    "serve login": "changes",
    "serve token": "changes",
    "serve install": "changes",
    "acp": "changes",
    "acp install": "changes",
    "login": "changes",
    "logout": "changes",
    "setup": "changes",
    "doctor": "reads",
    "import hermes": "changes",
    "completion": "reads",
}
"""Every command, by the words that are typed for it."""

GROUPS = frozenset(path.partition(" ")[0] for path in KINDS if " " in path)
ONLY_SHOWS = {
    "undo": frozenset({"--list", "--dry-run"}),
    "setup": frozenset({"--list"}),
    "serve token": frozenset({"--list"}),
    "sessions delete": frozenset({"--dry-run"}),
    "env clean": frozenset({"--dry-run"}),
    "import hermes": frozenset({"--dry-run"}),
}
"""Options that make a command only show what it would do."""
CHANGES_WITH = {"approvals suggest": frozenset({"--add"}), "mcp test": frozenset({"--call", "--yes"})}
"""Options that make a command more than a look."""
LIFTS = frozenset({"--yolo", "--connect"})
"""Options that switch approvals off, or use a server with the token of its owner, who answers them."""
HELP = frozenset({"-h", "--help"})


def kind_of(words: Sequence[str]) -> CommandKind:
    """What a command line of ours does, given the words after the program."""
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    if options & LIFTS:
        return "changes"
    if list(words) in (["--version"], ["-V"]) or _asks_for_help(words):
        return "reads"
    path = _path(words)
    if not path:
        return "agent"
    kind = KINDS.get(path, "reads" if path in GROUPS else "unknown")
    if kind == "changes" and options & ONLY_SHOWS.get(path, frozenset()):
        return "reads"
    return "changes" if options & CHANGES_WITH.get(path, frozenset()) else kind


def _path(words: Sequence[str]) -> str:
    """The names of the group and the command; click takes them from the words that are no options."""
    names = [word for word in words if not word.startswith("-")]
    if words and words[0] in names and len(words[0].split()) > 1:
        # Several words are a question to the agent.
        return ""
    both = " ".join(names[:2])
    return both if both in KINDS or (names[:1] and names[0] not in KINDS) else " ".join(names[:1])


def _asks_for_help(words: Sequence[str]) -> bool:
    """Whether the last word asks for help, and is not the value of an option."""
    if not words or words[-1] not in HELP or "--" in words:
        return False
    return len(words) < 2 or not words[-2].startswith("-")
