"""Choosing from lists, resuming, exporting and copying, and the person's own slash commands; in a real terminal."""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.chat.chat_program import CTRL_O, ChatProgram, make_home, session_text
from toolcrib.agent.prompt_commands import filled_in
from toolcrib.cli.chat.picker import Picker, PickerRow
from toolcrib.cli.chat.symbols import UNICODE, symbols_for
from toolcrib.core.messages import user_message
from toolcrib.sessions.store import SessionStore

DOWN, ESCAPE = "\x1b[B", "\x1b"


def test_a_session_is_picked_and_replayed_folded(home: Path) -> None:
    """/resume lists the other sessions; arrows and typing choose; the whole conversation is shown again, folded."""
    long = "\n".join(f"line {number}" for number in range(9))
    steps = [
        {"say": long},
        {"call": "edit", "arguments": {"path": "a"}},
        {"say": "Whales **sing**."},
        {"say": "Bread rises."},
    ]
    make_home(home, steps)
    with ChatProgram(home, rows=24) as chat:
        chat.wait_idle()
        for question, answer in (("count", "line 8"), ("whales?", "sing"), ("/new", "Started"), ("bread?", "rises")):
            chat.enter(question)
            chat.wait_for_answer(question, answer)
            chat.wait_idle()
        chat.enter("/clear")
        chat.wait_for_answer("/clear", "Started")
        chat.wait_idle()
        chat.enter("/resume")
        chat.wait_for("Resume a session (2)", "count", "bread?")
        chat.type("cou")
        chat.wait_for("Resume a session (1 of 2)")
        chat.enter("")
        shown = chat.wait_for_answer("/resume", "Resumed", "❯ count", "… 6 more lines", "❯ whales?", "edit", "sing")
        chat.wait_idle()

    replayed = shown.rpartition("Resumed")[2]
    assert "Resume a session" not in shown
    assert "line 2" in replayed
    assert "line 3" not in replayed
    assert "Whales sing." in replayed


@pytest.mark.services
def test_any_of_hundreds_of_sessions_can_be_picked(home: Path) -> None:
    """Typing narrows the list down, however long ago the session was."""
    store = SessionStore(make_home(home, []) / "sessions.db")
    for number in range(300):
        session = store.create(source="chat", cwd=str(home), title=f"About topic {number:03}")
        store.append(session.id, user_message(f"what is topic {number}?"))
    store.close()
    with ChatProgram(home) as chat:
        chat.wait_idle()
        chat.enter("/resume")
        chat.wait_for("Resume a session (300)")
        chat.type("topic 000")
        chat.wait_for("(1 of 300)", "> About topic 000")
        chat.enter("")
        chat.wait_for("About topic 000 (1 message)", "❯ what is topic 0?")


@pytest.mark.services
def test_a_replay_shows_how_each_call_ended(home: Path) -> None:
    """What failed or was refused is no success when the session is shown again."""
    steps = [
        {"call": "terminal", "arguments": {"command": "exit 3"}},
        {"call": "broken", "arguments": {}},
        {"call": "terminal", "arguments": {"command": "echo fine"}},
        {"say": "Three calls."},
    ]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("Three calls.")
        chat.wait_idle()
        chat.leave()

    with ChatProgram(home, "chat", "--continue") as chat:
        chat.wait_for("Resumed", "✗ terminal exit 3 · exit 3", "✗ broken · failed", "✓ terminal echo fine\n")
        chat.wait_idle()
        chat.enter("/show")
        chat.wait_for_answer("/show", "1  terminal  exit 3", "3  terminal  echo fine")
        chat.wait_idle()
        chat.type(CTRL_O)
        chat.wait_for("3. terminal  echo fine\n  │ fine\n")
        chat.enter("/show 2")
        chat.wait_for("2. broken", "no such planet")


class ModelList(BaseHTTPRequestHandler):
    """A server with two models."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "large-one"}, {"id": "small-one"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.services
def test_all_models_of_configured_providers_can_be_picked(home: Path) -> None:
    """/model asks each provider; a filter and Enter switch, Escape changes nothing; the list is kept."""
    server = HTTPServer(("127.0.0.1", 0), ModelList)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        make_home(home, [])
        address = f"http://127.0.0.1:{server.server_port}/v1"
        config = home / "config.yaml"
        config.write_text(f"{config.read_text()}  attic:\n    base_url: {address}\n    model: large-one\n")
        with ChatProgram(home, rows=24) as chat:
            chat.wait_idle()
            chat.enter("/model")
            chat.wait_for("Choose a model", "attic/large-one", "attic/small-one", "embedded/qwen2.5-coder-0.5b")
            chat.type(ESCAPE)
            chat.wait_gone("Choose a model")
            chat.wait_idle()
            chat.enter("/model")
            chat.wait_for("Choose a model")
            chat.type("attic small")
            chat.wait_for("(1 of ")
            chat.enter("")
            chat.wait_for("Now using small-one (provider: attic)")
    finally:
        server.shutdown()
        server.server_close()
    assert "small-one" in (home / "cache" / "models.json").read_text()


@pytest.mark.services
def test_the_last_answer_is_copied_and_the_session_exported(home: Path) -> None:
    """/copy reaches the terminal's clipboard; /export writes Markdown or JSON and never overwrites."""
    make_home(home, [{"say": "Forty-two."}])
    work = home.parent / "work"
    with ChatProgram(home, PATH="/nowhere") as chat:
        chat.wait_idle()
        chat.enter("the answer?")
        chat.wait_for("Forty-two.")
        chat.wait_idle()
        chat.enter("/copy")
        chat.wait_for("Copied 10 characters through the terminal.")
        for line, shown in (
            ("/export a.md", "Wrote 2 messages"),
            ("/export a.json", "Wrote 2 messages"),
            ("/export a.md", "exists; name another file: /export FILE"),
        ):
            chat.wait_idle()
            chat.enter(line)
            chat.wait_for_answer(line, shown)

    sent = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", chat.raw)
    assert sent is not None
    assert base64.b64decode(sent[1]) == b"Forty-two."
    assert "Forty-two." in (work / "a.md").read_text()
    assert json.loads((work / "a.json").read_text())["messages"][-1]["content"] == "Forty-two."


