"""From the path that a model writes to the effect, and from the effect to the file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolcrib.core.environments import BackendPath, EnvironmentSpec, ExecutionTarget
from toolcrib.core.errors import PathChanged, UsageError
from toolcrib.core.types import Effect
from toolcrib.environments.backends.local import LocalEngine
from toolcrib.environments.shell import SessionOptions, ShellEnvironment
from toolcrib.files.paths import target_of, target_path


class OtherMachine(LocalEngine):
    """This machine, as if it were another one: files go by programs."""

    kind = "elsewhere"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[ShellEnvironment]:
    work = tmp_path / "work"
    work.mkdir()
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environment = ShellEnvironment(OtherMachine(environ), SessionOptions(cwd=str(work)))
    await environment.open()
    yield environment
    await environment.close()


def here(folder: Path | str) -> ExecutionTarget:
    spec = EnvironmentSpec(backend="local", session="s")
    return ExecutionTarget(spec=spec, folder=str(folder), isolated=False, is_here=True)


def elsewhere(folder: str = "") -> ExecutionTarget:
    spec = EnvironmentSpec(backend="ssh", session="s", cwd=folder)
    return ExecutionTarget(spec=spec, folder=folder, isolated=False, is_here=False)


@pytest.mark.parametrize("path", ["", "   ", "a\0b", "half \ud800"])
def test_what_can_be_no_path_is_refused(path: str) -> None:
    """An empty path, a zero byte and half a character are errors that say so, in every place."""
    for where in (here("/"), elsewhere("/w")):
        with pytest.raises(UsageError, match="path"):
            target_path("read", path, where)


def test_on_this_machine_an_effect_names_the_real_path(tmp_path: Path) -> None:
    """Links are followed and dots are gone, so that what is judged is what is touched."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    where = here(tmp_path)

    assert target_path("read", "link/file", where) == str(tmp_path / "real/file")
    assert target_path("write", "link/../other", where) == str(tmp_path / "other")
    assert target_path("write", "./new//file", where) == str(tmp_path / "new/file")
    assert target_path("read", "/etc/../etc/hosts", where) == "/etc/hosts"
    assert target_path("read", "caf\udce9", where) == str(tmp_path / "caf\udce9")


def test_what_is_deleted_is_the_link_itself(tmp_path: Path) -> None:
    """Only the links above a link are followed when it is to be removed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/end").symlink_to("nowhere")

    assert target_path("delete", "link/end", here(tmp_path)) == str(tmp_path / "real/end")
    assert target_path("delete", "link", here(tmp_path)) == str(tmp_path / "link")


def test_the_home_stands_for_a_tilde(tmp_path: Path) -> None:
    """A tilde is the user's home here, and stays as it is for a place whose home is not known."""
    home = os.path.realpath(tmp_path / "user")

    assert target_path("read", "~/f", here("/")) == f"{home}/f"
    assert target_path("read", "~/f", elsewhere("/w")) == "~/f"


def test_elsewhere_the_text_is_made_absolute_where_that_is_known() -> None:
    """Nothing of this machine is looked at for a path of another one."""
    assert target_path("read", "a/b", elsewhere("/w")) == "/w/a/b"
    assert target_path("read", "/etc/hosts", elsewhere("/w")) == "/etc/hosts"
    assert target_path("read", "a/b", elsewhere()) == "a/b"


async def test_a_plain_path_of_another_place_is_acted_on_as_it_is(place: ShellEnvironment, tmp_path: Path) -> None:
    """Existing and new files are found where they were named, relative ones in the folder of the session."""
    (tmp_path / "work/file").touch()

    assert await target_of(Effect("read", f"{tmp_path}/work/file"), place) == f"{tmp_path}/work/file"
    assert await target_of(Effect("read", "file"), place) == f"{tmp_path}/work/file"
    assert await target_of(Effect("write", f"{tmp_path}/work/a/b/new"), place) == f"{tmp_path}/work/a/b/new"
    assert await target_of(Effect("read", f"{tmp_path}/work/./x/../file"), place) == f"{tmp_path}/work/file"
    assert await target_of(Effect("write", "~/new"), place) == f"{tmp_path}/new"


async def test_a_link_out_of_the_working_folder_is_named_and_not_followed(
    place: ShellEnvironment, tmp_path: Path
) -> None:
    """The error has the real path, so that the model can name it and the gate judge it; new files below count too."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").touch()
    (tmp_path / "work/link").symlink_to("../outside")
    workspace = str(tmp_path / "work")

    for name in ("link/file", "link/new/file", "link"):
        effect = Effect("write", f"{workspace}/{name}", workspace, "ssh", False, workspace)
        with pytest.raises(PathChanged, match=str(tmp_path / "outside")):
            await target_of(effect, place)


async def test_a_link_inside_the_working_folder_is_followed(place: ShellEnvironment, tmp_path: Path) -> None:
    """A link from the working folder to another part of it leads nowhere that was not agreed to, except to a secret."""
    (tmp_path / "work/releases").mkdir()
    (tmp_path / "work/current").symlink_to("releases")
    (tmp_path / "work/.env").touch()
    (tmp_path / "work/notes").symlink_to(".env")
    workspace = str(tmp_path / "work")

    followed = await target_of(Effect("read", f"{workspace}/current/x", "", "ssh", False, workspace), place)

    assert followed == f"{workspace}/releases/x"
    with pytest.raises(PathChanged, match=r"\.env"):
        await target_of(Effect("read", f"{workspace}/notes", "", "ssh", False, workspace), place)
    with pytest.raises(PathChanged, match="releases"):
        await target_of(Effect("read", f"{workspace}/current/x", "", "ssh", False, ""), place)


async def test_a_working_folder_that_is_a_link_itself_is_no_trap(place: ShellEnvironment, tmp_path: Path) -> None:
    """Whoever named a working folder behind a link meant what is behind it, secrets included."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/.env").touch()
    (tmp_path / "named").symlink_to("real")
    workspace = str(tmp_path / "named")

    target = await target_of(Effect("read", f"{workspace}/.env", "", "ssh", False, workspace), place)

    assert target == BackendPath(str(tmp_path / "real/.env"))


def test_a_tilde_before_a_name_is_part_of_a_file_name(tmp_path: Path) -> None:
    """Of `~name` only a shell makes somebody's home."""
    assert target_path("read", "~root", here(tmp_path)) == str(tmp_path / "~root")
