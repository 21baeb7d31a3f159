"""`toolcrib model use PROVIDER/MODEL`."""

from __future__ import annotations

import click

from toolcrib.cli.model_choice import choose_model, save_choice
from toolcrib.cli.models import complete_providers, lack_of
from toolcrib.cli.output import note
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.providers.choose import GATEWAY, ConfiguredModels, ModelChoice


@click.command(name="use")
@click.argument("model")
@click.option("--provider", default="", metavar="NAME", shell_complete=complete_providers, help="Where the model is.")
@click.option("--base-url", default="", metavar="URL", help="The address of its server, if not the provider's own.")
def command(model: str, provider: str, base_url: str) -> None:
    """Choose the model that answers from now on.

    MODEL is written as PROVIDER/MODEL, or as the provider names it, with --provider beside it. The name of a provider
    alone takes its default model. Writes model.default and model.provider to the config file; comments and everything
    else in it stay as they are.

    \b
    Examples:
      toolcrib model use anthropic/claude-sonnet-5-5
      toolcrib model use qwen3:8b --provider ollama
      toolcrib model use embedded
    """
    settings = load_settings()
    choice = choose_model(settings, model, provider, base_url)
    save_choice(settings, choice)
    note(
        f"{choice.model} of {choice.provider} answers from now on; written to {settings.home.config_file}. "
        "`toolcrib model test` tries it."
    )
    changed = load_settings(settings.home)
    lack = lack_of(changed, choice)
    if lack is not None:
        note(f"Warning: {lack}.{_other_way(changed, choice)}")


def _other_way(settings: Settings, choice: ModelChoice) -> str:
    """How the model can be had without the key that is missing, if through another one that is set."""
    places = ConfiguredModels(settings)
    has_gateway = any(preset.name == GATEWAY for preset in places.with_key())
    if choice.provider == GATEWAY or not has_gateway:
        return ""
    name = f"{choice.provider}/{choice.model}"
    return f" The key of {GATEWAY} is set: `toolcrib model use {name} --provider {GATEWAY}` goes through it."
