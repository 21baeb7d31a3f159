"""The server itself over the API: its state, tools to try by hand, costs, MCP servers, settings and tokens."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcrib.agent.host import AgentHost
from toolcrib.config.edit import put_values, unset_value
from toolcrib.config.effective import effective_settings
from toolcrib.config.load import load_settings
from toolcrib.config.schema import find_setting
from toolcrib.core.cancel import finish_in_thread
from toolcrib.core.context import ToolContext
from toolcrib.core.types import JsonObject, ToolEntry
from toolcrib.registry.availability import AVAILABLE, Availability, with_remedy
from toolcrib.serve.api_routes import ApiRoute, QueryParameter, body_of, number_of
from toolcrib.serve.guard import identity_of
from toolcrib.serve.metrics import MEDIA_TYPE as METRICS_TYPE
from toolcrib.serve.openai_api import while_connected
from toolcrib.serve.questions import PendingQuestions
from toolcrib.serve.run_store import DAY_SECONDS
from toolcrib.serve.runs import RunManager, RunRefused
from toolcrib.serve.tokens import ServerTokens, TokenIdentity, TokenScope, require_separate_owners
from toolcrib.sessions.costs import read_costs
from toolcrib.version import __version__

COST_DAYS = 30
MAX_COST_DAYS = 3_650
BY_HAND = "Tools tried by hand"


class ToolCallRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/tools/{name}/call`."""

    arguments: dict[str, Any] = {}
    session_id: str | None = None
    """The session to call it in; a new one without it."""


class SettingChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `PUT /api/settings/{key}`."""

    value: Any


class TokenDraft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/tokens`."""

    name: str
    scopes: tuple[TokenScope, ...] = ("chat",)
    owner: str = ""
    """Whose sessions it reaches; empty for the owner of the home."""


