"""`hermes_cli.config`: the config file as one dict, and the keys in `.env`. Writes are checked and atomic."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.compat.hermes_constants import display_hermes_home, get_hermes_home
from toolcrib.config import edit, env_file
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.environment import looks_secret
from toolcrib.config.files import make_folder, replace_file, writing
from toolcrib.config.load import BOM, load_settings, read_text
from toolcrib.config.paths import find_home
from toolcrib.config.schema import file_settings, find_setting
from toolcrib.config.settings import Settings
from toolcrib.config.yaml_text import parse
from toolcrib.core.errors import ConfigError

__all__ = [
    "DEFAULT_CONFIG",
    "OPTIONAL_ENV_VARS",
    "REQUIRED_ENV_VARS",
    "cfg_get",
    "display_hermes_home",
    "ensure_hermes_home",
    "get_config_path",
    "get_env_path",
    "get_env_value",
    "get_hermes_home",
    "load_config",
    "load_env",
    "read_config_file",
    "read_raw_config",
    "remove_env_value",
    "save_config",
    "save_env_value",
    "set_config_value",
]

logger = logging.getLogger(__name__)

Config = dict[str, Any]

FOREIGN_FILE = "plugin_config.json"
REQUIRED_ENV_VARS: dict[str, dict[str, Any]] = {}


def _defaults() -> Config:
    settings = Settings()
    return {name: msgspec.to_builtins(getattr(settings, name)) for name in file_settings(Settings)}


DEFAULT_CONFIG: Config = _defaults()


def get_config_path() -> Path:
    return find_home().config_file


def get_env_path() -> Path:
    return find_home().env_file


def ensure_hermes_home() -> None:
    """Create the home folder, private to its owner, if it does not exist."""
    make_folder(get_hermes_home())


def load_config() -> Config:
    """The defaults overlaid with the config file, as a new dict."""
    load_settings()  # strict: says all that is wrong with the file
    return _merged(DEFAULT_CONFIG, read_config_file())


def read_raw_config() -> Config:
    """What the config file says, without defaults; {} if there is none or it cannot be read."""
    try:
        return read_config_file()
    except ConfigError as error:
        logger.warning("%s", error)
        return {}


def read_config_file(path: Path | None = None) -> Config:
    """The contents of the config file, or of another one; raises ConfigError if it is not YAML."""
    home = find_home()
    file = path or home.config_file
    text = read_text(home) if path is None else _text_of(path)
    data = parse(text.removeprefix(BOM), str(file)).data
    written = data if isinstance(data, dict) else {}
    return written if path is not None else _merged(written, _read_foreign())


def cfg_get(cfg: Config | None, *keys: str, default: Any = None) -> Any:
    """The value at a path of keys; `default` where a key is missing or something on the way is no mapping."""
    found: Any = cfg
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return default
        found = found[key]
    return default if cfg is None else found


def set_config_value(key: str, value: str, force: bool = False) -> None:  # noqa: ARG001 - nothing has to be forced
    """Set one value by its dotted key, from text; a variable that holds a key or password goes to `.env`."""
    if key in OPTIONAL_ENV_VARS or (key.isupper() and looks_secret(key, value)):
        save_env_value(key, value)
        return
    path = tuple(key.split("."))
    if _is_setting(path):
        edit.set_value(find_home(), key, str(value))
    else:
        _put({path: parse(value, key).data if isinstance(value, str) and value.strip() else value})


def save_config(
    config: Config,
    *,
    strip_defaults: bool = True,  # noqa: ARG001
    preserve_keys: Collection[str | tuple[str, ...]] | None = None,
    merge_existing: bool = False,
) -> None:
    """Write what differs from the effective config; a key missing from `config` gets its default again.

    Keys in `preserve_keys`, and with `merge_existing` all keys, stay as they are where `config` lacks them. What equals
    the config in force is never written, so that `strip_defaults` changes nothing.
    """
    home = find_home()
    _put(_changes(load_config(), config, ()))
    if merge_existing:
        return
    kept = {*config, *(key if isinstance(key, str) else key[0] for key in preserve_keys or ())}
    foreign = _read_foreign()
    if foreign.keys() - kept:
        _write_foreign({key: value for key, value in foreign.items() if key in kept})
    for key in [key for key in read_config_file() if key not in kept and key not in foreign and _is_setting((key,))]:
        edit.unset_value(home, key)


def load_env() -> dict[str, str]:
    """The values of `.env`."""
    return env_file.read_env_file(get_env_path())


def get_env_value(key: str) -> str | None:
    """The value of a variable: from the environment, else from `.env`."""
    return env_file.get_env_value(find_home(), key, os.environ)


def save_env_value(key: str, value: str) -> None:
    """Write a value to `.env`, and let this process see it."""
    env_file.save_env_value(find_home(), key, value)
    os.environ[key] = value


def remove_env_value(key: str) -> bool:
    """Remove a variable from `.env` and from this process; False if it was not in the file."""
    known = key in load_env()
    env_file.remove_env_value(find_home(), key)
    os.environ.pop(key, None)
    return known


def _put(changes: dict[tuple[str, ...], Any]) -> None:
    """Write our settings to the config file, and keys of plugins to a file of their own, because ours is strict."""
    home = find_home()
    is_shared = home.shared_with_hermes
    ours = {path: value for path, value in changes.items() if is_shared or _is_setting(path)}
    if ours:
        edit.put_values(home, ours)
    foreign = {path: value for path, value in changes.items() if path not in ours}
    if foreign:
        content = _read_foreign()
        for path, value in foreign.items():
            section = content
            for key in path[:-1]:
                inner = section.get(key)
                section[key] = section = inner if isinstance(inner, dict) else {}
            section[path[-1]] = value
        _write_foreign(content)


def _read_foreign() -> Config:
    """The keys that are none of toolcrib's settings."""
    try:
        content = json.loads((get_hermes_home() / FOREIGN_FILE).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("cannot read %s, which keeps the settings of plugins: %s", FOREIGN_FILE, error)
        return {}
    return content if isinstance(content, dict) else {}


def _write_foreign(content: Config) -> None:
    with writing(get_hermes_home() / FOREIGN_FILE) as file:
        replace_file(file, json.dumps(content, indent=2, ensure_ascii=False).encode())


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r} ({error}); check the file") from error


def _merged(below: Config, above: Config) -> Config:
    merged = deepcopy(below)
    for key, value in above.items():
        known = merged.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[key] = _merged(known, value)
        elif value is not None or key not in merged:
            merged[key] = deepcopy(value)
    return merged


def _changes(old: Config, new: Config, path: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
    """The smallest values that have to be written, by their path."""
    changes: dict[tuple[str, ...], Any] = {}
    for key, value in new.items():
        here = (*path, key)
        known = old.get(key)
        if key in old and known == value:
            continue
        if isinstance(known, dict) and isinstance(value, dict) and _is_setting(here) and known.keys() <= value.keys():
            changes |= _changes(known, value, here)
        else:
            changes[here] = value
    return changes


def _is_setting(path: tuple[str, ...]) -> bool:
    """False for keys of other programs that share the file: those are written as a whole."""
    try:
        find_setting(".".join(path))
    except ConfigError:
        return False
    return True
