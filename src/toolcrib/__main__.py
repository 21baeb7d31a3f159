"""The program `toolcrib`, also as `python -m toolcrib`."""

import atexit
import gc
import os
import signal
import sys

from toolcrib.version import __version__

GC_THRESHOLD = 100_000
INTERRUPTED = 130


def main() -> int:
    """Run the command line; returns the exit code."""
    _open_closed_streams()
    # Answered before the command line is imported: scripts and prompts ask for it again and again.
    if sys.argv[1:] in (["--version"], ["-V"]) and _has_printed_version():
        return 0
    # A command makes tens of thousands of objects while it imports and keeps them all: looking for garbage among
    # them again and again takes a tenth of its time.
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(_end_quickly)
    try:
        from toolcrib.config.environment import hide_secrets  # noqa: PLC0415 - `--version` has nothing to hide

        hide_secrets()
        from toolcrib.cli.app import run  # noqa: PLC0415 - imports click, which `--version` does without

        _exit_on_signals()
        _ignore_signals_alone()
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        _exit_at_next_interrupt()
        _close_runtime()


def _close_runtime() -> None:
    """Close what a command opened now: at its exit, Python starts no more threads, which foreign code may need."""
    if api := sys.modules.get("toolcrib.api"):
        api.reset_default_runtime()


def _exit_at_next_interrupt() -> None:
    """The work is over: Ctrl-C must not wait for a thread that still runs, nor show where Python happens to be."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _received, _frame: os._exit(INTERRUPTED))


def _end_quickly() -> None:
    """What comes after this takes no time, and a handler in Python would no longer run."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Python looks through all objects once more before it ends, which takes a fifth of the time of a short command.
    gc.freeze()


def _has_printed_version() -> bool:
    """Print the version; False if that is not possible, so that the command line reports why."""
    try:
        sys.stdout.write(f"toolcrib {__version__}\n")
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _open_closed_streams() -> None:
    """Point closed standard streams at the null device; otherwise the next file to be opened would take their place.

    Writing to a closed stdout still fails, because its result is lost; messages on stderr may be.
    """
    for descriptor, name, mode, access in (
        (0, "stdin", "r", os.O_RDONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            # `open` takes the lowest free number, which is this one.
            os.open(os.devnull, access)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


def _exit_on_signals() -> None:
    """Shut down in order when the terminal closes or on SIGTERM, as on Ctrl-C."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # `nohup` ignores SIGHUP, and so do we then.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda received, _: sys.exit(128 + received))


def _ignore_signals_alone() -> None:
    """Keep ignoring what `nohup` or a script's `&` made us ignore, but without passing that on to commands.

    A child inherits an ignored signal, so that Ctrl-C would not reach it; a handler is not inherited.
    """
    for name in ("SIGHUP", "SIGINT", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _received, _frame: None)


if __name__ == "__main__":
    sys.exit(main())
