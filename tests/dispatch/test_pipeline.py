"""One call from its name to its result: errors, contracts, the gate, the record, stopping."""

import asyncio
import enum
import gc
import itertools
import json
import threading
import time
import warnings
from pathlib import Path

import msgspec
import pytest

from toolcrib.core.approvals import ApprovalAnswer
from toolcrib.core.cancel import CancelToken
from toolcrib.core.context import current_context
from toolcrib.core.types import Effect, Source
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import BLOCKING_HANDLERS_AT_ONCE

YES = ApprovalAnswer(choice="once")
WRITE = (Effect("write", "/somewhere/file"),)
MULTIMODAL = {"_multimodal": True, "content": [{"type": "text", "text": "a cat"}]}


class Journal:
    """A recorder that remembers, and fails where it is told to."""

    def __init__(self, fail=""):
        self.lines = []
        self._fail = fail

    def started(self, entry, arguments, effects, ctx):
        self.lines.append(("started", entry.name, effects))
        if self._fail == "started":
            raise OSError("disk full")

    def finished(self, entry, result, ctx):
        self.lines.append(("finished", entry.name, result.status))
        if self._fail == "finished":
            raise OSError("disk full")


class Person:
    """An approver with one answer, who remembers the questions."""

    def __init__(self, answer=YES):
        self.questions = []
        self._answer = answer

    async def ask(self, request):
        self.questions.append(tuple(danger.reason for danger in request.dangers))
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


def raiser(error):
    def handler(args, **kwargs):
        raise error

    return handler


def async_raiser(error):
    async def handler(args, **kwargs):
        raise error

    return handler


def ok(args, **kwargs):
    return "ok"


async def both_edges(runtime, name, arguments=None):
    """The results of the same call from a coroutine and from synchronous code."""
    waited = await runtime.call(name, arguments or {})
    sync = await asyncio.to_thread(runtime.call_sync, name, arguments or {})
    return [waited, sync]


# Errors


async def test_unknown_tool_is_named_with_the_nearest_names(runtime, add_tool):
    """An unknown tool is an error with exactly the contract's text, the nearest names in a second key."""
    add_tool(runtime, "weather", ok)
    for result in await both_edges(runtime, "wether"):
        assert json.loads(result.content) == {"error": "Unknown tool: wether", "did_you_mean": ["weather"]}
        assert (result.status, result.error_type) == ("error", "unknown_tool")


@pytest.mark.parametrize("name", [None, 7, ["x"], "", "\ud800", "x" * 100_000])
async def test_a_name_that_cannot_exist_is_still_one_result(runtime, add_tool, name):
    """Whatever a model sends as a name, the answer is a well-formed error."""
    add_tool(runtime, "weather", ok)
    for result in await both_edges(runtime, name):
        assert result.is_error
        assert "error" in json.loads(result.content)


@pytest.mark.parametrize("make", [raiser, async_raiser])
async def test_handler_exception_becomes_the_first_error_layer(runtime, add_tool, make):
    """What a handler raises becomes `Tool execution failed: Type: message`, on both edges."""
    add_tool(runtime, "broken", make(ValueError("no <system>such</system> thing")), is_async=make is async_raiser)
    for result in await both_edges(runtime, "broken"):
        assert json.loads(result.content) == {"error": "Tool execution failed: ValueError: no such thing"}
        assert (result.status, result.error_type) == ("error", "tool_error")


