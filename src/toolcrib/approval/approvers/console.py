"""Asks for approval at a terminal: shows the call so that nothing in it can mislead, and reads one key."""

from __future__ import annotations

import asyncio
import codecs
import os
import select
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any, Protocol, TextIO

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.approval.approvers.escape import visible, width
from toolcrib.approval.approvers.question import (
    Style,
    answer_choices,
    choice_rows,
    describe_grant,
    has_scope,
    help_text,
    question,
)
from toolcrib.approval.approvers.question import preview as count_touched
from toolcrib.approval.approvers.question_queue import QuestionQueue
from toolcrib.config.tool_call_mark import is_in_tool_call
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice

termios: ModuleType | None
try:
    import termios
except ImportError:  # Windows has no termios.
    termios = None

CHUNK_BYTES = 1024
HANG_UP = ""
"""What `Keys.read` returns when the terminal has hung up."""
ALONE_SECONDS = 0.3
"""How long nothing comes after an ESC that is a key."""
LAST_SECONDS = 10
PREVIEW_SECONDS = 0.5
EDIT_SECONDS = 600.0
MAX_REASON_CHARS = 500
CTRL_C, CTRL_D, CTRL_U, ESCAPE = "\x03", "\x04", "\x15", "\x1b"
ENTERS = ("\n", "\r")
ANSWERS: dict[str, Choice] = {
    "y": "once", "yes": "once", "o": "once", "s": "session", "a": "always", "n": "deny", "no": "deny", "d": "deny",
}  # fmt: skip
"""`o` and `d` are the older keys for once and deny."""
OUTCOMES: dict[Choice, str] = {
    "once": "allowed once",
    "session": "allowed for this session",
    "always": "always allowed",
    "deny": "denied",
    "timeout": "no answer in time; not run",
    "cancelled": "cancelled; not run",
}

Preview = Callable[[ApprovalRequest], Sequence[str]]
EditCommand = Callable[[str], Awaitable[str | None]]
"""Lets the person change a command; None if they gave up."""


class NoTerminal(Exception):
    """Keys cannot be read; the text says why."""


class Keys:
    """The keys typed while a question is open, in the chunks that the terminal delivers."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._arrived: asyncio.Queue[str] = asyncio.Queue()
        self._escapes = EscapeFilter()

    async def read(self, timeout_seconds: float) -> str:
        """The next keys as one text without terminal sequences; TimeoutError if nothing is typed in time."""
        return await asyncio.wait_for(self._arrived.get(), max(0.0, timeout_seconds))

    def discard(self) -> None:
        """Discard what was typed so far: it can't be the answer to a question that wasn't on screen yet."""
        _flush(self._descriptor)
        while not self._arrived.empty():
            self._arrived.get_nowait()

    def take(self) -> None:
        """Read what the terminal has; the loop calls this."""
        try:
            data = os.read(self._descriptor, CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            # Reads never block, so an empty read can also mean that another reader was quicker.
            if _hung_up(self._descriptor):
                asyncio.get_running_loop().remove_reader(self._descriptor)
                self._arrived.put_nowait(HANG_UP)
            return
        text = self._escapes.feed(self._decoder.decode(data))
        if text:
            self._arrived.put_nowait(text)
        if self._escapes.is_at_start:
            asyncio.get_running_loop().call_later(ALONE_SECONDS, self._end_escape, self._escapes.count)

    def _end_escape(self, count: int) -> None:
        """If nothing came after an ESC, it was the key itself and not the start of a sequence."""
        if self._escapes.is_at_start and self._escapes.count == count:
            self._escapes = EscapeFilter()
            self._arrived.put_nowait(ESCAPE_KEY)


ARROW_UP, ARROW_DOWN, ESCAPE_KEY = "\ue001", "\ue002", "\ue003"
"""Stand for these keys in what was typed; from the private part of Unicode, so no key has them."""


class EscapeFilter:
    """Replaces each terminal sequence (function keys, Alt, paste marks) with one ESC, and the arrows up and down.

    The last letter of a sequence must not count as an answer: F4 ends in "S". Works across chunks.
    """

    def __init__(self) -> None:
        self._inside = ""
        self._has_parameters = False
        self.count = 0
        """How many sequences have begun."""

    @property
    def is_at_start(self) -> bool:
        """Whether an ESC came last, which may begin a sequence or be the key."""
        return self._inside == "\x1b"

    def feed(self, text: str) -> str:
        kept: list[str] = []
        for character in text:
            if character == "\x1b":
                self._inside = "\x1b"
                self.count += 1
            elif not self._inside or character in (CTRL_C, CTRL_D):
                # No sequence contains the keys that stop.
                self._inside = ""
                kept.append(character)
            elif self._inside == "\x1b" and character in "[O":
                self._inside, self._has_parameters = character, False
            elif self._inside == "[" and not "@" <= character <= "~":
                self._has_parameters = True
            else:
                arrow = self._inside in ("[", "O") and not self._has_parameters
                self._inside = ""
                kept.append({"A": ARROW_UP, "B": ARROW_DOWN}.get(character, "\x1b") if arrow else "\x1b")
        return "".join(kept)


@contextmanager
def open_keys(descriptor: int) -> Iterator[Keys]:
    """Single keys of a terminal, without echo; the terminal's modes are always restored."""
    if termios is None:
        raise NoTerminal("this system cannot read single keys")
    loop = asyncio.get_running_loop()
    # A descriptor of our own, so that another reader of this terminal in the same loop keeps working.
    own = os.dup(descriptor)
    try:
        try:
            before = termios.tcgetattr(own)
        except termios.error as error:
            raise NoTerminal(f"the terminal cannot be used: {error}") from error
        keys = Keys(own)
        try:
            termios.tcsetattr(own, termios.TCSANOW, _raw_modes(before, termios))
            loop.add_reader(own, keys.take)
            yield keys
        finally:
            loop.remove_reader(own)
            _restore(own, before, termios)
    finally:
        os.close(own)


