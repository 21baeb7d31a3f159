"""The slash commands, in a real terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.chat.chat_program import CTRL_C, DOWN, ChatProgram, make_home, session_text, slow_call

RAW_SERVER = Path(__file__).parents[2] / "mcp" / "servers" / "raw_server.py"
PLUGIN = """
def hello(rest):
    return f"hello {rest or 'nobody'}"

async def later(rest):
    raise RuntimeError("not today")

def register(ctx):
    ctx.register_command("hello", hello, "Greets somebody", args_hint="NAME")
    ctx.register_command("later", later, "Always fails")
    ctx.register_command("exit", hello, "Wants to be the exit")
"""


COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("/help", ("/steer TEXT", "/undo", "Ctrl-C")),
    ("/help undo", ("/undo [N | --list | --to CALL]", "Undo the last exchange")),
    ("/help steer", ("/steer TEXT: Guide the agent",)),
    ("/tools", ("slow", "demo", "terminal", "offered")),
    ("/tools demo", ("slow", "edit", "broken")),
    ("/toolsets", ("terminal", "in use")),
    ("/context", ("system prompt", "tools", "your messages", "free")),
    ("/copy", ("no answer to copy",)),
    ("/export notes.doc", ("ends in .md or .json",)),
    ("/todo", ("no plan",)),
    ("/memory", ("Agent's notes", "memories")),
    ("/approvals", ("This session has no grants of its own.",)),
    ("/processes", ("no background processes",)),
    ("/mcp", ("No MCP servers are configured",)),
    ("/mcp restart", ("/mcp reconnect NAME",)),
    ("/cost", ("input", "output", "tool calls", "context")),
    ("/sessions", ("session", "last used", "(current)")),
    ("/queue", ("queue is empty",)),
    ("/stop", ("Nothing is running.",)),
    ("/undo", ("nothing to undo",)),
    ("/retry", ("nothing to retry",)),
    ("/compress", ("too short",)),
    ("/sesions", ("unknown command '/sesions'", "'/sessions'")),
    ("/toolset demo", ("in use",)),
    ("/resume", ("no other sessions",)),
    ("/resume 1999", ("1999",)),
    ("/tools nonsense", ("unknown toolset",)),
)


@pytest.mark.services
def test_a_command_shows_what_it_is_for(home: Path) -> None:
    """Each command answers at once, also in a chat in which nothing has happened yet."""
    with ChatProgram(make_home(home, []), columns=100) as chat:
        for command, shown in COMMANDS:
            chat.wait_idle()

            chat.enter(command)
            chat.wait_for_answer(command, *shown)

        chat.wait_idle()
        assert chat.leave() == 0


@pytest.mark.services
def test_mcp_shows_reloads_and_reconnects_servers(home: Path) -> None:
    """Servers stand with their state; a changed config is read, and one server is connected anew."""
    server = {"command": sys.executable, "args": ["-S", "-E", str(RAW_SERVER)], "trust": "all"}
    servers = {"one": server, "off": {**server, "enabled": False}}
    made = make_home(home, [], config=f"mcp_servers: {json.dumps(servers)}\nmcp: {{discovery_timeout: 20}}\n")
    with ChatProgram(made, columns=120) as chat:
        chat.wait_idle()
        chat.enter("/mcp reconnect one")
        chat.wait_for("ready", "25 tools, stdio, protocol 2025-11-25", "it is disabled")
        config = made / "config.yaml"
        config.write_text(config.read_text().replace('"off"', '"second"').replace("false", "true"))

        chat.enter("/mcp reload")
        chat.wait_until(lambda shown: shown.count("25 tools") == 3, "both servers")
        chat.enter("/mcp reconnect nobody")
        chat.wait_for("there is no MCP server 'nobody'")

        chat.wait_idle()
        assert chat.leave() == 0


def test_habits_of_other_chats_work(home: Path) -> None:
    """`?` shows the help and `quit` leaves, although neither has a slash; commands have the names people know."""
    with ChatProgram(make_home(home, []), rows=90) as chat:
        chat.wait_idle()
        chat.enter("?")
        chat.wait_for("Keys", "Shift-Tab")
        for line, answer in (
            ("/compact", "The session is too short to compress."),
            ("/permissions", "This session has no grants of its own."),
            ("/rewind", "There is nothing to undo."),
        ):
            chat.wait_idle()
            chat.enter(line)
            chat.wait_for_answer(line, answer)
        chat.wait_idle()
        chat.enter("quit")

        assert chat.exit_code() == 0


def test_exit_leaves(home: Path) -> None:
    """`/exit` ends the chat like Ctrl-D."""
    with ChatProgram(make_home(home, [])) as chat:
        chat.wait_idle()
        chat.enter("/exit")
        assert chat.exit_code() == 0


@pytest.mark.services
def test_a_path_is_no_command(home: Path, tmp_path: Path) -> None:
    """A message that begins with the path of a file is a message."""
    file = tmp_path / "notes.txt"
    file.write_text("x")
    with ChatProgram(make_home(home, [{"say": "I see."}])) as chat:
        chat.wait_idle()
        chat.enter(f"{file} is what I mean")
        chat.wait_for("I see.")


def test_new_resume_and_branch_change_the_session(home: Path) -> None:
    """A new session knows nothing, the old one is found again by its title, a branch is a copy."""
    with ChatProgram(make_home(home, [{"say": "First."}])) as chat:
        chat.wait_idle()
        chat.enter("about whales")
        chat.wait_for("First.")
        chat.wait_idle()

        chat.enter("/new")
        chat.wait_for("Started session")
        chat.enter("/resume whales")
        chat.wait_for("Resumed", "about whales (2 messages)")
        chat.enter("/branch")
        chat.wait_for("Branched to session")
        chat.enter("go on")
        chat.wait_until(lambda text: text.count("First.") == 3, "an answer in the copy")
        chat.leave()

    assert session_text(home).count("about whales") == 2


def test_help_has_room_for_what_each_command_does(home: Path) -> None:
    """Long arguments are cut in the list, so that a narrow terminal shows most summaries on one line."""
    with ChatProgram(make_home(home, [])) as chat:
        chat.wait_idle()
        chat.enter("/help")
        chat.wait_for("/diff [PATH]", "Show what this session changed in files\n", "/undo …", "@path attaches")


def test_undo_takes_back_the_exchange_and_puts_files_back(home: Path, tmp_path: Path) -> None:
    """The messages go; for the files that the exchange changed the person is asked."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "kept.txt").write_text("as it was")
    steps = [{"call": "write_text", "arguments": {"path": str(work / "kept.txt")}}, {"say": "Written."}]
    with ChatProgram(make_home(home, steps), cwd=work, columns=100) as chat:
        chat.wait_idle()
        chat.enter("write it")
        chat.wait_for("Written.")
        chat.wait_idle()
        assert (work / "kept.txt").read_text() == "written by the tool"

        chat.enter("/undo")
        chat.wait_for("Undone", "It also changed kept.txt.", "answer ❯")
        chat.enter("perhaps")
        chat.wait_for("neither yes nor no")
        chat.enter("y")
        chat.wait_for("1 file was restored")

        assert (work / "kept.txt").read_text() == "as it was"
        chat.wait_idle()
        chat.enter("/redo")
        chat.wait_for_answer("/redo", "1 file was changed again as before the undo.")
        assert (work / "kept.txt").read_text() == "written by the tool"
        chat.wait_idle()
        chat.enter("/diff")
        chat.wait_for("--- kept.txt", "-as it was", "+written by the tool")
        chat.wait_idle()
        chat.enter("/redo")
        chat.wait_for_answer("/redo", "nothing to redo")
        chat.wait_idle()
        chat.enter("/undo 1")
        chat.wait_for_answer("/undo 1", "1 file was restored")
        assert (work / "kept.txt").read_text() == "as it was"
        chat.wait_idle()
        chat.enter("/undo")
        chat.wait_for("nothing to undo")