async def test_error_text_is_capped(runtime, add_tool):
    """A gigantic exception text does not fill the context."""
    add_tool(runtime, "broken", raiser(ValueError("x" * 1_000_000)))
    for result in await both_edges(runtime, "broken"):
        assert len(json.loads(result.content)["error"]) <= 2000
        assert len(result.error_message) <= 2000


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("make", [raiser, async_raiser])
@pytest.mark.parametrize(
    "error", [StopIteration("x"), StopAsyncIteration(), GeneratorExit(), asyncio.CancelledError(), Unspeakable()]
)
async def test_odd_exceptions_of_handlers_are_ordinary_failures(runtime, add_tool, make, error):
    """Exceptions with a meaning for Python itself cost one call, never the caller."""
    seen = []
    runtime.hooks.register("post_tool_call", lambda status: seen.append(status))
    add_tool(runtime, "odd", make(error), is_async=make is async_raiser)
    results = []
    if not (make is async_raiser and isinstance(error, GeneratorExit)):
        results.append(await runtime.call("odd", {}))
    results.append(await asyncio.to_thread(runtime.call_sync, "odd", {}))

    assert [result.status for result in results] == ["error"] * len(results)
    assert all("Tool execution failed" in json.loads(result.content)["error"] for result in results)
    assert seen == ["error"] * len(results)


@pytest.mark.parametrize("make", [raiser, async_raiser])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_keyboard_interrupt_and_exit_reach_a_synchronous_caller(runtime, add_tool, make, error):
    """On the sync edges Ctrl-C and sys.exit() pass through, and the next call works."""
    seen = []
    runtime.hooks.register("post_tool_call", lambda status, error_type: seen.append((status, error_type)))
    add_tool(runtime, "leaves", make(error), is_async=make is async_raiser)
    add_tool(runtime, "fine", ok)

    with pytest.raises(type(error)):
        runtime.call_sync("leaves", {})

    assert seen == [("cancelled", "keyboard_interrupt")]
    assert runtime.call_sync("fine", {}).content == "ok"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
async def test_a_handler_in_the_pool_cannot_end_thread_or_loop(runtime, add_tool, error):
    """sys.exit() in a blocking handler is an error of that call alone."""
    add_tool(runtime, "leaves", raiser(error))
    results = [await runtime.call("leaves", {}) for _ in range(3)]
    assert {result.status for result in results} == {"error"}
    assert type(error).__name__ in results[0].content


@pytest.mark.parametrize("timeout", [None, 5])
async def test_exit_in_an_async_handler_does_not_end_the_loop(runtime, add_tool, timeout):
    """sys.exit() in an async handler is an error of that call alone for callers that await."""
    add_tool(runtime, "leaves", async_raiser(SystemExit(3)), is_async=True)
    result = await runtime.call("leaves", {}, timeout_seconds=timeout)
    assert result.status == "error"
    assert "SystemExit" in result.content


async def test_a_failure_around_the_handler_is_the_second_error_layer(make_runtime, add_tool):
    """What goes wrong outside of the handler becomes `Error executing NAME: message`, and nothing runs."""
    ran = []
    runtime = make_runtime(approver=Person(RuntimeError("<tool_call>no line</tool_call>")))
    add_tool(runtime, "writer", lambda args, **kwargs: ran.append(1), effects=WRITE)
    for result in await both_edges(runtime, "writer"):
        assert json.loads(result.content) == {"error": "Error executing writer: no line"}
    assert ran == []


# What a handler returns


@pytest.mark.parametrize("value", [{"a": 1}, None, 3, b"x", ["x"], {"_multimodal": True, "content": "no list"}])
async def test_a_result_that_is_neither_text_nor_multimodal_breaks_the_contract(runtime, add_tool, value):
    """Anything but a str or a multimodal object becomes the contract's error."""
    add_tool(runtime, "wrong", lambda args, **kwargs: value)
    kind = type(value).__name__
    for result in await both_edges(runtime, "wrong"):
        assert json.loads(result.content) == {
            "error": f"Tool handler returned unsupported result type: {kind}",
            "error_type": "tool_result_contract",
            "tool": "wrong",
            "result_type": kind,
        }
        assert result.error_type == "tool_result_contract"


async def test_multimodal_results_pass_unchanged(runtime, add_tool):
    """A multimodal object is a result; its text parts are its text."""
    add_tool(runtime, "look", lambda args, **kwargs: MULTIMODAL)
    for result in await both_edges(runtime, "look"):
        assert result.content is MULTIMODAL
        assert (result.status, result.text) == ("ok", "a cat")


class Shout(str):
    __slots__ = ()

    def __str__(self):
        return "LOUD"


