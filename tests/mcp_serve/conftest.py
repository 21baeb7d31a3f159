"""Servers over runtimes with a few tools, for every test of what clients get to see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_serve.mcp_serving import MakeServer
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.approvals import ClientApprover, ClientAsker
from toolcrib.mcp.server.pending_calls import PendingCalls
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime


@pytest.fixture
def make_server(make_runtime: Callable[..., Runtime], tmp_path: Path) -> MakeServer:
    """A server with its runtime; `builtin` offers the tools of the terminal too."""

    def make(
        config: str = "", *, policy: Any = "deny", builtin: bool = False, **options: Any
    ) -> tuple[ToolServer, Runtime]:
        calls = PendingCalls()
        workspace = tmp_path / "workspace"
        workspace.mkdir(exist_ok=True)
        registry = {"registry": ToolRegistry(parent=default_registry)} if builtin else {}
        runtime = make_runtime(
            config,
            approver=ClientApprover(calls, policy),
            workspace=workspace,
            services={"asker": ClientAsker(calls)},
            **registry,
        )
        toolsets = ["test", "terminal"] if builtin else ["test"]
        return ToolServer(runtime, calls=calls, **{"toolsets": toolsets, **options}), runtime

    return make
