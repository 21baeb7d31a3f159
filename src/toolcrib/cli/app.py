"""The command line: the table of commands and groups, and how errors become one line and an exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from toolcrib.cli.group import CommandGroup, LazyCommand, NoSuchCommand
from toolcrib.cli.output import discard_output, error_line, is_interactive, prepare_streams, stdout_problem
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.config.paths import find_home
from toolcrib.config.tool_call_mark import refuse_in_tool_call
from toolcrib.core.errors import ToolcribError, nearest_names
from toolcrib.core.own_commands import kind_of
from toolcrib.version import __version__

PROGRAM = "toolcrib"
INTERRUPTED = 130
FAILED = 1

# Every command and group at the top level: its module under `cli/commands`, what to import from it, and its one line of
# help; also the extra that installs what the module imports, if it needs one. A group declares its own commands.
COMMANDS: dict[str, tuple[str, str] | tuple[str, str, str]] = {
    "chat": ("chat:chat", "Chat with the agent, or ask it one question."),
    "tools": ("tools:group", "List, explain, run, check and write tools."),
    "toolsets": ("toolsets:group", "List toolsets and the tools in them."),
    "plugins": ("plugins:group", "List plugins, and enable or disable them."),
    "config": ("config:group", "Read, change and check the settings."),
    "approvals": ("approvals:group", "Review approvals, and test what a command would need."),
    "env": ("env:group", "List, check, enter and clean up the environments where commands run."),
    "model": ("model:group", "List, choose and test models."),
    "sessions": ("sessions:group", "List, search, resume and export sessions."),
    "undo": ("undo:undo", "Undo the changes that tools made to files."),
    "skills": ("skills:group", "List, read and check skills."),
    "cron": ("cron:group", "Schedule jobs for the agent."),
    "board": ("board:group", "Work on the cards that you share with agents."),
    "mcp": ("mcp:group", "Connect MCP servers, and serve toolcrib's tools over MCP."),
    "serve": ("serve:serve", "Serve the agent over HTTP, with a web page.", "serve"),
    "acp": ("acp:acp", "Run the agent inside an editor."),
    "login": ("login:login", "Log in to a service that built-in tools use, such as Spotify.", "web"),
    "logout": ("login:logout", "Log out of such a service: delete its saved login.", "web"),
    "setup": ("setup:setup", "Set up the model, keys, tools and approvals, step by step."),
    "doctor": ("doctor:doctor", "Check the whole installation and show what to fix first."),
    "import": ("import_:group", "Import config and data from another program."),
    "completion": ("completion:completion", "Print the shell completion script."),
}


def make_root() -> CommandGroup:
    """The whole command line as one click command."""
    text = (
        "The tools runtime for LLM agents.\n\n\b\n"
        "  toolcrib                                start a chat\n"
        """  toolcrib "What is in this folder?"      ask something\n"""
        """  git diff | toolcrib chat -q "Review it" answer once and exit\n"""
        "  toolcrib tools list                     list the tools\n"
        "  toolcrib tools new hello                write your own tool\n"
        """  toolcrib tools run hello '{"text": "hi"}'\n"""
        "  toolcrib doctor                         check the installation"
    )
    root = CommandGroup(PROGRAM, text)
    for name, row in COMMANDS.items():
        root.lazy(name, *row)
    root.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.version_option(__version__, "-V", "--version", prog_name=PROGRAM, message="%(prog)s %(version)s")(root)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default that of the process); returns the exit code."""
    # The runtime opens the log file; until then, log records must not reach the screen.
    for name in (PROGRAM, "mcp"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    if arguments is None:
        # Bare `toolcrib` starts a chat for a person; a script that forgot its command gets the help.
        arguments = sys.argv[1:] or (["chat"] if is_interactive() else [])
    arguments = _with_command(arguments)
    try:
        prepare_streams()
        _refuse_for_agents(arguments)
        code = make_root().main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        error_line(_usage_message(error))
        return error.exit_code
    except click.ClickException as error:
        error_line(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except ToolcribError as error:
        error_line(_with_next_step(_first_line(str(error))))
        return error.exit_code
    except OSError as error:
        return _system_failed(error)
    return code if isinstance(code, int) else 0


def _refuse_for_agents(arguments: Sequence[str]) -> None:
    """Refuse what a tool call must not do; the gate of the session denies it, too, where it recognises the command."""
    kind = kind_of(arguments)
    if kind == "changes":
        refuse_in_tool_call("change settings, approvals, servers, schedules or history, or work without approvals")
    elif kind == "agent" and sys.stdin.isatty() and not any(word.startswith(("-q", "--query")) for word in arguments):
        refuse_in_tool_call("start a chat")


def _with_command(arguments: Sequence[str]) -> Sequence[str]:
    """`toolcrib "What is here?"` asks the agent: several words are a question, a single one may be a typing error."""
    is_question = bool(arguments) and len(arguments[0].split()) > 1 and not arguments[0].startswith("-")
    return ["chat", *arguments] if is_question else arguments


def _system_failed(error: OSError) -> int:
    """Report an error of the system; nothing is left in a buffer that could fail again when the process ends."""
    problem = stdout_problem()
    if problem:
        discard_output(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        # A reader that leaves early, like `head`, has seen enough.
        error_line(_with_next_step(problem or explain_os_error(error, otherwise=_another_place(error))))
    return FAILED


def _another_place(error: OSError) -> str:
    """The way out besides repairing the folder: the home can be moved."""
    home = str(find_home().root)
    is_in_home = isinstance(error.filename, str) and Path(error.filename).is_relative_to(home)
    return ANOTHER_HOME if is_in_home else "use another folder"


def _first_line(message: str) -> str:
    first, *others = message.splitlines() or [""]
    if not others:
        return first
    return f"{first} (and {len(others)} more: run `toolcrib config check` to see all)"


def _with_next_step(message: str) -> str:
    """The message with a command to run next; errors raised by the library often name none."""
    return message if "`" in message else f"{message}; run `toolcrib doctor` to check the installation"


def _usage_message(error: click.UsageError) -> str:
    """What click says, as one line that ends with a command to run next."""
    path = error.ctx.command_path if error.ctx is not None else PROGRAM
    help_hint = f"`{path} --help` lists them all"
    if isinstance(error, click.NoSuchOption):
        known = [name for parameter in error.ctx.command.params for name in parameter.opts] if error.ctx else []
        return _unknown("option", error.option_name, nearest_names(error.option_name, known), help_hint)
    if isinstance(error, NoSuchCommand):
        nearest = _nearest_commands(error.ctx.command, error.command_name) if error.ctx else []
        return _unknown("command", error.command_name, nearest, help_hint)
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; run `{path} --help` for usage"


def _unknown(kind: str, name: str, nearest: list[str], help_hint: str) -> str:
    meant = f" did you mean {' or '.join(repr(found) for found in nearest)}?" if nearest else ""
    return f"unknown {kind} {name!r};{meant} {help_hint}"


def _nearest_commands(group: click.Command, name: str) -> list[str]:
    """Commands that were probably meant: siblings with a similar name, else commands of any group with this name."""
    siblings = group.summaries() if isinstance(group, CommandGroup) else {}
    return nearest_names(name, siblings) or _full_names(name)[:3]


def _full_names(name: str) -> list[str]:
    """The commands of any group with this name, each as it is typed after `toolcrib`."""
    loaded = {path: LazyCommand(*row).load() for path, row in COMMANDS.items() if row[0].endswith(":group")}
    return [
        f"{path} {name}" for path, one in loaded.items() if isinstance(one, CommandGroup) and name in one.summaries()
    ]
