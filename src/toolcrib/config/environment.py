"""The process environment: its variables, what child processes get, and how to hide its secrets.

A child process gets an allowlist, because a list of secret names is never complete. `SSH_AUTH_SOCK` is on it: it is the
address of an agent that never reveals a key, any process of the same user can find that address anyway, and `git fetch`
fails without it. Addresses of the desktop (DISPLAY, the session bus) are not: few commands need them.

On Linux, `hide_secrets` also removes the secrets from `/proc/<pid>/environ`, which shows the initial environment of the
process, whatever was set or unset since. It wipes them in place after giving the C library copies, so `os.environ`,
`os.getenv` and `getenv` still work. The interpreter does not have to restart, so exit codes, signals and the terminal
are not affected.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.redact import mask_shapes
from toolcrib.core.lazy import lazy_pattern


def environment() -> Mapping[str, str]:
    """The variables of this process, as they are now."""
    return os.environ


def unset_variables(names: Iterable[str]) -> list[str]:
    """The names that are not set, or set to an empty value."""
    return [name for name in names if not os.environ.get(name)]


def model_hub_address(environ: Mapping[str, str] | None = None) -> str:
    """The model hub: HF_ENDPOINT, which the hub's own tools use for mirrors, else the hub itself."""
    environ = os.environ if environ is None else environ
    return (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


_IDENTITY = "PATH HOME USER LOGNAME SHELL HOSTNAME PWD OLDPWD SHLVL TMPDIR TMP TEMP TZ TZDIR SSH_AUTH_SOCK"
_LANGUAGE = (
    "LANG LANGUAGE LC_ALL LC_ADDRESS LC_COLLATE LC_CTYPE LC_IDENTIFICATION LC_MEASUREMENT LC_MESSAGES LC_MONETARY "
    "LC_NAME LC_NUMERIC LC_PAPER LC_TELEPHONE LC_TIME"
)
_TERMINAL = (
    "TERM COLORTERM TERM_PROGRAM TERM_PROGRAM_VERSION TERMINFO TERMINFO_DIRS COLUMNS LINES NO_COLOR FORCE_COLOR "
    "CLICOLOR CLICOLOR_FORCE LS_COLORS EDITOR VISUAL PAGER LESS MANPATH INFOPATH CI DEBIAN_FRONTEND"
)
_FOLDERS = (
    "XDG_CONFIG_HOME XDG_DATA_HOME XDG_CACHE_HOME XDG_STATE_HOME XDG_BIN_HOME XDG_RUNTIME_DIR XDG_CONFIG_DIRS "
    "XDG_DATA_DIRS XDG_CURRENT_DESKTOP XDG_SESSION_ID XDG_SESSION_TYPE XDG_SESSION_CLASS XDG_SEAT XDG_VTNR"
)
_TOOLCHAINS = (
    "VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE PYENV_ROOT UV_CACHE_DIR PIP_CACHE_DIR JAVA_HOME GOPATH "
    "GOROOT GOBIN GOCACHE GOMODCACHE CARGO_HOME RUSTUP_HOME NVM_DIR NVM_BIN VOLTA_HOME PNPM_HOME BUN_INSTALL DENO_DIR "
    "RBENV_ROOT GEM_HOME GEM_PATH DOTNET_ROOT ANDROID_HOME ANDROID_SDK_ROOT HOMEBREW_PREFIX HOMEBREW_CELLAR "
    "HOMEBREW_REPOSITORY NIX_PATH NIX_PROFILES LD_LIBRARY_PATH PKG_CONFIG_PATH CUDA_HOME CUDA_VISIBLE_DEVICES"
)
_NETWORK = (
    "http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY "
    "SSL_CERT_FILE SSL_CERT_DIR NIX_SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO"
)
_WINDOWS = (
    "SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT USERNAME USERPROFILE HOMEDRIVE HOMEPATH APPDATA LOCALAPPDATA "
    "PROGRAMDATA PROGRAMFILES PROGRAMFILES(X86) COMMONPROGRAMFILES COMPUTERNAME OS NUMBER_OF_PROCESSORS "
    "PROCESSOR_ARCHITECTURE"
)
ALLOWED = frozenset(" ".join((_IDENTITY, _LANGUAGE, _TERMINAL, _FOLDERS, _TOOLCHAINS, _NETWORK, _WINDOWS)).split())
"""The variables that every child process gets."""

# They point to the Python that runs toolcrib, which is rarely that of the project a command works on.
_INTERPRETERS = ("VIRTUAL_ENV", "CONDA_PREFIX")
_USER_INFO = lazy_pattern(r"(?<=://)[^/@\s]*@")
_GLOB = lazy_pattern(r"[*?\[]")
SECRET_NAMES = "SECRET|PASSW|PASSPHRASE|CREDENTIAL|TOKEN|API_?KEY|ACCESS_?KEY|(^|_)(KEY|PWD|PASS|PAT|AUTH|COOKIE|DSN)$"
"""Names of variables that probably hold a secret, whatever the case: for Python, and for `[[ =~ ]]` of a shell."""
_SECRET_NAME = lazy_pattern(SECRET_NAMES, re.IGNORECASE)
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def child_environment(
    environ: Mapping[str, str], *, passthrough: Sequence[str] = (), extra: Mapping[str, str] = _NO_VARIABLES
) -> dict[str, str]:
    """The variables of `environ` that a child process gets, with `extra` on top.

    A name in `passthrough` passes whatever its value: naming it is consent. A pattern (`MY_*`) passes what it matches
    except what looks like a secret. Proxy addresses lose their user name and password.
    """
    usual = {
        name: value for name in environ if name in ALLOWED and (value := _harmless(name, environ[name])) is not None
    }
    return usual | passed_through(environ, passthrough) | dict(extra)


def passed_through(environ: Mapping[str, str], passthrough: Sequence[str]) -> dict[str, str]:
    """Only the variables that `passthrough` names, by the rules of `child_environment`."""
    names = {name for name in passthrough if not _GLOB.search(name)}
    patterns = [name for name in passthrough if _GLOB.search(name)]
    passed: dict[str, str] = {}
    for name, value in environ.items():
        if name in names:
            passed[name] = value
        elif any(fnmatchcase(name, pattern) for pattern in patterns):
            harmless = _harmless(name, value)
            if harmless is not None:
                passed[name] = harmless
    return passed


def _harmless(name: str, value: str) -> str | None:
    """A variable's value as a child may get it by default; None if it must not get it."""
    if name not in ALLOWED:
        return None if looks_secret(name, value) else value
    if name in _INTERPRETERS and value == sys.prefix:
        return None
    value = _USER_INFO.sub("", value)
    return None if _holds_secret(value) else value


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable probably holds a secret, by its name, its declaration in a tool, or its value."""
    about = OPTIONAL_ENV_VARS.get(name)
    declared = isinstance(about, dict) and bool(about.get("password"))
    return declared or _SECRET_NAME.search(name) is not None or _holds_secret(value)


def _holds_secret(value: str) -> bool:
    return mask_shapes(value) != value


_PROCESS = Path("/proc/self")
# Fields of /proc/PID/stat after the name of the program, which may hold blanks; see proc_pid_stat(5), fields 50 and 51.
_ENV_START, _ENV_END = 47, 48
_PR_SET_DUMPABLE = 4


def hide_secrets() -> bool:
    """Wipe the visible copy of the environment and lock out debuggers; True if no secret is visible any more.

    Only for the program, never for a library, because it changes the process. Call it before starting threads.
    """
    if sys.platform != "linux":
        return False
    try:
        wiped = _wipe_environment()
    except OSError:
        # No /proc, or a read-only one: nothing can be hidden, and nothing was changed.
        wiped = False
    return _lock_debuggers_out() and wiped


@functools.cache  # Once for each process: what is set later was never in the visible copy.
def hide_environment() -> bool:
    """Wipe the visible copy of the environment before the process runs its first command; True if that worked.

    For a library: the process stays open to debuggers, and its own variables and those of its children stay the same.
    """
    try:
        return sys.platform == "linux" and _wipe_environment()
    except OSError:
        return False


def _wipe_environment() -> bool:
    block = (_PROCESS / "environ").read_bytes()
    stat = (_PROCESS / "stat").read_bytes()
    fields = stat[stat.rindex(b")") + 2 :].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    kept = {os.fsencode(name): os.fsencode(value) for name, value in child_environment(os.environ).items()}
    secrets = [(at, entry) for at, entry in _entries(block) if not _is_kept(entry, kept)]
    memory = os.open(_PROCESS / "mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.pread(memory, end - start, start) != block:
            return False
        names = Counter(entry.partition(b"=")[0] for _, entry in secrets)
        for name in names.keys() & os.environb.keys():
            if names[name] > 1:
                # Setting alone would leave the second of two entries with the same name in place.
                os.unsetenv(name)
            os.putenv(name, os.environb[name])
        for at, entry in secrets:
            os.pwrite(memory, bytes(len(entry)), start + at)
    finally:
        os.close(memory)
    return True


def _entries(block: bytes) -> Iterator[tuple[int, bytes]]:
    """The `NAME=VALUE` entries of an environment block, each with its start."""
    at = 0
    for entry in block.split(b"\0"):
        if entry:
            yield at, entry
        at += len(entry) + 1


def _is_kept(entry: bytes, kept: dict[bytes, bytes]) -> bool:
    name, _, value = entry.partition(b"=")
    return kept.get(name) == value


def _lock_debuggers_out() -> bool:
    """Disable core dumps, and keep other processes of the same user from reading this process's memory.

    Children that run another program are debuggable again. Root still sees everything.
    """
    try:
        # Costs 2 ms, and only this function needs it; some builds of Python lack it.
        import ctypes  # noqa: PLC0415

        failed: int = ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return False
    return not failed
