"""Hooks and middleware around one call: order, keywords, answers, failures, on both edges."""

import asyncio
import functools
import json
import threading

import pytest

from toolcrib.core.approvals import ApprovalAnswer
from toolcrib.core.types import Effect
from toolcrib.hooks.specs import HOOKS, MIDDLEWARE

IDS = {"task_id": "task", "session_id": "session", "turn_id": "turn", "api_request_id": "request"}


class Person:
    def __init__(self):
        self.questions = []

    async def ask(self, request):
        danger = request.dangers[0]
        self.questions.append((request.command, danger.reason, danger.rule))
        return ApprovalAnswer(choice="once")


def echo(args, **kwargs):
    return json.dumps(args)


async def echo_async(args, **kwargs):
    await asyncio.sleep(0)
    return json.dumps(args)


@pytest.fixture(params=["async", "sync"])
def call(request):
    """Calls a tool from a coroutine or from synchronous code."""

    async def run(runtime, name, arguments=None, **fields):
        ctx = runtime.context(**fields)
        if request.param == "async":
            return await runtime.call(name, arguments or {}, ctx=ctx)
        return await asyncio.to_thread(runtime.call_sync, name, arguments or {}, ctx)

    return run


@pytest.fixture(params=["sync handler", "async handler"])
def echoing(request, runtime, add_tool):
    """A runtime whose tool `echo` answers with its arguments."""
    is_async = request.param == "async handler"
    add_tool(runtime, "echo", echo_async if is_async else echo, is_async=is_async)
    return runtime


async def test_hooks_receive_exactly_the_keywords_of_the_contract(echoing, call):
    """Each hook of a call receives what its specification lists, and the schema version."""
    seen = {}
    for name in ("pre_tool_call", "post_tool_call", "transform_tool_result"):
        echoing.hooks.register(name, lambda name=name, **kwargs: seen.__setitem__(name, kwargs))

    await call(echoing, "echo", {"n": 1}, call_id="call", **IDS)

    for name, kwargs in seen.items():
        assert kwargs.keys() == {*HOOKS[name].keywords, "telemetry_schema_version"}
        assert {key: kwargs[key] for key in IDS} == IDS
        assert (kwargs["tool_name"], kwargs["args"], kwargs["tool_call_id"]) == ("echo", {"n": 1}, "call")
        assert kwargs["telemetry_schema_version"] == "hermes.observer.v1"
    post = seen["post_tool_call"]
    assert (post["result"], post["status"], post["error_type"], post["error_message"]) == ('{"n": 1}', "ok", None, None)
    assert post["duration_ms"] >= 0


async def test_middleware_receives_the_keywords_of_the_contract(echoing, call):
    """Each middleware receives what its specification lists, and its schema version."""
    seen = {}
    echoing.hooks.register_middleware("tool_request", lambda **kwargs: seen.__setitem__("tool_request", kwargs))

    def execution(**kwargs):
        seen["tool_execution"] = kwargs
        return kwargs["next_call"]()

    echoing.hooks.register_middleware("tool_execution", execution)
    await call(echoing, "echo", {"n": 1}, call_id="call", **IDS)

    for kind, kwargs in seen.items():
        assert kwargs.keys() >= {*MIDDLEWARE[kind].keywords, "middleware_schema_version"}
        assert kwargs["middleware_schema_version"] == "hermes.middleware.v1"
        assert (kwargs["args"], kwargs["original_args"]) == ({"n": 1}, {"n": 1})


async def test_everything_happens_in_the_order_of_the_pipeline(echoing, call):
    """Request middleware, pre hooks, execution middleware, handler, post hooks, transform; each in order of arrival."""
    order = []

    def noting(word):
        return lambda **kwargs: order.append(word)

    def wrapping(word):
        def layer(next_call, **kwargs):
            order.append(f"{word} in")
            answer = next_call()
            order.append(f"{word} out")
            return answer

        return layer

    hooks = echoing.hooks
    hooks.register("transform_tool_result", noting("transform"))
    hooks.register("post_tool_call", noting("post 1"))
    hooks.register("post_tool_call", noting("post 2"))
    hooks.register_middleware("tool_execution", wrapping("outer"))
    hooks.register_middleware("tool_execution", wrapping("inner"))
    hooks.register("pre_tool_call", noting("pre 1"))
    hooks.register("pre_tool_call", noting("pre 2"))
    hooks.register_middleware("tool_request", noting("request"))

    await call(echoing, "echo")

    assert order == [
        "request", "pre 1", "pre 2", "outer in", "inner in", "inner out", "outer out", "post 1", "post 2", "transform",
    ]  # fmt: skip


