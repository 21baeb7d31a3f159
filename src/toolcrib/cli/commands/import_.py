"""`toolcrib import`: brings config and data over from another program."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import error_line, is_interactive, note, plural, print_line
from toolcrib.config.hermes_import import ImportItem, ImportPlan, apply_import, describe, plan_import
from toolcrib.config.load import load_settings
from toolcrib.config.paths import find_hermes_home, find_home
from toolcrib.core.errors import UsageError
from toolcrib.cron.hermes_import import ImportedJob, import_jobs, plan_jobs
from toolcrib.cron.store import JobStore
from toolcrib.providers.presets import ALIASES, PRESETS
from toolcrib.sessions.hermes_import import DATABASE_NAME, SessionImport, import_sessions, plan_sessions
from toolcrib.sessions.store import SessionStore

group = CommandGroup("import")

UNREADABLE_NAMED = 20
PROVIDERS = frozenset({*PRESETS, *ALIASES})


@group.command("hermes")
@click.option(
    "--from", "source", metavar="DIR", type=click.Path(path_type=Path), help="The home folder of Hermes Agent."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be imported.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def import_hermes(source: Path | None, dry_run: bool, yes: bool) -> int:
    """Import config, keys, skills, memories, jobs and sessions from Hermes Agent.

    Shows what it would do and asks first. Never overwrites anything here, and changes nothing there. Names everything
    that it does not import, with the reason. An import that was interrupted can be repeated.

    \b
    Examples:
      toolcrib import hermes --dry-run
      toolcrib import hermes --from ~/old/.hermes --yes
    """
    again = f"toolcrib import hermes --from {shlex.quote(str(source))}" if source else "toolcrib import hermes"
    source = (source or find_hermes_home()).expanduser()
    if not source.is_dir():
        raise UsageError(f"no Hermes Agent home at {str(source)!r}; name it: `toolcrib import hermes --from DIR`")
    home = find_home()
    things = plan_import(source, home, PROVIDERS)
    settings = load_settings(home)
    with closing(SessionStore(home.sessions_file)) as store, closing(JobStore(home.cron_file)) as job_store:
        sessions = plan_sessions(source, store)
        jobs = plan_jobs(source, settings, job_store, PROVIDERS, time.time())
        plan = replace(
            things,
            items=(*things.items, *_job_items(jobs), *_session_items(sessions, (source / DATABASE_NAME).exists())),
        )
        if not _is_wanted(plan, again, dry_run, yes):
            return 0
        problems = [*apply_import(things), *import_jobs(jobs, job_store), *import_sessions(source, store)]
    for problem in problems:
        error_line(problem)
    print_line()
    count = sum(item.action == "bring" for item in (*things.items, *_job_items(jobs)))
    print_line(f"Imported {_imported(count, sessions)}; run `toolcrib doctor` to check the installation.")
    return 1 if problems else 0


def _is_wanted(plan: ImportPlan, again: str, dry_run: bool, yes: bool) -> bool:
    """Show the plan and ask for confirmation, unless there is nothing to import."""
    text = describe(plan)
    if not any(item.action == "bring" for item in plan.items):
        print_line(text)
        return False
    # The last paragraph names the command to run, without the options that were given.
    print_line(text.rpartition("\n\n")[0])
    if dry_run:
        print_line(f"\nTo import this, run `{again}`.")
        return False
    if yes:
        return True
    if not is_interactive():
        raise UsageError(f"nothing was changed: there is no terminal to confirm at; run `{again} --yes`")
    if click.confirm("\nImport this?", err=True):
        return True
    note(f"Nothing was changed; run `{again}` to start again.")
    return False


def _job_items(jobs: list[ImportedJob]) -> Iterator[ImportItem]:
    """The scheduled jobs as items of the plan."""
    for job in jobs:
        yield ImportItem(name=job.name, action=job.action, reason=job.reason)


def _session_items(sessions: SessionImport, has_database: bool) -> Iterator[ImportItem]:
    """The sessions as items of the plan."""
    here = f"{sessions.known} {'is' if sessions.known == 1 else 'are'} already here"
    if sessions.new:
        brought = f"{sessions.new} to import"
        yield ImportItem(name="sessions", action="bring", reason=f"{brought}, {here}" if sessions.known else brought)
    elif sessions.known:
        yield ImportItem(name="sessions", action="keep ours", reason=here)
    elif has_database and not sessions.unreadable:
        yield ImportItem(name="state.db", action="left in place", reason="it has no conversations")
    for sentence in sessions.unreadable[:UNREADABLE_NAMED]:
        yield ImportItem(name="state.db", action="not carried over", reason=sentence)
    if len(sessions.unreadable) > UNREADABLE_NAMED:
        more = f"{len(sessions.unreadable) - UNREADABLE_NAMED} more sessions cannot be imported"
        yield ImportItem(name="state.db", action="not carried over", reason=more)


def _imported(count: int, sessions: SessionImport) -> str:
    parts = [plural(count, "thing")] if count or not sessions.new else []
    return " and ".join([*parts, plural(sessions.new, "session")] if sessions.new else parts)
