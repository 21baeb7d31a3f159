"""Refuses to install packages while a tool file or plugin is loaded, or while an availability check runs.

An audit hook sees every process that Python is about to start, whichever function starts it, and pip's own code when
it runs inside this process. Only the thread that loads or checks is guarded, and the threads that it starts: other
threads may run `pip install` for a user at the same time.

It misses an installer that it cannot recognise: a script file that runs pip, a command in a shell variable, a child of
a child process; pip in this process if its code was already loaded; and, before Python 3.12, which reports no new
threads, whatever another thread installs. It prevents surprises; it is not a sandbox.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.core.errors import PluginError
from toolcrib.core.lazy import lazy_pattern, shlex

MAX_SHELL_DEPTH = 4
EXIT_REFUSED = 126

_PYTHON_VERBS = {
    "pip": frozenset({"install", "uninstall", "download", "wheel", "sync"}),
    "uv": frozenset({"add", "sync", "install"}),
    "pipx": frozenset({"install", "inject", "upgrade"}),
    "poetry": frozenset({"add", "install", "update"}),
    "pdm": frozenset({"add", "install", "sync"}),
    "pipenv": frozenset({"install", "sync"}),
}
_OTHER_VERBS = {
    **dict.fromkeys(("conda", "mamba", "micromamba"), frozenset({"install", "create", "update"})),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), frozenset({"install", "i", "add", "ci"})),
    **dict.fromkeys(("apt", "apt-get", "aptitude", "dnf", "yum", "zypper", "brew", "snap"), frozenset({"install"})),
    **dict.fromkeys(("cargo", "go", "gem", "choco", "winget"), frozenset({"install"})),
    "apk": frozenset({"add"}),
    "pacman": frozenset({"-S", "-Sy", "-Syu"}),
}
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "cmd"})
_ONLY_PRINT = frozenset({"echo", "printf", "grep", "which", "type", "whereis", "man", "ls", "cat", "test"})
_PIP = lazy_pattern(r"pip[-\d.]*")
_SHELL_OPTION = lazy_pattern(r"-\w*c|/[cC]")
_SEPARATORS = ";&|()<>\n"
_QUIET_OPTIONS = frozenset({"-q", "-qq", "--quiet", "--no-input", "--disable-pip-version-check"})
# pip imports the module of a command with importlib, which raises no "import" event, so watch it run instead.
_PIP_MODULES = tuple(
    os.path.join("pip", "_internal", "commands", f"{name}.py")  # noqa: PTH118 - the end of a path
    for name in ("install", "uninstall", "download", "wheel")
)
_PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"})
_THREAD_EVENTS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_WATCHED_EVENTS = _PROCESS_EVENTS | _THREAD_EVENTS | {"exec", "ensurepip.bootstrap"}


class InstallRefused(PluginError, PermissionError):
    """Code tried to install packages while it was being loaded or checked."""


class InstallAttempt(msgspec.Struct, frozen=True):
    """An installation that was refused."""

    packages: tuple[str, ...]
    """What to install, as written; empty if the command does not say."""
    command: str
    """What a person can run instead."""

    @property
    def what(self) -> str:
        return f"install {', '.join(map(repr, self.packages))}" if self.packages else "install packages"

    @property
    def remedy(self) -> str:
        return f"if you trust that, run `{self.command}` and start again"

    def sentence(self, moment: str = "while it was being loaded") -> str:
        """What was refused, and what to do."""
        return f"it tried to {self.what} {moment}, which toolcrib does not allow; {self.remedy}"


class InstallGuard:
    """What one guarded block tried to install."""

    def __init__(self) -> None:
        self.attempts: list[InstallAttempt] = []
        self.process = os.getpid()

    def refuse(self, attempt: InstallAttempt) -> None:
        self.attempts.append(attempt)
        refusal = InstallRefused(attempt.sentence())
        if os.getpid() != self.process:
            # A forked child that meant to become the installer must not go on as a second copy of this program.
            os.write(2, f"{refusal}\n".encode())
            os._exit(EXIT_REFUSED)
        raise refusal


class _ThreadGuard(threading.local):
    guard: InstallGuard | None = None


_guarded = _ThreadGuard()
_started_by_guarded: WeakKeyDictionary[threading.Thread, InstallGuard] = WeakKeyDictionary()
_hook_added = threading.Event()
_adding_hook = threading.Lock()


@contextmanager
def refusing_installs() -> Iterator[InstallGuard]:
    """A block in which this thread, and each thread that it starts, cannot install packages."""
    with _adding_hook:
        # Python has no way to remove a hook, so there is one for the life of the process.
        if not _hook_added.is_set():
            sys.addaudithook(_on_event)
            _hook_added.set()
    before, guard = _guarded.guard, InstallGuard()
    _guarded.guard = guard
    try:
        yield guard
    finally:
        _guarded.guard = before
        if before is not None:
            before.attempts += guard.attempts


def _on_event(
    event: str,
    arguments: tuple[Any, ...],
    # Bound here, because the hook outlives the globals of this module when the interpreter ends.
    watched: frozenset[str] = _WATCHED_EVENTS,
    guarded: _ThreadGuard = _guarded,
    started: WeakKeyDictionary[threading.Thread, InstallGuard] = _started_by_guarded,
) -> None:
    guard = guarded.guard
    if event not in watched or (guard is None and not started):
        return
    if guard is None:
        if event in _THREAD_EVENTS:
            return
        guard = started.get(threading.current_thread())
        if guard is None:
            return
    if event in _THREAD_EVENTS:
        thread = getattr(arguments[0], "__self__", None)
        if isinstance(thread, threading.Thread):
            started[thread] = guard
        return
    attempt = _attempt_in(event, arguments)
    if attempt is not None:
        guard.refuse(attempt)


def _attempt_in(event: str, arguments: tuple[Any, ...]) -> InstallAttempt | None:
    if event == "exec":
        is_pip = isinstance(arguments[0], CodeType) and arguments[0].co_filename.endswith(_PIP_MODULES)
        return _pip_attempt(_words_of_running_pip()) if is_pip else None
    if event == "ensurepip.bootstrap":
        return InstallAttempt(("pip",), shlex.join((sys.executable, "-m", "ensurepip")))
    if event == "os.system":
        return find_install_in_shell(os.fsdecode(arguments[0]))
    # `os.spawn` has the mode first; all others have the program and its words.
    words = arguments[2] if event == "os.spawn" else arguments[1]
    if isinstance(words, (str, bytes)):
        return find_install_in_shell(os.fsdecode(words))
    return find_install(_texts(words))


def _texts(words: Iterable[Any]) -> list[str]:
    return [os.fsdecode(word) if isinstance(word, (str, bytes, os.PathLike)) else str(word) for word in words]


def _words_of_running_pip() -> list[str]:
    """The arguments of the pip that runs in this thread: `pip.main([...])`, or `runpy` with `sys.argv`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        words = frame.f_locals.get("args")
        if str(frame.f_globals.get("__name__")).startswith("pip.") and isinstance(words, list) and words:
            return _texts(words)
        frame = frame.f_back
    return sys.argv[1:]


