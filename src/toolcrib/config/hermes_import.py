"""Imports a Hermes Agent home: first makes a plan, then carries it out; overwrites nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_origin

from msgspec import UNSET

from toolcrib.config.edit import put_values
from toolcrib.config.env_file import parse_env, read_env_file, read_env_text, save_env_values
from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.hermes_settings import KeyPath, MovedSetting, Translation, reason_for, translate_config
from toolcrib.config.load import BOM, our_keys, read_text
from toolcrib.config.paths import Home
from toolcrib.config.redact import mask_shapes
from toolcrib.config.schema import Setting, SettingsReader, find_setting, is_section
from toolcrib.config.yaml_text import dotted, parse
from toolcrib.core.errors import ConfigError

Action = Literal["bring", "keep ours", "not carried over", "left in place", "differs", "unchanged"]
SERVERS = "mcp_servers"
UNITS = (SERVERS, "providers")
"""Sections whose entries are imported whole or not at all: a mix of two servers would not work."""
YAML_1_1_WORDS = {"yes": True, "on": True, "no": False, "off": False}
OTHER_VALUE = "it has another value here"

HEADINGS: dict[Action, str] = {
    "bring": "To import:",
    "keep ours": "Already exists here and stays unchanged:",
    "differs": "Works differently here:",
    "not carried over": "Not imported:",
    "left in place": "Left in place:",
}
SMART_APPROVALS = (
    "Hermes Agent lets a model approve dangerous commands (`smart`) unless its config says otherwise; "
    "toolcrib asks you. To change that: `toolcrib config set approvals.mode smart`"
)
SMART_CLASSES = "a model may only approve the kinds of danger in `approvals.smart_classes`; toolcrib asks about others"
COMPRESSION = (
    "Hermes Agent compresses a conversation when half of the context window is full, toolcrib at 80 %. "
    "To change that: `toolcrib config set compression.threshold_pct 50`"
)

ELSEWHERE = frozenset({"config.yaml", ".env", "state.db", "state.db-wal", "state.db-shm", "cron"})
"""Entries of the old home that other parts of the import report."""
COPIED_FOLDERS = ("skills", "memories", "plugins")
ENTRY_REASONS: dict[str, str] = {
    "auth.json": "logins are not portable; run `toolcrib setup` to enter a key, or log in again",
    "mcp-tokens": "logins are not portable; run `toolcrib mcp login NAME` for each server",
    "sessions": "conversations are imported from state.db; the older files in this folder are ignored",
    "profiles": "each profile is a separate home; import it with `toolcrib import hermes --from DIR`",
    "hooks": "toolcrib runs no hook scripts; write a plugin with `ctx.register_hook`",
    "scripts": "jobs that need a script of this folder use it where it is",
    "logs": "they describe what Hermes Agent did",
    "checkpoints": "they belong to Hermes Agent; toolcrib makes its own snapshots",
    "processes.json": "it describes processes of Hermes Agent",
    "hermes-agent": "it is the program itself",
    "kanban.db": "toolcrib does not import boards",
    "skins": "toolcrib's chat has its own display",
}
"""Why an entry of the old home stays there."""
CACHE = "it is a cache"
LOCK = "it is a lock file"
UNKNOWN_ENTRY = "toolcrib has no use for it"


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


def plan_import(source: Path, home: Home, known_providers: Collection[str] = ()) -> ImportPlan:
    """The import plan for a Hermes Agent home; read-only. `known_providers` are the model providers that exist here."""
    source = source.expanduser()
    if not source.is_dir():
        raise ConfigError(f"there is no Hermes Agent home at {str(source)!r}; set HERMES_HOME to its folder")
    if source.resolve() == home.root.resolve():
        raise ConfigError(
            f"toolcrib already uses {str(source)!r} as its home; set TOOLCRIB_HOME to the folder to import into"
        )
    items = [
        *_plan_config(source, home, known_providers),
        *_plan_env(source, home),
        *_plan_folders(source, home),
        *_plan_rest(source, home),
    ]
    return ImportPlan(source=source, home=home, items=tuple(items))


def apply_import(plan: ImportPlan) -> list[str]:
    """Carry out the plan; returns a sentence for each thing that could not be imported.

    Each step is complete or not done at all, so an import that was interrupted can be repeated.
    """
    chosen = [item for item in plan.items if item.action == "bring"]
    present = read_env_file(plan.home.env_file)
    variables = {item.variable: item.payload for item in chosen if item.variable and item.variable not in present}
    # Before the config, which refers to them.
    if variables:
        save_env_values(plan.home, variables)
    problems = _put_settings(plan.home, [item for item in chosen if item.setting])
    problems += [_copy(here, there) for item in chosen for here, there in item.copies]
    return [problem for problem in problems if problem]


def _put_settings(home: Home, items: list[ImportItem]) -> list[str]:
    """Write the settings in one step; if the file refuses them together, all that it accepts one by one."""
    if not items:
        return []
    try:
        put_values(home, {item.setting: item.payload for item in items})
    except ConfigError as error:
        if len(items) == 1:
            return [f"could not import {items[0].name} ({error})"]
        return [problem for item in items for problem in _put_settings(home, [item])]
    return []


def describe(plan: ImportPlan) -> str:
    """The plan as readable text, one line per item, ending with the next command to run."""
    lines = [f"From {plan.source} to {plan.home.root}."]
    for action, heading in HEADINGS.items():
        found = [item for item in plan.items if item.action == action]
        if found:
            lines += ["", heading, *(f"  {_label(item)}" for item in found)]
    unchanged = sum(item.action == "unchanged" for item in plan.items)
    if unchanged:
        lines += ["", f"Already here: {unchanged} {'thing' if unchanged == 1 else 'things'} with the same content."]
    if any(item.action == "bring" for item in plan.items):
        return "\n".join([*lines, "", "To do this, run `toolcrib import hermes`."])
    return "\n".join([*lines, "", "There is nothing to import; run `toolcrib doctor` to see what is set up here."])


def _label(item: ImportItem) -> str:
    # Keys and file names of the old home may contain line breaks, and bytes that are no text.
    name = " ".join(item.name.encode("utf-8", "replace").decode("utf-8").split())
    return f"{name}: {item.reason}" if item.reason else name


def _plan_config(source: Path, home: Home, known_providers: Collection[str]) -> Iterator[ImportItem]:
    ours = _config_data(home)
    if _is_no_file(source / "config.yaml"):
        yield _not_copied("config.yaml", source / "config.yaml")
        return
    try:
        theirs, problems = _their_config(Home(source))
    except ConfigError as error:
        yield ImportItem(name="config.yaml", action="not carried over", reason=_one_line(str(error)))
        return
    for problem in problems:
        yield ImportItem(name="config.yaml", action="not carried over", reason=_one_line(problem))
    own_variables = read_env_file(home.env_file)
    taken = {**_variables_of(source), **own_variables}
    translation = translate_config(theirs, source, taken, known_providers)
    yield from _plan_settings(translation, ours)
    for path, reason in translation.dropped:
        yield ImportItem(name=f"config.yaml: {dotted(path)}", action="not carried over", reason=reason)
    for variable, (written, secret) in translation.variables.items():
        item = _plan_variable(variable, secret, own_variables)
        yield replace(item, reason="; ".join(filter(None, (f"from {dotted(written)} in config.yaml", item.reason))))
    yield from _differences(theirs, ours)


def _their_config(home: Home) -> tuple[dict[str, Any], list[str]]:
    """The data of the old config, and what is odd about its text; raises ConfigError if it cannot be read."""
    document = parse(read_text(home).removeprefix(BOM), str(home.config_file), "toolcrib import hermes --dry-run")
    if document.data is not None and not isinstance(document.data, dict):
        raise ConfigError(f"{home.config_file} is not a mapping of keys to values; correct it and import again")
    return document.data or {}, [f"line {line}: {message}" for line, message in document.problems]


def _plan_settings(translation: Translation, ours: dict[str, Any]) -> Iterator[ImportItem]:
    """What happens to each value; the entries of a unit that already exists here are one item."""
    values = [
        MovedSetting(written=written, path=path, value=value)
        for written, value in _settings_in(translation.rest, ())
        for path in our_keys(written)
    ]
    units: dict[KeyPath, list[ImportItem]] = {}
    for moved in (*translation.moved, *values):
        item = _plan_setting(moved, _written(ours, moved.path))
        if moved.path[0] in UNITS and len(moved.path) > 1 and _written(ours, moved.path[:2]) is not None:
            units.setdefault(moved.path[:2], []).append(item)
        else:
            yield item
    for path, items in units.items():
        if all(item.action in ("unchanged", "not carried over") for item in items):
            yield from items
        else:
            what = "server" if path[0] == SERVERS else "provider"
            reason = f"a {what} with that name has other settings here"
            yield ImportItem(name=f"config.yaml: {dotted(path)}", action="keep ours", reason=reason)


def _plan_setting(moved: MovedSetting, present: Any) -> ImportItem:
    """What happens to one value."""
    written, path, value = moved.written, moved.path, moved.value
    name = f"config.yaml: {dotted(written)}" + ("" if path == written else f" (here: {dotted(path)})")
    if value is None:
        return ImportItem(name=name, action="not carried over", reason="it has no value")
    try:
        setting = find_setting(path)
    except ConfigError:
        return ImportItem(name=name, action="not carried over", reason=reason_for(written))
    if setting.expected is bool and isinstance(value, str):
        value = YAML_1_1_WORDS.get(value.lower(), value)
    if path[0] == SERVERS:
        value = _as_texts(setting.expected, value)
    reader = SettingsReader()
    if reader.setting(setting, value) is UNSET or reader.problems:
        reason = "; ".join(message.partition(";")[0] for _, message in reader.problems)
        return ImportItem(name=name, action="not carried over", reason=_one_line(reason))
    if present is None:
        return ImportItem(name=name, action="bring", reason=moved.note, setting=setting.path, payload=value)
    if present != value:
        return ImportItem(name=name, action="keep ours", reason=OTHER_VALUE)
    return ImportItem(name=name, action="unchanged")


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[ImportItem]:
    """The defaults that differ and that a person would notice, unless the config here says something."""
    mode = _value_at(theirs, ("approvals", "mode"))
    if mode is None and _value_at(ours, ("approvals", "mode")) is None:
        yield ImportItem(name="approvals.mode", action="differs", reason=SMART_APPROVALS)
    elif mode == "smart":
        yield ImportItem(name="approvals.mode", action="differs", reason=SMART_CLASSES)
    written = (_value_at(theirs, ("compression", "threshold")), _value_at(ours, ("compression", "threshold_pct")))
    if written == (None, None):
        yield ImportItem(name="compression.threshold_pct", action="differs", reason=COMPRESSION)


def _one_line(text: str) -> str:
    """A message about foreign text: on one line, without what looks like a key."""
    return mask_shapes(" ".join(text.split()))


def _value_at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


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
        if has_keys and isinstance(value, dict) and value:
            yield from _settings_in(value, place)
        elif value != {}:
            # An empty section says nothing; an empty list says "none".
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


SWITCHES = "HERMES_"
NOT_STORED = {"SUDO_PASSWORD": "toolcrib asks for the sudo password and never stores it"}


def _plan_env(source: Path, home: Home) -> Iterator[ImportItem]:
    if _is_no_file(source / ".env"):
        yield _not_copied(".env", source / ".env")
        return
    try:
        lines = parse_env(read_env_text(source / ".env"))
    except ConfigError as error:
        yield ImportItem(name=".env", action="not carried over", reason=_one_line(str(error)))
        return
    for number, line in enumerate(lines, 1):
        if line.problem:
            yield ImportItem(name=f".env: line {number}", action="not carried over", reason=_one_line(line.problem))
    ours = read_env_file(home.env_file)
    for key, value in {line.key: line.value for line in lines if line.key and not line.problem}.items():
        if key.startswith(SWITCHES):
            reason = "it is a switch of Hermes Agent; toolcrib's variables start with TOOLCRIB_"
            yield ImportItem(name=f".env: {key}", action="not carried over", reason=reason)
        elif key in NOT_STORED:
            yield ImportItem(name=f".env: {key}", action="not carried over", reason=NOT_STORED[key])
        else:
            yield _plan_variable(key, value, ours)


def _variables_of(source: Path) -> dict[str, str]:
    """The variables of the old `.env`; none if it cannot be read, which `_plan_env` reports."""
    try:
        return {} if _is_no_file(source / ".env") else read_env_file(source / ".env")
    except ConfigError:
        return {}


def _is_no_file(path: Path) -> bool:
    """Whether something else has the name of a file; reading a pipe, for example, would never end."""
    return os.path.lexists(path) and not path.is_file()


def _plan_variable(key: str, value: str, ours: Mapping[str, str]) -> ImportItem:
    name = f".env: {key}"
    if key not in ours:
        if not _is_storable(value):
            return ImportItem(
                name=name, action="not carried over", reason="its value has characters no variable can hold"
            )
        return ImportItem(name=name, action="bring", variable=key, payload=value)
    if ours[key] != value:
        return ImportItem(name=name, action="keep ours", reason=OTHER_VALUE)
    return ImportItem(name=name, action="unchanged")


def _is_storable(value: str) -> bool:
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _plan_folders(source: Path, home: Home) -> Iterator[ImportItem]:
    trust = "run `toolcrib plugins enable NAME` for each one that you trust"
    targets = {"skills": home.skills_dir, "memories": home.memories_dir, "plugins": home.plugins_dir}
    for folder in COPIED_FOLDERS:
        if not os.path.lexists(source / folder):
            continue
        if (source / folder).is_symlink() or not (source / folder).is_dir():
            yield _not_copied(folder, source / folder)
            continue
        try:
            entries = sorted((source / folder).iterdir())
        except OSError as error:
            yield _unreadable(folder, error)
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.suffix == ".lock":
                yield ImportItem(name=name, action="left in place", reason=LOCK)
            elif folder == "skills" and entry.name.startswith("."):
                yield ImportItem(name=name, action="left in place", reason="it belongs to Hermes Agent's skill manager")
            else:
                reason = trust if folder == "plugins" else ""
                yield from _plan_copy(name, entry, targets[folder] / entry.name, reason)
    soul = source / "SOUL.md"
    if _is_no_file(soul):
        yield _not_copied("SOUL.md", soul)
    elif soul.is_file():
        yield from _plan_copy("SOUL.md", soul, home.soul_file, "")


def _plan_copy(name: str, here: Path, there: Path, reason: str) -> Iterator[ImportItem]:
    """One entry of a folder with all its files: those that are new here, and those that already exist."""
    copies: list[tuple[Path, Path]] = []
    for file, error in _files_in(here):
        target = there / file.relative_to(here) if file != here else there
        label = name if file == here else f"{name}/{file.relative_to(here)}"
        if error is not None:
            yield _unreadable(label, error)
        elif file.is_symlink() or not file.is_file():
            yield _not_copied(label, file)
        elif not os.path.lexists(target):
            copies.append((file, target))
        elif _same_content(file, target):
            yield ImportItem(name=label, action="unchanged")
        else:
            yield ImportItem(name=label, action="keep ours", reason="another file with that name exists here")
    if copies:
        count = "" if here.is_file() else f"{len(copies)} file{'' if len(copies) == 1 else 's'}"
        parts = "; ".join(part for part in (count, reason) if part)
        yield ImportItem(name=name, action="bring", reason=parts, copies=tuple(copies))


def _not_copied(name: str, entry: Path) -> ImportItem:
    if entry.is_symlink():
        reason = "it is a link; copy what it points to by hand"
    elif entry.is_file() or entry.is_dir():
        reason = "it is a file, not a folder" if entry.is_file() else "it is a folder, not a file"
    else:
        reason = "it is neither a file nor a folder"
    return ImportItem(name=name, action="not carried over", reason=reason)


def _unreadable(name: str, error: OSError) -> ImportItem:
    reason = f"it cannot be read ({error.strerror}); check its permissions and import again"
    return ImportItem(name=name, action="not carried over", reason=reason)


def _plan_rest(source: Path, home: Home) -> Iterator[ImportItem]:
    """Every other entry of the old home, with the reason why it stays there."""
    known = ELSEWHERE | {*COPIED_FOLDERS, "SOUL.md"}
    try:
        entries = sorted(source.iterdir())
    except OSError as error:
        yield _unreadable(str(source), error)
        return
    for entry in entries:
        if entry.name in known:
            continue
        reason = ENTRY_REASONS.get(entry.name) or UNKNOWN_ENTRY
        if entry.name == "tools":
            reason = f"tool files run as soon as they are found; copy those that you trust to {home.tools_dir}"
        elif "cache" in entry.name.lower():
            reason = CACHE
        elif entry.suffix in (".lock", ".pid"):
            reason = LOCK
        yield ImportItem(name=entry.name, action="left in place", reason=reason)


def _files_in(entry: Path) -> Iterator[tuple[Path, OSError | None]]:
    """Every file below an entry, and every folder that cannot be listed, with the error."""
    if entry.is_symlink() or not entry.is_dir():
        yield entry, None
        return
    try:
        children = sorted(entry.iterdir())
    except OSError as error:
        yield entry, error
        return
    for child in children:
        if child.name != "__pycache__":
            yield from _files_in(child)


def _same_content(left: Path, right: Path) -> bool:
    try:
        return left.read_bytes() == right.read_bytes()
    except OSError:
        return False


def _copy(here: Path, there: Path) -> str:
    """Copy one file, all of it or nothing, without overwriting; returns what went wrong, if anything."""
    try:
        make_folder(there.parent)
        mode = OWNER_FILE | (here.stat().st_mode & 0o100)
        handle, temporary = tempfile.mkstemp(dir=there.parent, prefix=".import-")
        with ExitStack() as afterwards:
            afterwards.callback(Path(temporary).unlink)
            with here.open("rb") as reading, os.fdopen(handle, "wb") as writing:
                shutil.copyfileobj(reading, writing)
                os.fchmod(writing.fileno(), mode)
            # Unlike a rename, a link never replaces a file that has appeared in the meantime.
            os.link(temporary, there)
    except OSError as error:
        return f"could not copy {str(here)!r} to {str(there)!r} ({error.strerror}); copy it by hand"
    return ""
