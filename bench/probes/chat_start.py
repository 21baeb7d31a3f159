"""Prints the CPU seconds that `toolcrib chat` of a source folder takes until it shows what is typed in its terminal."""

import json
import os
import pty
import select
import signal
import sys
import time

PROMPT = "❯".encode()
TYPED = b"zq"
LIMIT_SECONDS = 60.0


def main(source: str, home: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.environ.update({"TERM": "xterm", "TOOLCRIB_HOME": home, "PYTHONPATH": source, "LANG": "C.UTF-8"})
        os.execv(sys.executable, [sys.executable, "-m", "toolcrib", "chat"])
    try:
        wait_for(terminal, PROMPT)
        os.write(terminal, TYPED)
        wait_for(terminal, TYPED[-1:])
    finally:
        # What is measured ends here, so it ends at once, too.
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        _, _, used = os.wait4(pid, 0)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "memory_mb": used.ru_maxrss / 1024}))


def wait_for(terminal: int, wanted: bytes) -> None:
    seen = b""
    end = time.monotonic() + LIMIT_SECONDS
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            sys.exit(f"no {wanted!r} in {LIMIT_SECONDS:.0f} s: {seen!r}")
        seen += os.read(terminal, 65536)


main(sys.argv[1], sys.argv[2])
