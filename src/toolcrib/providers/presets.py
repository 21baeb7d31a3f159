"""The services and local servers that toolcrib knows, as data. A new one is a row."""

from __future__ import annotations

from typing import Literal

import msgspec

from toolcrib.core.models import Dialect
from toolcrib.providers.openai_wire import WireOptions

Protocol = Literal["openai", "anthropic", "embedded", "scripted"]


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A place where models are."""

    name: str
    """As the config and `--provider` call it."""
    title: str
    base_url: str = ""
    address_variable: str = ""
    """The variable that names another address, as its own SDK reads it."""
    key_variables: tuple[str, ...] = ()
    """The variables that may hold its key, the first that is set counts; none where no key is needed."""
    protocol: Protocol = "openai"
    dialect: Dialect = "openai"
    default_model: str = ""
    """Used when none is named; empty where only the user knows what the server has."""
    model_prefixes: tuple[str, ...] = ()
    """How the names of its own models begin."""
    slashed_models: bool = False
    """Its models have names with a slash, such as `maker/model`."""
    chosen_by_key: bool = True
    """It is chosen when its key is set and nothing else is said; not where the same key serves other programs."""
    options: WireOptions = WireOptions()
    headers: dict[str, str] = {}

    @property
    def needs_key(self) -> bool:
        return bool(self.key_variables)


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
        options=WireOptions(
            max_tokens_field="max_completion_tokens", cache_key=True, no_tools_while_reasoning=True
        ),
    ),
    Preset(
        name="openrouter", title="OpenRouter", base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",), default_model="anthropic/claude-sonnet-5.5", slashed_models=True,
        options=WireOptions(reasoning="openrouter"), headers={"X-Title": "toolcrib"},
    ),
    Preset(
        name="gemini", title="Google Gemini", base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"), dialect="openai_gemini",
        default_model="gemini-3.8-flash", model_prefixes=("gemini-", "gemma-"), options=WireOptions(signs_calls=True),
    ),
    Preset(
        name="nous", title="Nous Portal", base_url="https://inference-api.nousresearch.com/v1",
        key_variables=("NOUS_API_KEY",), default_model="anthropic/claude-sonnet-4.6", model_prefixes=("Hermes-",),
        slashed_models=True, options=WireOptions(reasoning="openrouter"),
    ),
    Preset(
        name="groq", title="Groq", base_url="https://api.groq.com/openai/v1", key_variables=("GROQ_API_KEY",),
        default_model="openai/gpt-oss-120b", slashed_models=True,
        options=WireOptions(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        name="mistral", title="Mistral", base_url="https://api.mistral.ai/v1", key_variables=("MISTRAL_API_KEY",),
        default_model="mistral-medium-latest",
        model_prefixes=("mistral-", "ministral-", "magistral-", "codestral-", "devstral-", "pixtral-"),
        # It says what was used in any case, and refuses fields that it does not know.
        options=WireOptions(stream_usage=False, nine_character_ids=True),
    ),
    Preset(
        name="deepseek", title="DeepSeek", base_url="https://api.deepseek.com", key_variables=("DEEPSEEK_API_KEY",),
        default_model="deepseek-v4-pro", model_prefixes=("deepseek-",),
        options=WireOptions(reasoning="thinking_effort", returns_reasoning=True, json_schema=False),
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
        options=WireOptions(max_tokens_field="max_completion_tokens"),
    ),
    Preset(
        name="moonshot", title="Moonshot AI", base_url="https://api.moonshot.ai/v1",
        key_variables=("MOONSHOT_API_KEY", "KIMI_API_KEY"), default_model="kimi-k3", model_prefixes=("kimi-",),
        options=WireOptions(reasoning="thinking", returns_reasoning=True, cache_key=True),
    ),
    Preset(
        name="zai", title="Z.ai", base_url="https://api.z.ai/api/paas/v4",
        key_variables=("ZAI_API_KEY", "GLM_API_KEY", "ZHIPU_API_KEY"), default_model="glm-5.1",
        model_prefixes=("glm-",),
        options=WireOptions(reasoning="thinking", returns_reasoning=True, json_schema=False),
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
        options=WireOptions(max_tokens_field="max_completion_tokens"),
    ),
    Preset(name="ollama", title="Ollama on this machine", base_url="http://127.0.0.1:11434/v1", slashed_models=True),
    Preset(
        name="lmstudio", title="LM Studio on this machine", base_url="http://127.0.0.1:1234/v1", slashed_models=True
    ),
    Preset(name="vllm", title="vLLM on this machine", base_url="http://127.0.0.1:8000/v1", slashed_models=True),
    Preset(
        name="llamacpp", title="llama.cpp on this machine", base_url="http://127.0.0.1:8080/v1", dialect="llama_cpp",
        # The server has one model and takes any name for it.
        default_model="default", slashed_models=True,
    ),
    Preset(name="embedded", title="A small model inside toolcrib", protocol="embedded", dialect="llama_cpp"),
    Preset(
        name="scripted", title="Answers from a file, for tests", protocol="scripted", default_model="scripted",
        slashed_models=True,
    ),
)  # fmt: skip

PRESETS: dict[str, Preset] = {row.name: row for row in _ROWS}
"""By name, in the order in which a key decides."""

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
"""Other names that people use."""
