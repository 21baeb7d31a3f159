"""What `toolcrib doctor` sees of the model: which one answers, and whether it can."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from toolcrib.cli.commands.model_check import Trial, try_answer
from toolcrib.cli.models import PACKAGES, Lack, context_window, installed_version, lack_of, megabytes, missing_weights
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
from toolcrib.providers.choose import Choice, Places, UnknownProvider, explain_choice
from toolcrib.sessions.health import DatabaseHealth, examine_database
from toolcrib.sessions.memory import MemoryStore
from toolcrib.sessions.memory_entries import size_of
from toolcrib.sessions.memory_log import TARGETS


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """The model that answers, and what it lacks."""

    choice: Choice | None
    lack: Lack | None
    key_variable: str = ""
    has_key: bool = False
    package: str = ""
    package_version: str = ""
    context_window: int = 0
    weights: str = ""
    """Of an embedded model: whether its weights are here."""
    is_wanted: bool = False
    """The config names it, so that it is broken when it cannot answer."""
    trial: Trial | None = None
    auxiliary_problem: str = ""
    """What is wrong with the model for small jobs, as far as the config tells."""

    def lines(self) -> list[str]:
        if self.choice is None:
            return ["none can answer"]
        named = f"{self.choice.model or 'no model is named'} of {self.choice.provider}: {self.choice.why}"
        facts = [f"{self.key_variable} is {'set' if self.has_key else 'missing'}"] if self.key_variable else []
        if self.package:
            facts.append(f"package {self.package} {self.package_version or 'is not installed'}")
        facts += [self.weights] if self.weights else []
        tried = [f"{self.trial}"] if self.trial is not None else []
        lacks = [str(self.lack)] if self.lack is not None and not self.is_wanted else []
        return [line for line in (named, ", ".join(facts), *tried, *lacks) if line]

    def as_json(self) -> JsonObject:
        choice = self.choice
        return {
            "provider": choice.provider if choice else "",
            "model": choice.model if choice else "",
            "why": choice.why if choice else "",
            "base_url": choice.base_url if choice else "",
            "context_window": self.context_window,
            "usable": self.lack is None,
            "detail": self.lack.what if self.lack else "",
            "remedy": self.lack.remedy if self.lack else "",
            "key_variable": self.key_variable,
            "key_set": self.has_key,
            "package": self.package,
            "package_version": self.package_version,
            "weights": self.weights,
            "trial": self.trial.as_json() if self.trial is not None else None,
        }


def examine_model(settings: Settings, *, online: bool) -> ModelState:
    """Which model answers and what it lacks; `online` sends it one small request."""
    is_wanted = bool(settings.model.provider or settings.model.default or settings.model.base_url)
    try:
        choice = explain_choice(settings)
    except UnknownProvider as error:
        return ModelState(choice=None, lack=Lack(what=str(error), remedy="`toolcrib model use NAME`"), is_wanted=True)
    places = Places(settings)
    preset = places.find(choice.provider)
    variable, key = places.key(preset)
    package = PACKAGES.get(preset.protocol, "")
    lack = lack_of(settings, choice)
    trial = None
    if online and lack is None:
        try:
            trial = try_answer(settings, choice, note)
        except ModelError as error:
            what, _, remedy = str(error).partition("; ")
            lack, is_wanted = Lack(what=what, remedy=remedy), True
    return ModelState(
        choice=choice,
        lack=lack,
        key_variable=variable,
        has_key=bool(key),
        package=package,
        package_version=installed_version(package) if package else "",
        context_window=context_window(settings, choice),
        weights=_weights(settings, choice, lack),
        is_wanted=is_wanted,
        trial=trial,
        auxiliary_problem=_auxiliary_problem(settings),
    )


def _auxiliary_problem(settings: Settings) -> str:
    wanted = settings.auxiliary
    try:
        explain_choice(settings, model=wanted.model, provider=wanted.provider, base_url=wanted.base_url)
    except UnknownProvider as error:
        return f"config key auxiliary.provider: {error}"
    return ""


def _weights(settings: Settings, choice: Choice, lack: Lack | None) -> str:
    if choice.provider != "embedded" or lack is not None:
        return ""
    missing = missing_weights(settings, choice)
    if missing is None:
        return "its weights are here"
    return f"its weights ({megabytes(missing.bytes)}) are fetched when it is first used"


LEAST_FREE_BYTES = 50_000_000
SHOWN_SESSIONS = 3
DO_SETUP = "`toolcrib setup`"


@dataclass(frozen=True, kw_only=True)
class MemoryFile:
    """One file of memories."""

    path: str
    entries: int
    chars: int
    limit: int
    left_out: tuple[str, ...]
    """Entries that the model is not shown, each with the reason."""
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


@dataclass(frozen=True, kw_only=True)
class AgentState:
    """Everything around one agent of this home."""

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
    """Running on, though the process of ours that looked after them is dead."""
    free_bytes: int
    total_bytes: int

    def problems(self) -> list[tuple[str, str]]:
        """What is broken, each with what to do."""
        found = []
        if self.model.lack is not None and self.model.is_wanted:
            found.append((self.model.lack.what, self.model.lack.remedy or DO_SETUP))
        if self.model.auxiliary_problem:
            found.append((self.model.auxiliary_problem, "`toolcrib config set auxiliary.provider NAME`"))
        if self.sessions.problem:
            path = self.sessions.path
            found.append((self.sessions.problem, f"`mv {path} {path}.damaged` begins with an empty one"))
        found += [(file.problem, "make it a file that you may read") for file in self.memory if file.problem]
        if not self.terminal.usable:
            what = f"the terminal backend {self.terminal.kind!r} cannot be used: {self.terminal.detail}"
            found.append((what, self.terminal.remedy or "`toolcrib env list` shows those that can"))
        if self.free_bytes < LEAST_FREE_BYTES:
            found.append((f"the disk of the home has only {megabytes(self.free_bytes)} left", "make room on it"))
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
        """The same for people."""
        approvals = f"{self.approval_mode}, {self.allowed_for_good} allowed for good, {plural(self.rules, 'rule')}"
        state = "" if self.terminal.usable else "cannot be used: "
        processes = f"{self.running_processes} running" if self.running_processes else "none running"
        orphans = [f"{self.orphaned_processes} left by a process that died; the next start takes care of them"]
        return [
            ("model", self.model.lines()),
            ("sessions", _session_lines(self.sessions)),
            ("memory", [line for file in self.memory for line in file.lines()]),
            ("approvals", f"{approvals}; TOOLCRIB_YOLO is set, so nobody is asked" if self.yolo else approvals),
            ("terminal", f"{self.terminal.kind}: {state}{self.terminal.detail}"),
            ("processes", [processes, *(orphans if self.orphaned_processes else [])]),
            ("disk", f"{megabytes(self.free_bytes)} free for the home"),
        ]


def examine_agent(settings: Settings, *, online: bool) -> AgentState:
    """Look at all of it; nothing is changed, and nobody is asked over the network unless `online`."""
    running = [record for record in Ledger(settings.home.processes_dir, own_identity()).records() if record.is_running]
    orphaned = [record for record in running if not is_alive(record.owner)]
    usage = shutil.disk_usage(_existing(settings.home.root))
    return AgentState(
        model=examine_model(settings, online=online),
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
    checked = "" if found.is_checked else ", too large to be checked whole"
    counts = f"{plural(found.sessions, 'session')}, {plural(found.messages, 'message')}"
    lines = [f"{counts}, {megabytes(found.size_bytes)} in {found.path}{checked}"]
    unknown = found.unknown_outcomes
    if unknown:
        shown = ", ".join(list(unknown)[:SHOWN_SESSIONS]) + (" …" if len(unknown) > SHOWN_SESSIONS else "")
        calls = plural(sum(unknown.values()), "call")
        lines.append(f"the outcome of {calls} is unknown, in {shown}; `toolcrib sessions show ID` shows them")
    return lines


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
