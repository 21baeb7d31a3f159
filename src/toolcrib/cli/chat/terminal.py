"""The frontend for terminals: an input line at the bottom that stays usable, everything else printed above it."""

from __future__ import annotations

import asyncio
import codecs
import os
import select
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.application.current import get_app, set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.cursor_shapes import ModalCursorShapeConfig
from prompt_toolkit.data_structures import Size
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition, emacs_mode, has_completions, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.formatted_text.base import OneStyleAndTextTuple
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent, merge_key_bindings
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenuControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import PromptSession
from prompt_toolkit.styles import DynamicStyle, Style
from prompt_toolkit.widgets import SearchToolbar
from rich.console import RenderableType
from rich.text import Text

from toolcrib.cli.chat.frontend import InputListener, forward_signals
from toolcrib.cli.chat.input import chat_keys, edit_in_editor
from toolcrib.cli.chat.picker import Picker, PickerRow, picker_application
from toolcrib.cli.chat.renderer import BackgroundQuestion, TerminalRenderer, ThemeName, theme_of_variables
from toolcrib.cli.chat.status import FRAMES_PER_SECOND, MAX_STATUS_COLUMNS, Status
from toolcrib.cli.output import one_line
from toolcrib.config.agent_settings import ChatSettings
from toolcrib.config.environment import environment
from toolcrib.config.files import OWNER_FILE, make_folder

if sys.platform != "win32":
    from prompt_toolkit.input.vt100 import Vt100Input

CHUNK_BYTES = 65536
MAX_LINE_CHARS = 2_000
MENU_ROWS = 6
MAX_INPUT_ROWS = 10
MAX_GROWING_ROWS = 16
ROWS_FOR_THE_REST = 8
DRAWN_CHARS = 4_000
"""A longer growing block is shown as plain text: rendering it again and again costs too much."""
BAR_STYLES = {
    "prompt": "bold",
    "working": "ansicyan",
    "printed": "dim",
    "plan": "",
    "marked": "bold ansicyan",
    "queued": "dim italic",
    "hint": "ansiyellow",
    "bar": "dim",
    "completion-menu": "bg:default",
    "completion-menu.completion": "bg:default fg:default",
    "completion-menu.completion.current": "bg:default fg:default reverse",
    "completion-menu.meta.completion": "bg:default fg:default dim",
    "completion-menu.meta.completion.current": "bg:default fg:default reverse",
}
LIGHT_STYLES = {"working": "#05609e", "hint": "#8a6100", "marked": "bold #05609e"}
PLAIN_STYLES = {"working": "", "hint": "bold", "marked": "bold reverse"}
STYLES: dict[ThemeName, Style] = {
    "dark": Style.from_dict(BAR_STYLES),
    "light": Style.from_dict({**BAR_STYLES, **LIGHT_STYLES}),
    "plain": Style.from_dict({**BAR_STYLES, **PLAIN_STYLES}),
}
NOTIFYING_TERMINALS = frozenset({"iTerm.app", "WezTerm", "ghostty", "WarpTerminal"})
"""What TERM_PROGRAM says in terminals that show OSC 9 as a notification."""
ASK_BACKGROUND = "\x1b]11;?\x1b\\"
ANSWERING_TERMINALS = ("xterm", "tmux", "screen", "rxvt", "alacritty", "foot", "wezterm", "ghostty", "konsole", "vte")
ESCAPE_SECONDS = 0.2
"""How long Escape waits for Enter, which together insert a new line."""
MIN_REDRAW_SECONDS = 0.05
TYPED_AHEAD_BYTES = 4096


