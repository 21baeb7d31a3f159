"""Which files of a workspace undo follows: those that git would not ignore.

The rules of git come from `.gitignore` files, from `.git/info/exclude` and from the user's own excludes file; files
that git tracks count in any case. Outside of repositories, a list of folders that can be rebuilt takes their place.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toolcrib.approval.git_repositories import common_folder, repository_of
from toolcrib.config.environment import child_environment, environment
from toolcrib.core.ignore_rules import IgnoreFile

MAX_RULE_BYTES = 4_000_000
GIT_SECONDS = 5.0
REBUILT = (
    "node_modules/ .venv/ venv/ __pycache__/ .tox/ .nox/ .mypy_cache/ .pytest_cache/ .ruff_cache/ .hypothesis/ "
    ".cache/ .gradle/ .terraform/ .next/ .hg/ .svn/ bower_components/ *.pyc .DS_Store"
)
"""What undo ignores outside of repositories, and never saves of what git ignores."""
# Nothing is locked or refreshed, and no program that a repository configures is started.
READ_ONLY = ("--no-optional-locks", "-c", "core.fsmonitor=false")
RuleFiles = tuple[tuple[bytes, bytes], ...]
"""The contents of ignore files, and what comes before a path of the workspace in each of them."""


class WorkspaceIgnore:
    """The rules that apply in one folder, the nearest first; `fixed` decides about everything."""

    __slots__ = ("_files", "fixed")

    def __init__(self, files: tuple[tuple[IgnoreFile, int, bytes], ...] = (), fixed: bool | None = None) -> None:
        self._files = files
        self.fixed = fixed

    def ignores(self, path: bytes, *, is_folder: bool) -> bool:
        """Whether a path, relative to the workspace, is ignored."""
        if self.fixed is not None:
            return self.fixed
        end = b"/" if is_folder else b""
        for rules, cut, lead in self._files:
            ignored = rules.decides(lead + path[cut:] + end)
            if ignored is not None:
                return ignored
        return False

    def inside(self, content: bytes, *, cut: int = 0, lead: bytes = b"") -> WorkspaceIgnore:
        """The rules in a folder with an ignore file of this content, `cut` bytes below the workspace."""
        rules = IgnoreFile(content) if content.strip() else None
        return WorkspaceIgnore(((rules, cut, lead), *self._files)) if rules else self


IGNORE_ALL, IGNORE_NOTHING = WorkspaceIgnore(fixed=True), WorkspaceIgnore(fixed=False)


def rules_of(files: RuleFiles) -> WorkspaceIgnore:
    rules = WorkspaceIgnore()
    for content, lead in files:
        rules = rules.inside(content, lead=lead)
    return rules


class GitWorkspace:
    """What git says about a workspace. Nothing is written, and only git itself is started."""

    def __init__(self, folder: str) -> None:
        self.top = next((str(one) for one in (Path(folder), *Path(folder).parents) if (one / ".git").exists()), "")
        """The folder of the repository; empty outside of one."""
        self._folder = folder
        self._data = repository_of(self.top) if self.top else ""
        self._excludes: bytes | None = None
        self._index: tuple[int, ...] = ()
        self._tracked: frozenset[bytes] = frozenset()

    def rule_files(self, more: Sequence[str]) -> RuleFiles:
        """The rules that apply to the workspace as a whole, the nearest last; `more` come from the settings."""
        own = "\n".join(more).encode(), b""
        if not self.top:
            return ("\n".join(REBUILT.split()).encode(), b""), own
        parts = [os.fsencode(one) for one in Path(self._folder).relative_to(self.top).parts]
        leads = [b"".join(part + b"/" for part in parts[depth:]) for depth in range(len(parts) + 1)]
        excluded = _read(f"{common_folder(self._data) or self._data}/info/exclude")
        above = [Path(self.top, *Path(self._folder).relative_to(self.top).parts[:depth]) for depth in range(len(parts))]
        nearer = [(_read(f"{one}/.gitignore"), lead) for one, lead in zip(above, leads, strict=False)]
        return (self._excludes_file(), leads[0]), (excluded, leads[0]), *nearer, own

    def tracked(self) -> frozenset[bytes]:
        """Files that git tracks although a rule ignores them, and the folders above them."""
        if not self.top:
            return frozenset()
        try:
            about = os.stat(f"{self._data}/index")  # noqa: PTH116 - quick
        except OSError:
            return frozenset()
        stamp = about.st_ino, about.st_size, about.st_mtime_ns
        if stamp != self._index:
            names = set[bytes]()
            for name in self._ask("ls-files", "--cached", "--ignored", "--exclude-standard", "-z").split(b"\0"):
                while name and name not in names:
                    names.add(name)
                    name = name.rpartition(b"/")[0]
            self._tracked, self._index = frozenset(names), stamp
        return self._tracked

    def head(self) -> tuple[str, str]:
        """What is checked out: the name of the branch or commit, and the commit as far as a file tells."""
        if not self.top:
            return "", ""
        head = _read(f"{self._data}/HEAD").decode(errors="replace").strip()
        ref = head.removeprefix("ref: ")
        if ref == head:
            return head[:12], head
        commit = _read(f"{common_folder(self._data) or self._data}/{ref}").decode(errors="replace").strip()
        return ref.removeprefix("refs/heads/"), commit

    def _excludes_file(self) -> bytes:
        if self._excludes is None:
            named = os.fsdecode(self._ask("config", "--type=path", "--get", "core.excludesFile")).rstrip("\n")
            fallback = Path(environment().get("XDG_CONFIG_HOME") or Path.home() / ".config") / "git" / "ignore"
            self._excludes = _read(named or str(fallback))
        return self._excludes

    def _ask(self, *words: str) -> bytes:
        """What git prints; empty if it fails."""
        try:
            done = subprocess.run(
                ["git", *READ_ONLY, "-C", self._folder, *words],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=GIT_SECONDS,
                env={**child_environment(environment()), "GIT_OPTIONAL_LOCKS": "0"},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return b""
        return done.stdout if done.returncode == 0 else b""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - also names that are not UTF-8
            return stream.read(MAX_RULE_BYTES)
    except OSError:
        return b""
