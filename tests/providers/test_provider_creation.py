"""Which provider and model are chosen, and what is created for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from toolcrib.config.agent_settings import AuxiliarySettings, ModelSettings, Prices, ProviderEntry
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ConfigError, UnknownName
from toolcrib.core.messages import user_message
from toolcrib.core.models import Delta, ModelError, ModelRequest, Notice, Usage
from toolcrib.definitions.dialects.render import render
from toolcrib.providers.choose import ConfiguredModels
from toolcrib.providers.create import create_auxiliary, create_provider, explain_choice, with_cost
from toolcrib.providers.presets import ALIASES, PRESETS, known_profile
from toolcrib.providers.scripted import read_script, says
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer

Serve = Callable[..., ScriptedModelServer]


@pytest.fixture
def home_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "own-home"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(home_folder: Path) -> Settings:
    """The defaults, in an empty home."""
    return Settings(home=Home(home_folder))


def model(settings: Settings, **fields: Any) -> Settings:
    return replace(settings, model=ModelSettings(**fields))


def chosen(settings: Settings, **named: str) -> tuple[str, str]:
    choice = explain_choice(settings, **named)
    assert choice.why
    return choice.provider, choice.model


def test_without_any_key_the_model_inside_answers(settings: Settings) -> None:
    """A newcomer gets an answer without any setup."""
    provider, name = create_provider(settings)

    assert provider.name == "embedded"
    assert provider.profile(name).small
    assert "no provider key" in explain_choice(settings).why


def test_the_first_key_in_a_fixed_order_decides(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same keys always mean the same provider; `why` names the variable."""
    monkeypatch.setenv("GROQ_API_KEY", "g")
    assert chosen(settings) == ("groq", PRESETS["groq"].default_model)

    monkeypatch.setenv("OPENAI_API_KEY", "o")

    assert chosen(settings) == ("openai", PRESETS["openai"].default_model)
    assert "OPENAI_API_KEY" in explain_choice(settings).why


