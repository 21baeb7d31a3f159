"""Which process of this machine wrote a record, as the text that records name it by."""

from __future__ import annotations

import functools
import os

from toolcrib.process_identity import Identity, identity_of
from toolcrib.process_identity import is_alive as process_is_alive


def own_owner() -> str:
    """This process, in the words that records name it by."""
    return _named(os.getpid())


def is_alive(owner: str) -> bool:
    """Whether the process that is named so still runs; another one that has its number by now does not count."""
    pid, _, started = owner.partition(":")
    return pid.isdigit() and process_is_alive(Identity(int(pid), started))


def pid_of(owner: str) -> int:
    """The process id in an owner's name; 0 when there is none."""
    pid = owner.partition(":")[0]
    return int(pid) if pid.isdigit() else 0


@functools.lru_cache(maxsize=1)  # Asked for every answer with calls; another number means that we were forked.
def _named(pid: int) -> str:
    identity = identity_of(pid) or Identity(pid)
    return f"{pid}:{identity.started}" if identity.started else str(pid)
