"""The set-up wizard: six steps, each skipped with Enter."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Literal

import click
from msgspec.structs import replace

from toolcrib.agent.external_memory import memory_names
from toolcrib.cli.commands.model_check import check_reply
from toolcrib.cli.model_choice import choose_model
from toolcrib.cli.models import (
    PROBE_SECONDS,
    ProviderState,
    embedded_lines,
    megabytes,
    missing_requirement,
    missing_weights,
    provider_states,
    server_models,
)
from toolcrib.cli.output import note, plural, print_line
from toolcrib.cli.runtime import open_runtime
from toolcrib.cli.setup.prompts import MenuOption, ask, ask_yes, choose_one, choose_several, say
from toolcrib.cli.setup.saved_settings import SavedSettings
from toolcrib.cli.setup.variables import ask_variable, describe, shown, variables_of
from toolcrib.cli.tool_state import ToolState, tool_states
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS, mask
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.core.environments import BackendStatus
from toolcrib.core.errors import UnknownName
from toolcrib.core.models import ModelError
from toolcrib.core.types import JsonObject
from toolcrib.environments.create import backend_statuses
from toolcrib.environments.specs import backend_name
from toolcrib.providers.choose import ConfiguredModels, ModelChoice, UnknownProvider, explain_choice
from toolcrib.providers.presets import ALIASES, PRESETS
from toolcrib.runtime import Runtime

DEFAULT_NAME = "own"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
OTHER = "other"
"""The option for a server that is not in the list."""
SHOWN_MODELS = 12
AfterCheck = Literal["keep", "again", "other"]


def ask_server(saved: SavedSettings) -> str:
    """Ask for a server that toolcrib does not know; returns its name in the config, empty if no address was given.

    It gets its own entry with its own key: the key for OpenAI must not be sent to another server.
    """
    address = ask_address("  Address, for example http://127.0.0.1:8000/v1")
    if not address:
        return ""
    name = _ask_name()
    saved.settings({("providers", name, "base_url"): address})
    key = ask("  Its key, or Enter if it needs none (hidden while you type)", hidden=True)
    if key:
        variable = f"{name.upper().replace('-', '_')}_API_KEY"
        saved.variable(variable, key, mask(key))
        saved.settings({("providers", name, "key_env"): variable})
    return name


def ask_address(prompt: str) -> str:
    """The address of a server; empty for Enter."""
    while True:
        typed = ask(prompt)
        if not typed or typed.startswith(("http://", "https://")):
            return typed
        note("  An address starts with http:// or https://; press Enter to skip.")


def _ask_name() -> str:
    while True:
        name = ask(f"  A name for it [{DEFAULT_NAME}]").lower() or DEFAULT_NAME
        if name in PRESETS or name in ALIASES:
            note(f"  {name!r} is a built-in provider; choose another name.")
        elif not _NAME.fullmatch(name):
            note("  Use letters, digits, `-` and `_`, starting with a letter.")
        else:
            return name


def model_step(saved: SavedSettings, *, test: bool) -> None:
    """Ask for provider, key, address and model, save each, and send a test request."""
    settings = load_settings(saved.home)
    say(f"Current model: {_now(settings)}.")
    after: AfterCheck = "other"
    while after == "other":
        # For a server that was just entered, only the model is still unknown.
        known = {state.preset.name for state in provider_states(load_settings(saved.home))}
        chosen = _ask_provider(saved)
        if chosen is None:
            return
        after, is_new = "again", chosen.preset.name not in known
        while after == "again":
            choice = _ask_model(saved, chosen) if is_new else _ask_details(saved, chosen)
            is_new = False
            if choice is None:
                say("No model given; the current one stays.")
                return
            saved.model(load_settings(saved.home), choice)
            after = _test(saved, choice) if test else "keep"


def _now(settings: Settings) -> str:
    try:
        choice = explain_choice(settings)
    except UnknownProvider as error:
        return f"none; {error}"
    missing = missing_requirement(settings, choice)
    problem = f"; problem: {missing.what}" if missing is not None else ""
    return f"{choice.model or 'not set'} (provider: {choice.provider}; {choice.why}){problem}"


def _ask_provider(saved: SavedSettings) -> ProviderState | None:
    """The chosen provider; None for Enter."""
    settings = load_settings(saved.home)
    states = sorted(provider_states(settings, probe=True), key=_rank)
    configured = _configured_model(settings)
    options = [
        MenuOption(name=state.preset.name, text=_text(state), is_set=state.preset.name == configured)
        for state in states
    ]
    options.append(MenuOption(name=OTHER, text="Another server with an OpenAI-compatible API"))
    chosen = choose_one("  Provider (number or name, Enter keeps the current one)", options)
    if chosen is None:
        return None
    name = ask_server(saved) if chosen.name == OTHER else chosen.name
    # The new server is in the config by now.
    states = provider_states(load_settings(saved.home)) if chosen.name == OTHER else states
    return next((state for state in states if state.preset.name == name), None)


def _configured_model(settings: Settings) -> str:
    """The provider in the config, not its alias; empty if there is none or it is unknown."""
    places = ConfiguredModels(settings)
    named = settings.model.provider
    return places.find(named).name if places.knows(named) else ""


def _rank(state: ProviderState) -> int:
    """Ready providers come first."""
    if state.has_key or state.answers:
        return 0
    if state.preset.protocol == "embedded":
        return 1
    return 3 if state.is_local else 2


def _text(state: ProviderState) -> str:
    title = state.preset.title
    if state.answers is not None:
        return f"{title}, {'running' if state.answers else 'not running'}"
    if not state.preset.needs_key:
        return f"{title}, needs no key"
    return f"{title}, {'the key is set' if state.has_key else f'needs {state.key_variable}'}"


def _ask_details(saved: SavedSettings, state: ProviderState) -> ModelChoice | None:
    """Ask for address, key and model; None if no model is given."""
    base_url = _ask_address(state) if state.is_local else state.base_url
    if state.preset.needs_key:
        ask_variable(saved, state.key_variable, describe(state.key_variable, state.preset.title))
    return _ask_model(saved, replace(state, base_url=base_url))


def _ask_model(saved: SavedSettings, state: ProviderState) -> ModelChoice | None:
    settings = load_settings(saved.home)
    offered = _offered(settings, state)
    for line in embedded_lines() if state.preset.protocol == "embedded" else ():
        say(line)
    while True:
        model = ask(f"  Model{f' [{offered}]' if offered else ''}") or offered
        if not model:
            return None
        try:
            return choose_model(settings, model, state.preset.name, state.base_url)
        except UnknownName as error:
            say(str(error))


def _ask_address(state: ProviderState) -> str:
    return ask_address(f"  Address [{state.base_url}]") or state.base_url


def _offered(settings: Settings, state: ProviderState) -> str:
    """The model for Enter: the configured one, the provider's default, or the server's first."""
    configured = settings.model
    is_set = (
        configured.provider == state.preset.name and (configured.base_url or state.preset.base_url) == state.base_url
    )
    offered = configured.default if is_set and configured.default else state.default_model
    if state.preset.name in PRESETS and not state.is_local:
        return offered
    try:
        places = ConfiguredModels(settings)
        models = server_models(state.preset, state.base_url, places.key(state.preset)[1], seconds=PROBE_SECONDS)
    except ModelError as error:
        say(str(error))
        return offered
    more = f" and {len(models) - SHOWN_MODELS} more" if len(models) > SHOWN_MODELS else ""
    say(f"It has {', '.join(models[:SHOWN_MODELS]) or 'no models'}{more}.")
    return offered if offered in models or not models else models[0]


def _test(saved: SavedSettings, choice: ModelChoice) -> AfterCheck:
    """Send a test request; if it fails, ask what to do."""
    settings = load_settings(saved.home)
    weights = missing_weights(settings, choice)
    if weights is not None and not ask_yes(f"  Download its weights ({megabytes(weights.bytes)}) now and test it?"):
        say("They will be downloaded on first use.")
        return "keep"
    try:
        say(f"{check_reply(settings, choice, _tell)}.")
    except ModelError as error:
        say(f"The test failed: {error}")
        return _what_now()
    return "keep"


def _tell(message: str) -> None:
    note(f"  {message}")


def _what_now() -> AfterCheck:
    options = [
        MenuOption(name="again", text="Enter key and model again"),
        MenuOption(name="other", text="Choose another provider"),
        MenuOption(name="keep", text="Keep it anyway (default)"),
    ]
    chosen = choose_one("  What now?", options)
    if chosen is None:
        return "keep"
    return "again" if chosen.name == "again" else "other" if chosen.name == "other" else "keep"


MODES = {
    "manual": "Dangerous calls need your approval.",
    "smart": "A model decides about a few kinds; the rest needs your approval.",
    "off": "No approvals. Catastrophic commands and deny rules still apply.",
}
NO_TOOLS = "none"


def tools_step(saved: SavedSettings) -> None:
    """List the tools that need something, and ask which variables to enter."""
    runtime = open_runtime()
    states = tool_states(runtime.registry, runtime.registry.entries())
    waiting = [state for state in states if not state.outcome.available]
    if not waiting:
        say("All tools are available. Run `toolcrib setup --list` to see all variables.")
        return
    # Few people want every built-in tool; what they added themselves they want.
    unavailable = [state for state in waiting if state.entry is None or state.entry.source.kind != "builtin"]
    toolsets = {state.entry.toolset for state in waiting if state.entry is not None and state not in unavailable}
    memories = [] if runtime.settings.memory.provider else memory_names(runtime)
    optional = sorted({*toolsets, *memories})
    if optional:
        say(f"Also built in: {', '.join(optional)}. To add one: toolcrib setup NAME.")
    if not unavailable:
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


FREE_SEARCH, NO_SEARCH = "free", "off"


def search_step(saved: SavedSettings) -> None:
    """Ask which service `web_search` uses: one with a key, one of your own, or free ones."""
    keyless = load_settings(saved.home).web.keyless
    variables = {name: about for name, about in OPTIONAL_ENV_VARS.items() if "web_search" in about["tools"]}
    options = [
        MenuOption(
            name=FREE_SEARCH,
            text="Free public services without a key; your queries leave this machine",
            is_set=keyless is True,
        ),
        *(
            MenuOption(name=name, text=about["description"], is_set=bool(shown(saved.home, name)))
            for name, about in variables.items()
        ),
        MenuOption(name=NO_SEARCH, text="No search without a key", is_set=keyless is False),
    ]
    chosen = choose_one("  Search (number or name, Enter keeps the current setting)", options)
    if chosen is None:
        return
    if chosen.name in variables:
        ask_variable(saved, chosen.name, variables[chosen.name])
    else:
        saved.settings({("web", "keyless"): chosen.name == FREE_SEARCH})


def toolsets_step(saved: SavedSettings) -> None:
    """Ask which toolsets the model gets."""
    runtime = open_runtime()
    now = load_settings(saved.home).toolsets
    say(f"Current toolsets: {', '.join(now) or 'none'}, and the tools that you added yourself.")
    while True:
        typed = ask("  Toolsets (names, comma-separated; `none`; `?` to list them; Enter to keep)")
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
        ("Web search", search_step),
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
