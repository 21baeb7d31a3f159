"""The first and the last lines of a chat."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from toolcrib.agent.agent import Agent
from toolcrib.cli.chat.slash import Chat
from toolcrib.cli.chat.slash_state import running_processes
from toolcrib.cli.chat.symbols import Symbols, cost_in_words, count_in_words, fitted, seconds_in_words
from toolcrib.cli.output import clean, one_line, plural
from toolcrib.core.messages import Message
from toolcrib.version import __version__

SHOWN_FILES = 5
SHOWN_ANSWER_LINES = 12


def greeting(agent: Agent, folder: str, symbols: Symbols, columns: int) -> list[Text]:
    """Which model, which tools, which folder, and how to get help."""
    dot = symbols.dot
    model = f"{agent.model or 'its own model'} ({agent.provider.name})"
    most = agent.provider.profile(agent.model).max_tools
    tools = f"up to {most} tools for each question" if most else plural(len(agent.tools), "tool")
    return [
        Text(fitted(f"toolcrib {__version__}{dot}{model}", columns, symbols.ellipsis), "bold"),
        Text(fitted(f"{tools}{dot}{short_path(folder)}", columns, symbols.ellipsis), "dim"),
        Text(
            fitted(f"/help shows what can be typed{dot}Ctrl-C stops{dot}Ctrl-D leaves", columns, symbols.ellipsis),
            "dim",
        ),
    ]


def resumed(agent: Agent, symbols: Symbols) -> list[Text]:
    """Where the conversation stood when it was left."""
    session = agent.session
    rows = [Text(clean(f"Resumed {session.id}: {session.title} ({plural(session.message_count, 'message')})"), "bold")]
    # The last thing that was said, and what it was said to.
    said = [one for one in agent.messages if one.text and one.role != "tool"]
    asked = max((at for at, one in enumerate(said) if one.role == "user"), default=None)
    if asked is not None:
        rows.append(Text(clean(f"{symbols.prompt}{one_line(said[asked].text)}"), "dim"))
        rows += [Text(_ending(one, symbols), "dim") for one in said[asked + 1 :][-1:]]
    return [*rows, *warnings(agent)]


def warnings(agent: Agent) -> list[Text]:
    """What one has to know before one goes on: calls whose outcome nobody knows, memories that were left out."""
    return [Text(clean(one), "yellow") for one in agent.warnings]


async def farewell(chat: Chat) -> list[Text]:
    """How to come back, what it cost, which files were changed, what still runs."""
    session = chat.agent.session
    if not session.message_count:
        return []
    usage = session.usage
    used = [f"{count_in_words(usage.input_tokens)} tokens sent, {count_in_words(usage.output_tokens)} answered"]
    if usage.cost_usd is not None:
        used.append(cost_in_words(usage.cost_usd))
    rows = [
        Text(f"Resume with: toolcrib chat --resume {session.id}", "bold"),
        Text(chat.status.symbols.dot.join(used), "dim"),
    ]
    files = list(dict.fromkeys(one.path for one in chat.host.file_history.changed(session.id)))
    if files:
        more = f" and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
        rows.append(Text(clean(f"Changed: {', '.join(map(short_path, files[:SHOWN_FILES]))}{more}")))
        rows.append(Text("To take that back: resume the session and type /undo", "dim"))
    for one in await running_processes(chat):
        about = f"{one['session_id']} ({seconds_in_words(one['uptime_seconds'])}): {one_line(one['command'])}"
        rows.append(Text(clean(f"Ends with the chat: {about}"), "yellow"))
    return rows


def short_path(path: str) -> str:
    """A path as people write it, with ~ for their home."""
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
