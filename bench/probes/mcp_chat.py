"""Prints the seconds until `toolcrib chat` in a terminal shows its prompt, and until it shows what is typed there."""

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


def main(home: str) -> None:
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.environ["TERM"] = "xterm"
        os.environ["TOOLCRIB_HOME"] = home
        os.execv(sys.executable, [sys.executable, "-m", "toolcrib", "chat"])
    try:
        wait_for(terminal, PROMPT, began)
        prompt = time.perf_counter() - began
        os.write(terminal, TYPED)
        wait_for(terminal, TYPED[-1:], began)
        print(json.dumps({"prompt": prompt, "typed": time.perf_counter() - began}))
    finally:
        os.kill(pid, signal.SIGTERM)
        os.close(terminal)
        os.waitpid(pid, 0)


def wait_for(terminal: int, wanted: bytes, began: float) -> None:
    seen = b""
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], LIMIT_SECONDS - (time.perf_counter() - began))
        if not ready:
            sys.exit(f"no {wanted!r} in {LIMIT_SECONDS:.0f} s: {seen!r}")
        data = os.read(terminal, 65536)
        seen += data
        # Whoever draws a screen may first ask where the cursor is.
        if b"\x1b[6n" in data:
            os.write(terminal, b"\x1b[1;1R")


main(sys.argv[1])