async def test_async_callbacks_are_awaited(echoing, call):
    """Hooks may be coroutines everywhere."""

    async def block(**kwargs):
        await asyncio.sleep(0)
        return {"action": "block", "message": "not today"}

    async def transform(result):
        await asyncio.sleep(0)
        return f"seen: {result}"

    echoing.hooks.register("pre_tool_call", block)
    echoing.hooks.register("transform_tool_result", transform)
    result = await call(echoing, "echo")
    assert result.status == "blocked"
    assert result.content.startswith("seen: ")


async def test_a_block_stops_the_call_and_is_told(runtime, add_tool, call):
    """A blocked call runs nothing; its message is the error, and post hooks hear of it."""
    ran, seen = [], []
    add_tool(runtime, "tool", lambda args, **kwargs: ran.append(1) or "ok")
    runtime.hooks.register("pre_tool_call", lambda: {"action": "block", "message": "not on Sundays"})
    runtime.hooks.register("post_tool_call", lambda **kwargs: seen.append((kwargs["status"], kwargs["error_type"])))
    result = await call(runtime, "tool")
    assert json.loads(result.content)["error"] == "not on Sundays"
    assert (ran, seen) == ([], [("blocked", "plugin_block")])


async def test_the_first_valid_answer_of_pre_hooks_wins(echoing, call):
    """What is no directive is passed over; after a directive the others still see the call."""
    seen = []
    answers = [None, "block", {"action": "dance"}, {"action": "block", "message": "first"}]
    answers += [{"action": "block", "message": "second"}, {"action": "approve"}]
    for answer in answers:
        echoing.hooks.register("pre_tool_call", lambda answer=answer, **kwargs: seen.append(1) or answer)
    result = await call(echoing, "echo")
    assert result.error_message == "first"
    assert len(seen) == len(answers)


async def test_a_pre_hook_that_raises_blocks_the_call(runtime, add_tool, call):
    """A policy that cannot be asked does not mean yes; its error text is cleaned."""
    ran = []
    add_tool(runtime, "tool", lambda args, **kwargs: ran.append(1) or "ok")

    def broken(**kwargs):
        raise RuntimeError("<system>lost</system>")

    runtime.hooks.register("pre_tool_call", broken)
    result = await call(runtime, "tool")
    assert (result.status, result.error_type, ran) == ("blocked", "plugin_block", [])
    assert "could not check this call: lost" in json.loads(result.content)["error"]


async def test_an_observer_that_raises_does_not_block(echoing, call):
    """A callback registered as an observer only watches."""

    def broken(**kwargs):
        raise RuntimeError("lost")

    echoing.hooks.register("pre_tool_call", broken, observer=True)
    assert (await call(echoing, "echo")).status == "ok"


async def test_approve_asks_the_person_and_without_one_means_no(make_runtime, add_tool, call):
    """`approve` goes to the gate, keyed by its reason; nobody there means deny."""
    person = Person()
    lonely, attended = make_runtime(), make_runtime(approver=person)
    for runtime in (lonely, attended):
        add_tool(runtime, "echo", echo)
        runtime.hooks.register("pre_tool_call", lambda: {"action": "approve", "message": "costs money"})
    assert (await call(lonely, "echo")).error_type == "denied"
    assert (await call(attended, "echo")).content == "{}"
    assert person.questions == [("echo()", "costs money", "plugin_rule:echo:costs money")]


async def test_post_hooks_that_raise_are_only_logged(echoing, call, caplog):
    """A failing observer costs neither the result nor the other observers."""
    seen = []

    def broken(**kwargs):
        raise RuntimeError("lost")

    echoing.hooks.register("post_tool_call", broken)
    echoing.hooks.register("post_tool_call", lambda: seen.append(1))
    echoing.hooks.register("transform_tool_result", broken)
    echoing.hooks.register("transform_tool_result", lambda: 5)
    echoing.hooks.register("transform_tool_result", lambda: "first text")
    echoing.hooks.register("transform_tool_result", lambda: "second text")
    result = await call(echoing, "echo")
    assert (result.content, seen) == ("first text", [1])
    assert sum("failed" in record.message for record in caplog.records) == 2


