"""The `read_file` tool through the whole pipeline, on this machine and in a sandbox."""

from __future__ import annotations

import codecs
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcrib.core.approvals import Choice
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover, isolated_runtime

Read = Callable[..., JsonObject]
CONFIG = "terminal: {login_shell: false}\n"
LIMIT_SECONDS = 30
YES: tuple[Choice, ...] = ("once",) * 20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def make(tmp_path: Path, work: Path) -> Iterator[Callable[..., Runtime]]:
    """Runtimes with the built-in tools that work in the same folder."""
    with ExitStack() as opened:
        numbers = iter(range(100))

        def build(config: str = CONFIG, **options: Any) -> Runtime:
            options = {"registry": ToolRegistry(parent=default_registry), "workspace": work, **options}
            return opened.enter_context(isolated_runtime(tmp_path / f"home-{next(numbers)}", config, **options))

        yield build


@pytest.fixture(params=["local", "sandbox"])
def read(request: pytest.FixtureRequest, make: Callable[..., Runtime]) -> Read:
    """Calls the tool in each of the two places and gives its answer."""
    runtime = make(f"terminal: {{login_shell: false, backend: {request.param}}}\n")
    return lambda path, **arguments: answer_of(call(runtime, path, **arguments))


@pytest.fixture
def read_here(make: Callable[..., Runtime]) -> Read:
    runtime = make()
    return lambda path, **arguments: answer_of(call(runtime, path, **arguments))


def call(runtime: Runtime, path: Path | str, **arguments: Any) -> ToolResult:
    return runtime.call_sync("read_file", {"path": str(path), **arguments})


def answer_of(result: ToolResult) -> JsonObject:
    answer: JsonObject = json.loads(result.text)
    return answer


def shown(answer: JsonObject) -> list[tuple[int, str]]:
    """The numbers and texts of the lines in an answer."""
    pairs = (line.split("|", 1) for line in answer["content"].split("\n")) if answer["content"] else ()
    return [(int(number), text) for number, text in pairs]


def test_lines_come_with_their_numbers(read: Read, work: Path) -> None:
    """Offset and limit choose lines; the answer says how many there are and where to go on."""
    (work / "f.txt").write_text("".join(f"line {number}\n" for number in range(1, 11)))

    everything, middle, end = read("f.txt"), read("f.txt", offset=4, limit=2), read("f.txt", offset=9)

    assert everything["content"].startswith("     1|line 1\n     2|line 2\n")
    assert (everything["lines"], everything["total_lines"], everything["size"]) == (10, 10, 71)
    assert "truncated" not in everything
    assert shown(middle) == [(4, "line 4"), (5, "line 5")]
    assert (middle["first_line"], middle["truncated"], middle["next_offset"]) == (4, True, 6)
    assert shown(end) == [(9, "line 9"), (10, "line 10")]
    assert "next_offset" not in end
    assert everything["path"] == str(work / "f.txt")


def test_a_long_line_is_cut_and_says_how_much_is_missing(make: Callable[..., Runtime], work: Path) -> None:
    """The most characters of a line are a setting, and what is left out is counted."""
    (work / "long").write_text("x" * 1000 + "\nshort\n")
    runtime = make(CONFIG + "tool_output: {max_line_length: 100}\n")

    (_, long), (_, short) = shown(answer_of(call(runtime, "long")))

    assert long == "x" * 100 + " … [900 characters of this line left out]"
    assert short == "short"


def test_an_answer_that_is_full_says_where_to_go_on(make: Callable[..., Runtime], work: Path) -> None:
    """What does not fit is not lost: reading on at next_offset gives every line once."""
    lines = [f"{number:>5} " + "y" * (number % 90) for number in range(1, 501)]
    (work / "f").write_text("\n".join(lines))
    runtime = make(CONFIG + "file_read_max_chars: 3000\ntool_output: {max_lines: 200}\n")

    seen, offset = [], 1
    while offset:
        answer = answer_of(call(runtime, "f", offset=offset))
        assert len(answer["content"]) <= 3000
        assert answer["lines"] <= 200
        seen += [text for _, text in shown(answer)]
        offset = answer.get("next_offset", 0)

    assert seen == lines