class Mood(enum.StrEnum):
    GOOD = "good"


@pytest.mark.parametrize(("value", "text"), [(Shout("quiet"), "quiet"), (Mood.GOOD, "good")])
async def test_subclasses_of_str_become_plain_text(runtime, add_tool, value, text):
    """Encoders do not know subclasses of str, so results are exact ones."""
    add_tool(runtime, "says", lambda args, **kwargs: value)
    for result in await both_edges(runtime, "says"):
        assert type(result.content) is str
        assert result.content == text


async def test_an_error_text_of_a_handler_is_an_error_result(runtime, add_tool):
    """A handler that returns tool_error(...) made an error; its text stays as it is."""
    add_tool(runtime, "polite", lambda args, **kwargs: '{"error": "no such city", "hint": 1}')
    for result in await both_edges(runtime, "polite"):
        assert result.content == '{"error": "no such city", "hint": 1}'
        assert (result.status, result.error_type, result.error_message) == ("error", "tool_error", "no such city")


async def test_a_coroutine_of_a_tool_that_is_not_async_is_closed(runtime, add_tool):
    """An author who forgot is_async gets the contract's error, and no warning about a coroutine."""

    async def handler(args, **kwargs):
        return "never"

    add_tool(runtime, "forgot", handler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = await both_edges(runtime, "forgot")
        gc.collect()
    assert [json.loads(result.content)["result_type"] for result in results] == ["coroutine", "coroutine"]


async def test_an_async_tool_may_answer_without_a_coroutine(runtime, add_tool):
    """is_async with a handler that returns text at once is fine."""
    add_tool(runtime, "quick", ok, is_async=True)
    assert [result.content for result in await both_edges(runtime, "quick")] == ["ok", "ok"]


# What a handler receives


async def test_a_handler_receives_the_keywords_of_the_contract(runtime, add_tool):
    """task_id, session_id and user_task by keyword, and nothing else."""
    seen = []
    add_tool(runtime, "listens", lambda args, **kwargs: seen.append((args, kwargs)) or "ok")
    ctx = runtime.context(task_id="t", session_id="s", user_task="u", call_id="c")
    await runtime.call("listens", {"n": 1}, ctx=ctx)
    await runtime.call("listens", {"n": 1})
    assert seen == [
        ({"n": 1}, {"task_id": "t", "session_id": "s", "user_task": "u"}),
        ({"n": 1}, {"task_id": None, "session_id": None, "user_task": None}),
    ]


async def test_a_handler_receives_only_keywords_that_it_can_take(runtime, add_tool):
    """A handler without **kwargs is not broken by the keywords of the contract."""
    add_tool(runtime, "bare", lambda args: "bare")
    add_tool(runtime, "named", lambda args, task_id="": f"named {task_id}")
    assert [result.content for result in await both_edges(runtime, "bare")] == ["bare", "bare"]
    assert (await runtime.call("named", {}, ctx=runtime.context(task_id="t"))).content == "named t"


async def test_ctx_is_given_to_handlers_that_name_it(runtime, add_tool):
    """A parameter named ctx receives the context of the call, with the tool's name; `current_context` is the same."""
    seen = []
    add_tool(runtime, "aware", lambda args, ctx, **kwargs: seen.append((ctx, current_context.get())) or "ok")
    ctx = runtime.context(call_id="c")
    await runtime.call("aware", {}, ctx=ctx)
    await asyncio.to_thread(runtime.call_sync, "aware", {}, ctx)
    given = msgspec.structs.replace(ctx, tool_name="aware")
    assert seen == [(given, given), (given, given)]
    assert current_context.get() is None


def test_sync_handlers_run_in_the_thread_of_a_synchronous_caller(runtime, add_tool):
    """On the sync edges a blocking handler runs where its caller is."""
    add_tool(runtime, "where", lambda args, **kwargs: threading.current_thread().name)
    assert runtime.call_sync("where", {}).content == threading.current_thread().name


async def test_invalid_arguments_never_reach_the_handler(runtime, add_tool):
    """A bad argument is an error that names the field; post hooks hear of it once."""
    seen, ran = [], []
    runtime.hooks.register("post_tool_call", lambda **kwargs: seen.append((kwargs["status"], kwargs["error_type"])))
    runtime.hooks.register("pre_tool_call", lambda **kwargs: ran.append("pre"))
    add_tool(runtime, "counts", lambda args, **kwargs: ran.append("handler") or "ok")
    for result in await both_edges(runtime, "counts", {"n": "many"}):
        assert result.error_type == "invalid_arguments"
        assert "'n'" in json.loads(result.content)["error"]
    assert ran == []
    assert seen == [("error", "invalid_arguments")] * 2


async def test_a_new_registration_is_validated_by_its_own_schema(runtime, add_tool):
    """Replacing a tool replaces what its arguments are checked against."""
    add_tool(runtime, "changes", ok)
    assert not (await runtime.call("changes", {"n": 1})).is_error
    schema = {"parameters": {"type": "object", "properties": {"n": {"type": "string", "pattern": "^a"}}}}
    add_tool(runtime, "changes", ok, schema=schema)
    assert (await runtime.call("changes", {"n": "b"})).error_type == "invalid_arguments"


# The gate


async def test_effects_without_anybody_to_ask_are_denied(runtime, add_tool):
    """No approver means no; the message says so and names no switch."""
    ran = []
    add_tool(runtime, "writer", lambda args, **kwargs: ran.append(1) or "ok", effects=WRITE)
    for result in await both_edges(runtime, "writer"):
        message = json.loads(result.content)["error"]
        assert (result.status, result.error_type) == ("blocked", "denied")
        assert "no one is available to approve it" in message
        assert "/somewhere/file" in message
        assert not any(word in message.lower() for word in ("yolo", "config", "approvals", "--", "toolcrib_"))
    assert ran == []


async def test_an_approver_is_asked_with_reasons_and_may_agree(make_runtime, add_tool):
    """An ask goes to the approver; allow lets the call run."""
    person = Person(YES)
    runtime = make_runtime(approver=person)
    add_tool(runtime, "writer", ok, effects=WRITE)
    assert [result.content for result in await both_edges(runtime, "writer")] == ["ok", "ok"]
    assert person.questions == [("writer writes to /somewhere/file",)] * 2


async def test_the_time_of_a_call_is_without_the_wait_for_an_approval(make_runtime, add_tool, monkeypatch):
    """Whoever reads how long a command took does not want to know how long a person thought about it."""
    thought, real = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + thought[0])

    class Slow(Person):
        async def ask(self, request):
            thought[0] += 10_000
            return await super().ask(request)

    runtime = make_runtime(approver=Slow(YES))
    add_tool(runtime, "writer", ok, effects=WRITE)
    assert all(result.duration_ms < 10_000_000 for result in await both_edges(runtime, "writer"))


