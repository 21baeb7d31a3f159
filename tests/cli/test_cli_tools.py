"""`toolcrib tools …`: what is listed, explained, run, checked and written."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.cli_program import KEYED_TOOL, Program

WEATHER_KEYS = {"name", "toolset", "description", "emoji", "available", "reason", "requires_env"}
NOISY_TOOL = """
import json, os
from toolcrib.registry import registry

print("loading")
os.system("echo from a child")

def noisy(args, **kw):
    print("working")
    os.system("echo from a child")
    return args["text"]

registry.register(
    name="noisy", toolset="noisy", handler=noisy,
    schema={"description": "Says it back.", "parameters": {
        "type": "object", "required": ["text"], "properties": {"text": {"type": "string", "description": "Words."}}}},
)
registry.register(
    name="picture", toolset="noisy", schema={"description": "Shows something."},
    handler=lambda args, **kw: {"_multimodal": True, "content": [{"type": "text", "text": "ä"}]},
)
"""


def test_json_list_is_for_programs(toolcrib: Program):
    """Every object has the promised keys, and an unavailable tool has a reason and a remedy."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)

    outcome = toolcrib("tools", "list", "--json")

    tools = {tool["name"]: tool for tool in json.loads(outcome.stdout)}
    assert all(tool.keys() >= WEATHER_KEYS for tool in tools.values())
    assert tools["todo"]["available"] is True
    assert tools["todo"]["reason"] == ""
    tides = tools["tides"]
    assert (tides["available"], tides["emoji"], tides["requires_env"]) == (False, "🌊", ["TIDES_API_KEY"])
    assert "TIDES_API_KEY" in tides["reason"]
    assert "toolcrib setup tides" in tides["remedy"]
    assert (outcome.stderr, outcome.code) == ("", 0)


def test_a_key_in_the_env_file_makes_the_tool_available(toolcrib: Program):
    """What `setup` saves counts at the next start."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)
    toolcrib.write(".env", "TIDES_API_KEY=k\n").chmod(0o600)

    [tides] = json.loads(toolcrib("tools", "list", "--toolset", "tides", "--json").stdout)

    assert tides["available"] is True


def test_a_pipe_gets_plain_aligned_text(toolcrib: Program):
    """No colour and no box characters; the columns begin at the same place, whatever the width of an emoji."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)

    lines = toolcrib("tools", "list").stdout.splitlines()

    assert lines[0].split() == ["NAME", "TOOLSET", "AVAILABLE", "EMOJI", "REASON"]
    assert not any(char in "\x1b│─━┃╭" for line in lines for char in line)
    column = lines[0].index("AVAILABLE")
    assert {line[column - 1] + line[column:].split()[0] for line in lines[1:]} == {" yes", " no"}


