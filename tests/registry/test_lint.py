"""The checklist for authors: each rule finds what it is for, says what to do, and leaves good files alone."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.types import ToolEntry
from toolcrib.registry.decorator import tool
from toolcrib.registry.lint import lint_entry, lint_source
from toolcrib.registry.lint_code import LintFinding
from toolcrib.registry.registry import ToolRegistry

GOOD = """
import json
import os

from tools.registry import registry


def check_tides() -> bool:
    return bool(os.getenv("TIDES_API_KEY"))


def tides(port: str, days: int) -> str:
    if not os.getenv("TIDES_API_KEY"):
        return json.dumps({"error": "TIDES_API_KEY is not set"})
    try:
        if days > 7:
            raise ValueError("too far ahead")
        return json.dumps({"port": port})
    except ValueError as error:
        return json.dumps({"error": str(error)})


TIDES_SCHEMA = {
    "name": "tides",
    "description": "High and low water at a port.",
    "parameters": {
        "type": "object",
        "properties": {
            "port": {"type": "string", "description": "Name of the port, e.g. 'Brest'."},
            "days": {"type": "integer", "description": "How many days.", "default": 1},
        },
        "required": ["port"],
    },
}

registry.register(
    name="tides",
    toolset="tides",
    schema=TIDES_SCHEMA,
    handler=lambda args, **kw: tides(port=args.get("port", ""), days=args.get("days", 1)),
    check_fn=check_tides,
    requires_env=["TIDES_API_KEY"],
)
"""

REGISTER = """
import json
SCHEMA = {{"description": "Does it.", "parameters": {{"type": "object", "properties": {{}}}}}}
{code}
registry.register(name="probe", toolset="t", schema=SCHEMA, handler=handle{options})
"""


@pytest.fixture
def lint(tmp_path: Path):
    """Findings for a file with this text; `tides` keys are known to the wizard."""

    def run(text: str) -> list[LintFinding]:
        path = tmp_path / "probe_tool.py"
        path.write_text(text, encoding="utf-8")
        return lint_source(path, known_variables={"TIDES_API_KEY"})

    return run


def with_handler(code: str, options: str = "") -> str:
    return REGISTER.format(code=textwrap.dedent(code).strip(), options=options and ", " + options)


def rules(findings: list[LintFinding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.rule) for finding in findings]


def test_a_tool_by_the_guide_has_no_findings(lint):
    """The guide's shape of a tool file (check, handler, schema, registration) is clean."""
    assert lint(GOOD) == []


def test_a_tool_function_by_the_guide_has_no_findings(lint):
    """A documented, typed function under `@tool` is clean, though it returns a dict and raises."""
    text = '''
from toolcrib import tool

@tool(toolset="sums")
def add(first: int, second: int = 0) -> dict:
    """Add two numbers.

    Args:
        first: One number.
        second: The other.
    """
    if first < 0:
        raise ValueError("negative")
    return {"sum": first + second}
'''
    assert lint(text) == []


def test_a_file_that_python_cannot_read_is_an_error_with_its_line(lint):
    """A syntax error is reported where it is, and nothing else is guessed."""
    (finding,) = lint("x = 1\ndef broken(:\n")

    assert (finding.severity, finding.rule, finding.line) == ("error", "parses", 2)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x = '\x00'"])
def test_a_file_that_is_no_text_is_an_error(tmp_path: Path, content: bytes):
    """Bytes that are not Python text are a finding, not a crash."""
    path = tmp_path / "x.py"
    path.write_bytes(content)

    assert rules(lint_source(path)) == [("error", "parses")]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "def setup():\n    registry.register(name='a', toolset='t', schema=make(), handler=h)\n",
        "other.register(name='a')\n",
    ],
)
def test_a_file_that_discovery_passes_by_is_an_error(lint, text: str):
    """Only a top-level registration is found at start-up."""
    assert ("error", "registers") in rules(lint(text))


