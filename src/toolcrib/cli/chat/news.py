"""What happens beside the talk and is told between two turns: background processes, tool files that were changed."""

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


class News:
    """Prints news while nothing is worked on; what comes earlier waits."""

    def __init__(self, host: AgentHost, screen: Screen, idle: asyncio.Event) -> None:
        self._workshop = host
        self._screen = screen
        self._idle = idle
        self._tools = ToolFolderWatcher(host.settings.home.tools_dir, host.runtime.registry)
        self._changed = asyncio.Event()

    def session_changed(self) -> None:
        """Another session is talked to now."""
        self._changed.set()

    async def before_turn(self) -> None:
        """Load the tool files that were saved since the last turn, and say so."""
        # A tool file may do anything while it is imported.
        for one in await asyncio.to_thread(self._tools.refresh):
            for line in reload_lines(one):
                self._screen.note(line)
        self._changed.set()

    async def watch(self, session_id: Callable[[], str]) -> None:
        """Tell of the background processes of the session, for as long as the chat lasts."""
        while True:
            self._changed.clear()
            if not self._workshop.runtime.has_terminal:
                # Nothing can have been started before the first turn.
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
    """An event in words, with the end of the output that belongs to it."""
    head, *output = event.in_words().splitlines()
    shown = [line for line in output if line.strip()][-SHOWN_OUTPUT_LINES:]
    return [one_line(head), *(f"  {one_line(line)}" for line in shown)]


def reload_lines(one: Reloaded) -> list[str]:
    """What became of a tool file that was saved."""
    if one.problem:
        return [f"tool file {one.path.name} was not reloaded: {one.problem}"]
    lines = [f"tool {name} reloaded" for name in one.tools_added]
    return lines + [f"tool {name} removed" for name in one.tools_removed]