def test_keys_are_also_found_in_the_env_file_and_empty_ones_are_none(
    settings: Settings, home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home's `.env` counts like the environment, with lower priority."""
    monkeypatch.setenv("OPENAI_API_KEY", "")
    (home_folder / ".env").write_text("XAI_API_KEY=x-key\n")

    assert chosen(settings)[0] == "xai"


@pytest.mark.parametrize("variable", ["GITHUB_TOKEN", "HF_TOKEN"])
def test_a_token_that_serves_other_programs_chooses_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A token for git does not select that service's models."""
    monkeypatch.setenv(variable, "t")

    assert chosen(settings)[0] == "embedded"


@pytest.mark.parametrize(
    ("configured", "named", "expected"),
    [
        ({}, {"model": "groq/llama-9"}, ("groq", "llama-9")),
        ({}, {"model": "openrouter/anthropic/claude-x"}, ("openrouter", "anthropic/claude-x")),
        ({}, {"provider": "openrouter", "model": "anthropic/claude-x"}, ("openrouter", "anthropic/claude-x")),
        ({}, {"provider": "openrouter", "model": "openrouter/auto"}, ("openrouter", "openrouter/auto")),
        ({}, {"provider": "openai", "model": "openai/gpt-5"}, ("openai", "gpt-5")),
        ({}, {"provider": "google", "model": "gemini-x"}, ("gemini", "gemini-x")),
        ({}, {"provider": "GROQ", "model": "m"}, ("groq", "m")),
        ({}, {"provider": "auto", "model": "groq/m"}, ("groq", "m")),
        ({}, {"model": "claude-x"}, ("anthropic", "claude-x")),
        ({}, {"model": "gpt-5.6"}, ("openai", "gpt-5.6")),
        ({}, {"model": "smollm2-135m"}, ("embedded", "smollm2-135m")),
        ({}, {"model": "anthropic"}, ("anthropic", "claude-sonnet-5-5")),
        ({"provider": "groq", "default": "m"}, {}, ("groq", "m")),
        ({"default": "groq/m"}, {}, ("groq", "m")),
        ({"provider": "auto", "default": "groq/m"}, {}, ("groq", "m")),
        ({"provider": "groq", "default": "m"}, {"model": "n"}, ("groq", "n")),
        ({"provider": "groq", "default": "m"}, {"provider": "groq"}, ("groq", "m")),
        ({"provider": "groq", "default": "m"}, {"provider": "xai"}, ("xai", "grok-4.7")),
        ({"provider": "anthropic", "default": "m"}, {"model": "groq/n"}, ("groq", "n")),
        ({"provider": "openrouter", "default": "m"}, {"model": "openai/gpt-5"}, ("openrouter", "openai/gpt-5")),
        ({"provider": "openrouter", "default": "m"}, {"model": "nvidia/x"}, ("openrouter", "nvidia/x")),
        ({"provider": "openrouter", "default": "m"}, {"model": "groq/n"}, ("groq", "n")),
        ({"provider": "openrouter", "default": "m"}, {"model": "ollama/qwen3"}, ("ollama", "qwen3")),
        ({"provider": "openrouter", "default": "qwen/qwen3"}, {}, ("openrouter", "qwen/qwen3")),
        ({"provider": "vllm"}, {"model": "openai/gpt-oss-20b"}, ("vllm", "openai/gpt-oss-20b")),
        ({"provider": "groq"}, {}, ("groq", "openai/gpt-oss-120b")),
        ({"base_url": "http://127.0.0.1:9/v1", "default": "qwen"}, {}, ("openai", "qwen")),
        ({"base_url": "http://127.0.0.1:9/v1", "default": "Qwen/Qwen3"}, {}, ("openai", "Qwen/Qwen3")),
        ({"base_url": "http://127.0.0.1:9/v1", "default": "mistral"}, {}, ("openai", "mistral")),
        ({}, {"model": "embedded"}, ("embedded", "qwen2.5-coder-0.5b")),
        ({}, {"model": "ollama"}, ("ollama", "")),
    ],
)
def test_what_names_mean(
    settings: Settings, configured: dict[str, Any], named: dict[str, str], expected: tuple[str, str]
) -> None:
    """Arguments win over the config; a part before a slash counts only if it names a provider."""
    assert chosen(model(settings, **configured), **named) == expected


def test_a_model_without_provider_goes_to_its_maker_if_there_is_a_key_for_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of keys does not matter for a name that tells its vendor."""
    monkeypatch.setenv("OPENAI_API_KEY", "o")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "d")

    assert chosen(settings, model="deepseek-x") == ("deepseek", "deepseek-x")
    assert chosen(settings, model="something") == ("openai", "something")


def test_a_maker_without_key_is_reached_through_the_gateway_that_has_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`anthropic/claude-x` is also the name of that model at OpenRouter."""
    monkeypatch.setenv("OPENROUTER_API_KEY", "r")

    choice = explain_choice(settings, model="anthropic/claude-x")

    assert (choice.provider, choice.model) == ("openrouter", "anthropic/claude-x")
    assert "ANTHROPIC_API_KEY is not set" in choice.why


def test_the_gateway_s_key_goes_to_no_address_of_somebody_else(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address given for a model does not apply to the gateway."""
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")

    assert chosen(settings, model="deepseek/m", base_url="http://127.0.0.1:9/v1") == ("deepseek", "m")


def test_an_address_in_the_environment_is_enough(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local server needs no key, so its address alone selects it."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")

    assert chosen(settings, model="llama3") == ("openai", "llama3")
    assert chosen(settings)[0] == "openai"


def test_blanks_are_no_key_and_no_part_of_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pasted line end does no harm, and a blank value counts as unset."""
    monkeypatch.setenv("GROQ_API_KEY", " \n")
    assert chosen(settings)[0] == "embedded"

    monkeypatch.setenv("GROQ_API_KEY", "k\n")
    places = ConfiguredModels(settings)
    assert places.key(places.find("groq")) == ("GROQ_API_KEY", "k")


def test_an_unknown_provider_is_told_with_the_nearest(settings: Settings) -> None:
    """A typo does not silently select another provider."""
    with pytest.raises(UnknownName, match="unknown provider 'opnai'; did you mean 'openai'"):
        create_provider(settings, provider="opnai")


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.needs_key])
def test_a_missing_key_is_told_with_the_variable_the_place_and_the_command(settings: Settings, name: str) -> None:
    """One sentence says which variable, where to get it and what to run."""
    with pytest.raises(ModelError) as caught:
        create_provider(settings, provider=name)

    variable = PRESETS[name].key_variables[0]
    assert caught.value.kind == "key"
    assert variable in str(caught.value)
    assert OPTIONAL_ENV_VARS[variable]["url"] in str(caught.value)
    assert "`toolcrib setup`" in str(caught.value)