@pytest.mark.parametrize("name", ["has space", "ünicode", "", "x" * 65, "a.b"])
def test_a_name_that_providers_refuse_is_an_error(lint, name: str):
    """Names are 1 to 64 letters, digits, `_` and `-`."""
    assert ("error", "name") in rules(lint(GOOD.replace('name="tides"', f"name={name!r}")))


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed('"High and low water at a port."', '""'), ("error", "description")),
        (changed("\"Name of the port, e.g. 'Brest'.\"", '"  "'), ("warning", "parameter-description")),
        (changed('"type": "object"', '"type": "array"'), ("error", "schema")),
        (changed('"type": "integer"', '"type": "wholenumber"'), ("error", "schema")),
        (changed('"required": ["port"]', '"required": ["harbour"]'), ("error", "required")),
        (changed('"default": 1', '"default": "one"'), ("error", "default")),
        (changed("schema=TIDES_SCHEMA", "schema=['tides']"), ("error", "schema")),
        (changed("    check_fn=check_tides,\n", ""), ("warning", "check-fn")),
        (changed('requires_env=["TIDES_API_KEY"]', "requires_env=[]"), ("warning", "requires-env")),
        (changed("import json\n", "import json\nprint('loaded')\n"), ("warning", "print")),
        (changed("args, **kw:", "args:"), ("error", "handler-signature")),
        (changed("args, **kw:", "args, port, **kw:"), ("error", "handler-signature")),
        (changed("def tides(", "async def tides("), ("error", "is-async")),
        (changed("check_fn=check_tides,", "check_fn=check_tides, is_async=True,"), ("error", "is-async")),
        (changed('return json.dumps({"port": port})', 'return {"port": port}'), ("error", "returns-json")),
    ],
)
def test_one_mistake_gives_one_finding(lint, text: str, expected: tuple[str, str]):
    """A single mistake in a good file is found by its own rule, and by no other."""
    assert rules(lint(text)) == [expected]


@pytest.mark.parametrize(
    "body",
    [
        "return {'a': 1}",
        "return [1]",
        "return None",
        "return",
        "return 3",
        "return [x for x in args]",
        "result = {'a': 1}\n    return result",
        "return {'a': 1} if args else json.dumps({})",
        "args.clear()",
    ],
)
def test_a_handler_that_returns_no_text_is_an_error(lint, body: str):
    """Raw dicts, lists, numbers and None break the result contract; the advice is json.dumps."""
    (finding,) = lint(with_handler(f"def handle(args, **kwargs):\n    {body}"))

    assert (finding.severity, finding.rule) == ("error", "returns-json")
    assert "return json.dumps(...)" in finding.message


@pytest.mark.parametrize(
    "body",
    [
        "return json.dumps({})",
        "return 'text'",
        "return f'{args}'",
        "return make(args)",
        "return {'_multimodal': True, 'content': []}",
        "result = {'a': 1}\n    result = json.dumps(result)\n    return result",
        "def inner():\n        return {}\n    return json.dumps(inner())",
    ],
)
def test_a_handler_that_may_return_text_is_left_alone(lint, body: str):
    """The rule speaks up only where it is sure."""
    assert lint(with_handler(f"def handle(args, **kwargs):\n    {body}")) == []


def test_results_are_followed_into_functions_of_the_file(lint):
    """A handler that hands on another function's result is judged by that function."""
    code = """
    async def fetch():
        return {"a": 1}

    async def handle(args, **kwargs):
        return await fetch()
    """
    (finding,) = lint(with_handler(code, "is_async=True"))

    assert finding.rule == "returns-json"
    assert finding.line == 5


def test_a_handler_that_raises_is_a_warning(lint):
    """An exception that nothing in the handler catches should have been an answer."""
    code = """
    def handle(args, **kwargs):
        if not args:
            raise ValueError("nothing given")
        return json.dumps(args)
    """
    (finding,) = lint(with_handler(code))

    assert (finding.severity, finding.rule, finding.line) == ("warning", "raises", 6)
    assert '{"error":' in finding.message


@pytest.mark.parametrize(
    "call",
    [
        "requests.get('http://localhost')",
        "httpx.get('http://localhost')",
        "subprocess.run(['docker', 'ps'])",
        "time.sleep(1)",
        "urllib.request.urlopen('http://localhost')",
    ],
)
def test_a_check_that_waits_is_a_warning(lint, call: str):
    """Checks run at every build of the definitions, so networks, processes and sleeps are out of place."""
    code = f"""
    def check():
        return bool({call})

    def handle(args, **kwargs):
        return json.dumps(args)
    """
    assert rules(lint(with_handler(code, "check_fn=check"))) == [("warning", "slow-check")]


@pytest.mark.parametrize(
    "read", ['os.environ["SOME_URL"]', 'os.environ.get("SOME_URL", "")', 'os.getenv("SOME_URL")', "os.getenv(VARIABLE)"]
)
def test_an_undeclared_variable_is_a_warning(lint, read: str):
    """However a variable is read, people should see it in requires_env."""
    code = f"""
    VARIABLE = "SOME_URL"
    def handle(args, **kwargs):
        return json.dumps({read})
    """
    (finding,) = lint(with_handler(code))

    assert (finding.severity, finding.rule) == ("warning", "requires-env")
    assert "requires_env=['SOME_URL']" in finding.message


