"""The command table, and what surrounds every command: loading by name, errors as one line, exit codes."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from toolcrib.cli.output import error_line, escape_what_cannot_be_shown, person_present
from toolcrib.core.errors import ToolcribError, nearest_names
from toolcrib.version import __version__

PROGRAM = "toolcrib"
INTERRUPTED = 130
FAILED = 1

GROUPS = {
    "tools": "See, explain, run, check and write tools.",
    "toolsets": "See which tools belong together.",
    "plugins": "See plugins and switch them on or off.",
    "config": "Read, change and check the settings.",
    "approvals": "See and test what is asked about, allowed and denied.",
    "env": "See, check, enter and clean up the places where commands run.",
    "model": "See, choose and test the model that answers.",
    "sessions": "See, search, continue and export past conversations.",
    "skills": "See and check what the agent can look up.",
    "cron": "Let the agent work at set times.",
    "mcp": "Connect other people's tools, and offer ours.",
    "import": "Bring over what another program keeps.",
}
# Path of the command, its module under `cli/commands`, and the first line of its help: all that a listing needs.
COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("chat", "Ask the agent a question, which it answers with the help of tools."),
    "tools list": ("tools_list", "List the tools that are here, and say why one is not available."),
    "tools explain": ("tools_explain", "Say all about one tool: who declared it, whether it is available and why."),
    "tools run": ("tools_run", "Call a tool and print its result."),
    "tools lint": ("tools_lint", "Check tool files against the checklist for authors."),
    "tools new": ("tools_new", "Write the first version of a tool or a skill."),
    "toolsets list": ("toolsets_list", "List all toolsets."),
    "toolsets show": ("toolsets_show", "Show one toolset and what becomes of each of its tools."),
    "plugins list": ("plugins_list", "List the plugins that are here, and where each comes from."),
    "plugins enable": ("plugins_enable", "Load a plugin from now on."),
    "plugins disable": ("plugins_disable", "Never load a plugin."),
    "config get": ("config_get", "Print the value of a setting that is in force."),
    "config set": ("config_set", "Write a setting to the config file."),
    "config unset": ("config_unset", "Remove a setting from the config file, so that its default holds again."),
    "config path": ("config_path", "Print where the config file is."),
    "config check": ("config_check", "Say what is wrong with the config file."),
    "config show": ("config_show", "Print every setting in force, and where it comes from."),
    "approvals list": ("approvals_list", "List what you allowed for good, and the latest requests."),
    "approvals show": ("approvals_show", "Show one request and its answer."),
    "approvals explain": ("approvals_explain", "Say why a call was asked about, allowed, denied or blocked."),
    "approvals test": ("approvals_test", "Say what would happen to a command, without running any of it."),
    "approvals suggest": ("approvals_suggest", "Say what would allow a call, and others like it, for good."),
    "approvals revoke": ("approvals_revoke", "Take back what you allowed for good."),
    "env list": ("env_list", "List the backends for commands: which can be used here, and why one cannot."),
    "env check": ("env_check", "Put a backend, ours or your own, to every promise that one has to keep."),
    "env shell": ("env_shell", "Open a shell where the commands of a backend run."),
    "env clean": ("env_clean", "Remove what processes of ours that died left behind."),
    "model list": ("model_list", "List the providers and models that can be used here, and what the others lack."),
    "model get": ("model_get", "Say which model answers now, and why that one."),
    "model use": ("model_use", "Choose the model that answers from now on."),
    "model test": ("model_test", "Send one small request to a model and say what came back."),
    "sessions list": ("sessions_list", "List past conversations, the latest first."),
    "sessions show": ("sessions_show", "Print one conversation."),
    "sessions resume": ("sessions_resume", "Go on with a conversation."),
    "sessions search": ("sessions_search", "Find conversations by what was said in them."),
    "sessions replay": ("sessions_replay", "Show a conversation again as it happened, without calling anything."),
    "sessions export": ("sessions_export", "Write conversations as JSONL, trajectories or Markdown."),
    "sessions delete": ("sessions_delete", "Delete conversations for good."),
    "sessions stats": ("sessions_stats", "Say how many conversations, messages, calls and tokens there are."),
    "undo": ("undo", "Take back what tools did to files."),
    "skills list": ("skills_list", "List the skills that are here, and where each comes from."),
    "skills view": ("skills_view", "Print one skill, or a file of it."),
    "skills check": ("skills_check", "Say what is wrong with a skill."),
    "cron create": ("cron_create", "Let the agent do something at set times."),
    "cron list": ("cron_list", "List the scheduled jobs, and when each runs next."),
    "cron show": ("cron_show", "Show one job and its latest runs."),
    "cron update": ("cron_update", "Change a job."),
    "cron pause": ("cron_pause", "Let a job rest."),
    "cron resume": ("cron_resume", "Let a job run again."),
    "cron run": ("cron_run", "Run a job now."),
    "cron remove": ("cron_remove", "Delete a job and what is kept of its runs."),
    "cron serve": ("cron_serve", "Run the jobs at their times, until it is stopped."),
    "mcp add": ("mcp_add", "Add an MCP server to the config."),
    "mcp remove": ("mcp_remove", "Remove MCP servers from the config."),
    "mcp list": ("mcp_list", "List the MCP servers, and how each is."),
    "mcp test": ("mcp_test", "Try an MCP server, and say what is wrong with it."),
    "mcp tools": ("mcp_tools", "List the tools of MCP servers, and why one is not offered."),
    "mcp login": ("mcp_login", "Log in to an MCP server that wants it."),
    "mcp logout": ("mcp_logout", "Forget the login of an MCP server."),
    "mcp serve": ("mcp_serve", "Offer our tools to any MCP client."),
    "setup": ("setup", "Set up the model, keys, tools and approvals, step by step."),
    "doctor": ("doctor", "Look at everything at once: what works, what does not, what to do first."),
    "import hermes": ("import_hermes", "Bring config, keys, skills, memories and sessions over from Hermes Agent."),
    "completion": ("completion", "Print the script that lets a shell complete toolcrib's commands."),
}


class NoSuchCommand(click.UsageError):
    """A command that no group knows; click has a class for it in its newest releases only."""

    def __init__(self, name: str, ctx: click.Context) -> None:
        super().__init__(f"unknown command {name!r}", ctx)
        self.command_name = name


class LazyGroup(click.Group):
    """A group whose commands stand in the table and are imported when they run."""

    def __init__(self, path: str, help_text: str) -> None:
        super().__init__(name=path or PROGRAM, help=help_text, no_args_is_help=True)
        self.path = path

    def summaries(self) -> dict[str, str]:
        """The names in this group, each with its one line of help."""
        if self.path:
            prefix = f"{self.path} "
            return {path.removeprefix(prefix): row[1] for path, row in COMMANDS.items() if path.startswith(prefix)}
        first_words = dict.fromkeys(path.split()[0] for path in COMMANDS)
        return {name: GROUPS[name] if name in GROUPS else COMMANDS[name][1] for name in first_words}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = f"{self.path} {cmd_name}".strip()
        if not self.path and cmd_name in GROUPS:
            return LazyGroup(cmd_name, GROUPS[cmd_name])
        if path not in COMMANDS:
            return None
        module = importlib.import_module(f"toolcrib.cli.commands.{COMMANDS[path][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
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


def make_root() -> LazyGroup:
    """The whole command line as one click command."""
    text = (
        "The tools runtime for LLM agents.\n\n\b\n"
        "  toolcrib                                open the chat\n"
        """  toolcrib chat -q "What is in this folder?"\n"""
        "  toolcrib tools list                     what is here\n"
        "  toolcrib tools new hello                write a tool of your own\n"
        """  toolcrib tools run hello '{"text": "hi"}'\n"""
        "  toolcrib doctor                         what works and what does not"
    )
    root = LazyGroup("", text)
    root.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.version_option(__version__, "-V", "--version", prog_name=PROGRAM, message="%(prog)s %(version)s")(root)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default that of the process); returns the exit code."""
    # The log file is set up with the runtime; until then nothing that we log may reach the screen.
    for name in (PROGRAM, "mcp"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    escape_what_cannot_be_shown()
    if arguments is None:
        # Bare `toolcrib` opens the chat for a person; a script that forgot its command gets the help.
        arguments = sys.argv[1:] or (["chat"] if person_present() else [])
    try:
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
    except BrokenPipeError:
        _close_stdout()
        return FAILED
    except OSError as error:
        place = f" {error.filename!r}" if error.filename else ""
        error_line(_with_next_step(f"cannot use{place}: {error.strerror or error}"))
        return FAILED
    return code if isinstance(code, int) else 0


def _first_line(message: str) -> str:
    first, *others = message.splitlines() or [""]
    if not others:
        return first
    return f"{first} (and {len(others)} more: `toolcrib config check` shows all)"


def _with_next_step(message: str) -> str:
    """The message, ending in what to type; errors of the library do not always know a command."""
    return message if "`" in message else f"{message}; `toolcrib doctor` shows where everything is"


def _usage_message(error: click.UsageError) -> str:
    """What click says, as one line that ends in what to type."""
    path = error.ctx.command_path if error.ctx is not None else PROGRAM
    help_hint = f"type `{path} --help` to see what there is"
    if isinstance(error, click.NoSuchOption):
        known = [name for parameter in error.ctx.command.params for name in parameter.opts] if error.ctx else []
        return _unknown("option", error.option_name, nearest_names(error.option_name, known), help_hint)
    if isinstance(error, NoSuchCommand):
        return _unknown("command", error.command_name, _nearest_commands(path, error.command_name), help_hint)
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; type `{path} --help` to see how it is used"


def _unknown(kind: str, name: str, nearest: list[str], help_hint: str) -> str:
    meant = f" did you mean {' or '.join(repr(found) for found in nearest)}?" if nearest else ""
    return f"unknown {kind} {name!r};{meant} {help_hint}"


def _nearest_commands(path: str, name: str) -> list[str]:
    """Commands that were probably meant: of this group by their spelling, else of any group by their last word."""
    group = path.removeprefix(PROGRAM).strip()
    siblings = LazyGroup(group, "").summaries()
    return nearest_names(name, siblings) or [known for known in COMMANDS if known.split()[-1] == name][:3]


def _close_stdout() -> None:
    """Let the interpreter flush what is left to nowhere: whoever read our output has left."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
