"""Checks of files: read, write, inspect, copy in and out, and what the file tools need."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from toolcrib.core.environments import BackendPath, FileStatus
from toolcrib.core.errors import PathChanged
from toolcrib.environments.conformance.check import CheckContext, OutputRecorder, check, equal, expect, raises

NAMES = ("plain.txt", "two words", 'it\'s "x"', "line\nbreak", "-dash", "ünï☃", "$x;`y`", "back\\slash")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@check("files-read-and-written")
async def files_read_and_written(ctx: CheckContext) -> None:
    """Files of any name and content are written and read unchanged; parent folders are created."""
    data = bytes(range(256)) * 5
    async with ctx.folder() as folder:
        for name in NAMES:
            path = BackendPath(f"{folder}/new/deep er/{name}")
            await ctx.environment.write_file(path, data)
            equal(f"content of {name!r}", await ctx.environment.read_file(path), data)
            await ctx.expect_output(f"cat -- {quoted(path)}", data)
        large = os.urandom(3_000_000)
        await ctx.environment.write_file(BackendPath(f"{folder}/large"), large)
        expect(
            await ctx.environment.read_file(BackendPath(f"{folder}/large")) == large,
            "3 MB to come back",
            "other bytes",
        )
        await ctx.environment.write_file(BackendPath(f"{folder}/empty"), b"")
        equal("an empty file", await ctx.environment.read_file(BackendPath(f"{folder}/empty")), b"")


@check("files-relative")
async def files_relative(ctx: CheckContext) -> None:
    """Relative paths of files start at the session's folder."""
    async with ctx.folder() as folder:
        await ctx.run_ok(f"cd {folder}")
        await ctx.environment.write_file(BackendPath("here/file"), b"relative")
        await ctx.expect_output(f"cat {folder}/here/file", "relative")
        equal("content", await ctx.environment.read_file(BackendPath("here/file")), b"relative")


@check("files-keep-mode-and-owner")
async def files_keep_mode_and_owner(ctx: CheckContext) -> None:
    """Writing a file keeps the mode and owner of the old one and is atomic; a mode can be given."""
    async with ctx.folder() as folder:
        path = BackendPath(f"{folder}/old")
        await ctx.run_ok(f"echo old > {path}; chmod 751 {path}; chown 12345:12345 {path} 2>/dev/null; :")
        before = (await ctx.run(f"stat -c '%a %u %g' {path} 2>/dev/null || ls -n {path} | cut -d' ' -f1-4")).text
        await ctx.run_ok(f"ln -s old {folder}/link; exec 3<{path}")
        await ctx.environment.write_file(path, b"new")
        after = (await ctx.run(f"stat -c '%a %u %g' {path} 2>/dev/null || ls -n {path} | cut -d' ' -f1-4")).text
        equal("mode and owner", after, before)
        await ctx.environment.write_file(BackendPath(f"{folder}/link"), b"through")
        await ctx.expect_output(f"cat {path}; [ -L {folder}/link ] && echo ' link'", "through link\n")
        await ctx.environment.write_file(BackendPath(f"{folder}/private"), b"x", mode=0o600)
        status = await ctx.environment.status(BackendPath(f"{folder}/private"))
        equal("status", _short_status(status), ("file", 1, 0o600))
        await ctx.expect_output(f"ls -A {folder} | sort | tr '\\n' ' '", "link old private ")


