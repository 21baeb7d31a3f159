"""Runs the program with the pseudo-terminal as its controlling terminal, so that it hears of signals and sizes.

With CHAT_UNDER_SHELL it is a job of a small shell: when it is suspended the shell says so, and the next key wakes it.
"""

import fcntl
import os
import signal
import sys
import termios


def run_as_job() -> None:
    """Returns in the job; in the shell, looks after the job until it has ended."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        return
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            sys.exit(os.waitstatus_to_exitcode(status))
        os.tcsetpgrp(0, os.getpgrp())
        modes = termios.tcgetattr(0)
        echoes = bool(modes[3] & termios.ECHO and modes[3] & termios.ICANON)
        os.write(1, f"suspended, terminal {'in order' if echoes else 'broken'}\r\n".encode())
        os.read(0, 1)
        os.tcsetpgrp(0, job)
        os.kill(job, signal.SIGCONT)


fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if os.environ.pop("CHAT_UNDER_SHELL", ""):
    run_as_job()

from toolcrib.__main__ import main  # noqa: E402 - the terminal comes first

sys.exit(main())
