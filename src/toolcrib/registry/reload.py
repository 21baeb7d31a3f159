"""Hot reload: saving, adding or deleting a tool file takes effect in the next turn, without a restart."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from pathlib import Path

import msgspec

from toolcrib.core.types import ToolEntry
from toolcrib.registry.compat_imports import USER_TOOLS_NAMESPACE
from toolcrib.registry.discovery import NOT_TOOL_FILES, LoadedFile, declares_tools, load_tool_file
from toolcrib.registry.lint import lint_entry, lint_source
from toolcrib.registry.lint_code import LintFinding
from toolcrib.registry.registry import RejectedRegistration, ToolRegistry

Stamp = tuple[int, int, int]


class ReloadOutcome(msgspec.Struct, frozen=True):
    """The outcome of a changed tool file."""

    path: Path
    tools_added: tuple[str, ...] = ()
    """The tools that the file provides now, new or unchanged."""
    tools_removed: tuple[str, ...] = ()
    problem: str = ""
    """Why the file could not be loaded; its previous tools stay."""
    findings: tuple[LintFinding, ...] = ()


class ToolFolderWatcher:
    """Keeps a registry in sync with a folder of tool files. Create it after the first load of the folder."""

    def __init__(self, folder: Path, registry: ToolRegistry) -> None:
        self._folder = folder
        self._registry = registry
        self._stamps = self._look()

    def refresh(self) -> list[ReloadOutcome]:
        """Load what changed since the last call; without changes, this costs one folder listing."""
        before, self._stamps = self._stamps, self._look()
        gone = [path for path in before if path not in self._stamps]
        changed = [path for path, stamp in self._stamps.items() if before.get(path) != stamp]
        reports = [self._forget(path) for path in gone] + [self._reload(path) for path in changed]
        return [report for report in reports if report is not None]

    def _look(self) -> dict[Path, Stamp]:
        stamps = {}
        for path in sorted(self._folder.glob("*.py")) if self._folder.is_dir() else ():
            if path.name in NOT_TOOL_FILES:
                continue
            try:
                stat = path.stat()
            except OSError:
                continue  # deleted in the meantime
            stamps[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return stamps

    def _forget(self, path: Path) -> ReloadOutcome | None:
        names = self._drop(self._owned(path))
        sys.modules.pop(f"{USER_TOOLS_NAMESPACE}.{path.stem}", None)
        return ReloadOutcome(path, tools_removed=names) if names else None

    def _reload(self, path: Path) -> ReloadOutcome | None:
        if not declares_tools(path):
            return self._forget(path)
        _drop_cached_code(path)
        registry = self._registry
        old = self._owned(path)
        aliases = registry.get_registered_toolset_aliases()
        refusals = len(registry.rejected)
        # Remove the old tools first: a tool that moves to another toolset would collide with itself.
        self._drop(old)
        loaded = load_tool_file(path, registry)
        if loaded.problem:
            self._drop(self._owned(path))
            self._restore(old, aliases)
            return ReloadOutcome(path, problem=loaded.problem, findings=tuple(lint_source(path)))
        removed = tuple(entry.name for entry in old if entry.name not in loaded.tools)
        findings = findings_of(path, loaded, registry, registry.rejected[refusals:])
        return ReloadOutcome(path, tuple(loaded.tools), removed, findings=tuple(findings))

    def _owned(self, path: Path) -> list[ToolEntry]:
        return [
            entry
            for entry in self._registry.entries()
            if entry.source.kind == "user" and entry.source.path == str(path)
        ]

    def _drop(self, entries: list[ToolEntry]) -> tuple[str, ...]:
        for entry in entries:
            # On behalf of the file: the watcher does not own its tools.
            with self._registry.loading(entry.source):
                self._registry.deregister(entry.name)
        return tuple(entry.name for entry in entries)

    def _restore(self, entries: list[ToolEntry], aliases: dict[str, str]) -> None:
        for entry in entries:
            with self._registry.loading(entry.source):
                self._registry.register(
                    name=entry.name,
                    toolset=entry.toolset,
                    schema=entry.schema,
                    handler=entry.handler,
                    check_fn=entry.check_fn,
                    requires_env=entry.requires_env,
                    is_async=entry.is_async,
                    description=entry.description,
                    emoji=entry.emoji,
                    max_result_size_chars=entry.max_result_size_chars,
                    dynamic_schema_overrides=entry.dynamic_schema_overrides,
                    # It had the name before, even if another source declares it too.
                    override=True,
                    effects=entry.effects,
                )
        for alias, toolset in aliases.items():
            if self._registry.get_toolset_alias_target(alias) is None:
                self._registry.register_toolset_alias(alias, toolset)


def findings_of(
    path: Path, loaded: LoadedFile, registry: ToolRegistry, refusals: list[RejectedRegistration] | None = None
) -> list[LintFinding]:
    """Lint findings for a loaded tool file: its text, its registered tools, and rejected registrations."""
    findings = lint_source(path)
    if loaded.problem:
        findings.append(LintFinding("error", "loads", f"the file cannot be loaded: {loaded.problem}"))
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for name in loaded.tools:
        entry = registry.get_entry(name)
        findings += lint_entry(entry, text) if entry is not None else []
    for one in registry.rejected if refusals is None else refusals:
        findings.append(LintFinding("error", "refused", one.reason, one.line))
    # The text and the registered tool may yield the same finding on different lines; the first has the better one.
    distinct = {(finding.rule, finding.message): finding for finding in reversed(findings)}
    return sorted(distinct.values(), key=lambda finding: finding.line or 0)


def _drop_cached_code(path: Path) -> None:
    """Python detects stale bytecode by size and whole seconds; after two quick saves it would run the first version."""
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    linecache.checkcache(str(path))
