"""Slash commands that steer the talk itself: help, model, queue, steer, stop, undo, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from toolcrib.cli.chat.farewell import short_path
from toolcrib.cli.chat.model_choices import chosen_model, model_choices
from toolcrib.cli.chat.slash import Chat, SlashCommand, find_command, table
from toolcrib.cli.chat.symbols import count_in_words
from toolcrib.cli.output import one_line, plural

KEYS = (
    ("Enter", "send; while the agent works: queue"),
    ("Alt-Enter, Ctrl-J, \\ Enter", "new line"),
    ("Up, Ctrl-R", "what was entered before"),
    ("Tab", "complete a command, a name, an @file"),
    ("Ctrl-X Ctrl-E", "write in your editor"),
    ("Ctrl-C", "stop the work; twice: leave"),
    ("Ctrl-D", "leave"),
    ("Ctrl-Z", "suspend; `fg` comes back"),
)
RESTORE, KEEP = "Put them back as they were", "Leave the files as they are"


async def show_help(chat: Chat, name: str) -> None:
    commands = chat.commands()
    if name:
        one = find_command(commands, name.lstrip("/").lower())
        chat.screen.say(f"/{one.name} {one.arguments}".rstrip() + f": {one.summary}")
        return
    rows = [(f"/{one.name} {one.arguments}".rstrip(), one.summary) for one in commands.values() if not one.of_plugin]
    added = [(f"/{one.name} {one.arguments}".rstrip(), one.summary) for one in commands.values() if one.of_plugin]
    front = chat.screen.front
    front.show(table(rows), gap=True)
    if added:
        front.show(Text("From plugins", "bold"), table(added), gap=True)
    front.show(Text("Keys", "bold"), table(KEYS), gap=True)
    chat.screen.say("A message may name image files; they are sent along. @ completes paths.", "dim", gap=True)


async def switch_model(chat: Chat, wanted: str) -> None:
    agent, settings = chat.agent, chat.host.settings
    if not wanted:
        choices = model_choices(settings)
        chat.screen.say(f"{agent.model or 'a model of its own'} answers ({agent.provider.name}).")
        if choices:
            chat.screen.front.show(table((one.name, one.about) for one in choices))
        chat.screen.note("/model NAME switches for this session; `toolcrib model use NAME` for good.")
        return
    choice = chosen_model(settings, wanted)
    agent.use_model(choice.model, choice.provider)
    chat.screen.say(f"{agent.model} ({agent.provider.name}) answers from now on in this session.")


def complete_models(chat: Chat) -> Iterable[str]:
    return [one.name for one in model_choices(chat.host.settings)]


async def steer(chat: Chat, text: str) -> None:
    if not text:
        chat.screen.say("/steer TEXT says something to the agent while it works.")
    elif chat.is_working:
        chat.agent.steer(text)
        chat.screen.note(f"will be heard before the next step: {one_line(text)}")
    else:
        chat.ask_agent(text)


async def queue(chat: Chat, text: str) -> None:
    if text:
        chat.queue(text)
    elif chat.status.queued:
        chat.screen.front.show(table((f"{at}.", one_line(one)) for at, one in enumerate(chat.status.queued, 1)))
    else:
        chat.screen.say("Nothing waits. /queue TEXT asks something when the present work is done.")


async def stop(chat: Chat, _: str) -> None:
    if chat.is_working:
        chat.stop_work()
    else:
        chat.screen.say("Nothing is running.")


async def leave(chat: Chat, _: str) -> None:
    chat.leave()


async def compress(chat: Chat, topic: str) -> None:
    chat.status.activity.begin("summing up the older messages")
    try:
        done = await chat.agent.compress(topic)
    finally:
        chat.status.activity.end()
    if done is None:
        chat.screen.say("The conversation is too short for a summary.")
        return
    saved = f"{count_in_words(done.tokens_before)} to {count_in_words(done.tokens_after)} tokens"
    chat.screen.say(f"{plural(done.messages, 'older message')} replaced by a summary: {saved}.")


async def undo(chat: Chat, _: str) -> None:
    history, session_id = chat.host.file_history, chat.agent.session_id
    taken = _take_back(chat)
    if taken is None:
        chat.screen.say("There is nothing to take back.")
        return
    chat.host.todo.restore(session_id, chat.agent.messages)
    said = f"Taken back: {one_line(taken.question)!r} and what followed ({plural(taken.count, 'message')})."
    chat.screen.say(said)
    changed = [one for one in history.changed(session_id) if taken.call_ids.intersection(one.call_ids)]
    if not changed:
        return
    names = ", ".join(f"{short_path(one.path)} ({one.kind})" for one in changed)
    answer = await chat.choose(f"It also touched {names}.", (RESTORE, KEEP))
    if answer == RESTORE:
        for done in await asyncio.to_thread(history.undo, session_id, turn_id=taken.turn_id):
            chat.screen.note(f"{short_path(done.path)}: {done.reason if done.what == 'refused' else done.what}")


@dataclass(frozen=True)
class _TakenBack:
    """The last exchange, which is no longer part of the conversation."""

    question: str
    turn_id: str
    call_ids: frozenset[str]
    count: int


def _take_back(chat: Chat) -> _TakenBack | None:
    """Take back the last question with all that was said to the agent while it worked on it."""
    stored = chat.host.store.messages(chat.agent.session_id)
    asked = [one for one in stored if one.message.role == "user"]
    if not asked:
        return None
    turn = asked[-1].turn_id
    first = next(one for one in asked if one is asked[-1] or (turn and one.turn_id == turn))
    calls = frozenset(call.id for one in stored[stored.index(first) :] for call in one.message.tool_calls)
    count = sum(chat.agent.undo() for _ in range(asked.index(first), len(asked)))
    return _TakenBack(first.message.text, turn, calls, count)


async def retry(chat: Chat, _: str) -> None:
    taken = _take_back(chat)
    if taken is None:
        chat.screen.say("There is nothing to ask again.")
        return
    chat.ask_agent(taken.question)


async def toggle_reasoning(chat: Chat, _: str) -> None:
    chat.screen.shows_reasoning = not chat.screen.shows_reasoning
    now = "shown in full" if chat.screen.shows_reasoning else "folded to one line"
    chat.screen.say(f"What the model thinks is {now} from now on.")


COMMANDS = (
    SlashCommand(
        name="help", arguments="[COMMAND]", summary="What can be typed here", run=show_help, while_working=True,
        aliases=("?",), complete=lambda chat: chat.commands(),
    ),
    SlashCommand(
        name="model", arguments="[NAME]", summary="Show the models, or let another one answer", run=switch_model,
        complete=complete_models,
    ),
    SlashCommand(
        name="queue", arguments="[TEXT]", summary="Ask something when the present work is done", run=queue,
        while_working=True,
    ),
    SlashCommand(
        name="steer", arguments="TEXT", summary="Say something to the agent while it works", run=steer,
        while_working=True,
    ),
    SlashCommand(name="stop", summary="Stop the work and keep the session", run=stop, while_working=True),
    SlashCommand(name="undo", summary="Take back the last exchange, and what it did to files", run=undo),
    SlashCommand(name="retry", summary="Take back the last answer and ask again", run=retry),
    SlashCommand(
        name="compress", arguments="[TOPIC]", summary="Replace the older messages by a summary", run=compress
    ),
    SlashCommand(
        name="reasoning", summary="Show or fold what the model thinks", run=toggle_reasoning, while_working=True
    ),
    SlashCommand(name="exit", summary="Leave the chat", run=leave, while_working=True, aliases=("quit", "bye")),
)  # fmt: skip
