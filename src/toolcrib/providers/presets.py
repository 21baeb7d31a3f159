"""The known services and local servers, as data. Add a row to add one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.models import Dialect, ModelProfile
from toolcrib.providers.openai_request import OpenAIOptions

Protocol = Literal["openai", "anthropic", "embedded", "scripted"]


class ProtocolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How the servers of one protocol are talked to."""

    module: str = ""
    """Its `create_from` makes the provider; empty if it is made without a server."""
    package: str = ""
    """The package that it needs; the extra is named after the protocol."""
    dialect: Dialect | None = None
    """The only dialect of its tools, if there is only one."""
    models_path: str = "/models"
    """Where a server lists its models."""
    key_header: str = "Authorization: Bearer "
    headers: dict[str, str] = {}


PROTOCOLS: dict[Protocol, ProtocolSpec] = {
    "openai": ProtocolSpec(module="toolcrib.providers.openai", package="openai"),
    "anthropic": ProtocolSpec(
        module="toolcrib.providers.anthropic",
        package="anthropic",
        dialect="anthropic",
        models_path="/v1/models?limit=1000",
        key_header="x-api-key: ",
        headers={"anthropic-version": "2023-06-01"},
    ),
    "embedded": ProtocolSpec(package="xllamacpp"),
    "scripted": ProtocolSpec(),
}


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A service or server with models."""

    name: str
    """The name in the config and in `--provider`."""
    title: str
    base_url: str = ""
    address_variable: str = ""
    """The variable that overrides the address, as the service's own SDK reads it."""
    key_variables: tuple[str, ...] = ()
    """The variables that may hold the key; the first one set counts. Empty if no key is needed."""
    protocol: Protocol = "openai"
    dialect: Dialect = "openai"
    default_model: str = ""
    """Used if none is named; empty if only the user knows the server's models."""
    model_prefixes: tuple[str, ...] = ()
    """How the names of its own models start."""
    slashed_models: bool = False
    """Its model names contain a slash, such as `maker/model`."""
    chosen_by_key: bool = True
    """A key alone selects it; not if other programs use the same key."""
    options: OpenAIOptions = OpenAIOptions()
    headers: dict[str, str] = {}

    @property
    def needs_key(self) -> bool:
        return bool(self.key_variables)


class ProviderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider is made from."""

    preset: Preset
    base_url: str
    api_key: str
    key_variable: str
    profile: Callable[[str], ModelProfile]
    options: OpenAIOptions


_ROWS = (
    Preset(
        name="anthropic", title="Anthropic", base_url="https://api.anthropic.com", protocol="anthropic",
        address_variable="ANTHROPIC_BASE_URL",
        dialect="anthropic", key_variables=("ANTHROPIC_API_KEY",), default_model="claude-sonnet-5-5",
        model_prefixes=("claude-",),
    ),
    Preset(
        name="openai", title="OpenAI", base_url="https://api.openai.com/v1", key_variables=("OPENAI_API_KEY",),
        address_variable="OPENAI_BASE_URL",
        default_model="gpt-5.6", model_prefixes=("gpt-", "o1", "o3", "o4", "chatgpt-"),
        options=OpenAIOptions(
            max_tokens_field="max_completion_tokens", cache_key=True, no_tools_while_reasoning=True
        ),
    ),
    Preset(
        name="openrouter", title="OpenRouter", base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",), default_model="anthropic/claude-sonnet-5.5", slashed_models=True,
        options=OpenAIOptions(reasoning="openrouter"), headers={"X-Title": "toolcrib"},
    ),
    Preset(
        name="gemini", title="Google Gemini", base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"), dialect="openai_gemini",
        default_model="gemini-3.8-flash", model_prefixes=("gemini-", "gemma-"), options=OpenAIOptions(signs_calls=True),
    ),
    Preset(
        name="nous", title="Nous Portal", base_url="https://inference-api.nousresearch.com/v1",
        key_variables=("NOUS_API_KEY",), default_model="anthropic/claude-sonnet-4.6", model_prefixes=("Hermes-",),
        slashed_models=True, options=OpenAIOptions(reasoning="openrouter"),
    ),
    Preset(
        name="groq", title="Groq", base_url="https://api.groq.com/openai/v1", key_variables=("GROQ_API_KEY",),
        default_model="openai/gpt-oss-120b", slashed_models=True,
        options=OpenAIOptions(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        name="mistral", title="Mistral", base_url="https://api.mistral.ai/v1", key_variables=("MISTRAL_API_KEY",),
        default_model="mistral-medium-latest",
        model_prefixes=("mistral-", "ministral-", "magistral-", "codestral-", "devstral-", "pixtral-"),
        # It always reports usage, and refuses unknown fields.
        options=OpenAIOptions(stream_usage=False, nine_character_ids=True),
    ),
    Preset(
        name="deepseek", title="DeepSeek", base_url="https://api.deepseek.com", key_variables=("DEEPSEEK_API_KEY",),
        default_model="deepseek-v4-pro", model_prefixes=("deepseek-",),
        options=OpenAIOptions(reasoning="thinking_effort", returns_reasoning=True, json_schema=False),
    ),
    Preset(
        name="xai", title="xAI", base_url="https://api.x.ai/v1", key_variables=("XAI_API_KEY",),
        default_model="grok-4.7", model_prefixes=("grok-",),
    ),
    Preset(
        name="together", title="Together AI", base_url="https://api.together.xyz/v1",
        key_variables=("TOGETHER_API_KEY",), default_model="zai-org/GLM-5.3", slashed_models=True,
    ),
    Preset(
        name="fireworks", title="Fireworks AI", base_url="https://api.fireworks.ai/inference/v1",
        key_variables=("FIREWORKS_API_KEY",), default_model="accounts/fireworks/models/glm-5p3", slashed_models=True,
    ),
    Preset(
        name="cerebras", title="Cerebras", base_url="https://api.cerebras.ai/v1",
        key_variables=("CEREBRAS_API_KEY",), default_model="qwen-3.8-27b",
        options=OpenAIOptions(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        name="moonshot", title="Moonshot AI", base_url="https://api.moonshot.ai/v1",
        key_variables=("MOONSHOT_API_KEY", "KIMI_API_KEY"), default_model="kimi-k3", model_prefixes=("kimi-",),
        options=OpenAIOptions(reasoning="thinking", returns_reasoning=True, cache_key=True),
    ),
    Preset(
        name="zai", title="Z.ai", base_url="https://api.z.ai/api/paas/v4",
        key_variables=("ZAI_API_KEY", "GLM_API_KEY", "ZHIPU_API_KEY"), default_model="glm-5.1",
        model_prefixes=("glm-",),
        options=OpenAIOptions(reasoning="thinking", returns_reasoning=True, json_schema=False),
    ),
    Preset(
        name="nvidia", title="NVIDIA", base_url="https://integrate.api.nvidia.com/v1",
        key_variables=("NVIDIA_API_KEY",), default_model="nvidia/nemotron-3-super-120b-a12b",
        model_prefixes=("nvidia/",), slashed_models=True,
    ),
    Preset(
        name="vercel", title="Vercel AI Gateway", base_url="https://ai-gateway.vercel.sh/v1",
        key_variables=("AI_GATEWAY_API_KEY",), default_model="anthropic/claude-opus-5", slashed_models=True,
    ),
    Preset(
        name="huggingface", title="Hugging Face", base_url="https://router.huggingface.co/v1",
        key_variables=("HF_TOKEN",), default_model="zai-org/GLM-5.3", slashed_models=True, chosen_by_key=False,
    ),
    Preset(
        name="github", title="GitHub Models", base_url="https://models.github.ai/inference",
        key_variables=("GITHUB_TOKEN",), default_model="openai/o4-mini", slashed_models=True, chosen_by_key=False,
        options=OpenAIOptions(max_tokens_field="max_completion_tokens"),
    ),
    Preset(name="ollama", title="Ollama on this machine", base_url="http://127.0.0.1:11434/v1", slashed_models=True),
    Preset(
        name="lmstudio", title="LM Studio on this machine", base_url="http://127.0.0.1:1234/v1", slashed_models=True
    ),
    Preset(name="vllm", title="vLLM on this machine", base_url="http://127.0.0.1:8000/v1", slashed_models=True),
    Preset(
        name="llamacpp", title="llama.cpp on this machine", base_url="http://127.0.0.1:8080/v1", dialect="llama_cpp",
        # The server has one model and accepts any name for it.
        default_model="default", slashed_models=True,
    ),
    Preset(name="embedded", title="A small model inside toolcrib", protocol="embedded", dialect="llama_cpp"),
    Preset(
        name="scripted", title="Answers from a file, for tests", protocol="scripted", default_model="scripted",
        slashed_models=True,
    ),
)  # fmt: skip

PRESETS: dict[str, Preset] = {row.name: row for row in _ROWS}
"""By name, in the order in which keys are considered."""

ALIASES = {
    "google": "gemini",
    "claude": "anthropic",
    "grok": "xai",
    "kimi": "moonshot",
    "glm": "zai",
    "hf": "huggingface",
    "ai-gateway": "vercel",
    "lm-studio": "lmstudio",
    "llama.cpp": "llamacpp",
    "llama_cpp": "llamacpp",
}
"""Other names in use."""


DEFAULT_CONTEXT_WINDOW = 128_000

# The first row that matches the name without its vendor applies. Windows are as documented for the vendor's service.
_FAMILIES: tuple[tuple[re.Pattern[str], int, bool], ...] = tuple(
    (lazy_pattern(pattern), window, sees_images)
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

# Their vendors document audio as input.
_HEARS_AUDIO = re.compile(r"gpt-4o(-mini)?-audio|gpt-audio|gemini-|voxtral|qwen[\w.]*-omni")


def known_profile(model: str) -> ModelProfile:
    """What a model supports, by its name; for an unknown name, what most models support."""
    name = model.rpartition("/")[2].lower()
    hears_audio = _HEARS_AUDIO.match(name) is not None
    for pattern, window, sees_images in _FAMILIES:
        if pattern.match(name):
            return ModelProfile(context_window=window, sees_images=sees_images, hears_audio=hears_audio)
    return ModelProfile(context_window=DEFAULT_CONTEXT_WINDOW, hears_audio=hears_audio)


def is_on_this_machine(base_url: str) -> bool:
    """Whether an address is on this machine."""
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