def test_system_variables_and_written_ones_are_no_business_of_the_tool(lint):
    """HOME and the like need no set-up, and setting a variable is not reading it."""
    code = """
    def handle(args, **kwargs):
        os.environ["SOME_URL"] = "x"
        return os.environ["HOME"] + os.getenv("XDG_CACHE_HOME")
    """
    assert lint(with_handler(code)) == []


def test_a_key_that_the_wizard_does_not_ask_for_is_a_hint(lint):
    """A secret without an entry in OPTIONAL_ENV_VARS cannot be set up by `toolcrib setup`."""
    code = """
    def check():
        return bool(os.getenv("NEW_API_KEY"))

    def handle(args, **kwargs):
        return json.dumps(args)
    """
    options = "check_fn=check, requires_env=['NEW_API_KEY']"

    assert rules(lint(with_handler(code, options))) == [("warning", "setup-wizard")]
    added = 'OPTIONAL_ENV_VARS["NEW_API_KEY"] = {"description": "x"}\n'
    assert lint(added + with_handler(code, options)) == []


@pytest.mark.parametrize("text", ["if __name__ == '__main__':\n    print(1)\n", "print('x', file=sys.stderr)\n"])
def test_prints_that_cannot_reach_the_protocol_are_fine(lint, text: str):
    """A script's own main part, and stderr, may be printed to."""
    assert lint(GOOD + text) == []


def test_async_handlers_by_the_guide_are_fine(lint):
    """`is_async=True` fits both an `async def` and a lambda that calls one."""
    code = """
    async def work(args):
        return json.dumps(args)

    handle = lambda args, **kw: work(args)
    """
    assert lint(with_handler(code, "is_async=True")) == []
    assert rules(lint(with_handler(code))) == [("error", "is-async")]
    assert lint(with_handler("async def handle(args, **kw):\n    return 'x'", "is_async=True")) == []


def test_an_undocumented_tool_function_is_told_what_is_missing(lint):
    """Under `@tool`, docstring and hints are the schema, so missing ones are reported there."""
    assert rules(lint("@tool\ndef probe(a, ctx): ...\n")) == [
        ("error", "description"),
        ("warning", "type-hint"),
        ("warning", "parameter-description"),
    ]


def entry(**changes: Any) -> ToolEntry:
    """A clean entry, with some fields changed."""
    fields: dict[str, Any] = {
        "name": "probe",
        "toolset": "t",
        "schema": {"description": "Does it.", "parameters": {"type": "object", "properties": {}}},
        "handler": lambda args, **kwargs: "x",
        "description": "Does it.",
    }
    return ToolEntry(**{**fields, **changes})


async def coroutine(args, **kwargs):
    return "x"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"name": "a b"}, [("error", "name")]),
        ({"description": "", "schema": {"parameters": {"type": "object"}}}, [("error", "description")]),
        ({"schema": {"parameters": 3}}, [("error", "schema")]),
        ({"handler": lambda args: "x"}, [("error", "handler-signature")]),
        ({"handler": coroutine}, [("error", "is-async")]),
        ({"handler": coroutine, "is_async": True}, []),
        ({"requires_env": ["A_KEY"]}, [("warning", "check-fn")]),
    ],
)
def test_a_registered_entry_is_held_against_the_same_rules(changes: dict[str, Any], expected: list[tuple[str, str]]):
    """What only running a file shows is checked on the entry."""
    assert rules(lint_entry(entry(**changes), "")) == expected


def test_findings_of_file_and_entry_agree(lint):
    """The same mistake is the same finding both ways, so that it is shown once."""
    text = changed('"required": ["port"]', '"required": ["harbour"]')
    schema: dict[str, Any] = {}
    exec(text[text.index("TIDES_SCHEMA =") : text.index("registry.register(")], schema)
    registered = entry(name="tides", schema=schema["TIDES_SCHEMA"])

    assert lint_entry(registered, text) == lint(text)


def test_a_decorated_function_passes_as_an_entry():
    """What `@tool` registers keeps the contract's handler signature."""
    registry = ToolRegistry()

    @tool(registry=registry)
    async def probe(a: int, ctx: Any) -> None:
        """Probe.

        Args:
            a: A number.
        """

    (registered,) = registry.entries()
    assert lint_entry(registered, "") == []


@given(st.text(alphabet="registy.()=@tolndef:\n {}[]'\"ax,*"))
def test_no_text_breaks_the_linter(tmp_path_factory: pytest.TempPathFactory, text: str):
    """Whatever is in a file, the answer is a list of findings with advice."""
    path = tmp_path_factory.getbasetemp() / "wild.py"
    path.write_text("registry.register(name='a', handler=h)\n" + text, encoding="utf-8")

    assert all(finding.message for finding in lint_source(path))
