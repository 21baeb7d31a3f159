"""The rules of ignore files decide as git does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.core.ignore_rules import IgnoreFile

FOLDERS = ("a", "a/b", "a/build", "build", "build/a", ".h", "a b", "é")
FILES = ("x.o", "a", "b.c", "build", ".x", "a b", "!x", "#x", "é.o", "[x]", "x.o.o")
PART = st.sampled_from(
    ["a", "b", "*", "**", "?", "*.o", "x.*", "build", ".h", "[a-b]", "[!a]", "a b", "é*", "\\!x", "\\#x", "[x]"]
)
RULE = st.builds(
    lambda negates, leads, parts, ends, rest: f"{negates}{leads}{'/'.join(parts)}{ends}{rest}",
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/", "**/"]),
    st.lists(PART, min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "/**", "/*"]),
    st.sampled_from(["", "", " ", "\\ ", "\r"]),
)
LINE = RULE | st.sampled_from(["", "# x.o", "!", "/", "[", "[z-a]", "\\", "***", "a**b", "**a"])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ignored")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for folder in FOLDERS:
        (root / folder).mkdir()
    for folder in ("", *FOLDERS):
        for name in FILES:
            if not (root / folder / name).exists():
                (root / folder / name).touch()
    return root


def tree(root: Path) -> list[str]:
    found = (path for path in sorted(root.rglob("*")) if path.name != ".gitignore")
    names = (f"{path.relative_to(root)}{'/' if path.is_dir() else ''}" for path in found)
    return [name for name in names if not name.startswith(".git/")]


def ignored_by_git(root: Path, paths: list[str]) -> set[str]:
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=", "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=root, input="\0".join(path.rstrip("/") for path in paths).encode(), capture_output=True, check=False,
    )  # fmt: skip
    return set(done.stdout.decode().split("\0")) - {""}


def ignored_by_us(rules: IgnoreFile, paths: list[str]) -> set[str]:
    """A walk: what is in an ignored folder is ignored, whatever other rules say."""
    found: set[str] = set()
    for path in paths:
        above = path.rstrip("/").rpartition("/")[0]
        if (above and f"{above}/" in found) or rules.decides(path.encode()):
            found.add(path)
    return found


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(LINE, min_size=1, max_size=4))
def test_any_rules_ignore_what_git_ignores(repository: Path, lines: list[str]) -> None:
    """Drawn rules over a tree of files and folders with odd names: the answer is that of `git check-ignore`."""
    content = "\n".join(lines).encode()
    (repository / ".gitignore").write_bytes(content)
    paths = tree(repository)

    ours = {path.rstrip("/") for path in ignored_by_us(IgnoreFile(content), paths)}
    assert ours == ignored_by_git(repository, paths)
