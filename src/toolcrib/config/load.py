"""The config file and the environment into Settings, strictly: all that is wrong with the file is reported at once."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from toolcrib.config.env_file import load_env_file
from toolcrib.config.paths import Home, find_home
from toolcrib.config.schema import Reader
from toolcrib.config.settings import Settings
from toolcrib.config.terminal_variables import with_our_keys, with_variables
from toolcrib.config.yaml_text import parse
from toolcrib.core.errors import ConfigError

BOM = "\ufeff"


def load_settings(home: Home | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force; raises ConfigError with one line for each problem of the file."""
    environ = os.environ if environ is None else environ
    home = find_home(environ) if home is None else home
    settings, problems = read_config(read_text(home), home)
    if problems:
        raise ConfigError("\n".join(problems))
    settings = with_variables(settings, _with_env_file(environ, home))
    if _switch(environ, "ENABLE_PROJECT_PLUGINS"):
        settings = replace(settings, plugins=replace(settings.plugins, project=True))
    yolo = _switch(environ, "YOLO", of_hermes="YOLO_MODE")
    return replace(settings, home=home, safe_mode=_switch(environ, "SAFE_MODE"), yolo=yolo)


def check_settings(home: Home) -> list[str]:
    """What is wrong with the config file, one sentence each; an empty list when nothing is."""
    try:
        return read_config(read_text(home), home)[1]
    except ConfigError as error:
        return str(error).splitlines()


def read_config(text: str, home: Home) -> tuple[Settings, list[str]]:
    """What the text of a config file says, and what is wrong with it. Broken YAML is a ConfigError."""
    name = str(home.config_file)
    document = parse(text.removeprefix(BOM), name)
    reader = Reader(ignore_unknown=home.shared_with_hermes)
    data = with_our_keys(document.data) if home.shared_with_hermes else document.data
    settings = Settings(home=home) if data is None else reader.section(Settings, data)
    found = document.problems + [(document.line_of(path), message) for path, message in reader.problems]
    return settings, [f"{name}:{line}: {message}" for line, message in sorted(found)]


def read_text(home: Home) -> str:
    """The text of the config file as it is, line ends included; empty when there is no file."""
    path = home.config_file
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the file is not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"cannot read {str(path)!r} ({error.strerror}); check that it is a file you may read"
        ) from error


def _with_env_file(environ: Mapping[str, str], home: Home) -> Mapping[str, str]:
    """The variables with those of the `.env` file behind them; a broken line of it is reported by who loads it."""
    variables = dict(environ)
    load_env_file(home, variables)
    return variables


def _switch(environ: Mapping[str, str], name: str, of_hermes: str = "") -> bool:
    """A yes-or-no variable; ours wins over the one of Hermes Agent."""
    ours = environ.get(f"TOOLCRIB_{name}")
    text = environ.get(f"HERMES_{of_hermes or name}", "") if ours is None else ours
    return text.strip().lower() in ("1", "true", "yes", "on")
