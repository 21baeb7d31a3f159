"""toolcrib's own API: all of its routes, and the responses for what they raise."""

from __future__ import annotations

from typing import Any

import msgspec

from toolcrib.agent.host import AgentHost
from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.core.errors import (
    ConfigError,
    SessionError,
    ToolcribError,
    UnknownName,
    UnknownSession,
    UsageError,
)
from toolcrib.cron.jobs import JobError
from toolcrib.http_server import error_response
from toolcrib.serve.api_routes import ApiRoute, openapi_route
from toolcrib.serve.host_api import HostApi
from toolcrib.serve.questions import PendingQuestions, UnknownQuestion
from toolcrib.serve.run_store import RunStoreError
from toolcrib.serve.runs import RunManager, RunRefused
from toolcrib.serve.runs_api import RunsApi
from toolcrib.serve.sessions_api import SessionsApi
from toolcrib.serve.work_api import WorkApi
from toolcrib.sessions.memory import MemoryRefused


def native_routes(host: AgentHost, runs: RunManager, questions: PendingQuestions, log: ApprovalLog) -> list[ApiRoute]:
    """Everything under `/api`."""
    routes = [
        *SessionsApi(host, runs).routes(),
        *RunsApi(host.store, runs, questions, log).routes(),
        *WorkApi(host, runs).routes(),
        *HostApi(host, runs, questions).routes(),
    ]
    return [*routes, openapi_route(routes)]


STATUSES: dict[type[Exception], int] = {
    msgspec.MsgspecError: 422,
    ConfigError: 422,
    UsageError: 422,
    UnknownName: 422,
    MemoryRefused: 422,
    JobError: 409,
    UnknownQuestion: 404,
    UnknownSession: 404,
    SessionError: 503,
    RunStoreError: 503,
    ToolcribError: 400,
}


def handled_errors() -> dict[Any, Any]:
    """The responses for what routes raise, for Starlette, which takes the nearest class."""

    def response_of(status: int) -> Any:
        return lambda _, error: error_response(status, str(error))

    return {
        **{kind: response_of(status) for kind, status in STATUSES.items()},
        RunRefused: lambda _, error: error_response(error.status, str(error)),
        UnicodeDecodeError: lambda *_: error_response(422, "the JSON is not in UTF-8"),
        RecursionError: lambda *_: error_response(422, "the JSON is nested too deeply"),
    }
