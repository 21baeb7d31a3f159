"""Tools called from a script: which, how, and that every call takes the whole pipeline."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.code_execution.running_scripts import MakeRuntime, Run, hidden
from toolcrib.core.types import Effect
from toolcrib.runtime import Runtime
from toolcrib.testing import ListRecorder, ScriptedApprover

SCHEMA = {
    "description": "For tests",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
        "additionalProperties": False,
    },
}


def add(runtime: Runtime, name: str, handler: Any, **options: Any) -> None:
    options = {"toolset": "test", "schema": SCHEMA, "effects": (), **options}
    runtime.registry.register(name=name, handler=handler, **options)


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        pytest.param('{"a": [1, null]}', "{'a': [1, None]}", id="object"),
        pytest.param("[1, 2]", "[1, 2]", id="list"),
        pytest.param("plain text", "'plain text'", id="text"),
        pytest.param("{no json", "'{no json'", id="nearly-json"),
        pytest.param("7", "'7'", id="a-number-is-text"),
        pytest.param("ünï\u2028", "'ünï\\u2028'", id="unicode"),
        pytest.param(
            {"_multimodal": True, "content": [{"type": "text", "text": "x"}]},
            "{'_multimodal': True, 'content': [{'type': 'text', 'text': 'x'}]}",
            id="multimodal",
        ),
    ],
)
def test_results_are_python_values(shared_runtime: Runtime, run_script: Run, given: Any, seen: str) -> None:
    """JSON objects and lists are parsed, every other text stays text."""
    add(shared_runtime, "give", lambda args, **_: given)

    assert run_script(shared_runtime, "print(repr(give()))")["output"] == f"{seen}\n"


@pytest.mark.parametrize(
    "call",
    [
        "look('a', 2)",
        "look(path='a', n=2)",
        "look('a', n=2)",
        "call_tool('look', {'path': 'a', 'n': 2})",
        "call_tool('look', path='a', n=2)",
        "__import__('hermes_tools').look('a', 2)",
        "__import__('toolcrib_tools').look('a', 2)",
        "parallel((look, 'a', 2))[0]",
    ],
)
def test_a_tool_can_be_called_in_every_usual_way(shared_runtime: Runtime, run_script: Run, call: str) -> None:
    """By keyword, by position in the order of the schema, by name, from either module."""
    add(shared_runtime, "look", lambda args, **_: json.dumps(args))

    assert run_script(shared_runtime, f"print({call} == {{'path': 'a', 'n': 2}})")["output"] == "True\n"


def test_wrong_arguments_are_refused_where_they_are_wrong(shared_runtime: Runtime, run_script: Run) -> None:
    """Python's own mistakes raise TypeError; what the schema forbids comes back as an error, as from any call."""
    add(shared_runtime, "look", lambda args, **_: "{}")
    code = (
        "for wrong in (lambda: look(1, 2, 3), lambda: look('a', path='b')):\n"
        "    try: wrong()\n    except TypeError as error: print(error)\n"
        "print('error' in look(n='many'), 'error' in look(other=1))"
    )

    lines = run_script(shared_runtime, code)["output"].splitlines()

    assert lines == ["look() takes at most 2 arguments: path, n", "look() got two values for 'path'", "True True"]


def test_a_tool_that_fails_gives_its_error_and_the_script_goes_on(shared_runtime: Runtime, run_script: Run) -> None:
    """An error is a result; nothing is raised."""

    def fail(args: Any, **_: Any) -> str:
        raise ValueError("broken")

    add(shared_runtime, "fail", fail)

    assert run_script(shared_runtime, "print(fail()['error'])\nprint('on')")["output"].endswith("broken\non\n")


async def test_parallel_calls_run_at_the_same_time(script_runtime: Runtime) -> None:
    """Two calls that wait for each other both come back, in order."""
    meeting = threading.Barrier(2, timeout=20)

    def meet(args: Any, **_: Any) -> str:
        meeting.wait()
        return json.dumps(args)

    add(script_runtime, "meet", meet)
    code = "print([one['n'] for one in parallel(lambda: meet(n=1), lambda: meet(n=2))])"

    result = await script_runtime.call("execute_code", {"code": code})

    assert json.loads(str(result.content))["output"] == "[1, 2]\n"


@pytest.mark.services
async def test_calls_on_the_same_path_take_turns(script_runtime: Runtime, project: Path) -> None:
    """What two calls declare to write is never written by both at once, whatever the script does."""
    busy: list[int] = []
    most: list[int] = []

    async def write(args: Any, **_: Any) -> str:
        busy.append(1)
        most.append(len(busy))
        await asyncio.sleep(0)
        busy.pop()
        return "{}"

    def effects(args: Any, ctx: Any) -> tuple[Effect, ...]:
        return (Effect("write", str(project / args["path"])),)

    add(script_runtime, "store", write, effects=effects, is_async=True)
    code = "parallel(*[lambda: store('same.txt') for _ in range(10)])"

    result = await script_runtime.call("execute_code", {"code": code})

    assert not result.is_error
    assert most == [1] * 10


