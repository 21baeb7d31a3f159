"""The slash commands of the chat. To add one: write its function, and add a row to `COMMANDS` at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.approval.grants import Grant
from toolcrib.cli.chat.attachments import Attachment, mentioned
from toolcrib.cli.chat.renderer import THEMES
from toolcrib.cli.chat.session_commands import SESSION_COMMANDS
from toolcrib.cli.chat.slash import Chat, SlashCommand, find_command, table
from toolcrib.cli.chat.summary import running_processes
from toolcrib.cli.chat.symbols import short_cost, short_count, short_duration
from toolcrib.cli.chat.undo_commands import redo, show_diff, undo, undo_last_exchange
from toolcrib.cli.commands.approvals import open_log, outcome, short_command
from toolcrib.cli.output import local_time, one_line, plural
from toolcrib.cli.tool_state import tool_states
from toolcrib.core.approvals import MODES, Mode
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.sessions.memory import TARGETS, MemoryStore, Target
from toolcrib.sessions.todo import MARKS

if TYPE_CHECKING:
    from toolcrib.mcp.client.servers import ServerStatus


SHOWN_CALLS = 15
MODE_TEXTS: dict[Mode, str] = {
    "ask": "Each edit is shown as a diff and needs your approval.",
    "auto-edit": "Files of the workspace are edited without asking; commands follow the approval policy.",
    "plan": "Only tools and commands that read; the agent ends with a plan for you to accept, edit or reject.",
}
SHOWN_DECISIONS = 8
PRESET = "hermes-"
"""The prefix of presets for whole frontends, which are not listed here."""
MEMORIES: dict[Target, str] = {"memory": "Agent's notes", "user": "Notes about you"}
KEYS = (
    ("Enter", "send; queue while the agent works"),
    ("Alt-Enter, Ctrl-J, \\ Enter", "new line"),
    ("Up, Ctrl-R", "history"),
    ("Tab", "complete a command, a name, an @file"),
    ("Ctrl-X Ctrl-E", "open your editor"),
    ("Shift-Tab", "switch the mode: ask, auto-edit, plan"),
    ("Ctrl-O", "show the latest call in full"),
    ("Esc", "stop the agent, leave a question, deny"),
    ("Ctrl-C", "stop the agent; twice: exit"),
    ("Ctrl-D", "exit"),
    ("Ctrl-Z", "suspend; `fg` resumes"),
)
RELOAD, RECONNECT = "reload", "reconnect"
NO_SERVERS = "No MCP servers are configured; run `toolcrib mcp add` to add one, then type /mcp reload."
MAX_USAGE_CHARS = 32
"""`/help` shows longer arguments only for one command: they would leave no room for what the commands do."""
SERVER_STATES = {"waiting": "waiting to retry", "needs_login": "needs login"}
RECONNECT_SECONDS = 10.0


async def show_tools(chat: Chat, toolset: str) -> None:
    runtime, offered = chat.host.runtime, await _offered(chat)
    if toolset:
        runtime.toolsets.require([toolset])
    wanted = set(runtime.toolsets.resolve(toolset)) if toolset else None
    entries = [one for one in runtime.registry.entries() if wanted is None or one.name in wanted]
    states = await asyncio.to_thread(tool_states, runtime.registry, entries)
    rows = []
    for state in states:
        if state.entry is None or (wanted is None and state.name not in offered and state.outcome.available):
            continue
        reason = f"not available: {state.outcome.reason}"
        text = _first_sentence(state.entry.description) if state.outcome.available else reason
        rows.append((state.name, state.entry.toolset, one_line(text)))
    if not rows:
        chat.screen.say("This session has no tools; type /toolsets to see all toolsets.")
        return
    chat.screen.frontend.show(table(rows, heading=("tool", "toolset", "")), gap=True)
    chat.screen.note(f"{plural(len(offered), 'tool')} offered; run `toolcrib tools explain NAME` for details.")


async def _offered(chat: Chat) -> set[str]:
    # Availability checks may read files or start programs.
    return set(await asyncio.to_thread(lambda: chat.agent.tools))


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


async def show_toolsets(chat: Chat, _: str) -> None:
    runtime, offered = chat.host.runtime, await _offered(chat)
    rows = []
    for name in runtime.toolsets.names():
        info = runtime.toolsets.info(name)
        if info is None or name.startswith(PRESET):
            continue
        used = len(offered.intersection(info.resolved))
        rows.append((name, f"{used} of {len(info.resolved)}" if used else "-", one_line(info.description)))
    chat.screen.frontend.show(table(rows, heading=("toolset", "in use", "")), gap=True)
    chat.screen.note(
        "Start with others: `toolcrib chat --toolsets NAMES`; to keep them: `toolcrib config set toolsets NAMES`."
    )


def complete_toolsets(chat: Chat) -> Iterable[str]:
    return chat.host.runtime.toolsets.names()


async def show_plan(chat: Chat, _: str) -> None:
    items = chat.host.todo.store(chat.agent.session_id).read()
    if not items:
        chat.screen.say("The agent has no plan in this session.")
        return
    chat.screen.frontend.show(table((MARKS[item["status"]], one_line(item["content"])) for item in items), gap=True)


async def show_memory(chat: Chat, argument: str) -> None:
    store, frontend = chat.host.memory.store, chat.screen.frontend
    action, _, words = argument.strip().partition(" ")
    if action == "approve" and words.strip():
        chat.screen.say(await asyncio.to_thread(_approve_memory, store, words.strip()))
        return
    is_quoted = False
    for target, title in MEMORIES.items():
        entries = await asyncio.to_thread(store.entries, target)
        frontend.show(Text(f"{title} ({store.usage(target, entries)})", "bold"), gap=True)
        if entries:
            authors = await asyncio.to_thread(store.authors, target)
            is_quoted = is_quoted or any(authors.get(entry) == "agent" for entry in entries)
            rows = ((">" if authors.get(entry) == "agent" else "-", one_line(entry)) for entry in entries)
            frontend.show(table(rows))
    if is_quoted:
        chat.screen.note(
            "An agent noted what is marked with >, so later sessions get it as a quotation; "
            "/memory approve WORDS makes such an entry yours."
        )
    chat.screen.note(f"Stored in {chat.host.settings.home.memories_dir}; you can edit the files.")


def _approve_memory(store: MemoryStore, words: str) -> str:
    for target in TARGETS:
        if any(words in entry for entry in store.entries(target)):
            store.approve(target, words)
            return "Approved: new sessions get it as your own note."
    raise UsageError(f"no memory contains {words!r}; /memory shows all of them")


async def show_approvals(chat: Chat, _: str) -> None:
    session, frontend = chat.agent.session_id, chat.screen.frontend
    grants = _session_grants(chat, session)
    frontend.show(
        Text("Allowed in this session" if grants else "This session has no grants of its own.", "bold"), gap=True
    )
    if grants:
        frontend.show(table(("-", grant.text) for grant in grants))
    permanent = chat.host.settings.command_allowlist
    if permanent:
        frontend.show(Text("Always allowed", "bold"), table(("-", text) for text in permanent), gap=True)
    records = await asyncio.to_thread(open_log(chat.host.settings.home).last, SHOWN_DECISIONS)
    if records:
        rows = [
            (local_time(one.request.asked_at)[11:16], outcome(one), one.request.tool, short_command(one.request))
            for one in records
        ]
        frontend.show(Text("Latest decisions", "bold"), table(rows), gap=True)
    chat.screen.note(
        "Run `toolcrib approvals explain last` for the reason, `toolcrib approvals revoke GRANT` to revoke a grant."
    )


def _session_grants(chat: Chat, session: str) -> tuple[Grant, ...]:
    gate = chat.host.runtime.gate
    return gate.made.grants.of_session(session) if isinstance(gate, DeferredGate) else ()


async def show_processes(chat: Chat, _: str) -> None:
    found = await running_processes(chat, everything=True)
    if not found:
        chat.screen.say("This session has no background processes.")
        return
    rows = [
        (one["session_id"], _process_state(one), short_duration(one["uptime_seconds"]), one_line(one["command"]))
        for one in found
    ]
    chat.screen.frontend.show(table(rows, heading=("process", "state", "uptime", "command")), gap=True)


def _process_state(one: JsonObject) -> str:
    return one["status"] if one["status"] == "running" else f"{one['status']} ({one.get('exit_code')})"


async def show_cost(chat: Chat, _: str) -> None:
    session = chat.agent.session
    usage = session.usage
    cached = f" ({usage.cached_tokens / usage.input_tokens:.0%} from the cache)" if usage.input_tokens else ""
    thought = f" ({short_count(usage.reasoning_tokens)} reasoning)" if usage.reasoning_tokens else ""
    rows = [
        ("input", f"{short_count(usage.input_tokens)} tokens{cached}"),
        ("output", f"{short_count(usage.output_tokens)} tokens{thought}"),
        ("tool calls", str(session.call_count)),
        ("context", f"{chat.agent.context_share:.0%} of the model's window"),
        ("cost", short_cost(usage.cost_usd) or "unknown; set model.prices in the config"),
    ]
    chat.screen.frontend.show(table(rows), gap=True)


async def show_help(chat: Chat, name: str) -> None:
    commands = chat.commands()
    if name:
        one = find_command(commands, name.lstrip("/").lower())
        chat.screen.say(f"/{one.name} {one.arguments}".rstrip() + f": {one.summary}")
        return
    frontend = chat.screen.frontend
    groups: dict[str, list[tuple[str, str]]] = {"": [], "Your own": [], "From plugins": []}
    for one in commands.values():
        group = "From plugins" if one.of_plugin else "Your own" if one.of_user else ""
        usage = f"/{one.name} {one.arguments}".rstrip()
        if len(usage) > MAX_USAGE_CHARS:
            usage = f"/{one.name} {chat.status.symbols.ellipsis}"
        groups[group].append((usage, one.summary))
    for heading, rows in groups.items():
        if rows:
            frontend.show(*([Text(heading, "bold")] if heading else []), table(rows), gap=True)
    frontend.show(Text("Keys", "bold"), table(KEYS), gap=True)
    chat.screen.say("@path attaches a file, a folder or an image. !command runs your own command.", "dim", gap=True)


async def steer(chat: Chat, text: str) -> None:
    if not text:
        chat.screen.say("Type /steer TEXT to guide the agent while it works.")
    elif chat.is_working:
        chat.agent.steer(text)
        chat.screen.note(f"the agent sees this before its next step: {one_line(text)}")
    else:
        chat.ask_agent(text)


async def queue(chat: Chat, text: str) -> None:
    if text:
        chat.queue(text)
    elif chat.status.queued:
        chat.screen.frontend.show(table((f"{at}.", one_line(one)) for at, one in enumerate(chat.status.queued, 1)))
    else:
        chat.screen.say("The queue is empty. Type /queue TEXT to ask something after the current work.")


async def stop(chat: Chat, _: str) -> None:
    if chat.is_working:
        chat.stop_work()
    else:
        chat.screen.say("Nothing is running.")


async def leave(chat: Chat, _: str) -> None:
    chat.leave()


async def compress(chat: Chat, topic: str) -> None:
    chat.status.activity.begin("summarising older messages")
    try:
        done = await chat.agent.compress(topic)
    finally:
        chat.status.activity.end()
    if done is None:
        chat.screen.say("The session is too short to compress.")
        return
    saved = f"{short_count(done.tokens_before)} to {short_count(done.tokens_after)} tokens"
    chat.screen.say(f"{plural(done.messages, 'older message')} replaced by a summary: {saved}.")


async def retry(chat: Chat, _: str) -> None:
    undone = undo_last_exchange(chat)
    if undone is None:
        chat.screen.say("There is nothing to retry.")
        return
    # What the question names is attached anew.
    named = mentioned(undone.question)
    chat.attached += [
        Attachment(name, text, plural(len(text.splitlines()), "line"))
        for name, text in undone.attached
        if name not in named
    ]
    chat.ask_agent(undone.question)


async def toggle_reasoning(chat: Chat, _: str) -> None:
    chat.screen.shows_reasoning = not chat.screen.shows_reasoning
    now = "shown in full" if chat.screen.shows_reasoning else "folded to one line"
    chat.screen.say(f"The model's reasoning is now {now}.")


async def mcp(chat: Chat, rest: str) -> None:
    verb, _, name = rest.partition(" ")
    if verb == RELOAD and not name:
        await chat.host.servers.reload()
        await chat.host.servers.wait()
    elif verb == RECONNECT and name.strip():
        await _reconnect(chat, name.strip())
    elif rest:
        raise UsageError("type /mcp, /mcp reload or /mcp reconnect NAME")
    await _show_servers(chat)


async def _reconnect(chat: Chat, name: str) -> None:
    hub = chat.host.runtime.mcp
    before = {status.name: status.since for status in hub.servers()}
    # In a thread, because it blocks and this loop draws the screen.
    await asyncio.to_thread(hub.reconnect, name)
    end = asyncio.get_running_loop().time() + RECONNECT_SECONDS
    while asyncio.get_running_loop().time() < end:
        [status] = [one for one in hub.servers() if one.name == name]
        if status.state != "starting" and status.since != before.get(name):
            return
        await asyncio.sleep(0.05)


async def _show_servers(chat: Chat) -> None:
    servers = _servers(chat)
    if not servers:
        chat.screen.say(NO_SERVERS)
        return
    hub = chat.host.runtime.mcp
    rows = [
        (one.name, SERVER_STATES.get(one.state, one.state), _about(one, len(hub.tool_names(one.name))))
        for one in servers
    ]
    chat.screen.frontend.show(table(rows, heading=("server", "state", "")), gap=True)
    chat.screen.note("Type /mcp reload to read the config again, /mcp reconnect NAME to reconnect a server.")


def _about(one: ServerStatus, offered: int) -> str:
    if one.state != "ready":
        return one_line(one.last_error) or "-"
    hidden = f", {len(one.rejected)} hidden" if one.rejected else ""
    return f"{plural(offered, 'tool')}{hidden}, {one.transport}, protocol {one.protocol_version}"


def _servers(chat: Chat) -> list[ServerStatus]:
    """The states of the servers; imports nothing for MCP if none is configured."""
    return chat.host.runtime.mcp.servers() if chat.host.servers.are_configured else []


def complete_mcp(chat: Chat) -> Iterable[str]:
    return [RELOAD, *(f"{RECONNECT} {one.name}" for one in _servers(chat))]


async def set_mode(chat: Chat, wanted: str) -> None:
    found = [mode for mode in MODES if mode.startswith(wanted.lower())] if wanted else []
    if len(found) == 1:
        chat.use_mode(found[0])
        chat.screen.say(f"Mode: {found[0]}. {MODE_TEXTS[found[0]]}")
        return
    if wanted:
        raise UsageError(f"there is no mode {wanted!r}; the modes are {', '.join(MODES)}")
    marks = {mode: ">" if mode == chat.agent.mode else " " for mode in MODES}
    chat.screen.frontend.show(table((f"{marks[mode]} {mode}", MODE_TEXTS[mode]) for mode in MODES), gap=True)
    chat.screen.note("Shift-Tab switches; `toolcrib config set agent.mode NAME` changes the default.")


async def set_theme(chat: Chat, wanted: str) -> None:
    found = next((theme for theme in THEMES if theme == wanted.lower()), None)
    if found is None:
        raise UsageError(f"type /theme {', /theme '.join(THEMES[:-1])} or /theme {THEMES[-1]}")
    chat.screen.frontend.use_theme(found)
    chat.screen.say(f"Now using the {found} theme.", "green")
    chat.screen.note(f"To keep it: `toolcrib config set chat.theme {found}`; `auto` asks the terminal.")


async def show_call(chat: Chat, number: str) -> None:
    history = chat.screen.calls
    if not number:
        rows = [(str(one.number), one.head) for one in history.latest(SHOWN_CALLS)]
        if rows:
            chat.screen.frontend.show(table(rows), gap=True)
        chat.screen.note("Type /show NUMBER to see a call in full." if rows else "There were no calls yet.")
        return
    call = history.find(int(number)) if number.isascii() and number.isdigit() and len(number) < 10 else None
    if call is None:
        raise UsageError(f"there is no call {number!r} in this chat; /show lists the latest")
    chat.screen.expand(call)


COMMANDS = (
    *SESSION_COMMANDS,
    SlashCommand(
        name="help",
        arguments="[COMMAND]",
        summary="Show this help",
        run=show_help,
        while_working=True,
        aliases=("?",),
        complete=lambda chat: chat.commands(),
    ),
    SlashCommand(
        name="queue",
        arguments="[TEXT]",
        summary="Ask something after the current work",
        run=queue,
        while_working=True,
    ),
    SlashCommand(
        name="steer",
        arguments="TEXT",
        summary="Guide the agent while it works",
        run=steer,
        while_working=True,
    ),
    SlashCommand(name="stop", summary="Stop the agent; the session stays", run=stop, while_working=True),
    SlashCommand(
        name="undo",
        arguments="[N | --list | --to CALL] [--force] [--dry-run]",
        summary="Undo the last exchange and its file changes, or the changes of calls",
        run=undo,
        aliases=("rewind",),
    ),
    SlashCommand(name="redo", summary="Redo the latest undo of files", run=redo),
    SlashCommand(name="diff", arguments="[PATH]", summary="Show what this session changed in files", run=show_diff),
    SlashCommand(name="retry", summary="Ask the last question again", run=retry),
    SlashCommand(
        name="compress",
        arguments="[TOPIC]",
        summary="Replace older messages with a summary",
        run=compress,
        aliases=("compact",),
    ),
    SlashCommand(
        name="reasoning", summary="Show or fold the model's reasoning", run=toggle_reasoning, while_working=True
    ),
    SlashCommand(name="exit", summary="Exit the chat", run=leave, while_working=True, aliases=("quit", "bye")),
    SlashCommand(
        name="tools",
        arguments="[TOOLSET]",
        summary="List the tools of this session",
        run=show_tools,
        while_working=True,
        complete=complete_toolsets,
    ),
    SlashCommand(
        name="toolsets", summary="List the toolsets and which are in use", run=show_toolsets, while_working=True
    ),
    SlashCommand(name="todo", summary="Show the agent's plan", run=show_plan, while_working=True, aliases=("plan",)),
    SlashCommand(
        name="memory",
        arguments="[approve WORDS]",
        summary="Show the agent's memory, or approve an entry",
        run=show_memory,
        while_working=True,
    ),
    SlashCommand(
        name="approvals",
        summary="Show grants and recent decisions",
        run=show_approvals,
        while_working=True,
        aliases=("permissions",),
    ),
    SlashCommand(
        name="processes", summary="List background processes", run=show_processes, while_working=True, aliases=("ps",)
    ),
    SlashCommand(
        name="cost",
        summary="Show tokens and cost of this session",
        run=show_cost,
        while_working=True,
        aliases=("usage",),
    ),
    SlashCommand(
        name="mcp",
        arguments="[reload | reconnect NAME]",
        summary="List MCP servers and their states",
        run=mcp,
        while_working=True,
        complete=complete_mcp,
    ),
    SlashCommand(
        name="mode",
        arguments="[NAME]",
        summary="Show the modes, or switch to another",
        run=set_mode,
        while_working=True,
        complete=lambda _: MODES,
    ),
    SlashCommand(
        name="theme",
        arguments="dark|light|plain",
        summary="Choose the colours",
        run=set_theme,
        while_working=True,
        complete=lambda _: THEMES,
    ),
    SlashCommand(
        name="show",
        arguments="[NUMBER]",
        summary="Show a call in full, or list the latest calls",
        run=show_call,
        while_working=True,
    ),
)
