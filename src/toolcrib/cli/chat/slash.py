"""Slash commands: the type, the lookup, and those of users and plugins. `slash_commands` defines toolcrib's own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.agent.prompt_commands import PromptCommand, call_plugin_command, filled_in, plugin_command_summary
from toolcrib.cli.chat.attachments import Attachment
from toolcrib.cli.chat.screen import Screen
from toolcrib.cli.chat.status import Status
from toolcrib.cli.output import clean, one_line
from toolcrib.core.approvals import Mode
from toolcrib.core.errors import UnknownName
from toolcrib.plugins.context import Declaration

SUMMARY_CHARS = 100
_COMMAND = re.compile(r"/([A-Za-z?][\w?-]*)(?:\s+(.*))?$", re.DOTALL)


class UnknownCommand(UnknownName):
    kind = "command"


class Chat(Protocol):
    """The part of the chat that commands use."""

    host: AgentHost
    agent: Agent
    screen: Screen
    status: Status
    folder: str
    attached: list[Attachment]
    """What goes along with the next message."""
    own_calls: set[str]
    """The ids of calls that the person makes, which need no further approval."""

    @property
    def is_working(self) -> bool: ...

    def ask_agent(self, text: str, *, echo: bool = True) -> None:
        """Ask the agent, after its current work; `echo` shows the text."""
        ...

    def queue(self, text: str) -> None: ...

    def stop_work(self) -> None: ...

    def leave(self) -> None: ...

    async def use(self, agent: Agent, reason: str) -> None:
        """Switch to another agent; closes the current one."""
        ...

    def new_agent(self, session_id: str | None = None) -> Agent:
        """An agent with the options of the chat, for a new session or an existing one."""
        ...

    def use_mode(self, mode: Mode) -> None:
        """Let the agent do this much on its own."""
        ...

    async def choose(self, question: str, choices: tuple[str, ...]) -> str:
        """Ask the person to choose."""
        ...

    async def confirm(self, question: str, yes: str, no: str) -> bool:
        """Ask the person whether to do something; `yes` and `no` say what each answer means."""
        ...

    def commands(self) -> dict[str, SlashCommand]: ...


class SlashCommand(Struct, frozen=True, kw_only=True):
    """One command."""

    name: str
    summary: str
    run: Callable[[Chat, str], Awaitable[None]]
    arguments: str = ""
    """As shown in the help: NAME, [TOPIC]."""
    while_working: bool = False
    """Whether it can run while the agent works."""
    complete: Callable[[Chat], Iterable[str]] | None = None
    """The possible arguments, for completion."""
    aliases: tuple[str, ...] = ()
    of_plugin: str = ""
    of_user: str = ""
    """The Markdown file that defines it."""


def split_command(text: str) -> tuple[str, str] | None:
    """The command's name and its arguments; None if the text is not a command."""
    found = _COMMAND.match(text.strip())
    return (found[1].lower(), (found[2] or "").strip()) if found else None


def find_command(commands: dict[str, SlashCommand], name: str) -> SlashCommand:
    """The command with this name or unique prefix; raises UnknownCommand with the nearest names."""
    by_any_name = {alias: one for one in commands.values() for alias in one.aliases} | dict(commands)
    if name in by_any_name:
        return by_any_name[name]
    begun = {one.name: one for known, one in by_any_name.items() if known.startswith(name)}
    if len(begun) == 1:
        return next(iter(begun.values()))
    advice = "type /help to see them all"
    if begun:
        advice = f"it may mean {' or '.join(f'/{one}' for one in sorted(begun))}; type more of it"
    raise UnknownCommand(f"/{name}", () if begun else [f"/{one}" for one in by_any_name], advice=advice)


def is_path(text: str) -> bool:
    """Whether a text that starts with a slash is a path and not a command."""
    first = text.split(maxsplit=1)[0]
    try:
        return "/" in first[1:] or Path(first).exists()
    except OSError:
        return False


def user_command(command: PromptCommand) -> SlashCommand:
    """The slash command that asks the question of a Markdown file."""

    async def run(chat: Chat, rest: str) -> None:
        chat.ask_agent(filled_in(command.body, rest))

    return SlashCommand(
        name=command.name,
        summary=one_line(command.summary)[:SUMMARY_CHARS],
        arguments=one_line(command.arguments),
        run=run,
        of_user=command.file,
    )


def plugin_commands(declarations: Iterable[Declaration]) -> list[SlashCommand]:
    """The commands of plugins."""
    return [
        SlashCommand(
            name=one.name.lstrip("/").lower(),
            summary=one_line(plugin_command_summary(one)),
            arguments=str(one.options.get("args_hint") or ""),
            run=_runner(one),
            of_plugin=one.source.name,
        )
        for one in declarations
        if one.kind == "command" and one.name
    ]


def _runner(one: Declaration) -> Callable[[Chat, str], Awaitable[None]]:
    async def run(chat: Chat, rest: str) -> None:
        answer, problem = await call_plugin_command(one, rest)
        if problem:
            chat.screen.problem(problem)
        elif answer:
            chat.screen.say(answer)

    return run


def table(rows: Iterable[Iterable[str]], *, heading: Iterable[str] = ()) -> RenderableType:
    """Rows in columns; long texts are folded."""
    titles = tuple(heading)
    drawn_table = Table(box=None, show_header=bool(titles), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    drawn = [[Text(clean(cell)) for cell in row] for row in rows]
    for at in range(max([len(titles), *map(len, drawn)], default=0)):
        drawn_table.add_column(titles[at] if titles else "", overflow="fold", no_wrap=at == 0)
    for row in drawn:
        drawn_table.add_row(*row)
    return drawn_table
