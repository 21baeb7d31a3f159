"""`toolcrib chat --connect URL`: a conversation with the agent of a running server, line by line."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from toolcrib.agent.events import EXIT_CODES, AnyEvent, RunResult
from toolcrib.approval.approvers.console import ANSWERS
from toolcrib.cli.chat.one_shot import ProgressPrinter
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.console import chosen
from toolcrib.cli.output import clean, error_line, is_interactive, note, one_line
from toolcrib.cli.server_client import ServerClient, ServerRefused, ServerUnreachable
from toolcrib.config.paths import Home
from toolcrib.core.errors import UsageError

T = TypeVar("T")
LEAVING = ("/quit", "/exit", "/q")
UNUSABLE = ("model", "provider", "toolsets", "disabled_toolsets", "yolo", "max_turns", "cwd", "mode", "dry_run")
_decode = msgspec.json.Decoder(AnyEvent).decode


class StartedRun(msgspec.Struct, frozen=True):
    """What the server says of a run that it started."""

    id: str
    session_id: str


class RemoteQuestion(msgspec.Struct, frozen=True):
    """A question of a run."""

    id: str
    code: str
    kind: str
    text: str
    command: str = ""
    reasons: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


class RemoteChat:
    """One conversation. The agent, its tools and its files are the server's."""

    def __init__(self, client: ServerClient, options: ChatOptions) -> None:
        self._client = client
        self._options = options
        self._session_id = self._resumed(options.resume)
        self._printer = ProgressPrinter(note)
        self._has_text = False
        self._seen = 0
        """The last event of the run that was shown."""

    def _resumed(self, wanted: str | None) -> str | None:
        if wanted is None:
            return None
        if wanted != "last":
            return self._read(self._client.get(f"/api/sessions/{wanted}").get("id"), str)
        found = self._read(self._client.get("/api/sessions?limit=1").get("sessions"), list[dict[str, Any]])
        if not found:
            raise UsageError("the server has no sessions yet; leave out --resume")
        return self._read(found[0].get("id"), str)

    def _read(self, given: Any, kind: type[T]) -> T:
        """What the server sent, if it has the form that we expect."""
        try:
            return msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            raise self._client.not_ours() from error

    def ask(self, text: str) -> int:
        """Ask one question and print the answer; returns the exit code. Ctrl-C stops the run."""
        sent = {"text": text, "session_id": self._session_id}
        run = self._read(self._client.post("/api/runs", sent), StartedRun)
        self._session_id = run.session_id
        self._seen, self._has_text = 0, False
        try:
            return self._follow(run.id)
        except KeyboardInterrupt:
            self._end_text()
            note("Stopping …")
            self._client.post(f"/api/runs/{run.id}/stop")
            return self._follow(run.id)

    def _follow(self, run_id: str) -> int:
        for number, event in self._client.events(run_id, self._seen, self._lost):
            self._seen = number
            if self._options.as_json:
                sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
                sys.stdout.flush()
            kind = event["event"]
            if kind == "question_asked":
                self._answer(self._read(event, RemoteQuestion))
            elif kind == "run_ended":
                return self._ended(self._read(event.get("result"), RunResult))
            elif not self._options.as_json:
                self._show(kind, event)
        return EXIT_CODES["interrupted"]

    def _lost(self) -> None:
        self._end_text()
        note("The connection to the server is lost; trying again …")

    def _show(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "text_streamed":
            self._has_text = True
            sys.stdout.write(clean(str(event.get("text", ""))))
            sys.stdout.flush()
        elif kind == "turn_started":
            self._end_text()
        elif kind != "question_answered" and not self._options.quiet:
            if kind == "call_started":
                self._end_text()
            # A newer server may report more than we know.
            with suppress(msgspec.ValidationError):
                self._printer.on_event(_decode(msgspec.json.encode(event)))

    def say_goodbye(self) -> None:
        """Say how to come back."""
        if self._session_id is not None:
            note(f"Session {self._session_id}. To continue it, add `--resume {self._session_id}`.")

    def _end_text(self) -> None:
        if self._has_text:
            self._has_text = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _ended(self, result: RunResult) -> int:
        if not self._options.as_json:
            self._end_text()
            if result.problem:
                error_line(result.problem)
        return result.exit_code

    def _answer(self, asked: RemoteQuestion) -> None:
        """Ask the person at this terminal; without one, the question waits for somebody else."""
        self._end_text()
        note(clean(asked.text))
        if asked.command:
            note(f"  {clean(asked.command)}")
        for reason in asked.reasons:
            note(f"  - {one_line(reason)}")
        if not is_interactive():
            note(f"It waits for `toolcrib approvals answer {asked.code}`.")
            return
        try:
            if asked.kind == "approval":
                self._client.post(f"/api/approvals/{asked.id}", {"choice": _approval_choice(asked)})
            else:
                said = _line(_prompt(asked)) or ""
                self._client.post(f"/api/questions/{asked.id}", {"text": chosen(said, asked.choices)})
        except ServerRefused as error:
            # Somebody else was quicker, or this token may not.
            note(str(error))


def chat_with_server(options: ChatOptions, home: Home, url: str) -> int:
    """Answer one question, or chat until the person leaves; returns the exit code."""
    defaults = ChatOptions()
    given = [name for name in UNUSABLE if getattr(options, name) != getattr(defaults, name)]
    if given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{named} cannot be used with --connect: the server's config decides it")
    chat = RemoteChat(ServerClient.of_home(home, url), options)
    if options.query is not None:
        return chat.ask(options.query)
    if not is_interactive():
        raise UsageError("there is no terminal to chat at; ask one question with `-q TEXT`")
    if options.prompt:
        chat.ask(options.prompt)
    while (text := _line("> ")) is not None and text not in LEAVING:
        if text:
            try:
                chat.ask(text)
            except (ServerRefused, ServerUnreachable) as error:
                error_line(str(error))
    chat.say_goodbye()
    return 0


def _prompt(asked: RemoteQuestion) -> str:
    return f"{one_line(' / '.join(asked.choices))}? " if asked.choices else "> "


def _approval_choice(asked: RemoteQuestion) -> str:
    """What the person chooses, by its word or key; asked again until it is clear. The end of the input denies."""
    while (said := _line(_prompt(asked))) is not None:
        choice = ANSWERS.get(said.lower(), said.lower())
        if choice in asked.choices:
            return choice
    return "deny"


def _line(prompt: str) -> str | None:
    """A line from the terminal, asked for on stderr; None at its end."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return None
    return line.strip() if line else None
