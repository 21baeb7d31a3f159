"""The first and last lines of a chat: the greeting, a resumed session, and the summary at the end."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from toolcrib.agent.agent import Agent
from toolcrib.agent.tool_calls import summary_of
from toolcrib.cli.chat.calls import CallOutcome
from toolcrib.cli.chat.renderer import as_markdown
from toolcrib.cli.chat.slash import Chat
from toolcrib.cli.chat.symbols import Symbols, fitted, short_cost, short_count, short_duration
from toolcrib.cli.output import cell_width, clean, one_line, plural, short_path
from toolcrib.core.messages import Message, RequestedCall, spoken_text
from toolcrib.core.types import JsonObject
from toolcrib.version import __version__

SHOWN_FILES = 5
SHOWN_REPLAY_LINES = 3
MAX_REPLAYED = 50
"""The most questions of a resumed session that are shown again."""


def greeting(agent: Agent, folder: str, symbols: Symbols, columns: int) -> list[Text]:
    """The model, the tools, the folder, and how to get help."""
    dot = symbols.dot
    model = f"{agent.model or 'default model'} ({agent.provider.name})"
    most = agent.provider.profile(agent.model).max_tools
    tools = f"up to {most} tools per question" if most else plural(len(agent.tools), "tool")
    return [
        Text(fitted(f"toolcrib {__version__}{dot}{model}", columns, symbols.ellipsis), "bold"),
        Text(fitted(f"{tools}{dot}{short_path(folder)}", columns, symbols.ellipsis), "dim"),
        Text(
            fitted(f"/help for help{dot}Ctrl-C to stop{dot}Ctrl-D to exit", columns, symbols.ellipsis),
            "dim",
        ),
    ]


def replay(agent: Agent, symbols: Symbols, columns: int) -> RenderableType:
    """A resumed session from its beginning: older answers folded to a few lines, the last one whole."""
    session = agent.session
    head = f"Resumed {session.id}: {session.title} ({plural(session.message_count, 'message')})"
    rows: list[RenderableType] = [Text(clean(head), "bold")]
    messages = agent.messages
    asked = [at for at, one in enumerate(messages) if _is_question(one)]
    first = asked[-MAX_REPLAYED] if len(asked) > MAX_REPLAYED else 0
    if first:
        earlier = plural(len(asked) - MAX_REPLAYED, "earlier question")
        rows.append(Text(f"{symbols.ellipsis} {earlier}; `/export` writes all of them", "dim"))
    last = max((at for at, one in enumerate(messages) if one.role == "assistant" and one.text.strip()), default=-1)
    results = {one.call_id: one for one in messages if one.role == "tool"}
    for at, message in enumerate(messages[first:], first):
        if _is_question(message):
            rows.append(Text("\n" + _folded(f"{symbols.prompt}{spoken_text(message.text)}", symbols), "bold"))
        elif message.role == "assistant":
            rows += [_replayed_call(call, results.get(call.id), symbols, columns) for call in message.tool_calls]
            rows += _answer(message, symbols, is_last=at == last)
    return Group(*rows, *warnings(agent))


def _is_question(message: Message) -> bool:
    return message.role == "user" and message.origin != "untrusted" and bool(message.text.strip())


def _answer(message: Message, symbols: Symbols, *, is_last: bool) -> list[RenderableType]:
    if not message.text.strip():
        return []
    return [as_markdown(clean(message.text).strip())] if is_last else [Text(_folded(message.text, symbols), "dim")]


def _folded(text: str, symbols: Symbols) -> str:
    lines = clean(text).rstrip().splitlines()
    left_out = len(lines) - SHOWN_REPLAY_LINES
    more = [f"{symbols.ellipsis} {plural(left_out, 'more line')}"] if left_out > 0 else []
    return "\n".join([*lines[:SHOWN_REPLAY_LINES], *more])


def _replayed_call(call: RequestedCall, result: Message | None, symbols: Symbols, columns: int) -> Text:
    outcome = CallOutcome("stopped", "interrupted") if result is None else CallOutcome.of(result.status, result.text)
    ending = f"{symbols.dot}{outcome.words}" if outcome.words else ""
    text = one_line(f"{outcome.sign(symbols)} {call.name}  {summary_of(call.arguments)}")
    return Text(fitted(text, columns - 1 - cell_width(ending), symbols.ellipsis) + ending, "dim")


def warnings(agent: Agent) -> list[Text]:
    """Warnings before the first turn: calls with an unknown outcome, memories left out of the prompt."""
    return [Text(clean(one), "yellow") for one in agent.warnings]


async def chat_summary(chat: Chat) -> list[Text]:
    """How to resume, the cost, the changed files, and what is still running."""
    session = chat.agent.session
    if not session.message_count:
        return []
    usage = session.usage
    used = [f"{short_count(usage.input_tokens)} tokens in, {short_count(usage.output_tokens)} out"]
    if usage.cost_usd is not None:
        used.append(short_cost(usage.cost_usd))
    rows = [
        Text(f"Resume with: toolcrib chat --resume {session.id}", "bold"),
        Text(chat.status.symbols.dot.join(used), "dim"),
    ]
    files = list(dict.fromkeys(one.path for one in chat.host.file_history.changed(session.id) if not one.during))
    if files:
        more = f" and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
        rows.append(Text(clean(f"Changed: {', '.join(map(short_path, files[:SHOWN_FILES]))}{more}")))
        rows.append(Text(f"Undo with: toolcrib undo --session {session.id} (or /undo after resuming)", "dim"))
    for one in await running_processes(chat):
        about = f"{one['session_id']} ({short_duration(one['uptime_seconds'])}): {one_line(one['command'])}"
        rows.append(Text(clean(f"Ending background process {about}"), "yellow"))
    return rows


async def running_processes(chat: Chat, *, everything: bool = False) -> list[JsonObject]:
    """The background processes of this session; with `everything`, also those that have ended."""
    if not chat.host.runtime.has_terminal:
        return []
    answer = await chat.host.runtime.terminal.processes.act({"action": "list"}, chat.agent.session_id)
    return [one for one in answer["processes"] if everything or one["status"] == "running"]
