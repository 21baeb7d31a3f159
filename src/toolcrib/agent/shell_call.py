"""A shell command on behalf of a person who is not there: through the terminal tool, so that the gate judges it."""

from __future__ import annotations

import json

import msgspec

from toolcrib.core.context import CancelToken
from toolcrib.runtime import Runtime

MAX_SECONDS = 600
"""The longest that the terminal tool lets a command run in the foreground."""


class ShellOutcome(msgspec.Struct, frozen=True):
    """What a command printed, and what went wrong with it."""

    output: str = ""
    exit_code: int = 0
    problem: str = ""
    """Why it did not run, or that it failed; empty when all went well."""
    denied: bool = False
    """It was not run at all."""


async def run_in_shell(
    runtime: Runtime, command: str, session_id: str, call_id: str, cancel: CancelToken
) -> ShellOutcome:
    """Run a command in the workspace of a runtime, in a session that is on record."""
    ctx = runtime.context(
        tool_name="terminal",
        session_id=session_id,
        task_id=session_id,
        call_id=call_id,
        cwd=runtime.workspace,
        cancel=cancel,
        allowed_tools=frozenset({"terminal"}),
    )
    result = await runtime.call("terminal", {"command": command, "timeout": MAX_SECONDS}, ctx=ctx)
    try:
        answer = json.loads(result.text)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict) or "exit_code" not in answer:
        return ShellOutcome(problem=result.error_message or result.text, denied=True, exit_code=-1)
    output, code = str(answer.get("output") or ""), int(answer["exit_code"] or 0)
    said = str(answer.get("error") or "")
    problem = said or (f"it ended with exit code {code}" if code else "")
    return ShellOutcome(output, code, problem, denied=bool(result.is_error and not output and code < 0))
