"""An interactive chat session: reads what the user enters and handles it, one input at a time."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace
from rich.text import Text

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, MessageAdded
from toolcrib.agent.host import AgentHost
from toolcrib.agent.prompt_commands import PromptCommands, project_commands
from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.question import wants_colour
from toolcrib.approval.grants import suggest
from toolcrib.cli.chat.attachments import Attachment, compose
from toolcrib.cli.chat.calls import CallHistory
from toolcrib.cli.chat.frontend import Frontend, LineFrontend
from toolcrib.cli.chat.images import save_images
from toolcrib.cli.chat.input import ChatCompleter
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.chat.questions import ChatApprover, ChatAsker
from toolcrib.cli.chat.renderer import as_markdown
from toolcrib.cli.chat.screen import THINKING, Notifications, Screen
from toolcrib.cli.chat.session_commands import run_own_command
from toolcrib.cli.chat.slash import SlashCommand, find_command, is_path, plugin_commands, split_command, user_command
from toolcrib.cli.chat.slash_commands import COMMANDS
from toolcrib.cli.chat.start import ask_to_trust, default_model_notice, open_agent, open_host
from toolcrib.cli.chat.status import HINT_SECONDS, STOPPING, Activity, Status, git_branch
from toolcrib.cli.chat.summary import chat_summary, greeting, replay, warnings
from toolcrib.cli.chat.symbols import short_cost, short_count, symbols_for
from toolcrib.cli.chat.terminal import TerminalFrontend, capture_stray_output, edit_line
from toolcrib.cli.output import clean
from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import MODES, Mode
from toolcrib.core.attempt import attempt_async
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.providers.prices import prices_of

logger = logging.getLogger(__name__)

INTERRUPTED = 130
WIND_DOWN_SECONDS = 10.0
"""How long running work may take to stop."""

WITHOUT_SLASH = {"exit": "/exit", "quit": "/exit", "?": "/help"}
"""What people type out of habit, and mean as a command."""
CARRY_OUT = "Yes, and edit files without asking (auto-edit)"
CARRY_OUT_ASKING = "Yes, and ask before each edit (ask)"
EDIT_PLAN = "Edit the plan first"
KEEP_PLANNING = "No, keep planning"
PLAN_ACCEPTED = "The plan is accepted. Carry it out."
EDITED_PLAN = "Carry out this plan:"

Job = Callable[[], Awaitable[None]]


class ChatSession:
    """One interactive chat. The agent's session may change during it."""

    def __init__(
        self,
        options: ChatOptions,
        host: AgentHost,
        frontend: Frontend,
        screen: Screen,
        asker: ChatAsker,
        agent: Agent,
    ) -> None:
        self.host = host
        self.agent = agent
        self.screen = screen
        self.status: Status = screen.status
        self.exit_code = 0
        self.folder = options.cwd or host.runtime.workspace or "."
        self._options = options
        self._frontend = frontend
        self._asker = asker
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._runs: set[Job] = set()
        """The jobs, waiting or at work, in which the agent runs; the others are commands."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._job: asyncio.Future[None] | None = None
        self.attached: list[Attachment] = []
        """What goes along with the next message."""
        self._asides: set[asyncio.Task[None]] = set()
        """Commands that run while the agent works."""
        self._interrupted_at = -HINT_SECONDS
        self._interrupted_work = False
        self._notifications = Notifications(host, screen, self._idle)
        self._commands: dict[str, SlashCommand] = {}
        screen.calls = CallHistory(self._stored_result)
        screen.plan = lambda: host.todo.store(self.agent.session_id).read()
        self.status.plan = screen.plan()
        self.status.output_lines = host.settings.chat.output_lines
        self._user_commands = PromptCommands(host.settings.home, self.folder)
        self.own_calls: set[str] = set()
        self.status.bar = lambda: self._bar
        self._bar: list[str] = []
        self._refresh_bar()

    # Running

    async def run(self) -> None:
        """Run the chat until the person leaves."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            worker = tasks.create_task(self._work())
            watcher = tasks.create_task(self._notifications.watch(lambda: self.agent.session_id))
            try:
                await self._frontend.run(self)
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
            self.screen.problem("the running work did not stop in time")

    async def _work(self) -> None:
        while True:
            if self._jobs.empty() and not self._take_queued():
                self._idle.set()
            job = await self._jobs.get()
            began = time.monotonic()
            self._idle.clear()
            self._show_error(await self._do(job))
            self._runs.discard(job)
            self.status.activity.end()
            self.status.stopped()
            for text in self.agent.drop_steering():
                self.screen.not_delivered(text)
            # Somebody who waited for long may have gone to do something else.
            if self._jobs.empty() and time.monotonic() - began >= self.host.settings.chat.notify_after:
                self._frontend.await_person("toolcrib is done")
            self._refresh_bar()
            self._frontend.refresh()

    async def _do(self, job: Job) -> BaseException | None:
        """The error of the job; None if it succeeded or was stopped."""
        self._job = asyncio.ensure_future(job())
        try:
            await asyncio.wait([self._job])
            if self._job.cancelled():
                self.screen.say("stopped", "yellow")
                return None
            return self._job.exception()
        finally:
            self._job.cancel()
            self._job = None

    def _show_error(self, error: BaseException | None) -> None:
        if isinstance(error, ToolcribError | OSError):
            self.screen.problem(str(error))
        elif error is not None:
            logger.error("a job of the chat failed", exc_info=error)
            log = self.host.settings.home.log_file
            self.screen.problem(f"internal error: {error!r}; see {log}")

    # Input

    def submit(self, text: str) -> None:
        if self._asker.is_waiting and not (self._asker.is_attended and self._is_command(text)):
            if answer := self._asker.take(text):
                self.screen.echo(answer)
            if answer or self._asker.is_attended:
                return
        if not text.strip():
            return
        if text.lstrip().startswith("!") and text.strip("! \n"):
            self._run_own(text)
            return
        text = WITHOUT_SLASH.get(text.strip().lower(), text)
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

    def _is_command(self, text: str) -> bool:
        """Whether a text that may also be an answer is a command: /help, but no path and no other word."""
        command = split_command(text)
        known = self.commands()
        return command is not None and (command[0] in known or any(command[0] in one.aliases for one in known.values()))

    def _run_own(self, text: str) -> None:
        """Run a command that the person typed after `!`."""
        self.screen.echo(text)
        if self._runs:
            self.screen.say("The command has to wait until the agent is done; type /stop to stop it.")
            return
        self._put(lambda: run_own_command(self, text.lstrip()[1:].strip()))

    async def settled(self) -> None:
        await self._idle.wait()
        while self._asides:
            await asyncio.wait(self._asides)

    async def wants_line(self) -> None:
        await self._asker.wait_for_question(self.settled())

    def interrupt(self) -> None:
        now = time.monotonic()
        again = now - self._interrupted_at < HINT_SECONDS
        self._interrupted_at = now
        if again:
            self._leave(INTERRUPTED if self._interrupted_work else 0)
        elif self.is_working:
            self._interrupted_work = True
            self._hint(f"{STOPPING}press Ctrl-C again to exit")
            self.stop_work()
        else:
            self._interrupted_work = False
            self._hint("press Ctrl-C again to exit, or Ctrl-D")
        self._frontend.refresh()

    def _hint(self, text: str) -> None:
        if self._frontend.is_live:
            self.status.hint(text)
        else:
            self.screen.note(text)

    def switch_mode(self) -> None:
        self.use_mode(MODES[(MODES.index(self.agent.mode) + 1) % len(MODES)])

    def expand(self) -> None:
        latest = self.screen.calls.latest(1)
        if latest:
            self.screen.expand(latest[0])
        else:
            self._hint("no call to show yet")
            self._frontend.refresh()

    def leave(self) -> None:
        self._leave(INTERRUPTED if self.agent.is_running else 0)

    def end(self, signal_number: int) -> None:
        self._leave(128 + signal_number)

    def _leave(self, exit_code: int) -> None:
        self.exit_code = exit_code
        # An open question would hold the terminal.
        self.stop_work()
        self._frontend.stop()

    # Used by commands

    @property
    def is_working(self) -> bool:
        return not self._idle.is_set() or not self._jobs.empty()

    def ask_agent(self, text: str, *, echo: bool = True) -> None:
        """Ask now, or after the current work."""
        if self.is_working and (echo or self._runs):
            self.queue(text)
        elif echo:
            self._begin(text)
        else:
            self._go_on(text)

    def queue(self, text: str) -> None:
        if not self.is_working:
            self.ask_agent(text)
            return
        self.agent.queue(text)
        self.status.queued.append(text)
        if not self._frontend.is_live:
            self.screen.note("queued")
        self._frontend.refresh()

    def stop_work(self) -> None:
        """Stop the current work; queued questions go back to the input line."""
        waiting, self.status.queued = self.status.queued, []
        while self.agent.next_queued() is not None:
            continue
        if waiting:
            self._frontend.prefill("\n".join(waiting))
        if self.agent.is_running:
            self.agent.interrupt()
        elif self._job is not None:
            self._job.cancel()

    async def choose(self, question: str, choices: tuple[str, ...]) -> str:
        return await self._asker.put(question, choices)

    async def confirm(self, question: str, yes: str, no: str) -> bool:
        return await self._asker.confirm(question, yes, no)

    def new_agent(self, session_id: str | None = None) -> Agent:
        return open_agent(self.host, replace(self._options, resume=session_id, mode=self.agent.mode))

    def use_mode(self, mode: Mode) -> None:
        """Let the agent do this much on its own, from its next call on."""
        self.agent.mode = mode
        self._refresh_bar()
        self._frontend.refresh()

    async def use(self, agent: Agent, reason: str) -> None:
        before, self.agent = self.agent, agent
        self.status.queued.clear()
        await before.close(reason)
        self.status.plan = self.screen.plan()
        self._refresh_bar()
        self._notifications.session_changed()

    def commands(self) -> dict[str, SlashCommand]:
        """All commands by name; neither a plugin nor a file can replace one of ours."""
        if not self._commands:
            declared = [one for plugin in self.host.runtime.loaded_plugins for one in plugin.declarations]
            offered = [*plugin_commands(declared), *COMMANDS]
            self._commands = {one.name: one for one in offered}
        own = {name: user_command(one) for name, one in self._user_commands.current().items()}
        return dict(sorted({**own, **self._commands}.items()))

    def _stored_result(self, session_id: str, call_id: str) -> str:
        found = self.host.store.messages(session_id, states=("live", "folded", "undone"))
        results = (one.message for one in found if one.message.call_id == call_id and one.message.role == "tool")
        return next((one.text for one in results), "")

    # Work

    def _put(self, job: Job) -> None:
        self._idle.clear()
        self._jobs.put_nowait(job)

    def _run_command(self, command: SlashCommand, rest: str) -> None:
        if command.while_working and self._tasks is not None:
            aside = self._tasks.create_task(self._run_aside(command, rest))
            self._asides.add(aside)
            aside.add_done_callback(self._asides.discard)
        elif not self._runs:
            # Another command may still be at its end, although its result is on the screen already.
            self._put(lambda: command.run(self, rest))
        else:
            self.screen.say(f"/{command.name} has to wait until the agent is done; type /stop to stop it.")

    async def _run_aside(self, command: SlashCommand, rest: str) -> None:
        self._show_error((await attempt_async(command.run(self, rest))).error)

    def _take_queued(self) -> bool:
        text = self.agent.next_queued()
        if text is None:
            return False
        if self.status.queued:
            self.status.queued.pop(0)
        self._begin(text)
        return True

    def _begin(self, text: str) -> None:
        # Shown at once: the first request imports an SDK, and nothing is drawn meanwhile.
        self.status.activity.begin(THINKING)
        self.screen.echo(text)
        self._put_run(text)

    def _go_on(self, text: str) -> None:
        """Ask the agent what follows from an answer that is on the screen already."""
        self.status.activity.begin(THINKING)
        self._put_run(text)

    def _put_run(self, text: str) -> None:
        def job() -> Awaitable[None]:
            return self._ask(text)

        self._runs.add(job)
        self._put(job)

    async def _ask(self, text: str) -> None:
        await asyncio.gather(self._notifications.before_turn(), self._load_rest())
        attached, self.attached = self.attached, []
        question = await compose(self.agent, text, Path(self.folder), attached)
        for line in question.notes:
            self.screen.note(line)
        self.screen.shows_output = self.agent.provider.profile(self.agent.model).small
        result = await self.agent.run(question.message, on_event=self._hear)
        if result.is_plan and self._asker.is_attended:
            await self._settle_plan(result.answer)

    async def _load_rest(self) -> None:
        """Import what the first answer and the first call need, in threads: otherwise no key is heard meanwhile."""
        await asyncio.to_thread(as_markdown, "")
        with suppress(ToolcribError, OSError):  # the call that needs it says so
            await asyncio.to_thread(self.host.runtime.prepare_calls)

    async def _settle_plan(self, plan: str) -> None:
        """Let the person accept, edit or reject what the agent wants to do."""
        self.status.activity.end()
        answer = await self.choose("Carry out this plan?", (CARRY_OUT, CARRY_OUT_ASKING, EDIT_PLAN, KEEP_PLANNING))
        if answer in (CARRY_OUT, CARRY_OUT_ASKING):
            self.use_mode("auto-edit" if answer == CARRY_OUT else "ask")
            self._go_on(PLAN_ACCEPTED)
        elif answer == EDIT_PLAN:
            self.use_mode("auto-edit")
            self.screen.note("Edit the plan below and press Enter; Ctrl-X Ctrl-E opens your editor. Mode: auto-edit.")
            self._frontend.prefill(f"{EDITED_PLAN}\n\n{plan.strip()}")
        elif answer != KEEP_PLANNING:
            self._go_on(answer)

    def _hear(self, event: AnyEvent) -> None:
        self.screen.handle(event)
        if isinstance(event, MessageAdded):
            self._refresh_bar()

    def _refresh_bar(self) -> None:
        agent = self.agent
        branch = git_branch(agent.cwd)
        folder = Path(agent.cwd).name or agent.cwd
        self._bar = [
            agent.model or agent.provider.name,
            agent.mode,
            f"{short_count(agent.context_tokens)} tokens ({agent.context_share:.0%})",
            self._cost(),
            f"{folder} ({branch})" if branch else folder,
            "/help",
        ]

    def _cost(self) -> str:
        agent, usage = self.agent, self.agent.usage
        if usage.cost_usd is not None:
            return f"${usage.cost_usd:.2f}" if usage.cost_usd >= 0.01 else short_cost(usage.cost_usd)
        is_known = prices_of(agent.provider.name, agent.model, self.host.settings.model.prices) is not None
        return "$0.00" if is_known and not usage.input_tokens else "cost unknown"


