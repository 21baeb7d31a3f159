"""How much the agent does on its own: modes, what a person is asked, and the status line that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.chat.chat_program import (
    CTRL_C,
    DOWN,
    ENTER,
    SHIFT_TAB,
    ChatProgram,
    make_home,
    session_text,
    slow_call,
)


def write(path: str, content: str) -> dict[str, Any]:
    return {"call": "write_file", "arguments": {"path": path, "content": content}}


def status_line(chat: ChatProgram) -> str:
    return [line for line in chat.visible.splitlines() if line.strip()][-1]


def test_ask_mode_shows_each_edit_as_a_diff_and_asks(home: Path) -> None:
    """A no leaves the file as it was, and a yes makes the change."""
    work = home.parent / "work"
    work.mkdir()
    file = work / "note.txt"
    file.write_text("old line\n")
    steps = [write("note.txt", "new line\n"), write("note.txt", "other line\n"), {"say": "All done."}]
    with ChatProgram(make_home(home, steps), "chat", "--mode", "ask") as chat:
        chat.wait_idle()
        assert "· ask ·" in status_line(chat)
        chat.enter("go")
        shown = chat.wait_for_question()
        assert "write_file asks to make this change" in shown
        assert "| -old line" in shown
        assert "| +new line" in shown
        assert "content=" not in shown
        for key in ("x", ENTER, "z"):
            chat.type(key)
            chat.wait_until(lambda text, key=key: ("Press one of these" in text) == (key != ENTER), "an explanation")
        assert chat.wait_for_question().count("[n] No") == 1
        chat.type("n")
        chat.wait_until(lambda _: "+other line" in chat.text, "the second question")
        chat.wait_for_question()
        assert file.read_text() == "old line\n"
        chat.type("y")
        chat.wait_for("All done.")

    assert file.read_text() == "other line\n"


@pytest.mark.services
def test_auto_edit_mode_edits_the_workspace_and_shows_a_diff_before_a_write_outside(home: Path) -> None:
    """Edits in the workspace run; elsewhere the person sees the change itself."""
    outside = home.parent / "elsewhere.txt"
    outside.write_text("old\n")
    steps = [write("inside.txt", "x\n"), write(str(outside), "new\n"), {"say": "All done."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        assert "· auto-edit ·" in status_line(chat)
        chat.enter("go")
        shown = chat.wait_for_question()
        assert "| -old" in shown
        assert "| +new" in shown
        assert "write_file asks to make this change:" in shown
        assert "write outside the workspace" in shown
        chat.type("y")
        chat.wait_for("All done.")

    assert outside.read_text() == "new\n"
    assert (home.parent / "work" / "inside.txt").read_text() == "x\n"


def test_plan_mode_changes_nothing_until_the_plan_is_accepted(home: Path) -> None:
    """Writes and commands that may write are refused, commands that read run; accepting switches the mode."""
    refused = [write("a.txt", "x"), {"call": "terminal", "arguments": {"command": "touch b.txt"}}]
    looks = {"call": "terminal", "arguments": {"command": "pwd; echo looked around"}}
    steps = [*refused, looks, {"say": "1. Write a.txt."}, write("a.txt", "planned\n"), {"say": "Carried out."}]
    with ChatProgram(make_home(home, steps), "chat", "--mode", "plan") as chat:
        chat.wait_idle()
        chat.enter("plan it")
        shown = chat.wait_for("looked around", "1 Write a.txt.", "Carry out this plan?", "4. No, keep planning")
        assert " ".join(shown.split()).count("plan mode allows only tools and commands that read") == 2
        work = home.parent / "work"
        assert list(work.iterdir()) == []

        chat.type(DOWN)
        chat.wait_for("❯ 1. Yes, and edit files")
        chat.type(ENTER)
        chat.wait_for("Carried out.")
        chat.wait_idle()
        assert "· auto-edit ·" in status_line(chat)

    assert (work / "a.txt").read_text() == "planned\n"
    assert "The plan is accepted." in session_text(home)


@pytest.mark.services
def test_the_status_line_counts_what_each_request_carries(home: Path) -> None:
    """The system prompt and the tools fill the context too, when the model reports no tokens or none yet."""
    with ChatProgram(make_home(home, [{"say": "Hello."}])) as chat:
        chat.wait_idle()
        chat.enter("hi")
        chat.wait_for("Hello.")
        chat.wait_until(lambda _: "k tokens (" in status_line(chat), "thousands of tokens")
        chat.leave()
    with ChatProgram(home, "chat", "--continue") as chat:
        chat.wait_idle()
        assert "k tokens (" in status_line(chat)


@pytest.mark.services
def test_the_checklist_does_not_stand_between_a_question_and_its_answers(home: Path) -> None:
    """While the person chooses, only the choices are below the question."""
    todos = [{"id": "1", "content": "look around", "status": "in_progress"}]
    steps = [{"call": "todo", "arguments": {"todos": todos}}, {"say": "My plan."}]
    with ChatProgram(make_home(home, steps), "chat", "--mode", "plan") as chat:
        chat.wait_idle()
        chat.enter("plan it")
        shown = chat.wait_for("Carry out this plan?", "4. No, keep planning", "answer ❯")
        assert "▶ look around" not in shown.partition("Carry out this plan?")[2]
        chat.type(CTRL_C)
        chat.wait_until(lambda text: "▶ look around" in text.partition("Carry out this plan?")[2], "the checklist")


@pytest.mark.services
def test_a_plan_can_be_rejected_with_words_or_edited(home: Path) -> None:
    """Any other answer goes back to the planning agent; editing puts the plan into the input line."""
    steps = [{"say": "1. First draft."}, {"say": "1. Second draft."}, {"say": "Carried out."}]
    with ChatProgram(make_home(home, steps), "chat", "--mode", "plan") as chat:
        chat.wait_idle()
        chat.enter("plan it")
        chat.wait_for("First draft.", "4. No, keep planning")
        chat.enter("make it shorter")
        chat.wait_for("Second draft.", "4. No, keep planning")
        assert "· plan ·" in status_line(chat)

        chat.enter("3")
        chat.wait_for("Carry out this plan:", "Edit the plan below")
        chat.enter(" And test it.")
        chat.wait_for("Carried out.")

    said = session_text(home)
    assert "make it shorter" in said
    assert "1. Second draft. And test it." in said


def test_shift_tab_goes_through_the_modes_also_while_the_agent_works(home: Path) -> None:
    """The next call is decided by the mode of that moment."""
    with ChatProgram(make_home(home, [write("a.txt", "x"), {"say": "All done."}])) as chat:
        chat.wait_idle()
        for mode in ("plan", "ask", "auto-edit", "plan"):
            chat.type(SHIFT_TAB)
            chat.wait_for(f"· {mode} ·")
        chat.enter("/mode ask")
        chat.wait_for("Mode: ask. Each edit is shown as a diff")
        chat.enter("go")
        chat.wait_for_question()
        chat.type("n")
        chat.wait_for("All done.")

    assert not (home.parent / "work" / "a.txt").exists()


def test_a_run_that_began_in_another_mode_ends_without_a_plan(home: Path, gate: Path) -> None:
    """Its answer is no plan, although the mode was switched before it came."""
    with ChatProgram(make_home(home, [slow_call(gate), {"say": "All done."}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")
        chat.type(SHIFT_TAB)
        chat.wait_for("scripted · plan ·")
        gate.touch()
        chat.wait_for("All done.")

        assert "Carry out this plan?" not in chat.wait_idle()


def test_talk_in_plan_mode_is_not_taken_for_a_plan(home: Path) -> None:
    """Only numbered steps or a to-do list are something to carry out."""
    steps = [{"say": "It has 3 files. Which one do you mean?"}, {"say": "**Plan**\n\n1. Look.\n2. Shall I go on?"}]
    with ChatProgram(make_home(home, steps), "chat", "--mode", "plan") as chat:
        chat.wait_idle()
        chat.enter("what is here?")
        chat.wait_for("Which one do you mean?")
        assert "Carry out this plan?" not in chat.wait_idle()
        chat.enter("the first")
        chat.wait_for("Carry out this plan?", "answer ❯")


def test_commands_work_while_a_question_is_open(home: Path) -> None:
    """A command is no answer: the question stays open."""
    steps = [{"say": "1. Look."}, {"say": "1. Look there.\n2. Then what?"}]
    with ChatProgram(make_home(home, steps), "chat", "--mode", "plan") as chat:
        chat.wait_idle()
        chat.enter("plan it")
        chat.wait_for("Carry out this plan?", "answer ❯")
        chat.enter("/cost")
        chat.wait_for("tool calls")
        chat.wait_for("answer ❯")
        chat.enter("/etc/hosts too")
        chat.wait_for("❯ /etc/hosts too", "Then what?")
        chat.wait_for("answer ❯")
        chat.enter("/exit")

        assert chat.exit_code() == 0


@pytest.mark.services
def test_the_command_can_be_edited_before_it_runs(home: Path) -> None:
    """It runs as the person wrote it, and the model is told."""
    work = home.parent / "work"
    (work / "build").mkdir(parents=True)
    (work / "keep").mkdir()
    steps = [{"call": "terminal", "arguments": {"command": "rm -rf build keep"}}, {"say": "All done."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("go")
        assert "[c] Edit the command, then run it" in chat.wait_for_question()

        chat.type("c")
        chat.wait_until(lambda text: text.rstrip().endswith("> rm -rf build keep"), "the command to edit")
        chat.type("\x7f" * len(" keep") + ENTER)
        chat.wait_for("rm -rf build (edited)", "All done.")

    assert [one.name for one in work.iterdir()] == ["keep"]
    assert "The user changed the command before it ran, to: rm -rf build]" in session_text(home)


def test_an_edited_command_is_judged_anew(home: Path) -> None:
    """What is dangerous in another place is asked about again, and runs only if that is allowed, too."""
    work = home.parent / "work"
    for folder in (work / "build", home.parent / "other"):
        folder.mkdir(parents=True)
    steps = [{"call": "terminal", "arguments": {"command": "rm -rf build"}}, {"say": "All done."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for_question()
        chat.type("c")
        chat.wait_until(lambda text: text.rstrip().endswith("> rm -rf build"), "the command to edit")
        chat.type("\x7f" * len("build") + "../other" + ENTER)
        chat.wait_until(lambda text: "rm -rf ../other" in text.rpartition("[n] No")[0], "the second question")
        chat.wait_for_question()
        chat.type("n")
        chat.wait_for("All done.")

    assert (home.parent / "other").is_dir()
    assert (work / "build").is_dir()


def test_the_status_line_says_what_matters_and_drops_from_the_right(home: Path) -> None:
    """Model, mode, context, cost, folder and branch; a narrow terminal keeps the first of them."""
    work = home.parent / "shop"
    (work / ".git").mkdir(parents=True)
    (work / ".git" / "HEAD").write_text("ref: refs/heads/feature/x\n")
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    make_home(home, [{"say": "Hello.", "usage": usage}])
    config = home / "config.yaml"
    config.write_text(
        config.read_text().replace(
            "provider: scripted\n", "provider: scripted\n  prices:\n    scripted: {input: 2.5}\n", 1
        )
    )
    with ChatProgram(home, cwd=work, columns=100) as chat:
        chat.wait_idle()
        assert "scripted · auto-edit · 0 tokens (0%) · $0.00 · shop (feature/x)" in status_line(chat)
        chat.enter("hi")
        chat.wait_for("Hello.", "· $2.50 ·")
        chat.wait_idle()

        chat.resize(40, 30)
        chat.wait_until(
            lambda _: "shop" not in status_line(chat) and "auto-edit" in status_line(chat), "the short line"
        )


def test_an_unknown_cost_is_said_to_be_unknown(home: Path) -> None:
    """Nothing is guessed."""
    with ChatProgram(make_home(home, [])) as chat:
        chat.wait_idle()
        assert "· cost unknown ·" in status_line(chat)


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize(
    ("how", "sent"), [("bell", b"\x07"), ("osc9", b"\x1b]9;toolcrib needs your approval: recursive")]
)
def test_a_person_who_keeps_it_waiting_is_called(home: Path, how: str, sent: bytes) -> None:
    """By the bell of the terminal or by a notification, as the settings say."""
    steps = [{"call": "terminal", "arguments": {"command": "rm -rf build"}}, {"say": "All done."}]
    config = f"chat:\n  notify: {how}\n  notify_after: 0.1\n"
    with ChatProgram(make_home(home, steps, config=config)) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for_question()

        chat.wait_until(lambda _: sent in chat.raw, "the call")

        chat.type("n")
        chat.wait_for("All done.")


def test_the_theme_follows_the_background_of_the_terminal_and_can_be_chosen(home: Path) -> None:
    """The terminal's answer is no input; a light background gets darker colours, plain gets none."""
    red = b"\x1b[31m"

    def colours_of(problem: str) -> bytes:
        before = len(chat.raw)
        chat.enter(f"/mode {problem}")
        chat.wait_for(f"there is no mode '{problem}'")
        return chat.raw[before:]

    with ChatProgram(make_home(home, [])) as chat:
        chat.wait_idle()
        assert b"\x1b]11;?" in chat.raw
        assert red in colours_of("one")

        chat.type("\x1b]11;rgb:ffff/ff")
        chat.type("ff/ffff\x1b\\typed")
        assert "rgb" not in chat.wait_for("❯ typed")
        chat.type("\x15")
        light = colours_of("two")
        assert red not in light
        assert b"\x1b[38;5;" in light

        chat.enter("/theme plain")
        chat.wait_for("Now using the plain theme.")
        plain = colours_of("three")
        assert red not in plain
        assert b"\x1b[38;5;" not in plain
