"""What is typed into the chat: lines, pastes, history, completion, what is typed ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.chat.chat_program import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    CTRL_R,
    ENTER,
    PASTE_BEGIN,
    PASTE_END,
    TAB,
    UP,
    ChatProgram,
    make_home,
    session_text,
    slow_call,
)


def test_the_start_says_which_model_which_tools_and_how_to_get_help(home: Path) -> None:
    """Two or three lines tell what one talks to; then the input line is there."""
    with ChatProgram(make_home(home, [])) as chat:
        shown = chat.wait_idle()

        assert "scripted" in shown
        assert "tools" in shown
        assert "/help" in shown
        assert len([line for line in shown.splitlines() if line.strip()]) <= 6
        assert chat.leave() == 0


def test_what_is_typed_during_a_run_is_queued_and_asked_afterwards(home: Path, gate: Path) -> None:
    """The input line stays usable; plain text waits, and is shown as waiting."""
    steps = [slow_call(gate), {"say": "First answer."}, {"say": "Second answer."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("one")
        chat.wait_for("🐌 slow")

        chat.enter("two")
        chat.wait_for("queued: two")
        gate.touch()
        shown = chat.wait_for("Second answer.")

        assert shown.index("First answer.") < shown.index("❯ two") < shown.index("Second answer.")
        assert "queued: two" not in chat.wait_idle()


def test_what_waits_comes_back_to_the_input_line_when_the_work_is_stopped(home: Path, gate: Path) -> None:
    """Ctrl-C means that nothing goes on by itself; what was queued can be edited, sent or thrown away."""
    with ChatProgram(make_home(home, [slow_call(gate), {"say": "Later."}])) as chat:
        chat.wait_idle()
        chat.enter("one")
        chat.wait_for("🐌 slow")
        chat.enter("two")
        chat.wait_for("queued: two")

        chat.type(CTRL_C)
        chat.wait_for("stopped")
        chat.wait_until(lambda _: "❯ two" in chat.visible and "queued" not in chat.visible, "the text to come back")
        chat.type(ENTER)

        chat.wait_for("Later.")


@pytest.mark.services
def test_pasted_lines_are_not_sent_until_enter(home: Path) -> None:
    """A paste of several lines stays in the input line with its line breaks; Enter sends it as one message."""
    with ChatProgram(make_home(home, [{"say": "Got it."}])) as chat:
        chat.wait_idle()

        chat.type(f"{PASTE_BEGIN}first line\nsecond line\nthird line{PASTE_END}")
        shown = chat.wait_for("third line")
        assert "Got it." not in shown
        chat.type(ENTER)
        chat.wait_for("Got it.")
        chat.leave()

    assert "first line\\nsecond line\\nthird line" in session_text(home)


@pytest.mark.services
def test_a_paste_of_thousands_of_lines_is_one_message_that_the_screen_shows_in_short(home: Path) -> None:
    """The input line shows its end, the conversation its beginning; the model gets all of it."""
    lines = [f"line {number} of a log" for number in range(5_000)]
    with ChatProgram(make_home(home, [{"say": "Got it."}])) as chat:
        chat.wait_idle()

        # In pieces: nobody reads the terminal's other end while this end is written.
        for at in range(0, 5_000, 100):
            chat.type((PASTE_BEGIN if not at else "\n") + "\n".join(lines[at : at + 100]))
        chat.type(f"{PASTE_END}!")
        chat.wait_for("line 4999 of a log!")
        chat.type(ENTER)
        shown = chat.wait_for("❯ line 0 of a log", "… 4,980 more lines", "Got it.")
        chat.leave()

    assert "line 21 of a log" not in shown
    assert "\\n".join(lines) in session_text(home)


@pytest.mark.services
def test_more_lines_by_alt_enter_and_by_a_backslash(home: Path) -> None:
    """Alt-Enter and a trailing backslash begin a new line instead of sending."""
    with ChatProgram(make_home(home, [{"say": "Got it."}])) as chat:
        chat.wait_idle()

        chat.type(f"one{ALT_ENTER}two\\{ENTER}three")
        chat.wait_for("three")
        chat.type(ENTER)
        chat.wait_for("Got it.")
        chat.leave()

    assert "one\\ntwo\\nthree" in session_text(home)


@pytest.mark.services
def test_the_input_line_can_be_written_in_the_editor(home: Path, tmp_path: Path) -> None:
    """Ctrl-X Ctrl-E opens $EDITOR with what was typed; what it saves is in the input line."""
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nread answer < /dev/tty\necho "and $answer" >> "$1"\n')
    editor.chmod(0o755)
    with ChatProgram(make_home(home, [{"say": "Got it."}]), EDITOR=str(editor)) as chat:
        chat.wait_idle()
        chat.type("begun")
        chat.wait_for("❯ begun")

        chat.type("\x18\x05")
        chat.wait_gone("❯ begun")
        chat.type("more\n")
        chat.wait_for("and more", " tokens (")
        chat.type(ENTER)
        chat.wait_for("Got it.")
        chat.leave()

    assert "begunand more" in session_text(home)


@pytest.mark.services
def test_history_comes_back_with_the_arrow_and_by_search_in_a_later_chat(home: Path) -> None:
    """What was entered is kept in the home, for its owner alone."""
    with ChatProgram(make_home(home, [{"say": "Yes."}, {"say": "Also."}])) as chat:
        chat.wait_idle()
        chat.enter("a remarkable question")
        chat.wait_for("Yes.")
        chat.wait_idle()
        chat.enter("another one")
        chat.wait_for("Also.")
        chat.leave()
    assert (home / "chat_history").stat().st_mode & 0o777 == 0o600

    with ChatProgram(home) as chat:
        chat.wait_idle()
        chat.type(UP)
        chat.wait_for("❯ another one")
        chat.type(CTRL_C)
        chat.wait_gone("another one")
        chat.type(f"{CTRL_R}remark")
        chat.wait_for("a remarkable question")


def test_tab_completes_commands_their_arguments_and_paths(home: Path, tmp_path: Path) -> None:
    """A begun command, the name of a toolset behind it, and a path behind an @ are completed.

    A single completion closes the menu, so Enter sends.
    """
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes on tea.txt").write_text("tea")
    with ChatProgram(make_home(home, [{"say": "Tea."}]), cwd=work) as chat:
        chat.wait_idle()
        chat.type("/toolse")
        chat.wait_for("/toolsets", "which are in use")
        chat.type(TAB)
        chat.wait_for("❯ /toolsets")
        chat.type(CTRL_C)
        chat.wait_gone("❯ /toolsets")

        chat.type("/tools demo")
        chat.type(TAB)
        chat.wait_for("❯ /tools demo")
        chat.type(CTRL_C)
        chat.wait_gone("❯ /tools demo")

        chat.type("read @notes")
        chat.wait_for("notes on tea.txt")
        chat.type(TAB)
        chat.wait_for('read @"notes on tea.txt"')
        chat.enter("")
        chat.wait_for_answer('read @"notes on tea.txt"', "Tea.")


def test_completion_finds_a_file_in_a_folder_of_many(home: Path, tmp_path: Path) -> None:
    """What is listed does not depend on the order in which the disk holds the names."""
    work = tmp_path / "work"
    work.mkdir()
    for number in range(6_000):
        (work / f"note_{number}.txt").touch()
    with ChatProgram(make_home(home, []), cwd=work) as chat:
        chat.wait_idle()
        for number in (3, 2_999, 5_997):
            chat.type(f"@note_{number}.")
            chat.wait_for(f" note_{number}.txt")
            chat.type(CTRL_C)
            chat.wait_gone(f"note_{number}")


def test_bare_toolcrib_opens_the_chat(home: Path) -> None:
    """Without any argument, at a terminal, one talks."""
    make_home(home, [])
    with ChatProgram(home, bare=True) as chat:
        chat.wait_idle()
        chat.type(CTRL_D)
        assert chat.exit_code() == 0


def test_what_is_typed_while_the_chat_starts_is_asked(home: Path) -> None:
    """Nobody has to wait for the input line."""
    with ChatProgram(make_home(home, [{"say": "Early answer."}])) as chat:
        chat.type("early question\n")

        chat.wait_for("❯ early question", "Early answer.")
