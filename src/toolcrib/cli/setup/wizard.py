"""The set-up as a conversation: five steps, each of which can be left out with Enter."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import click

from toolcrib.cli.output import note, plural, print_line
from toolcrib.cli.runtime import open_runtime
from toolcrib.cli.setup.model_step import model_step
from toolcrib.cli.setup.prompts import Option, ask, ask_one, ask_several, ask_yes, say
from toolcrib.cli.setup.saved_settings import Saved
from toolcrib.cli.setup.variables import ask_variable, shown, variables_of
from toolcrib.cli.tool_state import ToolState, tool_states
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.environments import BackendStatus
from toolcrib.core.errors import UnknownName
from toolcrib.core.types import JsonObject
from toolcrib.environments.create import backend_statuses
from toolcrib.environments.specs import backend_name
from toolcrib.runtime import Runtime

MODES = {
    "manual": "You are asked before anything dangerous is done.",
    "smart": "A model judges a few kinds first; you are asked about the rest.",
    "off": "Nobody is asked; what is always denied stays denied.",
}
NO_TOOLS = "none"


def tools_step(saved: Saved) -> None:
    """Say which tools lack something and what, and ask for the values that the person wants to enter."""
    runtime = open_runtime()
    lacking = [
        state for state in tool_states(runtime.registry, runtime.registry.entries()) if not state.outcome.available
    ]
    if not lacking:
        say("Every tool that is here can be used. `toolcrib setup --list` shows all that can be entered.")
        return
    for state in lacking:
        say(f"{state.name}: {state.outcome.reason or 'it says that it is not available'}")
    missing = _missing_variables(runtime, lacking, saved)
    for state in lacking:
        if not any(state.name in _served(runtime, name, lacking) for name in missing) and state.outcome.remedy:
            say(f"To use {state.name}: {state.outcome.remedy}.")
    if not missing:
        return
    options = [Option(name=name, text=_use(name, about, runtime, lacking)) for name, about in missing.items()]
    for option in ask_several("  Which do you want to enter (numbers or names, `all`, Enter for none)", options):
        ask_variable(saved, option.name, missing[option.name])


def _missing_variables(runtime: Runtime, lacking: list[ToolState], saved: Saved) -> dict[str, JsonObject]:
    found: dict[str, JsonObject] = {}
    for state in lacking:
        found |= variables_of(runtime, state.name)
    return {name: about for name, about in found.items() if not shown(saved.home, name)}


def _served(runtime: Runtime, variable: str, lacking: list[ToolState]) -> list[str]:
    """The tools among those that lack something which this variable serves."""
    return [state.name for state in lacking if variable in variables_of(runtime, state.name)]


def _use(name: str, about: JsonObject, runtime: Runtime, lacking: list[ToolState]) -> str:
    tools = ", ".join(_served(runtime, name, lacking))
    where = f", from {about['url']}" if about.get("url") else ""
    return f"{about.get('description') or name} (for {tools}{where})"


def toolsets_step(saved: Saved) -> None:
    """Ask which toolsets the model is offered."""
    runtime = open_runtime()
    now = load_settings(saved.home).toolsets
    say(f"Now the model is offered {', '.join(now) or 'no tools'}, and the tools that you added yourself.")
    while True:
        typed = ask("  Toolsets (names with commas, `none`, `?` lists them, Enter changes nothing)")
        if not typed:
            return
        if typed == "?":
            _list_toolsets(runtime)
            continue
        names = toolset_names(typed)
        try:
            runtime.toolsets.require(names)
        except UnknownName as error:
            say(str(error))
            continue
        saved.settings({("toolsets",): names})
        return


def toolset_names(typed: str) -> list[str]:
    """The toolsets in a text with commas; `none` alone means no tools at all."""
    names = [name.strip() for name in typed.split(",") if name.strip()]
    return [] if names == [NO_TOOLS] else names


def _list_toolsets(runtime: Runtime) -> None:
    here = set(runtime.registry.get_all_tool_names())
    infos = [info for name in runtime.toolsets.names() if (info := runtime.toolsets.info(name)) is not None]
    useful = [info for info in infos if here.intersection(info.resolved)]
    width = max(len(info.name) for info in useful) if useful else 0
    for info in useful:
        count = plural(len(here.intersection(info.resolved)), "tool")
        head = f"  {info.name:<{width}}  "
        say(f"{info.description} ({count} here)", first=head, rest=" " * len(head))


def approvals_step(saved: Saved) -> None:
    """Ask when a person is asked."""
    now = load_settings(saved.home).approvals.mode
    chosen = ask_one(
        "  Approvals (number or name, Enter changes nothing)",
        [Option(name=mode, text=text, is_set=mode == now) for mode, text in MODES.items()],
    )
    if chosen is not None:
        saved.settings({("approvals", "mode"): chosen.name})


def backend_step(saved: Saved) -> None:
    """Ask where commands run; what works here comes first."""
    settings = load_settings(saved.home)
    statuses = asyncio.run(backend_statuses(settings, environment()))
    ordered = sorted(statuses, key=lambda status: not status.usable)
    now = _configured(settings.terminal.backend)
    options = [Option(name=status.kind, text=_state(status), is_set=status.kind == now) for status in ordered]
    while True:
        chosen = ask_one("  Backend (number or name, Enter changes nothing)", options)
        if chosen is None:
            return
        status = next(status for status in ordered if status.kind == chosen.name)
        if status.usable or ask_yes(f"  {status.kind} does not work yet. Choose it all the same?"):
            break
    saved.settings({("terminal", "backend"): chosen.name})
    if environment().get("TERMINAL_ENV"):
        note("  TERMINAL_ENV is set in the environment, which counts before the config.")


def _configured(name: str) -> str:
    try:
        return backend_name(name)
    except UnknownName:
        return ""


def _state(status: BackendStatus) -> str:
    if status.usable:
        return f"works: {status.detail}"
    return f"not yet: {status.detail}{f'; {status.remedy}' if status.remedy else ''}"


def run_wizard(home: Home, *, test: bool) -> None:
    """Go through all steps. Ctrl-C stops; what was answered until then is kept, and said."""
    saved = Saved(home)
    steps: list[tuple[str, Callable[[Saved], None]]] = [
        ("Which model answers", functools.partial(model_step, test=test)),
        ("What tools need", tools_step),
        ("Which toolsets the model is offered", toolsets_step),
        ("When you are asked", approvals_step),
        ("Where commands run", backend_step),
    ]
    say("Enter leaves things as they are, Ctrl-C stops. Every answer is saved at once.", first="", rest="")
    try:
        for number, (title, step) in enumerate(steps, 1):
            note(f"\n{number}/{len(steps)} {title}")
            step(saved)
    except (click.Abort, KeyboardInterrupt):
        note(f"\nStopped; {saved}. Type `toolcrib setup` to go on.")
        raise click.Abort from None
    print_line(f"Done; {saved}. Type `toolcrib chat` to begin, or `toolcrib doctor` to see the whole state.")
