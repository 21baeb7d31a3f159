"""The process environment: what is set, what child processes get of it, and how its secrets stay hidden.

A child process gets an allowlist, because a list of secret names is never complete. `SSH_AUTH_SOCK` is on it: it is the
address of an agent that never gives a key away, any process of the same user finds that address without it, and
`git fetch` fails without it. Addresses of the desktop (DISPLAY, the session bus) are not: few commands need them.

On Linux, `hide_secrets` also takes the secrets out of `/proc/<pid>/environ`, which shows the bytes that the kernel put
into the process when it started, whatever was set or unset since. It wipes them in place after giving the C library
copies: `os.environ`, `os.getenv` and `getenv` answer as before. The interpreter need not start again, so exit codes,
signals and the terminal stay what they are.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.redact import mask_shapes


def environment() -> Mapping[str, str]:
    """The variables of this process, as they are now."""
    return os.environ


def unset_variables(names: Iterable[str]) -> list[str]:
    """Those of the names that are not set, or set to nothing."""
    return [name for name in names if not os.environ.get(name)]


def model_hub_address(environ: Mapping[str, str] | None = None) -> str:
    """Where models are published: HF_ENDPOINT, as the hub's own tools read it for mirrors, else the hub itself."""
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
"""The variables that a child process gets without being asked for."""

# They point at the Python that runs toolcrib, which is seldom the one of the project that a command works on.
_INTERPRETERS = ("VIRTUAL_ENV", "CONDA_PREFIX")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*@")
_GLOB = re.compile(r"[*?\[]")
SECRET_NAMES = "SECRET|PASSW|PASSPHRASE|CREDENTIAL|TOKEN|API_?KEY|ACCESS_?KEY|(^|_)(KEY|PWD|PASS|PAT|AUTH|COOKIE|DSN)$"
"""Names of variables that probably hold a secret, whatever the case: for Python, and for `[[ =~ ]]` of a shell."""
_SECRET_NAME = re.compile(SECRET_NAMES, re.IGNORECASE)
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def child_environment(
    environ: Mapping[str, str], *, passthrough: Sequence[str] = (), extra: Mapping[str, str] = _NO_VARIABLES
) -> dict[str, str]:
    """What of `environ` a child process gets, with `extra` on top.

    A name in `passthrough` passes whatever it holds: naming it is consent. A pattern (`MY_*`) passes what it matches
    except what looks like a secret. A proxy loses the name and password in its address.
    """
    usual = {
        name: value for name in environ if name in ALLOWED and (value := _harmless(name, environ[name])) is not None
    }
    return usual | passed_through(environ, passthrough) | dict(extra)


def passed_through(environ: Mapping[str, str], passthrough: Sequence[str]) -> dict[str, str]:
    """Those variables alone that `passthrough` names, by the rule of `child_environment`."""
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
    """A variable as a child may have it without being named; None for one that it must not have."""
    if name not in ALLOWED:
        return None if looks_secret(name, value) else value
    if name in _INTERPRETERS and value == sys.prefix:
        return None
    value = _USER_INFO.sub("", value)
    return None if _holds_secret(value) else value


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable probably holds a secret, by its name, by what tools say about it, or by its value."""
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
    """Wipe the visible copy of the environment and lock debuggers out; True if nothing secret can be seen any more.

    For the program alone, never for a library: it changes the process. It must run before threads are started.
    """
    if sys.platform != "linux":
        return False
    try:
        wiped = _wipe_environment()
    except OSError:
        # No /proc, or one that may not be written: nothing can be hidden, and nothing was changed.
        wiped = False
    return _lock_debuggers_out() and wiped


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
        for name in {entry.partition(b"=")[0] for _, entry in secrets} & os.environb.keys():
            # Setting alone would leave the second of two entries with the same name where it is.
            os.unsetenv(name)
            os.putenv(name, os.environb[name])
        for at, entry in secrets:
            os.pwrite(memory, bytes(len(entry)), start + at)
    finally:
        os.close(memory)
    return True


def _entries(block: bytes) -> Iterator[tuple[int, bytes]]:
    """The `NAME=VALUE` entries of an environment block, each with where it starts."""
    at = 0
    for entry in block.split(b"\0"):
        if entry:
            yield at, entry
        at += len(entry) + 1


def _is_kept(entry: bytes, kept: dict[bytes, bytes]) -> bool:
    name, _, value = entry.partition(b"=")
    return kept.get(name) == value


def _lock_debuggers_out() -> bool:
    """No core dumps, and no look into the memory of this process for others of the same user.

    Children that run another program are debuggable again. Root still sees everything.
    """
    try:
        # Costs 2 ms, and only this function needs it; some builds of Python are without it.
        import ctypes  # noqa: PLC0415

        failed: int = ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return False
    return not failed
