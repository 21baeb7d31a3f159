"""Lines out of a file of this machine: what stands before them is only counted, what follows is not read."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

SKIP_BYTES = 1024 * 1024
COUNTED_BYTES = 1024 * 1024
"""Of a file that is no larger, all lines are counted."""
LARGE_BYTES = 64 * 1024 * 1024
"""From this size on the system's `tail` passes over lines: it finds their ends with instructions that Python lacks."""
ENDLESS_BYTES = 256 * 1024 * 1024
"""A file that the kernel makes up says no size; one that gives this much has no end worth waiting for."""
SYSTEM_PROGRAMS = "/usr/bin:/bin"


def take_lines(descriptor: int, first: int, count: int, max_bytes: int) -> tuple[bytes, bool]:
    """Lines `first` to `first + count - 1`, cut at `max_bytes`, and whether the file ends there."""
    with _from_line(descriptor, first) as (source, data):
        pieces: list[bytes] = []
        size = lines = 0
        while True:
            data = data or os.read(source, min(SKIP_BYTES, max_bytes - size + 1))
            if not data:
                return b"".join(pieces), True
            if lines == count or size == max_bytes:
                return b"".join(pieces), False
            taken, found = _first_lines(data, count - lines)
            taken = taken[: max_bytes - size]
            pieces.append(taken)
            size += len(taken)
            lines += found
            data = data[len(taken) :]


@contextlib.contextmanager
def _from_line(descriptor: int, first: int) -> Iterator[tuple[int, bytes]]:
    """A descriptor to read on from, and what of the wanted lines was read already."""
    tail = shutil.which("tail", path=SYSTEM_PROGRAMS) if first > 1 and _is_large(descriptor) else None
    if tail is None:
        yield descriptor, _skipped(descriptor, first - 1)
        return
    # It is given the open file, not the path, which may be another one by now.
    process = subprocess.Popen(
        [tail, "-n", f"+{first}"], stdin=descriptor, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    )
    assert process.stdout is not None
    try:
        yield process.stdout.fileno(), b""
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _is_large(descriptor: int) -> bool:
    return os.fstat(descriptor).st_size >= LARGE_BYTES


def count_lines(descriptor: int) -> int | None:
    """How many lines a small file has, the last one maybe without an end; None when it turns out to be large."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    total, size, last = 0, 0, b"\n"
    while data := os.read(descriptor, COUNTED_BYTES):
        size += len(data)
        if size > COUNTED_BYTES:
            return None
        total += data.count(b"\n")
        last = data[-1:]
    return total + (last != b"\n")


def _skipped(descriptor: int, lines: int) -> bytes:
    """Pass over so many lines; gives what was read beyond them."""
    if lines <= 0:
        return b""
    buffer = bytearray(SKIP_BYTES)
    view = memoryview(buffer)
    left = max(ENDLESS_BYTES, os.fstat(descriptor).st_size)
    while left > 0 and (size := os.readv(descriptor, [view])):
        found = buffer.count(b"\n", 0, size)
        if found >= lines:
            return bytes(view[_end_of_line(buffer, lines, found, size) : size])
        lines -= found
        left -= size
    return b""


def _end_of_line(buffer: bytes | bytearray, number: int, found: int, size: int) -> int:
    """Where the line of that number ends; looked for from the nearer end."""
    if number > found // 2:
        at = size
        for _ in range(found - number + 1):
            at = buffer.rfind(b"\n", 0, at)
        return at + 1
    at = -1
    for _ in range(number):
        at = buffer.find(b"\n", at + 1)
    return at + 1


def _first_lines(data: bytes, count: int) -> tuple[bytes, int]:
    """At most so many lines of the data, and how many ends of lines they have."""
    found = data.count(b"\n")
    if found < count:
        return data, found
    return data[: _end_of_line(data, count, found, len(data))], count