@pytest.mark.parametrize("name", ["ollama", "vllm", "lmstudio"])
def test_a_local_server_needs_a_model_and_no_key(settings: Settings, name: str) -> None:
    """Only the user knows which model is loaded there."""
    with pytest.raises(ModelError, match=f"toolcrib model use {name}/NAME"):
        create_provider(settings, provider=name)

    provider, found = create_provider(settings, model=f"{name}/qwen3")
    assert (provider.name, provider.base_url, found) == (name, PRESETS[name].base_url, "qwen3")


def test_the_address_of_openai_can_be_set_in_the_environment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPENAI_BASE_URL applies only to openai; a given address has priority; no key is needed then."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")

    assert create_provider(settings, provider="openai")[0].base_url == "http://127.0.0.1:9/v1"
    assert explain_choice(settings, provider="groq").base_url == PRESETS["groq"].base_url
    assert explain_choice(settings, provider="openai", base_url="http://b/v1").base_url == "http://b/v1"


def test_the_address_in_the_config_belongs_to_the_provider_in_the_config(settings: Settings) -> None:
    """Another provider named for one request does not use that address."""
    configured = model(settings, provider="groq", base_url="http://127.0.0.1:9/v1")

    assert explain_choice(configured).base_url == "http://127.0.0.1:9/v1"
    assert explain_choice(configured, provider="groq").base_url == "http://127.0.0.1:9/v1"
    assert explain_choice(configured, provider="xai").base_url == PRESETS["xai"].base_url


async def test_a_server_of_one_s_own(settings: Settings, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of `providers` has an address, a key variable, a dialect, a model and a window."""
    server = serve("Hi.")
    monkeypatch.setenv("MINE_KEY", "secret-key")
    entry = ProviderEntry(
        base_url=server.base_url, key_env="MINE_KEY", dialect="llama_cpp", model="qwen", context_window=5000
    )
    configured = replace(settings, providers={"mine": entry})

    provider, name = create_provider(configured, provider="mine")
    await provider.complete(ModelRequest(model=name, messages=[user_message("Hi")]), lambda _: None)
    await provider.close()

    assert (provider.name, provider.dialect, name) == ("mine", "llama_cpp", "qwen")
    assert provider.profile(name).context_window == 5000
    [seen] = server.requests
    assert seen.headers["authorization"] == "Bearer secret-key"
    assert seen.body["model"] == "qwen"
    assert chosen(configured, model="mine/other/model") == ("mine", "other/model")


def test_a_server_of_one_s_own_with_anthropic_s_protocol(settings: Settings) -> None:
    """The protocol of an entry decides how it is called."""
    entry = ProviderEntry(base_url="http://127.0.0.1:9", protocol="anthropic", model="m")

    provider, _ = create_provider(replace(settings, providers={"mine": entry}), provider="mine")

    assert (provider.api_mode, provider.dialect) == ("anthropic_messages", "anthropic")


def test_an_entry_without_an_address_says_so(settings: Settings) -> None:
    """A missing field is named with its key in the config."""
    with pytest.raises(ModelError, match=r"providers\.mine\.base_url"):
        create_provider(replace(settings, providers={"mine": ProviderEntry(model="m")}), provider="mine")


def test_a_known_provider_can_be_changed_in_the_config(settings: Settings) -> None:
    """An entry with the name of a known provider changes its address and its model."""
    entry = ProviderEntry(base_url="http://127.0.0.1:9/v1", model="small")

    choice = explain_choice(replace(settings, providers={"ollama": entry}), provider="ollama")

    assert (choice.base_url, choice.model) == ("http://127.0.0.1:9/v1", "small")


async def test_failures_are_tried_again_and_fallbacks_follow(
    settings: Settings, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing server is retried as often as configured, then the next model answers."""
    failing, working = serve(otherwise=ErrorResponse(500, "oops", retry_after=0)), serve("From the other.")
    entries = {
        "first": ProviderEntry(base_url=failing.base_url, model="a"),
        "second": ProviderEntry(base_url=working.base_url, model="b"),
    }
    configured = replace(
        model(settings, provider="first", fallbacks=["mistral/x", "second/c"], max_retries=1), providers=entries
    )
    notices: list[Delta] = []

    provider, name = create_provider(configured, render=lambda tools, dialect: render(tools, dialect).tools)
    response = await provider.complete(ModelRequest(model=name, messages=[user_message("Hi")]), notices.append)
    await provider.close()

    assert response.message.text == "From the other."
    assert (response.provider, len(failing.requests)) == ("second", 2)
    assert working.requests[0].body["model"] == "c"
    assert [notice.kind for notice in notices if isinstance(notice, Notice)] == ["retry", "fallback"]


async def test_a_refused_tool_is_left_out(settings: Settings, serve: Serve) -> None:
    """One bad tool does not cost the request."""
    server = serve(ErrorResponse(400, "Invalid schema for function 'bad': oops"), "Done.")
    configured = replace(settings, providers={"mine": ProviderEntry(base_url=server.base_url, model="m")})
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("bad", "good")]

    provider, name = create_provider(configured, provider="mine")
    request = ModelRequest(model=name, messages=[user_message("Hi")], tools=tools)
    response = await provider.complete(request, lambda _: None)
    await provider.close()

    assert response.message.text == "Done."
    assert [tool["function"]["name"] for tool in server.requests[-1].body["tools"]] == ["good"]


