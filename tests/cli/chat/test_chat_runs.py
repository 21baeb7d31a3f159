"""What a person sees of a run, what he is asked, and how he steps in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.chat.chat_program import ALT_B, CTRL_C, ESC, ChatProgram, make_home, session_text, slow_call
from tests.cli.chat.stream_server import StreamServer


def test_an_answer_is_rendered_block_by_block(home: Path) -> None:
    """Markdown becomes text without its marks; nothing of the code is lost."""
    answer = (
        "# Title\n\nA **bold** word and <T>.\n\n```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nThe end."
    )
    with ChatProgram(make_home(home, [{"say": answer}])) as chat:
        chat.wait_idle()

        chat.enter("hello")
        shown = chat.wait_for("The end.")

        assert "A bold word and <T>." in shown
        assert "x = 1" in shown
        assert "```" not in shown
        assert "**" not in shown
        assert "❯ hello" in shown


@pytest.mark.services
def test_text_is_shown_while_it_is_written_and_blocks_as_they_are_complete(home: Path) -> None:
    """The block that grows stands above the input line; a complete one is printed for good, once."""
    with StreamServer() as server:
        home.mkdir()
        (home / "config.yaml").write_text(server.config)
        with ChatProgram(home) as chat:
            chat.wait_idle()
            chat.enter("tell me")

            server.say("First para")
            chat.wait_for("First para")
            server.say("graph.\n\nSecond **gro")
            chat.wait_for("First paragraph.", "Second **gro")
            server.say("ws** on.")
            server.end()
            shown = chat.wait_until(lambda text: "Second grows on." in text and chat.is_idle, "the end of the answer")

            assert shown.count("First paragraph.") == 1
            assert "**" not in shown
            assert chat.leave() == 0


def test_an_answer_that_breaks_off_stands_once_and_marked(home: Path) -> None:
    """The text stays on the screen with a mark behind it, and a line says what happened."""
    with ChatProgram(make_home(home, [{"say": "Half an answ", "fail": "attic broke off its answer"}])) as chat:
        chat.wait_idle()

        chat.enter("hello")
        chat.wait_for("the answer is incomplete: attic broke off its answer")
        shown = chat.wait_idle()

        assert shown.count("Half an answ") == 1
        assert shown.count("[incomplete: the answer broke off here]") == 1


def test_an_interrupt_in_the_middle_of_an_answer_keeps_the_session(home: Path) -> None:
    """One Ctrl-C ends the request; what was said stays, and the next question is answered."""
    with StreamServer() as server:
        home.mkdir()
        (home / "config.yaml").write_text(server.config)
        with ChatProgram(home) as chat:
            chat.wait_idle()
            chat.enter("tell me")
            server.say("Half an ans")
            chat.wait_for("Half an ans")

            chat.type(CTRL_C)
            chat.wait_for("stopped")
            assert server.hung_up.wait(timeout=30)
            chat.wait_idle()
            chat.enter("and now")
            server.say("A whole answer.")
            server.end()

            chat.wait_for("A whole answer.")
            first, second = server.requests.get(timeout=30), server.requests.get(timeout=30)
            assert len(second["messages"]) > len(first["messages"])
            assert any("Half an ans" in str(message["content"]) for message in second["messages"])


@pytest.mark.services
def test_esc_stops_the_agent_and_leaves_a_question(home: Path, tmp_path: Path) -> None:
    """Also twice, which never exits; an Alt combination is no Esc."""
    steps = [{"call": "write_text", "arguments": {"path": "a.txt"}}, {"say": "Written."}, slow_call(tmp_path / "gate")]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("write")
        chat.wait_for("Written.")
        chat.wait_idle()
        chat.enter("/undo")
        chat.wait_for("answer ❯")
        chat.type(ESC)
        chat.wait_gone("answer ❯")
        chat.wait_idle()
        chat.enter("work")
        chat.wait_for("slow  ")
        chat.type(ALT_B)
        chat.type(ESC)
        shown = chat.wait_for("interrupted", "stopped; the session keeps")
        chat.type(ESC)
        chat.wait_idle()
        assert chat.leave() == 0

    assert shown.count("stopped; the session keeps") == 1
    assert (home.parent / "work" / "a.txt").exists()


@pytest.mark.services
def test_thoughts_are_folded_to_a_line_until_they_are_wanted(home: Path) -> None:
    """Reasoning is one dim line; after /reasoning it is shown in full."""
    with StreamServer() as server:
        home.mkdir()
        (home / "config.yaml").write_text(server.config)
        with ChatProgram(home) as chat:
            chat.wait_idle()
            chat.enter("one")
            server.think("First I look.\n\nThen I leap.")
            server.say("Done one.")
            server.end()
            shown = chat.wait_for("Done one.", "thought (")
            assert "\nThen I leap." not in shown

            chat.wait_idle()
            chat.enter("/reasoning")
            chat.wait_for("shown in full")
            chat.enter("two")
            server.think("Now I look.\n\nNow I leap.")
            server.say("Done two.")
            server.end()

            assert "\nNow I leap." in chat.wait_for("Done two.")


def test_a_running_tool_is_shown_and_a_finished_one_is_a_line(home: Path, gate: Path) -> None:
    """While a tool runs its emoji, name and argument stand above the input line; then one line remains."""
    with ChatProgram(make_home(home, [slow_call(gate), {"say": "All done."}])) as chat:
        chat.wait_idle()

        chat.enter("go")
        chat.wait_for("🐌 slow", str(gate)[:20])
        gate.touch()
        shown = chat.wait_for("All done.")

        assert shown.count("🐌 slow") == 1
        assert "✓ 🐌 slow" in shown


@pytest.mark.services
def test_a_failed_call_says_why_and_no_control_character_gets_through(home: Path) -> None:
    """The first line of the error stands beside the call; what a tool writes cannot recolour the terminal."""
    steps = [{"call": "broken", "arguments": {"path": "mars"}}, {"say": "Oh."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()

        chat.enter("go")
        shown = chat.wait_for("Oh.")

        assert "💥 broken" in shown
        assert "no such planet" in shown
        assert b"planet \x1b[31m" not in chat.raw


def test_a_diff_in_a_result_is_shown_in_colour(home: Path) -> None:
    """Removed lines are red, added ones green."""
    with ChatProgram(make_home(home, [{"call": "edit"}, {"say": "Edited."}])) as chat:
        chat.wait_idle()

        chat.enter("go")
        chat.wait_for("Edited.", "-old line", "+new line")

        assert b"\x1b[31m  -old line" in chat.raw
        assert b"\x1b[32m  +new line" in chat.raw


@pytest.mark.services
def test_what_tools_print_by_themselves_does_not_run_into_the_input_line(home: Path) -> None:
    """Output of a tool and of its child processes becomes lines above the input line."""
    with ChatProgram(make_home(home, [{"call": "chatty"}, {"say": "Said."}])) as chat:
        chat.wait_idle()

        chat.enter("go")
        chat.wait_for("Said.")
        shown = chat.wait_idle()

        lines = shown.splitlines()
        assert "printed by a tool" in lines
        assert "printed by a child" in lines


def test_a_dangerous_call_is_asked_about_and_runs_when_allowed(home: Path, tmp_path: Path) -> None:
    """The approval prompt takes the terminal; after `o` the command runs and the chat goes on."""
    work = tmp_path / "work"
    (work / "build").mkdir(parents=True)
    steps = [{"call": "terminal", "arguments": {"command": "rm -rf build"}}, {"say": "Removed."}]
    with ChatProgram(make_home(home, steps), cwd=work) as chat:
        chat.wait_idle()
        chat.enter("clean up")
        chat.wait_for("asks to run", "rm -rf build", "[n] No")
        chat.wait_for_question()

        chat.type("o")
        chat.wait_for("allowed once", "Removed.")

        assert not (work / "build").exists()
        chat.wait_idle()
        chat.enter("/approvals")
        chat.wait_for("Latest decisions", "allowed once")


def test_a_denied_call_does_not_run(home: Path, tmp_path: Path) -> None:
    """After `d` nothing has happened, the model goes on without it, and the person is not told what they know."""
    work = tmp_path / "work"
    (work / "build").mkdir(parents=True)
    steps = [{"call": "terminal", "arguments": {"command": "rm -rf build"}}, {"say": "Then not."}]
    with ChatProgram(make_home(home, steps), cwd=work) as chat:
        chat.wait_idle()
        chat.enter("clean up")
        chat.wait_for_question()

        chat.type("d")
        shown = chat.wait_for("✗ 💻 terminal  rm -rf build", "denied", "Then not.")

        assert "not allowed" not in shown
        assert (work / "build").exists()
        chat.wait_idle()


def test_ctrl_c_at_the_approval_prompt_denies_and_stops_the_run(home: Path, tmp_path: Path) -> None:
    """Whoever is asked and presses Ctrl-C wants neither this call nor the next."""
    work = tmp_path / "work"
    (work / "build").mkdir(parents=True)
    steps = [{"call": "terminal", "arguments": {"command": "rm -rf build"}}, {"say": "Not reached."}]
    with ChatProgram(make_home(home, steps), cwd=work) as chat:
        chat.wait_idle()
        chat.enter("clean up")
        chat.wait_for_question()

        chat.type(CTRL_C)
        chat.wait_for("stopped")
        shown = chat.wait_idle()

        assert "Not reached." not in shown
        assert (work / "build").exists()
        chat.enter("next")
        chat.wait_for("Not reached.")


def test_ctrl_c_in_the_middle_of_a_tool_keeps_the_session(home: Path, gate: Path) -> None:
    """The tool is stopped, the call has its result, and the next question is answered."""
    with ChatProgram(make_home(home, [slow_call(gate), {"say": "Next answer."}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")

        chat.type(CTRL_C)
        chat.wait_for("stopped")
        chat.wait_idle()
        chat.enter("and now")

        chat.wait_for("Next answer.")


def test_steer_reaches_the_agent_while_it_works_and_stop_stops_it(home: Path, gate: Path, tmp_path: Path) -> None:
    """`/steer` is heard before the next request of the same run; `/stop` ends a run and keeps the session."""
    other = tmp_path / "other"
    steps = [slow_call(gate), slow_call(other), {"say": "After the stop."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("one")
        chat.wait_for("🐌 slow")

        chat.enter("/steer be quick")
        chat.wait_for("sees this before its next step")
        gate.touch()
        chat.wait_for("steered: be quick")
        chat.enter("/stop")
        chat.wait_for("stopped")
        chat.wait_idle()
        chat.enter("again")

        chat.wait_for("After the stop.")


def test_a_question_of_the_agent_is_answered_in_the_input_line(home: Path) -> None:
    """`clarify` shows its choices; a number picks one, and the model is told its text."""
    steps = [
        {"call": "clarify", "arguments": {"question": "Which colour?", "choices": ["red", "blue"]}},
        {"say": "Ok."},
    ]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("paint")
        chat.wait_for("Which colour?", "1. red", "2. blue", "answer ❯")

        chat.enter("2")
        chat.wait_for("Ok.")
        chat.leave()

    assert "blue" in session_text(home)


def test_a_resize_while_wide_characters_stream_loses_none(home: Path) -> None:
    """The growing block is drawn anew for each width; what is printed in the end stands there once and whole."""
    words = [f"word{number} 日本語テキスト 🎉" for number in range(12)]
    with StreamServer() as server:
        home.mkdir()
        (home / "config.yaml").write_text(server.config)
        with ChatProgram(home) as chat:
            chat.wait_idle()
            chat.enter("write")
            server.say(" ".join(words[:6]))
            chat.wait_for("word5")
            chat.resize(40, 30)
            server.say(" " + " ".join(words[6:9]))
            chat.wait_for("word8")
            chat.resize(100, 30)
            server.say(" " + " ".join(words[9:]) + "\n\n" + "long" * 60 + "\n\nEnd.")
            server.end()
            chat.wait_until(lambda text: "\nEnd." in text and chat.is_idle, "the end of the answer")

            # The terminal emulator keeps an empty cell behind each wide character.
            shown = "".join(chat.visible.split())
            assert all(shown.count("".join(word.split())) == 1 for word in words)
            assert "long" * 60 in shown
            assert chat.visible.count(" tokens (") == 1


@pytest.mark.services
def test_a_resize_in_the_middle_of_work_leaves_a_clean_screen(home: Path, gate: Path) -> None:
    """After the window was made narrow and wide again there is one input line and nothing broken."""
    with ChatProgram(make_home(home, [slow_call(gate), {"say": "All done."}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")

        chat.resize(44, 20)
        chat.wait_until(
            lambda _: any(line.endswith("s") and "slow" in line for line in chat.visible.splitlines()), "drawn"
        )
        chat.resize(100, 30)
        gate.touch()
        chat.wait_for("All done.")
        chat.wait_idle()

        assert chat.visible.count(" tokens (") == 1
        assert chat.leave() == 0


@pytest.mark.services
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_steering_while_the_last_answer_streams_makes_the_agent_go_on(home: Path, columns: int, rows: int) -> None:
    """It belongs to this question: the next one does not carry it."""
    with StreamServer() as server:
        make_home(home, [])
        (home / "config.yaml").write_text(server.config)
        with ChatProgram(home, columns=columns, rows=rows) as chat:
            chat.wait_idle()
            chat.enter("go")
            server.say("half an answer")
            chat.wait_for("half an answer", "answering")
            chat.enter("/steer in verse")
            chat.wait_for("before its next step: in verse")
            server.end()
            chat.wait_for("steered: in verse")
            server.say("Roses are red.")
            server.end()
            chat.wait_for("Roses are red.")
            chat.wait_idle()
            chat.enter("next")
            server.say("Done.")
            server.end()
            chat.wait_for("Done.")

        sent = [server.requests.get()["messages"] for _ in range(3)]
        assert "in verse" in str(sent[1][-1])
        assert sent[2][-1]["content"] == "next"
