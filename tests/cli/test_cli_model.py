"""`toolcrib model list|get|use|test`: what is here, why this model answers, and whether it does."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.cli_program import Program
from toolcrib.cli.models import embedded_lines
from toolcrib.core.models import Usage
from toolcrib.providers.scripted import calls, says
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer

KEY = "sk-0123456789abcdef"
CONFIG = "# my own words\nmodel:  # who answers\n  default: old-model\n  provider: openai\nlogging: {level: debug}\n"
THERMOMETER = calls("read_thermometer", {"city": "Oslo"})


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer() as running:
        yield running


def own_server(program: Program, server: ScriptedModelServer, more: str = "") -> None:
    program.write(
        "config.yaml",
        f"model: {{provider: mine, default: scripted}}\nproviders:\n  mine: {{base_url: '{server.base_url}'{more}}}\n",
    )


def listed(program: Program, *options: str, **environ: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(program("model", "list", "--json", *options, **environ).stdout)}


def test_the_list_says_what_each_provider_lacks(toolcrib: Program):
    """A key that is set, one that is missing with where to get it, and none needed are told apart."""
    rows = listed(toolcrib, ANTHROPIC_API_KEY=KEY)
    table = toolcrib("model", "list", ANTHROPIC_API_KEY=KEY)

    assert (rows["anthropic"]["key_set"], rows["anthropic"]["ready"], rows["anthropic"]["chosen"]) == (True, True, True)
    assert (rows["openai"]["key_set"], rows["openai"]["ready"]) == (False, False)
    assert rows["openai"]["key_url"] == "https://platform.openai.com/api-keys"
    assert (rows["embedded"]["key_variable"], rows["embedded"]["ready"]) == ("", True)
    assert "anthropic *" in table.stdout
    assert KEY not in table.stdout


def test_every_provider_that_needs_a_key_says_where_to_get_it(toolcrib: Program):
    """Nobody is left with the name of a variable alone."""
    assert [row["name"] for row in listed(toolcrib).values() if row["key_variable"] and not row["key_url"]] == []


def test_servers_on_this_machine_are_only_asked_with_probe(toolcrib: Program, server: ScriptedModelServer):
    """Without --probe nothing is known of them; with it one that answers is told from one that does not."""
    own_server(toolcrib, server)
    toolcrib.write(
        "config.yaml", (toolcrib.home / "config.yaml").read_text() + "  gone: {base_url: 'http://127.0.0.1:9/v1'}\n"
    )

    quiet, probed = listed(toolcrib), listed(toolcrib, "--probe")

    assert quiet["mine"]["answers"] is None
    assert (probed["mine"]["answers"], probed["gone"]["answers"], probed["openai"]["answers"]) == (True, False, None)


def test_a_providers_own_models_are_listed(toolcrib: Program, server: ScriptedModelServer):
    """With --provider the list comes from the server itself."""
    own_server(toolcrib, server)

    assert listed(toolcrib, "--provider", "mine") == {"scripted": {"name": "scripted", "provider": "mine"}}


def test_a_server_that_is_not_there_is_one_sentence(toolcrib: Program):
    """The list of a server that does not answer fails with what to do."""
    toolcrib.write("config.yaml", "providers: {gone: {base_url: 'http://127.0.0.1:9/v1'}}\n")

    outcome = toolcrib("model", "list", "--provider", "gone")

    assert outcome.code == 1
    assert outcome.stderr.startswith("toolcrib: nothing responds at http://127.0.0.1:9/v1")
    assert len(outcome.stderr.splitlines()) == 1


def test_embedded_models_say_their_size_and_whether_they_are_here(toolcrib: Program):
    """What would be downloaded is known before it is."""
    rows = listed(toolcrib, "--provider", "embedded")

    assert rows["qwen2.5-coder-0.5b"]["cached"] is False
    assert rows["qwen2.5-coder-0.5b"]["bytes"] == 491_400_064


@pytest.mark.parametrize(
    ("config", "environ", "provider", "model", "why"),
    [
        ("", {}, "embedded", "qwen2.5-coder-0.5b", "no provider key"),
        ("", {"OPENAI_API_KEY": KEY}, "openai", "gpt-5.6", "OPENAI_API_KEY is set"),
        ("model: {provider: ollama, default: 'qwen3:8b'}\n", {}, "ollama", "qwen3:8b", "`model.provider`"),
        ("model: anthropic/claude-opus-5\n", {}, "anthropic", "claude-opus-5", "`model.default`"),
    ],
)
def test_get_says_which_model_answers_and_why(
    toolcrib: Program, config: str, environ: dict[str, str], provider: str, model: str, why: str
):
    """Config, key or neither: the reason is part of the answer, in text and in JSON."""
    toolcrib.write("config.yaml", config)

    about = json.loads(toolcrib("model", "get", "--json", **environ).stdout)

    assert (about["provider"], about["model"]) == (provider, model)
    assert why in about["why"]
    assert why in toolcrib("model", "get", **environ).stdout


def test_get_shows_the_others_and_the_window(toolcrib: Program):
    """Auxiliary model, fallbacks and context window belong to the answer; a missing key has a remedy."""
    toolcrib.write(
        "config.yaml",
        "model: {provider: anthropic, default: claude-opus-5, fallbacks: [groq/openai/gpt-oss-120b]}\n"
        "auxiliary: {provider: openai, model: gpt-5.6-mini}\n",
    )

    about = json.loads(toolcrib("model", "get", "--json").stdout)

    assert about["auxiliary"] == {"provider": "openai", "model": "gpt-5.6-mini"}
    assert about["fallbacks"] == [{"provider": "groq", "model": "openai/gpt-oss-120b"}]
    assert about["context_window"] == 1_000_000
    assert "ANTHROPIC_API_KEY is not set" in about["problem"]
    assert "`toolcrib setup`" in about["remedy"]


def test_use_writes_provider_and_model_and_keeps_comments(toolcrib: Program):
    """Only the two settings change; a missing key is a warning, not an error."""
    path = toolcrib.write("config.yaml", CONFIG)

    outcome = toolcrib("model", "use", "anthropic/claude-opus-5")

    assert outcome.code == 0
    assert path.read_text() == CONFIG.replace("old-model", "claude-opus-5").replace("openai", "anthropic")
    assert "Warning: Anthropic needs a key, and ANTHROPIC_API_KEY is not set" in outcome.stderr


def test_use_takes_a_model_with_a_slash_from_the_provider_that_is_named(toolcrib: Program):
    """With --provider the whole name is the model's."""
    toolcrib("model", "use", "anthropic/claude-opus-5", "--provider", "openrouter", OPENROUTER_API_KEY=KEY)

    about = json.loads(toolcrib("model", "get", "--json", OPENROUTER_API_KEY=KEY).stdout)

    assert (about["provider"], about["model"]) == ("openrouter", "anthropic/claude-opus-5")