async def test_request_middleware_chains(echoing, call):
    """Each sees the arguments that the one before left, and the original beside them; the trace names them."""
    seen, traces = [], []

    def adding(number):
        def middleware(args, original_args):
            seen.append((dict(args), dict(original_args)))
            return {"args": {**args, "n": args["n"] + number}}

        return middleware

    echoing.hooks.register_middleware("tool_request", adding(1))
    echoing.hooks.register_middleware("tool_request", adding(10))
    echoing.hooks.register("pre_tool_call", lambda middleware_trace: traces.append(len(middleware_trace)))
    result = await call(echoing, "echo", {"n": 0})
    assert result.content == '{"n": 11}'
    assert seen == [({"n": 0}, {"n": 0}), ({"n": 1}, {"n": 0})]
    assert traces == [2]


async def test_rewritten_arguments_are_validated_again(echoing, call):
    """Neither middleware nor a hook can hand a handler what its schema refuses."""
    remove = echoing.hooks.unregister

    def by_request(args):
        return {"args": {"n": "many"}}

    def by_pre_hook(args):
        args["n"] = "many"

    def by_execution(args, next_call):
        return next_call({"n": "many"})

    echoing.hooks.register_middleware("tool_request", by_request)
    assert (await call(echoing, "echo")).error_type == "invalid_arguments"
    remove(by_request)
    echoing.hooks.register("pre_tool_call", by_pre_hook)
    assert (await call(echoing, "echo")).error_type == "invalid_arguments"
    remove(by_pre_hook)
    echoing.hooks.register_middleware("tool_execution", by_execution)
    assert (await call(echoing, "echo")).error_type == "invalid_arguments"
    remove(by_execution)
    assert (await call(echoing, "echo")).status == "ok"


async def test_request_middleware_that_fails_half_way_changes_nothing(echoing, call):
    """Only what is returned counts."""

    def broken(args, original_args):
        args["n"] = original_args["n"] = 99
        raise RuntimeError("lost")

    echoing.hooks.register_middleware("tool_request", broken)
    assert (await call(echoing, "echo", {"n": 1})).content == '{"n": 1}'


async def test_arguments_changed_at_the_last_moment_pass_the_gate_again(make_runtime, add_tool, call):
    """Execution middleware that changes the arguments cannot smuggle an effect past the person."""
    person = Person()
    runtime = make_runtime(approver=person)
    add_tool(runtime, "eraser", echo, effects=lambda args, ctx: [Effect("delete", f"/data/{args['n']}")])
    runtime.hooks.register_middleware("tool_execution", lambda args, next_call: next_call({"n": 2}))
    assert (await call(runtime, "eraser", {"n": 1})).content == '{"n": 2}'
    assert [question[0] for question in person.questions] == ["eraser(n=1)", "eraser(n=2)"]


def plain_layer(args, next_call, **kwargs):
    return f"<{next_call({**args, 'n': args['n'] + 1})}>"


async def async_layer(args, next_call, **kwargs):
    await asyncio.sleep(0)
    return f"[{await next_call({**args, 'n': args['n'] + 1})}]"


class CallableLayer:
    async def __call__(self, args, next_call, **kwargs):
        return await async_layer(args, next_call)


@pytest.mark.parametrize("deadline", [None, 60])
@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([plain_layer, plain_layer], '<<{"n": 2}>>'),
        ([async_layer, async_layer], '[[{"n": 2}]]'),
        ([plain_layer, async_layer, plain_layer, async_layer], '<[<[{"n": 4}]>]>'),
        ([async_layer, plain_layer, async_layer, plain_layer], '[<[<{"n": 4}>]>]'),
        ([functools.partial(async_layer), CallableLayer()], '[[{"n": 2}]]'),
    ],
)
async def test_execution_middleware_of_every_kind_can_be_mixed(echoing, call, layers, expected, deadline):
    """Plain and async layers wrap plain and async handlers on both edges, with and without a deadline."""
    import time

    for layer in layers:
        echoing.hooks.register_middleware("tool_execution", layer)
    ends = None if deadline is None else time.monotonic() + deadline
    assert (await call(echoing, "echo", {"n": 0}, deadline=ends)).content == expected


