"""Slash commands about sessions and their content: choose, export, copy, measure; and the user's own `!commands`."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from toolcrib.agent.conversation import estimate_message_tokens, estimate_text_tokens
from toolcrib.agent.hooks import fire
from toolcrib.agent.prompt import find_project_file
from toolcrib.cli.chat.attachments import Attachment, own_call, result_object
from toolcrib.cli.chat.picker import PickerRow
from toolcrib.cli.chat.slash import Chat, SlashCommand, table
from toolcrib.cli.chat.summary import replay
from toolcrib.cli.chat.symbols import short_count
from toolcrib.cli.commands.sessions_export import write_export
from toolcrib.cli.output import clean, local_time, one_line, plural, short_path
from toolcrib.config.environment import environment
from toolcrib.core.errors import SessionError, UsageError
from toolcrib.core.messages import Message
from toolcrib.core.types import ToolResult
from toolcrib.providers.model_options import ModelOption, chosen_model, model_choices
from toolcrib.sessions.export import as_markdown, as_openai, masked, read_transcript
from toolcrib.sessions.records import Session

SHOWN_SESSIONS = 15
PICKED_SESSIONS = 1_000
SHOWN_OUTPUT_LINES = 200
ATTACHED_OUTPUT_CHARS = 20_000
CLIPBOARD_SECONDS = 3.0
MAX_CLIPBOARD_BYTES = 74_000
"""Most terminals ignore a longer sequence."""
CLIPBOARDS: tuple[tuple[str, ...], ...] = (
    ("pbcopy",),
    ("wl-copy",),
    ("xclip", "-selection", "clipboard"),
    ("xsel", "--clipboard", "--input"),
)
NEEDED_VARIABLE = {"wl-copy": "WAYLAND_DISPLAY", "xclip": "DISPLAY", "xsel": "DISPLAY"}
SHOWN_RESULTS = 5
INIT_PROMPT = """\
Write an AGENTS.md in the current folder: a short guide for agents that work on this project.
Look first: the README, the build and configuration files, the layout of the folders, the tests. Then write, in at most
60 lines of Markdown: what the project is, how to build, run, test and lint it (the exact commands), how the code is
laid out, the conventions that the code shows, and what to be careful with. Write only what you have seen; leave out
general advice. Then say in two sentences what you wrote."""
IMPROVE_PROMPT = """\
There is an AGENTS.md for this project already. Read it, check it against the project (build and configuration files,
layout, tests), and correct or complete it in place. Keep what is right and the author's wording. Write only what you
have seen. Then say in two sentences what you changed."""


# Sessions


async def start_new(chat: Chat, _: str) -> None:
    before, host = chat.agent.session_id, chat.host
    await chat.use(chat.new_agent(), "reset")
    await fire(
        host.runtime.hooks,
        "on_session_reset",
        session_id=chat.agent.session_id,
        platform=host.platform,
        reason="new_session",
        old_session_id=before,
        new_session_id=chat.agent.session_id,
    )
    chat.screen.say(f"Started session {chat.agent.session_id}. To go back: /resume {before}")


async def resume(chat: Chat, wanted: str) -> None:
    if not wanted and chat.screen.frontend.is_live:
        wanted = await _picked_session(chat)
        if not wanted:
            return
    elif not wanted:
        await list_sessions(chat, "")
        chat.screen.note("Type /resume ID to resume one; part of its title is enough.")
        return
    session = _find_session(chat, wanted)
    if session.id == chat.agent.session_id:
        chat.screen.say("This is the current session.")
        return
    await chat.use(chat.new_agent(session.id), "resume")
    chat.screen.calls.load(session.id, chat.agent.messages)
    frontend = chat.screen.frontend
    frontend.show(replay(chat.agent, chat.status.symbols, frontend.columns), gap=True)


async def _picked_session(chat: Chat) -> str:
    """The id of the session that the person picks; empty if they pick none."""
    sessions = await asyncio.to_thread(lambda: chat.host.store.list(limit=PICKED_SESSIONS))
    found = [one for one in sessions if one.message_count and one.id != chat.agent.session_id]
    if not found:
        chat.screen.say("There are no other sessions yet.")
        return ""
    rows = [
        PickerRow(
            one_line(one.title) or one.id,
            f"{local_time(one.updated_at)[:16]}, {plural(one.message_count, 'message')}, {short_path(one.cwd)}",
        )
        for one in found
    ]
    at = await chat.screen.frontend.pick("Resume a session", rows)
    return found[at].id if at is not None else ""


async def branch(chat: Chat, _: str) -> None:
    before = chat.agent.session_id
    await chat.use(chat.agent.branch(), "branch")
    chat.screen.say(f"Branched to session {chat.agent.session_id}. To go back: /resume {before}")


async def list_sessions(chat: Chat, words: str) -> None:
    found = _matching_sessions(chat, words)
    if not found:
        chat.screen.say("No session matches." if words else "There are no sessions yet.")
        return
    chat.screen.frontend.show(
        table([_session_row(chat, one) for one in found], heading=("session", "last used", "messages", "title")),
        gap=True,
    )


async def set_title(chat: Chat, title: str) -> None:
    if not title:
        chat.screen.say(chat.agent.session.title or "This session has no title; set one with /title TEXT.")
        return
    chat.host.store.update(chat.agent.session_id, title=one_line(title))
    chat.screen.say(f"Renamed this session to {one_line(title)!r}.")


def complete_sessions(chat: Chat) -> Iterable[str]:
    return [one.id for one in chat.host.store.list(limit=SHOWN_SESSIONS)]


def _find_session(chat: Chat, wanted: str) -> Session:
    """The session with this id, or the only one whose title contains these words."""
    try:
        return chat.host.store.get(wanted)
    except SessionError:
        titled = _matching_sessions(chat, wanted)
        if len(titled) == 1:
            return titled[0]
        if titled:
            raise SessionError(
                f"{plural(len(titled), 'session')} have {wanted!r} in the title; name one: "
                + ", ".join(one.id for one in titled[:3])
            ) from None
        raise


def _matching_sessions(chat: Chat, words: str) -> list[Session]:
    if not words:
        return chat.host.store.list(limit=SHOWN_SESSIONS)
    found = chat.host.store.list(limit=1_000)
    return [one for one in found if words.lower() in one.title.lower()][:SHOWN_SESSIONS]


def _session_row(chat: Chat, one: Session) -> tuple[str, str, str, str]:
    title = f"{one_line(one.title)} (current)" if one.id == chat.agent.session_id else one_line(one.title)
    return one.id, local_time(one.updated_at)[:16], str(one.message_count), title.strip()


# The model


async def switch_model(chat: Chat, wanted: str) -> None:
    agent, settings = chat.agent, chat.host.settings
    if wanted:
        choice = chosen_model(settings, wanted)
    elif chat.screen.frontend.is_live:
        picked = await _picked_model(chat)
        if picked is None:
            return
        choice = picked
    else:
        _list_models(chat)
        return
    agent.use_model(choice.model, choice.provider)
    chat.screen.say(f"Now using {agent.model} (provider: {agent.provider.name}) in this session.")


async def _picked_model(chat: Chat) -> ModelOption | None:
    """The model that the person picks; asks the configured providers for theirs, unless they were asked recently."""
    # Imports an HTTP client, which no other command of the chat needs.
    from toolcrib.cli.models import listed_models  # noqa: PLC0415

    agent = chat.agent
    chat.status.activity.begin("asking the providers for their models")
    try:
        options = await asyncio.to_thread(listed_models, chat.host.settings)
    finally:
        chat.status.activity.end()
    names = [one.name for one in options]
    current = f"{agent.provider.name}/{agent.model}"
    rows = [PickerRow(one.name, "in use" if one.name == current else one.about) for one in options]
    at = await chat.screen.frontend.pick("Choose a model", rows, names.index(current) if current in names else 0)
    return options[at] if at is not None else None


def _list_models(chat: Chat) -> None:
    agent, choices = chat.agent, model_choices(chat.host.settings)
    chat.screen.say(f"Using {agent.model or 'the default model'} (provider: {agent.provider.name}).")
    if choices:
        chat.screen.frontend.show(table((one.name, one.about) for one in choices))
    chat.screen.note(
        "Type /model NAME to switch for this session; run `toolcrib model use NAME` to change the default."
    )


def complete_models(chat: Chat) -> Iterable[str]:
    return [one.name for one in model_choices(chat.host.settings)]


# What the session contains


async def export(chat: Chat, name: str) -> None:
    session_id = chat.agent.session_id
    path = _export_path(chat.folder, name or f"{session_id}.md")
    if path.is_file():
        raise UsageError(f"{short_path(str(path))} exists; name another file: /export FILE")
    if path.suffix not in (".md", ".markdown", ".json"):
        raise UsageError(f"{path.name!r} is neither Markdown nor JSON; name a file that ends in .md or .json")
    transcript = masked(read_transcript(chat.host.store, session_id))
    text = (
        json.dumps(as_openai(transcript), ensure_ascii=False, indent=2) + "\n"
        if path.suffix == ".json"
        else as_markdown(transcript)
    )
    await asyncio.to_thread(write_export, path, text, force=False)
    count = plural(len(transcript.messages), "message")
    chat.screen.say(f"Wrote {count} to {short_path(str(path))}. Secrets are masked.")


def _export_path(folder: str, name: str) -> Path:
    return Path(folder) / Path(name).expanduser()


async def copy(chat: Chat, wanted: str) -> None:
    answers = [one.text for one in chat.agent.messages if one.role == "assistant" and one.text.strip()]
    number = int(wanted) if wanted.isascii() and wanted.isdigit() else 1
    if (wanted and not wanted.isdigit()) or not 1 <= number <= max(1, len(answers)):
        raise UsageError("type /copy, or /copy N for the Nth answer from the end")
    if not answers:
        chat.screen.say("There is no answer to copy yet.")
        return
    text = answers[-number]
    program = await _to_clipboard(text)
    encoded = base64.b64encode(text.encode("utf-8", "replace"))
    if len(encoded) <= MAX_CLIPBOARD_BYTES:
        # Also reaches the clipboard of the machine in front of the person, through ssh.
        chat.screen.frontend.send(f"\x1b]52;c;{encoded.decode()}\x07")
    elif not program:
        raise UsageError("the answer is too long for the terminal's clipboard; /export writes it to a file")
    how = f"with {program}" if program else "through the terminal"
    chat.screen.note(f"Copied {plural(len(text), 'character')} {how}.")


async def _to_clipboard(text: str) -> str:
    """The program that took the text; empty if there is none."""
    for command in CLIPBOARDS:
        program, variable = command[0], NEEDED_VARIABLE.get(command[0])
        if shutil.which(program) is None or (variable and not environment().get(variable)):
            continue
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(CLIPBOARD_SECONDS):
                await process.communicate(text.encode("utf-8", "replace"))
        except TimeoutError:
            process.kill()
            await process.wait()
            continue
        if process.returncode == 0:
            return program
    return ""


async def show_context(chat: Chat, _: str) -> None:
    agent = chat.agent
    messages, profile = agent.messages, agent.profile
    dialect, mode = agent.provider.dialect, agent.mode
    offered = await asyncio.to_thread(lambda: agent.tool_selection.current(profile, dialect, "", mode=mode))
    sizes: dict[str, int] = {
        "system prompt": estimate_text_tokens(agent.system_prompt),
        f"{plural(len(offered.names), 'tool')}": offered.tokens,
        "your messages": _tokens(messages, "user"),
        "answers and calls": _tokens(messages, "assistant"),
        "results of tools": _tokens(messages, "tool"),
    }
    total, window = sum(sizes.values()), profile.context_window
    rows = [(name, short_count(size), _share(size, window)) for name, size in sizes.items()]
    rows.append(("all of it", short_count(total), _share(total, window)))
    if window:
        rows.append(("free", short_count(max(0, window - total)), _share(max(0, window - total), window)))
    chat.screen.frontend.show(table(rows, heading=("in the context", "tokens", "of the window")), gap=True)
    by_tool = Counter[str]()
    for message in messages:
        if message.role == "tool":
            by_tool[message.name] += estimate_message_tokens(message)
    if by_tool:
        found = [(one_line(name), short_count(size)) for name, size in by_tool.most_common(SHOWN_RESULTS)]
        chat.screen.frontend.show(table(found, heading=("largest results", "tokens")), gap=True)
    chat.screen.note("Estimated. /compress replaces older messages with a summary.")


def _tokens(messages: Sequence[Message], role: str) -> int:
    return sum(estimate_message_tokens(one) for one in messages if one.role == role)


def _share(size: int, window: int) -> str:
    return f"{size / window:.0%}" if window else "-"


async def init(chat: Chat, _: str) -> None:
    exists = await asyncio.to_thread(find_project_file, chat.folder) is not None
    chat.screen.note("The agent reads the project, then " + ("checks AGENTS.md." if exists else "writes AGENTS.md."))
    chat.ask_agent(IMPROVE_PROMPT if exists else INIT_PROMPT, echo=False)


# The person's own commands


async def run_own_command(chat: Chat, command: str) -> None:
    """Run a command that the person typed after `!`; its output goes along with their next message."""
    call_id = f"own_{secrets.token_hex(6)}"
    chat.own_calls.add(call_id)
    chat.status.activity.begin(f"running {one_line(command)}")
    try:
        result = await own_call(chat.agent, "terminal", {"command": command}, call_id)
    finally:
        chat.own_calls.discard(call_id)
        chat.status.activity.end()
    output, code = _output_of(result)
    if code is None:
        chat.screen.problem(one_line(result.error_message or output or "the command did not run"))
        return
    _show_output(chat, output)
    if code:
        chat.screen.say(f"exit {code}", "red")
    kept = output[-ATTACHED_OUTPUT_CHARS:]
    cut = "[the beginning is left out]\n" if len(kept) < len(output) else ""
    text = f"$ {command}\n{cut}{kept}\n[exit code {code}]"
    about = plural(len(output.splitlines()), "line")
    chat.attached.append(Attachment(f"output of `{one_line(command)}`", text, about))
    chat.screen.note("The model sees this with your next message.")


def _output_of(result: ToolResult) -> tuple[str, int | None]:
    """The output and the exit code of a command; None if it did not run."""
    found = result_object(result)
    code = found.get("exit_code")
    return str(found.get("output") or ""), code if isinstance(code, int) else None


def _show_output(chat: Chat, output: str) -> None:
    lines = clean(output.replace("\r\n", "\n")).rstrip("\n").split("\n")
    left_out = len(lines) - SHOWN_OUTPUT_LINES
    if left_out > 0:
        chat.screen.note(f"{chat.status.symbols.ellipsis} {plural(left_out, 'more line')}")
    shown = lines[-SHOWN_OUTPUT_LINES:]
    if any(shown):
        chat.screen.frontend.show(Text("\n".join(shown)))


SESSION_COMMANDS = (
    SlashCommand(name="new", summary="Start a new session", run=start_new, aliases=("reset", "clear")),
    SlashCommand(
        name="resume",
        arguments="[ID]",
        summary="Choose a session and resume it",
        run=resume,
        aliases=("continue",),
        complete=complete_sessions,
    ),
    SlashCommand(name="branch", summary="Continue in a copy of this session", run=branch, aliases=("fork",)),
    SlashCommand(
        name="sessions",
        arguments="[WORDS]",
        summary="List sessions, newest first",
        run=list_sessions,
        while_working=True,
    ),
    SlashCommand(
        name="title",
        arguments="[TEXT]",
        summary="Name this session",
        run=set_title,
        while_working=True,
        aliases=("rename",),
    ),
    SlashCommand(
        name="model",
        arguments="[NAME]",
        summary="Choose another model",
        run=switch_model,
        complete=complete_models,
    ),
    SlashCommand(name="export", arguments="[FILE]", summary="Write this session to a .md or .json file", run=export),
    SlashCommand(
        name="copy", arguments="[N]", summary="Copy the last answer to the clipboard", run=copy, while_working=True
    ),
    SlashCommand(name="context", summary="Show what fills the model's context", run=show_context, while_working=True),
    SlashCommand(name="init", summary="Write a first AGENTS.md for this project", run=init),
)
