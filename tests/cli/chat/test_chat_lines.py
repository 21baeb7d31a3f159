"""The small texts of the chat: finished calls, what runs, times, amounts, names of images and of commands."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from toolcrib.agent.events import CallFinished, CallStarted, SubagentProgressed
from toolcrib.cli.chat.calls import coloured_diff, diff_of, finished_lines, shown_output
from toolcrib.cli.chat.images import named_images, save_images, with_images
from toolcrib.cli.chat.slash import SlashCommand, UnknownCommand, find_command, split_command
from toolcrib.cli.chat.status import Activity
from toolcrib.cli.chat.symbols import ASCII, UNICODE, fitted, short_cost, short_count, short_duration, symbols_for
from toolcrib.cli.output import cell_width
from toolcrib.config.paths import Home
from toolcrib.core.messages import Image, RequestedCall

PIXEL = b"\x89PNG\r\n\x1a\nnot a real picture IEND"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def started(id: str, name: str = "terminal", summary: str = "ls -l", emoji: str = "💻") -> CallStarted:
    return CallStarted(call=RequestedCall(id=id, name=name, arguments="{}"), emoji=emoji, summary=summary)


def as_text(*renderables: object, columns: int = 80) -> str:
    console = Console(file=io.StringIO(), width=columns, color_system=None, highlight=False)
    with console.capture() as capture:
        for one in renderables:
            console.print(one)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


@given(st.text(max_size=300), st.text(max_size=300), st.integers(30, 200))
def test_the_rows_of_what_runs_fit_and_end_in_the_time(summary: str, progress: str, columns: int) -> None:
    """However long the argument and the progress are, the elapsed time is seen and nothing is folded."""
    clock = Clock()
    activity = Activity(UNICODE, clock)
    activity.call_started(started("1", summary=summary))
    activity.call_progressed("1", progress)
    clock.now += 3

    (row,) = activity.rows(columns)

    assert cell_width(row) < columns
    assert row.endswith("3.0s")
    assert "\n" not in row


def test_a_tool_of_a_server_is_shown_by_the_names_that_people_know() -> None:
    """Both while it runs and afterwards; a name without an end leaves room for the rest."""
    activity = Activity(ASCII, Clock())
    call = RequestedCall(id="1", name="mcp__time__get_now", arguments="{}")
    activity.call_started(CallStarted(call=call, title="time: get-now"))
    activity.call_started(CallStarted(call=RequestedCall(id="2", name="long", arguments="{}"), title="x" * 500))
    activity.call_progressed("1", "1 of 2")

    first, second = activity.rows(80)
    shown = activity.call_finished("1")
    assert shown is not None
    (line,) = finished_lines(shown, CallFinished(call_id="1", name=call.name, status="ok", text=""), 80, ASCII)

    assert first[2:] == "time: get-now  1 of 2 | 0.0s"
    assert cell_width(second) < 80
    assert as_text(line) == "ok time: get-now | 0.0s"


def test_many_calls_are_a_row_each_and_too_many_are_counted() -> None:
    """Five rows at most; the last says how many more there are."""
    activity = Activity(UNICODE, Clock())
    for number in range(3):
        activity.call_started(started(str(number)))
    assert len(activity.rows(80)) == 3

    for number in range(3, 9):
        activity.call_started(started(str(number)))
    rows = activity.rows(80)

    assert len(rows) == 5
    assert "5 more (9 tools)" in rows[-1]


def test_helpers_stand_below_the_call_while_they_work() -> None:
    """A helper is shown with what it does, and goes when it is done."""
    activity = Activity(ASCII, Clock())
    activity.call_started(started("1", "delegate_task"))
    activity.subagent_progressed(SubagentProgressed(child_id="c", goal="count", state="working", what="read_file a"))
    assert "count: read_file a" in activity.rows(80)[1]

    activity.subagent_progressed(SubagentProgressed(child_id="c", goal="count", state="completed"))

    assert len(activity.rows(80)) == 1


def test_nothing_is_shown_when_nothing_goes_on() -> None:
    """After the end there is no row."""
    activity = Activity(UNICODE, Clock())
    activity.begin("thinking")
    assert "thinking" in activity.rows(80)[0]
    activity.end()
    assert activity.rows(80) == []


@pytest.mark.parametrize("columns", [40, 80])
def test_a_finished_call_is_one_line_whatever_its_argument(columns: int) -> None:
    """A long argument is cut so that the line fits."""
    activity = Activity(UNICODE, Clock())
    activity.call_started(started("1", summary="x" * 300))
    call = activity.call_finished("1")
    assert call is not None
    event = CallFinished(call_id="1", name="terminal", status="ok", text="", duration_ms=1234)

    lines = finished_lines(call, event, columns, UNICODE)

    assert len(lines) == 1
    assert cell_width(str(lines[0])) <= columns
    assert str(lines[0]).startswith("✓ 💻 terminal  xxx")
    assert str(lines[0]).endswith("1.2s")


def test_a_failed_call_has_the_first_line_of_its_error_below_where_it_does_not_fit() -> None:
    """A short error stands beside the call, a long one is indented below it."""
    activity = Activity(UNICODE, Clock())
    activity.call_started(started("1"))
    call = activity.call_finished("1")
    assert call is not None
    failed = CallFinished(
        call_id="1", name="terminal", status="error", text="", error_message="no\nsuch", duration_ms=5
    )
    long = CallFinished(call_id="1", name="terminal", status="timeout", text="", error_message="word " * 30)

    assert as_text(*finished_lines(call, failed, 80, UNICODE)) == "✗ 💻 terminal  ls -l · 0.0s · failed: no"
    rows = as_text(*finished_lines(call, long, 80, UNICODE)).splitlines()
    assert rows[0].endswith("timed out")
    assert all(row.startswith("    word") for row in rows[1:])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps({"diff": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y"}), True),
        (json.dumps({"patch": "@@ -1 +1 @@\n-x\n+y"}), True),
        (json.dumps({"diff": "no difference"}), False),
        (json.dumps({"diff": 3}), False),
        (json.dumps(["diff"]), False),
        ('{"diff": "broken', False),
        ("--- a\n+++ b\n@@", False),
        ("", False),
    ],
)
def test_only_a_diff_is_taken_for_one(text: str, found: bool) -> None:
    """The keys diff and patch of a result, where they hold a unified diff."""
    assert bool(diff_of(text)) is found


def test_a_long_diff_and_a_long_output_are_cut_and_say_so() -> None:
    """The beginning is shown with the number of lines that are left out; control characters are not obeyed."""
    diff = coloured_diff("@@ -1 +1 @@\n" + "+line \x1b[31m\n" * 100, UNICODE)
    output = shown_output(json.dumps({"output": "row\n" * 50}), UNICODE)

    assert "41 more lines" in diff.plain
    assert "\x1b" not in diff.plain
    assert "30 more lines" in output.plain


@given(st.text(max_size=80), st.integers(1, 60))
def test_fitted_text_fits(text: str, columns: int) -> None:
    """No more columns than there are, and the whole text where it fits."""
    shown = fitted(text, columns)

    assert cell_width(shown) <= columns
    assert shown == text or cell_width(text) > columns


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.4, "59s"), (61, "1m 01s"), (3700, "1h 01m")],
)
def test_times_are_short(seconds: float, words: str) -> None:
    """Tenths while they matter, then seconds, minutes, hours."""
    assert short_duration(seconds) == words


def test_amounts_are_short() -> None:
    """Tokens by thousands and millions; small costs with four digits; nothing for an unknown cost."""
    assert [short_count(count) for count in (950, 12_340, 1_200_000)] == ["950", "12.3k", "1.2M"]
    assert [short_cost(cost) for cost in (None, 0.0, 0.0123, 1.5)] == ["", "$0.00", "$0.0123", "$1.50"]


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    """The encoding decides."""
    assert symbols_for("utf-8") is UNICODE
    assert symbols_for("UTF8") is UNICODE
    assert symbols_for("ISO-8859-1") is ASCII


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("look at cat.png", ["cat.png"]),
        ("look at ./cat.png.", ["cat.png"]),
        ("'my cat.jpg' and \"my dog.gif\"", ["my cat.jpg", "my dog.gif"]),
        (r"my\ cat.jpg", ["my cat.jpg"]),
        ("{folder}/cat.png", ["cat.png"]),
        ("file://{folder}/my%20cat.jpg", ["my cat.jpg"]),
        ("~/cat.png", ["cat.png"]),
        ("@cat.png cat.png", ["cat.png"]),
        ("(see cat.png) and (cat.png)", ["cat.png"]),
        ("CAT.PNG", []),
        ("http://example.org/cat.png", []),
        ("missing.png", []),
        ("cat.pngx", []),
        ("notes.txt", []),
    ],
)
def test_images_are_found_by_the_ways_in_which_people_name_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, names: list[str]
) -> None:
    """Quoted, dropped on the terminal, with ~, as an address; only files that exist, each once."""
    for name in ("cat.png", "my cat.jpg", "my dog.gif", "notes.txt"):
        (tmp_path / name).write_bytes(PIXEL)
    monkeypatch.setenv("HOME", str(tmp_path))

    found = named_images(text.replace("{folder}", str(tmp_path)), tmp_path)

    assert [path.name for path in found] == names


def test_a_message_carries_its_images_and_says_so(tmp_path: Path) -> None:
    """The text stays as it is; an image that cannot be sent is named with the reason."""
    (tmp_path / "cat.png").write_bytes(PIXEL)
    (tmp_path / "huge.png").touch()
    with (tmp_path / "huge.png").open("r+b") as stream:
        stream.truncate(30_000_000)

    message, notes = with_images("cat.png or huge.png", tmp_path)

    assert message.text == "cat.png or huge.png"
    assert [base64.b64decode(image.data) for image in message.images] == [PIXEL]
    assert [note.split(":")[0] for note in notes] == ["image attached", "image not attached"]
    assert "20 MB" in notes[1]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PIXEL, "image/png"),
        (b"\xff\xd8\xff\xe0 and so on\xff\xd9", "image/jpeg"),
        (b"GIF89a\0 and so on;", "image/gif"),
        (b"RIFF\x08\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
)
def test_an_image_is_sent_as_what_it_is(tmp_path: Path, content: bytes, kind: str) -> None:
    """The content decides, not the name: services refuse an image that is called what it is not."""
    (tmp_path / "cat.png").write_bytes(content)

    message, _ = with_images("cat.png", tmp_path)

    assert [image.media_type for image in message.images] == [kind]


@pytest.mark.parametrize("content", [b"", b"just text", b"<svg></svg>"])
def test_what_is_no_image_is_not_sent(tmp_path: Path, content: bytes) -> None:
    """A file that is only called an image is named with the reason."""
    (tmp_path / "cat.png").write_bytes(content)

    message, notes = with_images("cat.png", tmp_path)

    assert not message.images
    assert [note.split(":")[0] for note in notes] == ["image not attached"]


def test_an_image_without_its_end_is_not_sent(tmp_path: Path) -> None:
    """A service would refuse it, and with it every later request of the conversation."""
    (tmp_path / "cat.png").write_bytes(PIXEL[:-4])

    message, notes = with_images("cat.png", tmp_path)

    assert not message.images
    assert notes == [f"image not attached: {tmp_path / 'cat.png'}: its end is missing"]


def test_images_of_a_model_are_kept_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    """The path is told; the same image twice is one file; an address stays an address; no picture, no path."""
    home = Home(tmp_path / "home")
    image = Image(media_type="image/webp", data=base64.b64encode(PIXEL).decode())

    paths = save_images([image, image, Image(url="http://x.example/y.png"), Image(data="?")], home)

    assert paths[0] == paths[1]
    assert paths[2:] == ["http://x.example/y.png"]
    assert Path(paths[0]).read_bytes() == PIXEL
    assert Path(paths[0]).suffix == ".webp"
    assert Path(paths[0]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", ("help", "")),
        ("/Steer  go left\nand right ", ("steer", "go left\nand right")),
        ("/?", ("?", "")),
        ("/home/me/x.png", None),
        ("/", None),
        ("no /command", None),
        ("//x", None),
    ],
)
def test_a_command_begins_with_a_slash_and_a_word(text: str, command: tuple[str, str] | None) -> None:
    """Its name is read without regard to case; everything behind it belongs to it."""
    assert split_command(text) == command


def test_a_command_is_found_by_its_name_its_other_names_and_its_beginning() -> None:
    """What could mean two commands names them; what means none names the nearest."""

    async def nothing(_chat: object, _rest: str) -> None:
        return None

    names = {"stop": (), "steer": (), "exit": ("quit",), "tools": (), "toolsets": ()}
    commands = {
        name: SlashCommand(name=name, summary="", run=nothing, aliases=aliases) for name, aliases in names.items()
    }

    assert find_command(commands, "quit").name == "exit"
    assert find_command(commands, "tools").name == "tools"
    assert find_command(commands, "ste").name == "steer"
    with pytest.raises(UnknownCommand, match="stop"):
        find_command(commands, "st")
    with pytest.raises(UnknownCommand, match="toolsets"):
        find_command(commands, "tolsets")