@contextmanager
def capture_stray_output(on_line: Callable[[str], None]) -> Iterator[TextIO]:
    """Yields a stream for the terminal; passes all other output to stdout and stderr to `on_line`, line by line.

    `on_line` runs in a thread, which ends with the context. Redirects the descriptors, because C libraries and child
    processes write to those.
    """
    if sys.platform == "win32":
        # Windows cannot wait for pipes.
        yield sys.stdout
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as undo:
        terminal = os.fdopen(
            os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, newline=""
        )
        undo.callback(_close, terminal)
        readable, writable = os.pipe()
        stop_heard, stop = os.pipe()
        for descriptor in (readable, stop_heard):
            undo.callback(os.close, descriptor)
        reader = threading.Thread(
            target=_read_lines, args=(readable, stop_heard, on_line), name="chat-stray-output", daemon=True
        )
        reader.start()
        undo.callback(reader.join)
        undo.callback(os.close, stop)
        for stream in (sys.stdout, sys.stderr):
            saved = os.dup(stream.fileno())
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, stream.fileno())
            undo.callback(stream.flush)
            os.dup2(writable, stream.fileno())
        os.close(writable)
        yield terminal


def _close(terminal: TextIO) -> None:
    with suppress(OSError):  # the terminal is gone
        terminal.close()


