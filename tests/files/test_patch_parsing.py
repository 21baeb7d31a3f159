"""Patches as text: V4A and unified diffs, their odd forms, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolcrib.files.patch_parsing import FileChange, HunkLine, PatchError, parse_patch


def v4a(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


def only(text: str) -> FileChange:
    (change,) = parse_patch(text)
    return change


def signs(change: FileChange) -> list[str]:
    return [line.sign + line.text for hunk in change.hunks for line in hunk.lines]


def test_v4a_names_every_kind_of_change() -> None:
    """Add, update, move and delete are read with their paths and lines."""
    added, updated, deleted = parse_patch(
        v4a(
            "*** Add File: new dir/a.txt",
            "+one",
            "+",
            "+three",
            "*** Update File: b.py",
            "*** Move to: c.py",
            "@@ class A:",
            "@@     def f(self):",
            "         x = 1",
            "-        y = 2",
            "+        y = 3",
            "*** End of File",
            "*** Delete File: d.txt",
        )
    )

    assert (added.kind, added.path, added.content) == ("add", "new dir/a.txt", "one\n\nthree\n")
    assert (updated.kind, updated.path, updated.move_to) == ("update", "b.py", "c.py")
    (hunk,) = updated.hunks
    assert hunk.headings == ("class A:", "    def f(self):")
    assert hunk.at_end
    assert hunk.lines == (
        HunkLine(" ", "        x = 1"),
        HunkLine("-", "        y = 2"),
        HunkLine("+", "        y = 3"),
    )
    assert (deleted.kind, deleted.path) == ("delete", "d.txt")
    assert list(updated.touched()) == [("write", "c.py"), ("delete", "b.py")]


def test_v4a_hunks_are_split_at_their_headings() -> None:
    """Each @@ begins a hunk; the first one may do without."""
    change = only(v4a("*** Update File: a", "-1", "+2", "@@", "-3", "+4", "@@ def f():", "-5"))

    assert [(hunk.number, hunk.headings) for hunk in change.hunks] == [(1, ()), (2, ()), (3, ("def f():",))]


def test_v4a_takes_an_empty_line_for_an_empty_line_of_context() -> None:
    """Models drop the one space; blank lines at the end of a hunk belong to nothing."""
    change = only(
        v4a("*** Update File: a", "@@", " a", "", "-b", "", "", "*** Delete File: c").replace(
            "*** Delete File: c\n", ""
        )
    )

    assert signs(change) == [" a", " ", "-b"]


def test_v4a_line_numbers_are_read_as_hints() -> None:
    """A heading of a unified diff inside V4A names a line, no text."""
    (hunk,) = only(v4a("*** Update File: a", "@@ -12,2 +12,2 @@", "-b", "+c")).hunks

    assert (hunk.old_line, hunk.headings) == (12, ())


def test_a_fence_and_windows_line_ends_around_a_patch_do_no_harm() -> None:
    """A patch inside a code fence, or with CRLF, is the same patch."""
    plain = v4a("*** Update File: a", "-b", "+c")

    assert parse_patch(f"```diff\n{plain}```\n") == parse_patch(plain)
    assert parse_patch(plain.replace("\n", "\r\n")) == parse_patch(plain)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a patch"),
        ("hello", "not a patch"),
        ("*** Begin Patch\n*** Update File: a\n-b\n", "cut off"),
        (v4a(), "changes no file"),
        (v4a("*** Update File: "), "path is missing"),
        (v4a("*** Update File: a", "*** Move to: ", "-b"), "path is missing"),
        (v4a("*** Update File: a", "b"), "line 3"),
        (v4a("*** Update File: a", "@@", " b"), "changes nothing"),
        (v4a("*** Update File: a", "@@"), "changes nothing"),
        (v4a("*** Update File: a", *["@@ class A:"] * 11, "-b"), "at most 10 headings"),
        (v4a("*** Add File: a", "b"), "begins with '+'"),
        (v4a("*** Add File: a", "+b", "", "+c"), "empty line"),
        (v4a("*** Rename File: a"), "expected"),
        (v4a("*** Delete File: a", "-b"), "expected"),
        (v4a("*** Update File: a", "-b", "*** Rename File: a"), "expected a hunk"),
        (v4a("*** Update File: a", "-b") + "\n*** Update File: b\n-c", "cut off"),
    ],
)
def test_a_broken_v4a_patch_is_refused_with_the_place(text: str, says: str) -> None:
    """The error says which line, or what is missing."""
    with pytest.raises(PatchError, match=says.replace("+", r"\+")):
        parse_patch(text)


GIT = """\
diff --git a/src/a.py b/src/a.py
index 83db48f..bf2e5b1 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,3 +1,3 @@ def head():
 one
