"""`search_files` by ripgrep and by Python: what both pattern languages share finds the same, in the same order."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from toolcrib.files.search import SearchEngine, search_files
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime

Search = Callable[..., dict[str, Any]]
CONFIG = "terminal: {login_shell: false}\n"
NO_RIPGREP = "ripgrep is not installed; run scripts/test-services up"
needs_ripgrep = [
    pytest.mark.services,
    pytest.mark.skipif(shutil.which("rg") is None, reason=NO_RIPGREP),
]
ENGINES = [pytest.param("best", marks=needs_ripgrep), "python", pytest.param("fetch", marks=pytest.mark.services)]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with isolated_runtime(tmp_path_factory.mktemp("home"), CONFIG) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def answer(runtime: Runtime, engine: SearchEngine, folder: Path, pattern: str, **arguments: Any) -> dict[str, Any]:
    """What the tool says, with the engine that it says it used taken out."""
    ctx = runtime.context(session_id="search", cwd=str(folder))
    args = {"pattern": pattern, "path": str(folder), **arguments}
    text = asyncio.run(search_files(args, ctx, engine=engine))
    found: dict[str, Any] = json.loads(text)
    searched_with = "ripgrep" if engine == "best" else "python"
    assert found.pop("searched_with", searched_with) == searched_with
    return found


@pytest.fixture(params=ENGINES)
def search(request: pytest.FixtureRequest, runtime: Runtime, folder: Path) -> Search:
    """Searches the folder of the test with one of the engines; paths are relative to it."""

    def run(pattern: str, **arguments: Any) -> dict[str, Any]:
        found = answer(runtime, request.param, folder, pattern, **arguments)
        text = json.dumps(found, ensure_ascii=False).replace(f"{folder}/", "")
        relative: dict[str, Any] = json.loads(text)
        return relative

    return run


def fill(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def lines(found: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(one["file"], one["line"], one["text"]) for one in found["matches"]]


def files(found: dict[str, Any]) -> list[str]:
    names: list[str] = found["files"]
    return names


def test_matches_are_sorted_by_path_and_line(search: Search, folder: Path) -> None:
    """Results come by path, then by line, with their text and how many there are."""
    fill(folder, {"b.txt": "x\nhit 1\nhit 2\n", "a/z.txt": "hit 3", "a.txt": "hit 4\n", ".github/w.yml": "hit 5\n"})

    found = search("hit")

    assert lines(found) == [
        (".github/w.yml", 1, "hit 5"),
        ("a.txt", 1, "hit 4"),
        ("a/z.txt", 1, "hit 3"),
        ("b.txt", 2, "hit 1"),
        ("b.txt", 3, "hit 2"),
    ]
    assert found["total"] == 5


def test_files_and_counts(search: Search, folder: Path) -> None:
    """Other modes give the files that match, or how often each does."""
    fill(folder, {"a": "hit\nhit hit\n", "b": "no\n", "c": "hit\n"})

    assert search("hit", output_mode="files_only") == {"files": ["a", "c"], "total": 2}
    assert search("hit", output_mode="count") == {"counts": {"a": 2, "c": 1}, "total": 2, "total_matches": 3}


def test_context_is_marked_and_merged(search: Search, folder: Path) -> None:
    """Lines around matches are given once, and told apart from matches."""
    fill(folder, {"a": "1\n2 hit\n3\n4 hit\n5\n6\n7\n8 hit"})

    found = search("hit", context=1)

    shown = [(one["line"], one.get("context", False)) for one in found["matches"]]
    assert shown == [(1, True), (2, False), (3, True), (4, False), (5, True), (7, True), (8, False)]


def test_ignore_files_hold(search: Search, folder: Path) -> None:
    """.gitignore (nested, negated, anchored), .ignore, .rgignore and .git/info/exclude hold, in a file_glob too."""
    fill(
        folder,
        {
            ".git/info/exclude": "excluded.py\n",
            ".git/config": "hit",
            ".gitignore": "*.log\n!keep.log\n/top.py\nbuild/\ndoc/*.py\n# c\n\\#odd.py\nspace.py   \n",
            ".ignore": "dotted.py\n!fine.log\n",
            ".rgignore": "ripped.py\n",
            "sub/.gitignore": "!again.log\nlocal.py\n",
            **dict.fromkeys(
                ["a.log", "keep.log", "fine.log", "top.py", "sub/top.py", "build/x.py", "doc/x.py"], "hit\n"
            ),
            **dict.fromkeys(["doc/deep/x.py", "sub/again.log", "sub/local.py", "local.py", "excluded.py"], "hit\n"),
            **dict.fromkeys(["dotted.py", "ripped.py", "#odd.py", "space.py", "sub/build"], "hit\n"),
        },
    )
    kept = ["doc/deep/x.py", "fine.log", "keep.log", "local.py", "sub/again.log", "sub/build", "sub/top.py"]

    assert files(search("hit", output_mode="files_only")) == kept
    assert files(search("hit", output_mode="files_only", file_glob="*.py")) == [
        name for name in kept if name.endswith(".py")
    ]


def test_ignore_files_above_hold_up_to_the_repository(search: Search, folder: Path, runtime: Runtime) -> None:
    """Rules of the folders above count, those of git as far as the repository goes."""
    fill(
        folder,
        {
            ".gitignore": "*.out\n",
            ".ignore": "*.dot\n",
            "repo/.git/HEAD": "",
            "repo/.gitignore": "/sub/a.txt\n*.tmp\n",
            **dict.fromkeys(["repo/sub/a.txt", "repo/sub/b.txt", "repo/sub/c.tmp", "repo/sub/d.out"], "hit\n"),
            "repo/sub/e.dot": "hit\n",
        },
    )

    found = search("hit", path=str(folder / "repo" / "sub"), output_mode="files_only")

    assert files(found) == ["repo/sub/b.txt", "repo/sub/d.out"]


def test_gitignore_holds_without_a_repository(search: Search, folder: Path) -> None:
    """A copy of a project without its .git is searched like the project."""
    fill(folder, {".gitignore": "node_modules/\n", "node_modules/a.js": "hit", "b.js": "hit"})

    assert files(search("hit", output_mode="files_only")) == ["b.js"]


def test_what_is_ignored_can_be_searched_by_name(search: Search, folder: Path) -> None:
    """A folder or file that is named as the path of the search is searched, ignored or not."""
    fill(folder, {".gitignore": "dist/\n*.log\n", "dist/a.js": "hit\n", "b.log": "hit\n"})

    assert search("hit", path=str(folder / "dist"))["total"] == 1
    assert lines(search("hit", path=str(folder / "b.log"))) == [("b.log", 1, "hit")]


def test_binary_files_are_left_out(search: Search, folder: Path) -> None:
    """A zero byte anywhere in a file makes it binary, however far down."""
    fill(folder, {"early": b"hit\n\0", "late": b"hit\n" + b"text\n" * 60_000 + b"\0", "text": b"hit\n"})

    assert files(search("hit", output_mode="files_only")) == ["text"]


def test_a_binary_file_that_is_named_is_called_one(search: Search, folder: Path) -> None:
    """Who searches one binary file is told why nothing was found."""
    fill(folder, {"program": b"\x7fELF\0hit\n"})

    found = search("hit", path=str(folder / "program"))

    assert found["matches"] == []
    assert "binary" in found["notes"][0]


def test_line_ends_encodings_and_bytes_that_are_no_text(search: Search, folder: Path) -> None:
    """CRLF, byte order marks, UTF-16 and broken UTF-8 are read as people mean them."""
    fill(
        folder,
        {
            "crlf": b"hit\r\nno\r\nhit",
            "mark": b"\xef\xbb\xbfhit\n",
            "utf16be": b"\xfe\xff" + "größe\nhit\n".encode("utf-16-be"),
            "utf16le": b"\xff\xfe" + "hit\r\n".encode("utf-16-le"),
            "broken": b"\xff\xfa hit\nhit\n",
        },
    )

    assert lines(search("^hit$")) == [
        ("broken", 2, "hit"),
        ("crlf", 1, "hit"),
        ("crlf", 3, "hit"),
        ("mark", 1, "hit"),
        ("utf16be", 2, "hit"),
        ("utf16le", 1, "hit"),
    ]
    assert lines(search("hit", path=str(folder / "broken")))[0][2] == "\ufffd\ufffd hit"


def test_long_lines_are_cut_around_the_match(search: Search, folder: Path) -> None:
    """Of a very long line only what surrounds the match is given."""
    fill(folder, {"a.min.js": "ä" * 100_000 + "needle" + "ö" * 100_000})

    (one,) = search("needle")["matches"]

    assert one["text"].startswith("…ä")
    assert one["text"].endswith("ö…")
    assert "needle" in one["text"]
    assert len(one["text"]) < 600


def test_links_pipes_and_sockets_are_not_followed_or_opened(search: Search, folder: Path, tmp_path: Path) -> None:
    """Only files are opened: nothing is waited for, and nothing outside of the folder is seen."""
    fill(folder, {"a": "hit\n"})
    fill(tmp_path, {"outside/secret": "hit\n"})
    os.mkfifo(folder / "pipe")
    (folder / "file-link").symlink_to(folder / "a")
    (folder / "folder-link").symlink_to(tmp_path / "outside")
    (folder / "broken-link").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(folder, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{here}/socket")

        assert files(search("hit", output_mode="files_only")) == ["a"]
        assert files(search("*", target="files")) == ["a"]
        os.close(here)


def test_a_pipe_as_the_path_is_refused(search: Search, folder: Path) -> None:
    """A path that is no file and no folder is an error, at once."""
    os.mkfifo(folder / "pipe")

    assert "neither a file nor a folder" in search("hit", path=str(folder / "pipe"))["error"]


def test_nothing_at_the_end_of_a_file_is_a_match(search: Search, folder: Path) -> None:
    """A pattern may fit an empty place behind the last character, also where no line break follows."""
    fill(folder, {"a": "one\ntwo", "long": "x" * 5000})

    found = search("$")

    assert [(one["file"], one["line"]) for one in found["matches"]] == [("a", 1), ("a", 2), ("long", 1)]


def test_a_path_that_is_not_there_is_an_error(search: Search, folder: Path) -> None:
    """A wrong path is named in the error."""
    assert "missing" in search("hit", path=str(folder / "missing"))["error"]


@pytest.mark.may_skip
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_that_cannot_be_read_are_counted(search: Search, folder: Path) -> None:
    """What could not be opened is told; the rest is searched."""
    fill(folder, {"a": "hit\n", "closed/b": "hit\n"})
    (folder / "closed").chmod(0)

    found = search("hit")
    (folder / "closed").chmod(0o700)

    assert found["total"] == 1
    assert "1 files or folders could not be opened" in found["notes"][0]


def test_secrets_are_not_searched_unless_named(search: Search, folder: Path) -> None:
    """What the gate would ask about is left out, and nothing tells whether it would have matched."""
    fill(folder, {".env": "TOKEN=hit\n", ".env.example": "TOKEN=hit\n", "key.pem": "hit\n", "a": "b\n"})

    assert search("hit", output_mode="files_only") == {"files": [".env.example"], "total": 1}
    assert search("hit", path=str(folder / ".env"))["total"] == 1


def test_names_by_glob_and_by_part(search: Search, folder: Path) -> None:
    """Files are found by a glob over names or paths, or by a part of the path."""
    fill(folder, dict.fromkeys(["src/a.py", "src/x/b.py", "src/x/c.ts", "d.py", "Readme.md"], ""))

    assert files(search("*.py", target="files")) == ["d.py", "src/a.py", "src/x/b.py"]
    assert files(search("src/**/*.py", target="files")) == ["src/a.py", "src/x/b.py"]
    assert files(search("src/*.py", target="files")) == ["src/a.py"]
    assert files(search("**/*.{py,ts}", target="files", limit=2)) == ["d.py", "src/a.py"]
    assert files(search("readme", target="files")) == ["Readme.md"]
    assert files(search("!*.py", target="files")) == ["Readme.md", "src/x/c.ts"]
    assert search("*.py", target="files", output_mode="count") == {"total": 3}


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize(
    ("glob", "wanted"),
    [
        ("*.py", ["a.py", "lib/b.py"]),
        ("*.{py,ts}", ["a.py", "lib/b.py", "lib/c.ts"]),
        ("lib/*.py", ["lib/b.py"]),
        ("lib/**", ["lib/b.py", "lib/c.ts"]),
        ("lib/", ["lib/b.py", "lib/c.ts"]),
        ("!*.py", ["[d].txt", "lib/c.ts"]),
        ("[ac].*", ["a.py", "lib/c.ts"]),
        ("\\[d\\].txt", ["[d].txt"]),
        ("?.py", ["a.py", "lib/b.py"]),
    ],
)
def test_a_glob_chooses_files(search: Search, folder: Path, glob: str, wanted: list[str]) -> None:
    """Only files that fit the glob are searched; one without a slash is about names, one with a slash about paths."""
    fill(folder, dict.fromkeys(["a.py", "lib/b.py", "lib/c.ts", "[d].txt"], "hit\n"))

    assert files(search("hit", output_mode="files_only", file_glob=glob)) == wanted


@pytest.mark.services
@pytest.mark.parametrize("mode", ["content", "files_only", "count"])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_pages_put_together_are_the_whole(search: Search, folder: Path, mode: str, size: int) -> None:
    """Reading page by page gives everything once, in the same order, and ends."""
    fill(folder, {f"{number % 3}/{number}": "hit\n" * (number % 4) + "no\n" for number in range(9)})
    key = {"content": "matches", "files_only": "files", "count": "counts"}[mode]
    whole = search("hit", output_mode=mode)

    pages, offset = [], 0
    while True:
        page = search("hit", output_mode=mode, limit=size, offset=offset)
        pages += page[key].items() if mode == "count" else page[key]
        assert page["total"] == whole["total"]
        if "more" not in page:
            break
        offset = page["next_offset"]

    assert pages == list(whole[key].items() if mode == "count" else whole[key])


NAMES = st.sampled_from(["a", "b.py", "c.txt", "ünï", "d e", ".h", "x.log", "[q]", "build", "-r", "a.b.c", "B.PY"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
RULES = st.sampled_from(
    [
        *(
            "*.log",
            "!x.log",
            "/a",
            "build/",
            "a/",
            "**/b.py",
            "a/**",
            "!a/b.py",
            "*",
            "!*.txt",
            "c.*",
            "\\[q\\]",
            "d\\ e",
        ),
        *("[ab]*", "?", "ünï", ".h", "a/*/b.py", "# x", "", "x.log ", "/*/c.txt", "**", "!build", "a.b.c"),
        "-r",
    ]
)
IGNORES = st.tuples(
    st.one_of(st.just(""), PATHS.map(lambda path: path + "/")),
    st.sampled_from([".gitignore", ".ignore", ".rgignore", ".git/info/exclude"]),
    st.lists(RULES, min_size=1, max_size=4).map("\n".join),
)
# Without CR: before a line end, it is part of the line for ripgrep only.
PIECES = st.sampled_from(
    [
        *(b"foo", b"bar", b"Foo", b"\n", b" ", b"x1", b"_", b"\xc3\xa4", b"\xc3\x9f", b"42", b"-", b"k", b"\t"),
        *(b"interface{}", b"A", b"{", b"\xe2\x84\xaa", b"\xcc\x88", b"\xc2\xa0", b"\xef\xbb\xbf", b"\xd9\xa3"),
    ]
)
CONTENTS = st.one_of(
    st.lists(PIECES, max_size=14).map(b"".join),
    st.lists(PIECES, max_size=6).map(lambda parts: b"".join(parts) + b"\0foo\n"),
    st.text("foo bar\näß", max_size=12).map(lambda text: b"\xff\xfe" + text.encode("utf-16-le")),
)
# What both pattern languages share: literals, simple classes and repetitions.
ATOMS = [
    *("foo", "b", "ar", "ä", "ß", "-", " ", "1", "{", "}", "interface{}", r"\.", r"\x41", r"\t", r"\{"),
    *(".", "[a-f]", "[^a-f]", r"\d", "[k-s]", "[]x]", "[0-9_]"),
    *("x{1,2}", "o{,2}", "o*", "r+?", "a?", "(foo|bar)", "(?:x|)", "^", "$"),
]
COMPARED: tuple[SearchEngine, SearchEngine] = ("best", "python")
PATTERNS = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=4).map("".join)


@pytest.mark.services
@pytest.mark.skipif(shutil.which("rg") is None, reason=NO_RIPGREP)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    tree=st.dictionaries(PATHS, CONTENTS, max_size=7),
    ignores=st.lists(IGNORES, max_size=3),
    pattern=PATTERNS,
    mode=st.sampled_from(["content", "files_only", "count"]),
    context=st.integers(0, 2),
    page=st.tuples(st.integers(1, 5), st.integers(0, 4)),
)
@example(tree={"a": b"foo\n\0"}, ignores=[], pattern="foo", mode="content", context=0, page=(5, 0))
def test_both_engines_find_the_same(
    runtime: Runtime,
    tmp_path_factory: pytest.TempPathFactory,
    tree: dict[str, bytes],
    ignores: list[tuple[str, str, str]],
    pattern: str,
    mode: str,
    context: int,
    page: tuple[int, int],
) -> None:
    """Whatever the files and their names: for literals and simple classes, both engines give the same answer."""
    folder = tmp_path_factory.mktemp("tree")
    for name, content in [*tree.items(), *((f"{above}{name}", text.encode()) for above, name, text in ignores)]:
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # one name stands in the way of another
    (folder / "link").symlink_to("a")
    arguments = {"output_mode": mode, "context": context, "limit": page[0], "offset": page[1]}

    by_ripgrep, by_walk = (answer(runtime, engine, folder, pattern, **arguments) for engine in COMPARED)
    names, names_by_walk = (answer(runtime, engine, folder, "*", target="files") for engine in COMPARED)

    assert by_ripgrep == by_walk
    assert names == names_by_walk