@pytest.mark.parametrize(
    ("said", "expected"), [(None, (700 * 2 + 300 * 0.5 + 100 * 8) / 1_000_000), (0.25, 0.25)]
)  # fmt: skip
async def test_prices_of_the_config_count_where_the_provider_says_none(
    settings: Settings, serve: Serve, said: float | None, expected: float
) -> None:
    """A cost that the provider reports is never overridden."""
    usage = Usage(input_tokens=1000, cached_tokens=300, output_tokens=100, cost_usd=said)
    server = serve(says("Hi.", usage=usage))
    configured = replace(
        model(settings, prices={"m": Prices(input=2, cached=0.5, output=8)}),
        providers={"mine": ProviderEntry(base_url=server.base_url, model="m")},
    )

    provider, name = create_provider(configured, provider="mine")
    response = await provider.complete(ModelRequest(model=name, messages=[user_message("Hi")]), lambda _: None)
    await provider.close()

    assert response.usage.cost_usd == pytest.approx(expected)


def test_cached_tokens_without_a_price_cost_what_others_cost() -> None:
    """A missing price does not mean free."""
    usage = Usage(input_tokens=1_000_000, cached_tokens=1_000_000)

    assert with_cost(usage, Prices(input=3)).cost_usd == 3


def test_the_auxiliary_model_is_the_main_one_unless_the_config_names_another(settings: Settings) -> None:
    """Small jobs can go to a smaller model, of any provider."""
    main = create_provider(settings)
    named = replace(settings, auxiliary=AuxiliarySettings(model="ollama/small"))

    assert create_auxiliary(settings, main) is main
    provider, name = create_auxiliary(named, main)
    assert (provider.name, name) == ("ollama", "small")


def test_the_window_of_the_config_wins(settings: Settings) -> None:
    """The profile of a model can be corrected."""
    provider, name = create_provider(model(settings, context_window=9000), model="ollama/gpt-oss:20b")

    assert provider.profile(name).context_window == 9000


@pytest.mark.parametrize(
    ("name", "window", "sees_images"),
    [
        ("claude-sonnet-5-5", 1_000_000, True),
        ("anthropic/claude-sonnet-5.5", 1_000_000, True),
        ("claude-haiku-4-5", 200_000, True),
        ("gpt-5.6", 1_050_000, True),
        ("gpt-5.4-mini", 400_000, True),
        ("gpt-5", 400_000, True),
        ("openai/gpt-oss-120b", 131_072, False),
        ("o4-mini", 200_000, True),
        ("gemini-3.8-flash", 1_048_576, True),
        ("deepseek-ai/DeepSeek-V4-Pro", 1_048_576, False),
        ("accounts/fireworks/models/glm-5p3", 1_000_000, False),
        ("nobody/knows-this", 128_000, True),
    ],
)
def test_what_is_known_of_models_by_name(name: str, window: int, sees_images: bool) -> None:
    """The vendor before the name and the case of letters do not matter."""
    profile = known_profile(name)

    assert (profile.context_window, profile.sees_images) == (window, sees_images)