def test_one_line_that_is_larger_than_everything_is_shown_in_part(make: Callable[..., Runtime], work: Path) -> None:
    """A single line of megabytes is cut, never an error, and the lines after it can be reached."""
    (work / "f").write_bytes(b"z" * 5_000_000 + b"\nlast\n")
    runtime = make(CONFIG + "file_read_max_chars: 500\n")

    first = answer_of(call(runtime, "f"))
    last = answer_of(call(runtime, "f", offset=first["next_offset"]))

    assert len(first["content"]) <= 500
    assert "characters of this line left out" in first["content"]
    assert shown(last) == [(2, "last")]


def test_a_line_behind_the_end_is_an_error_that_says_so(read: Read, work: Path) -> None:
    """The error names the line and how many there are; an empty file is no error."""
    (work / "f").write_text("a\nb\n")
    (work / "empty").touch()

    assert "no line 3" in read("f", offset=3)["error"]
    assert "2 lines" in read("f", offset=3)["error"]
    assert read("empty")["note"] == "the file is empty"


def test_a_missing_file_names_what_was_probably_meant(read: Read, work: Path) -> None:
    """Near names of the folder are proposed, and a missing folder is said to be missing."""
    (work / "Settings.py").touch()
    (work / "other.txt").touch()

    assert read("setings.py")["did_you_mean"] == [str(work / "Settings.py")]
    assert "does not exist" in read("no/such/file")["error"]


def test_a_folder_is_listed_in_the_error(read: Read, work: Path) -> None:
    """Who reads a folder learns what is in it."""
    (work / "sub").mkdir()
    for name in ("b", "a"):
        (work / "sub" / name).touch()

    answer = read("sub")

    assert "is a folder with 2 entries" in answer["error"]
    assert answer["entries"] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(9), "ELF program or library"),
        (b"PK\x03\x04\x14\0", "zip archive"),
        (b"\x1f\x8b\x08\0", "gzip data"),
        (b"SQLite format 3\0" + bytes(84), "SQLite database"),
        (b"text\0text", "binary data"),
        (bytes(range(1, 32)) * 20 + b"\xff\xfe\xfd" * 5, "binary data"),
    ],
)
def test_binary_files_are_named_and_not_shown(read_here: Read, work: Path, content: bytes, kind: str) -> None:
    """The type is told by the first bytes, with the size, and no content is given."""
    (work / "thing").write_bytes(content)

    answer = read_here("thing")

    assert (answer["binary"], answer["type"], answer["size"]) == (True, kind, len(content))
    assert "content" not in answer


@pytest.mark.parametrize("text", ["BZh is how a bzip2 file begins\n", "ID3 tags\n", "GIF9 is no format\n", "MZ\n"])
def test_text_that_begins_like_something_else_is_text(read_here: Read, work: Path, text: str) -> None:
    """Letters at the beginning of a text do not make it binary."""
    (work / "f").write_text(text)

    assert shown(read_here("f")) == [(1, text.rstrip("\n"))]


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(30) + b"IEND\xaeB`\x82", "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(30) + b"\xff\xd9", "image/jpeg"),
        (b"GIF89a" + bytes(30) + b";", "image/gif"),
        (b"RIFF\x1e\0\0\0WEBPVP8 " + bytes(30), "image/webp"),
    ],
)
def test_images_come_as_images(make: Callable[..., Runtime], work: Path, content: bytes, media_type: str) -> None:
    """An image is a multimodal result, by its first bytes and not by its name; a repeat is short."""
    (work / "picture").write_bytes(content)
    runtime = make()

    first, second = call(runtime, "picture"), call(runtime, "picture")

    assert isinstance(first.content, dict)
    address = first.content["content"][1]["image_url"]["url"]
    assert codecs.decode(address.partition(",")[2].encode(), "base64") == content
    assert address.startswith(f"data:{media_type};base64,")
    assert json.loads(first.text)["type"] == media_type
    assert answer_of(second)["unchanged"] is True


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(30), "image/jpeg"),
        (b"GIF89a" + bytes(30), "image/gif"),
        (b"RIFF\x2f\0\0\0WEBPVP8 " + bytes(30), "image/webp"),
    ],
)
def test_an_image_without_its_end_is_named_and_not_shown(
    read_here: Read, work: Path, content: bytes, media_type: str
) -> None:
    """A server would refuse it, and every later request with it."""
    (work / "picture").write_bytes(content)

    answer = read_here("picture")

    assert (answer["binary"], answer["type"]) == (True, media_type)
    assert "end is missing" in answer["note"]


