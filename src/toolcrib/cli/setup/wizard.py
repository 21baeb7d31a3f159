"""The set-up wizard: five steps, each skipped with Enter."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import click

from toolcrib.cli.output import note, plural, print_line
from toolcrib.cli.runtime import open_runtime
from toolcrib.cli.setup.model_step import model_step
from toolcrib.cli.setup.prompts import MenuOption, ask, ask_yes, choose_one, choose_several, say
from toolcrib.cli.setup.saved_settings import SavedSettings
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
    "manual": "Dangerous calls need your approval.",
    "smart": "A model decides about a few kinds; the rest needs your approval.",
    "off": "No approvals. Catastrophic commands and deny rules still apply.",
}
NO_TOOLS = "none"


def tools_step(saved: SavedSettings) -> None:
    """List the tools that need something, and ask which variables to enter."""
    runtime = open_runtime()
    unavailable = [
        state for state in tool_states(runtime.registry, runtime.registry.entries()) if not state.outcome.available
    ]
    if not unavailable:
        say("All tools are available. Run `toolcrib setup --list` to see all variables.")
        return
    for state in unavailable:
        say(f"{state.name}: {state.outcome.reason or 'not available'}")
    missing = _missing_variables(runtime, unavailable, saved)
    for state in unavailable:
        if not any(state.name in _served(runtime, name, unavailable) for name in missing) and state.outcome.remedy:
            say(f"To use {state.name}: {state.outcome.remedy}.")
    if not missing:
        return
    options = [MenuOption(name=name, text=_use(name, about, runtime, unavailable)) for name, about in missing.items()]
    for option in choose_several("  Variables to enter (numbers or names, `all`, Enter for none)", options):
        ask_variable(saved, option.name, missing[option.name])


def _missing_variables(runtime: Runtime, unavailable: list[ToolState], saved: SavedSettings) -> dict[str, JsonObject]:
    found: dict[str, JsonObject] = {}
    for state in unavailable:
        found |= variables_of(runtime, state.name)
    return {name: about for name, about in found.items() if not shown(saved.home, name)}


def _served(runtime: Runtime, variable: str, unavailable: list[ToolState]) -> list[str]:
    """The unavailable tools that need this variable."""
    return [state.name for state in unavailable if variable in variables_of(runtime, state.name)]


def _use(name: str, about: JsonObject, runtime: Runtime, unavailable: list[ToolState]) -> str:
    tools = ", ".join(_served(runtime, name, unavailable))
    where = f", from {about['url']}" if about.get("url") else ""
    return f"{about.get('description') or name} (for {tools}{where})"


def toolsets_step(saved: SavedSettings) -> None:
    """Ask which toolsets the model gets."""
    runtime = open_runtime()
    now = load_settings(saved.home).toolsets
    say(f"Current toolsets: {', '.join(now) or 'none'}, and the tools that you added yourself.")
    while True:
        typed = ask("  Toolsets (names separated by commas, `none`, `?` to list them, Enter to keep)")
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
    """The toolsets in a comma-separated text; `none` means no tools."""
    names = [name.strip() for name in typed.split(",") if name.strip()]
    return [] if names == [NO_TOOLS] else names


def _list_toolsets(runtime: Runtime) -> None:
    installed = set(runtime.registry.get_all_tool_names())
    infos = [info for name in runtime.toolsets.names() if (info := runtime.toolsets.info(name)) is not None]
    useful = [info for info in infos if installed.intersection(info.resolved)]
    width = max(len(info.name) for info in useful) if useful else 0
    for info in useful:
        count = plural(len(installed.intersection(info.resolved)), "tool")
        head = f"  {info.name:<{width}}  "
        say(f"{info.description} ({count} installed)", first=head, rest=" " * len(head))


def approvals_step(saved: SavedSettings) -> None:
    """Ask for the approval mode."""
    now = load_settings(saved.home).approvals.mode
    chosen = choose_one(
        "  Approvals (number or name, Enter keeps the current mode)",
        [MenuOption(name=mode, text=text, is_set=mode == now) for mode, text in MODES.items()],
    )
    if chosen is not None:
        saved.settings({("approvals", "mode"): chosen.name})


def backend_step(saved: SavedSettings) -> None:
    """Ask for the backend; usable ones come first."""
    settings = load_settings(saved.home)
    statuses = asyncio.run(backend_statuses(settings, environment()))
    ordered = sorted(statuses, key=lambda status: not status.usable)
    now = _configured(settings.terminal.backend)
    options = [MenuOption(name=status.kind, text=_state(status), is_set=status.kind == now) for status in ordered]
    while True:
        chosen = choose_one("  Backend (number or name, Enter keeps the current one)", options)
        if chosen is None:
            return
        status = next(status for status in ordered if status.kind == chosen.name)
        if status.usable or ask_yes(f"  {status.kind} is not usable yet. Choose it anyway?"):
            break
    saved.settings({("terminal", "backend"): chosen.name})
    if environment().get("TERMINAL_ENV"):
        note("  TERMINAL_ENV is set in the environment, which overrides the config.")


def _configured(name: str) -> str:
    try:
        return backend_name(name)
    except UnknownName:
        return ""


def _state(status: BackendStatus) -> str:
    if status.usable:
        return f"usable: {status.detail}"
    return f"not usable: {status.detail}{f'; {status.remedy}' if status.remedy else ''}"


def run_wizard(home: Home, *, test: bool) -> None:
    """Go through all steps. Ctrl-C stops; answers until then are saved and summarised."""
    saved = SavedSettings(home)
    steps: list[tuple[str, Callable[[SavedSettings], None]]] = [
        ("Model", functools.partial(model_step, test=test)),
        ("Variables for tools", tools_step),
        ("Toolsets", toolsets_step),
        ("Approvals", approvals_step),
        ("Backend for commands", backend_step),
    ]
    say("Press Enter to keep a setting, Ctrl-C to stop. Every answer is saved at once.", first="", rest="")
    try:
        for number, (title, step) in enumerate(steps, 1):
            note(f"\n{number}/{len(steps)} {title}")
            step(saved)
    except (click.Abort, KeyboardInterrupt):
        note(f"\nStopped; {saved}. Run `toolcrib setup` to continue.")
        raise click.Abort from None
    print_line(f"Done; {saved}. Run `toolcrib chat` to start, or `toolcrib doctor` to check the installation.")