def find_install(words: Sequence[str], depth: int = 0) -> InstallAttempt | None:
    """The installation that a command makes; None if it makes none that we recognise."""
    if not words or _program(words[0]) in _ONLY_PRINT or depth > MAX_SHELL_DEPTH:
        return None
    for index, word in enumerate(words):
        name, rest = _program(word), words[index + 1 :]
        found = _install_by(name, rest, words, depth)
        if found is not None:
            return found
    return None


def _install_by(name: str, rest: Sequence[str], words: Sequence[str], depth: int) -> InstallAttempt | None:
    if name in _SHELLS:
        return _in_shell_option(rest, depth)
    if name.startswith(("python", "pypy")) and "-c" in rest[:-1]:
        code = rest[rest.index("-c") + 1]
        is_install = re.search(r"\bpip\b", code) and re.search(r"\binstall\b", code)
        return InstallAttempt((), shlex.join(words)) if is_install else None
    if name in ("ensurepip", "get-pip.py"):
        return InstallAttempt(("pip",), shlex.join(words))
    if name == "setup.py" and rest and rest[0] in ("install", "develop"):
        return InstallAttempt((), shlex.join(words))
    if name == "easy_install":
        return _pip_attempt(["install", *rest])
    name = "pip" if _PIP.fullmatch(name) else name
    verbs = _PYTHON_VERBS.get(name) or _OTHER_VERBS.get(name)
    at = None if verbs is None else _verb_index(rest, verbs, deep=name == "uv")
    if at is None:
        return None
    if name == "pip":
        return _pip_attempt(rest[at:])
    return InstallAttempt(_packages(rest[at + 1 :]), shlex.join(words))


def _in_shell_option(rest: Sequence[str], depth: int) -> InstallAttempt | None:
    for index, word in enumerate(rest[:-1]):
        if _SHELL_OPTION.fullmatch(word):
            return find_install_in_shell(rest[index + 1], depth + 1)
    return None


def find_install_in_shell(text: str, depth: int = 0) -> InstallAttempt | None:
    """The first installation among the commands of a shell text."""
    for words in _commands(text):
        found = find_install(words, depth)
        if found is not None:
            return found
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command. A text with open quotes is split at spaces: guessing is better than missing."""
    lexer = shlex.shlex(text.replace("`", "\n"), posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        tokens = list(lexer)
    except ValueError:
        tokens = text.split()
    words: list[str] = []
    for token in tokens:
        if token and not token.strip(_SEPARATORS):
            yield words
            words = []
        else:
            words.append(token)
    yield words


def _program(word: str) -> str:
    """The name of a program, from its path: `/usr/bin/Pip3.exe` is `pip3`."""
    return PurePath(word.replace("\\", "/")).name.lower().removesuffix(".exe")


def _verb_index(rest: Sequence[str], verbs: frozenset[str], *, deep: bool) -> int | None:
    """Where the verb stands: the first word that is no option and no value of one; with `deep`, also the second."""
    others = 0
    for index, word in enumerate(rest):
        if word in verbs:
            return index
        is_value = index > 0 and rest[index - 1].startswith("-") and "=" not in rest[index - 1]
        if word.startswith("-") or is_value:
            continue
        others += 1
        if others > int(deep):
            return None
    return None


def _pip_attempt(words: Sequence[str]) -> InstallAttempt:
    """What `pip` is told to do, as a command for the Python that runs toolcrib."""
    shown = [word for word in words if word not in _QUIET_OPTIONS]
    return InstallAttempt(_packages(shown[1:]), shlex.join((sys.executable, "-m", "pip", *shown)))


_WITH_VALUE = frozenset(
    {
        *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--proxy", "--cert"),
        *("-t", "--target", "--prefix", "--root", "--src", "-p", "--python", "--cache-dir"),
        *("-c", "--constraint", "--upgrade-strategy", "--timeout", "--retries"),
    }
)
_NAMING = frozenset({"-r", "--requirement", "-e", "--editable"})


def _packages(words: Sequence[str]) -> tuple[str, ...]:
    """The packages among the words after the verb, and the files that list them."""
    found = []
    before = ""
    for word in words:
        if before in _NAMING or (not word.startswith("-") and before not in _WITH_VALUE):
            found.append(word)
        before = word
    return tuple(found)
