"""How a chat ends: by keys, by signals, by a closed window; and how it goes on later."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.chat.chat_program import CTRL_C, ChatProgram, make_home, session_text, slow_call


def test_a_second_ctrl_c_leaves_with_130(home: Path, gate: Path) -> None:
    """Twice within two seconds ends the chat in the middle of its work."""
    with ChatProgram(make_home(home, [slow_call(gate)])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")

        chat.type(CTRL_C)
        chat.wait_for("Ctrl-C again to exit")
        chat.type(CTRL_C)

        assert chat.exit_code() == 130
        assert "toolcrib chat --resume" in chat.text


def test_ctrl_c_clears_the_line_first_and_twice_at_an_empty_one_leaves(home: Path) -> None:
    """What was typed is thrown away; an empty line asks for a second Ctrl-C, and that is no failure."""
    with ChatProgram(make_home(home, [])) as chat:
        chat.wait_idle()
        chat.type("half a thought")
        chat.wait_for("❯ half a thought")

        chat.type(CTRL_C)
        chat.wait_gone("half a thought")
        chat.type(CTRL_C)
        chat.wait_for("Ctrl-C again to exit")
        chat.type(CTRL_C)

        assert chat.exit_code() == 0


def test_leaving_says_how_to_resume_and_the_session_goes_on(home: Path) -> None:
    """The last lines name the session; resuming shows where it stood."""
    make_home(home, [{"say": "The answer is 42."}])
    with ChatProgram(home) as chat:
        chat.wait_idle()
        chat.enter("what is the answer")
        chat.wait_for("The answer is 42.")
        chat.wait_idle()
        assert chat.leave() == 0
        session = chat.text.split("--resume ")[1].split()[0]

    make_home(home, [{"say": "As I said."}])
    with ChatProgram(home, "chat", "--resume", session) as chat:
        chat.wait_for("Resumed", "what is the answer", "The answer is 42.")
        chat.enter("and again")
        chat.wait_for("As I said.")
        assert chat.leave() == 0


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_leaves_the_terminal_in_order(home: Path, gate: Path, number: signal.Signals) -> None:
    """The work is stopped, the session is kept, and the exit code tells of the signal."""
    with ChatProgram(make_home(home, [slow_call(gate)])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")

        chat.process.send_signal(number)

        assert chat.exit_code() == 128 + number
        assert "toolcrib chat --resume" in chat.text
        assert chat.raw.rstrip().endswith(b"answered") or b"\x1b[?2004l" in chat.raw


def test_a_signal_at_the_approval_prompt_ends_the_chat_without_an_answer(home: Path, tmp_path: Path) -> None:
    """The question is taken back; nothing has run."""
    work = tmp_path / "work"
    (work / "build").mkdir(parents=True)
    steps = [{"call": "terminal", "arguments": {"command": "rm -rf build"}}]
    with ChatProgram(make_home(home, steps), cwd=work) as chat:
        chat.wait_idle()
        chat.enter("clean up")
        chat.wait_for_question()

        chat.process.send_signal(signal.SIGTERM)

        assert chat.exit_code() == 128 + signal.SIGTERM
        assert (work / "build").exists()


@pytest.mark.services
def test_a_closed_window_ends_the_work(home: Path, gate: Path) -> None:
    """Nothing goes on without its person, and nothing is left to be seen by nobody."""
    with ChatProgram(make_home(home, [slow_call(gate)])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")

        chat.hang_up()

        assert chat.exit_code() == 129
    assert "cancelled" in session_text(home)