@pytest.mark.services
def test_undo_of_many_files_is_short_and_says_that_head_stays(home: Path, tmp_path: Path) -> None:
    """The end of a long list is counted, and what undo cannot restore is told."""
    work = tmp_path / "work"
    (work / ".git" / "refs").mkdir(parents=True)
    (work / ".git" / "objects").mkdir()
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    files = [work / f"{number}.txt" for number in range(30)]
    for file in files:
        file.write_text("old")
    command = "git symbolic-ref HEAD refs/heads/other; for one in *.txt; do echo new > $one; done"
    steps = [{"call": "terminal", "arguments": {"command": command}}, {"say": "Switched."}]
    with ChatProgram(make_home(home, steps), cwd=work, columns=100) as chat:
        chat.wait_idle()
        chat.enter("switch")
        chat.wait_for("Switched.")
        chat.wait_idle()
        chat.enter("/undo")
        chat.wait_for(" 0.txt", "and 22 more.", "answer ❯")
        chat.enter("y")
        chat.wait_for("HEAD stays at other", "  ~/work/0.txt: restored", "  and 10 more", "30 files were restored.")

    assert {file.read_text() for file in files} == {"old"}


MANY_FILES_SECONDS = 300.0


@pytest.mark.services
def test_undo_of_twenty_thousand_files_asks_in_a_line_and_comes_to_an_end(home: Path, tmp_path: Path) -> None:
    """However many files a command changed, the question names a few, the outcome too, and all are restored."""
    work = tmp_path / "work"
    for number in range(200):
        folder = work / f"d{number:03}"
        folder.mkdir(parents=True)
        for name in range(100):
            (folder / f"{name:02}.txt").write_text(f"old {number} {name}")
    command = "find . -name '*.txt' -exec sed -i s/old/new/ {} +"
    steps = [{"call": "terminal", "arguments": {"command": command}}, {"say": "Rewritten."}]
    with ChatProgram(make_home(home, steps), cwd=work, columns=100) as chat:
        chat.wait_idle()
        chat.enter("rewrite")
        chat.wait_for("Rewritten.", seconds=MANY_FILES_SECONDS)
        chat.wait_idle()
        assert (work / "d199" / "99.txt").read_text() == "new 199 99"
        chat.enter("/undo")
        chat.wait_for("d000/00.txt", "and 19,992 more.", "answer ❯", seconds=MANY_FILES_SECONDS)
        chat.enter("y")
        chat.wait_for("restoring 20,000 files · ", "cannot be stopped halfway")
        outcome = "and 19,980 more", "20,000 files were restored."
        shown = chat.wait_for(*outcome, seconds=MANY_FILES_SECONDS)
        assert shown.count(".txt: restored") == 20
        chat.wait_idle()
        chat.enter("/undo")
        chat.wait_for_answer("/undo", "nothing to undo")

    assert all(path.read_text().startswith("old") for path in work.rglob("*.txt"))


