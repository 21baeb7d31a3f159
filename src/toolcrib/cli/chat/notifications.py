"""Notifications between two turns: events of background processes, and reloaded tool files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolcrib.agent.host import AgentHost
from toolcrib.cli.chat.screen import Screen
from toolcrib.cli.output import one_line
from toolcrib.processes.events import ProcessEvent
from toolcrib.registry.reload import Reloaded, ToolFolderWatcher

READER = "chat"
SHOWN_OUTPUT_LINES = 5


class Notifications:
    """Prints notifications while the chat is idle; holds them back while the agent works."""

    def __init__(self, host: AgentHost, screen: Screen, idle: asyncio.Event) -> None:
        self._workshop = host
        self._screen = screen
        self._idle = idle
        self._tools = ToolFolderWatcher(host.settings.home.tools_dir, host.runtime.registry)
        self._changed = asyncio.Event()

    def session_changed(self) -> None:
        """The chat has switched to another session."""
        self._changed.set()

    async def before_turn(self) -> None:
        """Reload the tool files that changed since the last turn."""
        # Importing a tool file may block.
        for one in await asyncio.to_thread(self._tools.refresh):
            for line in reload_lines(one):
                self._screen.note(line)
        self._changed.set()

    async def watch(self, session_id: Callable[[], str]) -> None:
        """Print the events of the session's background processes until cancelled."""
        while True:
            self._changed.clear()
            if not self._workshop.runtime.has_terminal:
                # No process can have started before the first turn.
                await self._changed.wait()
                await self._idle.wait()
                continue
            await self._tell(session_id())

    async def _tell(self, session: str) -> None:
        processes = self._workshop.runtime.terminal.processes
        waiting = asyncio.ensure_future(processes.next_events(session, READER))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([waiting, changed], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return
            events = waiting.result()
            await self._idle.wait()
            for event in events:
                for line in event_lines(event):
                    self._screen.note(line)
            await processes.acknowledge(session, READER, events)
        finally:
            waiting.cancel()
            changed.cancel()
            await asyncio.gather(waiting, changed, return_exceptions=True)


def event_lines(event: ProcessEvent) -> list[str]:
    """An event as text, with the last lines of its output."""
    head, *output = event.describe().splitlines()
    shown = [line for line in output if line.strip()][-SHOWN_OUTPUT_LINES:]
    return [one_line(head), *(f"  {one_line(line)}" for line in shown)]


def reload_lines(one: Reloaded) -> list[str]:
    """The result of reloading a tool file."""
    if one.problem:
        return [f"tool file {one.path.name} was not reloaded: {one.problem}"]
    lines = [f"tool {name} reloaded" for name in one.tools_added]
    return lines + [f"tool {name} removed" for name in one.tools_removed]
