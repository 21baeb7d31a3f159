"""What the package offers to synchronous callers, over one default runtime."""

import asyncio
import inspect
import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests import fork_server
from tests.fork_server import INTERPRETER, Start, without_interpreter_settings
from toolcrib.api import handle_function_call

SIGNATURE = [
    "function_name", "function_args", "task_id", "tool_call_id", "session_id", "turn_id", "api_request_id", "user_task",
    "enabled_tools", "skip_pre_tool_call_hook", "skip_tool_request_middleware", "tool_request_middleware_trace",
    "enabled_toolsets", "disabled_toolsets",
]  # fmt: skip

PRELUDE = """
import asyncio, json, threading, warnings
warnings.simplefilter("error")
import toolcrib
from toolcrib import get_tool_definitions, handle_function_call, registry as registry_module
from toolcrib.registry import registry
from toolcrib.api import default_runtime, reset_default_runtime

SCHEMA = {"description": "d", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
"""


@pytest.fixture
def in_process(tmp_path):
    """Runs code in a process of its own, since the default runtime is one for each process; gives what it printed."""

    def run(code, config=None, logs=False):
        home = tmp_path / "home of its own"
        home.mkdir(exist_ok=True)
        if config is not None:
            (home / "config.yaml").write_text(config)
        environ = {**without_interpreter_settings(os.environ), **INTERPRETER, "TOOLCRIB_HOME": str(home)}
        wanted = Start(arguments=("-c", PRELUDE + textwrap.dedent(code)), environ=environ, cwd=tmp_path)
        done = fork_server.run(wanted, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        assert logs or done.stderr == b""
        return done.stdout.decode().splitlines()

    return run


def test_handle_function_call_has_the_parameters_of_the_reference():
    """The order of release 0.19, all of them usable by keyword."""
    parameters = inspect.signature(handle_function_call).parameters
    assert list(parameters) == SIGNATURE
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_handlers_receive_the_keywords_of_the_reference(in_process):
    """task_id, session_id and user_task; for execute_code enabled_tools in place of user_task."""
    lines = in_process(
        """
        for name in ("tool", "execute_code"):
            answer = lambda args, **kwargs: json.dumps(kwargs, sort_keys=True)
            registry.register(name, "t", SCHEMA, answer, override=True)
            print(handle_function_call(name, {}, "T", session_id="S", user_task="U", enabled_tools=["x"]))
        """
    )
    assert json.loads(lines[0]) == {"task_id": "T", "session_id": "S", "user_task": "U"}
    assert json.loads(lines[1]) == {"task_id": "T", "session_id": "S", "enabled_tools": ["x"]}


def test_hooks_receive_all_ids(in_process):
    """What the caller knows of the call reaches the hooks."""
    lines = in_process(
        """
        registry.register("tool", "t", SCHEMA, lambda args, **kwargs: "ok")
        names = ("task_id", "tool_call_id", "session_id", "turn_id", "api_request_id")
        default_runtime().hooks.register("pre_tool_call", lambda **kwargs: print([kwargs[name] for name in names]))
        handle_function_call("tool", {}, "1", "2", "3", "4", "5")
        """
    )
    assert lines == ["['1', '2', '3', '4', '5']"]


def test_every_failure_is_a_result(in_process):
    """A caller receives JSON, whatever he asks for."""
    lines = in_process(
        """
        def broken(args, **kwargs):
            raise ValueError("no")
        registry.register("broken", "t", SCHEMA, broken)
        for name, args in [("broken", {}), ("nope", {}), (None, {}), ("broken", "{"), ("broken", None), ("broken", 5),
                           ("todo", {}), ("memory", {}), ("session_search", {}), ("delegate_task", {})]:
            print(json.loads(handle_function_call(name, args))["error"])
        """
    )
    assert lines[0] == "Tool execution failed: ValueError: no"
    assert lines[1] == "Unknown tool: nope"
    assert lines[2] == "Unknown tool: None"
    assert lines[3].startswith("Invalid arguments for broken")
    assert lines[4] == lines[0]
    assert lines[5].startswith("Invalid arguments for broken")
    assert lines[6:] == [
        f"{name} must be handled by the agent loop" for name in ("todo", "memory", "session_search", "delegate_task")
    ]


def test_agent_loop_tools_behind_the_search_are_stubs_too(in_process):
    """`tool_call` is no way around the agent."""
    lines = in_process("""print(handle_function_call("tool_call", {"name": "todo", "arguments": {}}))""")
    assert json.loads(lines[0]) == {"error": "todo must be handled by the agent loop"}


def test_a_broken_config_is_a_result_too(in_process):
    """Even where no runtime can be made, handle_function_call answers with the second error layer."""
    lines = in_process("print(handle_function_call('tool', {}))", config="no_such_key: 1\n", logs=True)
    assert json.loads(lines[0])["error"].startswith("Error executing tool: ")
    assert "no_such_key" in lines[0]


def test_toolsets_bound_what_may_be_called(in_process):
    """A tool outside the session's toolsets is refused; deny wins."""
    lines = in_process(
        """
        registry.register("a", "one", SCHEMA, lambda args, **kwargs: "a")
        registry.register("b", "two", SCHEMA, lambda args, **kwargs: "b")
        print(handle_function_call("a", {}, enabled_toolsets=["one"]))
        print(handle_function_call("b", {}, enabled_toolsets=["one"]))
        print(handle_function_call("a", {}, disabled_toolsets=["one"]))
        print(handle_function_call("a", {}, enabled_toolsets=[]))
        """
    )
    assert lines[0] == "a"
    assert all("not part of this session" in line for line in lines[1:])


def test_async_tools_work_from_every_kind_of_caller(in_process):
    """Main thread, worker thread, running loop, and all of them in each other."""
    lines = in_process(
        """
        async def tool(args, **kwargs):
            await asyncio.sleep(0)
            return "ok"
        registry.register("tool", "t", SCHEMA, tool, is_async=True)
        async def inside():
            return handle_function_call("tool", {}), await asyncio.to_thread(handle_function_call, "tool", {})
        for _ in range(2):
            print(handle_function_call("tool", {}), asyncio.run(inside()))
        """
    )
    assert lines == ["ok ('ok', 'ok')"] * 2


def test_the_default_runtime_is_made_once(in_process):
    """Threads that come at the same time get the same runtime; after a reset there is a new one."""
    lines = in_process(
        """
        barrier, made = threading.Barrier(8), []
        def get():
            barrier.wait()
            made.append(default_runtime())
        threads = [threading.Thread(target=get) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(len(set(map(id, made))), len(made))
        reset_default_runtime()
        print(default_runtime() is made[0])
        """
    )
    assert lines == ["1 8", "False"]


@pytest.mark.parametrize("quiet", [True, False])
def test_definitions_never_print(in_process, quiet):
    """quiet_mode decides about the log; stdout and stderr stay clean, and the tools are the same."""
    lines = in_process(
        f"""
        registry.register("tool", "t", SCHEMA, lambda args, **kwargs: "ok")
        definitions = get_tool_definitions(["t", "unknown one"], quiet_mode={quiet})
        print([tool["function"]["name"] for tool in definitions])
        """
    )
    assert lines == ["['tool']"]


def test_changing_definitions_does_not_change_what_is_validated(in_process):
    """What a caller does to his copy has no effect on calls."""
    lines = in_process(
        """
        registry.register("tool", "t", SCHEMA, lambda args, **kwargs: "ran")
        function = get_tool_definitions(["t"])[0]["function"]
        function["parameters"]["properties"]["n"]["type"] = "string"
        print(handle_function_call("tool", {"n": 1}))
        print("error" in handle_function_call("tool", {"n": "many"}))
        """
    )
    assert lines == ["ran", "True"]


def test_multimodal_results_pass(in_process):
    """A multimodal object is returned as it is."""
    lines = in_process(
        """
        value = {"_multimodal": True, "content": [{"type": "text", "text": "x"}]}
        registry.register("tool", "t", SCHEMA, lambda args, **kwargs: value)
        print(handle_function_call("tool", {}) is value)
        """
    )
    assert lines == ["True"]


def test_importing_the_package_loads_nothing(in_process):
    """The names at the top load on first use."""
    code = "import sys, toolcrib; print('asyncio' in sys.modules, 'toolcrib.runtime' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "False False\n", done.stderr


def test_the_definitions_need_no_event_loop(tmp_path):
    """asyncio takes a fifth of a start, and only calls need it."""
    code = "import sys, toolcrib; toolcrib.get_tool_definitions(quiet_mode=True); print('asyncio' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TOOLCRIB_HOME": str(tmp_path)},
    )
    assert done.stdout == "False\n", done.stderr


async def test_a_name_that_is_not_exported_is_an_attribute_error():
    """The package says so as every module does."""
    import toolcrib

    await asyncio.sleep(0)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = toolcrib.nothing
