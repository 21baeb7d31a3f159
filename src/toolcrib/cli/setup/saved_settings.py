"""Saves each answer of the set-up at once, and remembers what was saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolcrib.cli.model_choice import save_choice
from toolcrib.cli.output import note
from toolcrib.config.edit import put_values
from toolcrib.config.env_file import read_env_file, remove_env_value, save_env_value
from toolcrib.config.environment import environment
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.providers.choose import ModelChoice


def _indented(message: str) -> None:
    note(f"  {message}")


class SavedSettings:
    """What a run of the set-up wrote to `.env` and the config, in order."""

    def __init__(self, home: Home, tell: Callable[[str], None] = _indented) -> None:
        self.home = home
        self.things: list[str] = []
        """The names of variables, and settings with their values."""
        self._tell = tell

    def variable(self, name: str, value: str, shown: str) -> None:
        """Save a variable to `.env`; an empty value removes it."""
        before = read_env_file(self.home.env_file).get(name)
        if value:
            save_env_value(self.home, name, value)
        else:
            remove_env_value(self.home, name)
        self._remember(name)
        self._tell(f"{name}={shown} saved to {self.home.env_file}" if value else f"{name} removed")
        outside = environment().get(name)
        # Loading the tools put the values of the file into this process.
        if outside and outside not in (value, before):
            self._tell(f"{name} is also set in the environment, which overrides the file.")

    def settings(self, values: Mapping[tuple[str, ...], Any]) -> None:
        """Save settings to the config."""
        put_values(self.home, dict(values))
        self._wrote([f"{'.'.join(path)} = {_as_text(value)}" for path, value in values.items()])

    def model(self, settings: Settings, choice: ModelChoice) -> None:
        """Save a model and its provider to the config."""
        save_choice(settings, choice)
        self._wrote([f"model = {choice.provider}/{choice.model}"])

    def _wrote(self, things: list[str]) -> None:
        for thing in things:
            self._remember(thing)
            self._tell(f"{thing} saved to {self.home.config_file}")

    def _remember(self, thing: str) -> None:
        key = thing.partition(" = ")[0]
        self.things = [*(kept for kept in self.things if kept.partition(" = ")[0] != key), thing]

    def __str__(self) -> str:
        """A summary for the end of a sentence."""
        return f"saved: {'; '.join(self.things)}" if self.things else "nothing was changed"


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
