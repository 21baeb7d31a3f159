"""Which files of a workspace undo follows: those that git would not ignore.

The rules of git come from `.gitignore` files, from `.git/info/exclude` and from the user's own excludes file; files
that git tracks count in any case. Outside of repositories, a list of folders that can be rebuilt takes their place.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toolcrib.config.environment import child_environment, environment

GIT = b".git"
GITIGNORE = b".gitignore"
MAX_RULE_BYTES = 4_000_000
GIT_SECONDS = 5.0
REBUILT = (
    "node_modules/ .venv/ venv/ __pycache__/ .tox/ .nox/ .mypy_cache/ .pytest_cache/ .ruff_cache/ .hypothesis/ "
    ".cache/ .gradle/ .terraform/ .next/ .hg/ .svn/ bower_components/ *.pyc .DS_Store"
)
"""What undo ignores outside of repositories."""
# How pathspec writes "everything" and "every folder".
_WHOLE_TREE = {".": "(?s:.+)", "/": "(?s:.+/)"}
# Nothing is locked or refreshed, and no program that a repository configures is started.
READ_ONLY = ("--no-optional-locks", "-c", "core.fsmonitor=false")


class GitIgnoreFile:
    """The rules of one ignore file; paths are relative to its folder."""

    __slots__ = ("_expression", "_ignores")

    def __init__(self, lines: Sequence[str]) -> None:
        # Takes long to import, and most commands of a terminal need no rules.
        from pathspec.patterns.gitignore import GitIgnorePatternError, basic  # noqa: PLC0415

        rules: list[tuple[bool, str]] = []
        for line in lines:
            # git skips malformed rules, too.
            with contextlib.suppress(GitIgnorePatternError, re.error):
                rule = basic.GitIgnoreBasicPattern(line)
                if rule.include is not None and rule.regex is not None:
                    rules.insert(0, (rule.include, _whole(line, rule.regex.pattern)))
        self._ignores = [ignores for ignores, _ in rules]
        self._expression = re.compile("|".join(f"({pattern})" for _, pattern in rules)) if rules else None

    def decides(self, path: str) -> bool | None:
        """Whether the last rule that matches a path ignores it; None when none does. Folders end with a slash."""
        match = self._expression.fullmatch(path) if self._expression is not None else None
        return None if match is None or match.lastindex is None else self._ignores[match.lastindex - 1]


def _whole(line: str, pattern: str) -> str:
    """The expression for exactly the paths that a rule is about; those of pathspec match what is below them, too."""
    if pattern in _WHOLE_TREE:
        return _WHOLE_TREE[pattern]
    return f"{pattern}(?s:.+)" if line.rstrip().endswith("/**") else pattern


class WorkspaceIgnore:
    """The rules that apply in one folder, the nearest first; `fixed` decides about everything."""

    __slots__ = ("_files", "fixed", "key")

    def __init__(
        self, files: tuple[tuple[GitIgnoreFile, int, str], ...] = (), key: bytes = b"", fixed: bool | None = None
    ) -> None:
        self._files = files
        self.key = key
        self.fixed = fixed

    def ignores(self, path: bytes, *, is_folder: bool) -> bool:
        """Whether a path, relative to the workspace, is ignored."""
        if self.fixed is not None:
            return self.fixed
        text = os.fsdecode(path) + ("/" if is_folder else "")
        for rules, cut, lead in self._files:
            ignored = rules.decides(lead + text[cut:])
            if ignored is not None:
                return ignored
        return False

    def inside(self, content: bytes, *, cut: int = 0, lead: str = "") -> WorkspaceIgnore:
        """The rules in a folder with an ignore file of this content, `cut` characters below the workspace."""
        lines = content.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape").splitlines()
        key = hashlib.sha1(b"\0".join((self.key, str((cut, lead)).encode(errors="replace"), content)))
        return WorkspaceIgnore(((GitIgnoreFile(lines), cut, lead), *self._files), key.digest())

    def with_exceptions(self, paths: frozenset[bytes]) -> WorkspaceIgnore:
        """The same rules, identified together with the paths that they do not apply to."""
        if not paths:
            return self
        return WorkspaceIgnore(self._files, hashlib.sha1(b"\0".join((self.key, *sorted(paths)))).digest())


IGNORE_ALL = WorkspaceIgnore(key=b"all", fixed=True)
IGNORE_NOTHING = WorkspaceIgnore(key=b"nothing", fixed=False)


class GitWorkspace:
    """What git says about a workspace. Nothing is written, and only git itself is started."""

    def __init__(self, folder: str) -> None:
        self.top = next((str(one) for one in (Path(folder), *Path(folder).parents) if (one / ".git").exists()), "")
        """The folder of the repository; empty outside of one."""
        self._folder = folder
        self._data = _data_folder(self.top)
        self._excludes: bytes | None = None
        self._rules: tuple[tuple[tuple[bytes, str], ...], WorkspaceIgnore] | None = None
        self._index: tuple[int, ...] = ()
        self._tracked: frozenset[bytes] = frozenset()

    def rules(self, more: Sequence[str]) -> WorkspaceIgnore:
        """The rules that apply to the workspace as a whole; `more` come from the settings."""
        if not self.top:
            return self._joined((("\n".join((*REBUILT.split(), *more)).encode(), ""),))
        parts = self._folder[len(self.top.rstrip("/")) :].strip("/").split("/") if self._folder != self.top else []
        lead = "/".join((*parts, "")) if parts else ""
        files = [(self._excludes_file(), lead), (_read(f"{self._data}/info/exclude"), lead)]
        for depth in range(len(parts)):
            above = "/".join((self.top.rstrip("/"), *parts[:depth]))
            files.append((_read(f"{above}/.gitignore"), "/".join((*parts[depth:], ""))))
        return self._joined((*files, ("\n".join(more).encode(), "")))

    def _joined(self, files: tuple[tuple[bytes, str], ...]) -> WorkspaceIgnore:
        if self._rules is None or files != self._rules[0]:
            rules = WorkspaceIgnore()
            for content, lead in files:
                rules = rules.inside(content, lead=lead) if content else rules
            self._rules = files, rules
        return self._rules[1]

    def tracked(self) -> frozenset[bytes]:
        """Files that git tracks although a rule ignores them, and the folders above them."""
        try:
            about = Path(f"{self._data}/index").stat()
        except OSError:
            return frozenset()
        stamp = about.st_ino, about.st_size, about.st_mtime_ns
        if stamp != self._index:
            asked = ("ls-files", "--cached", "--ignored", "--exclude-standard", "-z")
            found = self._ask(*asked)
            names = set[bytes]()
            for name in found.split(b"\0") if found else ():
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
        return ref.removeprefix("refs/heads/"), _read(f"{_common(self._data)}/{ref}").decode(errors="replace").strip()

    def _excludes_file(self) -> bytes:
        if self._excludes is None:
            named = self._ask("config", "--type=path", "--get", "core.excludesFile").decode(errors="surrogateescape")
            variables = environment()
            fallback = Path(variables.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "git" / "ignore"
            self._excludes = _read(named.rstrip("\n") or str(fallback))
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


def _data_folder(top: str) -> str:
    """The folder with the data of git: `.git`, or where a file of that name points to."""
    if not top or (Path(top) / ".git").is_dir():
        return f"{top}/.git"
    text = _read(f"{top}/.git").decode(errors="surrogateescape").strip()
    return str(Path(top) / text.removeprefix("gitdir:").strip())


def _common(data: str) -> str:
    text = _read(f"{data}/commondir").decode(errors="surrogateescape").strip()
    return str(Path(data) / text) if text else data


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - also names that are not UTF-8
            return stream.read(MAX_RULE_BYTES)
    except OSError:
        return b""
