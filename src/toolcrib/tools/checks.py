"""What availability checks ask, cheaply: they run at every build of the definitions, so they import nothing."""

from __future__ import annotations

import os
import sys

from toolcrib.config.paths import find_home
from toolcrib.core.types import Unavailable

HTTP_CLIENT = "httpcore2"


def is_installed(package: str) -> bool:
    return package in sys.modules or any(os.path.isdir(os.path.join(folder, package)) for folder in sys.path)  # noqa: PTH112, PTH118


def has_program(name: str) -> bool:
    # `shutil.which` would do, but importing it takes longer than everything else here.
    return any(os.path.isfile(os.path.join(one, name)) for one in os.environ.get("PATH", "").split(os.pathsep))  # noqa: PTH113, PTH118


def has_variable(*names: str) -> bool:
    """Whether one of these environment variables is set."""
    return any(os.environ.get(name) for name in names)


def config_text() -> str:
    """The text of the config; empty if there is none. Most texts do not mention a section, so they need no parsing."""
    try:
        with open(find_home().config_file, encoding="utf-8") as file:  # noqa: PTH123
            return file.read()
    except (OSError, UnicodeError):
        return ""


def check_client() -> bool | Unavailable:
    """Whether the HTTP client is installed."""
    if is_installed(HTTP_CLIENT):
        return True
    return Unavailable("the HTTP client is not installed", "run: pip install 'toolcrib[web]'")
