"""The conversation: takes what the person enters, has it worked on, one thing after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, MessageAdded
from toolcrib.agent.host import AgentHost
from toolcrib.cli.chat.front import Front
from toolcrib.cli.chat.images import with_images
from toolcrib.cli.chat.news import News
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.chat.questions import ChatAsker
from toolcrib.cli.chat.screen import THINKING, Screen
from toolcrib.cli.chat.slash import SlashCommand, find_command, is_path, plugin_commands, split_command
from toolcrib.cli.chat.slash_mcp import COMMANDS as MCP_COMMANDS
from toolcrib.cli.chat.slash_sessions import COMMANDS as SESSION_COMMANDS
from toolcrib.cli.chat.slash_state import COMMANDS as STATE_COMMANDS
from toolcrib.cli.chat.slash_talk import COMMANDS as TALK_COMMANDS
from toolcrib.cli.chat.start import open_agent
from toolcrib.cli.chat.status import HINT_SECONDS, Status
from toolcrib.cli.chat.symbols import cost_in_words
from toolcrib.core.attempt import Attempt, attempt_async
from toolcrib.core.errors import ToolcribError, UnknownName

logger = logging.getLogger(__name__)

INTERRUPTED = 130
WIND_DOWN_SECONDS = 10.0
"""How long work that is left may take to put everything in order."""

Job = Callable[[], Awaitable[None]]


class Talk:
    """One chat from the greeting to the farewell; the sessions in it may change."""

    def __init__(
        self, options: ChatOptions, host: AgentHost, front: Front, screen: Screen, asker: ChatAsker, agent: Agent
    ) -> None:
        self.host = host
        self.agent = agent
        self.screen = screen
        self.status: Status = screen.status
        self.exit_code = 0
        self.folder = options.cwd or host.runtime.workspace or "."
        self._options = options
        self._front = front
        self._asker = asker
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._job: asyncio.Future[Attempt[None]] | None = None
        self._asides: set[asyncio.Task[None]] = set()
        """Commands that run beside whatever is worked on."""
        self._interrupted_at = -HINT_SECONDS
        self._interrupted_work = False
        self._news = News(host, screen, self._idle)
        self._commands: dict[str, SlashCommand] = {}
        self.status.bar = lambda: self._bar
        self._bar = ""
        self._refresh_bar()

    # From beginning to end

    async def run(self) -> None:
        """Talk until the person leaves."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            worker = tasks.create_task(self._work())
            watcher = tasks.create_task(self._news.watch(lambda: self.agent.session_id))
            try:
                await self._front.run(self)
            finally:
                await self._wind_down()
                self._tasks = None
                worker.cancel()
                watcher.cancel()

    async def _wind_down(self) -> None:
        self.stop_work()
        while not self._jobs.empty():
            self._jobs.get_nowait()
        try:
            async with asyncio.timeout(WIND_DOWN_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            self.screen.problem("what was running did not stop in time")

    async def _work(self) -> None:
        while True:
            if self._jobs.empty() and not self._take_queued():
                self._idle.set()
            job = await self._jobs.get()
            self._idle.clear()
            error = await self._do(job)
            if isinstance(error, ToolcribError | OSError):
                self.screen.problem(str(error))
            elif error is not None:
                logger.error("the chat could not do something", exc_info=error)
                log = self.host.settings.home.log_file
                self.screen.problem(f"something went wrong inside toolcrib: {error!r}; see {log}")
            self.status.activity.end()
            self._refresh_bar()
            self._front.refresh()

    async def _do(self, job: Job) -> BaseException | None:
        """What the job failed with; None when it is done, or was stopped."""
        self._job = asyncio.ensure_future(attempt_async(job()))
        try:
            await asyncio.wait([self._job])
            if self._job.cancelled():
                self.screen.say("stopped", "yellow")
                return None
            return self._job.result().error
        finally:
            self._job.cancel()
            self._job = None

    # What the person does

    def submit(self, text: str) -> None:
        if self._asker.is_waiting:
            if self._asker.take(text):
                self.screen.echo(text)
            return
        if not text.strip():
            return
        command = split_command(text)
        if command is None or (command[0] not in self.commands() and is_path(text.strip())):
            self.ask_agent(text)
            return
        self.screen.echo(text)
        try:
            found = find_command(self.commands(), command[0])
        except UnknownName as error:
            self.screen.problem(str(error))
            return
        self._run_command(found, command[1])

    async def settled(self) -> None:
        await self._idle.wait()
        while self._asides:
            await asyncio.wait(self._asides)

    def interrupt(self) -> None:
        now = time.monotonic()
        again = now - self._interrupted_at < HINT_SECONDS
        self._interrupted_at = now
        if again:
            self._leave(INTERRUPTED if self._interrupted_work else 0)
        elif self.is_working:
            self._interrupted_work = True
            self._hint("stopping; Ctrl-C again leaves")
            self.stop_work()
        else:
            self._interrupted_work = False
            self._hint("Ctrl-C again leaves; so does Ctrl-D")
        self._front.refresh()

    def _hint(self, text: str) -> None:
        if self._front.is_live:
            self.status.hint(text)
        else:
            self.screen.note(text)

    def leave(self) -> None:
        self._leave(INTERRUPTED if self.agent.is_running else 0)

    def end(self, signal_number: int) -> None:
        self._leave(128 + signal_number)

    def _leave(self, exit_code: int) -> None:
        self.exit_code = exit_code
        # An open question of the run would keep the terminal.
        self.stop_work()
        self._front.stop()

    # What commands use

    @property
    def is_working(self) -> bool:
        return not self._idle.is_set() or not self._jobs.empty()

    def ask_agent(self, text: str) -> None:
        """Ask now, or behind what is worked on."""
        if self.is_working:
            self.queue(text)
            return
        self._begin(text)

    def queue(self, text: str) -> None:
        if not self.is_working:
            self.ask_agent(text)
            return
        self.agent.queue(text)
        self.status.queued.append(text)
        if not self._front.is_live:
            self.screen.note("queued")
        self._front.refresh()

    def stop_work(self) -> None:
        """Stop what is worked on; what waits behind it goes back to the input line."""
        waiting, self.status.queued = self.status.queued, []
        while self.agent.next_queued() is not None:
            continue
        if waiting:
            self._front.prefill("\n".join(waiting))
        if self.agent.is_running:
            self.agent.interrupt()
        elif self._job is not None:
            self._job.cancel()

    async def choose(self, question: str, choices: tuple[str, ...]) -> str:
        return await self._asker.put(question, choices)

    def new_agent(self, session_id: str | None = None) -> Agent:
        return open_agent(self.host, replace(self._options, resume=session_id))

    async def use(self, agent: Agent, reason: str) -> None:
        before, self.agent = self.agent, agent
        self.status.queued.clear()
        await before.close(reason)
        self._refresh_bar()
        self._news.session_changed()

    def commands(self) -> dict[str, SlashCommand]:
        """All commands by name; a plugin cannot take the place of one of ours."""
        if not self._commands:
            declared = [one for plugin in self.host.runtime.loaded_plugins for one in plugin.declarations]
            ours = (*SESSION_COMMANDS, *TALK_COMMANDS, *STATE_COMMANDS, *MCP_COMMANDS)
            offered = [*plugin_commands(declared), *ours]
            self._commands = dict(sorted({one.name: one for one in offered}.items()))
        return self._commands

    # Work

    def _put(self, job: Job) -> None:
        self._idle.clear()
        self._jobs.put_nowait(job)

    def _run_command(self, command: SlashCommand, rest: str) -> None:
        if command.while_working and self._tasks is not None:
            aside = self._tasks.create_task(self._beside(command, rest))
            self._asides.add(aside)
            aside.add_done_callback(self._asides.discard)
        elif not self.is_working:
            self._put(lambda: command.run(self, rest))
        else:
            self.screen.say(f"/{command.name} has to wait until the work is done; /stop stops it.")

    async def _beside(self, command: SlashCommand, rest: str) -> None:
        _, error = await attempt_async(command.run(self, rest))
        if error is not None:
            self.screen.problem(str(error))

    def _take_queued(self) -> bool:
        text = self.agent.next_queued()
        if text is None:
            return False
        if self.status.queued:
            self.status.queued.pop(0)
        self._begin(text)
        return True

    def _begin(self, text: str) -> None:
        # Shown at once: the first request loads a library, during which nothing can be drawn.
        self.status.activity.begin(THINKING)
        self.screen.echo(text)
        self._put(lambda: self._ask(text))

    async def _ask(self, text: str) -> None:
        await self._news.before_turn()
        message, notes = with_images(text, Path(self.folder))
        for line in notes:
            self.screen.note(line)
        self.screen.shows_output = self.agent.provider.profile(self.agent.model).small
        await self.agent.run(message, on_event=self._hear)

    def _hear(self, event: AnyEvent) -> None:
        self.screen.handle(event)
        if isinstance(event, MessageAdded):
            self._refresh_bar()

    def _refresh_bar(self) -> None:
        agent = self.agent
        parts = [agent.model or agent.provider.name, f"{agent.context_share:.0%} of context"]
        cost = cost_in_words(agent.usage.cost_usd)
        self._bar = self.status.symbols.dot.join([*parts, cost, "/help"] if cost else [*parts, "/help"])
