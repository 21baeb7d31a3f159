"""What `toolcrib doctor` reports about the agent: model, sessions, memory, approvals, terminal, processes, disk."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from msgspec import Struct

from toolcrib.cli.commands.model_check import ModelCheck, check_reply
from toolcrib.cli.models import (
    PACKAGES,
    MissingRequirement,
    context_window,
    installed_version,
    megabytes,
    missing_requirement,
    missing_weights,
)
from toolcrib.cli.output import note, plural
from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.environments import BackendStatus
from toolcrib.core.errors import UnknownName
from toolcrib.core.models import ModelError
from toolcrib.core.types import JsonObject
from toolcrib.environments.create import backend_statuses
from toolcrib.environments.specs import backend_name
from toolcrib.process_identity import is_alive, own_identity
from toolcrib.processes.ledger import Ledger
from toolcrib.processes.process import ProcessRecord
from toolcrib.providers.choose import ConfiguredModels, ModelChoice, UnknownProvider, explain_choice, explain_named
from toolcrib.sessions.health import DatabaseHealth, examine_database
from toolcrib.sessions.memory import TARGETS, MemoryStore, size_of

LEAST_FREE_BYTES = 50_000_000
SHOWN_SESSIONS = 3
DO_SETUP = "`toolcrib setup`"


class ModelState(Struct, frozen=True, kw_only=True):
    """The model in use, and what it needs before it can answer."""

    choice: ModelChoice | None
    missing: MissingRequirement | None
    key_variable: str = ""
    has_key: bool = False
    package: str = ""
    package_version: str = ""
    context_window: int = 0
    weights: str = ""
    """For the embedded model: whether its weights are downloaded."""
    is_wanted: bool = False
    """The config names it, so it is a problem if it cannot answer."""
    check: ModelCheck | None = None
    auxiliary_problem: str = ""
    """What is wrong with the auxiliary model in the config."""

    def lines(self) -> list[str]:
        if self.choice is None:
            return ["none available"]
        named = f"{self.choice.model or 'no model'} (provider: {self.choice.provider}): {self.choice.why}"
        facts = [f"{self.key_variable} is {'set' if self.has_key else 'missing'}"] if self.key_variable else []
        if self.package:
            facts.append(f"package {self.package} {self.package_version or 'is not installed'}")
        facts += [self.weights] if self.weights else []
        tried = [f"{self.check}"] if self.check is not None else []
        lacks = [str(self.missing)] if self.missing is not None and not self.is_wanted else []
        return [line for line in (named, ", ".join(facts), *tried, *lacks) if line]

    def as_json(self) -> JsonObject:
        choice = self.choice
        return {
            "provider": choice.provider if choice else "",
            "model": choice.model if choice else "",
            "why": choice.why if choice else "",
            "base_url": choice.base_url if choice else "",
            "context_window": self.context_window,
            "usable": self.missing is None,
            "detail": self.missing.what if self.missing else "",
            "remedy": self.missing.remedy if self.missing else "",
            "key_variable": self.key_variable,
            "key_set": self.has_key,
            "package": self.package,
            "package_version": self.package_version,
            "weights": self.weights,
            "trial": self.check.as_json() if self.check is not None else None,
        }


def inspect_model(settings: Settings, *, online: bool) -> ModelState:
    """Which model is in use and what it needs; `online` sends it a small request."""
    is_wanted = bool(settings.model.provider or settings.model.default or settings.model.base_url)
    try:
        choice = explain_choice(settings)
    except UnknownProvider as error:
        return ModelState(
            choice=None, missing=MissingRequirement(what=str(error), remedy="`toolcrib model use NAME`"), is_wanted=True
        )
    places = ConfiguredModels(settings)
    preset = places.find(choice.provider)
    variable, key = places.key(preset)
    package = PACKAGES.get(preset.protocol, "")
    missing = missing_requirement(settings, choice)
    check = None
    if online and missing is None:
        try:
            check = check_reply(settings, choice, note)
        except ModelError as error:
            what, _, remedy = str(error).partition("; ")
            missing, is_wanted = MissingRequirement(what=what, remedy=remedy), True
    return ModelState(
        choice=choice,
        missing=missing,
        key_variable=variable,
        has_key=bool(key),
        package=package,
        package_version=installed_version(package) if package else "",
        context_window=context_window(settings, choice),
        weights=_weights(settings, choice, missing),
        is_wanted=is_wanted,
        check=check,
        auxiliary_problem=_auxiliary_problem(settings),
    )


def _auxiliary_problem(settings: Settings) -> str:
    for name, wanted in (("auxiliary", settings.auxiliary), ("auxiliary.vision", settings.auxiliary.vision)):
        try:
            explain_named(settings, wanted)
        except UnknownProvider as error:
            return f"config key {name}.provider: {error}"
    return ""


def _weights(settings: Settings, choice: ModelChoice, missing: MissingRequirement | None) -> str:
    if choice.provider != "embedded" or missing is not None:
        return ""
    weights = missing_weights(settings, choice)
    if weights is None:
        return "weights downloaded"
    return f"weights ({megabytes(weights.bytes)}) will be downloaded on first use"


class MemoryFile(Struct, frozen=True, kw_only=True):
    """One memory file."""

    path: str
    entries: int
    chars: int
    limit: int
    left_out: tuple[str, ...]
    """Entries that are hidden from the model, each with the reason."""
    problem: str = ""

    def lines(self) -> list[str]:
        if self.problem:
            return [self.problem]
        count = "1 entry" if self.entries == 1 else f"{self.entries} entries"
        full = f"{count}, {self.chars:,} of {self.limit:,} characters"
        return [f"{Path(self.path).name}: {full}", *self.left_out]

    def as_json(self) -> JsonObject:
        return {
            "path": self.path,
            "entries": self.entries,
            "chars": self.chars,
            "limit": self.limit,
            "left_out": list(self.left_out),
        }


class AgentState(Struct, frozen=True, kw_only=True):
    """Everything that an agent of this home depends on."""

    model: ModelState
    sessions: DatabaseHealth
    memory: tuple[MemoryFile, ...]
    approval_mode: str
    yolo: bool
    allowed_for_good: int
    rules: int
    terminal: BackendStatus
    running_processes: int
    orphaned_processes: int
    """Still running, although the toolcrib process that started them is dead."""
    free_bytes: int
    total_bytes: int

    def problems(self) -> list[tuple[str, str]]:
        """What is broken, as pairs of problem and fix."""
        found = []
        if self.model.missing is not None and self.model.is_wanted:
            found.append((self.model.missing.what, self.model.missing.remedy or DO_SETUP))
        if self.model.auxiliary_problem:
            found.append((self.model.auxiliary_problem, "`toolcrib model list` shows their names"))
        if self.sessions.problem:
            path = self.sessions.path
            remedy = self.sessions.remedy or f"`mv {path} {path}.damaged` starts with an empty one"
            found.append((self.sessions.problem, remedy))
        found += [(file.problem, "make the file readable") for file in self.memory if file.problem]
        if not self.terminal.usable:
            what = f"the terminal backend {self.terminal.kind!r} cannot be used: {self.terminal.detail}"
            found.append((what, self.terminal.remedy or "run `toolcrib env list` to see the backends you can use"))
        if self.free_bytes < LEAST_FREE_BYTES:
            found.append((f"only {megabytes(self.free_bytes)} left on the disk of the home folder", "free some space"))
        return found

    def as_json(self) -> JsonObject:
        return {
            "model": self.model.as_json(),
            "sessions": {
                "path": str(self.sessions.path),
                "exists": self.sessions.exists,
                "size_bytes": self.sessions.size_bytes,
                "sessions": self.sessions.sessions,
                "messages": self.sessions.messages,
                "ok": not self.sessions.problem,
                "checked": self.sessions.is_checked,
                "unknown_outcomes": dict(self.sessions.unknown_outcomes),
            },
            "memory": [file.as_json() for file in self.memory],
            "approvals": {
                "mode": self.approval_mode,
                "yolo": self.yolo,
                "allowed_for_good": self.allowed_for_good,
                "rules": self.rules,
            },
            "terminal": {
                "backend": self.terminal.kind,
                "usable": self.terminal.usable,
                "detail": self.terminal.detail,
                "remedy": self.terminal.remedy,
            },
            "processes": {"running": self.running_processes, "orphaned": self.orphaned_processes},
            "disk": {"free_bytes": self.free_bytes, "total_bytes": self.total_bytes},
        }

    def pairs(self) -> list[tuple[str, str | list[str]]]:
        """The report as labels and texts."""
        approvals = (
            f"{self.approval_mode}, {plural(self.allowed_for_good, 'permanent grant')}, {plural(self.rules, 'rule')}"
        )
        state = "" if self.terminal.usable else "cannot be used: "
        processes = f"{self.running_processes} running" if self.running_processes else "none running"
        orphans = [f"{self.orphaned_processes} orphaned by a process that died; the next start ends them"]
        return [
            ("model", self.model.lines()),
            ("sessions", _session_lines(self.sessions)),
            ("memory", [line for file in self.memory for line in file.lines()]),
            (
                "approvals",
                f"{approvals}; TOOLCRIB_YOLO is set, so calls run without approval" if self.yolo else approvals,
            ),
            ("terminal", f"{self.terminal.kind}: {state}{self.terminal.detail}"),
            ("processes", [processes, *(orphans if self.orphaned_processes else [])]),
            ("disk", f"{megabytes(self.free_bytes)} free in the home folder"),
        ]


def inspect_agent(settings: Settings, *, online: bool) -> AgentState:
    """Inspect all of it; changes nothing, and uses the network only if `online`."""
    running = _running_processes(settings)
    orphaned = [record for record in running if not is_alive(record.owner)]
    usage = shutil.disk_usage(_existing(settings.home.root))
    return AgentState(
        model=inspect_model(settings, online=online),
        sessions=examine_database(settings.home.sessions_file),
        memory=_memory(settings),
        approval_mode=settings.approvals.mode,
        yolo=settings.yolo,
        allowed_for_good=len(settings.command_allowlist),
        rules=len(settings.approvals.rules) + len(settings.approvals.deny),
        terminal=_terminal(settings),
        running_processes=len(running) - len(orphaned),
        orphaned_processes=len(orphaned),
        free_bytes=usage.free,
        total_bytes=usage.total,
    )


def _running_processes(settings: Settings) -> list[ProcessRecord]:
    try:
        records = list(Ledger(settings.home.processes_dir, own_identity()).records())
    except OSError:
        return []  # the home itself is reported
    return [record for record in records if record.is_running]


def _memory(settings: Settings) -> tuple[MemoryFile, ...]:
    limits = settings.memory
    store = MemoryStore(settings.home.memories_dir, limits.memory_char_limit, limits.user_char_limit)
    files = []
    for target in TARGETS:
        path = store.path(target)
        try:
            entries = store.entries(target)
            left_out = tuple(str(one) for one in store.load().left_out if one.target == target)
        except OSError as error:
            problem = f"the memory {str(path)!r} cannot be read ({error.strerror or error})"
            files.append(MemoryFile(path=str(path), entries=0, chars=0, limit=0, left_out=(), problem=problem))
            continue
        files.append(
            MemoryFile(
                path=str(path),
                entries=len(entries),
                chars=size_of(entries),
                limit=store.limits[target],
                left_out=left_out,
            )
        )
    return tuple(files)


def _terminal(settings: Settings) -> BackendStatus:
    try:
        kind = backend_name(settings.terminal.backend)
    except UnknownName as error:
        what, _, remedy = str(error).partition("; ")
        return BackendStatus(kind=settings.terminal.backend, usable=False, detail=what, remedy=remedy)
    statuses = asyncio.run(backend_statuses(settings, environment()))
    return next(status for status in statuses if status.kind == kind)


def _session_lines(found: DatabaseHealth) -> list[str]:
    if not found.exists:
        return ["none yet"]
    checked = "" if found.is_checked else ", too large for a full check"
    counts = f"{plural(found.sessions, 'session')}, {plural(found.messages, 'message')}"
    lines = [f"{counts}, {megabytes(found.size_bytes)} in {found.path}{checked}"]
    unknown = found.unknown_outcomes
    if unknown:
        shown = ", ".join(list(unknown)[:SHOWN_SESSIONS]) + (" …" if len(unknown) > SHOWN_SESSIONS else "")
        calls = plural(sum(unknown.values()), "call")
        lines.append(f"the outcome of {calls} is unknown, in {shown}; run `toolcrib sessions show ID` to see them")
    return lines


def _existing(path: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