def test_a_terminal_gets_a_table_that_fits(toolcrib: Program):
    """On a terminal the same rows are a table, no wider than the terminal, with colour."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)

    seen = toolcrib.on_terminal("tools", "list", columns=70).stdout

    assert "\x1b[" in seen
    assert "─" in seen
    assert "toolcrib tools explain NAME" in seen
    assert all(len(_without_colour(line)) <= 70 for line in seen.splitlines() if "─" in line)


def test_no_color_is_respected(toolcrib: Program):
    """NO_COLOR leaves the table and takes the colours."""
    seen = toolcrib.on_terminal("tools", "list", NO_COLOR="1").stdout

    assert "\x1b[3" not in seen
    assert "─" in seen


def _without_colour(line: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def test_run_prints_exactly_the_result(toolcrib: Program):
    """Whatever a tool file or its children print, stdout carries the result and one line end."""
    toolcrib.write("tools/noisy.py", NOISY_TOOL)

    outcome = toolcrib("tools", "run", "noisy", json.dumps({"text": "a\nb ä\x1b[0m"}))

    assert outcome.stdout == "a\nb ä\x1b[0m\n"
    assert outcome.stderr.count("from a child") == 2
    assert outcome.code == 0


def test_run_prints_a_multimodal_result_as_json(toolcrib: Program):
    """A result that is no text is printed as its JSON."""
    toolcrib.write("tools/noisy.py", NOISY_TOOL)

    outcome = toolcrib("tools", "run", "picture")

    assert json.loads(outcome.stdout) == {"_multimodal": True, "content": [{"type": "text", "text": "ä"}]}


def test_run_prints_error_results_and_fails(toolcrib: Program):
    """Bad arguments are a result: on stdout, with exit code 1."""
    toolcrib.write("tools/noisy.py", NOISY_TOOL)

    outcome = toolcrib("tools", "run", "noisy", '{"text": {}}')

    assert "text" in json.loads(outcome.stdout)["error"]
    assert outcome.code == 1


@pytest.mark.parametrize("arguments", ["{", '{"text": "a", "text": "b"}', "NaN", ""])
def test_text_that_is_no_json_is_a_usage_error(toolcrib: Program, arguments: str):
    """One line on stderr, nothing on stdout, exit code 2."""
    outcome = toolcrib("tools", "run", "todo", arguments)

    assert (outcome.stdout, outcome.code) == ("", 2)
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize("style", ["decorator", "register"])
def test_a_new_tool_passes_lint_and_runs_at_once(toolcrib: Program, style: str):
    """The scaffold is right as it stands, whichever way it is written."""
    written = toolcrib("tools", "new", "hello", "--kind", "tool", "--style", style)
    checked = toolcrib("tools", "lint", str(toolcrib.home / "tools/hello.py"), "--json")
    ran = toolcrib("tools", "run", "hello", '{"text": "hi", "times": 2}')

    assert written.code == 0
    assert (json.loads(checked.stdout), checked.code) == ([], 0)
    assert (json.loads(ran.stdout), ran.code) == ({"text": "hi hi"}, 0)


def test_new_asks_skill_or_tool_on_a_terminal(toolcrib: Program):
    """The question comes with one line of guidance for each answer."""
    seen = toolcrib.on_terminal("tools", "new", "brew", answers=(("skill or tool? ", "skill"),))

    assert seen.code == 0
    assert "keys" in seen.stdout
    assert (toolcrib.home / "skills/brew/SKILL.md").read_text().startswith("---\nname: brew\n")


def test_new_never_overwrites(toolcrib: Program):
    """What exists stays as it is."""
    path = toolcrib.write("tools/hello.py", "# mine\n")

    outcome = toolcrib("tools", "new", "hello", "--kind", "tool")

    assert outcome.code == 2
    assert path.read_text() == "# mine\n"


@pytest.mark.parametrize("name", ["../escape", "a/b", "Ä", "1st", "x" * 70, "registry", ""])
def test_new_refuses_names_that_no_tool_can_have(toolcrib: Program, name: str):
    """A name is a file name and what providers accept; nothing is written for any other."""
    outcome = toolcrib("tools", "new", name, "--kind", "tool")

    assert outcome.code == 2
    assert not list(toolcrib.root.rglob("*.py"))


def test_lint_loads_the_file_to_see_what_it_registers(toolcrib: Program):
    """A schema that only running the file shows is checked too, and so is an import that fails."""
    computed = toolcrib.write(
        "tools/computed.py",
        "from toolcrib.registry import registry\n"
        "def make():\n    return {'description': '', 'parameters': {'type': 'array'}}\n"
        "registry.register(name='computed', toolset='t', schema=make(), handler=lambda args, **kw: '{}')\n",
    )
    failing = toolcrib.write(
        "tools/failing.py", "import no_such_package\nfrom toolcrib import tool\n@tool\ndef f():\n  'D.'\n"
    )

    outcome = toolcrib("tools", "lint", str(computed), str(failing), "--json")

    found = [(finding["file"], finding["rule"], finding["line"]) for finding in json.loads(outcome.stdout)]
    assert (str(computed), "description", 4) in found
    assert (str(computed), "schema", 4) in found
    assert (str(failing), "loads", None) in found
    assert outcome.code == 1


def test_explain_names_every_toolset_and_the_file(toolcrib: Program):
    """The reader learns who declared the tool, where, and which toolsets lead to it."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)
    toolcrib.write("config.yaml", "custom_toolsets:\n  sea:\n    includes: [tides]\n")

    about = json.loads(toolcrib("tools", "explain", "tides", "--json").stdout)

    assert about["toolsets"] == ["sea", "tides"]
    assert about["source"]["path"] == str(toolcrib.home / "tools/tides.py")
    assert about["available"] is False