def test_use_forgets_the_address_of_what_answered_before(toolcrib: Program):
    """A request for another provider must not go to the server of the last one."""
    toolcrib.write("config.yaml", "model: {provider: openai, default: a, base_url: 'http://127.0.0.1:9/v1'}\n")

    toolcrib("model", "use", "groq")

    about = json.loads(toolcrib("model", "get", "--json").stdout)
    assert (about["provider"], about["base_url"]) == ("groq", "https://api.groq.com/openai/v1")


def test_use_does_not_write_down_an_address_of_the_environment(toolcrib: Program):
    """OPENAI_BASE_URL holds for as long as it is set, and is no part of the choice."""
    toolcrib("model", "use", "openai/gpt-5.6", OPENAI_BASE_URL="http://127.0.0.1:9/v1")

    assert json.loads(toolcrib("model", "get", "--json").stdout)["base_url"] == "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["opnai/gpt-5"], "did you mean 'openai'"),
        (["gpt-5", "--provider", "antropic"], "did you mean 'anthropic'"),
        (["ollama"], "`toolcrib model list --provider ollama`"),
        (["nobody-knows-it"], "Name it"),
        (["embedded/qwen2.5-coder-0.6b"], "did you mean 'qwen2.5-coder-0.5b'"),
    ],
)
def test_use_refuses_what_nobody_can_mean(toolcrib: Program, words: list[str], said: str):
    """A name that nothing answers to changes nothing, and the nearest ones are named."""
    outcome = toolcrib("model", "use", *words)

    assert outcome.code == 2
    assert said in outcome.stderr
    assert not (toolcrib.home / "config.yaml").exists()