@check("files-refused")
async def files_refused(ctx: CheckContext) -> None:
    """A path that cannot be read or written raises the matching error."""
    async with ctx.folder() as folder:
        await ctx.run_ok(f"mkdir {folder}/sub; mkfifo {folder}/pipe; echo x > {folder}/file")
        await raises(FileNotFoundError, ctx.environment.read_file(BackendPath(f"{folder}/missing")))
        await raises(IsADirectoryError, ctx.environment.read_file(BackendPath(f"{folder}/sub")))
        await raises(IsADirectoryError, ctx.environment.write_file(BackendPath(f"{folder}/sub"), b""))
        await raises(OSError, ctx.environment.write_file(BackendPath(f"{folder}/file/below"), b""))
        await raises(OSError, ctx.environment.read_file(BackendPath(f"{folder}/pipe")))
        equal("status of nothing", await ctx.environment.status(BackendPath(f"{folder}/missing")), None)
        for name, kind in (("sub", "folder"), ("file", "file"), ("pipe", "other")):
            status = await ctx.environment.status(BackendPath(f"{folder}/{name}"))
            equal(f"kind of {name!r}", status.kind if status else None, kind)
        if (await ctx.run("id -u")).text.strip() != "0":
            await ctx.run_ok(f"echo s > {folder}/closed; chmod 000 {folder}/closed")
            await raises(PermissionError, ctx.environment.read_file(BackendPath(f"{folder}/closed")))


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
async def folders_both_ways(ctx: CheckContext) -> None:
    """A folder copied in and out again is unchanged: names, contents, modes, links; the user inside owns it."""
    with tempfile.TemporaryDirectory(prefix="toolcrib-check-") as name:
        source, back = Path(name, "source"), Path(name, "back")
        _make_tree(source)
        async with ctx.folder() as folder:
            await ctx.environment.upload(source, BackendPath(f"{folder}/tree"))
            await ctx.expect_output(
                f"cd {folder}/tree && [ -x tool ] && [ -O tool ] && [ -L link ] && cat -- sub/-dash", b"-dash\0\xff"
            )
            await ctx.run_ok("cd /")
            await ctx.environment.download(BackendPath(f"{folder}/tree"), back)
        equal("the folder", _snapshot(back), _snapshot(source))


@check("single-files-both-ways")
async def single_files_both_ways(ctx: CheckContext) -> None:
    """A single file is copied to exactly the given path, and keeps its mode both ways."""
    with tempfile.TemporaryDirectory(prefix="toolcrib-check-") as name:
        source, back = Path(name, "source"), Path(name, "new", "back")
        content = os.urandom(2_000_000)
        _make_file(source, content, 0o750)
        async with ctx.folder() as folder:
            await ctx.environment.upload(source, BackendPath(f"{folder}/a b/copy"))
            await ctx.environment.download(BackendPath(f"{folder}/a b/copy"), back)
            await raises(FileNotFoundError, ctx.environment.download(BackendPath(f"{folder}/none"), Path(name, "x")))
            status = await ctx.environment.status(BackendPath(f"{folder}/a b/copy"))
        equal("status inside", _short_status(status), ("file", 2_000_000, 0o750))
        expect(_snapshot(back.parent)["back"] == (0o750, content), "the same mode and content", "others")


TRANSFER_CHECKS = (
    files_read_and_written,
    files_relative,
    files_keep_mode_and_owner,
    files_refused,
    folders_both_ways,
    single_files_both_ways,
)


ODD_NAMES = (*NAMES, "ends\n", "caf\udce9 \udcff")
"""Including one that is not UTF-8, as Python writes it."""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@check("lines-of-files")
async def lines_of_files(ctx: CheckContext) -> None:
    """Lines are read from anywhere in a file, no more than requested, with whether the file ends there."""
    environment = ctx.environment
    async with ctx.folder() as folder:
        path = BackendPath(f"{folder}/lines")
        await environment.write_file(path, b"one\r\ntwo\n\n\xff\0four\nfive")
        for first, count, max_bytes, data, at_end in (
            (1, 2, 1000, b"one\r\ntwo\n", False),
            (3, 2, 1000, b"\n\xff\0four\n", False),
            (4, 2, 1000, b"\xff\0four\nfive", True),
            (5, 1, 1000, b"five", True),
            (6, 5, 1000, b"", True),
            (1, 5, 1000, b"one\r\ntwo\n\n\xff\0four\nfive", True),
            (2, 4, 6, b"two\n\n\xff", False),
            (5, 1, 4, b"five", True),
        ):
            found = await environment.read_lines(path, first=first, count=count, max_bytes=max_bytes)
            equal(f"lines from {first}", (found.data, found.first, found.at_end), (data, first, at_end))
            expect(found.total_lines in (5, None), "5 lines in all", found.total_lines)
            equal("size", found.status.size, 21)
        await environment.write_file(path, b"")
        found = await environment.read_lines(path, first=1, count=5, max_bytes=10)
        equal("an empty file", (found.data, found.at_end), (b"", True))
        await environment.write_file(path, b"".join(b"%d\n" % number for number in range(1, 200_001)))
        found = await environment.read_lines(path, first=150_000, count=2, max_bytes=100)
        equal("lines far inside", (found.data, found.at_end), (b"150000\n150001\n", False))


