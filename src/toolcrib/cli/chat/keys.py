"""What the keys do in the input line of the chat, beyond what every line editor does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from toolcrib.cli.chat.front import Listener

Tell = Callable[[Callable[[Listener], None]], None]


def chat_keys(buffer: Buffer, tell: Tell, edit: Callable[[], None]) -> KeyBindings:
    """The bindings; `tell` hands on what was meant, `edit` opens the editor."""
    keys = KeyBindings()
    typing = has_focus(buffer)

    @keys.add("enter", filter=typing)
    def _submit(_event: KeyPressEvent) -> None:
        if _takes_completion(buffer) or _continues(buffer):
            return
        text = buffer.text
        if text.strip():
            with suppress(OSError):  # a full disk keeps nobody from asking
                buffer.append_to_history()
        buffer.reset()
        tell(lambda listener: listener.submit(text))

    @keys.add("escape", "enter", filter=typing)
    @keys.add("c-j", filter=typing)
    def _new_line(_event: KeyPressEvent) -> None:
        buffer.insert_text("\n")

    @keys.add("c-c", filter=typing)
    @keys.add(Keys.SIGINT)
    def _interrupt(_event: KeyPressEvent) -> None:
        tell(lambda listener: listener.interrupt() if listener.is_working or not buffer.text else buffer.reset())

    @keys.add("c-d", filter=typing)
    def _leave(_event: KeyPressEvent) -> None:
        if buffer.text:
            buffer.delete()
        else:
            tell(lambda listener: listener.leave())

    @keys.add("c-z")
    def _suspend(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    @keys.add("c-x", "c-e", filter=typing)
    def _edit(_event: KeyPressEvent) -> None:
        edit()

    return keys


def _continues(buffer: Buffer) -> bool:
    """A backslash at the end of the line asks for another one."""
    if not buffer.document.is_cursor_at_the_end or not buffer.text.endswith("\\"):
        return False
    buffer.delete_before_cursor(1)
    buffer.insert_text("\n")
    return True


def _takes_completion(buffer: Buffer) -> bool:
    """Enter on a completion that was walked to keeps it; a command is complete with it and runs at once."""
    state = buffer.complete_state
    if state is None:
        return False
    chosen = state.current_completion
    buffer.complete_state = None
    return chosen is not None and not buffer.text.startswith("/")
