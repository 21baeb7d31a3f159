"""The program `toolcrib`, also as `python -m toolcrib`."""

import os
import signal
import sys

from toolcrib.version import __version__


def main() -> int:
    """Run the command line; returns the exit code."""
    # Answered before the command line is imported: scripts and prompts ask for it again and again.
    if sys.argv[1:] in (["--version"], ["-V"]):
        sys.stdout.write(f"toolcrib {__version__}\n")
        return 0
    _open_closed_streams()
    try:
        from toolcrib.config.clean_start import hide_secrets  # noqa: PLC0415 - `--version` has nothing to hide

        hide_secrets()
        from toolcrib.cli.app import run  # noqa: PLC0415 - imports click, which `--version` does without

        _leave_orderly()
        return run()
    except KeyboardInterrupt:
        return 130


def _open_closed_streams() -> None:
    """Lead a standard stream that was closed to nowhere: the next file that is opened would take its place."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free, which is this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


def _leave_orderly() -> None:
    """A closed window or a polite `kill` ends what runs, as Ctrl-C does."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Whoever started us with `nohup` wants us to go on.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda received, _: sys.exit(128 + received))


if __name__ == "__main__":
    sys.exit(main())
