"""`toolcrib setup`: the wizard, the set-up by flags, and the variables that tools need."""

from __future__ import annotations

from typing import Any

import click

from toolcrib.agent.external_memory import find_memory, memory_names
from toolcrib.cli.commands.env import complete_backends
from toolcrib.cli.models import complete_providers
from toolcrib.cli.output import is_interactive, print_line
from toolcrib.cli.runtime import complete_tools, open_runtime
from toolcrib.cli.setup.memory import memory_variables, set_up_memory
from toolcrib.cli.setup.unattended import FLAGS, SetupAnswers, run_unattended
from toolcrib.cli.setup.variables import ask_all, print_list, wanted_variables
from toolcrib.cli.setup.wizard import run_wizard
from toolcrib.config.paths import find_home
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.runtime import Runtime


@click.command(name="setup")
@click.argument("names", metavar="[TOOL]...", nargs=-1, shell_complete=complete_tools)
@click.option("--list", "only_list", is_flag=True, help="List the variables and which are set; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print a JSON array.")
@click.option("--provider", default="", metavar="NAME", shell_complete=complete_providers, help="The model provider.")
@click.option("--model", default="", metavar="NAME", help="The model; default: the provider's default.")
@click.option("--base-url", default="", metavar="URL", help="The address of the server, if not the provider's own.")
@click.option("--key-env", default="", metavar="VAR", help="Read the provider's key from this variable.")
@click.option("--key-stdin", is_flag=True, help="Read the provider's key from the first line of stdin.")
@click.option(
    "--search",
    type=click.Choice(["free", "off"]),
    default=None,
    help="Search the web with free services, or only with a key.",
)
@click.option("--toolsets", default=None, metavar="A,B", help="The toolsets for the model; `none` for no tools.")
@click.option("--approvals", type=click.Choice(["manual", "smart", "off"]), default=None, help="The approval mode.")
@click.option(
    "--backend", default="", metavar="NAME", shell_complete=complete_backends, help="The backend where commands run."
)
@click.option("--set", "variables", multiple=True, metavar="VAR=VALUE", help="Save a variable to .env; repeatable.")
@click.option("--no-test", is_flag=True, help="Do not test the model.")
@click.option("--yes", is_flag=True, help="Ask nothing, and download the weights of an embedded model if needed.")
def setup(names: tuple[str, ...], only_list: bool, as_json: bool, **flags: Any) -> int | None:
    """Set up the model, keys, tools and approvals, step by step.

    Goes through six steps: the model and its key, the variables that tools need, web search, toolsets, approvals, and
    the backend where commands run. Press Enter to keep a setting; every answer is saved at once, so you can stop and
    continue any time. Keys are not shown while you type, and are saved in the file .env, which only you can read. The
    model is tested with one real request. With names of tools, toolsets or variables, asks only for what those need.
    With the name of a memory provider (honcho, mem0, or one of a plugin), sets it up and uses it from then on.

    With flags that set something, asks nothing. Exit code 1 if the model then does not answer.

    \b
    Examples:
      toolcrib setup
      toolcrib setup weather
      toolcrib setup honcho
      toolcrib setup --provider anthropic --key-env MY_KEY --approvals manual
      toolcrib setup --provider ollama --model qwen3:8b --no-test
      toolcrib setup --list

    Each object of `--list --json` has the keys name, description, url, tools, password, set and shown (the masked
    value; empty if not set).
    """
    answers = SetupAnswers(**flags)
    if only_list or as_json:
        runtime = open_runtime()
        print_list(runtime.settings.home, _variables_of(runtime, names), as_json)
        return None
    if names and answers.is_given:
        raise UsageError(f"give either tool names or flags; without names: `toolcrib setup` with {FLAGS}")
    if names:
        _ask_for(names)
        return None
    if answers.is_given:
        return run_unattended(answers)
    if not is_interactive():
        raise UsageError(f"there is no terminal to ask at; run `toolcrib setup` with {FLAGS}")
    run_wizard(find_home(), test=not answers.no_test)
    return None


def _ask_for(names: tuple[str, ...]) -> None:
    runtime = open_runtime()
    home = runtime.settings.home
    variables = _variables_of(runtime, names)
    if is_interactive() and names[0] in memory_names(runtime):
        set_up_memory(runtime, names[0])
        return
    if not variables:
        print_line(f"{', '.join(names)} needs no keys; run `toolcrib tools explain {names[0]}` for details.")
        return
    if not is_interactive():
        raise UsageError(
            f"there is no terminal to ask at; add a line {next(iter(variables))}=VALUE to {str(home.env_file)!r}, "
            f"then run `toolcrib {_next_step(runtime, names)}"
        )
    ask_all(home, variables)


def _next_step(runtime: Runtime, names: tuple[str, ...]) -> str:
    if names[0] in memory_names(runtime):
        return f"config set memory.provider {names[0]}` to use it"
    return "setup --list` to see what is set"


def _variables_of(runtime: Runtime, names: tuple[str, ...]) -> dict[str, JsonObject]:
    if len(names) == 1 and names[0] in memory_names(runtime):
        return memory_variables(find_memory(runtime, names[0]))
    return wanted_variables(runtime, names)
