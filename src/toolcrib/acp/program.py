"""What `toolcrib acp` runs: the agent for the editor at the other end of stdin and stdout."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import IO, TYPE_CHECKING

from acp.core import AgentSideConnection

from toolcrib.acp.agent import EditorAgent
from toolcrib.acp.editor import EditorConnection
from toolcrib.acp.transport import StdioTransport

if TYPE_CHECKING:
    from toolcrib.acp.sessions import EditorSessions

INTERRUPTED = 130


async def serve_editor(stdout: IO[bytes]) -> int:
    """Answer the editor until it closes the connection or a signal arrives; returns the exit code."""
    logging.getLogger().addHandler(SdkLogHandler())
    transport = await StdioTransport.open(sys.stdin.buffer, stdout)
    agent = EditorAgent(open_own_sessions)
    connection = AgentSideConnection(agent, transport, listening=False, use_unstable_protocol=True)
    stop, code = asyncio.Event(), 0

    def stopped(number: signal.Signals) -> None:
        nonlocal code
        code = INTERRUPTED if number == signal.SIGINT else 0
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped, number)
    listening = asyncio.ensure_future(connection.listen())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([listening, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        # The agents first, so that what they did is on disk; then the requests that still wait for them.
        await agent.close()
        await connection.close()
        listening.cancel()
        await asyncio.gather(listening, stopping, return_exceptions=True)
    return code


class SdkLogHandler(logging.Handler):
    """Sends what the SDK reports to our log: it uses the root logger, which would print on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("toolcrib"):
            for handler in logging.getLogger("toolcrib").handlers:
                handler.handle(record)


def open_own_sessions(editor: EditorConnection) -> EditorSessions:
    """The sessions of this home; their agents work in this process."""
    # Takes longer than the answer to `initialize`, which editors wait for when they start.
    from toolcrib.acp.sessions import EditorSessions, OwnHosts  # noqa: PLC0415

    return EditorSessions(editor, OwnHosts())
