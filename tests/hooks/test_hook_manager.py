"""Keeping callbacks and calling them with what they name."""

import pytest

from toolcrib.hooks.manager import HookManager
from toolcrib.hooks.specs import HOOKS, MIDDLEWARE

HOOK_NAMES = [
    "pre_tool_call",
    "post_tool_call",
    "transform_tool_result",
    "transform_terminal_output",
    "pre_approval_request",
    "post_approval_response",
    "pre_llm_call",
    "post_llm_call",
    "transform_llm_output",
    "pre_api_request",
    "post_api_request",
    "api_request_error",
    "on_session_start",
    "on_session_end",
    "on_session_finalize",
    "on_session_reset",
    "subagent_start",
    "subagent_stop",
    "pre_gateway_dispatch",
    "pre_verify",
    "kanban_task_claimed",
    "kanban_task_completed",
    "kanban_task_blocked",
]


def test_every_hook_and_middleware_of_the_contract_is_known():
    """Plugins written for the reference system find all their hooks."""
    assert set(HOOKS) == set(HOOK_NAMES)
    assert set(MIDDLEWARE) == {"tool_request", "tool_execution", "llm_request", "llm_execution"}


def test_a_callback_receives_only_what_it_names():
    """A callback may name any of the keywords, or take all of them."""
    hooks = HookManager()
    hooks.register("on_session_start", lambda model: model)
    hooks.register("on_session_start", lambda *, platform, session_id: (platform, session_id))
    hooks.register("on_session_start", lambda **kwargs: sorted(kwargs))
    hooks.register("on_session_start", lambda: "nothing")
    assert hooks.invoke("on_session_start", session_id="s", model="m", platform="p") == [
        "m",
        ("p", "s"),
        ["model", "platform", "session_id", "telemetry_schema_version"],
        "nothing",
    ]


def test_none_and_failures_are_left_out_of_the_answers(caplog):
    """invoke gives the answers that there are; one that raises is logged."""
    hooks = HookManager()
    hooks.register("on_session_end", lambda: None)
    hooks.register("on_session_end", lambda: 1 / 0)
    hooks.register("on_session_end", lambda: 0)
    assert hooks.invoke("on_session_end") == [0]
    assert "on_session_end" in caplog.text


def test_an_unknown_hook_is_kept_and_said_to_be_unknown(caplog):
    """Something may fire it one day; until then the author reads which name was probably meant."""
    hooks = HookManager()
    hooks.register("pre_tool_cal", lambda: 1)
    assert "did you mean 'pre_tool_call'?" in caplog.text
    assert hooks.invoke("pre_tool_cal") == [1]


def test_a_bound_method_can_be_unregistered():
    """A bound method is a new object each time it is named; it is forgotten all the same."""

    class Plugin:
        def hook(self):
            return "plugin"

    plugin, hooks = Plugin(), HookManager()
    hooks.register("on_session_start", plugin.hook)
    hooks.register_middleware("llm_request", plugin.hook)
    hooks.unregister(plugin.hook)
    assert not hooks.has("on_session_start")
    assert not hooks.has_middleware("llm_request")


@pytest.mark.parametrize("callback", [print, dict, "".join])
def test_callables_without_a_signature_of_their_own_can_be_registered(callback):
    """Builtins and classes are callables too."""
    HookManager().register("on_session_start", callback)