-two
+2
 three
@@ -10 +10 @@
-ten
+10
\\ No newline at end of file
diff --git a/old name.txt b/new name.txt
similarity index 100%
rename from old name.txt
rename to new name.txt
diff --git a/run.sh b/run.sh
new file mode 100755
index 0000000..1234567
--- /dev/null
+++ b/run.sh
@@ -0,0 +1,2 @@
+echo 1
+echo 2
diff --git a/gone.txt b/gone.txt
deleted file mode 100644
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-bye
-- 
2.40.1
"""  # noqa: W291 - git puts a space there


def test_git_diffs_are_read_with_renames_and_modes() -> None:
    """Headers of git say what is added, deleted and moved, and which mode a file gets."""
    updated, moved, added, deleted = parse_patch(GIT)

    assert (updated.kind, updated.path, len(updated.hunks)) == ("update", "src/a.py", 2)
    assert updated.hunks[0].old_line == 1
    assert (updated.hunks[1].new_is_open, updated.hunks[1].at_end) == (True, True)
    assert (moved.path, moved.move_to, moved.hunks) == ("old name.txt", "new name.txt", ())
    assert (added.kind, added.path, added.content, added.mode) == ("add", "run.sh", "echo 1\necho 2\n", 0o755)
    assert (deleted.kind, deleted.path, signs(deleted)) == ("delete", "gone.txt", ["-bye"])


@pytest.mark.parametrize(
    ("header", "path"),
    [
        ("--- a/x.py\n+++ b/x.py", "x.py"),
        ("--- x.py\n+++ x.py", "x.py"),
        ("--- a/x.py\n+++ a/x.py", "a/x.py"),
        ("--- x.py.orig\t2024-01-01 10:00:00\n+++ x.py\t2024-01-02 10:00:00", "x.py"),
        ('--- "a/\\303\\244 \\"q\\".py"\n+++ "b/\\303\\244 \\"q\\".py"', 'ä "q".py'),
        ("--- a/dir name/x.py\n+++ b/dir name/x.py", "dir name/x.py"),
    ],
)
def test_the_path_of_a_unified_diff_is_found(header: str, path: str) -> None:
    """Prefixes of git, times and quotes are no part of the name."""
    assert only(f"{header}\n@@ -1 +1 @@\n-a\n+b\n").path == path


def test_wrong_counts_in_a_unified_diff_do_not_matter() -> None:
    """Models count badly: the lines decide, not the heading."""
    change = only("--- a/x\n+++ b/x\n@@ -1,9 +1,1 @@\n a\n-b\n+c\n\n d\n")

    assert signs(change) == [" a", "-b", "+c", " ", " d"]


def test_a_removed_line_that_looks_like_a_header_is_a_line() -> None:
    """`--- x` inside a hunk is the line `-- x`, unless a whole header follows."""
    change = only("--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1,2 @@\n--- old comment\n+-- new comment\n select\n")

    assert signs(change) == ["--- old comment", "+-- new comment", " select"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--- a/x\n+++ b/x\n", "no hunk"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n a\n", "changes nothing"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n-a\n+b\n", "only lines with '+'"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n a\n-b\n", "only lines with '-'"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n+b\n", "path"),
        ("diff --git a/x b/x\nGIT binary patch\n", "binary"),
        ("diff --git a/x b/y\ncopy from x\ncopy to y\n", "copy"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+to\n", "links"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\nnoise\n+more\n", "expected a hunk"),
    ],
)
def test_a_broken_unified_diff_is_refused(text: str, says: str) -> None:
    """What cannot be applied is refused as a whole."""
    with pytest.raises(PatchError, match=says.replace("+", r"\+")):
        parse_patch(text)


V4A_LINES = """*** Begin Patch
*** End Patch
*** Update File: a
*** Add File: b
*** Delete File: c
*** Move to: d
*** End of File
*** ."""
DIFF_LINES = r"""--- a/x
+++ b/x
--- /dev/null
+++ /dev/null
--- "a/\303"
diff --git a/x b/x
index 1..2
rename from x
rename to y
new file mode 100644
deleted file mode 100644
\ No newline at end of file"""
HUNK_LINES = ["@@", "@@ -1,2 +3,4 @@", "@@ def f", " x", "-x", "+x", "", " ", "```", "\ud800", "\x00"]
words = st.sampled_from([*V4A_LINES.split("\n"), *DIFF_LINES.split("\n"), *HUNK_LINES])


@given(st.lists(words | st.text(max_size=10), max_size=25))
@example(["diff --git a/x b/x", "rename to y"])
def test_any_text_is_a_patch_or_a_patch_error(lines: list[str]) -> None:
    """No text makes the parser fail in another way, and every change names its paths."""
    try:
        changes = parse_patch("\n".join(lines))
    except PatchError:
        return
    assert changes
    assert all(path for change in changes for _, path in change.touched())


@pytest.mark.services
@pytest.mark.parametrize(
    "text",
    [
        v4a("*** Update File: a", *[""] * 200_000, "-b"),
        v4a("*** Update File: a", *["@@"] * 100_000, "-b"),
        v4a("*** Add File: a", *[""] * 200_000),
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n" + "\n" * 200_000,
        "diff --git " + "a" * 200_000 + " " + '"\\' * 50_000,
        "--- a/x\n" * 100_000 + "+++ b/x\n",
    ],
    ids=["empty lines", "headings", "empty lines of a new file", "empty lines behind", "long names", "headers"],
)
def test_hostile_patches_are_read_in_one_pass(text: str) -> None:
    """Long patches of one kind of line end in an answer or an error, without a second look at each line."""
    try:
        changes = parse_patch(text)
    except PatchError:
        return
    assert len(changes) == 1


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("Here it is:\n```diff\n", "```\nThat is all.\n"),
        ("apply_patch <<'EOF'\n", "EOF\n"),
        ("", v4a("*** Update File: b", "-x", "+y")),
        ("", "\n\n"),
    ],
)
def test_what_stands_around_a_patch_is_no_part_of_it(before: str, behind: str) -> None:
    """Fences, words, the shell around a patch, a second patch: the changes are found."""
    first, *more = parse_patch(before + v4a("*** Update File: a", "-1", "+2") + behind)

    assert (first.path, signs(first)) == ("a", ["-1", "+2"])
    assert [change.path for change in more] == (["b"] if "File: b" in behind else [])


@pytest.mark.parametrize(
    ("heading", "headings"),
    [
        ("@@", ()),
        ("@@ ... @@", ()),
        ("@@ … @@", ()),
        ("@@ -1,2 +1,2", ()),
        ("@@ -1 @@", ()),
        ("@@ def f(): @@", ("def f():",)),
        ("@@     def f():", ("    def f():",)),
    ],
)
def test_a_heading_without_words_names_nothing(heading: str, headings: tuple[str, ...]) -> None:
    """In both formats: only what can be a line of the file is looked for."""
    body = (heading, " x", "-1", "+2")

    assert only(v4a("*** Update File: a", *body)).hunks[0].headings == headings
    assert only("\n".join(["--- a/a", "+++ b/a", *body])).hunks[0].headings == headings


@pytest.mark.parametrize(
    ("numbers", "behind", "lines"),
    [
        ("@@ -1,9 +1,9 @@", "\n", ["-1", "+2", " x"]),
        ("@@ -1,9 +1,9 @@", "\n\n\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-1\n+2\n", ["-1", "+2", " x"]),
        ("@@ -1,3 +1,3 @@", "\n\n", ["-1", "+2", " x", " "]),
    ],
)
def test_empty_lines_behind_a_hunk_count_only_where_its_numbers_say_so(
    numbers: str, behind: str, lines: list[str]
) -> None:
    """Numbers that are wrong anyhow make nothing of the end of the text, or of the space before the next file."""
    first, *_ = parse_patch(f"--- a/a\n+++ b/a\n{numbers}\n-1\n+2\n x{behind}")

    assert signs(first) == lines
