"""Every exception that toolcrib raises on purpose, as one tree.

    ToolcribError
    ├── ConfigError             the config or .env file is invalid
    ├── UnknownName             an unknown name; carries the nearest known ones
    │   └── UnknownToolset
    ├── RegistrationError       a tool declaration is invalid (also a ValueError)
    ├── PluginError             a plugin cannot be found or loaded
    │   ├── PluginToolOverrideError (also a PermissionError)
    │   └── InstallRefused      code tried to install packages while it was loaded (in registry/install_guard.py)
    ├── ModelError              a model could not be reached or did not answer (in core/models.py)
    ├── JobError                a scheduled job cannot be read, written or run (in cron/jobs.py)
    ├── SessionError            a session cannot be found, read or written
    │   └── UnknownSession
    ├── EnvironmentFailed       a backend cannot be opened, or went away
    │   └── EnvironmentGone           an environment from an earlier process no longer exists
    ├── RefusedInToolCall       a toolcrib inside a tool call was asked for what only a person may do
    ├── PathChanged             a file or its path changed since it was checked
    └── UsageError              a caller misused the library
        └── MissingService      a tool needs a service that this runtime does not have

A message says what happened, to what, and what to do about it. `exit_code` is the exit code of the command line
when the error reaches it.
"""

from collections.abc import Iterable

from toolcrib.core.lazy import difflib


class ToolcribError(Exception):
    """Base class of all errors whose messages are shown to the user."""

    exit_code = 1


class ConfigError(ToolcribError):
    exit_code = 2


class UsageError(ToolcribError):
    exit_code = 2


class MissingService(UsageError):
    """A tool needs a service that this runtime does not have."""


class EnvironmentFailed(ToolcribError):
    """An environment cannot be used; says what is missing and what to do."""


class EnvironmentGone(EnvironmentFailed):
    """An earlier toolcrib process's environment no longer exists, so nothing in it is still running."""


class RefusedInToolCall(ToolcribError):
    """A tool call started this process, so it does not do what only a person may decide."""


class PathChanged(ToolcribError):
    """A file or its path changed since it was checked; the operation did not touch it."""


class SessionError(ToolcribError):
    """A session cannot be found, read or written; says which one and what to do."""


class UnknownSession(SessionError):
    """No session, or more than one, has this id; suggests the likely ones."""

    exit_code = 2


class RegistrationError(ToolcribError, ValueError):
    """A tool that cannot be registered; other tools are not affected."""


class PluginError(ToolcribError):
    pass


class PluginToolOverrideError(PluginError, PermissionError):
    """A plugin tried to replace or remove another source's tool without the operator's consent."""


class UnknownName(ToolcribError):
    """An unknown name. `nearest` holds the likely alternatives."""

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
