"""`toolcrib setup`."""

from __future__ import annotations

from typing import Any

import click

from toolcrib.cli.commands.env import complete_backends
from toolcrib.cli.models import complete_providers
from toolcrib.cli.output import person_present, print_line
from toolcrib.cli.runtime import complete_tools, open_runtime
from toolcrib.cli.setup.unattended import FLAGS, Wishes, run_unattended
from toolcrib.cli.setup.variables import ask_all, print_list, wanted_variables
from toolcrib.cli.setup.wizard import run_wizard
from toolcrib.config.paths import find_home
from toolcrib.core.errors import UsageError


@click.command(name="setup")
@click.argument("names", metavar="[TOOL]...", nargs=-1, shell_complete=complete_tools)
@click.option("--list", "only_list", is_flag=True, help="Show what can be entered and what is set; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print a list of objects for programs.")
@click.option("--provider", default="", metavar="NAME", shell_complete=complete_providers, help="Who answers.")
@click.option("--model", default="", metavar="NAME", help="The model; without it, the provider's default.")
@click.option("--base-url", default="", metavar="URL", help="The address of its server, if not the provider's own.")
@click.option("--key-env", default="", metavar="VAR", help="Take the provider's key from this variable.")
@click.option("--key-stdin", is_flag=True, help="Take the provider's key from the first line of stdin.")
@click.option("--toolsets", default=None, metavar="A,B", help="The toolsets to offer; `none` for no tools.")
@click.option("--approvals", type=click.Choice(["manual", "smart", "off"]), default=None, help="When you are asked.")
@click.option("--backend", default="", metavar="NAME", shell_complete=complete_backends, help="Where commands run.")
@click.option("--set", "variables", multiple=True, metavar="VAR=VALUE", help="A value for .env; several are fine.")
@click.option("--no-test", is_flag=True, help="Send no request to the model.")
@click.option("--yes", is_flag=True, help="Ask nothing, and fetch the weights of an embedded model if need be.")
def setup(names: tuple[str, ...], only_list: bool, as_json: bool, **flags: Any) -> int | None:
    """Set up the model, keys, tools and approvals, step by step.

    Goes through five steps: the model that answers and its key, what tools need, toolsets, when you are asked, and
    where commands run. Enter leaves a step as it is, and every answer is saved at once, so that it can be stopped and
    started again. Keys are not shown while you type, and are kept in the file .env, which only you can read. The model
    is tried with one real request. With the names of tools (or of toolsets, or of the variables themselves) it asks
    only for what those need.

    With any of the flags that say what to set, nobody is asked. Exit code 1 when the model does not answer then.

    \b
    Examples:
      toolcrib setup
      toolcrib setup weather
      toolcrib setup --provider anthropic --key-env MY_KEY --approvals manual
      toolcrib setup --provider ollama --model qwen3:8b --no-test
      toolcrib setup --list

    Each object of `--list --json` has the keys name, description, url, tools, password, set and shown (the value,
    masked; empty when it is not set).
    """
    wishes = Wishes(**flags)
    if only_list or as_json:
        runtime = open_runtime()
        print_list(runtime.settings.home, wanted_variables(runtime, names), as_json)
        return None
    if names and wishes.is_given:
        raise UsageError(f"name tools or give flags, not both; without names: `toolcrib setup` with {FLAGS}")
    if names:
        _ask_for(names)
        return None
    if wishes.is_given:
        return run_unattended(wishes)
    if not person_present():
        raise UsageError(f"nobody is here to ask; say what to set: `toolcrib setup` with {FLAGS}")
    run_wizard(find_home(), test=not wishes.no_test)
    return None


def _ask_for(names: tuple[str, ...]) -> None:
    runtime = open_runtime()
    home = runtime.settings.home
    variables = wanted_variables(runtime, names)
    if not variables:
        print_line(f"{', '.join(names)} needs no keys; type `toolcrib tools explain {names[0]}` to see more.")
        return
    if not person_present():
        raise UsageError(
            f"nobody is here to ask; write a line like {next(iter(variables))}=VALUE into {str(home.env_file)!r}, "
            "then type `toolcrib setup --list` to see what is set"
        )
    ask_all(home, variables)
