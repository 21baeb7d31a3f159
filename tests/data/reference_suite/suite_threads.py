"""How a caller of the reference system uses the async bridge, interrupts and contexts of threads."""

import asyncio
import contextvars
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from model_tools import _get_tool_loop, _get_worker_loop, _run_async, get_tool_definitions, handle_function_call
from tools.interrupt import _interrupt_event, clear_current_thread_interrupt, is_interrupted, set_interrupt
from tools.registry import registry
from tools.thread_context import propagate_context_to_thread
from tools.tool_search import BRIDGE_TOOL_NAMES, build_catalog, is_deferrable_tool_name, search_catalog


async def this_loop():
    return asyncio.get_running_loop()


class CachedClient:
    """Like an HTTP client: bound to the loop it was first used on."""

    def __init__(self):
        self.loop = None

    async def use(self):
        self.loop = self.loop or asyncio.get_running_loop()
        assert self.loop is asyncio.get_running_loop()
        await asyncio.sleep(0)
        return "ok"


class TestBridge:
    def test_main_thread_keeps_its_loop(self):
        first = _run_async(this_loop())
        assert first is _run_async(this_loop()) is _get_tool_loop()
        assert not first.is_closed()

    def test_cached_client_stays_usable(self):
        client = CachedClient()
        assert [_run_async(client.use()) for _ in range(3)] == ["ok"] * 3

    def test_each_worker_has_its_own_loop(self):
        barrier = threading.Barrier(2)

        def work():
            loops = [_run_async(this_loop()), _run_async(this_loop()), _get_worker_loop()]
            barrier.wait(10)
            assert _get_tool_loop() is not loops[0]
            return loops

        with ThreadPoolExecutor(2) as pool:
            one, two = [future.result(10) for future in [pool.submit(work) for _ in range(2)]]
        assert one[0] is one[1] is one[2]
        assert two[0] is two[1] is two[2]
        assert one[0] is not two[0]
        assert _get_tool_loop() not in (one[0], two[0])

    def test_inside_a_running_loop(self):
        async def outer():
            return asyncio.get_running_loop(), _run_async(this_loop())

        outside, inside = asyncio.run(outer())
        assert outside is not inside

    def test_exceptions_come_through(self):
        async def fail():
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            _run_async(fail())

        async def outer():
            _run_async(fail())

        with pytest.raises(ValueError, match="boom"):
            asyncio.run(outer())

    def test_context_variables_are_seen(self):
        variable = contextvars.ContextVar("suite", default="unset")

        async def read():
            return variable.get()

        async def outer():
            variable.set("inner")
            return _run_async(read())

        assert asyncio.run(outer()) == "inner"

    def test_async_tool_from_everywhere(self):
        client = CachedClient()

        async def handler(args, **kwargs):
            return json.dumps(await client.use())

        registry.register("suite_async", "suite", {"description": "d"}, handler, is_async=True)
        try:
            assert handle_function_call("suite_async", {}) == handle_function_call("suite_async", {}) == '"ok"'
            client = CachedClient()
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(handle_function_call, "suite_async", {}).result(10) == '"ok"'
            client = CachedClient()

            async def outer():
                return handle_function_call("suite_async", {}), registry.dispatch("suite_async", {})

            assert asyncio.run(outer()) == ('"ok"', '"ok"')
        finally:
            registry.deregister("suite_async")


class TestInterrupt:
    @pytest.fixture(autouse=True)
    def clear(self):
        yield
        clear_current_thread_interrupt()

    def test_this_thread(self):
        assert is_interrupted() is False
        set_interrupt(True)
        assert is_interrupted() is _interrupt_event.is_set() is True
        clear_current_thread_interrupt()
        assert is_interrupted() is False

    def test_another_thread(self):
        ready, go, seen = threading.Event(), threading.Event(), []

        def work():
            ready.set()
            go.wait(10)
            seen.append(is_interrupted())
            clear_current_thread_interrupt()

        thread = threading.Thread(target=work)
        thread.start()
        ready.wait(10)
        set_interrupt(True, thread.ident)
        go.set()
        thread.join(10)
        assert seen == [True]
        assert is_interrupted() is False

    def test_waiting_for_it(self):
        assert _interrupt_event.wait(0) is False
        me = threading.get_ident()
        thread = threading.Thread(target=lambda: set_interrupt(True, me))
        thread.start()
        assert _interrupt_event.wait(10) is True
        thread.join(10)
        _interrupt_event.clear()
        assert not _interrupt_event.is_set()


def test_propagated_context():
    variable = contextvars.ContextVar("suite_propagated", default="unset")
    variable.set("set")
    run = propagate_context_to_thread(lambda extra="": variable.get() + extra)
    variable.set("later")
    with ThreadPoolExecutor(2) as pool:
        assert [future.result(10) for future in (pool.submit(run), pool.submit(run, "!"))] == ["set", "set!"]


def test_tool_search():
    schema = {"description": "Counts sheep at night", "parameters": {"type": "object", "properties": {}}}
    registry.register("suite_sheep", "suite", schema, lambda args, **kw: "{}")
    try:
        assert {"tool_search", "tool_describe", "tool_call"} == set(BRIDGE_TOOL_NAMES)
        assert is_deferrable_tool_name("suite_sheep")
        assert not is_deferrable_tool_name("todo")
        assert not is_deferrable_tool_name("no_such_tool")
        assert (
            search_catalog(build_catalog(registry.get_definitions({"suite_sheep"})), "sheep")[0].name == "suite_sheep"
        )
        found = json.loads(handle_function_call("tool_search", {"query": "sheep"}))
        assert found["matches"][0]["name"] == "suite_sheep"
        assert json.loads(handle_function_call("tool_describe", {"name": "suite_sheep"}))["name"] == "suite_sheep"
        assert handle_function_call("tool_call", {"name": "suite_sheep", "arguments": {}}) == "{}"
        assert get_tool_definitions(["suite"], quiet_mode=True, skip_tool_search_assembly=True)
    finally:
        registry.deregister("suite_sheep")