def test_every_preset_is_complete() -> None:
    """A service has an address and a described key; aliases lead to known names."""
    for preset in PRESETS.values():
        if preset.protocol in ("openai", "anthropic"):
            assert preset.base_url.startswith(("https://", "http://127.0.0.1"))
        assert not preset.needs_key or preset.default_model
        assert all(variable in OPTIONAL_ENV_VARS for variable in preset.key_variables)
    assert set(ALIASES.values()) <= set(PRESETS)
    assert not set(ALIASES) & set(PRESETS)


async def test_a_script_plays_its_steps(settings: Settings, tmp_path: Path) -> None:
    """The command line can be tested with a file of steps, named in the config."""
    script = tmp_path / "script.json"
    steps = [
        {"call": "terminal", "arguments": {"command": "ls"}},
        {"say": "Both.", "calls": [{"call": "a"}, {"call": "b", "id": "x"}], "reasoning": "hm"},
        {"fail": "no more", "kind": "quota"},
        {"delay_seconds": 0.01},
        {"say": "Done.", "delay_seconds": 0.01, "usage": {"input_tokens": 5}},
    ]
    script.write_text(json.dumps(steps))
    configured = replace(settings, providers={"scripted": ProviderEntry(base_url=str(script))})
    provider, name = create_provider(configured, provider="scripted")
    request = ModelRequest(model=name, messages=[user_message("Hi")])

    first = await provider.complete(request, lambda _: None)
    second = await provider.complete(request, lambda _: None)
    with pytest.raises(ModelError, match="no more") as caught:
        await provider.complete(request, lambda _: None)
    last = await provider.complete(request, lambda _: None)

    assert [(call.name, call.arguments) for call in first.message.tool_calls] == [("terminal", '{"command": "ls"}')]
    assert [(call.name, call.arguments) for call in second.message.tool_calls] == [("a", "{}"), ("b", "{}")]
    assert caught.value.kind == "quota"
    assert (last.message.text, last.usage.input_tokens) == ("Done.", 5)


@pytest.mark.parametrize(
    "text", ["{", '{"say": "x"}', '[{"sey": "x"}]', '[{"fail": "x", "kind": "nonsense"}]', '[{"say": 1}]']
)
def test_a_bad_script_is_told(tmp_path: Path, text: str) -> None:
    """An invalid script is reported with its name."""
    script = tmp_path / "bad.json"
    script.write_text(text)

    with pytest.raises(ConfigError, match=r"bad\.json"):
        read_script(script)


def test_a_script_that_is_missing_is_told(settings: Settings, tmp_path: Path) -> None:
    """A missing file and a missing setting both say what to do."""
    with pytest.raises(ConfigError, match="cannot read the script"):
        read_script(tmp_path / "none.json")
    with pytest.raises(ModelError, match=r"providers\.scripted\.base_url"):
        create_provider(settings, provider="scripted")


def test_choosing_imports_no_sdk() -> None:
    """`toolcrib model get` is quick: no SDK is loaded before the first request."""
    program = (
        "import sys; from toolcrib.config.settings import Settings; from toolcrib.providers.create import *;"
        "explain_choice(Settings(), model='groq/x'); create_provider(Settings(), model='ollama/x');"
        "print([name for name in ('openai', 'anthropic', 'xllamacpp', 'httpx2') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def test_an_auxiliary_model_that_names_its_provider_is_there(tmp_path: Path) -> None:
    """`provider/model` names both, even next to a main model on a custom server."""
    home = Home(tmp_path)
    home.config_file.write_text(
        "model: {provider: mine}\nproviders: {mine: {base_url: 'http://127.0.0.1:1/v1', model: m}}\n"
        "auxiliary: anthropic/claude-haiku-5-5\n"
    )
    home.env_file.write_text("ANTHROPIC_API_KEY=x\n")
    settings = load_settings(home)

    provider, model = create_auxiliary(settings, create_provider(settings))

    assert (provider.name, model) == ("anthropic", "claude-haiku-5-5")


def test_the_address_of_anthropic_can_be_set_in_the_environment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable that Anthropic's own SDK reads counts here too, only for that provider."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")

    assert create_provider(settings)[0].base_url == "http://127.0.0.1:9"
    assert explain_choice(settings, provider="openai").base_url == PRESETS["openai"].base_url