def _raw_modes(before: list[Any], terminal: ModuleType) -> list[Any]:
    """The modes with line editing, echo and signal keys off: Ctrl-C answers the question, not the program."""
    input_modes, output_modes, control, local, speed_in, speed_out, special = before
    local &= ~(terminal.ICANON | terminal.ECHO | terminal.ISIG)
    special = list(special)
    special[terminal.VMIN] = special[terminal.VTIME] = 0
    return [input_modes, output_modes, control, local, speed_in, speed_out, special]


def _flush(descriptor: int) -> None:
    if termios is not None:
        with suppress(termios.error):  # a terminal that has hung up has no input to discard
            termios.tcflush(descriptor, termios.TCIFLUSH)


def _restore(descriptor: int, before: list[Any], terminal: ModuleType) -> None:
    # Anything typed after the answer is not meant for another question.
    _flush(descriptor)
    with suppress(terminal.error):  # a terminal refuses its own modes only after it has hung up
        terminal.tcsetattr(descriptor, terminal.TCSANOW, before)


def _hung_up(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll(0))


BACKSPACES = ("\x7f", "\x08")
ENTERS = ("\n", "\r")
MAX_CHARS = 1_000


class LinePrompt(Struct, frozen=True, kw_only=True):
    """The text in front of an input line, and the message if nothing is entered."""

    text: str
    """Only keys typed after its last line appears count."""
    timeout_seconds: float
    echo: bool
    nothing: str


async def read_line(keys: Keys, out: TextIO, prompt: LinePrompt, clock: Callable[[], float]) -> str | None:
    """The line typed up to Enter; None if it is empty, cancelled or late."""
    *above, last = map(visible, prompt.text.split("\n"))
    _write(out, "".join(f"{line}\n" for line in above))
    # Anything typed earlier was not meant for this question.
    keys.discard()
    _write(out, last)
    deadline = clock() + prompt.timeout_seconds
    typed = ""
    try:
        while True:
            for key in await keys.read(deadline - clock()) or CTRL_C:  # an empty read means the terminal has hung up
                if key in (CTRL_C, CTRL_D):
                    _write(out, f"\n{prompt.nothing}\n")
                    return None
                if key in ENTERS:
                    _write(out, "\n")
                    return typed or None
                before, typed = typed, _edited(typed, key)
                if prompt.echo:
                    _write(out, _echo(before, typed))
    except TimeoutError:
        _write(out, f"\nno answer in time: {prompt.nothing}\n")
        return None
    except asyncio.CancelledError:
        with suppress(OSError):
            _write(out, "\ncancelled\n")
        raise


