"""Files of an environment: over a real engine on this machine, and directly."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcrib.core.environments import BackendPath, FileStatus, OnOutput, TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.files import BackendFiles, unpack
from toolcrib.environments.host_files import HostFiles
from toolcrib.environments.host_process import HostProcess, spawn_on_host

ODD_NAMES = ["a b", 'it\'s "quoted"', "line\nbreak\n", "-rf", "$HOME `id`", "ünï☃", "back\\slash", "*", ".hidden", "~"]
NOBODY = 65534


class HostEngine:
    """Programs of this machine, as an engine hands them out; noise stands before what they print."""

    kind = "host"
    isolated = False
    shell = "bash"
    shell_pool_size = 0
    temporary = BackendPath("/tmp")

    def __init__(self, *, noise: bytes = b"", prefix: Sequence[str] = ()) -> None:
        self.noise = noise
        self.prefix = prefix

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> HostProcess:
        if self.noise:
            on_output(self.noise)
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        return await spawn_on_host([*self.prefix, *argv], on_output=on_output, environ=environ, terminal=terminal)

    def address(self) -> Mapping[str, str]:
        return {}


@pytest.fixture(params=["inside", "direct"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> BackendFiles | HostFiles:
    def folder() -> BackendPath:
        return BackendPath(str(tmp_path))

    return BackendFiles(HostEngine(), folder) if request.param == "inside" else HostFiles(folder)


def inside(path: Path | str) -> BackendPath:
    return BackendPath(str(path))


def copies_in(folder: Path) -> list[str]:
    """The half-written files that a transfer left."""
    return [path.name for path in folder.rglob(".toolcrib-*")]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may look into; those of pytest are closed."""
    with tempfile.TemporaryDirectory(prefix="toolcrib-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_a_file_of_any_name_comes_back_as_it_was_written(
    files: BackendFiles | HostFiles, tmp_path: Path, name: str
) -> None:
    """Names with blanks, quotes, line breaks or leading dashes are names like any other, and so are relative ones."""
    relative = inside(f"./{name}")

    await files.write_file(relative, b"content\0\xff")

    assert (tmp_path / name).read_bytes() == b"content\0\xff"
    assert await files.read_file(inside(tmp_path / name)) == b"content\0\xff"
    assert await files.read_file(relative) == b"content\0\xff"
    status = await files.status(relative)
    assert status is not None
    assert (status.kind, status.size) == ("file", 9)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=3_000))
async def test_any_bytes_come_back(tmp_path: Path, data: bytes) -> None:
    """Content is never taken for something else, whatever bytes it has."""
    files = BackendFiles(HostEngine())
    path = inside(tmp_path / "any")

    await files.write_file(path, data)

    assert await files.read_file(path) == data


async def test_noise_of_the_shell_is_not_content(tmp_path: Path) -> None:
    """What a shell or a server says before the program runs is no part of a file."""
    (tmp_path / "f").write_bytes(b"clean")

    content = await BackendFiles(HostEngine(noise=b"Welcome!\nbash: warning: setlocale\n")).read_file(
        inside(tmp_path / "f")
    )

    assert content == b"clean"


