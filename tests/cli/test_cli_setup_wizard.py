"""`toolcrib setup` as a whole: six steps with a person at a terminal, and the same from flags."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.cli_program import KEYED_TOOL, Program
from toolcrib.config.env_file import read_env_file
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer, Stream

# Every test is a conversation with a program at a terminal.
pytestmark = pytest.mark.services

KEY = "mine-0123456789abcdef"
SKIPPED = {
    "model": (("Provider (", ""),),
    "search": (("Search (", ""),),
    "toolsets": (("Toolsets (", ""),),
    "approvals": (("Approvals (", ""),),
    "backend": (("Backend (", ""),),
}
SKIPPED_ALL = tuple(answer for answers in SKIPPED.values() for answer in answers)


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer() as running:
        yield running


def with_server(program: Program, server: ScriptedModelServer) -> None:
    """A config with a server that wants a key."""
    program.write("config.yaml", f"providers:\n  mine: {{base_url: '{server.base_url}', key_env: MINE_KEY}}\n")


def in_force(program: Program, key: str) -> Any:
    return json.loads(program("config", "show", "--json").stdout)[key]


def sent_keys(server: ScriptedModelServer) -> list[str]:
    return [request.headers["authorization"] for request in server.requests]


def test_enter_at_every_step_changes_nothing(toolcrib: Program):
    """Whoever only presses Enter leaves everything as it was, and no file is made."""
    seen = toolcrib.on_terminal("setup", answers=SKIPPED_ALL)

    assert seen.code == 0
    assert "Done; nothing was changed." in seen.stdout
    assert not (toolcrib.home / "config.yaml").exists()
    assert not (toolcrib.home / ".env").exists()


def test_a_provider_is_set_up_with_its_key_and_tried(toolcrib: Program, server: ScriptedModelServer):
    """The key is typed unseen and kept for its owner, the model is offered, and one real request uses both."""
    server.add("ready")
    with_server(toolcrib, server)
    answers = (("Provider (", "mine"), ("Address [", ""), ("you type):", KEY), ("Model [scripted]", ""))

    seen = toolcrib.on_terminal("setup", answers=(*answers, *SKIPPED_ALL[1:]))

    assert seen.code == 0
    assert KEY not in seen.stdout
    assert "scripted (provider: mine) answered in" in seen.stdout
    assert sent_keys(server) == [f"Bearer {KEY}"]
    assert read_env_file(toolcrib.home / ".env") == {"MINE_KEY": KEY}
    assert stat.S_IMODE((toolcrib.home / ".env").stat().st_mode) == 0o600
    assert (in_force(toolcrib, "model")["provider"], in_force(toolcrib, "model")["default"]) == ("mine", "scripted")


def test_what_can_be_used_at_once_is_offered_first(toolcrib: Program, server: ScriptedModelServer):
    """Providers whose key is set and servers that answer stand before those that lack something."""
    toolcrib.write("config.yaml", f"providers:\n  mine: {{base_url: '{server.base_url}'}}\n")

    seen = toolcrib.on_terminal("setup", answers=SKIPPED_ALL, GROQ_API_KEY=KEY)

    offered = [line.split()[1] for line in seen.stdout.splitlines() if line.startswith("  ") and ", " in line]
    assert offered[:3] == ["mine", "groq", "embedded"]
    assert "mine, running" in seen.stdout
    assert "Groq, the key is set" in seen.stdout


def test_a_key_of_the_environment_counts_before_the_file(toolcrib: Program, server: ScriptedModelServer):
    """Whoever enters another key than the one in the environment is told which one is used."""
    server.add("ready")
    with_server(toolcrib, server)
    answers = (("Provider (", "mine"), ("Address [", ""), ("[set in the environment]", KEY), ("Model [", ""))

    seen = toolcrib.on_terminal("setup", answers=(*answers, *SKIPPED_ALL[1:]), MINE_KEY="other-0123456789")

    assert "MINE_KEY is also set in the environment, which overrides the file." in seen.stdout
    assert sent_keys(server) == ["Bearer other-0123456789"]


def test_a_failed_trial_can_be_tried_again(toolcrib: Program, server: ScriptedModelServer):
    """After a refused key the sentence is shown, and another key can be entered."""
    server.add(ErrorResponse(401, "bad key"), "ready")
    with_server(toolcrib, server)
    first = (("Provider (", "mine"), ("Address [", ""), ("you type):", "wrong-0123456789"), ("Model [", ""))
    second = (("What now?", "again"), ("Address [", ""), ("you type):", KEY), ("Model [", ""))

    seen = toolcrib.on_terminal("setup", answers=(*first, *second, *SKIPPED_ALL[1:]))

    assert "The test failed: mine rejects the key in MINE_KEY" in " ".join(seen.stdout.split())
    assert sent_keys(server) == ["Bearer wrong-0123456789", f"Bearer {KEY}"]
    assert read_env_file(toolcrib.home / ".env") == {"MINE_KEY": KEY}


def test_what_does_not_work_can_be_kept_anyway(toolcrib: Program, server: ScriptedModelServer):
    """Enter after a failed trial keeps what was entered, and the next step follows."""
    server.add(ErrorResponse(401, "bad key"))
    with_server(toolcrib, server)
    answers = (("Provider (", "mine"), ("Address [", ""), ("you type):", KEY), ("Model [", ""), ("What now?", ""))

    seen = toolcrib.on_terminal("setup", answers=(*answers, *SKIPPED_ALL[1:]))

    assert seen.code == 0
    assert in_force(toolcrib, "model")["provider"] == "mine"


def test_a_server_of_ones_own_gets_a_name_and_a_key_of_its_own(toolcrib: Program, server: ScriptedModelServer):
    """A server that toolcrib does not know never hears the key of OpenAI."""
    server.add("ready")
    answers = (
        ("Provider (", "other"), ("Address,", "127.0.0.1"), ("Address,", server.base_url), ("A name", "openai"),
        ("A name", "lab"), ("Its key", ""), ("Model [scripted]", ""),
    )  # fmt: skip

    seen = toolcrib.on_terminal("setup", answers=(*answers, *SKIPPED_ALL[1:]), OPENAI_API_KEY="sk-of-openai-0123")

    assert seen.code == 0
    assert "sk-of-openai" not in str(server.requests)
    assert in_force(toolcrib, "providers")["lab"]["base_url"] == server.base_url
    assert in_force(toolcrib, "model")["provider"] == "lab"


def test_the_other_steps_write_what_was_chosen(toolcrib: Program):
    """Keys of tools, toolsets, approvals and backend are asked for, checked and saved; a typo is asked about again."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)
    answers = (
        ("Provider (", ""), ("Variables to enter", "1"), ("you type):", KEY), ("Search (", "free"),
        ("Toolsets (", "wbe"), ("did you mean 'web'", "web,file"), ("Approvals (", "smrt"),
        ("did you mean 'smart'", "smart"), ("Backend (", "ssh"), ("anyway?", "n"), ("Backend (", "local"),
    )  # fmt: skip

    seen = toolcrib.on_terminal("setup", answers=answers)

    assert seen.code == 0
    assert "TIDES_API_KEY is not set" in seen.stdout
    assert read_env_file(toolcrib.home / ".env") == {"TIDES_API_KEY": KEY}
    assert in_force(toolcrib, "web")["keyless"] is True
    assert in_force(toolcrib, "toolsets") == ["web", "file"]
    assert in_force(toolcrib, "approvals")["mode"] == "smart"
    assert in_force(toolcrib, "terminal")["backend"] == "local"
    assert "TIDES_API_KEY; web.keyless = true; toolsets = [web, file]; approvals.mode = smart; " in seen.stdout


