"""Slash commands that show something: tools, the plan, memories, approvals, processes, cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rich.text import Text

from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.approval.entries import Grant
from toolcrib.cli.approval_records import local_time, open_log, outcome, short_command
from toolcrib.cli.chat.slash import Chat, SlashCommand, table
from toolcrib.cli.chat.symbols import cost_in_words, count_in_words, seconds_in_words
from toolcrib.cli.output import one_line, plural
from toolcrib.cli.state import tool_states
from toolcrib.core.types import JsonObject
from toolcrib.sessions.memory_log import Target
from toolcrib.sessions.todo import MARKS

SHOWN_DECISIONS = 8
PRESET = "hermes-"
"""How the toolsets that stand for a whole front end are called; nobody picks from those here."""
MEMORIES: dict[Target, str] = {"memory": "What the agent noted", "user": "What it noted about you"}


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
        said = _first_sentence(state.entry.description) if state.outcome.available else reason
        rows.append((state.name, state.entry.toolset, one_line(said)))
    if not rows:
        chat.screen.say("This session has no tools; /toolsets shows what there is.")
        return
    chat.screen.front.show(table(rows, heading=("tool", "toolset", "")), gap=True)
    chat.screen.note(f"{plural(len(offered), 'tool')} offered; `toolcrib tools explain NAME` says all about one.")


async def _offered(chat: Chat) -> set[str]:
    # Availability checks may look at the disk or start a program.
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
    chat.screen.front.show(table(rows, heading=("toolset", "in use", "")), gap=True)
    chat.screen.note("`toolcrib chat --toolsets NAMES` starts with others; `toolcrib config set toolsets` keeps them.")


def complete_toolsets(chat: Chat) -> Iterable[str]:
    return chat.host.runtime.toolsets.names()


async def show_plan(chat: Chat, _: str) -> None:
    items = chat.host.todo.store(chat.agent.session_id).read()
    if not items:
        chat.screen.say("The agent has no plan in this session.")
        return
    chat.screen.front.show(table((MARKS[item["status"]], one_line(item["content"])) for item in items), gap=True)


async def show_memory(chat: Chat, _: str) -> None:
    store, front = chat.host.memory.store, chat.screen.front
    for target, title in MEMORIES.items():
        entries = await asyncio.to_thread(store.entries, target)
        front.show(Text(f"{title} ({store.usage(target, entries)})", "bold"), gap=True)
        if entries:
            front.show(table(("-", one_line(entry)) for entry in entries))
    chat.screen.note(f"Kept in {chat.host.settings.home.memories_dir}; you may edit the files.")


async def show_approvals(chat: Chat, _: str) -> None:
    session, front = chat.agent.session_id, chat.screen.front
    grants = _session_grants(chat, session)
    front.show(
        Text("Allowed in this session" if grants else "Nothing is allowed for this session alone.", "bold"), gap=True
    )
    if grants:
        front.show(table(("-", grant.text) for grant in grants))
    permanent = chat.host.settings.command_allowlist
    if permanent:
        front.show(Text("Allowed for good", "bold"), table(("-", text) for text in permanent), gap=True)
    records = await asyncio.to_thread(open_log(chat.host.settings.home).last, SHOWN_DECISIONS)
    if records:
        rows = [
            (local_time(one.request.asked_at)[11:16], outcome(one), one.request.tool, short_command(one.request))
            for one in records
        ]
        front.show(Text("Decided last", "bold"), table(rows), gap=True)
    chat.screen.note("`toolcrib approvals explain last` says why; `toolcrib approvals revoke GRANT` takes one back.")


def _session_grants(chat: Chat, session: str) -> tuple[Grant, ...]:
    gate = chat.host.runtime.gate
    return gate.made.grants.of_session(session) if isinstance(gate, DeferredGate) else ()


async def show_processes(chat: Chat, _: str) -> None:
    found = await running_processes(chat, everything=True)
    if not found:
        chat.screen.say("No background process was started in this session.")
        return
    rows = [
        (one["session_id"], _state(one), seconds_in_words(one["uptime_seconds"]), one_line(one["command"]))
        for one in found
    ]
    chat.screen.front.show(table(rows, heading=("process", "state", "for", "command")), gap=True)


async def running_processes(chat: Chat, *, everything: bool = False) -> list[JsonObject]:
    """The background processes of this session; those that have ended only with `everything`."""
    if not chat.host.runtime.has_terminal:
        return []
    answer = await chat.host.runtime.terminal.processes.act({"action": "list"}, chat.agent.session_id)
    return [one for one in answer["processes"] if everything or one["status"] == "running"]


def _state(one: JsonObject) -> str:
    return one["status"] if one["status"] == "running" else f"{one['status']} ({one.get('exit_code')})"


async def show_cost(chat: Chat, _: str) -> None:
    session = chat.agent.session
    usage = session.usage
    cached = f" ({usage.cached_tokens / usage.input_tokens:.0%} from the cache)" if usage.input_tokens else ""
    thought = f" ({count_in_words(usage.reasoning_tokens)} of it thoughts)" if usage.reasoning_tokens else ""
    rows = [
        ("sent", f"{count_in_words(usage.input_tokens)} tokens{cached}"),
        ("answered", f"{count_in_words(usage.output_tokens)} tokens{thought}"),
        ("tool calls", str(session.call_count)),
        ("context", f"{chat.agent.context_share:.0%} of the model's window"),
        ("cost", cost_in_words(usage.cost_usd) or "not known; model.prices in the config sets prices"),
    ]
    chat.screen.front.show(table(rows), gap=True)


COMMANDS = (
    SlashCommand(
        name="tools", arguments="[TOOLSET]", summary="The tools of this session", run=show_tools, while_working=True,
        complete=complete_toolsets,
    ),
    SlashCommand(name="toolsets", summary="The toolsets, and which are in use", run=show_toolsets, while_working=True),
    SlashCommand(name="todo", summary="The agent's plan", run=show_plan, while_working=True, aliases=("plan",)),
    SlashCommand(name="memory", summary="What the agent remembers", run=show_memory, while_working=True),
    SlashCommand(
        name="approvals", summary="What is allowed, and what was decided", run=show_approvals, while_working=True
    ),
    SlashCommand(
        name="processes", summary="Background processes", run=show_processes, while_working=True, aliases=("ps",)
    ),
    SlashCommand(
        name="cost", summary="Tokens and cost of this session", run=show_cost, while_working=True, aliases=("usage",)
    ),
)  # fmt: skip
