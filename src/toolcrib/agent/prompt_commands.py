"""User-defined commands, from Markdown files and plugins, which front ends offer as slash commands.

People write theirs as Markdown files, in their home and in projects that they trust; each is the text of a question.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
from pathlib import Path
from typing import Any

from msgspec import Struct

from toolcrib.agent.prompt import FolderTrust, ProjectFile, read_text
from toolcrib.config.paths import Home
from toolcrib.core.attempt import attempt_async
from toolcrib.plugins.context import Declaration
from toolcrib.skills.catalog import project_folders
from toolcrib.skills.skill import split_front_matter

PROJECT_DIR = Path(".toolcrib") / "commands"
MAX_COMMANDS = 200
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")
_PLACE = re.compile(r"\$(ARGUMENTS|[1-9])")


class PromptCommand(Struct, frozen=True, kw_only=True):
    """A question with a name, and places for arguments."""

    name: str
    body: str
    summary: str
    """Its first line or description, as it is written in the file."""
    arguments: str = ""
    """A hint at what may follow the name; empty if it takes nothing."""
    file: str


class PromptCommands:
    """The commands in the folders of the person and of the project; files are read again when they change."""

    def __init__(self, home: Home, cwd: str) -> None:
        self._home = home
        self._cwd = cwd
        self._stamps: list[tuple[str, int]] | None = None
        self._known: dict[str, PromptCommand] = {}

    def current(self) -> dict[str, PromptCommand]:
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


def _command(file: Path) -> PromptCommand:
    parts = split_front_matter(read_text(file))
    written = (line.partition(":") for line in (parts.front or "").splitlines())
    fields = {key.strip().lower(): value.strip().strip("\"'") for key, _, value in written}
    first = next((line for line in parts.body.splitlines() if line.strip()), "")
    return PromptCommand(
        name=file.stem.lower(),
        body=parts.body.strip(),
        summary=fields.get("description") or first.lstrip("# "),
        arguments=fields.get("argument-hint", "") or ("TEXT" if _PLACE.search(parts.body) else ""),
        file=str(file),
    )


async def call_plugin_command(command: Declaration, text: str) -> tuple[str, str]:
    """What a plugin's command answers to the text behind it, and why it failed; one of them is empty."""
    handler: Any = command.arguments[1]

    async def call() -> Any:
        answer = handler(text) if _takes_text(handler) else handler()
        return await answer if inspect.isawaitable(answer) else answer

    answer, error = await attempt_async(call())
    if error is not None:
        return "", f"/{command.name.lstrip('/')} of the plugin {command.source.name!r} failed: {error!r}"
    return str(answer or ""), ""


def plugin_command_summary(command: Declaration) -> str:
    """What a plugin says about its command, or whose it is."""
    text = command.options.get("description") or (command.arguments[2] if len(command.arguments) > 2 else "")
    return str(text) or f"from the plugin {command.source.name}"


def _takes_text(handler: Any) -> bool:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)
