"""`toolcrib chat -q`: the answer on stdout, progress on stderr, the outcome as exit code."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_program import Outcome, Program
from toolcrib.providers.scripted import calls
from toolcrib.sessions.store import SessionStore
from toolcrib.testing.model_server import ScriptedModelServer, Stream

ECHO = {"call": "terminal", "arguments": {"command": "echo hello"}}
WIPE = {"call": "terminal", "arguments": {"command": "rm -rf build"}}


@pytest.fixture
def chat(toolcrib: Program) -> Any:
    """Asks one question of a model that follows a script."""

    def ask(question: str, *options: str, steps: list[dict[str, Any]], stdin: str = "") -> Outcome:
        script(toolcrib, steps)
        return toolcrib("chat", "-q", question, *options, stdin=stdin)

    return ask


def script(program: Program, steps: list[dict[str, Any]]) -> None:
    path = program.write("script.json", json.dumps(steps))
    program.write("config.yaml", f"model: {{provider: scripted}}\nproviders:\n  scripted: {{base_url: {path}}}\n")


def test_the_answer_alone_is_on_stdout(chat: Any) -> None:
    """What a script reads is the answer; calls and their progress are for the person."""
    done = chat("How are you?", steps=[ECHO, {"say": "Fine."}])

    assert (done.stdout, done.code) == ("Fine.\n", 0)
    assert "terminal echo hello" in done.stderr


def test_quiet_says_nothing_but_the_answer(chat: Any) -> None:
    """With --quiet stderr stays empty where all goes well."""
    done = chat("How are you?", "--quiet", steps=[ECHO, {"say": "Fine."}])

    assert (done.stdout, done.stderr, done.code) == ("Fine.\n", "", 0)


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize(
    ("steps", "options", "code", "words"),
    [
        ([{"fail": "no credit is left", "kind": "quota"}], [], 1, "no credit is left"),
        ([{"call": "no_such_tool"}, {"say": "I cannot."}], [], 1, "no_such_tool"),
        ([ECHO, ECHO, {"say": "So far."}], ["--max-turns", "2"], 3, "2 turns"),
        ([WIPE, {"say": "Not allowed."}], [], 4, "recursive delete"),
    ],
    ids=["the model fails", "tools fail", "the budget is used up", "denied"],
)
def test_the_exit_code_tells_how_it_ended(
    chat: Any, steps: list[dict[str, Any]], options: list[str], code: int, words: str
) -> None:
    """Each outcome has its code, one line on stderr that says why, and how to go on."""
    done = chat("Do it", *options, steps=steps)

    assert done.code == code
    assert words in done.stderr
    assert "toolcrib chat --resume" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["-q", " "],
        ["--json"],
        ["-q", "x", "--toolsets", "wep"],
        ["-q", "x", "--cwd", "/no/such/folder"],
        ["-q", "x", "--provider", "opanai"],
        ["-q", "x", "--max-turns", "0"],
    ],
)
def test_wrong_usage_ends_with_two(toolcrib: Program, arguments: list[str]) -> None:
    """What cannot be meant is refused in one line before any model is asked."""
    script(toolcrib, [{"say": "never"}])
    done = toolcrib("chat", *arguments)

    assert done.code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_every_event_is_a_line_of_json(chat: Any) -> None:
    """Programs read what happens as it happens; the last line holds the outcome."""
    done = chat("How are you?", "--json", steps=[ECHO, {"say": "Fine."}])

    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "run_started"
    assert {"call_started", "call_finished", "message_added"} <= {event["event"] for event in events}
    assert events[-1]["event"] == "run_ended"
    assert events[-1]["result"]["answer"] == "Fine."


def test_an_answer_that_breaks_off_is_printed_and_marked(toolcrib: Program) -> None:
    """What arrived is on stdout, marked; stderr says why, and the exit code is not 0."""
    with ScriptedModelServer(otherwise=Stream("One two three four.", end_after=3)) as server:
        settings = {
            "model": {"provider": "attic", "default": "m", "max_retries": 1},
            "providers": {"attic": {"base_url": server.base_url}},
        }
        toolcrib.write("config.yaml", json.dumps(settings))
        done = toolcrib("chat", "-q", "Count.")
        as_json = toolcrib("chat", "-q", "Count.", "--json")

    assert done.code == 1
    assert done.stdout == "One two \n\n[incomplete: the answer broke off here]\n"
    assert "the partial answer is discarded" in done.stderr
    assert "the answer is incomplete: attic broke off its answer" in done.stderr.splitlines()[-1]
    result = json.loads(as_json.stdout.splitlines()[-1])["result"]
    assert (as_json.code, result["outcome"], result["is_incomplete"]) == (1, "failed", True)


def test_a_dry_run_prints_the_calls_and_makes_none(chat: Any, tmp_path: Path) -> None:
    """The calls that the model wants are shown with their arguments; nothing of them happens."""
    marker = tmp_path / "marker"
    wanted = {"call": "terminal", "arguments": {"command": f"touch {marker}"}}
    done = chat("Make a file", "--dry-run", steps=[wanted])

    assert f'would call terminal {{"command": "touch {marker}"}}' in done.stdout
    assert done.code == 0
    assert not marker.exists()


def test_a_quiet_dry_run_prints_the_calls_alone(chat: Any) -> None:
    """The calls are the result, which --quiet leaves; what is said beside it goes."""
    done = chat("Look", "--dry-run", "--quiet", steps=[ECHO])

    assert (done.stdout, done.stderr) == ('would call terminal {"command": "echo hello"}\n', "")


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("option", ["--json", "--dry-run"])
def test_the_work_stops_when_nobody_reads_the_result(toolcrib: Program, tmp_path: Path, option: str) -> None:
    """A reader that has left, as `head` does, ends the run before its next call."""
    marker = tmp_path / "marker"
    touch = {"call": "terminal", "arguments": {"command": f"touch {marker}"}}
    script(toolcrib, [touch, {"say": "Done."}])
    readable, writable = os.pipe()
    os.close(readable)
    done = subprocess.run(
        [sys.executable, "-m", "toolcrib", "chat", "-q", "Work", option],
        stdout=writable,
        stderr=subprocess.PIPE,
        env=toolcrib.environment(),
        timeout=30,
        check=False,
    )
    os.close(writable)

    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert not marker.exists()


def test_a_budget_that_is_used_up_is_said_once(chat: Any) -> None:
    """The last line says it, with how to go on; the progress does not say it as well."""
    done = chat("Do it", "--max-turns", "1", steps=[ECHO, {"say": "So far."}])

    assert done.stderr.count("is used up") == 1


@pytest.mark.services
def test_progress_is_readable_where_no_emoji_can_be_written(chat: Any, toolcrib: Program) -> None:
    """In an ASCII locale the emoji goes, instead of standing there as an escape."""
    toolcrib.environ.update(LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    done = chat("How are you?", steps=[ECHO, {"say": "Fine."}])

    assert done.stderr == "terminal echo hello\n"


@pytest.mark.services
def test_a_call_whose_outcome_nobody_knows_is_told_to_the_person(toolcrib: Program, tmp_path: Path) -> None:
    """Whoever goes on with a session whose process was killed reads which call may have happened."""
    started = tmp_path / "started"
    os.mkfifo(started)
    script(toolcrib, [{"call": "terminal", "arguments": {"command": f"echo x > {started}; sleep 60"}}])
    process = subprocess.Popen(
        [sys.executable, "-m", "toolcrib", "chat", "-q", "Wait", "--quiet"], env=toolcrib.environment()
    )
    # Opened for both, so that opening does not wait for the other side.
    heard = os.open(started, os.O_RDWR)
    ready, _, _ = select.select([heard], [], [], 30)
    process.kill()
    process.wait()
    os.close(heard)
    assert ready
    script(toolcrib, [{"say": "I will look."}])

    done = toolcrib("chat", "-q", "And?", "--resume")

    assert done.stdout == "I will look.\n"
    assert "the outcome of a call to terminal is unknown" in done.stderr


def test_images_are_looked_for_where_the_agent_works(chat: Any, tmp_path: Path) -> None:
    """With --cwd a path is one of that folder; what is no image is named with the reason, also with --quiet."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "cat.png").write_text("not a picture")
    done = chat("What is in cat.png?", "--quiet", "--cwd", str(folder), steps=[{"say": "A cat."}])

    assert done.stdout == "A cat.\n"
    assert "image not attached" in done.stderr
    assert "PNG" in done.stderr


