"""The files of another environment (docker, ssh …), as undo reads and restores them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from toolcrib.core.context import TerminalPort
from toolcrib.core.environments import BackendPath, Environment, EnvironmentSpec
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.undo.files import MISSING, FileState, Kind, LocalFiles, with_content
from toolcrib.undo.ignore import REBUILT

T = TypeVar("T")

KINDS: dict[str, Kind] = {"file": "file", "folder": "folder", "link": "link", "other": "special"}
CAN_BE_REACHED_AGAIN = frozenset({"ssh"})
"""Environments that outlive the process that used them."""
UNDO_SECONDS = 120.0
END = b"\0\4\0"
"""Printed last, to mark the output as complete."""
SURVEY = r"""
limit=$1 folders=$2; shift 2
real() {  # r: the folder, as far as it is there without links; the x keeps line breaks at the end of a name
    d=$1 rest=
    [ "$d" != "~" ] || d=$HOME
    until r=$(cd -P -- "${d:-/}" 2>/dev/null && pwd -P && printf x); do rest=/${d##*/}$rest d=${d%/*}; done
    r=${r%?x}
}
while [ "$folders" -gt 0 ]; do
    real "$1"; shift; folders=$((folders - 1))
    printf '%s\0%s\0' "${r%/}" "$rest"
done
count=$# IFS=
while [ "$count" -gt 0 ]; do
    real "$1"
    # Unquoted, so that the shell expands patterns.
    [ -n "$rest" ] || set -- "$@" "${r%/}"/$2
    shift 2; count=$((count - 2))
done
printf '\0\4'
tar -cf - "$@" 2>/dev/null | head -c "$limit"
printf '\0\4\0'
"""
"""Resolves the links of folders, and archives the named files in them."""
AFTER_FOLDERS = b"\0\4"
TREE = r"""
cd -- "$1" || exit; limit=$2; shift 2
find . -mindepth 1 -xdev \( "$@" -name .git \) -prune -o -printf '%y\0%m\0%s\0%i-%C@\0%l\0%P\0' 2>/dev/null |
    head -c "$limit"
printf '\0\4'; date +%s
printf '\0\4\0'
"""
"""Lists a folder with find of GNU, without what can be rebuilt; the time there comes last."""
REBUILT_NAMES = [word for name in REBUILT.split() for word in ("-name", name.rstrip("/"), "-o")]
MAX_TREE_FILES = 2_000
MAX_TREE_BYTES = 1_000_000
SETTLED_SECONDS = 3.0
"""A file that changed this recently may change again without another time."""
Fetched = tuple[FileState, bytes | None]


class RemoteFiles:
    """The files of one environment, with the methods of LocalFiles; fetches many at once, because all take a while.

    Called in a separate thread; the work runs on the environment's event loop.
    """

    def __init__(self, terminal: TerminalPort, spec: EnvironmentSpec, *, seconds: float = UNDO_SECONDS) -> None:
        self._terminal = terminal
        self._spec = spec
        self._seconds = seconds
        self._ends: float | None = None
        self._real: dict[str, str] = {}
        """Real paths, each resolved once, because every call takes a while."""

        self._fetched: dict[str, Fetched] = {}
        self._roots: tuple[str, ...] = ()

    def refresh(self) -> None:
        """Restart the time limit, and forget what was seen, because something has run since."""
        self._ends = None
        self._forget()

    def _forget(self) -> None:
        self._real.clear()
        self._fetched.clear()
        self._roots = ()

    def fetch(self, paths: Sequence[str], limit: int) -> None:
        wanted = [path for path in dict.fromkeys(paths) if not self._is_fetched(path)]
        if wanted:
            self._survey((), wanted, limit)

    def _survey(self, folders: Sequence[str], paths: Sequence[str], limit: int) -> None:
        parts = [os.path.normpath(path).rpartition("/") for path in paths]
        named = [(above, name) for above, _, name in parts if name]
        asked = list(dict.fromkeys([*folders, *(above or "/" for above, _ in named)]))
        words = [str(limit), str(len(asked)), *asked, *(word for pair in named for word in pair)]
        printed = self._run(lambda environment: _printed(environment, ["sh", "-c", SURVEY, "sh", *words]))
        told, _, archive = printed.partition(AFTER_FOLDERS)
        answers = [os.fsdecode(one) for one in told.split(b"\0")]
        for folder, real, missing in zip(asked, answers[::2], answers[1::2], strict=False):
            self._real[folder] = f"{real}{missing}" or "/"
            self._real[real or "/"] = real or "/"
            if missing:
                # Nothing exists there or below.
                self._roots = (*self._roots, f"{real}/{missing.split('/')[1]}")
        found = read_archive(archive)
        if found is not None:
            self._fetched.update(found)
            self._roots = (*self._roots, *(f"{self.real(above or '/').rstrip('/')}/{name}" for above, name in named))

    def _is_fetched(self, path: str) -> bool:
        return path in self._fetched or any(path == root or path.startswith(f"{root}/") for root in self._roots)

    def look(self, path: str) -> FileState:
        if self._is_fetched(path):
            return self._fetched[path][0] if path in self._fetched else MISSING
        about = self._run(lambda environment: environment.status(BackendPath(path), follow_links=False))
        if about is None:
            return MISSING
        kind = KINDS[about.kind]
        if kind == "file":
            return FileState(kind=kind, mode=about.mode, size=about.size, stamp=about.stamp)
        return FileState(kind=kind, mode=about.mode if kind == "folder" else 0, link=os.fsencode(about.link))

    def read(self, path: str, state: FileState, largest: float) -> tuple[FileState, bytes | None]:
        content = self._fetched[path][1] if path in self._fetched else None
        if content is None and state.size <= largest:
            with contextlib.suppress(OSError):
                content = self._run(lambda environment: environment.read_file(BackendPath(path), plain=True))
        if content is None or len(content) > largest:
            return replace(state, not_kept="it was too large or could not be read, so no copy was saved"), None
        return with_content(state, content), content

    def names(self, folder: str) -> list[str]:
        if self._is_fetched(folder):
            inside = f"{folder.rstrip('/')}/"
            below = (path[len(inside) :] for path in self._fetched if path.startswith(inside))
            return sorted(name for name in below if name and "/" not in name)
        return self._run(lambda environment: environment.list_folder(BackendPath(folder)))

    def real(self, path: str) -> str:
        if path not in self._real:
            self._real[path] = self._find_real(path)
        return self._real[path]

    def _find_real(self, path: str) -> str:
        if self._is_fetched(path) and self.look(path).kind != "link":
            above, _, name = path.rpartition("/")
            return f"{self.real(above or '/').rstrip('/')}/{name}"
        about = self._run(lambda environment: environment.status(BackendPath(path)))
        if about is not None and about.real:
            return str(about.real)
        above, _, name = os.path.normpath(path).rpartition("/")
        return f"{self.real(above).rstrip('/')}/{name}" if above and name else path

    def put(self, path: str, state: FileState, content: bytes) -> None:
        self._forget()
        where = BackendPath(path)
        if state.kind == "folder":
            self._run(lambda environment: environment.make_folder(where, mode=state.mode))
        elif state.kind == "link":
            self._run(lambda environment: environment.make_link(where, os.fsdecode(state.link)))
        else:
            self._run(lambda environment: environment.write_file(where, content, mode=state.mode, plain=True))

    def set_access(self, path: str, state: FileState) -> None:
        self._forget()
        if self._run(lambda environment: _exit_code(environment, ["chmod", f"{state.mode:o}", path])) != 0:
            raise OSError("its mode could not be set")

    def set_time(self, path: str, state: FileState) -> None:
        """Nothing to do: the environment has its own clock."""

    def sync(self) -> None:
        """Nothing to do: the environment syncs each file itself."""

    def move(self, path: str, to: str) -> None:
        raise OSError("files of this environment are not moved back")

    def remove(self, path: str) -> None:
        self._forget()
        kind = self.look(path).kind
        if kind == "folder":
            self._run(lambda environment: environment.remove_folder(BackendPath(path)))
        elif kind != "missing":
            self._run(lambda environment: environment.remove_file(BackendPath(path), plain=True))

    def address(self) -> Mapping[str, str]:
        return self._run(_address)

    def tree(self, root: str, known: Mapping[str, FileState], limit: int) -> dict[str, Fetched] | None:
        """What is in a folder, with the contents of files that are not known; None if there is too much to tell."""
        words = [root, str(MAX_TREE_BYTES), *REBUILT_NAMES]
        printed = self._run(lambda environment: _printed(environment, ["sh", "-c", TREE, "sh", *words]))
        listing, _, now = printed.rpartition(AFTER_FOLDERS)
        fields = listing.split(b"\0")
        if not now.strip() or len(listing) >= MAX_TREE_BYTES or len(fields) % 6 != 1:
            return None
        found: dict[str, FileState] = {}
        for kind, mode, size, stamp, link, name in zip(*[iter(fields[:-1])] * 6, strict=True):
            path = f"{root.rstrip('/')}/{os.fsdecode(name)}"
            found[path] = _listed(kind, int(mode, 8), int(size), os.fsdecode(stamp), link, float(now))
        if len(found) > MAX_TREE_FILES or sum(state.size for state in found.values()) > limit:
            return None
        same = {path for path, state in found.items() if path in known and _is_same(state, known[path])}
        self.fetch([path for path, state in found.items() if state.kind == "file" and path not in same], limit)
        read: dict[str, Fetched] = {}
        for path, state in found.items():
            if path in same:
                read[path] = replace(state, digest=known[path].digest), None
            elif state.kind == "file":
                taken, content = self.read(path, state, limit)
                read[path] = replace(taken, stamp=state.stamp), content
            else:
                read[path] = state, None
        return read

    def _run(self, work: Callable[[Environment], Awaitable[T]]) -> T:
        """Run some work; the time limit starts when the environment first responds."""

        async def bounded(environment: Environment) -> T:
            if self._ends is None:
                self._ends = time.monotonic() + self._seconds
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("it would have taken too long")
            async with asyncio.timeout(left):
                return await work(environment)

        try:
            return self._terminal.run(self._terminal.work_in(self._spec, bounded))
        except EnvironmentFailed as error:
            raise OSError(str(error)) from error


SnapshotFiles = LocalFiles | RemoteFiles


async def _address(environment: Environment) -> Mapping[str, str]:
    return environment.address()


async def _printed(environment: Environment, argv: list[str]) -> bytes:
    """What a program prints, up to the end mark."""
    output = bytearray()
    is_whole = asyncio.Event()

    def keep(data: bytes) -> None:
        output.extend(data)
        if output.endswith(END):
            is_whole.set()

    process = await environment.spawn(argv, on_output=keep)
    try:
        await process.close_input()
        await is_whole.wait()
    finally:
        await process.abandon()
    return bytes(output[: -len(END)])


def read_archive(archive: bytes) -> dict[str, Fetched] | None:
    """The paths in an archive, with the contents of files; None when it is cut short."""
    found: dict[str, Fetched] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for member in opened:
                found[f"/{member.name.strip('/')}"] = _fetched(opened, member)
            is_whole = opened.offset + 2 * tarfile.BLOCKSIZE <= len(archive)
    except tarfile.ReadError:
        # None of the paths exists, or this is not an archive.
        return {} if not archive.strip(b"\0") else None
    return found if is_whole else None


def _fetched(opened: tarfile.TarFile, member: tarfile.TarInfo) -> Fetched:
    mode = member.mode & 0o7777
    if member.isdir():
        return FileState(kind="folder", mode=mode), None
    if member.issym():
        return FileState(kind="link", link=os.fsencode(member.linkname)), None
    # In the archive, a second name of a file is a hard link to the first.
    source = opened.extractfile(member) if member.isreg() or member.islnk() else None
    if source is None:
        return FileState(kind="special"), None
    content = source.read()
    return FileState(kind="file", mode=mode, size=len(content)), content


def _listed(kind: bytes, mode: int, size: int, stamp: str, link: bytes, now: float) -> FileState:
    """One line of a listing; a file that has just changed has no stamp, so it is read again."""
    if kind == b"d":
        return FileState(kind="folder", mode=mode)
    if kind == b"l":
        return FileState(kind="link", link=link)
    if kind != b"f":
        return FileState(kind="special")
    changed = float(stamp.partition("-")[2] or now)
    is_settled = now - changed > SETTLED_SECONDS
    return FileState(kind="file", mode=mode, size=size, stamp=stamp if is_settled else "")


def _is_same(state: FileState, known: FileState) -> bool:
    return bool(state.stamp) and (state.stamp, state.size) == (known.stamp, known.size)


async def _exit_code(environment: Environment, argv: list[str]) -> int:
    process = await environment.spawn(argv, on_output=lambda _: None)
    return await process.wait()


def environment_as_json(spec: EnvironmentSpec, files: RemoteFiles) -> dict[str, Any]:
    """How the journal identifies an environment."""
    return {"spec": msgspec.to_builtins(spec), "address": dict(files.address())}


def reopen_environment(environment: Mapping[str, Any], terminal: TerminalPort | None) -> RemoteFiles:
    """The files of an environment in the journal; raises OSError with the reason when it cannot be reached."""
    spec = msgspec.convert(environment["spec"], EnvironmentSpec)
    where = f"the {spec.backend} environment that the call worked in"
    if terminal is None:
        raise OSError(f"{where} cannot be opened from here")
    if spec.backend not in CAN_BE_REACHED_AGAIN:
        opened = terminal.environment_of(spec.task or spec.session)
        if opened is None or dict(opened.address()) != environment.get("address"):
            raise OSError(f"{where} is gone, or belongs to another process; type /undo in the chat that it belongs to")
    return RemoteFiles(terminal, spec)