@check("files-of-odd-names")
async def files_of_odd_names(ctx: CheckContext) -> None:
    """Names with quotes, newlines, leading dashes and invalid UTF-8 work like any other."""
    environment = ctx.environment
    async with ctx.folder() as folder:
        for name in ODD_NAMES:
            path = BackendPath(f"{folder}/{name}")
            await environment.write_file(path, b"content", expected="", plain=True)
            equal(f"content of {name!r}", await environment.read_file(path, plain=True), b"content")
            status = await environment.status(path)
            equal(f"real path of {name!r}", status and status.real, path)
        equal("names", await environment.list_folder(BackendPath(folder)), sorted(ODD_NAMES))
        for name in ODD_NAMES:
            await environment.remove_file(BackendPath(f"{folder}/{name}"), expected=_digest(b"content"), plain=True)
        equal("names after all", await environment.list_folder(BackendPath(folder)), [])


@check("files-expected")
async def files_expected(ctx: CheckContext) -> None:
    """A file whose content is not the expected one is neither overwritten nor removed."""
    environment = ctx.environment
    async with ctx.folder() as folder:
        path = BackendPath(f"{folder}/file")
        await raises(PathChanged, environment.write_file(path, b"new", expected=_digest(b"old")))
        await environment.write_file(path, b"old", expected="")
        await raises(PathChanged, environment.write_file(path, b"new", expected=""))
        await raises(PathChanged, environment.write_file(path, b"new", expected=_digest(b"older")))
        await raises(PathChanged, environment.remove_file(path, expected=_digest(b"older")))
        equal("content", await environment.read_file(path), b"old")
        await environment.write_file(path, b"new", expected=_digest(b"old"))
        equal("content", await environment.read_file(path), b"new")
        await environment.remove_file(path, expected=_digest(b"new"))
        equal("what is left", await environment.list_folder(BackendPath(folder)), [])


@check("files-behind-links")
async def files_behind_links(ctx: CheckContext) -> None:
    """With `plain`, a link in a path or at its end is refused, and nothing is done."""
    environment = ctx.environment
    async with ctx.folder() as folder:
        await ctx.run_ok(
            f"cd {folder} && mkdir -p real/sub && echo x > real/sub/file && ln -s real link && "
            "ln -s file real/sub/end && ln -s /nowhere dangling && cd /"
        )
        for name in ("link/sub/file", "real/sub/end"):
            path = BackendPath(f"{folder}/{name}")
            await raises(PathChanged, environment.read_file(path, plain=True))
            await raises(PathChanged, environment.read_lines(path, first=1, count=1, max_bytes=10, plain=True))
            await raises(PathChanged, environment.write_file(path, b"new", plain=True))
            equal(f"what is behind {name!r}", await environment.read_file(path), b"x\n")
            status = await environment.status(path)
            equal(f"real path of {name!r}", status and status.real, f"{folder}/real/sub/file")
        await raises(PathChanged, environment.write_file(BackendPath(f"{folder}/link/new/file"), b"", plain=True))
        await raises(PathChanged, environment.write_file(BackendPath(f"{folder}/dangling"), b"", plain=True))
        await raises(PathChanged, environment.remove_file(BackendPath(f"{folder}/link/sub/file"), plain=True))
        equal("names", await environment.list_folder(BackendPath(f"{folder}/link/sub")), ["end", "file"])
        await environment.write_file(BackendPath(f"{folder}/real/new/er/file"), b"y", plain=True)
        equal("a new file", await environment.read_file(BackendPath(f"{folder}/link/new/er/file")), b"y")