@pytest.mark.services
def test_undo_does_not_offer_what_something_else_changed_meanwhile(home: Path, tmp_path: Path) -> None:
    """A file that an editor wrote while a command ran is named as such, and stays."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.txt").write_text("before")
    command = "echo new > its.txt; touch ../running; until [ -e ../gate ]; do sleep 0.02; done"
    steps = [{"call": "terminal", "arguments": {"command": command}}, {"say": "Written."}]
    with ChatProgram(make_home(home, steps), cwd=work, columns=100) as chat:
        chat.wait_idle()
        chat.enter("write it")
        chat.wait_until(lambda _: (tmp_path / "running").exists(), "the command")
        (work / "mine.txt").write_text("by an editor")
        (tmp_path / "gate").touch()
        chat.wait_for("Written.")
        chat.wait_idle()
        chat.enter("/undo")
        shown = chat.wait_for("perhaps by something else: mine.txt.", "It also changed", "answer ❯")
        assert "mine.txt" not in shown.rpartition("It also changed")[2]
        chat.enter("y")
        chat.wait_for("restored, 1 skipped.")

    assert (work / "mine.txt").read_text() == "by an editor"
    assert not (work / "its.txt").exists()


def test_a_question_of_a_command_can_be_left_with_ctrl_c(home: Path, tmp_path: Path) -> None:
    """Whoever does not want to answer gets the input line back, and nothing is done."""
    file = tmp_path / "work" / "new.txt"
    steps = [{"call": "write_text", "arguments": {"path": str(file)}}, {"say": "Written."}, {"say": "Go on."}]
    with ChatProgram(make_home(home, steps), columns=100) as chat:
        chat.wait_idle()
        chat.enter("write it")
        chat.wait_for("Written.")
        chat.wait_idle()
        chat.enter("/undo")
        chat.wait_for("answer ❯")

        chat.type(CTRL_C)
        chat.wait_gone("answer ❯")
        chat.enter("more")

        chat.wait_for("Go on.")
        assert file.exists()


def test_after_a_resume_undo_offers_what_the_summary_named(home: Path, tmp_path: Path) -> None:
    """Also when another exchange came after the change; the arrow keys choose, and Enter takes the choice."""
    file = tmp_path / "work" / "new.txt"
    steps = [{"call": "write_text", "arguments": {"path": str(file)}}, {"say": "Written."}, {"say": "Good bye."}]
    with ChatProgram(make_home(home, steps), columns=100) as chat:
        chat.wait_idle()
        chat.enter("write it")
        chat.wait_for("Written.")
        chat.wait_idle()
        chat.enter("thanks")
        chat.wait_for("Good bye.")
        chat.wait_idle()
        chat.leave()
        assert "Undo with: toolcrib undo --session" in chat.text

    with ChatProgram(home, "chat", "--resume", columns=100) as chat:
        chat.wait_idle()
        chat.enter("/undo")
        chat.wait_for("Undone: 'thanks'", "Earlier in this session", "new.txt (created)", "answer ❯")
        chat.type(DOWN)
        chat.wait_for("❯ 1. Restore the files")
        chat.type("\r")
        chat.wait_for("1 file was restored")

    assert not file.exists()


@pytest.mark.services
def test_leaving_names_the_files_that_were_changed(home: Path, tmp_path: Path) -> None:
    """Whoever leaves reads which files the session changed and how to take that back."""
    file = tmp_path / "work" / "new.txt"
    steps = [{"call": "write_text", "arguments": {"path": str(file)}}, {"say": "Written."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("write it")
        chat.wait_for("Written.")
        chat.wait_idle()

        chat.leave()

        assert "Changed: ~/work/new.txt" in chat.text
        assert "/undo" in chat.text


@pytest.mark.services
def test_commands_of_plugins_run_and_cannot_take_the_place_of_ours(home: Path) -> None:
    """A plugin's command is listed and answered; one that fails says so; `/exit` stays ours."""
    folder = home / "plugins" / "greeter"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: greeter\nversion: '1'\ndescription: greets\n")
    (folder / "__init__.py").write_text(PLUGIN)
    make_home(home, [], config="plugins:\n  enabled: [greeter]\n")
    with ChatProgram(home, rows=50) as chat:
        chat.wait_idle()
        chat.enter("/help")
        chat.wait_for("From plugins", "/hello NAME", "Greets somebody")
        chat.enter("/hello world")
        chat.wait_for("\nhello world")  # the answer; what was typed stands behind the prompt
        chat.wait_idle()
        chat.enter("/later")
        chat.wait_for("failed", "not today")
        chat.enter("/exit")
        assert chat.exit_code() == 0


