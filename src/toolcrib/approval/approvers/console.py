"""Asks for approval at a terminal: shows the call so that nothing in it can mislead, and reads one key."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from threading import Lock
from typing import Protocol, TextIO

from toolcrib.approval.approvers.escape import visible, width
from toolcrib.approval.approvers.question import (
    Style,
    choices,
    describe_grant,
    has_scope,
    help_text,
    key_line,
    question,
)
from toolcrib.approval.approvers.question import preview as count_touched
from toolcrib.approval.approvers.terminal_input import HANG_UP, Keys, LinePrompt, NoTerminal, open_keys, read_line
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice


class QuestionQueue:
    """Hands out turns at the terminal. Waiting never blocks the loop; cancelling a wait does not affect others."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy = False
        self._waiting: deque[Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await self._acquire()
        try:
            yield
        finally:
            self._release()

    async def _acquire(self) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            turn: Future[None] = Future()
            self._waiting.append(turn)
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            # `cancel` fails if the turn was handed over before it ran; then pass the turn on.
            if not turn.cancel():
                self._release()
            raise

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                following = self._waiting.popleft()
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._busy = False


LAST_SECONDS = 10
PREVIEW_SECONDS = 0.5
MAX_REASON_CHARS = 500
CTRL_C, CTRL_D, CTRL_U, ESCAPE = "\x03", "\x04", "\x15", "\x1b"
BACKSPACES = ("\x7f", "\x08")
ENTERS = ("\n", "\r")

ANSWERS: dict[str, Choice] = {"o": "once", "s": "session", "a": "always", "d": "deny"}
OUTCOMES: dict[Choice, str] = {
    "once": "allowed once",
    "session": "allowed for this session",
    "always": "always allowed",
    "deny": "denied",
    "timeout": "no answer in time; not run",
    "cancelled": "cancelled; not run",
}

Preview = Callable[[ApprovalRequest], Sequence[str]]


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
        colour: bool = False,
        display: Display | None = None,
        written: Preview | None = None,
    ) -> None:
        """`written` returns what "always" would add to the config; the person sees it before answering."""
        self._stream_in = stream_in
        self._stream_out = stream_out
        self._timeout_seconds = timeout_seconds
        self._preview = preview
        self._clock = clock
        self._style = Style(colour=colour)
        self._display = display
        self._written = written or _grants
        self._turns = QuestionQueue()

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        stream_in, stream_out = self._stream_in, self._stream_out
        if stream_in is None or stream_out is None or not (_is_terminal(stream_in) and _is_terminal(stream_out)):
            return _unanswerable(request, "there is no terminal to ask on")
        touched = await _run_with_timeout(PREVIEW_SECONDS, lambda: self._preview(request))
        async with self._turns.turn():
            with self._display.paused() if self._display else nullcontext():
                try:
                    with open_keys(stream_in.fileno()) as keys:
                        dialogue = _Dialogue(request, touched, self._written(request), keys, stream_out, self._style)
                        return await dialogue.run(self._clock, self._timeout_seconds)
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

    async def run(self, clock: Callable[[], float], timeout_seconds: float) -> ApprovalAnswer:
        self._show_question(whole=False)
        if timeout_seconds <= LAST_SECONDS:
            self._write(f"({timeout_seconds:g} s to answer)\n")
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
                    continue
                answer = self._answer(typed)
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
        key = typed.rstrip("\r\n").lower()
        if key[:1] == "r":
            self._reason = ""
            self._write("reason, then Enter: ")
            return self._type_reason(typed[1:])
        if key == CTRL_D:
            return ApprovalAnswer(choice="deny", reason="end of input at the prompt", decided_by="user")
        if key in ANSWERS and (key != "a" or self._request.may_be_permanent):
            return ApprovalAnswer(choice=ANSWERS[key], decided_by="user")
        if key == "k" and has_scope(self._request):
            return ApprovalAnswer(choice="session", every_scope=True, decided_by="user")
        self._explain(key)
        return None

    def _explain(self, key: str) -> None:
        """Respond to a key that isn't an answer."""
        self._write("\n")
        if key == "e":
            self._show_question(whole=True)
        elif key == "?":
            self._write(help_text(self._request, self._written, self._columns(), self._style))
        else:
            # Several keys at once are a paste or a word; using the first letter would be a guess.
            if key == "a":
                self._write('"always" is not offered for this call. ')
            elif key:
                self._write("Press one of these keys. ")
            self._write("\n" if key else "")
            self._write(key_line(self._request, self._columns(), self._style))
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
        self._write(f"{OUTCOMES[answer.choice]}\n" if self._reason is None else f"\n{OUTCOMES[answer.choice]}\n")
        return answer

    def _show_question(self, *, whole: bool) -> None:
        columns = self._columns()
        self._write(question(self._request, self._touched, columns, self._style, whole=whole))
        self._write(choices(self._request, self._written, columns, self._style))

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
    try:
        return os.isatty(stream.fileno())
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