@pytest.mark.parametrize(
    ("name", "content", "first"),
    [
        ("a.txt", "GIF89a is a format\n", "GIF89a is a format"),
        ("a.md", "%PDF-1.4 is how a PDF begins\n", "%PDF-1.4 is how a PDF begins"),
        ("a.ipynb", '{"cells": [1,\n', '{"cells": [1,'),
        ("b.ipynb", '{"cells": [1]}', '{"cells": [1]}'),
        ("c.ipynb", '{"a": 1}', '{"a": 1}'),
    ],
)
def test_what_only_looks_like_a_picture_or_document_is_read_as_text(
    read_here: Read, work: Path, name: str, content: str, first: str
) -> None:
    """A broken notebook is shown as it is, so that it can be put right."""
    (work / name).write_text(content)

    assert shown(read_here(name)) == [(1, first)]


def test_a_mark_alone_is_a_file_without_lines(read_here: Read, work: Path) -> None:
    """The byte order mark is no text."""
    (work / "f").write_bytes(codecs.BOM_UTF8)

    answer = read_here("f")

    assert (answer["lines"], answer["total_lines"]) == (0, 0)


def test_an_image_that_is_too_large_is_refused_with_its_size(read_here: Read, work: Path) -> None:
    """What no model takes is not sent to one."""
    (work / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(4_000_000))

    assert "4000008 bytes" in read_here("large.png")["error"]


def test_an_unchanged_repeat_is_short_once(make: Callable[..., Runtime], work: Path) -> None:
    """The second time nothing is repeated; the third time it comes again; a change, or other lines, come at once."""
    (work / "f").write_text("a\nb\n")
    runtime = make()

    first, second, third = (answer_of(call(runtime, "f")) for _ in range(3))
    other_lines = answer_of(call(runtime, "f", offset=2))
    (work / "f").write_text("a\nB\n")
    changed = answer_of(call(runtime, "f"))

    assert second["unchanged"] is True
    assert "content" not in second
    assert first["content"] == third["content"]
    assert shown(other_lines) == [(2, "b")]
    assert shown(changed) == [(1, "a"), (2, "B")]


def test_what_the_kernel_makes_up_is_never_called_unchanged(read_here: Read) -> None:
    """Files without a size change without a sign."""
    answers = [read_here("/proc/uptime") for _ in range(3)]

    assert all(shown(answer) for answer in answers)


def test_nothing_waits_for_pipes_and_devices(read: Read, work: Path) -> None:
    """A pipe without a writer, a device and a link to one are refused at once."""
    os.mkfifo(work / "pipe")
    (work / "zero").symlink_to("/dev/zero")
    errors: list[str] = []
    names = ("pipe", "zero", "/dev/stdin", "/dev/zero")

    thread = threading.Thread(target=lambda: errors.extend(read(name)["error"] for name in names), daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)

    assert len(errors) == 4
    assert "neither a file nor a folder" in errors[0]