BUYING_TOOL = '''
from toolcrib import Effect, tool

@tool(effects=(Effect("spend"),))
def buy(article: str) -> str:
    """Buy an article.

    Args:
        article: What to buy.
    """
    return f"bought {article}"
'''
BUY = ("tools", "run", "buy", '{"article": "saw"}')


@pytest.mark.parametrize(("answer", "runs"), [("o", True), ("s", True), ("d", False)])
def test_a_person_at_a_terminal_is_asked_before_an_effect(toolcrib: Program, answer: str, runs: bool):
    """What would happen is said first; only a key that allows lets it happen."""
    toolcrib.write("tools/buy.py", BUYING_TOOL)

    seen = toolcrib.on_terminal(*BUY, answers=(("> ", answer),))

    assert "spends money" in seen.stdout
    assert ("bought saw" in seen.stdout) is runs
    assert seen.code == (0 if runs else 1)


def test_an_interrupt_of_the_question_is_a_no(toolcrib: Program):
    """Ctrl-C at the question ends the program as it does elsewhere, and nothing was called."""
    toolcrib.write("tools/buy.py", BUYING_TOOL)

    seen = toolcrib.on_terminal(*BUY, answers=(("> ", "^C"),))

    assert seen.code == 130
    assert "bought" not in seen.stdout
    assert "Traceback" not in seen.stdout


def test_where_nobody_can_be_asked_an_effect_is_denied(toolcrib: Program):
    """A yes that is piped in is no person's yes."""
    toolcrib.write("tools/buy.py", BUYING_TOOL)

    outcome = toolcrib(*BUY, stdin="y\n")

    denied = json.loads(outcome.stdout)
    assert denied["error_type"] == "denied"
    assert "there is no terminal" in denied["error"] or "nobody" in denied["error"]
    assert (outcome.stderr, outcome.code) == ("", 1)


@pytest.mark.parametrize(
    "declared", ['"type": "string", "format": "date"', '"enum": ["it\'s", "b"]', '"type": "string"']
)
def test_the_command_that_explain_suggests_works_as_it_stands(toolcrib: Program, declared: str):
    """`try it` can be copied into a shell: its arguments are quoted and the schema accepts them."""
    toolcrib.write("tools/tides.py", KEYED_TOOL.replace('"type": "string"', declared))

    [line] = [line for line in toolcrib("tools", "explain", "tides").stdout.splitlines() if line.startswith("try it")]

    program, *words = shlex.split(line.removeprefix("try it"))
    assert program == "toolcrib"
    assert toolcrib(*words).code == 0


MIXED_FILE = '''
from typing import Optional

from toolcrib import tool


@tool(toolset="stock")
def pieces(names: Optional[list[str]] = None, size: int | str = 3) -> str:
    """Count pieces.

    Args:
        names: Which ones, for example ['saw'].
        size: The size, for example 3.
    """
    raise LookupError("the shelf is empty")


@tool(toolset="stock")
def wave(length: complex) -> str:
    """No JSON can express its parameter."""


@tool(toolset="stock")
def ghost(length: "Nothing") -> str:
    """Its hint cannot be resolved."""
'''


