"""Imports a Hermes Agent home: first makes a plan, then carries it out; overwrites nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_origin

from msgspec import UNSET

from toolcrib.config.edit import put_values
from toolcrib.config.env_file import read_env_file, save_env_values
from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.load import BOM, our_keys, read_text
from toolcrib.config.paths import Home
from toolcrib.config.schema import Setting, SettingsReader, find_setting, is_section
from toolcrib.config.yaml_text import dotted, parse
from toolcrib.core.errors import ConfigError

Action = Literal["bring", "keep ours", "not carried over", "left in place"]
SERVERS = "mcp_servers"
NO_SETTING = "toolcrib has no setting with that name"
YAML_1_1_WORDS = {"yes": True, "on": True, "no": False, "off": False}


@dataclass(frozen=True, kw_only=True)
class ImportItem:
    """One item of the old home and what happens to it. `payload` is what to write; it may be a secret."""

    name: str
    action: Action
    reason: str = ""
    setting: tuple[str, ...] = ()
    variable: str = ""
    copies: tuple[tuple[Path, Path], ...] = field(default=(), repr=False)
    payload: Any = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class ImportPlan:
    """What `toolcrib import hermes` will do. Making a plan changes nothing."""

    source: Path
    home: Home
    items: tuple[ImportItem, ...]


def plan_import(source: Path, home: Home) -> ImportPlan:
    """The import plan for a Hermes Agent home; read-only."""
    source = source.expanduser()
    if not source.is_dir():
        raise ConfigError(f"there is no Hermes Agent home at {str(source)!r}; set HERMES_HOME to its folder")
    if source.resolve() == home.root.resolve():
        raise ConfigError(
            f"toolcrib already uses {str(source)!r} as its home; set TOOLCRIB_HOME to the folder to import into"
        )
    items = [
        *_plan_config(source, home),
        *_plan_env(source, home),
        *_plan_folders(source, home),
        *_plan_rest(source, home),
    ]
    return ImportPlan(source=source, home=home, items=tuple(items))


def apply_import(plan: ImportPlan) -> list[str]:
    """Carry out the plan; returns a sentence for each file that could not be copied."""
    chosen = [item for item in plan.items if item.action == "bring"]
    settings = {item.setting: item.payload for item in chosen if item.setting}
    if settings:
        put_values(plan.home, settings)
    present = read_env_file(plan.home.env_file)
    variables = {item.variable: item.payload for item in chosen if item.variable and item.variable not in present}
    if variables:
        save_env_values(plan.home, variables)
    problems = [_copy(here, there) for item in chosen for here, there in item.copies]
    return [problem for problem in problems if problem]


def describe(plan: ImportPlan) -> str:
    """The plan as readable text, one line per item, ending with the next command to run."""
    headings: dict[Action, str] = {
        "bring": "To import:",
        "keep ours": "Already exists here and stays unchanged:",
        "not carried over": "Not imported:",
        "left in place": "Left in place:",
    }
    lines = [f"From {plan.source} to {plan.home.root}."]
    for action, heading in headings.items():
        found = [item for item in plan.items if item.action == action]
        if found:
            lines += ["", heading, *(f"  {item.name}" + (f": {item.reason}" if item.reason else "") for item in found)]
    if any(item.action == "bring" for item in plan.items):
        return "\n".join([*lines, "", "To do this, run `toolcrib import hermes`."])
    return "\n".join([*lines, "", "There is nothing to import; run `toolcrib doctor` to see what is set up here."])


def _plan_config(source: Path, home: Home) -> Iterator[ImportItem]:
    theirs = _config_data(Home(source))
    ours = _config_data(home)
    yield from _kept_servers(theirs.get(SERVERS), ours.get(SERVERS))
    for written, value in _settings_in(theirs, ()):
        if written[0] == SERVERS and len(written) > 1 and _written(ours, written[:2]) is not None:
            continue
        for path in our_keys(written):
            item = _plan_setting(written, path, value, _written(ours, path))
            if item is not None:
                yield item


def _kept_servers(theirs: Any, ours: Any) -> Iterator[ImportItem]:
    """MCP servers that already exist here are not merged: a mix of two servers would not work."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return
    for name, server in theirs.items():
        if ours.get(name) not in (None, server):
            label = f"config.yaml: {dotted((SERVERS, str(name)))}"
            yield ImportItem(name=label, action="keep ours", reason="a server with that name has other settings here")


def _plan_setting(written: tuple[str, ...], path: tuple[str, ...], value: Any, present: Any) -> ImportItem | None:
    """What happens to one value that is under `written` in the old config and under `path` in ours."""
    name = f"config.yaml: {dotted(written)}" + ("" if path == written else f" (here: {dotted(path)})")
    try:
        setting = find_setting(path)
    except ConfigError:
        return ImportItem(name=name, action="not carried over", reason=NO_SETTING)
    if setting.expected is bool and isinstance(value, str):
        value = YAML_1_1_WORDS.get(value.lower(), value)
    if path[0] == SERVERS:
        value = _as_texts(setting.expected, value)
    reader = SettingsReader()
    if reader.setting(setting, value) is UNSET or reader.problems:
        reason = "; ".join(message.partition(";")[0] for _, message in reader.problems)
        return ImportItem(name=name, action="not carried over", reason=reason)
    if present is None:
        return ImportItem(name=name, action="bring", setting=setting.path, payload=value)
    if present != value:
        return ImportItem(name=name, action="keep ours", reason="it has another value here")
    return None


