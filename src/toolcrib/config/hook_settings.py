"""The settings of shell hooks.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Literal

from msgspec import field

from toolcrib.config.section import PositiveFloat, Section

HookEvent = Literal[
    "pre_tool_call",
    "post_tool_call",
    "pre_approval_request",
    "post_approval_response",
    "post_llm_call",
    "on_session_start",
    "on_session_end",
    "subagent_start",
    "subagent_stop",
]


class ShellHookSettings(Section, frozen=True, kw_only=True):
    """A command that runs on an event."""

    event: HookEvent = "post_tool_call"
    """When it runs. Calls wait for `pre_tool_call` alone, which may block them."""
    command: str = ""
    """The shell command; it gets the event as a JSON object on its standard input."""
    tools: list[str] = field(default_factory=list)
    """Only for calls of these tools; empty means all."""
    timeout: PositiveFloat = 10
    """How many seconds it may run; then it is killed."""
    on_failure: Literal["block", "allow"] = "block"
    """For `pre_tool_call`: whether a call may run if the command fails or takes too long."""
