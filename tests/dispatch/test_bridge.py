"""Coroutines from synchronous code: from the main thread, from worker threads, from inside a running loop."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from toolcrib.bridge import Bridge, NestedCallTimeout


@pytest.fixture
def bridge():
    made = Bridge()
    yield made
    made.close()


async def loop_of_this_call():
    return asyncio.get_running_loop()


async def fails():
    raise ValueError("no")


def on_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(30)


def bridge_threads():
    return [thread for thread in threading.enumerate() if thread.name == "toolcrib-bridge"]


def wait_until(condition, seconds=10.0):
    """Waits for a thread that nothing can be awaited of; False when the time ran out."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.005)
    return True


def test_the_main_thread_keeps_one_open_loop(bridge):
    """Clients cached between two calls find the same loop, still open."""
    first = bridge.run(loop_of_this_call())
    assert bridge.run(loop_of_this_call()) is first
    assert not first.is_closed()


def test_a_lock_made_in_one_call_works_in_the_next(bridge):
    """What is bound to the loop stays usable between calls, waiters included."""
    queue = asyncio.Queue(maxsize=1)

    async def put_and_get():
        getter = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        await queue.put("x")
        return await getter

    assert [bridge.run(put_and_get()) for _ in range(3)] == ["x", "x", "x"]


def test_each_worker_thread_has_a_loop_of_its_own_that_persists(bridge):
    """A coroutine from a worker thread runs on that thread's own loop, the same for each call."""

    def twice():
        return bridge.run(loop_of_this_call()), bridge.run(loop_of_this_call())

    first, second = on_a_thread(twice)
    assert first is second
    assert first is not bridge.run(loop_of_this_call())


def test_the_loop_of_a_thread_is_closed_when_the_thread_ends(bridge):
    """No loop is left open, and what was left on it was cancelled without complaint."""
    cancelled = []

    async def leaves_a_task():
        async def background():
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(1)

        bridge.kept = asyncio.create_task(background())
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop = on_a_thread(lambda: bridge.run(leaves_a_task()))
        gc.collect()
    assert wait_until(loop.is_closed)
    assert cancelled == [1]


async def test_inside_a_running_loop_the_coroutine_runs_on_another_thread(bridge):
    """A loop that runs cannot run another coroutine to its end, so a spare thread does."""

    async def where():
        return threading.current_thread().name, asyncio.get_running_loop()

    name, loop = bridge.run(where())
    assert name == "toolcrib-bridge"
    assert loop is not asyncio.get_running_loop()
    assert bridge.run(where()) == (name, loop)


async def test_context_variables_reach_the_coroutine(bridge):
    """The coroutine sees the caller's context on every kind of thread."""
    from contextvars import ContextVar

    variable = ContextVar("variable", default="unset")
    variable.set("set")

    async def read():
        return variable.get()

    assert bridge.run(read()) == "set"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("place", ["main", "thread", "loop"])
def test_what_the_coroutine_raises_reaches_the_caller_and_the_next_call_works(bridge, caplog, error, place):
    """Every exception, Ctrl-C included, passes, and asyncio has nothing to report about it."""

    async def raises():
        raise error

    def act():
        with pytest.raises(error):
            bridge.run(raises())
        return bridge.run(asyncio.sleep(0, "fine"))

    async def act_inside():
        return act()

    with caplog.at_level(logging.WARNING):
        answer = {"main": act, "thread": lambda: on_a_thread(act), "loop": lambda: asyncio.run(act_inside())}[place]()
        gc.collect()
    assert answer == "fine"
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_an_interrupted_task_does_not_wake_up_in_the_next_call(bridge):
    """Ctrl-C while the loop runs cancels the coroutine: it is over when the caller knows of it."""
    ended = []

    async def waits():
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bridge.run(waits())
    assert ended == [1]
    assert bridge.run(asyncio.sleep(0, "fine")) == "fine"


async def test_past_the_deadline_the_coroutine_is_cancelled_in_its_own_loop():
    """The caller gets a timeout, the coroutine a cancellation, and the thread ends."""
    bridge = Bridge(nested_call_timeout_seconds=0.02)
    before = set(bridge_threads())
    cancelled = threading.Event()

    async def waits():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(NestedCallTimeout, match=r"0\.02 seconds"):
        bridge.run(waits())
    assert cancelled.wait(30)
    assert wait_until(lambda: not set(bridge_threads()) - before)
    bridge.close()