def test_a_command_that_cannot_run_now_says_so(home: Path, gate: Path) -> None:
    """While the agent works, what would pull the session away has to wait."""
    with ChatProgram(make_home(home, [slow_call(gate), {"say": "Done."}])) as chat:
        chat.wait_idle()
        chat.enter("go")
        chat.wait_for("🐌 slow")

        chat.enter("/new")
        chat.wait_for("has to wait")
        chat.enter("/cost")
        chat.wait_for("tool calls")
        gate.touch()

        chat.wait_for("Done.")


@pytest.mark.services
def test_a_failing_model_is_told_in_a_sentence_and_the_chat_goes_on(home: Path) -> None:
    """What the provider says reaches the person, and the next question is asked."""
    steps = [{"fail": "the quota is used up; wait a day", "kind": "quota"}, {"say": "Better now."}]
    with ChatProgram(make_home(home, steps)) as chat:
        chat.wait_idle()
        chat.enter("one")
        chat.wait_for("the quota is used up")
        chat.wait_idle()
        chat.enter("/retry")
        chat.wait_for("Better now.")


def test_undo_and_retry_name_the_words_that_were_typed(home: Path) -> None:
    """What went along with a question is not shown as text, and goes along again once."""
    steps = [{"say": "First."}, {"say": "Second."}]
    with ChatProgram(make_home(home, steps)) as chat:
        (home.parent / "work" / "a.txt").write_text("alpha")
        chat.wait_idle()
        chat.enter("!echo beta")
        chat.wait_for("with your next message")
        chat.wait_idle()
        chat.enter("look at @a.txt")
        chat.wait_for("First.")
        chat.wait_idle()
        chat.enter("/retry")
        chat.wait_for("Second.")
        chat.wait_idle()
        sent = session_text(home)
        chat.enter("/undo")
        shown = chat.wait_for("Undone: 'look at @a.txt' and what followed")

    assert "<attached" not in shown
    assert (sent.count("alpha"), sent.count("$ echo beta")) == (1, 1)
