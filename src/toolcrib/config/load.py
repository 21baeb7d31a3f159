"""Loads the settings: the config file, then the TERMINAL_* variables, then the switches of the environment.

TERMINAL_* variables win over the `terminal` section. One table holds them and the flat keys of Hermes Agent for
the same settings: its key `docker_image`, and TERMINAL_DOCKER_IMAGE, are our `terminal.docker.image`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from msgspec import UNSET
from msgspec.structs import replace

from toolcrib.config.env_file import load_env_file
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.config.paths import Home, find_home
from toolcrib.config.schema import SettingsReader, describe_type, find_setting
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import dotted, parse
from toolcrib.core.errors import ConfigError

FLAT_KEYS: dict[str, tuple[str, ...]] = {
    "cwd": ("cwd",),
    "timeout": ("timeout",),
    "lifetime_seconds": ("lifetime_seconds",),
    "max_foreground_timeout": ("max_foreground_timeout",),
    "ssh_host": ("ssh.host",),
    "ssh_user": ("ssh.user",),
    "ssh_port": ("ssh.port",),
    "ssh_key": ("ssh.key",),
    "docker_image": ("docker.image",),
    "docker_volumes": ("docker.volumes",),
    "docker_network": ("docker.network",),
    "docker_env": ("docker.env",),
    "docker_forward_env": ("docker.env_passthrough",),
    "docker_extra_args": ("docker.extra_args",),
    "docker_run_as_host_user": ("docker.run_as_host_user",),
    "docker_mount_cwd_to_workspace": ("docker.mount_cwd",),
    "singularity_image": ("singularity.image",),
    "modal_image": ("modal.image",),
    "daytona_image": ("daytona.image",),
    "container_cpu": ("docker.cpus", "singularity.cpus", "modal.cpus", "daytona.cpus"),
    "container_memory": ("docker.memory_mb", "singularity.memory_mb", "modal.memory_mb", "daytona.memory_mb"),
    "container_disk": ("docker.disk_mb", "daytona.disk_mb"),
    "container_persistent": ("docker.persistent",),
}
"""Hermes Agent's names after `terminal.` in its config and after TERMINAL_ in the environment, with our names."""

HERMES_KEYS = FLAT_KEYS | {"auto_source_bashrc": ("login_shell",)}
VARIABLES = {"TERMINAL_ENV": ("backend",)} | {f"TERMINAL_{name.upper()}": keys for name, keys in FLAT_KEYS.items()}

YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def with_variables(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """The settings with the TERMINAL_* variables applied; raises ConfigError with one line for each unusable one.

    An empty variable counts as unset.
    """
    problems: list[str] = []
    for variable, keys in VARIABLES.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        for key in keys:
            try:
                settings = _put(settings, ("terminal", *key.split(".")), _value(variable, key, text))
            except ConfigError as error:
                problems.append(str(error))
                break
    if problems:
        raise ConfigError("\n".join(problems))
    return settings


def our_keys(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The path in our config for a key of Hermes Agent's: itself, unless it is one of the flat terminal keys."""
    if path[:1] == ("terminal",) and len(path) > 1 and path[1] in HERMES_KEYS:
        for key in HERMES_KEYS[path[1]]:
            yield ("terminal", *key.split("."), *path[2:])
    else:
        yield path


def with_our_keys(data: Any) -> Any:
    """A Hermes Agent config with its flat terminal keys moved to our paths; keys at our paths win."""
    terminal = data.get("terminal") if isinstance(data, dict) else None
    if not isinstance(terminal, dict):
        return data
    moved = {name: value for name, value in terminal.items() if name not in HERMES_KEYS}
    for name, value in terminal.items():
        for key in HERMES_KEYS.get(name, ()):
            section, _, last = key.rpartition(".")
            if not section:
                moved.setdefault(last, value)
            elif isinstance(inner := moved.get(section) or {}, dict):
                moved[section] = {last: value} | inner
    return {**data, "terminal": moved}


def _value(variable: str, key: str, text: str) -> Any:
    setting = find_setting(f"terminal.{key}")
    reader = SettingsReader()
    found = reader.setting(setting, _plain(setting.expected, text))
    if found is UNSET or reader.problems:
        problem = reader.problems[0][1] if reader.problems else f"{key!r} should be {describe_type(setting.expected)}"
        said = problem.partition(";")[0].replace(repr(dotted(setting.path)), f"the variable {variable}")
        raise ConfigError(f"{said}; correct or unset it in the environment or in .env")
    return found


def _plain(expected: Any, text: str) -> Any:
    """The text of a variable as plain data; what cannot be parsed stays text and is rejected as such."""
    origin = get_origin(expected)
    if expected is str:
        return text
    if expected is bool or "on" in get_args(expected):
        word = text.lower()
        return True if word in YES else False if word in NO else text
    if expected in (int, float):
        return _number(expected, text)
    if origin in (list, dict) and text[0] in "[{":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return [item.strip() for item in text.split(",")] if origin is list else text


def _number(expected: type[int] | type[float], text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    # "1.0" is a whole number too.
    return int(number) if expected is int and number.is_integer() else number


def _put(section: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *rest = path
    return replace(section, **{name: _put(getattr(section, name), tuple(rest), value) if rest else value})


BOM = "\ufeff"


def load_settings(home: Home | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The effective settings; raises ConfigError with one line for each problem in the file."""
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
    """What is wrong with the config file, one sentence each; an empty list if it is valid."""
    try:
        return read_config(read_text(home), home)[1]
    except ConfigError as error:
        return str(error).splitlines()


def read_config(text: str, home: Home) -> tuple[Settings, list[str]]:
    """Parses the text of a config file; returns the settings and the problems. Broken YAML is a ConfigError."""
    name = str(home.config_file)
    document = parse(text.removeprefix(BOM), name)
    reader = SettingsReader(ignore_unknown=home.shared_with_hermes)
    data = with_our_keys(document.data) if home.shared_with_hermes else document.data
    settings = Settings(home=home) if data is None else reader.section(Settings, data)
    found = document.problems + [(document.line_of(path), message) for path, message in reader.problems]
    return settings, [f"{name}:{line}: {message}" for line, message in sorted(found)]


def read_text(home: Home) -> str:
    """The text of the config file with its original line ends; empty if there is no file."""
    path = home.config_file
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the file is not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(explain_os_error(error, "read", path, otherwise=ANOTHER_HOME)) from error


def _with_env_file(environ: Mapping[str, str], home: Home) -> Mapping[str, str]:
    """The variables, with those of the `.env` file as a fallback; the loader of `.env` reports its broken lines."""
    variables = dict(environ)
    load_env_file(home, variables)
    return variables


def is_yes(text: str) -> bool:
    """Whether a word in a variable or a config means yes; unknown words mean no."""
    return text.strip().lower() in YES


def _switch(environ: Mapping[str, str], name: str, of_hermes: str = "") -> bool:
    """A yes-or-no variable; ours wins over Hermes Agent's."""
    ours = environ.get(f"TOOLCRIB_{name}")
    text = environ.get(f"HERMES_{of_hermes or name}", "") if ours is None else ours
    return is_yes(text)