@check("links-and-folders")
async def links_and_folders(ctx: CheckContext) -> None:
    """Links are created, inspected, replaced and removed as links; folders are created, and removed if empty."""
    environment = ctx.environment
    async with ctx.folder() as folder:
        link, sub = BackendPath(f"{folder}/made/link"), BackendPath(f"{folder}/a/b c")
        for target in ("file", "../a/b c", "no\nwhere\n", "-dash"):
            await environment.make_link(link, target)
            status = await environment.status(link, follow_links=False)
            equal("a link", status and (status.kind, status.link, status.real), ("link", target, link))
        equal("what a link to nothing is", await environment.status(link), None)
        await environment.make_folder(sub, mode=0o750)
        await environment.make_folder(sub, mode=0o700)
        status = await environment.status(sub)
        equal("a folder", status and (status.kind, status.mode, status.real), ("folder", 0o750, sub))
        await raises(IsADirectoryError, environment.remove_file(sub))
        await raises(IsADirectoryError, environment.make_link(sub, "x"))
        await raises(OSError, environment.remove_folder(BackendPath(f"{folder}/a")))
        await environment.make_link(link, "../a/b c")
        await environment.remove_file(link)
        await environment.remove_folder(sub)
        await raises(FileNotFoundError, environment.remove_file(link))
        await raises(FileNotFoundError, environment.list_folder(sub))
        equal("what is left", await environment.list_folder(BackendPath(folder)), ["a", "made"])
        await ctx.run_ok(f"echo x > {quoted(str(sub))}")
        await raises(FileExistsError, environment.make_folder(sub))
        await raises(NotADirectoryError, environment.list_folder(sub))


@check("files-stamped")
async def files_stamped(ctx: CheckContext) -> None:
    """If an environment stamps files, the stamp of a file changes when it is replaced, and only then."""
    environment = ctx.environment
    async with ctx.folder() as folder:
        path = BackendPath(f"{folder}/file")
        await environment.write_file(path, b"one")
        first, again = await environment.status(path), await environment.status(path)
        equal("the stamp of an unchanged file", again and again.stamp, first and first.stamp)
        part = await environment.read_lines(path, first=1, count=1, max_bytes=10)
        equal("the stamp when it is read", part.status.stamp, first and first.stamp)
        await environment.write_file(path, b"two!")
        changed = await environment.status(path)
        expect(
            not (first and first.stamp) or (changed is not None and first.stamp != changed.stamp),
            "another stamp after a write",
            changed,
        )


@check("programs-beside-the-session")
async def programs_beside_the_session(ctx: CheckContext) -> None:
    """A program outside the session starts, reads its input, and reports its exit code."""
    printed = OutputRecorder()
    argv = ["/bin/sh", "-c", 'read -r line; printf "%s|%s" "$line" "$1"; exit 7', "sh", "a b"]
    process = await ctx.environment.spawn(argv, on_output=printed)
    try:
        await process.write(b"hello\n")
        await process.close_input()
        equal("exit code", await process.wait(), 7)
        await printed.wait_for(b"hello|a b")
    finally:
        await process.abandon()


@check("programs-that-read-nothing")
async def programs_that_read_nothing(ctx: CheckContext) -> None:
    """A program that ends before it has read its input reports its output and exit code all the same."""
    argv = ["/bin/sh", "-c", "echo early; exit 5"]
    for size in (1, 5, 300_000) * 3:
        printed = OutputRecorder()
        process = await ctx.environment.spawn(argv, on_output=printed)
        try:
            with contextlib.suppress(BrokenPipeError):
                await process.write(b"x" * size)
            await process.close_input()
            equal("exit code", await process.wait(), 5)
            equal("output", bytes(printed.data), b"early\n")
        finally:
            await process.abandon()
    async with ctx.folder() as folder:
        for size in (1, 300_000):
            await raises(IsADirectoryError, ctx.environment.write_file(BackendPath(folder), b"x" * size))


@check("nothing-waits-for-pipes")
async def nothing_waits_for_pipes(ctx: CheckContext) -> None:
    """Pipes and devices are never opened, so that nothing blocks on their other end."""
    environment = ctx.environment
    async with ctx.folder() as folder:
        pipe = BackendPath(f"{folder}/pipe")
        await ctx.run_ok(f"mkfifo {pipe} && ln -s pipe {folder}/link")
        for path in (pipe, BackendPath(f"{folder}/link"), BackendPath("/dev/null")):
            await raises(OSError, environment.read_file(path))
            await raises(OSError, environment.read_lines(path, first=1, count=1, max_bytes=10))
            await raises(OSError, environment.write_file(path, b"x"))
        status = await environment.status(pipe)
        equal("kind", status and status.kind, "other")
        await environment.remove_file(pipe)


EDITING_CHECKS = (
    lines_of_files,
    files_of_odd_names,
    files_expected,
    files_behind_links,
    links_and_folders,
    files_stamped,
    programs_beside_the_session,
    programs_that_read_nothing,
    nothing_waits_for_pipes,
)
