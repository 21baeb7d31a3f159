"""Command groups: a group lists its commands, and imports an expensive one only when it runs."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from toolcrib.core.errors import UsageError


class LazyCommand(NamedTuple):
    """Where a command is defined, and its one line of help: all that a listing needs."""

    target: str
    """As `module:attribute`; the module is one of `toolcrib.cli.commands`."""
    summary: str
    extra: str = ""
    """The extra of toolcrib that installs what the module imports; empty if it needs none."""

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        try:
            loaded = importlib.import_module(f"toolcrib.cli.commands.{module}")
        except ModuleNotFoundError as error:
            if not self.extra:
                raise
            raise UsageError(
                f"this command needs more packages ({error}); run `pip install 'toolcrib[{self.extra}]'`"
            ) from error
        command: click.Command = getattr(loaded, attribute)
        command.help = command.help or self.summary
        return command


class NoSuchCommand(click.UsageError):
    """No group has this command. Only the newest releases of click have a class for it."""

    def __init__(self, name: str, ctx: click.Context) -> None:
        super().__init__(f"unknown command {name!r}", ctx)
        self.command_name = name


class CommandGroup(click.Group):
    """A group in the order of its declarations, with commands of its own module (`@group.command`) and lazy ones."""

    def __init__(self, name: str, help_text: str | None = None, **options: Any) -> None:
        """`options` are those of `click.Group`, for a group that is a command itself."""
        self._lazy: dict[str, LazyCommand] = {}
        super().__init__(**{"name": name, "help": help_text, "no_args_is_help": True, **options})

    def lazy(self, name: str, target: str, summary: str, extra: str = "") -> None:
        """Add a command whose module is imported when the command runs; `extra` installs what that needs."""
        self._lazy[name] = LazyCommand(target, summary, extra)

    def summaries(self) -> dict[str, str]:
        """The names in this group, each with its one line of help."""
        own = {name: (command.help or "").partition("\n")[0] for name, command in self.commands.items()}
        return own | {name: row.summary for name, row in self._lazy.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = self._lazy.get(cmd_name)
        return row.load() if row is not None else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args[0] not in self.summaries():
            raise NoSuchCommand(args[0], ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=summary)
            for name, summary in self.summaries().items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)