@pytest.mark.services
def test_the_number_of_calls_is_bounded(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """A call beyond the limit is refused and not run; the script goes on."""
    runtime = make_script_runtime(code_max_tool_calls=3)
    made: list[int] = []
    add(runtime, "look", lambda args, **_: made.append(1) or "{}")

    answer = run_script(runtime, "print([look().get('error', 'ok')[:28] for _ in range(5)])")

    assert answer["output"] == f"{['ok'] * 3 + ['a script may make 3 tool calls'[:28]] * 2}\n"
    assert (len(made), answer["tool_calls_made"]) == (3, 3)


@pytest.mark.services
def test_a_script_that_goes_on_calling_is_ended(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """Refusals without end would keep us busy for nothing."""
    runtime = make_script_runtime(code_max_tool_calls=0)

    answer = run_script(runtime, "while True: call_tool('terminal', command='true')")

    assert answer["error"].startswith("the script was ended because it kept calling tools")


def test_a_script_can_call_what_the_session_has_and_nothing_else(shared_runtime: Runtime, run_script: Run) -> None:
    """Also by a forged call; an empty set means no tool, never all."""
    for name in ("mine", "other"):
        add(shared_runtime, name, lambda args, **_: "reached")
    code = (
        "import toolcrib_tools\n"
        "print('mine' in globals(), 'other' in globals())\n"
        "for name in ('mine', 'other', 'terminal', 'execute_code', 'clarify', 'todo', 'tool_call', 'no_such'):\n"
        "    print(call_tool(name, name='other') == 'reached', end=' ')"
    )

    def seen(*allowed: str) -> str:
        ctx = shared_runtime.context(allowed_tools=frozenset({"execute_code", *allowed}))
        return str(run_script(shared_runtime, code.replace(", name='other'", ""), ctx)["output"])

    assert seen("mine", "todo", "clarify") == "True False\n" + "True" + " False" * 7 + " "
    assert seen() == "False False\n" + "False " * 8


def test_the_tools_that_an_old_caller_names_are_a_bound_too(shared_runtime: Runtime, run_script: Run) -> None:
    """`enabled_tools`, as the reference passes it, never adds a tool; an empty list means none."""
    for name in ("mine", "other"):
        add(shared_runtime, name, lambda args, **_: "reached")

    def seen(enabled: list[str]) -> str:
        ctx = shared_runtime.context(
            allowed_tools=frozenset({"execute_code", "mine"}), handler_kwargs={"enabled_tools": enabled}
        )
        code = "print([name for name in ('mine', 'other') if name in globals()])"
        return str(run_script(shared_runtime, code, ctx)["output"])

    assert seen(["mine", "other"]) == "['mine']\n"
    assert seen([]) == "[]\n"


def test_the_description_lists_exactly_what_a_script_can_call(shared_runtime: Runtime, run_script: Run) -> None:
    """What the model reads, what the script has as functions, and what is answered are the same."""
    tools = shared_runtime.definitions(["terminal", "todo", "clarify", "code_execution"], defer=False).tools
    described = next(one["function"] for one in tools if one["function"]["name"] == "execute_code")["description"]
    names = frozenset(one["function"]["name"] for one in tools)

    answer = run_script(
        shared_runtime,
        "import toolcrib_tools\nasked = 'clarify execute_code process terminal todo'.split()\n"
        "print([name for name in asked if hasattr(toolcrib_tools, name)])",
        shared_runtime.context(allowed_tools=names),
    )

    assert described.endswith("Tools the script can call: process, terminal.")
    assert answer["output"] == "['process', 'terminal']\n"


def test_the_gate_judges_each_call_from_inside(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """A dangerous command in a script is asked about as a call of its own; a denial reaches the script."""
    approver = ScriptedApprover("deny")
    runtime = make_script_runtime(approver=approver)

    answer = run_script(runtime, "command = 'git push --force'\nprint(terminal(command)['error'][:25])")

    assert answer["output"] == "This call was not allowed\n"
    assert [request.tool for request in approver.asked] == ["terminal"]


def test_hooks_and_records_see_each_call_from_inside(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """A hook can stop one; what was run is on record, with an id of its own."""
    recorder = ListRecorder()
    runtime = make_script_runtime(recorder=recorder)
    seen: list[tuple[str, str]] = []

    def before(tool_name: str = "", tool_call_id: str = "", **_: Any) -> Any:
        seen.append((tool_name, tool_call_id))
        return {"action": "block", "message": "not this one"} if tool_name == "forbidden" else None

    runtime.hooks.register("pre_tool_call", before)
    add(runtime, "forbidden", lambda args, **_: "reached")
    ctx = runtime.context(call_id="c1")

    answer = run_script(runtime, "print(terminal('echo hi')['output'])\nprint(forbidden()['error'])", ctx)

    assert answer["output"] == "hi\nnot this one\n"
    assert seen == [("execute_code", "c1"), ("terminal", "c1/1"), ("forbidden", "c1/2")]
    assert recorder.events.count(("finished", "terminal")) == 1


def test_a_script_gets_the_whole_of_a_long_result(shared_runtime: Runtime, run_script: Run) -> None:
    """The cut is for models."""
    add(shared_runtime, "much", lambda args, **_: json.dumps({"text": "x" * 500_000}), max_result_size_chars=1_000)

    assert run_script(shared_runtime, "print(len(much()['text']))")["output"] == "500000\n"


def test_odd_arguments_reach_the_tool_unharmed(shared_runtime: Runtime, run_script: Run) -> None:
    """Control characters, half characters and megabytes pass the channel."""
    add(shared_runtime, "length", lambda args, **_: str(len(args["path"])))
    code = "print(length('\\0\\x1b\\ud800'), length('x' * 3_000_000))"

    assert run_script(shared_runtime, code)["output"] == "3 3000000\n"


@pytest.mark.services
def test_many_parallel_calls_fit_into_the_bound_on_memory(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """However many are named at once; threads of the script's own fit, too."""
    runtime = make_script_runtime(code_max_tool_calls=300)
    add(runtime, "look", lambda args, **_: json.dumps(args))
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(sum(one['n'] for one in parallel(*[lambda n=n: look(n=n) for n in range(200)])))\n"
        "with ThreadPoolExecutor(50) as pool: print(len(list(pool.map(lambda n: look(n=n), range(50)))))"
    )

    assert run_script(runtime, code)["output"] == "19900\n50\n"


def test_a_call_that_a_signal_broke_off_does_not_mix_up_the_next(shared_runtime: Runtime, run_script: Run) -> None:
    """A script may bound a call by an alarm whose handler raises."""
    add(shared_runtime, "slow", lambda args, **_: threading.Event().wait(1.5) or "slow")
    add(shared_runtime, "look", lambda args, **_: "looked")
    code = (
        "import signal\ndef end(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, end)\nsignal.alarm(1)\n"
        "try: slow()\nexcept TimeoutError: print('too slow')\nprint(look(), look())"
    )

    assert run_script(shared_runtime, code)["output"] == "too slow\nlooked looked\n"


def test_what_cannot_be_a_call_is_an_error_in_the_script(shared_runtime: Runtime, run_script: Run) -> None:
    """It does not cost the script its channel."""
    add(shared_runtime, "look", lambda args, **_: "looked")
    code = (
        "for wrong in (lambda: call_tool(5), lambda: look(path={1}), lambda: look(path='x' * 20_000_000)):\n"
        "    try: wrong()\n    except (TypeError, ValueError) as error: print(type(error).__name__)\nprint(look())"
    )

    assert run_script(shared_runtime, code)["output"] == "TypeError\nTypeError\nValueError\nlooked\n"


def test_a_fork_of_the_script_cannot_call_tools(shared_runtime: Runtime, run_script: Run) -> None:
    """Two processes on one channel would mix up their calls."""
    code = (
        "import os\nterminal('true')\nif os.fork() == 0:\n    try: terminal('true')\n"
        "    except RuntimeError as error: print(error)\n    os._exit(0)\nos.wait()"
    )

    assert "first process, not from a fork" in run_script(shared_runtime, hidden(code))["output"]


async def test_calls_that_still_run_are_stopped_with_the_script(make_script_runtime: MakeRuntime) -> None:
    """A tool that a dead script waited for does not go on."""
    runtime = make_script_runtime(code_timeout=6)
    ended = asyncio.Event()

    async def wait(args: Any, **_: Any) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "{}"

    add(runtime, "wait", wait, is_async=True)

    result = await runtime.call("execute_code", {"code": "wait()"})

    assert json.loads(str(result.content))["status"] == "timeout"
    assert ended.is_set()


def test_helpers_of_the_reference_are_there(shared_runtime: Runtime, run_script: Run) -> None:
    """Scripts that were written for its module run."""
    code = (
        "from hermes_tools import terminal, json_parse, shell_quote, retry\n"
        "print(json_parse('{\"a\": \"b\\n\"}'), shell_quote('a b'), retry(lambda: terminal('echo 1')['output']))"
    )

    assert run_script(shared_runtime, code)["output"] == "{'a': 'b\\n'} 'a b' 1\n"
