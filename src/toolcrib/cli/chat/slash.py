"""The table of slash commands: finding the one that is meant, those of plugins included."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.cli.chat.screen import Screen
from toolcrib.cli.chat.status import Status
from toolcrib.cli.output import clean, one_line
from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.core.errors import UnknownName
from toolcrib.plugins.context import Declaration

_COMMAND = re.compile(r"/([A-Za-z?][\w?-]*)(?:\s+(.*))?$", re.DOTALL)


class UnknownCommand(UnknownName):
    kind = "command"


class Chat(Protocol):
    """What a command may use of the chat."""

    host: AgentHost
    agent: Agent
    screen: Screen
    status: Status

    @property
    def is_working(self) -> bool: ...

    def ask_agent(self, text: str) -> None:
        """Put a question to the agent, behind what it works on."""
        ...

    def queue(self, text: str) -> None: ...

    def stop_work(self) -> None: ...

    def leave(self) -> None: ...

    async def use(self, agent: Agent, reason: str) -> None:
        """Go on with another agent; the present one is closed."""
        ...

    def new_agent(self, session_id: str | None = None) -> Agent:
        """An agent as the chat was started with, with a new session or with one that is there."""
        ...

    async def choose(self, question: str, choices: tuple[str, ...]) -> str:
        """What the person answers."""
        ...

    def commands(self) -> dict[str, SlashCommand]: ...


@dataclass(frozen=True, kw_only=True)
class SlashCommand:
    """One command."""

    name: str
    summary: str
    run: Callable[[Chat, str], Awaitable[None]]
    arguments: str = ""
    """As the help shows them: NAME, [TOPIC]."""
    while_working: bool = False
    """Whether it makes sense while the agent works."""
    complete: Callable[[Chat], Iterable[str]] | None = None
    """The words that may stand behind it."""
    aliases: tuple[str, ...] = ()
    of_plugin: str = ""


def split_command(text: str) -> tuple[str, str] | None:
    """The name of the command in a text, and what follows it; None for a text that is no command."""
    found = _COMMAND.match(text.strip())
    return (found[1].lower(), (found[2] or "").strip()) if found else None


def find_command(commands: dict[str, SlashCommand], name: str) -> SlashCommand:
    """The command of that name, or whose name alone begins so; raises UnknownCommand with the nearest names."""
    by_any_name = dict(commands) | {alias: one for one in commands.values() for alias in one.aliases}
    if name in by_any_name:
        return by_any_name[name]
    begun = {one.name: one for known, one in by_any_name.items() if known.startswith(name)}
    if len(begun) == 1:
        return next(iter(begun.values()))
    advice = "/help shows all of them"
    if begun:
        advice = f"it may mean {' or '.join(f'/{one}' for one in sorted(begun))}; type more of it"
    raise UnknownCommand(f"/{name}", () if begun else [f"/{one}" for one in by_any_name], advice=advice)


def is_path(text: str) -> bool:
    """Whether a text that begins with a slash names a file rather than a command."""
    first = text.split(maxsplit=1)[0]
    try:
        return "/" in first[1:] or Path(first).exists()
    except OSError:
        return False


def plugin_commands(declarations: Iterable[Declaration]) -> list[SlashCommand]:
    """The commands that plugins offer."""
    return [
        SlashCommand(
            name=one.name.lstrip("/").lower(),
            summary=_description(one),
            arguments=str(one.options.get("args_hint") or ""),
            run=_runner(one),
            of_plugin=one.source.name,
        )
        for one in declarations
        if one.kind == "command" and one.name
    ]


def _description(one: Declaration) -> str:
    said = one.options.get("description") or (one.arguments[2] if len(one.arguments) > 2 else "")
    return one_line(str(said)) or f"of the plugin {one.source.name}"


def _runner(one: Declaration) -> Callable[[Chat, str], Awaitable[None]]:
    handler: Any = one.arguments[1]

    async def run(chat: Chat, rest: str) -> None:
        answer, error = attempt(handler, rest) if _takes_text(handler) else attempt(handler)
        if error is None and inspect.isawaitable(answer):
            answer, error = await attempt_async(answer)
        if error is not None:
            chat.screen.problem(f"/{one.name} of the plugin {one.source.name!r} failed: {error!r}")
        elif answer:
            chat.screen.say(str(answer))

    return run


def _takes_text(handler: Any) -> bool:
    signature, error = attempt(inspect.signature, handler)
    if error is not None or signature is None:
        return True
    return any(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)
        for one in signature.parameters.values()
    )


def table(rows: Iterable[Iterable[str]], *, heading: Iterable[str] = ()) -> RenderableType:
    """Rows in columns; long texts are folded."""
    titles = tuple(heading)
    made = Table(box=None, show_header=bool(titles), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    drawn = [[Text(clean(cell)) for cell in row] for row in rows]
    for at in range(max([len(titles), *map(len, drawn)], default=0)):
        made.add_column(titles[at] if titles else "", overflow="fold", no_wrap=at == 0)
    for row in drawn:
        made.add_row(*row)
    return made