def test_it_shows_what_is_set_and_can_be_run_again(toolcrib: Program, server: ScriptedModelServer):
    """A second run marks what is set, shows keys masked, and Enter keeps each of them."""
    server.add("ready")
    with_server(toolcrib, server)
    config = toolcrib.home / "config.yaml"
    config.write_text(config.read_text() + "model: {provider: mine, default: own-model}\napprovals: {mode: smart}\n")
    toolcrib.write(".env", f"MINE_KEY={KEY}\n").chmod(0o600)
    before = config.read_text()
    answers = (("Provider (", "mine"), ("Address [", ""), ("[****cdef]", ""), ("Model [", "own-model"))

    seen = toolcrib.on_terminal("setup", answers=(*answers, *SKIPPED_ALL[1:]), columns=80)

    assert "own-model (provider: mine; " in " ".join(seen.stdout.split())
    assert "1 * mine" in seen.stdout
    assert "2 * smart" in seen.stdout
    assert config.read_text() == before
    assert sent_keys(server) == [f"Bearer {KEY}"]


@pytest.mark.parametrize("at", ["at a question", "during the request"])
def test_an_interrupt_says_what_was_saved(toolcrib: Program, server: ScriptedModelServer, at: str):
    """Ctrl-C stops anywhere, with exit code 130; what was answered before is kept and named."""
    server.add(Stream("ready", stall_after=0) if at == "during the request" else "ready")
    with_server(toolcrib, server)
    answers = (("Provider (", "mine"), ("Address [", ""), ("you type):", KEY), ("Model [", ""))
    last = ("Sending a request to scripted", "^C") if at == "during the request" else ("Approvals (", "^C")
    between = () if at == "during the request" else (*SKIPPED["search"], *SKIPPED["toolsets"])

    seen = toolcrib.on_terminal("setup", answers=(*answers, *between, last))

    assert seen.code == 130
    assert "Stopped; saved: MINE_KEY; model = mine/scripted." in seen.stdout
    assert "Traceback" not in seen.stdout
    assert in_force(toolcrib, "model")["provider"] == "mine"