def test_a_rejected_tool_is_listed_with_its_reason_file_and_line(toolcrib: Program):
    """The author finds it where the other tools are: in the list, in explain and in lint."""
    file = toolcrib.write("tools/stock.py", MIXED_FILE)

    listed = {one["name"]: one for one in json.loads(toolcrib("tools", "list", "--json").stdout)}
    explained = toolcrib("tools", "explain", "ghost")
    linted = toolcrib("tools", "lint", str(file))

    assert listed["pieces"]["available"]
    assert not listed["wave"]["available"]
    assert f"{file}:18" in listed["wave"]["reason"]
    assert "complex" in listed["wave"]["reason"]
    assert f"{file}:23" in explained.stdout
    assert "'Nothing'" in explained.stdout
    assert f"{file}:18: error:" in linted.stdout


def test_a_file_that_fails_to_load_names_the_line(toolcrib: Program):
    """The tools that its text declares are listed too."""
    toolcrib.write("tools/stock.py", MIXED_FILE + "\n1 / 0\n")

    explained = toolcrib("tools", "explain", "pieces")

    assert "could not be loaded: line 27: ZeroDivisionError" in explained.stdout
    told = toolcrib("tools", "run", "pieces", "--traceback")
    assert told.code == 2
    assert "    1 / 0\n" in told.stderr
    assert "toolcrib: tool 'pieces' is not available: its file" in told.stderr


def test_explain_shows_types_in_full(toolcrib: Program):
    """An optional list of texts is not "any value"."""
    toolcrib.write("tools/stock.py", MIXED_FILE)

    text = toolcrib("tools", "explain", "pieces").stdout

    assert "names (array of string or null, default null)" in text
    assert "size (integer or string, default 3)" in text


def test_the_authors_traceback_is_one_flag_away(toolcrib: Program):
    """Without the flag, a line on stderr says where it is; stdout is the result alone in both cases."""
    toolcrib.write("tools/stock.py", MIXED_FILE)

    plain, told = toolcrib("tools", "run", "pieces"), toolcrib("tools", "run", "pieces", "--traceback")

    assert plain.stdout == told.stdout
    assert json.loads(plain.stdout)["error"].endswith("LookupError: the shelf is empty")
    assert str(toolcrib.home / "logs" / "toolcrib.log") in plain.stderr
    assert "--traceback" in plain.stderr
    assert 'raise LookupError("the shelf is empty")' in told.stderr


@pytest.mark.services
@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_all_of_why_a_tool_was_refused(toolcrib: Program, columns: int):
    """Nothing is cut where it does not fit: neither the reason, nor the file, nor the fix."""
    file = toolcrib.write("tools/stock.py", MIXED_FILE)

    seen = toolcrib.on_terminal("tools", "explain", "ghost", columns=columns).stdout
    linted = toolcrib.on_terminal("tools", "lint", columns=columns).stdout

    lines = [_without_colour(line) for line in seen.splitlines()]
    assert all(len(line) <= columns for line in lines)
    told = "".join(line.strip() for line in lines)
    assert "'Nothing'" in told
    assert f"{file}:23" in told
    assert f"{file}:23: error:" in _without_colour(linted)


def test_an_example_that_cannot_be_made_up_names_what_is_required(toolcrib: Program):
    """No text is guessed that a pattern would accept."""
    toolcrib.write(
        "tools/post.py",
        "from typing import Annotated\nfrom msgspec import Meta\nfrom toolcrib import tool\n"
        '@tool\ndef parcel(code: Annotated[str, Meta(pattern="^[0-9]{5}$")], count: int = 1) -> str:\n'
        '    """Send a parcel."""\n',
    )

    assert """toolcrib tools run parcel '{"code": …}'""" in toolcrib("tools", "explain", "parcel").stdout


def test_lint_without_a_file_checks_all_tool_files(toolcrib: Program):
    """Both files are named; without any file there is a hint at how to make one."""
    nothing = toolcrib("tools", "lint")
    toolcrib.write("tools/stock.py", MIXED_FILE)
    toolcrib.write("tools/tides.py", KEYED_TOOL)

    outcome = toolcrib("tools", "lint")

    assert (nothing.code, outcome.code) == (2, 1)
    assert "toolcrib tools new" in nothing.stderr
    assert "stock.py:18: error:" in outcome.stdout
    assert "`toolcrib tools lint` again" in outcome.stderr