async def test_async_middleware_keeps_the_handler_on_its_usual_loop(runtime, add_tool):
    """Clients that a handler caches stay usable when async middleware comes or goes."""
    loops = []

    async def where(args, **kwargs):
        loops.append(asyncio.get_running_loop())
        return "ok"

    async def layer(next_call):
        return await next_call()

    def use():
        runtime.call_sync("where", {})
        runtime.hooks.register_middleware("tool_execution", layer)
        runtime.call_sync("where", {})

    add_tool(runtime, "where", where, is_async=True)
    await asyncio.to_thread(use)
    assert loops[0] is loops[1]


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_handler_runs_once_whatever_middleware_does(runtime, add_tool, call, is_async):
    """A layer that raises before, after, or calls twice never makes the handler run twice, nor not at all."""
    ran = []
    add_tool(runtime, "tool", lambda args, **kwargs: ran.append(1) or "result")

    def before(next_call):
        raise RuntimeError("before")

    def after(next_call):
        next_call()
        raise RuntimeError("after")

    def twice(next_call):
        next_call()
        return next_call()

    async def before_async(next_call):
        raise RuntimeError("before")

    async def after_async(next_call):
        await next_call()
        raise RuntimeError("after")

    async def twice_async(next_call):
        await next_call()
        return await next_call()

    layers = (before_async, after_async, twice_async) if is_async else (before, after, twice)
    for layer in layers:
        runtime.hooks.register_middleware("tool_execution", layer)
        assert (await call(runtime, "tool")).content == "result"
    assert len(ran) == len(layers)


async def test_a_handler_s_failure_is_not_hidden_by_middleware_that_fails(runtime, add_tool, call):
    """The error of the handler is the one that the model hears of."""

    def broken(args, **kwargs):
        raise ValueError("the real reason")

    def layer(next_call):
        try:
            return next_call()
        except ValueError:
            raise RuntimeError("while cleaning up") from None

    add_tool(runtime, "broken", broken)
    runtime.hooks.register_middleware("tool_execution", layer)
    result = await call(runtime, "broken")
    assert json.loads(result.content) == {"error": "Tool execution failed: ValueError: the real reason"}


async def test_middleware_may_answer_by_itself(runtime, add_tool, call):
    """A layer that does not run the rest gives the result."""
    ran = []
    add_tool(runtime, "tool", lambda args, **kwargs: ran.append(1) or "ok")
    runtime.hooks.register_middleware("tool_execution", lambda **kwargs: "from the cache")
    assert (await call(runtime, "tool")).content == "from the cache"
    assert ran == []


async def test_plain_middleware_that_gives_a_coroutine_is_passed_over(echoing, call):
    """A lambda around async middleware cannot work; it is logged, and the call goes on without a warning."""
    echoing.hooks.register_middleware("tool_execution", lambda **kwargs: async_layer(**kwargs))
    assert (await call(echoing, "echo", {"n": 0})).content == '{"n": 0}'


async def test_a_full_pool_of_plain_middleware_does_not_wait_for_itself(runtime, add_tool):
    """150 calls through two blocking layers to a blocking handler all end."""
    add_tool(runtime, "echo", echo)
    runtime.hooks.register_middleware("tool_execution", plain_layer)
    runtime.hooks.register_middleware("tool_execution", plain_layer)
    calls = (runtime.call("echo", {"n": number}) for number in range(150))
    results = await asyncio.wait_for(asyncio.gather(*calls), 30)
    assert [result.content for result in results] == [f'<<{{"n": {number + 2}}}>>' for number in range(150)]


async def test_cancelling_the_caller_reaches_a_handler_behind_plain_middleware(runtime, add_tool):
    """A blocking layer in between does not keep the handler running."""
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def waits(args, **kwargs):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    add_tool(runtime, "waits", waits, is_async=True)
    runtime.hooks.register_middleware("tool_execution", lambda next_call: next_call())
    calling = asyncio.create_task(runtime.call("waits", {}))
    await running.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await asyncio.wait_for(cancelled.wait(), 60)


async def test_hooks_see_the_agent_s_own_tools(make_runtime, add_tool):
    """Tools of the agent loop take the same pipeline as all others in Runtime.call."""
    from toolcrib.registry.default import registry as default_registry
    from toolcrib.registry.registry import ToolRegistry

    class Plan:
        async def handle(self, args, ctx):
            return '{"todos": []}'

    seen = []
    runtime = make_runtime(registry=ToolRegistry(parent=default_registry), services={"todo": Plan()})
    for name in ("pre_tool_call", "post_tool_call"):
        runtime.hooks.register(name, lambda tool_name, name=name: seen.append((name, tool_name)))
    assert (await runtime.call("todo", {})).content == '{"todos": []}'
    assert seen == [("pre_tool_call", "todo"), ("post_tool_call", "todo")]


def test_threads_that_register_at_once_lose_nothing(runtime):
    """Registration is safe from several threads."""
    threads = [
        threading.Thread(target=lambda: [runtime.hooks.register("post_tool_call", lambda: None) for _ in range(50)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runtime.hooks.hooks("post_tool_call")) == 400