def test_the_embedded_model_is_not_fetched_without_a_yes(toolcrib: Program):
    """Half a gigabyte is only downloaded by somebody who agreed; the choice itself is saved."""
    answers = (("Provider (", "embedded"), ("Model [", ""), ("(491 MB) now", "n"))

    seen = toolcrib.on_terminal("setup", answers=(*answers, *SKIPPED_ALL[1:]))

    assert seen.code == 0
    assert in_force(toolcrib, "model")["provider"] == "embedded"


def test_the_lists_fit_eighty_columns(toolcrib: Program):
    """Nothing that the wizard says by itself is wider than the terminal."""
    seen = toolcrib.on_terminal("setup", answers=SKIPPED_ALL, columns=80, NO_COLOR="1")

    said = [line for line in seen.stdout.splitlines() if not line.startswith("Done;")]
    assert [line for line in said if len(line) > 80] == []
    assert "\x1b[3" not in seen.stdout


def test_flags_set_everything_without_a_question(toolcrib: Program, server: ScriptedModelServer):
    """Every step has a flag; the model is tried, and the page of what was saved is the result."""
    server.add("ready")
    with_server(toolcrib, server)

    done = toolcrib(
        "setup", "--provider", "mine", "--model", "m1", "--key-env", "SOME_KEY", "--toolsets", "web,file",
        "--search", "free", "--approvals", "smart", "--backend", "local", "--set", "TIDES_API_KEY=abc",
        "--set", "B=c d", SOME_KEY=KEY,
    )  # fmt: skip

    assert done.code == 0
    assert read_env_file(toolcrib.home / ".env") == {"MINE_KEY": KEY, "TIDES_API_KEY": "abc", "B": "c d"}
    assert (in_force(toolcrib, "model")["default"], in_force(toolcrib, "toolsets")) == ("m1", ["web", "file"])
    assert in_force(toolcrib, "web")["keyless"] is True
    assert (in_force(toolcrib, "approvals")["mode"], in_force(toolcrib, "terminal")["backend"]) == ("smart", "local")
    assert (server.requests[0].body["model"], sent_keys(server)) == ("m1", [f"Bearer {KEY}"])
    assert KEY not in done.stdout + done.stderr


def test_a_key_from_stdin_and_an_address_are_kept(toolcrib: Program, server: ScriptedModelServer):
    """The key never stands on the command line; an address beside a known provider is written too."""
    server.add("ready")

    done = toolcrib(
        "setup", "--provider", "anthropic", "--base-url", server.origin, "--key-stdin", stdin=f"{KEY}\nmore\n"
    )

    assert done.code == 0
    assert read_env_file(toolcrib.home / ".env") == {"ANTHROPIC_API_KEY": KEY}
    assert in_force(toolcrib, "model")["base_url"] == server.origin
    assert server.requests[0].headers["x-api-key"] == KEY


def test_a_model_that_does_not_answer_is_exit_code_one(toolcrib: Program, server: ScriptedModelServer):
    """All is saved, the sentence says what is wrong; --no-test asks nobody."""
    server.add(ErrorResponse(404, "model 'm1' does not exist"))
    with_server(toolcrib, server)

    failed = toolcrib("setup", "--provider", "mine", "--model", "m1", "--key-stdin", stdin=KEY)
    untested = toolcrib("setup", "--provider", "mine", "--model", "m2", "--no-test")

    assert (failed.code, untested.code, len(server.requests)) == (1, 0, 1)
    assert failed.stderr.splitlines()[-1].startswith("toolcrib: mine does not know the model 'm1'")
    assert in_force(toolcrib, "model")["default"] == "m2"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--provider", "antropic"], "did you mean 'anthropic'"),
        (["--toolsets", "wbe"], "did you mean 'web'"),
        (["--backend", "dokcer"], "did you mean 'docker'"),
        (["--approvals", "never"], "`toolcrib setup --help`"),
        (["--set", "NOVALUE"], "NAME=VALUE"),
        (["--set", "A B=1"], "is not the name of a variable"),
        (["--provider", "openai", "--key-env", "NOT_THERE"], "'NOT_THERE' is empty or not set"),
        (["--provider", "ollama", "--model", "m", "--key-stdin"], "needs no key"),
        (["--provider", "openai", "--key-stdin", "--key-env", "A"], "use either"),
        (["--provider", "ollama"], "has no default model"),
        (["tides", "--yes"], "give either tool names or flags"),
        ([], "--key-env, --key-stdin, --search, --toolsets, --approvals, --backend, --set"),
    ],
)
def test_flags_that_cannot_be_followed_change_nothing(toolcrib: Program, flags: list[str], said: str):
    """All is checked before anything is written; the error is one line with what to type."""
    done = toolcrib("setup", *(["--set", "FINE=1", *flags] if flags else []))

    assert done.code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (toolcrib.home / ".env").exists()
    assert not (toolcrib.home / "config.yaml").exists()


def test_an_empty_value_takes_a_variable_out(toolcrib: Program):
    """--set NAME= removes what was kept."""
    toolcrib("setup", "--set", "A=1", "--set", "B=2")

    toolcrib("setup", "--set", "A=")

    assert read_env_file(toolcrib.home / ".env") == {"B": "2"}
