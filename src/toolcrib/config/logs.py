"""The log file: rotating, private to its owner, with secrets masked; failing writes are ignored."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.paths import Home
from toolcrib.config.redact import MASK, redact
from toolcrib.config.settings import LogLevel

if TYPE_CHECKING:
    from logging.handlers import RotatingFileHandler

MAX_BYTES = 1_000_000
BACKUPS = 3
# Masking shorter values would mask half of every sentence.
MIN_SECRET_CHARS = 4
LOGGER_NAME = "toolcrib"
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(home: Home, level: LogLevel, secrets: Callable[[], Iterable[str]]) -> Callable[[], None]:
    """Send the records of the `toolcrib` logger to the log file; returns a function that undoes it.

    Creates nothing before the first record. A second call replaces the first.
    """
    logger = logging.getLogger(LOGGER_NAME)
    level_before = logger.level
    for earlier in [handler for handler in logger.handlers if isinstance(handler, _LogFile)]:
        level_before = earlier.level_before
        logger.removeHandler(earlier)
        earlier.close()
    handler = _LogFile(home.log_file, level_before)
    handler.setFormatter(_MaskingFormatter(secrets))
    handler.setLevel(level.upper())
    logger.addHandler(handler)
    # Only lower the level: another handler may want more than we write.
    logger.setLevel(min(handler.level, logger.getEffectiveLevel()))

    def detach() -> None:
        if handler in logger.handlers:
            logger.removeHandler(handler)
            logger.setLevel(level_before)
        handler.close()

    return detach


def is_logging() -> bool:
    """Whether some runtime of this process already writes a log file."""
    return any(isinstance(handler, _LogFile) for handler in logging.getLogger(LOGGER_NAME).handlers)


class _LogFile(logging.Handler):
    """Opens the rotating file at the first record; a record that cannot be written is dropped."""

    def __init__(self, path: Path, level_before: int) -> None:
        super().__init__()
        self.level_before = level_before
        self._path = path
        self._file: RotatingFileHandler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        # A full disk must never affect the code that logs; `logging` itself drops a record that it cannot format.
        with contextlib.suppress(OSError, RecursionError):
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        if self._file is None:
            self._file = _open(self._path)
        self._file.setFormatter(self.formatter)
        self._file.emit(record)

    def close(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError:
            pass  # the last bytes did not fit on the disk, and there is nowhere to say so
        super().close()


class _MaskingFormatter(logging.Formatter):
    """One record as text, including the traceback, without secrets."""

    def __init__(self, secrets: Callable[[], Iterable[str]]) -> None:
        super().__init__(LINE)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in sorted(set(self._secrets()), key=len, reverse=True):
            if len(secret) >= MIN_SECRET_CHARS:
                text = text.replace(secret, MASK)
        return redact(text)


def _open(path: Path) -> RotatingFileHandler:
    # This imports sockets and pickle, which a run without log records does not need.
    from logging.handlers import RotatingFileHandler  # noqa: PLC0415

    class OwnerOnly(RotatingFileHandler):
        def _open(self) -> IO[str]:  # type: ignore[override]
            descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER_FILE)
            return os.fdopen(descriptor, self.mode, encoding="utf-8", errors="backslashreplace")

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
            """Drop the record: printing an error would mix with the program's output."""

    make_folder(path.parent)
    return OwnerOnly(path, maxBytes=MAX_BYTES, backupCount=BACKUPS, delay=True)
