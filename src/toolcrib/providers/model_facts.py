"""What is known about families of models: how much they take, and whether they see images and hear audio."""

from __future__ import annotations

import re

from toolcrib.core.models import ModelProfile

DEFAULT_CONTEXT_WINDOW = 128_000

# The first row that fits the name without its maker counts. Windows are what the makers document for their own service.
_FAMILIES: tuple[tuple[re.Pattern[str], int, bool], ...] = tuple(
    (re.compile(pattern), window, sees_images)
    for pattern, window, sees_images in (
        (r"claude-[a-z]+-5", 1_000_000, True),
        (r"claude-", 200_000, True),
        (r"gpt-5\.\d+-(mini|nano|luna)", 400_000, True),
        (r"gpt-5\.[456](?!\d)", 1_050_000, True),
        (r"gpt-5", 400_000, True),
        (r"gpt-4\.1", 1_047_576, True),
        (r"gpt-4o|gpt-4-turbo|chatgpt-4o", 128_000, True),
        (r"gpt-4", 8_192, False),
        (r"gpt-3\.5", 16_385, False),
        (r"gpt-oss", 131_072, False),
        (r"o1-mini|o3-mini", 200_000, False),
        (r"o[134](-|$)", 200_000, True),
        (r"gemini-", 1_048_576, True),
        (r"deepseek-v4.*vision", 1_048_576, True),
        (r"deepseek-(v4|flash|chat$|reasoner$)", 1_048_576, False),
        (r"deepseek-", 128_000, False),
        (r"grok-4\.7", 500_000, True),
        (r"grok-4", 256_000, True),
        (r"kimi-k3", 1_048_576, True),
        (r"kimi-k2[.p-][5-9]", 262_144, True),
        (r"kimi-k2", 262_144, False),
        (r"glm-[\d.p]+v", 128_000, True),
        (r"glm-5[.p]3", 1_000_000, False),
        (r"glm-(5|4[.p][67])", 200_000, False),
        (r"glm-", 128_000, False),
        (r"qwen-3\.8-27b", 65_536, True),
        (r"hermes-[34]|llama-3\.[13]", 131_072, False),
    )
)

# Their makers document recordings as input.
_HEARS_AUDIO = re.compile(r"gpt-4o(-mini)?-audio|gpt-audio|gemini-|voxtral|qwen[\w.]*-omni")


def known_profile(model: str) -> ModelProfile:
    """What the model can take, by its name; for a name that tells nothing, what most models can."""
    name = model.rpartition("/")[2].lower()
    hears_audio = _HEARS_AUDIO.match(name) is not None
    for pattern, window, sees_images in _FAMILIES:
        if pattern.match(name):
            return ModelProfile(context_window=window, sees_images=sees_images, hears_audio=hears_audio)
    return ModelProfile(context_window=DEFAULT_CONTEXT_WINDOW, hears_audio=hears_audio)