@pytest.mark.parametrize("answer", ["deny", "timeout", "cancelled"])
async def test_only_a_clear_yes_lets_a_call_run(make_runtime, add_tool, answer):
    """Whatever else an approver answers means no."""
    ran = []
    runtime = make_runtime(approver=Person(ApprovalAnswer(choice=answer)))
    add_tool(runtime, "writer", lambda args, **kwargs: ran.append(1) or "ok", effects=WRITE)
    assert {result.status for result in await both_edges(runtime, "writer")} == {"blocked"}
    assert ran == []


@pytest.mark.parametrize("effects", [None, (), (Effect("read", "/x"),), (Effect("network", "example.org"),)])
async def test_harmless_calls_are_not_asked_about(runtime, add_tool, effects):
    """What declares no effect, or only looks, runs without an approver."""
    add_tool(runtime, "looks", ok, effects=effects)
    assert [result.content for result in await both_edges(runtime, "looks")] == ["ok", "ok"]


async def test_an_mcp_tool_that_declares_nothing_is_asked_about(make_runtime, add_tool):
    """For MCP tools no declared effects means ask; the same tool of ours would run."""
    runtime = make_runtime()
    with runtime.registry.loading(Source("mcp", "server")):
        add_tool(runtime, "remote", ok, toolset="mcp-server")
        add_tool(runtime, "declared", ok, toolset="mcp-server", effects=())
    assert (await runtime.call("remote", {})).error_type == "denied"
    assert (await runtime.call("declared", {})).content == "ok"


