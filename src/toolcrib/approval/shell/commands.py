"""All handlers by program, for the evaluator."""

from __future__ import annotations

from toolcrib.approval.shell import build_tools, builtins, finders, interpreters, programs, remote, wrappers
from toolcrib.approval.shell.model import name_set
from toolcrib.approval.shell.runner import Handler

HANDLERS: dict[str, Handler] = {
    **builtins.HANDLERS,
    **wrappers.HANDLERS,
    **remote.HANDLERS,
    **interpreters.HANDLERS,
    **programs.HANDLERS,
    **finders.HANDLERS,
    **build_tools.HANDLERS,
}

_SILENT = name_set(
    "ls stat wc file test [ md5sum sha1sum sha256sum sha512sum b2sum cksum du chmod chown "
    "touch mkdir rm cd ssh-keygen ssh-add readlink realpath "
    "basename dirname find which mv cp ln shred true echo_ kill git"
)


def is_silent_about_secrets(program: str) -> bool:
    """True for programs that look at a file without printing what is in it."""
    return program in _SILENT
