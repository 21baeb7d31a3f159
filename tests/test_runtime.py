"""The composition root: loading, isolation, nesting, closing."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

from toolcrib import Runtime
from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.core.approvals import ApprovalAnswer
from toolcrib.core.errors import ConfigError, UsageError
from toolcrib.core.types import Effect, ToolResult
from toolcrib.registry.registry import ToolRegistry

TOOL_FILE = textwrap.dedent(
    """
    from toolcrib.registry import registry

    registry.register(
        name="greet_{suffix}",
        toolset="greet",
        schema={{"description": "Greets", "parameters": {{"type": "object", "properties": {{}}}}}},
        handler=lambda args, **kwargs: "hello from {suffix}",
    )
    """
)


def make_home(path, suffix=None, config=""):
    (path / "tools").mkdir(parents=True)
    (path / "config.yaml").write_text(config)
    if suffix is not None:
        (path / "tools" / f"greet_{suffix}.py").write_text(TOOL_FILE.format(suffix=suffix))
    return path


@pytest.fixture
def runtime(tmp_path):
    made = Runtime(home=make_home(tmp_path / "own"), registry=ToolRegistry())
    yield made
    made.close()


def add(runtime, name, handler, **options):
    schema = {"parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    runtime.registry.register(name, "test", schema, handler, **options)


def test_what_the_first_call_needs_can_be_built_before(runtime):
    """A front end does that in a thread, so that its event loop does not wait for the imports."""
    assert not DeferredGate.made.is_built(runtime.gate)

    runtime.prepare_calls()

    assert DeferredGate.made.is_built(runtime.gate)
    assert type(runtime.services).snapshots.is_built(runtime.services)


async def test_a_runtime_is_one_async_with_away(tmp_path):
    """`async with Runtime() as runtime: await runtime.call(...)` gives a ToolResult."""
    async with Runtime(home=make_home(tmp_path / "h", "here")) as runtime:
        result = await runtime.call("greet_here", {})
    assert isinstance(result, ToolResult)
    assert (result.content, result.name, result.is_error) == ("hello from here", "greet_here", False)


async def test_two_runtimes_do_not_see_each_other(tmp_path):
    """Tools of the homes, hooks and approvals belong to one runtime each."""
    seen = []

    class Yes:
        async def ask(self, request):
            return ApprovalAnswer(choice="once")

    async with (
        Runtime(home=make_home(tmp_path / "a", "a"), approver=Yes()) as first,
        Runtime(home=make_home(tmp_path / "b", "b")) as second,
    ):
        first.hooks.register("pre_tool_call", lambda tool_name: seen.append(tool_name))
        for runtime in (first, second):
            add(runtime, "writer", lambda args, **kwargs: "written", effects=(Effect("write", "/x"),))
        assert (await first.call("greet_a")).content == "hello from a"
        assert (await second.call("greet_b")).content == "hello from b"
        assert (await first.call("greet_b")).error_type == "unknown_tool"
        assert (await second.call("greet_a")).error_type == "unknown_tool"
        assert (await first.call("writer")).content == "written"
        assert (await second.call("writer")).error_type == "denied"
        assert "greet_a" in first.definitions(["greet"]).names
        assert "greet_a" not in second.definitions(["greet"]).names
    assert seen == ["greet_a", "writer"]


def test_a_bound_registry_dispatches_through_the_pipeline(runtime):
    """registry.dispatch is a sync edge: hooks see the call, and its keywords reach the handler."""
    seen = []
    runtime.hooks.register("pre_tool_call", lambda tool_name, task_id: seen.append((tool_name, task_id)))
    add(runtime, "tool", lambda args, **kwargs: json.dumps(kwargs))
    assert json.loads(runtime.registry.dispatch("tool", {}, task_id="t", extra=1)) == {"task_id": "t", "extra": 1}
    assert seen == [("tool", "t")]
    assert json.loads(runtime.registry.dispatch("tol", {}))["error"] == "Unknown tool: tol"


async def test_agent_loop_tools_say_which_service_is_missing(tmp_path):
    """Runtime.call names the service; the bare edge answers with the stub."""
    async with Runtime(home=make_home(tmp_path / "h")) as runtime:
        for name in ("todo", "memory", "session_search", "delegate_task"):
            arguments = {"target": "memory"} if name == "memory" else {}
            message = json.loads((await runtime.call(name, arguments)).content)["error"]
            assert f"the service {name!r} is missing" in message
            stub = await asyncio.to_thread(runtime.registry.dispatch, name, {})
            assert json.loads(stub) == {"error": f"{name} must be handled by the agent loop"}


async def test_services_are_found_by_name_or_missed_by_name(runtime):
    """A handler asks for what it needs; what is missing is named."""
    made = Runtime(home=runtime.settings.home.root, registry=ToolRegistry(), services={"clock": "noon"})
    ctx = made.context()
    assert ctx.services.get("clock") == "noon"
    with pytest.raises(UsageError, match="'asker' is missing"):
        await ctx.ask("Who?")
    made.close()


async def test_a_handler_calls_another_tool_with_its_own_session(runtime):
    """ctx.services.call takes the whole pipeline with the session, and the scope, of the caller."""
    seen = []
    runtime.hooks.register("pre_tool_call", lambda tool_name, session_id: seen.append((tool_name, session_id)))

    async def outer(args, ctx, **kwargs):
        return (await ctx.services.call(ctx, args["tool"], {})).content

    schema = {"parameters": {"type": "object", "properties": {"tool": {"type": "string"}}}}
    runtime.registry.register("outer", "test", schema, outer, is_async=True)
    add(runtime, "inner", lambda args, **kwargs: json.dumps(kwargs["session_id"]))
    ctx = runtime.context(session_id="s", allowed_tools=frozenset({"outer", "inner"}))
    assert (await runtime.call("outer", {"tool": "inner"}, ctx=ctx)).content == '"s"'
    narrow = runtime.context(session_id="s", allowed_tools=frozenset({"outer"}))
    assert "not part of this session" in (await runtime.call("outer", {"tool": "inner"}, ctx=narrow)).content
    assert seen == [("outer", "s"), ("inner", "s"), ("outer", "s")]


def test_sync_and_async_tools_nest_in_each_other(runtime):
    """A sync tool in an async tool in a sync tool, all through the sync edge."""

    async def climbs(args, **kwargs):
        await asyncio.sleep(0)
        return runtime.registry.dispatch("steps", args)

    def steps(args, **kwargs):
        return "top" if args["n"] == 0 else runtime.registry.dispatch("climbs", {"n": args["n"] - 1})

    add(runtime, "climbs", climbs, is_async=True)
    add(runtime, "steps", steps)
    assert runtime.call_sync("steps", {"n": 5}).content == "top"


def test_what_a_handler_caches_on_its_loop_stays_usable(runtime):
    """Between calls from one thread the loop stays open: no 'event loop is closed'."""
    cache = {}

    async def cached(args, **kwargs):
        lock = cache.setdefault("lock", asyncio.Lock())
        future = cache.setdefault("future", asyncio.get_running_loop().create_future())
        async with lock:
            if not future.done():
                future.get_loop().call_soon(future.set_result, "answer")
            return await future

    add(runtime, "cached", cached, is_async=True)
    assert [runtime.call_sync("cached", {}).content for _ in range(3)] == ["answer"] * 3


async def test_a_stuck_coroutine_inside_a_running_loop_is_a_timeout_result(tmp_path):
    """At the bridge's deadline the result is a JSON error, told as a timeout."""
    config = "tools:\n  nested_call_timeout_seconds: 0.02\n"
    runtime = Runtime(home=make_home(tmp_path / "h", config=config), registry=ToolRegistry())

    async def waits(args, **kwargs):
        await asyncio.Event().wait()

    add(runtime, "waits", waits, is_async=True)
    result = runtime.call_sync("waits", {})
    runtime.close()
    assert (result.status, result.error_type) == ("timeout", "tool_timeout")
    assert "0.02 seconds" in json.loads(result.content)["error"]