@pytest.mark.services
def test_markdown_files_are_commands_and_a_projects_only_where_it_is_trusted(home: Path) -> None:
    """The person is asked once about the project's; their own need no question and are read again when they change."""
    make_home(home, [{"say": "Reviewed."}, {"say": "Shipped."}])
    (home / "commands").mkdir()
    (home / "commands" / "review.md").write_text("---\ndescription: Look at a file\n---\nReview $ARGUMENTS please.\n")
    project = home.parent / "work" / ".toolcrib" / "commands"
    project.mkdir(parents=True)
    (project / "ship.md").write_text("Ship version $1 today.\n")
    with ChatProgram(home) as chat:
        chat.wait_for("slash commands for this chat", "[y/N]")
        chat.enter("n")
        chat.wait_idle()
        chat.enter("/ship 3")
        chat.wait_for("unknown command '/ship'")
        chat.wait_idle()
        chat.enter("/review a.py")
        chat.wait_for("❯ Review a.py please.", "Reviewed.")
        chat.wait_idle()
        chat.enter("/help")
        chat.wait_for("Your own", "/review", "Look at a file")
    (home / "trusted_folders.json").unlink()
    with ChatProgram(home) as chat:
        chat.wait_for("[y/N]")
        chat.enter("y")
        chat.wait_idle()
        chat.enter("/ship 3")
        chat.wait_for("❯ Ship version 3 today.")


def test_init_asks_the_agent_for_a_guide(home: Path) -> None:
    """The agent writes AGENTS.md through its tools, so the gate and undo apply; the long prompt is not shown."""
    step = {"call": "write_file", "arguments": {"path": "AGENTS.md", "content": "# Shop\n"}}
    with ChatProgram(make_home(home, [step, {"say": "Done."}])) as chat:
        chat.wait_idle()
        chat.enter("/init")
        shown = chat.wait_for("The agent reads the project, then writes AGENTS.md.", "Done.")
        assert "Look first" not in shown
        chat.wait_idle()

    assert (home.parent / "work" / "AGENTS.md").read_text() == "# Shop\n"
    assert "Write an AGENTS.md" in session_text(home)


def test_vi_keys_edit_the_input_line(home: Path) -> None:
    """With chat.keys: vi, Escape leads to normal mode: 0 and x delete the first letter. The next line is inserted."""
    make_home(home, [{"say": "Understood."}, {"say": "Welcome."}], config="chat:\n  keys: vi\n")
    with ChatProgram(home) as chat:
        chat.wait_idle()
        chat.type("xhello")
        chat.wait_for("❯ xhello")
        chat.type(ESCAPE)
        chat.type("0x")
        chat.wait_for("❯ hello")
        chat.enter("")
        chat.wait_for_answer("hello", "Understood.")
        chat.wait_idle()
        chat.enter("thanks")
        chat.wait_for("❯ thanks")


def test_a_narrow_picker_shows_names_in_full() -> None:
    """Where there is little room, the name matters more than the date."""
    picker = Picker("Resume", [PickerRow("Session about topic 007", "2026-11-17 14:53, 1 message")], UNICODE)

    drawn = "".join(part[1] for part in picker.drawn(40, 24))

    assert "Session about topic 007\n" in drawn


def test_a_picker_fits_any_width_and_keeps_the_chosen_row_in_sight() -> None:
    """Every line is cut to the terminal; moving past the end starts again at the top."""
    symbols = symbols_for("utf-8")
    picker = Picker("Choose", [PickerRow(f"row {number}" * 9, "about " * 30) for number in range(50)], symbols)
    picker.move(-1)

    text = "".join(part[1] for part in picker.drawn(40, 12))
    assert picker.chosen == 49
    assert "> row 49" in text
    assert all(len(line) <= 40 for line in text.splitlines())
    assert len(text.splitlines()) <= 12
    picker.type("nothing like it")
    assert picker.chosen is None


def test_arguments_are_filled_in() -> None:
    """$ARGUMENTS is all of it, $1 a single word; a command without a place for them gets them at its end."""
    assert filled_in("Fix $ARGUMENTS!", "the bug") == "Fix the bug!"
    assert filled_in("From $1 to $2.", "'old name' new") == "From old name to new."
    assert filled_in("Look.", "here") == "Look.\n\nhere"
    assert filled_in("Look at $1.", "") == "Look at ."
