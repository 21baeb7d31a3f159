"""The TERMINAL_* variables that win over the `terminal` section, and the flat keys that Hermes Agent has for the same.

Both come from one table: the key `docker_image` of Hermes Agent, and TERMINAL_DOCKER_IMAGE, are our
`terminal.docker.image`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from msgspec import UNSET
from msgspec.structs import replace

from toolcrib.config.schema import Reader, describe_type, find_setting
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import dotted
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
"""Names after `terminal.` in a config of Hermes Agent, and after TERMINAL_ in the environment, with ours."""

HERMES_KEYS = FLAT_KEYS | {"auto_source_bashrc": ("login_shell",)}
VARIABLES = {"TERMINAL_ENV": ("backend",)} | {f"TERMINAL_{name.upper()}": keys for name, keys in FLAT_KEYS.items()}

YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def with_variables(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """The settings with what TERMINAL_* variables say; raises ConfigError with one line for each that is unusable.

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
    """Where a key of Hermes Agent's config stands in ours: itself, unless it is one of the flat terminal keys."""
    if path[:1] == ("terminal",) and len(path) > 1 and path[1] in HERMES_KEYS:
        for key in HERMES_KEYS[path[1]]:
            yield ("terminal", *key.split("."), *path[2:])
    else:
        yield path


def with_our_keys(data: Any) -> Any:
    """A config of Hermes Agent with its flat terminal keys where ours are; what is written in our way wins."""
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
    reader = Reader()
    found = reader.setting(setting, _plain(setting.expected, text))
    if found is UNSET or reader.problems:
        problem = reader.problems[0][1] if reader.problems else f"{key!r} should be {describe_type(setting.expected)}"
        said = problem.partition(";")[0].replace(repr(dotted(setting.path)), f"the variable {variable}")
        raise ConfigError(f"{said}; correct or unset it in the environment or in .env")
    return found


def _plain(expected: Any, text: str) -> Any:
    """The text of a variable as plain data; what cannot be read as that stays text, and is refused as such."""
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
    # "1.0" is a whole number as well.
    return int(number) if expected is int and number.is_integer() else number


def _put(section: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *rest = path
    return replace(section, **{name: _put(getattr(section, name), tuple(rest), value) if rest else value})
