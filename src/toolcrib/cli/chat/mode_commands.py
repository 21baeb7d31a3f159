"""The slash commands for how the agent works and what the chat shows: /mode, /theme, /show."""

from __future__ import annotations

from toolcrib.cli.chat.renderer import THEMES
from toolcrib.cli.chat.slash import Chat, SlashCommand, table
from toolcrib.core.approvals import MODES, Mode
from toolcrib.core.errors import UsageError

SHOWN_CALLS = 15
MODE_TEXTS: dict[Mode, str] = {
    "ask": "Edits of files are shown as a diff, and you are asked about each.",
    "auto-edit": "Files of the workspace are edited without asking; commands follow the approval policy.",
    "plan": "Only tools and commands that read; the agent ends with a plan for you to accept, edit or reject.",
}


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


MODE_COMMANDS = (
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
