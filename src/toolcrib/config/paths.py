"""The home folder of a user and the names inside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from toolcrib.core.errors import ConfigError


class Home(Struct, frozen=True, eq=False):
    """The folder with everything that belongs to one user. Getting a path creates nothing."""

    root: Path
    shared_with_hermes: bool = False
    """Whether HERMES_HOME named it: the files may belong to Hermes Agent, so unknown keys are ignored."""

    def __eq__(self, other: object) -> bool:
        """Homes are equal if they are the same folder, however it was found."""
        return isinstance(other, Home) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    @property
    def config_file(self) -> Path:
        return self.root / "config.yaml"

    @property
    def env_file(self) -> Path:
        return self.root / ".env"

    @property
    def tools_dir(self) -> Path:
        return self.root / "tools"

    @property
    def plugins_dir(self) -> Path:
        return self.root / "plugins"

    @property
    def skills_dir(self) -> Path:
        return self.root / "skills"

    @property
    def commands_dir(self) -> Path:
        """The user's own slash commands for the chat, as Markdown files."""
        return self.root / "commands"

    @property
    def memories_dir(self) -> Path:
        return self.root / "memories"

    def memories_of(self, owner: str) -> Path:
        """The memories of an owner; those of the home's own owner have an empty name."""
        return self.root / "owners" / owner / "memories" if owner else self.memories_dir

    @property
    def sessions_file(self) -> Path:
        """The database of all sessions."""
        return self.root / "sessions.db"

    @property
    def cron_file(self) -> Path:
        """The database of scheduled jobs and their runs."""
        return self.root / "cron.db"

    @property
    def board_file(self) -> Path:
        """The database of the board."""
        return self.root / "board.db"

    @property
    def board_files_dir(self) -> Path:
        """The attachments of the board's cards."""
        return self.root / "board_files"

    @property
    def images_dir(self) -> Path:
        """Images that models made."""
        return self.root / "images"

    @property
    def chat_history_file(self) -> Path:
        """The input history of the chat, for the arrow keys."""
        return self.root / "chat_history"

    @property
    def soul_file(self) -> Path:
        """The user's own description of who the agent is."""
        return self.root / "SOUL.md"

    @property
    def log_file(self) -> Path:
        return self.root / "logs" / "toolcrib.log"

    @property
    def trusted_folders_file(self) -> Path:
        """The project folders whose instructions the person trusts."""
        return self.root / "trusted_folders.json"

    @property
    def skill_authors_file(self) -> Path:
        """The skills that agents wrote and nobody has reviewed."""
        return self.root / "skill_authors.json"

    @property
    def approvals_file(self) -> Path:
        return self.root / "approvals.jsonl"

    @property
    def serve_dir(self) -> Path:
        """The tokens of the server, and its runs."""
        return self.root / "serve"

    @property
    def serve_token_file(self) -> Path:
        """The token of the home's owner."""
        return self.serve_dir / "token"

    @property
    def serve_address_file(self) -> Path:
        """The URL of the server that works in this home, while it does."""
        return self.serve_dir / "address"

    @property
    def processes_dir(self) -> Path:
        return self.root / "processes"

    @property
    def results_dir(self) -> Path:
        return self.root / "cache" / "results"

    @property
    def undo_dir(self) -> Path:
        """The snapshots of files from before tools changed them."""
        return self.root / "cache" / "undo"

    @property
    def web_dir(self) -> Path:
        """The full texts and images of fetched web pages."""
        return self.root / "cache" / "web"

    @property
    def browser_dir(self) -> Path:
        """Screenshots and full snapshots of pages."""
        return self.root / "cache" / "browser"

    @property
    def browser_profiles_dir(self) -> Path:
        """Named browser profiles, with their cookies and logins."""
        return self.root / "browser_profiles"

    @property
    def default_model_told_file(self) -> Path:
        """Exists once the person was told what to expect of the embedded model."""
        return self.root / "cache" / "default_model_told"

    @property
    def model_lists_file(self) -> Path:
        """The models that providers listed recently."""
        return self.root / "cache" / "models.json"

    @property
    def scan_cache_file(self) -> Path:
        return self.root / "cache" / "scan.json"


def find_home(environ: Mapping[str, str] | None = None) -> Home:
    """The home in use: TOOLCRIB_HOME, else HERMES_HOME, else ~/.toolcrib. An empty variable counts as unset."""
    environ = os.environ if environ is None else environ
    if environ.get("TOOLCRIB_HOME"):
        return Home(_folder("TOOLCRIB_HOME", environ["TOOLCRIB_HOME"], environ))
    if environ.get("HERMES_HOME"):
        return Home(_folder("HERMES_HOME", environ["HERMES_HOME"], environ), shared_with_hermes=True)
    return Home(_folder("HOME", "~/.toolcrib", environ))


def find_hermes_home(environ: Mapping[str, str] | None = None) -> Path:
    """Where Hermes Agent keeps its files: HERMES_HOME, else ~/.hermes."""
    environ = os.environ if environ is None else environ
    return _folder("HERMES_HOME", environ.get("HERMES_HOME") or "~/.hermes", environ)


def model_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for the weights of embedded models, one copy per user.

    TOOLCRIB_MODEL_DIR, else `toolcrib/models` in XDG_CACHE_HOME or ~/.cache. Not in the home, which is worth a backup.
    """
    environ = os.environ if environ is None else environ
    if environ.get("TOOLCRIB_MODEL_DIR"):
        return _folder("TOOLCRIB_MODEL_DIR", environ["TOOLCRIB_MODEL_DIR"], environ)
    cache = environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path there counts as unset.
    return _folder("TOOLCRIB_MODEL_DIR", cache if cache.startswith("/") else "~/.cache", environ) / "toolcrib/models"


def _folder(variable: str, text: str, environ: Mapping[str, str]) -> Path:
    """The folder that a variable names, made absolute because the current directory may change later."""
    own_home = environ.get("HOME")
    if own_home and (text == "~" or text.startswith("~/")):
        return Path(own_home + text[1:]).absolute()
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"cannot resolve the folder {text!r}; set {variable} to a full path, for example /home/me/.toolcrib"
        ) from error
