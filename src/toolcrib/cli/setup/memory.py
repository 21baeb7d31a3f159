"""`toolcrib setup NAME` for a memory provider: asks what its schema says, and makes it the configured one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from toolcrib.agent.external_memory import find_memory
from toolcrib.cli.output import note, print_line
from toolcrib.cli.setup.prompts import MenuOption, ask, choose_one
from toolcrib.cli.setup.saved_settings import SavedSettings
from toolcrib.cli.setup.variables import ask_variable
from toolcrib.config.env_file import fill_environment
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.runtime import Runtime


def config_fields(provider: Any) -> list[JsonObject]:
    """What the provider's `get_config_schema` asks for; raises ToolcribError if it fails."""
    fields, error = _ask(provider, "get_config_schema")
    if error is not None:
        raise ToolcribError(f"the memory provider {provider.name!r} failed to say what it needs: {error}")
    return [dict(one) for one in fields or () if isinstance(one, Mapping) and one.get("key")]


def memory_variables(provider: Any) -> dict[str, JsonObject]:
    """The environment variables among its fields, described as others are."""
    return {name: _about(name, field) for field in config_fields(provider) if (name := _variable(provider, field))}


def set_up_memory(runtime: Runtime, name: str) -> None:
    """Ask for each field, give the answers to the provider, and use it from now on."""
    home, provider = runtime.settings.home, find_memory(runtime, name)
    saved, values = SavedSettings(home), {}
    note(f"Memory provider {name}. Enter keeps a key, or takes the value in brackets.")
    try:
        for field in config_fields(provider):
            note()
            variable = _variable(provider, field)
            if variable:
                ask_variable(saved, variable, _about(variable, field))
            else:
                values[str(field["key"])] = _ask_value(field)
    except click.Abort:
        note(f"\nStopped; {saved}. Run `toolcrib setup {name}` to continue.")
        raise
    fill_environment(home)
    _, error = _ask(provider, "save_config", values, str(home.root))
    if error is not None:
        raise ToolcribError(f"the memory provider {name!r} could not save its settings: {error}")
    note()
    saved.settings({("memory", "provider"): name})
    for path in _ask(provider, "backup_paths")[0] or ():
        note(f"  It keeps data in {path}; include that in your backups.")
    # Another one: a provider may have looked for its key when it was made.
    print_line(_outcome(name, find_memory(runtime, name)))


def _ask(provider: Any, method: str, *arguments: Any) -> tuple[Any, BaseException | None]:
    """What a method of the provider returns, and what it raised; None twice if it has no such method."""
    found = getattr(provider, method, None)
    return (None, None) if found is None else attempt(found, *arguments)


def _variable(provider: Any, field: JsonObject) -> str:
    """The environment variable of a field; empty if the provider keeps the value itself."""
    if field.get("env_var"):
        return str(field["env_var"])
    return f"{provider.name}_{field['key']}".upper().replace("-", "_") if field.get("secret") else ""


def _about(variable: str, field: JsonObject) -> JsonObject:
    known = OPTIONAL_ENV_VARS.get(variable, {})
    described = {"description": str(field.get("description") or field["key"]), "url": str(field.get("url") or "")}
    return {"prompt": variable, "tools": [], **known, **described, "password": bool(field.get("secret"))}


def _ask_value(field: JsonObject) -> Any:
    """The typed value, or the default."""
    key, default = str(field["key"]), field.get("default", "")
    about = str(field.get("description") or key)
    note(about + ("" if not field.get("url") else f"\n  from {field['url']}"))
    choices = [str(one) for one in field.get("choices") or ()]
    if choices:
        options = [MenuOption(name=one, text="", is_set=one == str(default)) for one in choices]
        chosen = choose_one(f"  {key}{f' [{default}]' if default else ''}", options)
        return default if chosen is None else chosen.name
    while True:
        typed = ask(f"  {key}{f' [{default}]' if default not in ('', None) else ''}")
        if typed or default not in ("", None) or not field.get("required"):
            return typed or default
        note(f"  {key} is required.")


def _outcome(name: str, provider: Any) -> str:
    is_available, error = _ask(provider, "is_available")
    if is_available and error is None:
        return f"{name} gets your conversations from now on. To stop: toolcrib config unset memory.provider"
    missing = _ask(provider, "missing")[0] or "it says that it is not available"
    return f"{name} cannot be used yet: {missing}."
