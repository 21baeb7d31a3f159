"""`toolcrib mcp add` and `remove`: servers typed and pasted, secrets kept apart, nothing else in the config touched."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.cli_program import Program
from toolcrib.cli.mcp_formats import read_pasted, read_servers
from toolcrib.config.mcp_secrets import SecretExtractor, is_secret_name
from toolcrib.config.yaml_text import parse
from toolcrib.core.errors import ToolcribError, UsageError

TIME = {"command": "uvx", "args": ["mcp-server-time"]}
COMMENTED = """# my settings
tools:
  max_parallel: 4  # enough

# the servers
mcp_servers:
  # talks about the weather
  weather:
    command: weather-server  # from the attic
    timeout: 20

toolsets: [file]  # only these
"""


def servers_of(program: Program) -> dict[str, Any]:
    text = (program.home / "config.yaml").read_text(encoding="utf-8")
    return parse(text, "config").data.get("mcp_servers") or {}


def pasted(text: str, name: str = "") -> dict[str, Any]:
    return {server.name: server.settings for server in read_servers(read_pasted(text), name)}


# What other clients write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}', {"time": TIME}),
        ('{"servers": {"time": {"type": "stdio", "command": "uvx", "args": ["mcp-server-time"]}}}', {"time": TIME}),
        ('{"mcp": {"servers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}}', {"time": TIME}),
        ('{"servers": {"docs": {"type": "http", "url": "https://a.example/mcp"}}}', {"docs": {"url": "https://a.example/mcp"}}),
        (
            '{"servers": {"old": {"type": "sse", "url": "https://a.example/sse"}}}',
            {"old": {"url": "https://a.example/sse", "transport": "sse"}},
        ),
        ('{"mcpServers": {"docs": {"serverUrl": "https://a.example/mcp"}}}', {"docs": {"url": "https://a.example/mcp"}}),
        (
            '{"mcpServers": {"docs": {"httpUrl": "https://a.example/mcp", "timeout": 5000, "trust": false}}}',
            {"docs": {"url": "https://a.example/mcp", "timeout": 5}},
        ),
        (
            '{"context_servers": {"time": {"source": "custom", "command": "uvx", "args": ["mcp-server-time"]}}}',
            {"time": TIME},
        ),
        (
            '{"context_servers": {"time": {"command": {"path": "uvx", "args": ["mcp-server-time"], "env": {}}}}}',
            {"time": TIME},
        ),
        (
            '{"mcp": {"time": {"type": "local", "command": ["uvx", "mcp-server-time"], "enabled": true,'
            ' "environment": {"A": "b"}}}}',
            {"time": {**TIME, "env": {"A": "b"}}},
        ),
        (
            '{"mcp": {"docs": {"type": "remote", "url": "https://a.example/mcp", "headers": {"X": "{env:Y}"}}}}',
            {"docs": {"url": "https://a.example/mcp", "headers": {"X": "${Y}"}}},
        ),
        ('{"mcpServers": [{"name": "time", "command": "uvx", "args": ["mcp-server-time"]}]}', {"time": TIME}),
        ('{"time": {"command": "uvx", "args": ["mcp-server-time"]}}', {"time": TIME}),
        ('"time": {"command": "uvx", "args": ["mcp-server-time"]},', {"time": TIME}),
        ('{"name": "time", "command": "uvx", "args": ["mcp-server-time"]}', {"time": TIME}),
        (
            '{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"], "disabled": true}}}',
            {"time": {**TIME, "enabled": False}},
        ),
        (
            '[mcp_servers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\nstartup_timeout_sec = 20\n'
            'env_vars = ["TZ"]\nenabled_tools = ["now"]\n',
            {"time": {**TIME, "connect_timeout": 20, "env": {"TZ": "${TZ}"}, "tools": {"include": ["now"]}}},
        ),
        (
            '[mcp_servers.docs]\nurl = "https://a.example/mcp"\nbearer_token_env_var = "DOCS"\n',
            {"docs": {"url": "https://a.example/mcp", "headers": {"Authorization": "Bearer ${DOCS}"}}},
        ),
        ("mcp_servers:\n  time:\n    command: uvx\n    args: [mcp-server-time]\n", {"time": TIME}),
        (
            '{"mcpServers": {"n": {"command": "x", "args": [1, true], "env": {"N": 3, "B": false, "Z": null}}}}',
            {"n": {"command": "x", "args": ["1", "true"], "env": {"N": "3", "B": "false"}}},
        ),
    ],
)  # fmt: skip
def test_what_another_client_keeps_is_read_as_settings_of_ours(text, expected):
    """Each known form of a list of servers gives the same servers here."""
    assert pasted(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '// mine\n{"mcpServers": {"time": {"command": "uvx", /* why\nnot */ "args": ["mcp-server-time",],},},}\n',
        'Put this into your config:\n\n```json\n{"mcpServers": {"time": {"command": "uvx",'
        ' "args": ["mcp-server-time"]}}}\n```\n\nand restart.',
        'Add {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}} to it',
        "{mcpServers: {time: {command: 'uvx', args: ['mcp-server-time']}}}",
        "{\u201cmcpServers\u201d: {\u201ctime\u201d: {\u201ccommand\u201d: \u201cuvx\u201d,"
        " \u201cargs\u201d: [\u201cmcp-server-time\u201d]}}}",
        '\ufeff{\u00a0"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}',
    ],
)
def test_text_is_read_as_people_paste_it(text):
    """Comments, stray commas, a fence and prose around it do not matter."""
    assert pasted(text) == {"time": TIME}


def test_what_looks_like_a_comment_inside_a_string_stays():
    """An address is no comment."""
    text = '{"mcpServers": {"a": {"url": "http://127.0.0.1:1/a,}//b/*c*/"}}}'

    assert pasted(text) == {"a": {"url": "http://127.0.0.1:1/a,}//b/*c*/"}}


def test_questions_of_vs_code_become_variables():
    """What another client would ask for is named as a variable, and the person is told."""
    text = (
        '{"inputs": [{"id": "api-key", "type": "promptString", "description": "Key of the API", "password": true},'
        ' {"id": "mode", "default": "fast"}], "servers": {"a": {"command": "x", "env": {"K": "${input:api-key}"},'
        ' "args": ["${workspaceFolder}/data", "${input:mode}", "${userHome}", "${P:-7}"]}}}'
    )

    (server,) = read_servers(read_pasted(text))

    assert server.settings["env"] == {"K": "${API_KEY}"}
    assert server.settings["args"] == ["./data", "fast", "${HOME}", "7"]
    assert any("${API_KEY} (Key of the API)" in note for note in server.notes)


def test_what_is_not_known_here_is_left_out_and_said():
    """A key that has no meaning here is named, not written to the config."""
    (server,) = read_servers(read_pasted('{"mcpServers": {"a": {"command": "x", "autoApprove": ["y"]}}}'))

    assert server.settings == {"command": "x"}
    assert server.notes == ["ignored 'autoApprove', which toolcrib does not know"]


@pytest.mark.parametrize("text", ["{}", "[]", "{]", '{"a": 1}', '{"mcpServers": {}}', "nothing", '{"mcpServers": 5}'])
def test_a_text_without_a_server_is_refused_with_a_reason(text):
    """Nothing is guessed."""
    with pytest.raises(UsageError, match="toolcrib mcp add"):
        pasted(text)


def test_one_of_several_servers_can_be_named():
    """A name picks the server of that name, or names the only one."""
    both = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}'

    assert pasted(both, "b") == {"b": {"command": "y"}}
    assert pasted('{"a": {"command": "x"}}', "c") == {"c": {"command": "x"}}
    with pytest.raises(ToolcribError, match="'c'"):
        pasted(both, "c")


KEYS = [
    "mcpServers", "servers", "mcp", "inputs", "command", "url", "httpUrl", "args", "env", "environment", "tools",
    "type", "headers", "timeout", "disabled", "env_vars", "env_http_headers", "bearer_token_env_var", "name", "id",
    "startup_timeout_ms", "enabled_tools", "trust", "path", "x",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(JSON, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_json_gives_servers_or_one_clear_error(whole, server):
    """No text of others makes the program fail in a way that it did not choose."""
    for data in (whole, {"mcpServers": {"a": {"command": "x", **server}}, **server}):
        try:
            found = read_servers(read_pasted(json.dumps(data)))
        except ToolcribError:
            continue
        for one in found:
            SecretExtractor(one.name, {}).extract(one.settings)


# Secrets


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("GITHUB_TOKEN", True),
        ("tavilyApiKey", True),
        ("Authorization", True),
        ("X-Api-Key", True),
        ("CLIENT_SECRET_VALUE", True),
        ("DB_PASSWORD", True),
        ("MAX_TOKENS", False),
        ("KEYCLOAK_URL", False),
        ("PATH", False),
        ("MONKEY", False),
    ],
)
def test_secrets_are_told_by_their_names(name, is_secret):
    """A variable is moved for what its name says."""
    assert is_secret_name(name) is is_secret


def test_secrets_become_variables_wherever_they_stand():
    """Variables, headers, arguments and addresses hold names afterwards, and the values are in one place."""
    mover = SecretExtractor("my-gh", {})

    moved = mover.extract(
        {
            "env": {"GH_TOKEN": "t1", "MODE": "fast", "OTHER_KEY": "${MINE}"},
            "headers": {"Authorization": "Bearer t2", "X-Trace": "on"},
            "args": ["--api-key", "t3", "--secret=t4", "--header", "Authorization: Bearer t5", "sk-0123456789abcdef01"],
            "url": "https://a.example/mcp?apiKey=t6&x=1",
        }
    )

    assert moved["env"] == {"GH_TOKEN": "${MCP_MY_GH_GH_TOKEN}", "MODE": "fast", "OTHER_KEY": "${MINE}"}
    assert moved["headers"] == {"Authorization": "Bearer ${MCP_MY_GH_AUTHORIZATION}", "X-Trace": "on"}
    assert moved["url"] == "https://a.example/mcp?apiKey=${MCP_MY_GH_API_KEY_2}&x=1"
    assert sorted(mover.variables.values()) == ["sk-0123456789abcdef01", "t1", "t2", "t3", "t4", "t5", "t6"]
    assert not any(f"t{number}" in json.dumps(moved) for number in range(1, 7))


def test_a_variable_of_somebody_else_keeps_its_value():
    """A name that is taken by another value gets a number."""
    mover = SecretExtractor("a", {"MCP_A_TOKEN": "theirs"})

    moved = mover.extract({"env": {"TOKEN": "mine"}})

    assert moved == {"env": {"TOKEN": "${MCP_A_TOKEN_2}"}}
    assert mover.variables == {"MCP_A_TOKEN_2": "mine"}


@pytest.mark.parametrize("value", ["<your key>", "YOUR_API_KEY", "xxxx", "...", "replace-me", "sk_your_key_here"])
def test_a_placeholder_is_not_taken_for_a_secret(value):
    """A word that somebody has to replace is named as a variable, and nothing is written for it."""
    mover = SecretExtractor("a", {})

    assert mover.extract({"env": {"API_KEY": value}}) == {"env": {"API_KEY": "${MCP_A_API_KEY}"}}
    assert mover.variables == {}


# The command


def test_a_command_is_added_and_everything_else_in_the_config_stays(toolcrib: Program):
    """Adding puts lines into the file, and takes none away."""
    path = toolcrib.write("config.yaml", COMMENTED)

    done = toolcrib(
        "mcp", "add", "files", "--timeout", "30", "--exclude", "write_*", "--", "python3", "-m", "x", "--url"
    )

    assert done.code == 0, done.stderr
    assert "`toolcrib mcp test files`" in done.stderr
    lines = path.read_text().splitlines()
    assert [line for line in lines if line in COMMENTED.splitlines()] == COMMENTED.splitlines()
    assert servers_of(toolcrib)["files"] == {
        "command": "python3",
        "args": ["-m", "x", "--url"],
        "timeout": 30,
        "tools": {"exclude": ["write_*"]},
    }


def test_an_address_is_added_with_its_token_in_the_env_file(toolcrib: Program):
    """The config names a variable; the value is where only the owner reads it."""
    toolcrib.write("config.yaml", "")

    done = toolcrib("mcp", "add", "docs", "--url", "https://a.example/mcp", "-H", "Authorization: Bearer s3cret-value")

    assert done.code == 0, done.stderr
    assert servers_of(toolcrib)["docs"]["headers"] == {"Authorization": "Bearer ${MCP_DOCS_AUTHORIZATION}"}
    env = toolcrib.home / ".env"
    assert env.read_text() == "MCP_DOCS_AUTHORIZATION=s3cret-value\n"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert "MCP_DOCS_AUTHORIZATION" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout


def test_plain_keeps_a_secret_in_the_config(toolcrib: Program):
    """Who says so gets the value where he wrote it."""
    done = toolcrib("mcp", "add", "a", "-e", "API_KEY=abc", "-e", "LANG", "--plain", "--", "python3")

    assert done.code == 0, done.stderr
    assert servers_of(toolcrib)["a"]["env"] == {"API_KEY": "abc", "LANG": "${LANG}"}
    assert not (toolcrib.home / ".env").exists()


def test_pasted_servers_come_from_text_a_file_or_standard_input(toolcrib: Program, tmp_path: Path):
    """All three ways give the same."""
    text = '{"mcpServers": {"github.com/acme/time": {"command": "python3"}}}'
    (tmp_path / "mcp.json").write_text(text)

    for name, source, stdin in (("a", text, ""), ("b", "mcp.json", ""), ("c", "-", text)):
        done = toolcrib("mcp", "add", name, "--json", source, stdin=stdin)
        assert done.code == 0, done.stderr
    unnamed = toolcrib("mcp", "add", "--json", text)

    assert servers_of(toolcrib) == {name: {"command": "python3"} for name in ("a", "b", "c", "time")}
    assert "time: renamed from 'github.com/acme/time'" in unnamed.stderr


def test_a_server_that_is_there_is_replaced_only_on_demand(toolcrib: Program):
    """The same name again is refused; with --replace only what differs changes."""
    path = toolcrib.write("config.yaml", COMMENTED)

    refused = toolcrib("mcp", "add", "weather", "--", "other")
    unchanged = path.read_text()
    replaced = toolcrib("mcp", "add", "weather", "--replace", "--timeout", "20", "--", "other")

    assert refused.code == 2
    assert "`--replace`" in refused.stderr
    assert unchanged == COMMENTED
    assert replaced.code == 0, replaced.stderr
    assert path.read_text() == COMMENTED.replace("weather-server", "other")


def test_a_new_token_takes_the_place_of_the_old_one(toolcrib: Program):
    """Replacing a server does not leave its former secrets behind under another name."""
    for token in ("old-value", "new-value"):
        done = toolcrib("mcp", "add", "a", "--replace", "-e", f"TOKEN={token}", "--", "python3")
        assert done.code == 0, done.stderr

    assert (toolcrib.home / ".env").read_text() == "MCP_A_TOKEN=new-value\n"


def test_a_broken_config_loses_nothing(toolcrib: Program):
    """A file that cannot be read is left as it is, and so are the secrets."""
    path = toolcrib.write("config.yaml", "tools: [\n")

    done = toolcrib("mcp", "add", "a", "-e", "TOKEN=x", "--", "python3")

    assert done.code == 2
    assert len(done.stderr.splitlines()) == 1
    assert path.read_text() == "tools: [\n"
    assert not (toolcrib.home / ".env").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fs", "npx", "-y", "pkg"], "`toolcrib mcp add fs -- npx -y pkg`"),
        (["a b", "--", "x"], "`toolcrib mcp add a-b`"),
        (["a"], "`toolcrib mcp add a -- COMMAND`"),
        ([], "`toolcrib mcp add NAME -- COMMAND`"),
        (["a", "--url", "example.com/mcp"], "'example.com/mcp' is not a valid address"),
        (["a", "--url", "https://a.example/ b"], "is not a valid address"),
        (["a", "--url", "https://a.example", "--", "x"], "`--url`"),
        (["a", "--env", "=1", "--", "x"], "`--env NAME=VALUE`"),
        (["a", "--header", "nothing", "--url", "https://a.example"], "`--header 'Name: value'`"),
        (["--json", "nowhere.json"], "no such file: 'nowhere.json'"),
        (["--json", '{"mcpServers": {"a": {"command": "x", "args": "one"}}}'], "should be a list"),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(toolcrib: Program, words, said):
    """Nothing is written, and one line says what would be right."""
    done = toolcrib("mcp", "add", *words)

    assert done.code == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (toolcrib.home / "config.yaml").exists()


def test_a_command_that_is_not_here_is_added_with_a_warning(toolcrib: Program):
    """It may be installed later."""
    done = toolcrib("mcp", "add", "a", "--", "no-such-program-here")

    assert done.code == 0
    assert "'no-such-program-here' is not installed" in done.stderr
    assert servers_of(toolcrib) == {"a": {"command": "no-such-program-here"}}


def test_removing_takes_a_server_and_its_variables_and_nothing_else(toolcrib: Program):
    """The rest of both files stays; a variable that another server needs stays too."""
    path = toolcrib.write("config.yaml", COMMENTED)
    toolcrib.write(".env", "MINE=1\n").chmod(0o600)
    added = toolcrib("mcp", "add", "a", "-e", "TOKEN=x1", "-e", "KEY=x2", "--", "python3")
    shared = toolcrib("mcp", "add", "b", "-e", "T=${MCP_A_KEY}", "--", "python3")

    removed = toolcrib("mcp", "remove", "a")
    rest = toolcrib("mcp", "remove", "b")

    assert (added.code, shared.code, removed.code, rest.code) == (0, 0, 0, 0)
    assert "Removed MCP_A_TOKEN from" in removed.stderr
    assert path.read_text() == COMMENTED
    assert (toolcrib.home / ".env").read_text() == "MINE=1\nMCP_A_KEY=x2\n"


def test_a_name_that_is_not_there_is_answered_with_the_nearest(toolcrib: Program):
    """One wrong name among several removes none."""
    path = toolcrib.write("config.yaml", COMMENTED)

    done = toolcrib("mcp", "remove", "weather", "wether")

    assert done.code == 2
    assert "did you mean 'weather'?" in done.stderr
    assert path.read_text() == COMMENTED


def test_the_last_server_can_be_removed_and_another_be_added(toolcrib: Program):
    """An emptied section is no obstacle, nor is a name with a dot."""
    toolcrib.write("config.yaml", "mcp_servers:\n  my.server:\n    command: x\n")

    removed = toolcrib("mcp", "remove", "my.server")
    empty = servers_of(toolcrib)
    added = toolcrib("mcp", "add", "other.one", "--", "python3")

    assert (removed.code, added.code) == (0, 0), removed.stderr + added.stderr
    assert empty == {}
    assert servers_of(toolcrib) == {"other.one": {"command": "python3"}}


def test_a_login_that_stays_is_mentioned(toolcrib: Program):
    """Removing a server does not end a login that the server still knows of; what does is said."""
    toolcrib.write("config.yaml", "mcp_servers:\n  tracker: {url: 'https://a.example/mcp', auth: oauth}\n")
    kept = {"server": "tracker", "url": "https://a.example/mcp", "tokens": {"access_token": "x"}}
    toolcrib.write("mcp_tokens/tracker.json", json.dumps(kept)).chmod(0o600)

    done = toolcrib("mcp", "remove", "tracker")

    assert done.code == 0, done.stderr
    assert "`toolcrib mcp logout tracker`" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", '{"mcpServers":'), "before the JSON is complete"),
        (("--json", "https://a.example/mcp"), "run `toolcrib mcp add NAME --url https://a.example/mcp`"),
        (("--json", "no such text"), "no such file: 'no such text'"),
        (("Café", "--", "x"), "for example `toolcrib mcp add Cafe`"),
    ],
)
def test_what_cannot_be_added_is_told_with_the_way_out(toolcrib: Program, words: tuple[str, ...], said: str):
    """One line that names the thing, and nothing is written."""
    done = toolcrib("mcp", "add", *words)

    assert done.code == 2
    assert said in done.stderr
    assert not (toolcrib.home / "config.yaml").exists()