def _edited(typed: str, key: str) -> str:
    if key in BACKSPACES:
        return typed[:-1]
    if key == CTRL_U:
        return ""
    return typed + key if key.isprintable() and len(typed) < MAX_CHARS else typed


def _echo(before: str, after: str) -> str:
    if after.startswith(before):
        return visible(after[len(before) :])
    return "\b \b" * width(visible(before[len(after) :]))


def _write(out: TextIO, text: str) -> None:
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


class Display(Protocol):
    """Other output on the same terminal: a spinner, a status line, streamed text."""

    def paused(self) -> AbstractContextManager[object]:
        """Hold back all output and clear anything animated; resume afterwards."""
        ...


class ConsoleApprover:
    """Asks the person at a terminal; denies at once if there is no terminal."""

    def __init__(
        self,
        stream_in: TextIO | None,
        stream_out: TextIO | None,
        *,
        timeout_seconds: float,
        preview: Preview = count_touched,
        clock: Callable[[], float] = time.monotonic,
        colour: bool | Callable[[], bool] = False,
        display: Display | None = None,
        written: Preview | None = None,
        edit: EditCommand | None = None,
        compact: bool = False,
    ) -> None:
        """`written` returns what "always" would add to the config; the person sees it before answering.

        `compact` erases the answers from the screen once one is given.
        """
        self._compact = compact
        self._edit = edit
        self._stream_in = stream_in
        self._stream_out = stream_out
        self._timeout_seconds = timeout_seconds
        self._preview = preview
        self._clock = clock
        self._colour = colour
        self._display = display
        self._written = written or _grants
        self._turns = QuestionQueue()

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        stream_in, stream_out = self._stream_in, self._stream_out
        if stream_in is None or stream_out is None or not (_is_terminal(stream_in) and _is_terminal(stream_out)):
            return _unanswerable(request, "there is no terminal to ask on")
        if self._edit is None and request.can_be_edited:
            # Nothing here can change a command, so that is no choice.
            request = replace(request, arguments={})
        touched = await _run_with_timeout(PREVIEW_SECONDS, lambda: self._preview(request))
        async with self._turns.turn():
            with self._display.paused() if self._display else nullcontext():
                try:
                    while True:
                        with open_keys(stream_in.fileno()) as keys:
                            colour = self._colour() if callable(self._colour) else self._colour
                            style = Style(colour=colour, compact=self._compact)
                            shown = _Dialogue(request, touched, self._written(request), keys, stream_out, style)
                            answer = await shown.run(self._clock, self._timeout_seconds)
                        if answer is not None or self._edit is None:
                            return answer or _unanswerable(request, "the command cannot be changed here")
                        async with asyncio.timeout(EDIT_SECONDS):
                            command = ((await self._edit(request.command)) or "").strip()
                        if command:
                            return ApprovalAnswer(choice="once", command=command, decided_by="user")
                except TimeoutError:
                    return ApprovalAnswer(choice="timeout", reason="no one answered in time", decided_by="timeout")
                except (NoTerminal, OSError) as error:
                    return _unanswerable(request, f"the terminal cannot be used ({error})")

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        """The line the person types, without echo; None if there is no terminal, no answer, or no time left."""
        return await self._line(
            LinePrompt(text=prompt, timeout_seconds=timeout_seconds, echo=False, nothing="no password given")
        )

    async def ask_line(self, prompt: str) -> str | None:
        """The line the person types; None if there is no terminal, no answer, or no time left."""
        return await self._line(
            LinePrompt(text=prompt, timeout_seconds=self._timeout_seconds, echo=True, nothing="no answer given")
        )

    async def _line(self, prompt: LinePrompt) -> str | None:
        stream_in, stream_out = self._stream_in, self._stream_out
        if stream_in is None or stream_out is None or not (_is_terminal(stream_in) and _is_terminal(stream_out)):
            return None
        async with self._turns.turn():
            with self._display.paused() if self._display else nullcontext():
                try:
                    with open_keys(stream_in.fileno()) as keys:
                        return await read_line(keys, stream_out, prompt, self._clock)
                except (NoTerminal, OSError):
                    return None


