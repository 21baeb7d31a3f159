"""Every exception that toolcrib raises on purpose, as one tree.

    ToolcribError
    ├── ConfigError             the config or .env file says something that we cannot use
    ├── UnknownName             a name that nothing answers to; carries the nearest ones
    │   └── UnknownToolset
    ├── RegistrationError       a tool cannot be registered as its author wrote it (also a ValueError)
    ├── PluginError             a plugin cannot be found or loaded
    │   └── PluginToolOverrideError (also a PermissionError)
    ├── ModelError              a model could not be reached or did not answer (in core/models.py)
    ├── JobError                a scheduled job cannot be read, written or run (in cron/jobs.py)
    ├── SessionError            a session cannot be found, read or written
    │   └── UnknownSession
    ├── EnvironmentFailed       a backend cannot be opened, or went away
    │   └── EnvironmentGone           an environment that was left no longer exists
    ├── PathChanged             a file, or the way to it, is not what it was when it was looked at
    └── UsageError              a caller used the library in a way that it forbids

A message says what happened, to which thing, and what to do about it. `exit_code` is what the
command line answers with when the error reaches it.
"""

from collections.abc import Iterable

from toolcrib.core.lazy import difflib


class ToolcribError(Exception):
    """Base of all errors that speak to the person in front of the screen."""

    exit_code = 1


class ConfigError(ToolcribError):
    exit_code = 2


class UsageError(ToolcribError):
    exit_code = 2


class EnvironmentFailed(ToolcribError):
    """An environment cannot be used; says what is missing and what to do."""


class EnvironmentGone(EnvironmentFailed):
    """An environment that an earlier toolcrib process left no longer exists, so nothing in it still runs."""


class PathChanged(ToolcribError):
    """A file, or the way to it, is not what it was when it was looked at; nothing was done to it."""


class SessionError(ToolcribError):
    """A session cannot be found, read or written; says which one and what to do."""


class UnknownSession(SessionError):
    """No session, or more than one, has this id; says which were probably meant."""

    exit_code = 2


class RegistrationError(ToolcribError, ValueError):
    """A tool that cannot be registered; only that tool is lost."""


class PluginError(ToolcribError):
    pass


class PluginToolOverrideError(PluginError, PermissionError):
    """A plugin tried to replace or remove a tool that is not its own, without the operator's consent."""


class UnknownName(ToolcribError):
    """A name that nothing answers to. `nearest` holds what was probably meant."""

    exit_code = 2
    kind = "name"

    def __init__(self, name: str, known: Iterable[str], *, advice: str = "") -> None:
        self.name = name
        self.nearest = nearest_names(name, known)
        parts = [f"unknown {self.kind} {name!r}"]
        if self.nearest:
            parts.append(f"did you mean {' or '.join(repr(found) for found in self.nearest)}?")
        if advice:
            parts.append(advice)
        super().__init__("; ".join(parts).replace("?; ", "? "))


class UnknownToolset(UnknownName):
    kind = "toolset"


def nearest_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names that look most like `name`, best first."""
    by_lowercase = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lowercase, n=limit, cutoff=0.6)
    return [by_lowercase[found] for found in close]
