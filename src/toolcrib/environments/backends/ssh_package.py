"""The one place that imports asyncssh, which is optional and takes a quarter of a second to load."""

from __future__ import annotations

import logging
from typing import Any

from toolcrib.core.errors import EnvironmentFailed


def ssh_package() -> Any:
    """The module `asyncssh`; raises EnvironmentFailed saying how to install it."""
    try:
        import asyncssh  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentFailed(
            f"the ssh backend needs the package asyncssh ({error}); pip install 'toolcrib[ssh]'"
        ) from error
    chatter = logging.getLogger("asyncssh")
    if chatter.level == logging.NOTSET:
        # At INFO it writes every command line that it sends.
        chatter.setLevel(logging.WARNING)
    return asyncssh