@pytest.mark.parametrize(
    "effects", [lambda args, ctx: 1 / 0, lambda args, ctx: None, lambda args, ctx: ["write"], lambda args, ctx: [None]]
)
async def test_effects_that_cannot_be_told_keep_the_call_from_running(make_runtime, add_tool, effects):
    """A broken effects function is no permission."""
    ran = []
    runtime = make_runtime(approver=Person(YES))
    add_tool(runtime, "unclear", lambda args, **kwargs: ran.append(1) or "ok", effects=effects)
    assert {result.status for result in await both_edges(runtime, "unclear")} == {"error"}
    assert ran == []


async def test_effects_are_computed_from_the_arguments(make_runtime, add_tool):
    """An effects function sees the coerced arguments of this call."""
    person = Person(YES)
    runtime = make_runtime(approver=person)
    add_tool(runtime, "deletes", ok, effects=lambda args, ctx: [Effect("delete", f"/data/{args['n']}")])
    await runtime.call("deletes", {"n": "7"})
    assert person.questions == [("deletes deletes /data/7",)]


async def test_a_waiting_question_ends_with_the_cancel_token(make_runtime, add_tool):
    """Stop also stops a call that waits for a person."""
    asked = asyncio.Event()

    class Nobody:
        async def ask(self, request):
            asked.set()
            await asyncio.Event().wait()

    runtime = make_runtime(approver=Nobody())
    add_tool(runtime, "writer", ok, effects=WRITE)
    token = CancelToken()
    calling = asyncio.create_task(runtime.call("writer", {}, cancel=token))
    await asked.wait()
    token.cancel("stop")
    assert (await calling).status == "cancelled"


async def test_a_session_may_call_only_its_own_tools(runtime, add_tool):
    """A tool outside the scope of the session is blocked, and post hooks hear of it."""
    seen = []
    runtime.hooks.register("post_tool_call", lambda error_type: seen.append(error_type))
    add_tool(runtime, "allowed", ok)
    add_tool(runtime, "other", ok)
    ctx = runtime.context(allowed_tools=frozenset({"allowed"}))
    assert (await runtime.call("allowed", {}, ctx=ctx)).content == "ok"
    result = await runtime.call("other", {}, ctx=ctx)
    assert (result.status, result.error_type) == ("blocked", "tool_scope_block")
    assert seen == [None, "tool_scope_block"]


# The record


async def test_started_is_recorded_before_and_finished_after_a_call_with_effects(make_runtime, add_tool):
    """A call with effects is on record before it runs; one without leaves no trace."""
    journal = Journal()
    runtime = make_runtime(approver=Person(YES), recorder=journal)
    add_tool(runtime, "writer", lambda args, **kwargs: journal.lines.append("ran") or "ok", effects=WRITE)
    add_tool(runtime, "reader", ok, effects=())
    await runtime.call("writer", {})
    await runtime.call("reader", {})
    assert journal.lines == [("started", "writer", WRITE), "ran", ("finished", "writer", "ok")]


async def test_a_denied_call_leaves_no_record(make_runtime, add_tool):
    """Nothing was started, so nothing is finished."""
    journal = Journal()
    runtime = make_runtime(recorder=journal)
    add_tool(runtime, "writer", ok, effects=WRITE)
    assert (await runtime.call("writer", {})).is_error
    assert journal.lines == []


async def test_what_cannot_be_recorded_is_not_run(make_runtime, add_tool):
    """A record that fails at the start keeps the call from running; both edges still give a result."""
    ran = []
    runtime = make_runtime(approver=Person(YES), recorder=Journal(fail="started"))
    add_tool(runtime, "writer", lambda args, **kwargs: ran.append(1) or "ok", effects=WRITE)
    assert {result.status for result in await both_edges(runtime, "writer")} == {"error"}
    assert ran == []