async def test_the_caller_does_not_wait_for_a_coroutine_that_refuses_to_end(caplog):
    """A coroutine that swallows its cancellation loses its loop; its thread ends without a word."""
    bridge = Bridge(nested_call_timeout_seconds=0.02)
    before = set(bridge_threads())
    refused = threading.Event()

    async def stubborn():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                refused.set()

    with pytest.raises(NestedCallTimeout):
        bridge.run(stubborn())
    assert refused.wait(30)
    assert wait_until(lambda: not set(bridge_threads()) - before)
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    assert bridge.run(asyncio.sleep(0, "fine")) == "fine"
    bridge.close()


async def test_a_deadline_of_nothing_leaves_no_coroutine_unawaited():
    """Even where the thread had no time to begin, the coroutine is taken care of."""
    bridge = Bridge(nested_call_timeout_seconds=0.0)
    before = set(bridge_threads())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            with pytest.raises(NestedCallTimeout):
                bridge.run(asyncio.sleep(60))
        assert wait_until(lambda: not set(bridge_threads()) - before)
        gc.collect()
    bridge.close()


def test_calls_nest_to_any_depth(bridge):
    """Sync code in a coroutine in sync code in a coroutine: each level finds a place to run."""

    async def level(depth):
        await asyncio.sleep(0)
        return 0 if depth == 0 else 1 + bridge.run(level(depth - 1))

    assert bridge.run(level(6)) == 6


async def test_two_hundred_nested_calls_at_once(bridge):
    """Many threads, each inside a loop of its own, use the bridge at the same time."""

    async def inner(number):
        await asyncio.sleep(0.001)
        return number

    async def outer(number):
        return bridge.run(inner(number))

    def call(number):
        return bridge.run(outer(number))

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(40) as pool:
        answers = await asyncio.gather(*(loop.run_in_executor(pool, call, number) for number in range(200)))
    assert answers == list(range(200))


def test_close_is_idempotent_and_ends_threads_and_loops():
    """After close nothing is left behind, and a second close is no error."""
    bridge = Bridge()
    before = set(bridge_threads())
    main_loop = bridge.run(loop_of_this_call())

    async def nested():
        return bridge.run(loop_of_this_call())

    spare_loop = asyncio.run(nested())
    bridge.close()
    bridge.close()
    assert main_loop.is_closed()
    assert wait_until(lambda: not set(bridge_threads()) - before)
    assert wait_until(spare_loop.is_closed)


async def test_close_works_inside_a_running_loop():
    """A runtime that was used from synchronous code may be closed by `async with`."""
    bridge = Bridge()
    loop = bridge.loop()
    bridge.close()
    assert loop.is_closed()


FORKED = """
import asyncio, os, sys, threading, time
from toolcrib.bridge import Bridge
from toolcrib.dispatch.executors import DaemonPool

bridge, pool = Bridge(nested_call_timeout_seconds=20), DaemonPool(2)

async def nested():
    return bridge.run(asyncio.sleep(0, "nested")) + await pool.run(lambda: "pool")

def use():
    return bridge.run(asyncio.sleep(0, "plain")) + asyncio.run(nested())

assert use() == "plainnestedpool"
parent_loop = bridge.loop()
child = os.fork()
if child == 0:
    assert use() == "plainnestedpool"
    assert bridge.loop() is not parent_loop
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert use() == "plainnestedpool"

async def wakes_up():
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Timer(0.05, lambda: loop.call_soon_threadsafe(woken.set)).start()
    started = time.monotonic()
    await asyncio.wait_for(woken.wait(), 20)
    return time.monotonic() - started

assert bridge.run(wakes_up()) < 15
assert bridge.loop() is parent_loop
bridge.close()
pool.close()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_loops_and_threads_of_its_own():
    """Threads do not survive a fork, and a loop shared with the parent would steal its events."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_an_interrupt_inside_an_inner_task_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C that hits a task of the coroutine reaches the caller, and is not reported a second time by asyncio."""
    bridge = Bridge()

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def wait() -> None:
        await asyncio.wait_for(interrupted(), 10)

    with pytest.raises(KeyboardInterrupt):
        bridge.run(wait())
    bridge.close()
    gc.collect()

    assert [record for record in caplog.records if record.name == "asyncio"] == []
