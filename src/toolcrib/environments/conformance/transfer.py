"""Checks of files: read, written, looked at, copied in and out of the place."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from toolcrib.core.environments import BackendPath, FileStatus
from toolcrib.environments.conformance.check import Trial, check, equal, expect, raises

NAMES = ("plain.txt", "two words", 'it\'s "x"', "line\nbreak", "-dash", "ünï☃", "$x;`y`", "back\\slash")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@check("files-read-and-written")
async def files_read_and_written(trial: Trial) -> None:
    """Files of any name and content are written and read as they are; folders above them are made."""
    data = bytes(range(256)) * 5
    async with trial.folder() as folder:
        for name in NAMES:
            path = BackendPath(f"{folder}/new/deep er/{name}")
            await trial.environment.write_file(path, data)
            equal(f"content of {name!r}", await trial.environment.read_file(path), data)
            await trial.prints(f"cat -- {quoted(path)}", data)
        large = os.urandom(3_000_000)
        await trial.environment.write_file(BackendPath(f"{folder}/large"), large)
        expect(
            await trial.environment.read_file(BackendPath(f"{folder}/large")) == large,
            "3 MB to come back",
            "other bytes",
        )
        await trial.environment.write_file(BackendPath(f"{folder}/empty"), b"")
        equal("an empty file", await trial.environment.read_file(BackendPath(f"{folder}/empty")), b"")


@check("files-relative")
async def files_relative(trial: Trial) -> None:
    """Relative paths of files start at the session's folder."""
    async with trial.folder() as folder:
        await trial.does(f"cd {folder}")
        await trial.environment.write_file(BackendPath("here/file"), b"relative")
        await trial.prints(f"cat {folder}/here/file", "relative")
        equal("content", await trial.environment.read_file(BackendPath("here/file")), b"relative")


@check("files-keep-mode-and-owner")
async def files_keep_mode_and_owner(trial: Trial) -> None:
    """Writing a file keeps the mode and owner of the old one, and replaces it in one step; a mode can be given."""
    async with trial.folder() as folder:
        path = BackendPath(f"{folder}/old")
        await trial.does(f"echo old > {path}; chmod 751 {path}; chown 12345:12345 {path} 2>/dev/null; :")
        before = (await trial.run(f"stat -c '%a %u %g' {path} 2>/dev/null || ls -n {path} | cut -d' ' -f1-4")).text
        await trial.does(f"ln -s old {folder}/link; exec 3<{path}")
        await trial.environment.write_file(path, b"new")
        after = (await trial.run(f"stat -c '%a %u %g' {path} 2>/dev/null || ls -n {path} | cut -d' ' -f1-4")).text
        equal("mode and owner", after, before)
        await trial.environment.write_file(BackendPath(f"{folder}/link"), b"through")
        await trial.prints(f"cat {path}; [ -L {folder}/link ] && echo ' link'", "through link\n")
        await trial.environment.write_file(BackendPath(f"{folder}/private"), b"x", mode=0o600)
        status = await trial.environment.status(BackendPath(f"{folder}/private"))
        equal("status", _short_status(status), ("file", 1, 0o600))
        await trial.prints(f"ls -A {folder} | sort | tr '\\n' ' '", "link old private ")


@check("files-refused")
async def files_refused(trial: Trial) -> None:
    """What cannot be read or written raises the error that says why."""
    async with trial.folder() as folder:
        await trial.does(f"mkdir {folder}/sub; mkfifo {folder}/pipe; echo x > {folder}/file")
        await raises(FileNotFoundError, trial.environment.read_file(BackendPath(f"{folder}/missing")))
        await raises(IsADirectoryError, trial.environment.read_file(BackendPath(f"{folder}/sub")))
        await raises(IsADirectoryError, trial.environment.write_file(BackendPath(f"{folder}/sub"), b""))
        await raises(OSError, trial.environment.write_file(BackendPath(f"{folder}/file/below"), b""))
        await raises(OSError, trial.environment.read_file(BackendPath(f"{folder}/pipe")))
        equal("status of nothing", await trial.environment.status(BackendPath(f"{folder}/missing")), None)
        for name, kind in (("sub", "folder"), ("file", "file"), ("pipe", "other")):
            status = await trial.environment.status(BackendPath(f"{folder}/{name}"))
            equal(f"kind of {name!r}", status.kind if status else None, kind)
        if (await trial.run("id -u")).text.strip() != "0":
            await trial.does(f"echo s > {folder}/closed; chmod 000 {folder}/closed")
            await raises(PermissionError, trial.environment.read_file(BackendPath(f"{folder}/closed")))


def _short_status(status: FileStatus | None) -> tuple[str, int, int] | None:
    return None if status is None else (status.kind, status.size, status.mode)


def _make_file(path: Path, content: bytes, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode)


def _make_tree(root: Path) -> None:
    for name in NAMES:
        (root / "sub" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sub" / name).write_bytes(name.encode() + b"\0\xff")
    _make_file(root / "tool", os.urandom(400_000), 0o755)
    _make_file(root / "key", b"k", 0o600)
    (root / "link").symlink_to("tool")
    (root / "empty").mkdir(mode=0o711)


def _snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in root.rglob("*"):
        mode = 0 if path.is_symlink() else stat.S_IMODE(path.stat().st_mode)
        content = b"" if path.is_dir() else bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        found[str(path.relative_to(root))] = (mode, content)
    return found


@check("folders-both-ways")
async def folders_both_ways(trial: Trial) -> None:
    """A folder that was copied in and out again is the same: names, contents, modes, links; inside the user owns it."""
    with tempfile.TemporaryDirectory(prefix="toolcrib-check-") as name:
        source, back = Path(name, "source"), Path(name, "back")
        _make_tree(source)
        async with trial.folder() as folder:
            await trial.environment.upload(source, BackendPath(f"{folder}/tree"))
            await trial.prints(
                f"cd {folder}/tree && [ -x tool ] && [ -O tool ] && [ -L link ] && cat -- sub/-dash", b"-dash\0\xff"
            )
            await trial.does("cd /")
            await trial.environment.download(BackendPath(f"{folder}/tree"), back)
        equal("the folder", _snapshot(back), _snapshot(source))


@check("single-files-both-ways")
async def single_files_both_ways(trial: Trial) -> None:
    """A single file is copied to exactly the path that was named, its mode kept both ways."""
    with tempfile.TemporaryDirectory(prefix="toolcrib-check-") as name:
        source, back = Path(name, "source"), Path(name, "new", "back")
        content = os.urandom(2_000_000)
        _make_file(source, content, 0o750)
        async with trial.folder() as folder:
            await trial.environment.upload(source, BackendPath(f"{folder}/a b/copy"))
            await trial.environment.download(BackendPath(f"{folder}/a b/copy"), back)
            await raises(FileNotFoundError, trial.environment.download(BackendPath(f"{folder}/none"), Path(name, "x")))
            status = await trial.environment.status(BackendPath(f"{folder}/a b/copy"))
        equal("status inside", _short_status(status), ("file", 2_000_000, 0o750))
        expect(_snapshot(back.parent)["back"] == (0o750, content), "the same mode and content", "others")


CHECKS = (
    files_read_and_written,
    files_relative,
    files_keep_mode_and_owner,
    files_refused,
    folders_both_ways,
    single_files_both_ways,
)