async def test_a_record_that_fails_at_the_end_does_not_cost_the_result(make_runtime, add_tool):
    """The tool has run, so its result reaches the model."""
    runtime = make_runtime(approver=Person(YES), recorder=Journal(fail="finished"))
    add_tool(runtime, "writer", ok, effects=WRITE)
    assert [result.content for result in await both_edges(runtime, "writer")] == ["ok", "ok"]


# Stopping


async def test_a_deadline_ends_a_call_that_waits(runtime, add_tool):
    """A call past its deadline is a timeout result, told to the post hooks, and its handler is cancelled."""
    cleaned, seen = [], []
    runtime.hooks.register("post_tool_call", lambda status, error_type: seen.append((status, error_type)))

    async def sleeps(args, **kwargs):
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(1)

    add_tool(runtime, "sleeps", sleeps, is_async=True)
    result = await runtime.call("sleeps", {}, timeout_seconds=1.0)
    assert (result.status, result.error_type) == ("timeout", "tool_timeout")
    ctx = runtime.context(deadline=time.monotonic() + 1.0)
    assert (await asyncio.to_thread(runtime.call_sync, "sleeps", {}, ctx)).status == "timeout"
    assert cleaned == [1, 1]
    assert seen == [("timeout", "tool_timeout")] * 2


async def test_a_handler_that_swallows_cancellation_does_not_hold_up_its_caller(runtime, add_tool):
    """At the deadline, and at a cancel token, the caller goes on without a handler that refuses to end."""
    release = asyncio.Event()

    async def stubborn(args, **kwargs):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    add_tool(runtime, "stubborn", stubborn, is_async=True)
    assert (await runtime.call("stubborn", {}, timeout_seconds=0.01)).status == "timeout"
    token = CancelToken()
    asyncio.get_running_loop().call_soon(token.cancel, "enough")
    result = await runtime.call("stubborn", {}, cancel=token)
    assert (result.status, result.error_type) == ("cancelled", "keyboard_interrupt")
    assert "enough" in result.content
    release.set()


async def test_a_blocking_handler_past_its_deadline_is_left_behind(runtime, add_tool):
    """The caller returns at the deadline; the thread goes on alone."""
    release = threading.Event()
    add_tool(runtime, "blocks", lambda args, **kwargs: str(release.wait(10)))
    result = await runtime.call("blocks", {}, timeout_seconds=0.01)
    release.set()
    assert result.status == "timeout"


async def test_the_config_sets_deadlines_by_tool(make_runtime, add_tool):
    """tools.timeouts bounds a tool in single calls and from synchronous code."""
    runtime = make_runtime("tools:\n  timeouts:\n    sleeps: 0.01\n")

    async def sleeps(args, **kwargs):
        await asyncio.Event().wait()

    add_tool(runtime, "sleeps", sleeps, is_async=True)
    assert [result.status for result in await both_edges(runtime, "sleeps")] == ["timeout", "timeout"]


async def test_the_time_of_a_person_does_not_count_against_the_config_s_deadline(make_runtime, add_tool):
    """A tool's own time limit starts when it runs, not when somebody is asked."""

    class Slow:
        async def ask(self, request):
            await asyncio.sleep(0.2)
            return YES

    async def quick(args, **kwargs):
        await asyncio.sleep(0)
        return "ok"

    runtime = make_runtime("tools:\n  timeouts:\n    writer: 0.15\n", approver=Slow())
    add_tool(runtime, "writer", quick, is_async=True, effects=WRITE)
    assert (await runtime.call("writer", {})).content == "ok"


