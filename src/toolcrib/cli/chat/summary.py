"""The first and last lines of a chat: the greeting, a resumed session, and the summary at the end."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from toolcrib.agent.agent import Agent
from toolcrib.cli.chat.slash import Chat
from toolcrib.cli.chat.symbols import Symbols, fitted, short_cost, short_count, short_duration
from toolcrib.cli.output import clean, one_line, plural
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject
from toolcrib.version import __version__

SHOWN_FILES = 5
SHOWN_ANSWER_LINES = 12


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


def resumed_lines(agent: Agent, symbols: Symbols) -> list[Text]:
    """The last question and answer of a resumed session."""
    session = agent.session
    rows = [Text(clean(f"Resumed {session.id}: {session.title} ({plural(session.message_count, 'message')})"), "bold")]
    # The last answer, and the question before it.
    spoken = [one for one in agent.messages if one.text and one.role != "tool"]
    asked = max((at for at, one in enumerate(spoken) if one.role == "user"), default=None)
    if asked is not None:
        rows.append(Text(clean(f"{symbols.prompt}{one_line(spoken[asked].text)}"), "dim"))
        rows += [Text(_ending(one, symbols), "dim") for one in spoken[asked + 1 :][-1:]]
    return [*rows, *warnings(agent)]


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


def short_path(path: str) -> str:
    """The path with ~ for the home folder."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return path
    return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path


def _ending(message: Message, symbols: Symbols) -> str:
    lines = clean(message.text).strip().splitlines()
    if len(lines) > SHOWN_ANSWER_LINES:
        lines = [symbols.ellipsis, *lines[-SHOWN_ANSWER_LINES:]]
    return "\n".join(lines)


async def running_processes(chat: Chat, *, everything: bool = False) -> list[JsonObject]:
    """The background processes of this session; with `everything`, also those that have ended."""
    if not chat.host.runtime.has_terminal:
        return []
    answer = await chat.host.runtime.terminal.processes.act({"action": "list"}, chat.agent.session_id)
    return [one for one in answer["processes"] if everything or one["status"] == "running"]
