"""`toolcrib import hermes`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from toolcrib.cli.output import error_line, note, person_present, plural, print_line
from toolcrib.config.hermes_import import ImportItem, ImportPlan, apply_import, describe, plan_import
from toolcrib.config.paths import find_hermes_home, find_home
from toolcrib.core.errors import UsageError
from toolcrib.sessions.hermes_import import SessionImport, import_sessions, plan_sessions
from toolcrib.sessions.store import SessionStore

UNREADABLE_NAMED = 20


@click.command(name="hermes")
@click.option("--from", "source", metavar="DIR", type=click.Path(path_type=Path), help="Where it keeps its files.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
def command(source: Path | None, dry_run: bool, yes: bool) -> int:
    """Bring config, keys, skills, memories and sessions over from Hermes Agent.

    Says first what it would do, and asks. Nothing that is here already is overwritten, and nothing is changed there.

    \b
    Examples:
      toolcrib import hermes --dry-run
      toolcrib import hermes --from ~/old/.hermes --yes
    """
    again = f"toolcrib import hermes --from {shlex.quote(str(source))}" if source else "toolcrib import hermes"
    source = (source or find_hermes_home()).expanduser()
    if not source.is_dir():
        raise UsageError(
            f"there is no Hermes Agent home at {str(source)!r}; say where it is: `toolcrib import hermes --from DIR`"
        )
    home = find_home()
    things = plan_import(source, home)
    with closing(SessionStore(home.sessions_file)) as store:
        sessions = plan_sessions(source, store)
        if not _is_wanted(replace(things, items=(*things.items, *_items(sessions))), again, dry_run, yes):
            return 0
        problems = [*apply_import(things), *import_sessions(source, store)]
    for problem in problems:
        error_line(problem)
    print_line()
    print_line(f"Brought {_brought(things, sessions)} over; type `toolcrib doctor` to see what is set up now.")
    return 1 if problems else 0


def _is_wanted(plan: ImportPlan, again: str, dry_run: bool, yes: bool) -> bool:
    """Say what would be done, and ask; nothing is asked where nothing would be done."""
    text = describe(plan)
    if not any(item.action == "bring" for item in plan.items):
        print_line(text)
        return False
    # The last paragraph says what to type to do it, and does not know the options that were given.
    print_line(text.rpartition("\n\n")[0])
    if dry_run:
        print_line(f"\nTo do this, type `{again}`.")
        return False
    if yes:
        return True
    if not person_present():
        raise UsageError(f"nothing was changed, because nobody can be asked; type `{again} --yes`")
    if click.confirm("\nDo this?", err=True):
        return True
    note(f"Nothing was changed; type `{again}` to be asked again.")
    return False


def _items(sessions: SessionImport) -> Iterator[ImportItem]:
    """The sessions as lines of the plan."""
    here = f"{sessions.known} {'is' if sessions.known == 1 else 'are'} here already"
    if sessions.new:
        brought = f"{sessions.new} will be brought over"
        yield ImportItem(name="sessions", action="bring", reason=f"{brought}, {here}" if sessions.known else brought)
    elif sessions.known:
        yield ImportItem(name="sessions", action="keep ours", reason=here)
    for sentence in sessions.unreadable[:UNREADABLE_NAMED]:
        yield ImportItem(name="state.db", action="not carried over", reason=sentence)
    if len(sessions.unreadable) > UNREADABLE_NAMED:
        more = f"{len(sessions.unreadable) - UNREADABLE_NAMED} more sessions cannot be imported"
        yield ImportItem(name="state.db", action="not carried over", reason=more)


def _brought(things: ImportPlan, sessions: SessionImport) -> str:
    count = sum(item.action == "bring" for item in things.items)
    parts = [plural(count, "thing")] if count or not sessions.new else []
    return " and ".join([*parts, plural(sessions.new, "session")] if sessions.new else parts)