async def test_a_call_whose_deadline_has_passed_is_not_run(runtime, add_tool):
    """Too late is too late: no handler starts after its deadline."""
    ran = []
    add_tool(runtime, "late", lambda args, **kwargs: ran.append(1) or "ok")
    ctx = runtime.context(deadline=time.monotonic() - 1)
    assert (await runtime.call("late", {}, ctx=ctx)).status == "timeout"
    assert runtime.call_sync("late", {}, ctx).status == "timeout"
    assert ran == []


async def test_a_cancelled_token_keeps_a_call_from_running(runtime, add_tool):
    """A call of a session that was stopped is a cancelled result, with the reason."""
    ran = []
    add_tool(runtime, "never", lambda args, **kwargs: ran.append(1) or "ok")
    token = CancelToken()
    token.cancel("the user pressed stop")
    result = await runtime.call("never", {}, cancel=token)
    assert (result.status, ran) == ("cancelled", [])
    assert "the user pressed stop" in result.content


async def test_a_token_cancelled_from_another_thread_stops_a_running_call(runtime, add_tool):
    """Stop works from any thread, for coroutines on both edges."""
    running = threading.Event()

    async def waits(args, **kwargs):
        running.set()
        await asyncio.Event().wait()

    add_tool(runtime, "waits", waits, is_async=True)
    for executor in ("async", "sync"):
        running.clear()
        token = CancelToken()
        ctx = runtime.context(cancel=token)
        stopper = threading.Thread(target=lambda: running.wait(30) and token.cancel("stop"))  # noqa: B023
        stopper.start()
        if executor == "async":
            result = await runtime.call("waits", {}, ctx=ctx)
        else:
            result = await asyncio.to_thread(runtime.call_sync, "waits", {}, ctx)
        stopper.join()
        assert result.status == "cancelled"


async def test_two_tokens_stop_a_call_alike(runtime, add_tool):
    """A token of the call does not replace the token of its session."""
    running = asyncio.Event()

    async def waits(args, **kwargs):
        running.set()
        await asyncio.Event().wait()

    add_tool(runtime, "waits", waits, is_async=True)
    for chosen in (0, 1):
        tokens = (CancelToken(), CancelToken())
        running.clear()
        ctx = runtime.context(cancel=tokens[0])
        calling = asyncio.create_task(runtime.call("waits", {}, ctx=ctx, cancel=tokens[1]))
        await running.wait()
        tokens[chosen].cancel("stop")
        assert (await calling).status == "cancelled"