async def test_blocking_handlers_do_not_block_the_loop(runtime):
    """While one handler blocks, others answer."""
    release = threading.Event()
    add(runtime, "blocks", lambda args, **kwargs: str(release.wait(10)))
    add(runtime, "frees", lambda args, **kwargs: release.set() or "freed")
    blocked, freed = await asyncio.gather(runtime.call("blocks"), runtime.call("frees"))
    assert (blocked.content, freed.content) == ("True", "freed")


async def test_progress_reaches_whoever_watches(tmp_path):
    """ctx.progress goes to the runtime's receiver, and nowhere without one."""
    told = []
    runtime = Runtime(home=make_home(tmp_path / "h"), registry=ToolRegistry(), on_progress=told.append)
    add(runtime, "works", lambda args, ctx, **kwargs: ctx.progress("half") or "ok")
    assert (await runtime.call("works")).content == "ok"
    runtime.close()
    assert told == ["half"]


def test_a_broken_config_is_a_clear_error(tmp_path):
    """A runtime does not start on settings that it does not understand."""
    with pytest.raises(ConfigError, match="max_paralel"):
        Runtime(home=make_home(tmp_path / "h", config="tools: {max_paralel: 3}"))


def test_threads_that_come_while_tools_are_loading_wait_for_them(tmp_path):
    """Nobody hears 'unknown tool' because another thread is still importing it."""
    home = make_home(tmp_path / "h")
    slow = TOOL_FILE.format(suffix="slow").replace("from toolcrib", "import time\ntime.sleep(0.2)\nfrom toolcrib", 1)
    (home / "tools" / "greet_slow.py").write_text(slow)
    runtime = Runtime(home=home)
    barrier, answers = threading.Barrier(6), []

    def call():
        barrier.wait()
        answers.append(runtime.call_sync("greet_slow", {}).content)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runtime.close()
    assert answers == ["hello from slow"] * 6
    assert len([file for file in runtime.loaded_files if "greet_slow" in str(file)]) == 1


