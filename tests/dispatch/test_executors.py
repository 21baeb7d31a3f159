"""How the pipeline waits on each executor."""

import asyncio
import threading
import weakref

import pytest

from toolcrib.bridge import Bridge
from toolcrib.core.cancel import CancelToken
from toolcrib.dispatch.executors import (
    AsyncExecutor,
    CallCancelled,
    CallLimit,
    CallTimedOut,
    DaemonPool,
    SyncExecutor,
    drive,
)


@pytest.fixture
def edges():
    pool, bridge = DaemonPool(2), Bridge()
    yield AsyncExecutor(pool), SyncExecutor(bridge)
    pool.close()
    bridge.close()


async def waits_for_ever():
    await asyncio.Event().wait()


def test_a_synchronous_call_is_driven_without_a_loop(edges):
    """On the sync executor nothing suspends, so one send runs the coroutine to its end."""
    _, sync = edges

    async def work():
        return await sync.wait(asyncio.sleep(0, "a")) + await sync.block(lambda: "b", None, None)

    assert drive(work()) == "ab"


def test_a_wait_around_the_edge_is_an_error():
    """Whoever waits by himself on the sync executor hears that he must not."""
    with pytest.raises(RuntimeError, match="through the executor"):
        drive(asyncio.sleep(0))


async def test_awaitables_that_are_no_coroutines_can_be_waited_for(edges):
    """Futures and objects with __await__ are fine on both edges."""

    class Ready:
        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            return "ready"

    waiting, sync = edges
    assert await waiting.wait(Ready()) == "ready"
    assert await asyncio.to_thread(lambda: drive(sync.wait(Ready()))) == "ready"


async def test_bounds_raise_what_stopped_the_wait(edges):
    """A deadline and a token are told apart, on both edges."""
    token = CancelToken()
    token.cancel()
    for executor in edges:

        def act(seconds, cancel, executor=executor):
            return drive(SyncExecutor.wait_bounded(executor, waits_for_ever(), CallLimit(seconds, cancel)))

        if isinstance(executor, SyncExecutor):
            with pytest.raises(CallTimedOut):
                await asyncio.to_thread(act, 0.01, None)
            with pytest.raises(CallCancelled):
                await asyncio.to_thread(act, None, token)
        else:
            with pytest.raises(CallTimedOut):
                await executor.wait_bounded(waits_for_ever(), CallLimit(0.01))
            with pytest.raises(CallCancelled):
                await executor.wait_bounded(waits_for_ever(), CallLimit(None, token))


async def test_a_handler_may_answer_its_cancellation(edges):
    """What has ended when the bound is reached counts, also if it ended with an exception."""

    async def fails():
        raise ValueError("own reason")

    with pytest.raises(ValueError, match="own reason"):
        await edges[0].wait_bounded(fails(), CallLimit(5, CancelToken()))


async def test_a_finished_call_leaves_its_token_alone(edges):
    """A token outlives thousands of calls and keeps nothing of them."""
    token = CancelToken()
    for _ in range(3):
        await edges[0].wait_bounded(asyncio.sleep(0), CallLimit(5, token))
    assert token._callbacks == {}


def test_a_parent_cancels_its_children_and_keeps_none_alive():
    """Cancellation goes down the tree; a child that nobody holds is forgotten."""
    parent = CancelToken()
    kept, dropped = CancelToken(parent), CancelToken(parent)
    gone = weakref.ref(dropped)
    del dropped
    assert gone() is None
    assert len(parent._callbacks) == 1
    parent.cancel("stop")
    assert (kept.cancelled, kept.reason) == (True, "stop")
    assert CancelToken(parent).cancelled


def test_a_child_does_not_cancel_its_parent():
    """Cancellation never goes up."""
    parent = CancelToken()
    CancelToken(parent).cancel()
    assert not parent.cancelled


def test_every_listener_hears_a_cancellation_once(caplog):
    """A listener that fails does not keep the others from hearing it; a late one hears it at once."""
    heard = []
    token = CancelToken()
    token.on_cancel(lambda: 1 / 0)
    token.on_cancel(lambda: heard.append("second"))
    forget = token.on_cancel(lambda: heard.append("forgotten"))
    forget()
    token.cancel()
    token.cancel()
    token.on_cancel(lambda: heard.append("late"))
    assert heard == ["second", "late"]
    assert "listener" in caplog.text


def test_a_thread_can_wait_for_a_cancellation():
    """wait says whether the token was cancelled or the time ran out."""
    token = CancelToken()
    assert token.wait(0) is False
    threading.Thread(target=token.cancel).start()
    assert token.wait(30) is True
