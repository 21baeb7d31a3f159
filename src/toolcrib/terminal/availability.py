"""Whether this machine can run commands at all."""

from __future__ import annotations

import os

from toolcrib.core.types import Unavailable
from toolcrib.registry.availability import runs_in_place

USUAL_PLACES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


@runs_in_place
def check_terminal() -> bool | Unavailable:
    """Whether there is a shell. Runs often, so it checks the usual places first."""
    if any(map(os.path.exists, USUAL_PLACES)):
        return True
    # Without `shutil`, which every start would have to load only for this.
    if any(os.path.exists(os.path.join(folder, "bash")) for folder in os.get_exec_path()):  # noqa: PTH110, PTH118
        return True
    return Unavailable("there is no bash on this machine", "install bash 4.4 or later")