class _Dialogue:
    """One question, from its first line to the answer."""

    def __init__(
        self,
        request: ApprovalRequest,
        touched: Sequence[str],
        written: Sequence[str],
        keys: Keys,
        out: TextIO,
        style: Style,
    ) -> None:
        self._request = request
        self._touched = touched
        self._written = written
        self._keys = keys
        self._out = out
        self._style = style
        self._reason: str | None = None
        """The reason typed so far; None until the person chooses to give one."""
        self._choices = answer_choices(request, written)
        self._selected: int | None = None
        """The answer that the arrow keys chose; none at first, so that a stray Enter answers nothing."""
        self._rows_above = 0
        """How many rows above the cursor the choices begin; 0 if they must be shown again."""
        self._wants_edit = False

    async def run(self, clock: Callable[[], float], timeout_seconds: float) -> ApprovalAnswer | None:
        """The answer; None if the person wants to change the command."""
        self._show_question(whole=False)
        if timeout_seconds <= LAST_SECONDS:
            self._write(f"({timeout_seconds:g} s to answer)\n")
            self._rows_above += 1
        # Keys count only once the prompt is shown; anything typed earlier was not meant for this question.
        self._keys.discard()
        self._write("> ")
        deadline = clock() + timeout_seconds
        warned = timeout_seconds <= LAST_SECONDS
        try:
            while True:
                pause = deadline - clock() - (0 if warned else LAST_SECONDS)
                try:
                    typed = await self._keys.read(pause)
                except TimeoutError:
                    if warned:
                        return self._out_of_time()
                    warned = True
                    self._write(
                        f"\n({LAST_SECONDS} s left; the call won't run without an answer)\n> {self._reason or ''}"
                    )
                    self._rows_above = 0
                    continue
                answer = self._answer(typed)
                if self._wants_edit:
                    self._erase_choices()
                    self._write("edit it, then Enter; Ctrl-C goes back\n")
                    return None
                if answer is not None:
                    return self._done(answer)
        except asyncio.CancelledError:
            with suppress(OSError):
                self._write(f"\n{OUTCOMES['cancelled']}\n")
            raise

    def _answer(self, typed: str) -> ApprovalAnswer | None:
        if typed == HANG_UP:
            return ApprovalAnswer(choice="deny", reason="the terminal was closed", decided_by="policy")
        if CTRL_C in typed:
            return ApprovalAnswer(choice="cancelled", reason="cancelled at the prompt", decided_by="user")
        if self._reason is not None:
            return self._type_reason(typed)
        typed = self._follow_arrows(typed)
        if not typed:
            return None
        key = typed.rstrip("\r\n").lower()
        if not key and self._selected is not None:
            key = typed = self._choices[self._selected].key
        if key[:1] == "r":
            self._reason = ""
            self._write("reason, then Enter: ")
            return self._type_reason(typed[1:])
        if key == "c" and self._request.can_be_edited:
            self._wants_edit = True
            return None
        if key == CTRL_D:
            return ApprovalAnswer(choice="deny", reason="end of input at the prompt", decided_by="user")
        if key == ESCAPE_KEY:
            return ApprovalAnswer(choice="deny", decided_by="user")
        if key in ANSWERS and (key != "a" or self._request.may_be_permanent):
            return ApprovalAnswer(choice=ANSWERS[key], decided_by="user")
        if key == "k" and has_scope(self._request):
            return ApprovalAnswer(choice="session", every_scope=True, decided_by="user")
        self._explain(key)
        return None

    def _follow_arrows(self, typed: str) -> str:
        """Move the choice for each arrow key at the beginning of what was typed; returns the rest."""
        rest = typed.lstrip(ARROW_UP + ARROW_DOWN)
        count = len(self._choices)
        for key in typed[: len(typed) - len(rest)]:
            if self._selected is None:
                self._selected = 0 if key == ARROW_DOWN else count - 1
            else:
                self._selected = (self._selected + (1 if key == ARROW_DOWN else -1)) % count
        if len(rest) < len(typed):
            self._write(f"\r\x1b[{self._rows_above}A\x1b[J" if self._rows_above else "\n")
            self._show_choices()
            self._write("> ")
        return rest

    def _erase_choices(self) -> None:
        if self._style.compact and self._rows_above:
            self._write(f"\r\x1b[{self._rows_above}A\x1b[J> ")

    def _show_choices(self) -> None:
        rows = choice_rows(self._choices, self._selected, self._columns(), self._style)
        self._write("".join(f"{row}\n" for row in rows))
        self._rows_above = len(rows)

    def _explain(self, key: str) -> None:
        """Respond to a key that isn't an answer."""
        if key not in ("e", "?") and self._style.compact and self._rows_above:
            self._write(f"\r\x1b[{self._rows_above}A\x1b[J")
        else:
            self._write("\n")
        self._rows_above = 0
        if key == "e":
            self._show_question(whole=True)
        elif key == "?":
            self._write(help_text(self._request, self._written, self._columns(), self._style))
        else:
            # Several keys at once are a paste or a word; using the first letter would be a guess.
            told = '"always" is not offered for this call.' if key == "a" else "Press one of these keys." if key else ""
            if told:
                self._write(f"{told}\n")
            self._show_choices()
            self._rows_above += bool(told)
        self._write("> ")

    def _type_reason(self, typed: str) -> ApprovalAnswer | None:
        for character in typed:
            reason = self._reason or ""
            if character in ENTERS or (character == CTRL_D and not reason):
                return ApprovalAnswer(choice="deny", reason=reason.strip(), decided_by="user")
            if character in BACKSPACES:
                self._erase(reason[-1:])
            elif character == CTRL_U:
                self._erase(reason)
            elif character.isprintable() and len(reason) < MAX_REASON_CHARS:
                self._reason = reason + character
                self._write(visible(character))
        return None

    def _erase(self, end: str) -> None:
        if self._reason and end:
            self._reason = self._reason[: -len(end)]
            self._write("\b \b" * width(visible(end)))

    def _out_of_time(self) -> ApprovalAnswer:
        if self._reason is not None:
            # The person had already chosen to deny and was still typing the reason.
            return self._done(ApprovalAnswer(choice="deny", reason=self._reason.strip(), decided_by="user"))
        return self._done(ApprovalAnswer(choice="timeout", reason="no one answered in time", decided_by="timeout"))

    def _done(self, answer: ApprovalAnswer) -> ApprovalAnswer:
        if self._reason is None:
            self._erase_choices()
        self._write(f"{OUTCOMES[answer.choice]}\n" if self._reason is None else f"\n{OUTCOMES[answer.choice]}\n")
        return answer

    def _show_question(self, *, whole: bool) -> None:
        columns = self._columns()
        self._write(question(self._request, self._touched, columns, self._style, whole=whole))
        self._show_choices()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._out.flush()