async def run_interactive(options: ChatOptions, settings: Settings) -> int:
    """Run an interactive chat; returns the exit code."""
    with ExitStack() as undo:
        return await _ChatBuilder(options, settings, undo).run()


class _ChatBuilder:
    """Builds a chat: frontend, screen, host, agent and session, in this order."""

    def __init__(self, options: ChatOptions, settings: Settings, undo: ExitStack) -> None:
        self._options = options
        self._settings = settings
        self._colour = wants_colour(environment())
        symbols = symbols_for(sys.stdout.encoding or "")
        self._status = Status(symbols, Activity(symbols))
        self._session: ChatSession | None = None
        self._terminal: TextIO = sys.stderr
        self._attended = sys.stdin.isatty()
        self._frontend = self._make_frontend(undo)
        home = self._settings.home
        self._screen = Screen(self._frontend, self._status, lambda images: save_images(images, home))

    def _make_frontend(self, undo: ExitStack) -> Frontend:
        if not (self._attended and sys.stdout.isatty() and environment().get("TERM", "dumb") not in ("", "dumb")):
            return LineFrontend(self._status)
        loop = asyncio.get_running_loop()

        def hand_over(line: str) -> None:
            loop.call_soon_threadsafe(self._show_stray, line)

        self._terminal = undo.enter_context(capture_stray_output(hand_over))
        completer = ChatCompleter(lambda: self._session, lambda: Path(self._session.folder if self._session else "."))
        return TerminalFrontend(
            self._terminal,
            self._status,
            completer,
            self._settings.home.chat_history_file,
            colour=self._colour,
            settings=self._settings.chat,
        )

    def _show_stray(self, line: str) -> None:
        if self._terminal.closed:
            sys.stderr.write(f"{clean(line)}\n")
        elif line.strip():
            self._frontend.show(Text(clean(line.rstrip()), "dim"))

    async def run(self) -> int:
        console = self._console_approver()
        if self._attended and not self._options.quiet:
            await ask_to_trust(self._options, self._settings, console.ask_line, project_commands)
        approver = ChatApprover(console, self._frontend, self._status, self._stop)
        asker = ChatAsker(self._frontend, self._status, attended=self._attended)
        host = open_host(self._options, approver, asker, self._settings)
        try:
            agent = open_agent(host, self._options)
            session = self._session = ChatSession(self._options, host, self._frontend, self._screen, asker, agent)
            if self._attended:
                approver.own_calls = session.own_calls
            self._greet(session)
            if self._options.prompt:
                session.submit(self._options.prompt)
            try:
                await session.run()
                rows = [] if self._options.quiet else await chat_summary(session)
                if rows:
                    self._frontend.show(*rows, gap=True)
            finally:
                await session.agent.close()
        finally:
            await host.close()
        return session.exit_code

    def _greet(self, session: ChatSession) -> None:
        if not self._options.quiet and self._attended:
            self._frontend.show(*greeting(session.agent, session.folder, self._status.symbols, self._frontend.columns))
        if notice := default_model_notice(session.agent.provider, self._options, session.host):
            self._screen.say(notice, "yellow")
        if self._options.resume is not None:
            self._screen.calls.load(session.agent.session_id, session.agent.messages)
            self._frontend.show(replay(session.agent, self._status.symbols, self._frontend.columns), gap=True)
        else:
            self._frontend.show(*warnings(session.agent))

    def _stop(self) -> None:
        if self._session is not None:
            self._session.stop_work()

    def _console_approver(self) -> ConsoleApprover:
        return ConsoleApprover(
            sys.stdin,
            self._terminal,
            timeout_seconds=self._settings.approvals.timeout,
            colour=lambda: self._colour and (self._frontend.has_colour or not self._frontend.is_live),
            written=suggest,
            edit=lambda command: edit_line(command, self._terminal),
            compact=self._frontend.is_live,
        )
