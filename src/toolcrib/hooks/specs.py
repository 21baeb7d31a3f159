"""The hook contract: every hook and middleware, what it receives, and what its answer does."""

from __future__ import annotations

import msgspec

TELEMETRY_SCHEMA_VERSION = "hermes.observer.v1"
MIDDLEWARE_SCHEMA_VERSION = "hermes.middleware.v1"

_CALL = ("task_id", "session_id", "tool_call_id", "turn_id", "api_request_id")
_OUTCOME = ("duration_ms", "status", "error_type", "error_message")
_APPROVAL = (
    "command",
    "description",
    "pattern_key",
    "pattern_keys",
    "session_key",
    "surface",
    "turn_id",
    "tool_call_id",
)
_REQUEST = ("session_id", "task_id", "turn_id", "api_request_id", "model", "provider", "base_url", "api_mode",
            "api_call_count")  # fmt: skip


class Hook(msgspec.Struct, frozen=True):
    """One hook. Every call also receives `telemetry_schema_version`."""

    name: str
    keywords: tuple[str, ...]
    answer: str = "ignored"


HOOKS: dict[str, Hook] = {
    hook.name: hook
    for hook in (
        Hook(
            "pre_tool_call",
            ("tool_name", "args", *_CALL, "middleware_trace"),
            '`{"action": "block", "message": str}` stops the call, '
            '`{"action": "approve", "message"?, "rule_key"?}` asks for approval; the first valid answer wins',
        ),
        Hook("post_tool_call", ("tool_name", "args", *_CALL, "middleware_trace", "result", *_OUTCOME)),
        Hook(
            "transform_tool_result",
            ("tool_name", "args", "result", *_CALL, *_OUTCOME),
            "the first `str` replaces the result",
        ),
        Hook(
            "transform_terminal_output",
            ("command", "output", "returncode", "task_id", "env_type"),
            "the first `str` replaces the output",
        ),
        Hook("pre_approval_request", _APPROVAL),
        Hook("post_approval_response", (*_APPROVAL, "choice", "decided_by")),
        Hook(
            "pre_llm_call",
            (
                "session_id",
                "task_id",
                "turn_id",
                "user_message",
                "conversation_history",
                "is_first_turn",
                "model",
                "platform",
                "sender_id",
            ),
            'a `str` or `{"context": str}` is added to the message',
        ),
        Hook(
            "post_llm_call",
            (
                "session_id",
                "task_id",
                "turn_id",
                "user_message",
                "assistant_response",
                "conversation_history",
                "model",
                "platform",
            ),
        ),
        Hook(
            "transform_llm_output",
            ("response_text", "session_id", "model", "platform"),
            "the first `str` replaces the text",
        ),
        Hook("pre_api_request", (*_REQUEST, "request")),
        Hook("post_api_request", (*_REQUEST, "request", "response", "usage", "duration_ms")),
        Hook("api_request_error", (*_REQUEST, "request", "error", "duration_ms")),
        Hook("on_session_start", ("session_id", "model", "platform")),
        Hook(
            "on_session_end",
            (
                "session_id",
                "task_id",
                "turn_id",
                "completed",
                "interrupted",
                "model",
                "platform",
                "reason",
                "api_request_id",
            ),
        ),
        Hook("on_session_finalize", ("session_id", "platform", "reason", "old_session_id", "new_session_id")),
        Hook("on_session_reset", ("session_id", "platform", "reason", "old_session_id", "new_session_id")),
        Hook(
            "subagent_start",
            (
                "parent_session_id",
                "parent_turn_id",
                "parent_subagent_id",
                "child_session_id",
                "child_subagent_id",
                "child_role",
                "child_goal",
            ),
        ),
        Hook(
            "subagent_stop",
            (
                "parent_session_id",
                "parent_turn_id",
                "child_session_id",
                "child_role",
                "child_summary",
                "child_status",
                "duration_ms",
            ),
        ),
        Hook(
            "pre_gateway_dispatch", ("event", "gateway", "session_store"), '`{"action": "skip" | "rewrite" | "allow"}`'
        ),
        Hook(
            "pre_verify",
            ("session_id", "platform", "model", "coding", "attempt", "final_response", "changed_paths"),
            '`{"action": "continue", "message": str}` sends the agent back to work',
        ),
        Hook("kanban_task_claimed", ("task_id", "board", "assignee", "run_id", "profile_name")),
        Hook("kanban_task_completed", ("task_id", "board", "assignee", "run_id", "profile_name", "summary")),
        Hook("kanban_task_blocked", ("task_id", "board", "assignee", "run_id", "profile_name", "reason")),
    )
}


class Middleware(msgspec.Struct, frozen=True):
    """One kind of middleware. Every call also receives `middleware_schema_version`."""

    kind: str
    keywords: tuple[str, ...]
    answer: str


MIDDLEWARE: dict[str, Middleware] = {
    middleware.kind: middleware
    for middleware in (
        Middleware(
            "tool_request",
            ("tool_name", "args", "original_args", *_CALL),
            '`{"args": {…}}` replaces the arguments; each sees the result of the one before it',
        ),
        Middleware(
            "tool_execution",
            ("tool_name", "args", "original_args", *_CALL, "next_call"),
            "its return value is the result; `next_call(args=None)` runs the rest, once",
        ),
        Middleware(
            "llm_request", ("request", "original_request", *_REQUEST), '`{"request": {…}}` replaces the request'
        ),
        Middleware(
            "llm_execution",
            ("request", "original_request", *_REQUEST, "next_call"),
            "its return value is the response; `next_call(request=None)` runs the rest, once",
        ),
    )
}