@pytest.mark.parametrize("bounded", [False, True])
async def test_cancelling_the_caller_cancels_the_handler_and_is_told_once(make_runtime, add_tool, bounded):
    """Cancellation of the caller's task passes through, after hooks and record heard of it."""
    seen, cleaned = [], asyncio.Event()
    running = asyncio.Event()
    journal = Journal()
    runtime = make_runtime(approver=Person(YES), recorder=journal)
    runtime.hooks.register("post_tool_call", lambda status: seen.append(status))

    async def waits(args, **kwargs):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    add_tool(runtime, "waits", waits, is_async=True, effects=WRITE)
    calling = asyncio.create_task(runtime.call("waits", {}, timeout_seconds=60 if bounded else None))
    await running.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await asyncio.wait_for(cleaned.wait(), 60)
    assert seen == ["cancelled"]
    assert [line[0] for line in journal.lines] == ["started", "finished"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_call_that_is_cancelled_at_once_leaves_no_coroutine_behind(runtime, add_tool, is_async):
    """Cancellation passes through, and Python has nothing to say about coroutines that nobody awaited."""

    async def waiting(args, **kwargs):
        await asyncio.Event().wait()

    async def cancelled_at_once():
        asyncio.current_task().cancel()
        await runtime.call("tool", {}, timeout_seconds=5)

    add_tool(runtime, "tool", waiting if is_async else ok, is_async=is_async)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(cancelled_at_once())
        await asyncio.sleep(0)
        gc.collect()


async def test_a_queued_blocking_call_that_was_given_up_never_runs(make_runtime, add_tool):
    """A call that timed out while it waited for a thread must not have its effect later."""
    from toolcrib.dispatch.executors import DaemonPool

    pool = DaemonPool(limit=1)
    release, ran = threading.Event(), []
    first = asyncio.create_task(pool.run(lambda: release.wait(30)))
    await asyncio.sleep(0)
    second = asyncio.create_task(pool.run(lambda: ran.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    release.set()
    await first
    await pool.run(lambda: ran.append("third"))
    pool.close()
    assert ran == ["third"]


async def test_many_nested_calls_do_not_wait_for_each_other(runtime, add_tool):
    """When every thread of the pool waits for a blocking call of its own, and more are queued, all of them end."""
    pool_is_full = threading.Barrier(BLOCKING_HANDLERS_AT_ONCE)
    numbers = itertools.count()

    async def relay(args, ctx, **kwargs):
        return (await ctx.services.call(ctx, "leaf", {})).content

    def outer(args, **kwargs):
        if next(numbers) < BLOCKING_HANDLERS_AT_ONCE:
            pool_is_full.wait(20)
        return runtime.call_sync("relay", {}).content

    add_tool(runtime, "leaf", ok)
    add_tool(runtime, "relay", relay, is_async=True)
    add_tool(runtime, "outer", outer)
    results = await asyncio.wait_for(asyncio.gather(*(runtime.call("outer", {}) for _ in range(200))), 30)
    assert {result.content for result in results} == {"ok"}


async def test_the_pool_works_on_after_it_was_closed():
    """A late call finds a thread instead of waiting for ever."""
    from toolcrib.dispatch.executors import DaemonPool

    pool = DaemonPool(limit=2)
    assert await pool.run(lambda: 1) == 1
    pool.close()
    pool.close()
    assert await asyncio.wait_for(pool.run(lambda: 2), 60) == 2
    pool.close()


def test_cost_of_a_call_does_not_depend_on_the_number_of_tools(make_runtime, add_tool):
    """A call looks its tool up; it never walks over the others."""
    registry = ToolRegistry()
    runtime = make_runtime(registry=registry)
    for number in range(300):
        add_tool(runtime, f"tool_{number}", ok)
    runtime.load()
    view_before = registry._cached_view
    assert runtime.call_sync("tool_7", {}).content == "ok"
    assert registry._cached_view is view_before


def raise_stop_iteration(args, **kwargs):
    return next(iter([]))


def raise_exit(args, **kwargs):
    raise SystemExit(3)


async def test_an_exception_that_cannot_travel_is_told_under_its_own_name(runtime, add_tool):
    """StopIteration cannot leave a coroutine, nor SystemExit a thread; the model still reads what was raised."""
    add_tool(runtime, "empty", raise_stop_iteration)
    add_tool(runtime, "leave", raise_exit)

    awaited = await runtime.call("empty")
    direct = runtime.call_sync("empty", {})
    left = await runtime.call("leave")

    assert json.loads(awaited.content) == json.loads(direct.content)
    assert json.loads(awaited.content)["error"] == "Tool execution failed: StopIteration:"
    assert json.loads(left.content)["error"] == "Tool execution failed: SystemExit: 3"


def test_half_characters_do_not_reach_the_model(runtime, add_tool):
    """A lone surrogate, as odd file names have it, cannot be sent to any model nor read back from a file."""
    add_tool(runtime, "names", lambda args, **kwargs: "caf\u00e9 \udcff")
    add_tool(runtime, "many", lambda args, **kwargs: "\udcff" * 500, max_result_size_chars=300)

    short, long = runtime.call_sync("names", {}), runtime.call_sync("many", {})

    assert short.content == "caf\u00e9 ?"
    assert Path(long.handle).read_text(encoding="utf-8") == "?" * 500


async def test_a_time_limit_is_told_as_it_was_given(runtime, add_tool):
    """The time that setting up the call took is no part of the message."""

    async def wait_for_ever(args, **kwargs):
        await asyncio.Event().wait()

    add_tool(runtime, "slow", wait_for_ever, is_async=True)

    result = await runtime.call("slow", timeout_seconds=0.5)

    assert "within 0.5 seconds" in result.error_message