async def test_large_content_comes_back(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """More than any pipe holds goes both ways."""
    data = os.urandom(5_000_000)

    await files.write_file(inside("deep/er/file"), data)

    assert (tmp_path / "deep/er/file").read_bytes() == data
    assert await files.read_file(inside("deep/er/file")) == data


async def test_refusals_are_the_errors_that_python_has(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """A missing file, a folder, and a file under a file raise what open() would raise, with the path."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(FileNotFoundError, match="nothing"):
        await files.read_file(inside("nothing"))
    with pytest.raises(IsADirectoryError, match="folder"):
        await files.read_file(inside("folder"))
    with pytest.raises(IsADirectoryError, match="folder"):
        await files.write_file(inside("folder"), b"")
    with pytest.raises(NotADirectoryError, match="file"):
        await files.read_file(inside("file/below"))
    with pytest.raises((NotADirectoryError, FileExistsError)):
        await files.write_file(inside("file/below"), b"")
    assert await files.status(inside("nothing")) is None
    assert await files.status(inside("file/below")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_what_is_closed_to_the_user_is_a_permission_error(public: Path) -> None:
    """A user of the environment reads and replaces only what he may."""
    files = BackendFiles(HostEngine(prefix=["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]))
    (public / "secret").write_text("s")
    (public / "secret").chmod(0o600)
    (public / "closed").mkdir(mode=0o700)

    for path in ("secret", "closed/below"):
        with pytest.raises(PermissionError):
            await files.read_file(inside(public / path))
    for path in ("secret", "closed/below", "new", "new-folder/file"):
        with pytest.raises(PermissionError):
            await files.write_file(inside(public / path), b"x")
    with pytest.raises(PermissionError):
        await files.status(inside(public / "closed/below"))
    assert (public / "secret").read_text() == "s"


FULL_DISK = """
import os, resource, signal, sys
from toolcrib.environments.host_paths import writer_of, replace_file
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    replace_file(sys.argv[1], writer_of(b"x" * 200_000))
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_can_only_be_filled_gets_its_content_back_when_there_is_no_room(public: Path) -> None:
    """In a folder that is closed to us the file itself is written to, and nobody is left with a part of each."""
    path = public / "f"
    path.write_text("old\n")
    path.chmod(0o666)

    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(NOBODY)], capture_output=True, text=True, check=True
    )

    assert done.stdout == "File too large\n"
    assert path.read_text() == "old\n"