async def test_a_runtime_used_from_sync_code_can_be_closed_inside_a_loop(tmp_path):
    """Loops that were opened for synchronous callers are closed by `async with` too, without a warning."""
    runtime = Runtime(home=make_home(tmp_path / "h"), registry=ToolRegistry())

    async def quick(args, **kwargs):
        return "ok"

    add(runtime, "quick", quick, is_async=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop = runtime.bridge.loop()
        async with runtime:
            assert runtime.call_sync("quick", {}).content == "ok"
        runtime.close()
    assert loop.is_closed()


IMPORTS = """
import sys
import toolcrib
from toolcrib import get_tool_definitions
get_tool_definitions(quiet_mode=True)
libraries = {"rich", "prompt_toolkit", "anyio", "importlib.metadata", "jsonschema_rs", "subprocess", "copy"}
services = {"toolcrib.dispatch.pipeline", "toolcrib.hooks.shell", "toolcrib.web.service", "toolcrib.browser.service"}
heavy = (libraries | services) & set(sys.modules)
print(sorted(heavy))
"""


def test_nothing_heavy_is_imported_for_definitions(tmp_path):
    """A fresh process that only wants definitions stays light."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TOOLCRIB_HOME": str(tmp_path / "h")}
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


async def use(runtime):
    add(runtime, "plain", lambda args, **kwargs: "ok")
    add(runtime, "waits", waits_a_moment, is_async=True)
    assert (await runtime.call("plain")).content == "ok"
    # Inside a running loop, so on a thread of the bridge.
    assert runtime.call_sync("waits", {}).content == "ok"


async def waits_a_moment(args, **kwargs):
    await asyncio.sleep(0)
    return "ok"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files the way Linux shows them")
def test_a_runtime_that_is_dropped_without_close_leaves_nothing_behind(tmp_path):
    """Threads end and loops are closed when the last reference goes, without a warning."""
    home = make_home(tmp_path / "h")
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()

    for _ in range(3):
        dropped = Runtime(home=home, registry=ToolRegistry())
        asyncio.run(use(dropped))
        assert dropped.call_sync("waits", {}).content == "ok"
        del dropped
    gc.collect()

    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert open_files() <= files