def _as_texts(expected: Any, value: Any) -> Any:
    """Numbers and the like as text, where a server setting only takes text: `args: [--port, 8080]`."""
    if expected == list[str] and isinstance(value, list):
        return [_as_texts(str, item) for item in value]
    if expected is not str or not isinstance(value, (bool, int, float)):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config_data(home: Home) -> dict[str, Any]:
    data = parse(read_text(home).removeprefix(BOM), str(home.config_file), "toolcrib import hermes --dry-run").data
    if data is not None and not isinstance(data, dict):
        raise ConfigError(f"{home.config_file} is not a mapping of keys to values; correct it and try again")
    return data or {}


def _settings_in(data: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value under a key that we know, and the outermost keys that we do not know."""
    for key, value in data.items():
        place = (*path, str(key))
        setting = _setting(place)
        has_keys = setting is not None and (is_section(setting.expected) or get_origin(setting.expected) is dict)
        if has_keys and isinstance(value, dict):
            yield from _settings_in(value, place)
        elif value is not None and value not in ({}, []):
            yield place, value


def _setting(path: tuple[str, ...]) -> Setting | None:
    try:
        return find_setting(path)
    except ConfigError:
        return None


def _written(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else data
    return data


def _plan_env(source: Path, home: Home) -> Iterator[ImportItem]:
    ours = read_env_file(home.env_file)
    for key, value in read_env_file(source / ".env").items():
        if key not in ours:
            yield ImportItem(name=f".env: {key}", action="bring", variable=key, payload=value)
        elif ours[key] != value:
            yield ImportItem(name=f".env: {key}", action="keep ours", reason="it has another value here")


def _plan_folders(source: Path, home: Home) -> Iterator[ImportItem]:
    for folder, ours, reason in (
        ("skills", home.skills_dir, ""),
        ("memories", home.memories_dir, ""),
        ("plugins", home.plugins_dir, "run `toolcrib plugins enable NAME` for each one that you trust"),
    ):
        if not (source / folder).is_dir():
            continue
        for entry in sorted((source / folder).iterdir()):
            if entry.suffix != ".lock":
                yield from _plan_copy(f"{folder}/{entry.name}", entry, ours / entry.name, reason)


def _plan_copy(name: str, here: Path, there: Path, reason: str) -> Iterator[ImportItem]:
    """One entry of a folder with all its files: those that are new here, and those that already exist."""
    copies: list[tuple[Path, Path]] = []
    for file in _files_in(here):
        target = there / file.relative_to(here) if file != here else there
        label = name if file == here else f"{name}/{file.relative_to(here)}"
        if file.is_symlink():
            yield ImportItem(
                name=label, action="not carried over", reason="it is a link; copy what it points to by hand"
            )
        elif not os.path.lexists(target):
            copies.append((file, target))
        elif not _same_content(file, target):
            yield ImportItem(name=label, action="keep ours", reason="another file with that name exists here")
    if copies:
        count = "" if here.is_file() else f"{len(copies)} file{'' if len(copies) == 1 else 's'}"
        parts = "; ".join(part for part in (count, reason) if part)
        yield ImportItem(name=name, action="bring", reason=parts, copies=tuple(copies))


def _plan_rest(source: Path, home: Home) -> Iterator[ImportItem]:
    if (source / "sessions").exists():
        reason = "conversations are imported from state.db; the older files in this folder are ignored"
        yield ImportItem(name="sessions", action="left in place", reason=reason)
    if any((source / "tools").glob("*.py")):
        reason = f"tool files run as soon as they are found; copy those that you trust to {home.tools_dir}"
        yield ImportItem(name="tools", action="left in place", reason=reason)


def _files_in(entry: Path) -> Iterator[Path]:
    if entry.is_symlink() or not entry.is_dir():
        yield entry
        return
    for child in sorted(entry.iterdir()):
        if child.name != "__pycache__":
            yield from _files_in(child)


def _same_content(left: Path, right: Path) -> bool:
    try:
        return left.read_bytes() == right.read_bytes()
    except OSError:
        return False


def _copy(here: Path, there: Path) -> str:
    """Copy one file without overwriting; returns what went wrong, if anything."""
    try:
        make_folder(there.parent)
        mode = OWNER_FILE | (here.stat().st_mode & 0o100)
        with (
            here.open("rb") as reading,
            os.fdopen(os.open(there, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as writing,
        ):
            shutil.copyfileobj(reading, writing)
    except OSError as error:
        return f"could not copy {str(here)!r} to {str(there)!r} ({error.strerror}); copy it by hand"
    return ""