class HostApi:
    """`/metrics`, `/api/status`, and under `/api`: tools, toolsets, costs, mcp, settings and tokens."""

    def __init__(self, host: AgentHost, runs: RunManager, questions: PendingQuestions, tokens: ServerTokens) -> None:
        self._host = host
        self._runs = runs
        self._questions = questions
        self._tokens = tokens

    def routes(self) -> list[ApiRoute]:
        days = QueryParameter("days", f"How many days back; {COST_DAYS} without it.", "integer")
        return [
            ApiRoute(method="GET", path="/api/status", handler=self.status,
                     summary="The server, its model, and what this token may do."),
            ApiRoute(method="GET", path="/metrics", handler=self.metrics, scope="metrics", media_type="text/plain",
                     summary="What the server did, in the text format of Prometheus."),
            ApiRoute(method="GET", path="/api/tools", handler=self.tools,
                     summary="The tools; for one that is missing, why and what to do."),
            ApiRoute(method="POST", path="/api/tools/{name}/call", handler=self.call, body=ToolCallRequest,
                     summary="Call a tool by hand, through the gate; a dangerous call waits for its approval."),
            ApiRoute(method="GET", path="/api/toolsets", handler=self.toolsets, summary="The toolsets."),
            ApiRoute(method="GET", path="/api/costs", handler=self.costs, query=(days,),
                     summary="Tokens and cost by day, model and tool."),
            ApiRoute(method="GET", path="/api/mcp", handler=self.servers, summary="MCP servers and their states."),
            ApiRoute(method="POST", path="/api/mcp/{name}/reconnect", handler=self.reconnect, scope="admin",
                     summary="Reconnect to an MCP server.", statuses=(202,)),
            ApiRoute(method="GET", path="/api/settings", handler=self.settings, scope="admin",
                     summary="All settings, with defaults and where each value comes from."),
            ApiRoute(method="PUT", path="/api/settings/{key}", handler=self.set_setting, scope="admin",
                     body=SettingChange, summary="Change a setting in the config file."),
            ApiRoute(method="DELETE", path="/api/settings/{key}", handler=self.unset_setting, scope="admin",
                     summary="Give a setting its default again."),
            ApiRoute(method="GET", path="/api/tokens", handler=self.tokens, scope="admin",
                     summary="The additional tokens, without their values."),
            ApiRoute(method="POST", path="/api/tokens", handler=self.create_token, scope="admin", body=TokenDraft,
                     statuses=(201,), summary="Create a token, which only this answer shows."),
            ApiRoute(method="DELETE", path="/api/tokens/{name}", handler=self.revoke_token, scope="admin",
                     summary="Revoke a token; its browsers and streams end."),
        ]  # fmt: skip

    async def status(self, request: Request) -> Response:
        identity, runtime = identity_of(request.scope), self._host.runtime
        provider, model = await asyncio.to_thread(self._host.provider_for)
        serve = self._host.settings.serve
        working = [run for run in self._runs.working if run.record.owner == identity.owner]
        return JSONResponse(
            {
                "version": __version__,
                "model": model,
                "provider": provider.name,
                "mode": self._host.settings.agent.mode,
                "cwd": runtime.workspace,
                "backend": self._host.settings.terminal.backend,
                "toolsets": serve.toolsets,
                "approval_timeout": serve.approval_timeout,
                "working_runs": [run.id for run in working],
                "token": {"name": identity.name, "owner": identity.owner, "scopes": sorted(identity.scopes)},
            }
        )

    async def metrics(self, request: Request) -> Response:
        questions = len(await asyncio.to_thread(self._questions.open))
        runs = self._runs
        text = runs.metrics.text(working=len(runs.working), streams=runs.open_streams, questions=questions)
        return Response(text, media_type=METRICS_TYPE)

    # Tools

    async def tools(self, request: Request) -> Response:
        runtime = self._host.runtime
        entries = sorted(runtime.registry.entries(), key=lambda one: one.name)
        checks = [entry.check_fn for entry in entries if entry.check_fn is not None]
        outcomes = await asyncio.to_thread(runtime.registry.availability.ask, checks)
        usable = self._usable(identity_of(request.scope))
        rows = []
        for entry in entries:
            outcome = AVAILABLE if entry.check_fn is None else with_remedy(entry, outcomes[entry.check_fn])
            rows.append(_tool(entry, outcome, usable is None or entry.name in usable))
        return JSONResponse({"tools": rows})

    async def toolsets(self, request: Request) -> Response:
        resolver = self._host.runtime.toolsets
        infos = [resolver.info(name) for name in resolver.names()]
        return JSONResponse({"toolsets": [msgspec.to_builtins(one) for one in infos if one is not None]})

    async def call(self, request: Request) -> Response:
        wanted, identity = await body_of(request, ToolCallRequest), identity_of(request.scope)
        name, runtime, usable = request.path_params["name"], self._host.runtime, self._usable(identity)
        if runtime.registry.get_entry(name) is None:
            raise RunRefused(f"there is no tool {name!r}", 404)
        if usable is not None and name not in usable:
            raise RunRefused(f"{name!r} is not in the toolsets of the server, so it needs the scope 'admin'", 403)
        self._runs.require_room(identity)
        if wanted.session_id is not None:
            session = await self._runs.session(wanted.session_id, identity)
        else:
            session = await asyncio.to_thread(self._runs.new_session, identity.owner, BY_HAND)
        ctx = runtime.context(
            tool_name=name,
            session_id=session.id,
            task_id=session.id,
            call_id=f"hand_{secrets.token_hex(6)}",
            cwd=session.cwd or runtime.workspace,
            allowed_tools=usable,
        )
        # Whoever leaves or loses the token while the call waits for its approval gets nothing.
        return await while_connected(request, self._called(wanted, ctx, identity))

    async def _called(self, wanted: ToolCallRequest, ctx: ToolContext, identity: TokenIdentity) -> Response:
        runtime, session_id = self._host.runtime, ctx.session_id
        with self._runs.reserved(session_id), self._runs.room(identity):
            runtime.provenance(session_id).add_person(json.dumps(wanted.arguments, ensure_ascii=False))
            # Its questions are found in the list of approvals; nobody follows a run here.
            await finish_in_thread(self._questions.watch, session_id, lambda _: None)
            try:
                result = await runtime.call(ctx.tool_name, wanted.arguments, ctx=ctx)
            finally:
                await finish_in_thread(self._questions.unwatch, session_id)
        return JSONResponse(
            {
                "session_id": session_id,
                "status": result.status,
                "content": result.content,
                "error_type": result.error_type,
                "error_message": result.error_message,
                "duration_ms": result.duration_ms,
            }
        )

    def _usable(self, identity: TokenIdentity) -> frozenset[str] | None:
        """The tools that a token may call by hand: those of the server's agents; None for all."""
        if identity.may("admin"):
            return None
        settings = self._host.settings
        selection = self._host.runtime.toolsets.select(settings.serve.toolsets, settings.agent.disabled_toolsets)
        return selection.tool_names

    # Costs, MCP servers, settings

    async def costs(self, request: Request) -> Response:
        days = min(number_of(request, "days", COST_DAYS), MAX_COST_DAYS)
        since = time.time() - days * DAY_SECONDS
        owner = identity_of(request.scope).owner
        return JSONResponse(await asyncio.to_thread(read_costs, self._host.store, owner, since))

    async def servers(self, request: Request) -> Response:
        statuses = self._host.runtime.mcp.servers() if self._host.servers.are_configured else []
        is_admin = identity_of(request.scope).may("admin")
        rows = []
        for status in statuses:
            row: JsonObject = msgspec.to_builtins(status)
            if not is_admin:
                # A command line or URL may say more than its user should know.
                row |= {"address": "", "pid": None}
            rows.append(row)
        return JSONResponse({"servers": rows})

    async def reconnect(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._host.settings.mcp_servers:
            raise RunRefused(f"there is no MCP server {name!r}", 404)
        await asyncio.to_thread(self._host.runtime.mcp.reconnect, name)
        return JSONResponse({"reconnecting": name}, status_code=202)

    async def settings(self, request: Request) -> Response:
        def read() -> list[JsonObject]:
            rows = effective_settings(load_settings(self._host.settings.home))
            return [msgspec.to_builtins(one, str_keys=True) for one in rows]

        return JSONResponse({"settings": await asyncio.to_thread(read)})

    async def set_setting(self, request: Request) -> Response:
        change, key, home = await body_of(request, SettingChange), request.path_params["key"], self._host.settings.home
        await asyncio.to_thread(lambda: put_values(home, {find_setting(key).path: change.value}))
        return await self._setting(key)

    async def unset_setting(self, request: Request) -> Response:
        key = request.path_params["key"]
        await asyncio.to_thread(unset_value, self._host.settings.home, key)
        return await self._setting(key)

    async def _setting(self, key: str) -> Response:
        rows = await asyncio.to_thread(lambda: effective_settings(load_settings(self._host.settings.home)))
        found = [one for one in rows if one.key == key or one.key.startswith(f"{key}.")]
        return JSONResponse({"settings": [msgspec.to_builtins(one, str_keys=True) for one in found]})

    # Tokens

    async def tokens(self, request: Request) -> Response:
        others = await asyncio.to_thread(self._tokens.others)
        rows = [{"name": name, "owner": one.owner, "scopes": sorted(one.scopes)} for name, one in others.items()]
        return JSONResponse({"tokens": rows})

    async def create_token(self, request: Request) -> Response:
        draft = await body_of(request, TokenDraft)
        if not draft.scopes:
            raise msgspec.ValidationError("a token needs at least one scope")
        if draft.owner:
            owners = await asyncio.to_thread(self._tokens.owners)
            require_separate_owners(self._host.settings, {*owners, draft.owner})
        token = await asyncio.to_thread(self._tokens.create, draft.name, draft.scopes, draft.owner)
        return JSONResponse({"name": draft.name, "token": token}, status_code=201)

    async def revoke_token(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in await asyncio.to_thread(self._tokens.others):
            raise RunRefused(f"there is no token {name!r}", 404)
        await asyncio.to_thread(self._tokens.revoke, name)
        return JSONResponse({"revoked": name})


def _tool(entry: ToolEntry, outcome: Availability, is_usable: bool) -> JsonObject:
    return {
        "name": entry.name,
        "toolset": entry.toolset,
        "description": entry.description,
        "emoji": entry.emoji,
        "available": outcome.available,
        "reason": outcome.reason,
        "remedy": outcome.remedy,
        "usable": is_usable,
        "parameters": entry.parameters,
    }
