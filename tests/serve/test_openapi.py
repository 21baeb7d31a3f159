"""The OpenAPI document: it lists the routes that there are, and a fuzzer that follows it causes no fault."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from starlette.routing import Route

from tests.serve.agent_serving import serving

EXAMPLES = "15"
FUZZER_SECONDS = 300.0


async def test_the_document_lists_exactly_the_routes(home: Path) -> None:
    async with serving(home) as served, served.http() as http:
        document = (await http.get("/api/openapi.json")).json()
        server = served.server
        routes = [one for one in server.routes(server.api_routes()) if isinstance(one, Route)]

    listed = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    served_routes = {
        (method, one.path)
        for one in routes
        for method in (one.methods or ())
        if one.path.startswith(("/api/", "/metrics")) and method != "HEAD"
    }
    assert listed == served_routes
    ids = [one["operationId"] for operations in document["paths"].values() for one in operations.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.services
async def test_a_fuzzer_causes_no_fault(home: Path, tmp_path: Path) -> None:
    """schemathesis sends what the document allows, and what it does not; no answer is a 5xx."""
    config = "serve:\n  toolsets: [test]\n  limits: {requests_per_minute: 1000000}\n"
    async with serving(home, config=config) as served:
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "run", f"{served.url}/api/openapi.json",
            "--header", f"Authorization: Bearer {served.token}",
            "--checks", "not_a_server_error",
            "--max-examples", EXAMPLES,
            "--phases", "examples,coverage,fuzzing",
            "--request-timeout", "20",
            "--generation-deterministic",
            "--no-color",
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(FUZZER_SECONDS):
            said, _ = await process.communicate()

    assert process.returncode == 0, said.decode()[-6000:]
    assert "Fuzzing" in said.decode()