def _grants(request: ApprovalRequest) -> Sequence[str]:
    return [describe_grant(danger) for danger in request.dangers]


def _is_terminal(stream: TextIO) -> bool:
    """Whether a person sees it: at a terminal that a tool call opened, an agent would approve its own calls."""
    try:
        return os.isatty(stream.fileno()) and not is_in_tool_call()
    except (OSError, ValueError):
        # The stream has no descriptor, or is closed.
        return False


def _unanswerable(request: ApprovalRequest, why: str) -> ApprovalAnswer:
    what = request.description or "this call"
    return ApprovalAnswer(choice="deny", reason=f"{what} needs a person's approval, and {why}", decided_by="policy")


async def _run_with_timeout(seconds: float, count: Callable[[], Sequence[str]]) -> Sequence[str]:
    """What the function returns, or nothing if it fails or takes too long: a dead network drive must not block us."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Sequence[str]] = loop.create_future()

    def work() -> None:
        try:
            lines: Sequence[str] = count()
        except OSError:
            lines = ()
        try:
            loop.call_soon_threadsafe(lambda: None if result.done() else result.set_result(lines))
        except RuntimeError:
            # The loop closed while the disk was slow; no one is waiting for the lines.
            return

    # A daemon thread, so a stuck disk doesn't delay the exit.
    threading.Thread(target=work, name="approval-preview", daemon=True).start()
    try:
        return await asyncio.wait_for(result, seconds)
    except TimeoutError:
        return ()