def test_use_finds_the_maker_of_a_model_that_is_named_alone(toolcrib: Program):
    """A model of another maker is not looked for at the configured provider."""
    toolcrib.write("config.yaml", "model: {provider: anthropic, default: claude-opus-5}\n")

    toolcrib("model", "use", "gpt-5.6")

    assert json.loads(toolcrib("model", "get", "--json").stdout)["provider"] == "openai"


def test_test_sends_two_requests_and_says_what_came_back(toolcrib: Program, server: ScriptedModelServer):
    """Tokens, times and whether tool calls work, from the real SDK against a real server; nothing is sent twice."""
    server.add(says("ready", usage=Usage(input_tokens=11, output_tokens=2)), THERMOMETER)
    own_server(toolcrib, server)

    outcome = toolcrib("model", "test", "--json")

    about = json.loads(outcome.stdout)
    assert (outcome.code, about["ok"], about["tool_call"]["works"]) == (0, True, True)
    assert (about["answer"]["input_tokens"], about["answer"]["output_tokens"]) == (11, 2)
    assert 0 <= about["answer"]["first_token_seconds"] <= about["answer"]["seconds"]
    assert [len(request.body.get("tools", [])) for request in server.requests] == [0, 1]


def test_test_fails_for_a_model_that_calls_no_tool(toolcrib: Program, server: ScriptedModelServer):
    """An agent needs tool calls: a model without them is reported, with exit code 1."""
    server.add("ready", "It is cold there.")
    own_server(toolcrib, server)

    outcome = toolcrib("model", "test")

    assert outcome.code == 1
    assert "tool calls    do not work" in outcome.stdout
    assert "replied 'It is cold there.' instead" in outcome.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_test_fails_with_the_sentence_of_the_provider(toolcrib: Program, server: ScriptedModelServer, as_json: bool):
    """A refused key is one sentence and exit code 1; the request is not repeated."""
    server.add(ErrorResponse(401, "bad key"))
    own_server(toolcrib, server, ", key_env: MINE_KEY")

    outcome = toolcrib("model", "test", *["--json"] * as_json, MINE_KEY=KEY)

    said = json.loads(outcome.stdout)["error"] if as_json else outcome.stderr.splitlines()[-1]
    assert outcome.code == 1
    assert "rejects the key in MINE_KEY" in said
    assert len(server.requests) == 1
    assert KEY not in outcome.stdout + outcome.stderr


def test_test_without_a_key_asks_nobody(toolcrib: Program):
    """What is known to be missing is said at once."""
    outcome = toolcrib("model", "test", "openai/gpt-5.6")

    assert outcome.code == 1
    assert "OPENAI_API_KEY is not set" in outcome.stderr


def test_a_provider_that_is_misspelt_is_no_model(toolcrib: Program):
    """A word that is all but the name of a provider is refused with that name, and nothing is written."""
    done = toolcrib("model", "use", "antropic", ANTHROPIC_API_KEY="x")

    assert done.code == 2
    assert "did you mean 'anthropic'" in done.stderr
    assert not (toolcrib.home / "config.yaml").exists()


def test_the_larger_embedded_model_is_recommended_where_memory_allows() -> None:
    """The wizard says whether it fits; the default needs no such word."""
    roomy, tight = embedded_lines(8_000_000_000), embedded_lines(1_000_000_000)

    assert "enough memory" in next(line for line in roomy if "1.5b" in line)
    assert "1,000 MB are free here" in next(line for line in tight if "1.5b" in line)
    assert not any("memory" in line for line in roomy if "0.5b (" in line)
