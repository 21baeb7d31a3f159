"""The system calls that no program in a sandbox may make, as the program that the kernel runs before each call."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE_WITH = 0x7FFF0000, 0x00050000
# Offsets in the kernel's `struct seccomp_data`; arguments are 64 bits wide, their low half comes first.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
X32_CALLS = 0x40000000
NAMESPACE_FLAGS = 0x7E020000
TYPE_INTO_A_TERMINAL, PASTE_INTO_A_CONSOLE = 0x5412, 0x541C

LOCAL_SOCKETS = frozenset({int(socket.AF_UNIX)})
# Netlink tells programs which addresses there are; name resolution asks it.
NETWORK_SOCKETS = frozenset({int(socket.AF_INET), int(socket.AF_INET6), 16})


@dataclass(frozen=True, slots=True)
class _Machine:
    audit_name: int
    clone: int
    clone3: int
    ioctl: int
    prlimit64: int
    socket: int
    refused: tuple[int, ...]


# name: its number on x86_64, on aarch64
REFUSED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "userfaultfd": (323, 282),
    # A ring makes calls that this filter never sees.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "lookup_dcookie": (212, 18),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "kcmp": (312, 272),
    "vhangup": (153, 58),
}

_MACHINES = {
    "x86_64": _Machine(
        audit_name=0xC000003E,
        clone=56,
        clone3=435,
        ioctl=16,
        prlimit64=302,
        socket=41,
        refused=tuple(x86 for x86, _ in REFUSED_CALLS.values() if x86 is not None),
    ),
    "aarch64": _Machine(
        audit_name=0xC00000B7,
        clone=220,
        clone3=435,
        ioctl=29,
        prlimit64=261,
        socket=198,
        refused=tuple(arm for _, arm in REFUSED_CALLS.values() if arm is not None),
    ),
}


def seccomp_program(machine: str, *, sockets: Collection[int]) -> bytes | None:
    """The filter for this kind of processor, letting only these families of sockets be made; None if it is unknown."""
    known = _MACHINES.get(machine)
    if known is None:
        return None
    refuse, unknown = _result(errno.EPERM), _result(errno.ENOSYS)
    program = [
        _step(LOAD_WORD, ARCHITECTURE),
        # A program for another kind of processor has other numbers for its calls.
        _step(JUMP_IF_EQUAL, known.audit_name, then=1),
        unknown,
        _step(LOAD_WORD, NUMBER),
    ]
    if machine == "x86_64":
        program += [_step(JUMP_IF_AT_LEAST, X32_CALLS, otherwise=1), unknown]
    for number in known.refused:
        program += [_step(JUMP_IF_EQUAL, number, otherwise=1), refuse]
    # Its flags are behind a pointer, where no filter can see them; the C library falls back to `clone`.
    program += [_step(JUMP_IF_EQUAL, known.clone3, otherwise=1), unknown]
    program += _when(
        known.clone, [_step(LOAD_WORD, FIRST_ARGUMENT), _step(JUMP_IF_ANY_BIT, NAMESPACE_FLAGS, otherwise=1), refuse]
    )
    # Only its own limits: those of another process can end it.
    own = [_step(LOAD_WORD, FIRST_ARGUMENT), _step(JUMP_IF_EQUAL, 0, then=1), refuse]
    program += _when(known.prlimit64, own)
    terminal_tricks = [_step(LOAD_WORD, SECOND_ARGUMENT)]
    for request in (TYPE_INTO_A_TERMINAL, PASTE_INTO_A_CONSOLE):
        terminal_tricks += [_step(JUMP_IF_EQUAL, request, otherwise=1), refuse]
    program += _when(known.ioctl, terminal_tricks)
    families = [_step(LOAD_WORD, FIRST_ARGUMENT)]
    for family in sorted(sockets):
        families += [_step(JUMP_IF_EQUAL, family, otherwise=1), _step(RETURN, ALLOW)]
    program += _when(known.socket, [*families, _result(errno.EACCES)])
    return b"".join([*program, _step(RETURN, ALLOW)])


def _when(number: int, steps: list[bytes]) -> list[bytes]:
    """Steps for one system call; where they do not decide, it is allowed."""
    return [_step(JUMP_IF_EQUAL, number, otherwise=len(steps) + 1), *steps, _step(RETURN, ALLOW)]


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _result(error: int) -> bytes:
    return _step(RETURN, REFUSE_WITH | error)