def _read_lines(readable: int, stop_heard: int, on_line: Callable[[str], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while True:
        ready, _, _ = select.select([readable, stop_heard], [], [])
        if readable not in ready:
            break
        data = os.read(readable, CHUNK_BYTES)
        if not data:
            break
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        for line in lines:
            on_line(line)
        if len(rest) > MAX_LINE_CHARS:
            on_line(rest)
            rest = ""
    if rest.strip():
        on_line(rest)


class BottomPane:
    """The rows at the bottom that are redrawn when something changes."""

    def __init__(self, status: Status, renderer: TerminalRenderer, output: Output) -> None:
        self._status = status
        self._renderer = renderer
        self._output = output
        self._drawn: tuple[str, int, str] = ("", 0, "")

    def layout(self, buffer: Buffer) -> Layout:
        """The layout from the growing answer down to the status bar; the input line has the focus."""
        status, search = self._status, SearchToolbar()
        control = BufferControl(
            buffer,
            search_buffer_control=search.control,
            input_processors=[BeforeInput(lambda: [("class:prompt", status.prompt())])],
            preview_search=True,
        )
        typed = Window(
            control,
            height=Dimension(min=1, max=MAX_INPUT_ROWS),
            wrap_lines=True,
            dont_extend_height=True,
            get_line_prefix=lambda line, _wrap: [("", status.symbols.more)] if line else [],
        )
        menu = Window(CompletionsMenuControl(), height=Dimension(min=1, max=MENU_ROWS), dont_extend_height=True)
        return Layout(
            HSplit(
                [
                    Window(height=1),
                    _rows(self._growing, lambda: status.blocks.is_growing),
                    _rows(self._working, lambda: not status.activity.is_idle),
                    _rows(self._printing, lambda: bool(self._printed_rows())),
                    _rows(self._plan, lambda: status.has_plan and not status.asking),
                    _rows(self._queued, lambda: bool(status.queued)),
                    _rows(self._choices, lambda: bool(status.choices)),
                    typed,
                    ConditionalContainer(menu, has_completions),
                    search,
                    _rows(self._bar, lambda: True),
                ],
                align=VerticalAlign.TOP,
            ),
            focused_element=typed,
        )

    def _growing(self) -> AnyFormattedText:
        columns, rows = self._output.get_size().columns, self._output.get_size().rows
        room = max(2, min(MAX_GROWING_ROWS, rows - ROWS_FOR_THE_REST))
        text = self._status.blocks.growing
        if self._drawn[:2] != (text, columns):
            self._drawn = (text, columns, self._draw(text, columns))
        return ANSI("\n".join(self._drawn[2].splitlines()[-room:]))

    def _draw(self, text: str, columns: int) -> str:
        if text.startswith(("```", "~~~")):
            # Only the last lines of a code block are visible, and highlighting the others takes time.
            fence, *code = text.split("\n")
            text = "\n".join([fence, *code[-MAX_GROWING_ROWS:]])
        if len(text) > DRAWN_CHARS:
            return self._renderer.draw(Text(text[-DRAWN_CHARS:]), columns)
        return self._renderer.draw_markdown(text, columns)

    def _working(self) -> StyleAndTextTuples:
        return [("class:working", "\n".join(self._status.working_rows(self._output.get_size().columns)))]

    def _printed_rows(self) -> list[str]:
        size = self._output.get_size()
        room = min(self._status.output_lines, max(2, size.rows - ROWS_FOR_THE_REST))
        return self._status.activity.output_rows(min(size.columns, MAX_STATUS_COLUMNS), room)

    def _printing(self) -> StyleAndTextTuples:
        return [("class:printed", "\n".join(self._printed_rows()))]

    def _plan(self) -> StyleAndTextTuples:
        return [("class:plan", self._status.plan_row(self._output.get_size().columns))]

    def _choices(self) -> StyleAndTextTuples:
        rows = self._status.choice_rows(self._output.get_size().columns)
        last = len(rows) - 1
        shown: list[OneStyleAndTextTuple] = []
        for number, row in enumerate(rows):
            style = "class:marked" if number == self._status.marked else "class:bar" if number == last else ""
            shown.append((style, row if number == last else f"{row}\n"))
        return shown

    def _queued(self) -> StyleAndTextTuples:
        return [("class:queued", "\n".join(self._status.queued_rows(self._output.get_size().columns)))]

    def _bar(self) -> StyleAndTextTuples:
        style = "class:hint" if self._status.has_hint else "class:bar"
        return [(style, self._status.bar_row(self._output.get_size().columns))]


def view_keys(buffer: Buffer, status: Status, tell: Callable[[Callable[[InputListener], None]], None]) -> KeyBindings:
    """The keys that do not change what is typed: they choose an answer, switch the mode, show a call."""
    keys = KeyBindings()
    is_choosing = Condition(lambda: bool(status.choices) and not buffer.text)

    @keys.add("up", filter=is_choosing)
    def _mark_previous(_event: KeyPressEvent) -> None:
        status.move_mark(-1)

    @keys.add("down", filter=is_choosing)
    def _mark_next(_event: KeyPressEvent) -> None:
        status.move_mark(1)

    # An Alt combination comes as an Esc with another key behind it.
    is_alone = Condition(lambda: not buffer.text and not get_app().key_processor.input_queue)

    @keys.add("escape", filter=is_alone & emacs_mode & ~is_searching, eager=True)
    def _stop(_event: KeyPressEvent) -> None:
        tell(lambda listener: listener.stop_work() if listener.is_working else None)

    @keys.add("s-tab", filter=~has_completions)
    def _switch_mode(_event: KeyPressEvent) -> None:
        tell(lambda listener: listener.switch_mode())

    @keys.add("c-o")
    def _expand(_event: KeyPressEvent) -> None:
        tell(lambda listener: listener.expand())

    return keys


def _rows(text: Callable[[], AnyFormattedText], is_shown: Callable[[], bool]) -> ConditionalContainer:
    window = Window(FormattedTextControl(text), dont_extend_height=True, wrap_lines=False)
    return ConditionalContainer(window, Condition(is_shown))


class TerminalFrontend:
    """A prompt_toolkit application that runs as long as the chat."""

    is_live = True

    def __init__(
        self,
        stream: TextIO,
        status: Status,
        completer: Completer,
        history_file: Path,
        *,
        colour: bool,
        settings: ChatSettings,
    ) -> None:
        self._stream = stream
        self._status = status
        self._settings = settings
        known = theme_of_variables(environment()) if settings.theme == "auto" else settings.theme
        self._renderer = TerminalRenderer(colour=colour, theme=known or "dark")
        self._background = BackgroundQuestion(self.use_theme)
        self._asks_background = colour and known is None
        self._calling: asyncio.TimerHandle | None = None
        self._output = _output(stream, colour=colour)
        self._pending: list[str] = []
        self._flush_is_due = False
        self._refresh_is_due = False
        self._holds = 0
        self._listener: InputListener | None = None
        self._buffer = Buffer(
            multiline=True, history=_history(history_file), completer=completer, complete_while_typing=True
        )  # fmt: skip
        self._app: Application[None] = Application(
            BottomPane(status, self._renderer, self._output).layout(self._buffer),
            key_bindings=merge_key_bindings(
                [chat_keys(self._buffer, self._tell, self._edit), view_keys(self._buffer, status, self._tell)]
            ),
            style=DynamicStyle(lambda: STYLES[self._renderer.theme]),
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            editing_mode=EditingMode.VI if settings.keys == "vi" else EditingMode.EMACS,
            # A block in vi's normal mode, a bar in its insert mode.
            cursor=ModalCursorShapeConfig() if settings.keys == "vi" else None,
            input=_input(self._background.take),
            output=self._output,
        )
        self._app.ttimeoutlen = ESCAPE_SECONDS
        self._app.key_processor.before_key_press += lambda _: self.person_came()

    @property
    def columns(self) -> int:
        return self._output.get_size().columns

    # Printing

    def show(self, *renderables: RenderableType, gap: bool = False) -> None:
        text = "".join(self._renderer.draw(renderable, self.columns) for renderable in renderables)
        if text:
            self._print(f"\n{text}" if gap else text)

    def show_answer(self, text: str) -> None:
        drawn = self._renderer.draw_markdown(text, self.columns)
        if drawn:
            self._print(f"\n{drawn}")

    def refresh(self) -> None:
        # Hundreds of words may arrive in a second; twenty redraws look the same.
        if not self._refresh_is_due:
            self._refresh_is_due = True
            asyncio.get_running_loop().call_later(MIN_REDRAW_SECONDS, self._draw)

    def _draw(self) -> None:
        self._refresh_is_due = False
        self._app.invalidate()

    def use_theme(self, theme: ThemeName) -> None:
        self._renderer.use_theme(theme)
        self._app.invalidate()

    @property
    def has_colour(self) -> bool:
        return self._renderer.has_colour

    def await_person(self, why: str) -> None:
        self.person_came()
        if self._settings.notify != "off":
            loop = asyncio.get_running_loop()
            self._calling = loop.call_later(self._settings.notify_after, self._call_person, one_line(why))

    def person_came(self) -> None:
        if self._calling is not None:
            self._calling.cancel()
            self._calling = None

    def _call_person(self, why: str) -> None:
        self._calling = None
        environ = environment()
        is_known = environ.get("TERM_PROGRAM") in NOTIFYING_TERMINALS and not environ.get("TMUX")
        shows = self._settings.notify == "osc9" or (self._settings.notify == "auto" and is_known)
        self.send(f"\x1b]9;{why}\x07" if shows else "\x07")

    def send(self, sequence: str) -> None:
        with suppress(OSError):  # the terminal is gone; a signal ends the chat
            self._output.write_raw(sequence)
            self._output.flush()

    def prefill(self, text: str) -> None:
        if not self._buffer.text:
            self._buffer.insert_text(text)
            self.refresh()

    def _print(self, text: str) -> None:
        self._pending.append(text)
        if not self._app.is_running:
            self._flush()
        elif not self._flush_is_due:
            # Everything that an event prints goes out together, so that the input line is redrawn once.
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._holds or not self._pending:
            return
        text, self._pending = "".join(self._pending), []
        with suppress(OSError):  # the terminal is gone; a signal ends the chat
            if self._app.is_running:
                self._app.renderer.erase()
            # In raw mode, a line feed does not return to the first column.
            self._output.write_raw(text.replace("\n", "\r\n"))
            self._output.flush()
        self._app.invalidate()

    async def pick(self, title: str, rows: Sequence[PickerRow], chosen: int = 0) -> int | None:
        picker = Picker(title, rows, self._status.symbols, chosen)
        async with self.suspended():
            return await picker_application(picker, create_input(sys.stdin), self._output).run_async()

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        # The caller may run in a context that does not know the application.
        with set_app(self._app):
            async with in_terminal():
                self._write_out()
                with self._held():
                    yield
        self._flush()

    def _write_out(self) -> None:
        text, self._pending = "".join(self._pending), []
        with suppress(OSError):  # as above
            self._output.write_raw(text)
            self._output.flush()

    @contextmanager
    def _held(self) -> Iterator[None]:
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def _edit(self) -> None:
        self._app.create_background_task(self._edit_in_editor())

    async def _edit_in_editor(self) -> None:
        async with self.suspended():
            self._buffer.text = await edit_in_editor(self._buffer.text, self._stream)
        self._buffer.cursor_position = len(self._buffer.text)

    # Running

    async def run(self, listener: InputListener) -> None:
        self._listener = listener
        with forward_signals(listener, interrupt=False), self._app.input.raw_mode():
            *lines, rest = _typed_ahead().replace("\r", "\n").split("\n")
            for line in lines:
                listener.submit(line)
            if rest.isprintable():
                self._buffer.insert_text(rest)
            if self._asks_background and environment().get("TERM", "").startswith(ANSWERING_TERMINALS):
                self._background.is_open = True
                self._output.write_raw(ASK_BACKGROUND)
                self._output.flush()
            ticking = asyncio.create_task(self._tick())
            try:
                with suppress(EOFError, OSError):  # the terminal is gone
                    await self._app.run_async(set_exception_handler=False)
            finally:
                ticking.cancel()
                self.person_came()
                await asyncio.gather(ticking, return_exceptions=True)
                self._flush()
                self._background.wait(sys.stdin.fileno())

    def stop(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    async def _tick(self) -> None:
        """Redraw animations; draws nothing while nothing moves."""
        while True:
            await asyncio.sleep(1 / FRAMES_PER_SECOND)
            if self._status.moves():
                self._app.invalidate()

    def _tell(self, what: Callable[[InputListener], None]) -> None:
        if self._listener is not None:
            what(self._listener)


if sys.platform != "win32":

    class FilteredInput(Vt100Input):
        """The terminal's input; `take` sees what arrives first and hands on what was typed."""

        def __init__(self, take: Callable[[str], str]) -> None:
            super().__init__(sys.stdin)
            self._take = take

        def read_keys(self) -> list[KeyPress]:
            self.vt100_parser.feed(self._take(self.stdin_reader.read()))
            keys, self._buffer = self._buffer, []
            return keys


def _input(take: Callable[[str], str]) -> Input:
    return create_input(sys.stdin) if sys.platform == "win32" else FilteredInput(take)


def _output(stream: TextIO, *, colour: bool) -> Output:
    if sys.platform == "win32":
        return create_output(stream)

    def size() -> Size:
        try:
            columns, rows = os.get_terminal_size(stream.fileno())
        except OSError:
            columns, rows = 0, 0
        return Size(rows=rows or 24, columns=columns or 80)

    depth = None if colour else ColorDepth.DEPTH_1_BIT
    # Do not ask for the cursor position: a late reply would end up as input of the next program.
    return Vt100_Output(stream, size, default_color_depth=depth, enable_cpr=False)


async def edit_line(text: str, stream: TextIO) -> str | None:
    """The text as the person changes it on the terminal, which must be free; None if they gave up."""
    if "\n" in text:
        return await edit_in_editor(text, stream)
    session: PromptSession[str] = PromptSession(input=create_input(sys.stdin), output=_output(stream, colour=False))
    try:
        return await session.prompt_async("> ", default=text)
    except (KeyboardInterrupt, EOFError):
        return None


def _typed_ahead() -> str:
    """What was typed while the chat was starting; call it in raw mode.

    The terminal was still in line mode then, so lines end with a line feed, which later means a new line in the input.
    """
    typed = b""
    # On Windows, `select` works only for sockets.
    while sys.platform != "win32" and select.select([sys.stdin], [], [], 0)[0]:
        chunk = os.read(sys.stdin.fileno(), TYPED_AHEAD_BYTES)
        if not chunk:
            break
        typed += chunk
    return typed.decode("utf-8", "replace")


def _history(file: Path) -> History:
    """The input history of all chats; only of this chat if the file cannot be used."""
    try:
        make_folder(file.parent)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, OWNER_FILE))
    except OSError:
        return InMemoryHistory()
    return FileHistory(file)
