"""A server that toolcrib does not know: its address, a name for it, and its key if it wants one."""

from __future__ import annotations

import re

from toolcrib.cli.output import note
from toolcrib.cli.setup.asking import ask
from toolcrib.cli.setup.saved import Saved
from toolcrib.config.env_vars import mask
from toolcrib.providers.presets import ALIASES, PRESETS

DEFAULT_NAME = "own"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def ask_server(saved: Saved) -> str:
    """The name under which the server stands in the config now; empty when no address was given.

    It gets an entry of its own, with a key of its own: that of OpenAI must not be sent to somebody else.
    """
    address = ask_address("  Address, for example http://127.0.0.1:8000/v1")
    if not address:
        return ""
    name = _ask_name()
    saved.settings({("providers", name, "base_url"): address})
    key = ask("  Its key, Enter if it wants none (not shown while typing)", hidden=True)
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
        note("  An address begins with http:// or https://; press Enter to leave it.")


def _ask_name() -> str:
    while True:
        name = ask(f"  A name for it [{DEFAULT_NAME}]").lower() or DEFAULT_NAME
        if name in PRESETS or name in ALIASES:
            note(f"  {name!r} is the name of a provider that toolcrib knows; choose another.")
        elif not _NAME.fullmatch(name):
            note("  Use letters, digits, `-` and `_`, and begin with a letter.")
        else:
            return name
