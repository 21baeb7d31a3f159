"""Cheap helpers for availability checks: they run at every build of the definitions, so they import nothing.

They only look at variables and files of this machine, so they run in place.
"""

from __future__ import annotations

import functools
import os
import sys

from toolcrib.config.paths import find_home
from toolcrib.core.types import Unavailable

HTTP_CLIENT = "httpcore2"
HOME_VARIABLES = ("TOOLCRIB_HOME", "HERMES_HOME", "HOME", "USERPROFILE")


def is_installed(package: str) -> bool:
    return package in sys.modules or any(os.path.isdir(f"{folder}/{package}") for folder in sys.path)  # noqa: PTH112


def has_program(name: str) -> bool:
    # `shutil.which` would do, but importing it takes longer than everything else here.
    return any(os.path.isfile(f"{folder}/{name}") for folder in os.environ.get("PATH", "").split(os.pathsep))  # noqa: PTH113


def has_variable(*names: str) -> bool:
    """Whether one of these environment variables is set."""
    return any(map(os.environ.get, names))


def is_in_home(path: str) -> bool:
    """Whether the home has this file."""
    return os.path.isfile(f"{_home(*map(os.environ.get, HOME_VARIABLES))}/{path}")  # noqa: PTH113


def config_text() -> str:
    """The text of the config; empty if there is none. Most texts do not mention a section, so they need no parsing."""
    path = f"{_home(*map(os.environ.get, HOME_VARIABLES))}/config.yaml"
    try:
        found = os.stat(path)  # noqa: PTH116
        return _read(path, found.st_mtime_ns, found.st_size, found.st_ino)
    except (OSError, UnicodeError):
        return ""


@functools.lru_cache(maxsize=4)
def _home(*home_variables: str | None) -> str:
    given = zip(HOME_VARIABLES, home_variables, strict=True)
    return str(find_home({name: value for name, value in given if value is not None}).root)


@functools.lru_cache(maxsize=2)
def _read(path: str, *_version: int) -> str:
    """The text of one version of a file: several checks of one build ask for the same."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def check_client() -> bool | Unavailable:
    """Whether the HTTP client is installed."""
    if is_installed(HTTP_CLIENT):
        return True
    return Unavailable("the HTTP client is not installed", "run `pip install 'toolcrib[web]'`")
