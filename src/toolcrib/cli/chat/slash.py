"""Slash commands: what one is, how it is found, and those of plugins and of users. `slash_commands` holds ours."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.agent.prompt import FolderTrust, ProjectFile, read_text
from toolcrib.cli.chat.attachments import Attachment
from toolcrib.cli.chat.screen import Screen
from toolcrib.cli.chat.status import Status
from toolcrib.cli.output import clean, one_line
from toolcrib.config.paths import Home
from toolcrib.core.approvals import Mode
from toolcrib.core.attempt import attempt_async
from toolcrib.core.errors import UnknownName
from toolcrib.plugins.context import Declaration
from toolcrib.skills.catalog import project_folders
from toolcrib.skills.skill import split_front_matter

PROJECT_DIR = Path(".toolcrib") / "commands"
MAX_COMMANDS = 200
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")
_PLACE = re.compile(r"\$(ARGUMENTS|[1-9])")
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

    def ask_agent(self, text: str) -> None:
        """Ask the agent, after its current work."""
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
    by_any_name = dict(commands) | {alias: one for one in commands.values() for alias in one.aliases}
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


def plugin_commands(declarations: Iterable[Declaration]) -> list[SlashCommand]:
    """The commands of plugins."""
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
    text = one.options.get("description") or (one.arguments[2] if len(one.arguments) > 2 else "")
    return one_line(str(text)) or f"from the plugin {one.source.name}"


def _runner(one: Declaration) -> Callable[[Chat, str], Awaitable[None]]:
    handler: Any = one.arguments[1]

    async def call(rest: str) -> Any:
        answer = handler(rest) if _takes_text(handler) else handler()
        return await answer if inspect.isawaitable(answer) else answer

    async def run(chat: Chat, rest: str) -> None:
        answer, error = await attempt_async(call(rest))
        if error is not None:
            chat.screen.problem(f"/{one.name} of the plugin {one.source.name!r} failed: {error!r}")
        elif answer:
            chat.screen.say(str(answer))

    return run


def _takes_text(handler: Any) -> bool:
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return True
    return any(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)
        for one in signature.parameters.values()
    )


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


class UserCommands:
    """The commands that people write as Markdown files, in their home and in projects that they trust.

    The files are read again when they change.
    """

    def __init__(self, home: Home, cwd: str) -> None:
        self._home = home
        self._cwd = cwd
        self._stamps: list[tuple[str, int]] | None = None
        self._known: dict[str, SlashCommand] = {}

    def current(self) -> dict[str, SlashCommand]:
        """The commands by name; the person's own win over those of the project."""
        own, projects = command_files(self._home.commands_dir), command_files(_project_dir(self._cwd))
        stamps = [(str(file), _changed_at(file)) for file in (*projects, *own)]
        if stamps != self._stamps:
            self._stamps = stamps
            project = project_commands(self._cwd)
            is_trusted = project is not None and FolderTrust(self._home).state(project) == "trusted"
            self._known = {one.name: one for one in map(_command, [*(projects if is_trusted else ()), *own])}
        return self._known


def project_commands(cwd: str) -> ProjectFile | None:
    """The commands of a project as one text that the person has to trust; None if it has none."""
    files = command_files(_project_dir(cwd)) if cwd else []
    if not files:
        return None
    folders = project_folders(Path(cwd))
    text = "\n\n".join(read_text(file) for file in files)
    return ProjectFile(name=str(PROJECT_DIR), text=text, folder=os.path.realpath(folders[-1]))


def command_files(folder: Path) -> list[Path]:
    """The Markdown files in a folder whose names can be typed after a slash."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".md")
    except OSError:
        return []
    return [path for path in found if _NAME.fullmatch(path.stem.lower()) and path.is_file()][:MAX_COMMANDS]


def filled_in(body: str, arguments: str) -> str:
    """The text of a command: `$ARGUMENTS` is all that was typed after it, `$1` to `$9` are single words."""
    try:
        words = shlex.split(arguments)
    except ValueError:  # an open quote
        words = arguments.split()
    if arguments and not _PLACE.search(body):
        return f"{body}\n\n{arguments}"

    def value(match: re.Match[str]) -> str:
        if match[1] == "ARGUMENTS":
            return arguments
        at = int(match[1]) - 1
        return words[at] if at < len(words) else ""

    return _PLACE.sub(value, body)


def _project_dir(cwd: str) -> Path:
    """The nearest folder with commands between the working folder and the root of its repository."""
    above = project_folders(Path(cwd)) if cwd else []
    return next((folder / PROJECT_DIR for folder in above if (folder / PROJECT_DIR).is_dir()), Path(cwd) / PROJECT_DIR)


def _changed_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _command(file: Path) -> SlashCommand:
    parts = split_front_matter(read_text(file))
    written = (line.partition(":") for line in (parts.front or "").splitlines())
    fields = {key.strip().lower(): value.strip().strip("\"'") for key, _, value in written}
    first = next((line for line in parts.body.splitlines() if line.strip()), "")
    return SlashCommand(
        name=file.stem.lower(),
        summary=one_line(fields.get("description") or first.lstrip("# "))[:100],
        arguments=one_line(fields.get("argument-hint", "") or ("TEXT" if _PLACE.search(parts.body) else "")),
        run=_asking(parts.body.strip()),
        of_user=str(file),
    )


def _asking(body: str) -> Callable[[Chat, str], Awaitable[None]]:
    async def run(chat: Chat, rest: str) -> None:
        chat.ask_agent(filled_in(body, rest))

    return run