def test_secrets_of_processes_and_of_toolcrib_are_refused_whoever_agrees(
    make: Callable[..., Runtime], tmp_path: Path, work: Path
) -> None:
    """No yes opens the memory or environment of a process, or our own keys, also behind a link."""
    runtime = make(approver=ScriptedApprover(*YES))
    own = tmp_path / "home-0"
    for name in (".env", "auth.json", "approvals.jsonl"):
        (own / name).write_text("SECRET=1\n")
    (work / "innocent").symlink_to(own / "auth.json")
    paths: list[Path | str] = [
        "/proc/self/environ",
        "/proc/1/mem",
        own / ".env",
        own / "auth.json",
        own / "approvals.jsonl",
        "innocent",
    ]

    results = [call(runtime, path) for path in paths]

    assert [result.is_error for result in results] == [True] * len(paths)
    assert not any("SECRET" in result.text for result in results)


def test_a_file_of_any_bytes_for_a_name_is_read(read: Read, work: Path) -> None:
    """Line breaks, quotes, leading dashes, blanks and bytes that are no UTF-8 are part of names."""
    for name in (b"-n", b"a b", b"it's", b"line\nbreak", b"caf\xe9 \xff", b"$HOME", b"~"):
        (work / os.fsdecode(name)).write_bytes(b"found")

        assert shown(read(os.fsdecode(b"./" + name))) == [(1, "found")]


def test_a_link_that_turns_up_after_the_check_is_not_followed(make: Callable[..., Runtime], work: Path) -> None:
    """What was agreed to for one file does not happen to another: the error names where the path leads now."""
    outside = work.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("SECRET")
    (work / "sub").mkdir()
    (work / "sub/f").write_text("mine")
    runtime = make()

    def swap_then_run(next_call: Callable[..., Any], args: JsonObject, **_: Any) -> Any:
        """Runs between the effects, which were judged, and the handler."""
        (work / "sub").rename(work / "was")
        (work / "sub").symlink_to(outside)
        return next_call(args)

    runtime.hooks.register_middleware("tool_execution", swap_then_run)
    result = call(runtime, "sub/f")

    assert result.is_error
    assert "SECRET" not in result.text
    assert str(outside) in result.text


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0\ufeff"), max_size=30)
ENCODINGS = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lines=st.lists(LINE, min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    first=st.integers(1, 12),
)
def test_any_text_comes_back_line_by_line(
    read_here: Read, work: Path, lines: list[str], end: str, encoding: str, first: int
) -> None:
    """Whatever the encoding, the line ends and the first line asked for, the lines are those that were written."""
    path = work / "any"
    # A last line that nobody can mistake for the end of the one before.
    written = [*lines, "last"]
    path.write_bytes(ENCODINGS[encoding] + end.join(written).encode(encoding))
    if is_taken_for_something_else(path.read_bytes()):
        return

    answer = read_here(path, offset=min(first, len(written)))
    if answer.get("unchanged"):
        answer = read_here(path, offset=min(first, len(written)))

    assert shown(answer) == list(enumerate(written, 1))[min(first, len(written)) - 1 :]
    assert answer["total_lines"] == len(written)


def is_taken_for_something_else(content: bytes) -> bool:
    """Whether a text that was made up happens to begin like a file of another kind."""
    return content[:4] == b"RIFF" or content[4:8] == b"ftyp" or content.startswith((b"%PDF-", b"GIF8", b"!<arch>\n"))


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("text", ["café\nnaïve\n", "100 €\n", "“quoted”\n"])
def test_older_encodings_are_guessed_and_named(read: Read, work: Path, text: str) -> None:
    """Text that is no UTF-8 is shown as Windows-1252, which the answer says."""
    (work / "f").write_bytes(text.encode("cp1252"))

    answer = read("f")

    assert [line for _, line in shown(answer)] == text.splitlines()
    assert answer["encoding"] == "cp1252"


def test_the_budget_stage_leaves_the_answer_alone(make: Callable[..., Runtime], work: Path) -> None:
    """An answer within its own limits is never replaced by a preview, whatever escaping adds to its length."""
    (work / "f").write_text('"quoted"\t\\\n' * 1_990)
    runtime = make(CONFIG + "tool_output: {max_result_chars: 1000}\n")

    result = call(runtime, "f")

    assert result.handle == ""
    assert answer_of(result)["lines"] == 1_990
