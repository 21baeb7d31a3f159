"""Which effects may stand beside each other."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.types import Effect
from toolcrib.dispatch.effects import CallGroup, access_set


def together(first, second, cwd=""):
    """Whether two calls with these effects may run at the same time, in either order."""
    answers = set()
    for one, other in ((first, second), (second, first)):
        group = CallGroup()
        group.add(access_set(one, cwd))
        answers.add(group.admits(access_set(other, cwd)))
    assert len(answers) == 1
    return answers.pop()


def read(path):
    return (Effect("read", str(path)),)


def write(path):
    return (Effect("write", str(path)),)


def delete(path):
    return (Effect("delete", str(path)),)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((), (), True),
        (None, (), False),
        (None, None, False),
        (read("/a"), read("/a"), True),
        (read("/a"), write("/a"), False),
        (write("/a"), write("/a"), False),
        (write("/a"), write("/b"), True),
        (write("/a/b"), read("/a"), False),
        (write("/a"), read("/a/b/c"), False),
        (delete("/a"), read("/a/b"), False),
        (write("/a/bc"), write("/a/b"), True),
        (write("/"), read("/anything"), False),
        (write("/a/../b"), read("/b"), False),
        (write("/a//b/."), read("/a/b"), False),
        (read("/a") + write("/b"), read("/b") + write("/c"), False),
        ((Effect("network", "x"),), (Effect("network", "x"),), True),
        ((Effect("exec", "ls"),), (), False),
        ((Effect("interactive"),), read("/a"), False),
        ((Effect("publish"),), (), False),
        ((Effect("spend"),), (), False),
        (read("/a\0"), (), False),
        (write("/a"), (Effect("write", "/a", backend="ssh"),), True),
        ((Effect("read", "b", "/a", "ssh"),), (Effect("write", "/a/b", "/", "ssh"),), False),
        ((Effect("read", "b", "/a", "ssh"),), (Effect("write", "/a/b", "/", "docker"),), True),
        ((Effect("read", "b", "/a"),), write("/a/b"), False),
    ],
)
def test_effects_that_may_stand_beside_each_other(first, second, expected):
    """Reads share; a write excludes whatever touches the same tree; some effects stand alone."""
    assert together(first, second) is expected


def test_one_file_under_several_names_is_one_file(tmp_path: Path):
    """Links, relative paths and detours lead to the same place."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "alias").symlink_to("file")
    cwd = str(tmp_path)
    target = write(tmp_path / "real" / "file")
    for spelling in ("real/file", "link/file", "./link/../real/file", "real/alias", str(tmp_path / "link" / "file")):
        assert not together(target, read(spelling), cwd)
    assert together(target, read("real/other"), cwd)


def test_a_tilde_is_the_home(tmp_path: Path, monkeypatch):
    """`~/x` and its full path are one file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not together(write("~/x"), read(tmp_path / "x"))


def test_a_group_that_holds_a_lone_call_stays_closed():
    """Nothing joins a call that must be alone."""
    group = CallGroup()
    group.add(access_set(None, ""))
    assert not group.admits(access_set((), ""))


PATHS = st.lists(st.sampled_from("ab"), max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(PATHS, PATHS)
def test_a_write_excludes_exactly_the_paths_above_and_below_it(one, other):
    """Two paths clash if one of them contains the other."""
    above = Path(one) in (Path(other), *Path(other).parents)
    below = Path(other) in (Path(one), *Path(one).parents)
    assert together(write("/nowhere" + one), write("/nowhere" + other)) is not (above or below)