async def test_an_old_file_keeps_mode_and_owner(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """Writing changes the content alone."""
    path = tmp_path / "script"
    path.write_text("old")
    path.chmod(0o751)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    before = path.stat()

    await files.write_file(inside(path), b"new")

    after = path.stat()
    assert path.read_text() == "new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert copies_in(tmp_path) == []


async def test_a_mode_can_be_given(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """A given mode holds for new files and for old ones."""
    await files.write_file(inside("key"), b"1", mode=0o600)
    assert mode_of(tmp_path / "key") == 0o600

    await files.write_file(inside("key"), b"2", mode=0o640)
    assert mode_of(tmp_path / "key") == 0o640


async def test_a_link_is_written_through(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """What a link points to is written; the link stays one."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")

    await files.write_file(inside("link"), b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


async def test_status_says_kind_size_and_mode(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """Files, folders and other things are told apart."""
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").chmod(0o644)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    file = await files.status(inside("file"))
    assert file is not None
    assert file == FileStatus(kind="file", size=5, mode=0o644, real=inside(tmp_path / "file"), stamp=file.stamp)
    assert file.stamp
    folder, pipe = await files.status(inside("folder")), await files.status(inside("pipe"))
    assert [found and found.kind for found in (folder, pipe)] == ["folder", "other"]
    with pytest.raises(OSError, match="neither a file nor a folder"):
        await files.read_file(inside("pipe"))


def make_tree(root: Path) -> None:
    for name in ODD_NAMES:
        (root / "sub folder").mkdir(parents=True, exist_ok=True)
        (root / "sub folder" / name).write_bytes(name.encode() + b"\0")
    (root / "run").write_bytes(os.urandom(1_000_001))
    (root / "run").chmod(0o755)
    (root / "private").write_bytes(b"")
    (root / "private").chmod(0o600)
    (root / "link").symlink_to("run")
    (root / "empty").mkdir()
    (root / "long").mkdir()
    (root / "long" / ("n" * 200)).write_text("long name")
    os.mkfifo(root / "pipe")
    (root / "locked").mkdir()
    (root / "locked" / "f").write_text("x")
    (root / "locked").chmod(0o555)
    root.chmod(0o750)


def snapshot(root: Path) -> dict[str, tuple[str, int, bytes]]:
    found = {}
    for path in [root, *root.rglob("*")]:
        name = str(path.relative_to(root))
        if path.is_fifo():
            continue  # not copied
        if path.is_symlink():
            found[name] = ("link", 0, bytes(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", mode_of(path), b"")
        else:
            found[name] = ("file", mode_of(path), path.read_bytes())
    return found


async def test_folders_go_in_and_come_back_whole(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """Names, contents, modes and links of a folder are the same after both ways."""
    source, away, back = tmp_path / "source", tmp_path / "x" / "away", tmp_path / "y" / "back"
    make_tree(source)

    await files.upload(source, inside(away))
    await files.download(inside(away), back)

    assert snapshot(away) == snapshot(source)
    assert snapshot(back) == snapshot(source)


async def test_a_folder_that_is_there_keeps_its_other_files(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """Copying onto a folder adds to it, both ways and twice, and leaves its mode alone."""
    source, there = tmp_path / "source", tmp_path / "there"
    source.mkdir()
    (source / "new").write_text("new")
    there.mkdir()
    (there / "old").write_text("old")
    there.chmod(0o711)
    (source / "link").symlink_to("new")

    await files.upload(source, inside(there))
    await files.upload(source, inside(there))
    await files.download(inside(source), there)

    assert sorted(snapshot(there)) == [".", "link", "new", "old"]
    assert mode_of(there) == 0o711


async def test_single_files_keep_their_modes_both_ways(files: BackendFiles | HostFiles, tmp_path: Path) -> None:
    """A file becomes exactly the path that was named, its mode kept."""
    source = tmp_path / "tool"
    source.write_bytes(os.urandom(700_000))
    source.chmod(0o755)

    await files.upload(source, inside("a/b/tool2"))
    await files.download(inside("a/b/tool2"), tmp_path / "c" / "tool3")

    for copy in (tmp_path / "a/b/tool2", tmp_path / "c/tool3"):
        assert copy.read_bytes() == source.read_bytes()
        assert mode_of(copy) == 0o755
    with pytest.raises(IsADirectoryError):
        await files.upload(source, inside("a"))
    with pytest.raises(IsADirectoryError):
        await files.download(inside("tool"), tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        await files.upload(tmp_path / "nothing", inside("z"))
    with pytest.raises(FileNotFoundError):
        await files.download(inside("nothing"), tmp_path / "z")
    assert copies_in(tmp_path) == []


@pytest.mark.parametrize("escape", ["../out", "/tmp/toolcrib-escaped", "in/../../out", "link/out"])
def test_nothing_is_unpacked_outside_of_its_folder(tmp_path: Path, escape: str) -> None:
    """Members that would land elsewhere are left out and named; all others are there."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as maker:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
        if escape.startswith("link"):
            link.linkname = ".."
            maker.addfile(link)
        for name in (escape, "fine"):
            member = tarfile.TarInfo(name)
            member.size = 4
            maker.addfile(member, io.BytesIO(b"text"))
    archive.seek(0)
    target = tmp_path / "target"

    if escape.startswith("/"):
        unpack(archive, target)
        assert not Path(escape).exists()
    else:
        with pytest.raises(OSError, match="points outside"):
            unpack(archive, target)

    assert (target / "fine").read_bytes() == b"text"
    assert not (tmp_path / "out").exists()


async def test_a_cut_answer_is_said_to_be_one(tmp_path: Path) -> None:
    """An environment that goes away in the middle is an error of the environment, never half a file."""
    (tmp_path / "f").write_bytes(b"x" * 10_000)
    cut = HostEngine(prefix=["sh", "-c", '"$@" | head -c 5000', "sh"])

    with pytest.raises(EnvironmentFailed, match="was lost"):
        await BackendFiles(cut).read_file(inside(tmp_path / "f"))


async def test_content_that_does_not_arrive_in_full_replaces_nothing(tmp_path: Path) -> None:
    """A connection that breaks while a file is written leaves the old one."""
    (tmp_path / "f").write_text("old")
    cut = HostEngine(prefix=["sh", "-c", 'head -c 100 | "$@"', "sh"])

    with pytest.raises(OSError, match="did not arrive completely"):
        await BackendFiles(cut).write_file(inside(tmp_path / "f"), b"n" * 10_000)

    assert (tmp_path / "f").read_text() == "old"
    assert copies_in(tmp_path) == []
