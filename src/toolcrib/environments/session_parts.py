"""What the shell session of an environment is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from toolcrib.core.environments import BackendPath, Ended, Execution, FileSlice, FileStatus, LeftBehind
from toolcrib.environments.background import LogWatcher
from toolcrib.environments.process_tree import ProcessTree

MAX_LOG_BYTES = 64 * 1024 * 1024


class RunningCommand(Execution, Protocol):
    """What an execution of ours can do beyond the port."""

    def when_ended(self, callback: Callable[[Ended], None]) -> None: ...


class Files(Protocol):
    """The files of a place; see Environment."""

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes: ...

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice: ...

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None: ...

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None: ...

    async def remove_folder(self, path: BackendPath) -> None: ...

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None: ...

    async def make_link(self, path: BackendPath, target: str) -> None: ...

    async def list_folder(self, path: BackendPath) -> list[str]: ...

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None: ...

    async def upload(self, source: Path, target: BackendPath) -> None: ...

    async def download(self, source: BackendPath, target: Path) -> None: ...


class SessionOptions(Struct, frozen=True, kw_only=True):
    """How the shell session of an environment begins."""

    cwd: str = ""
    """The folder it starts in; empty means the home of the place's user."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Exported on top of what the place has."""
    profile_files: Sequence[str] = ()
    """Files of the place that are read once when it opens, as a login shell would; `~/` is the home there."""
    secret_names: str = ""
    """A regular expression: variables of these names that the profile exports are dropped."""
    max_log_bytes: int = MAX_LOG_BYTES
    """A background command's log is emptied when it grows beyond this; what was printed has been heard by then."""
    folder: str = ""
    """Where the session keeps its state in the place; made up when empty."""


class PlaceParts(Struct):
    """What an engine does better than programs inside the place would; see the local engine."""

    tree: ProcessTree
    watcher: LogWatcher
    files: Files
    left_behind: Callable[[str, int | None], list[LeftBehind]] | None = None