def test_a_session_is_gone_on_with(chat: Any, toolcrib: Program) -> None:
    """--resume alone means the latest session; its messages are all there."""
    chat("My name is Ada", steps=[{"say": "Hello Ada."}])
    done = chat("What is my name?", "--resume", steps=[{"say": "Ada."}])

    assert done.stdout == "Ada.\n"
    store = SessionStore(toolcrib.home / "sessions.db")
    (session,) = store.list()
    texts = [one.message.text for one in store.messages(session.id)]
    store.close()
    assert texts == ["My name is Ada", "Hello Ada.", "What is my name?", "Ada."]


def test_an_unknown_session_is_an_error_with_what_to_type(chat: Any) -> None:
    """Resuming what is not there says so and how to see what is."""
    done = chat("Hello", "--resume", "20200101_000000_abcdef", steps=[{"say": "never"}])

    assert done.code != 0
    assert "toolcrib sessions list" in done.stderr


def test_cwd_is_where_commands_run(chat: Any, tmp_path: Path) -> None:
    """With --cwd the agent works in that folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = chat(
        "Where?", "--cwd", str(folder), "--json", steps=[{**ECHO, "arguments": {"command": "pwd"}}, {"say": "x"}]
    )

    assert str(folder) in next(line for line in done.stdout.splitlines() if '"call_finished"' in line)


def test_no_tools_are_offered_when_none_are_wanted(toolcrib: Program) -> None:
    """`--toolsets none` sends a request without tools."""
    with ScriptedModelServer(["No tools."]) as server:
        toolcrib.write(
            "config.yaml", f"model: {{provider: own}}\nproviders:\n  own: {{base_url: {server.base_url}, model: m}}\n"
        )
        done = toolcrib("chat", "-q", "x", "-t", "none")
        (seen,) = server.requests

    assert done.stdout == "No tools.\n"
    assert not seen.body.get("tools")


def test_a_real_sdk_and_a_real_server_run_the_loop(toolcrib: Program, tmp_path: Path) -> None:
    """Over HTTP, a streamed tool call is made and its result is in the next request."""
    (tmp_path / "x").mkdir()
    with ScriptedModelServer([calls("terminal", {"command": "echo over the wire"}), "Done."]) as server:
        toolcrib.write(
            "config.yaml", f"model: {{provider: own}}\nproviders:\n  own: {{base_url: {server.base_url}, model: m}}\n"
        )
        done = toolcrib("chat", "-q", "Say it", "--max-turns", "5")
        second = server.requests[1].body

    assert (done.stdout, done.code) == ("Done.\n", 0)
    assert "over the wire" in second["messages"][-1]["content"]


def test_one_interrupt_stops_the_work_and_keeps_the_session(toolcrib: Program, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a command ends it with 130, and the conversation can be gone on with."""
    script(toolcrib, [{"call": "terminal", "arguments": {"command": "echo begun; sleep 60"}}, {"say": "Again."}])
    process = subprocess.Popen(
        [sys.executable, "-m", "toolcrib", "chat", "-q", "Wait", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=toolcrib.environment(),
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if '"call_started"' in line:
            break

    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    script(toolcrib, [{"say": "Again."}])
    done = toolcrib("chat", "-q", "Still there?", "--resume")

    assert process.returncode == 130
    assert '"outcome":"interrupted"' in rest
    assert done.stdout == "Again.\n"


@pytest.mark.parametrize(("options", "config"), [(["-t", "wbe"], ""), ([], "toolsets: [wbe]\n")])
def test_a_misspelt_toolset_is_told_before_anything_is_fetched(
    toolcrib: Program, options: list[str], config: str
) -> None:
    """Nobody waits for the weights of the small model to learn of a typing mistake."""
    toolcrib.write("config.yaml", config)
    done = toolcrib("chat", "-q", "x", *options, HF_ENDPOINT="http://127.0.0.1:9", PIP_NO_INDEX="1")

    assert done.code == 2
    assert "did you mean 'web'" in done.stderr
    assert "MB" not in done.stderr


def test_a_missing_session_and_an_unknown_provider_are_found_before_the_model_is_fetched(toolcrib: Program) -> None:
    """Nobody waits for a download to learn of a misspelt option; the message names what was misspelt."""
    resumed = toolcrib("chat", "--resume", "zzz", "-q", "hello")
    named = toolcrib("chat", "--model", "foo/bar", "-q", "hello")

    assert resumed.code != 0
    assert "'zzz'" in resumed.stderr
    assert "Downloading" not in resumed.stderr
    assert named.code == 2
    assert "unknown provider 'foo'" in named.stderr
    assert "the part of 'foo/bar' before the slash names the provider" in named.stderr


def test_retries_are_one_line_and_their_failure_counts_them(chat: Any, toolcrib: Program) -> None:
    """A server that keeps failing must not fill the screen with the same sentence."""
    failure = {"fail": "attic says HTTP 500", "may_retry": True}
    script(toolcrib, [failure] * 3)
    config = (toolcrib.home / "config.yaml").read_text()
    toolcrib.write("config.yaml", config.replace("provider: scripted", "provider: scripted, max_retries: 2"))

    done = toolcrib("chat", "-q", "hello")

    assert done.code == 1
    assert done.stderr.count("retrying in") == 1
    assert "attic says HTTP 500 (tried 3 times)" in done.stderr


def test_at_a_terminal_the_waiting_time_is_shown(toolcrib: Program) -> None:
    """A slow model does not look broken: a line counts the seconds, and is gone at the end."""
    with ScriptedModelServer(otherwise=Stream("never", stall_after=1)) as server:
        toolcrib.write(
            "config.yaml",
            f"model: {{default: m, provider: mine}}\nproviders:\n  mine: {{base_url: '{server.base_url}'}}\n",
        )
        seen = toolcrib.on_terminal("chat", "-q", "Hello", answers=(("thinking, ", "^C"),))

    assert seen.code == 130
    assert "s; Ctrl-C stops" in seen.stdout
    assert "\r\x1b[K" in seen.stdout.rpartition("Ctrl-C stops")[2]
