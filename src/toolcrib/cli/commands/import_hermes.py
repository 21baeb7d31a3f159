"""`toolcrib import hermes`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from toolcrib.cli.output import error_line, note, person_present, plural, print_line
from toolcrib.config.hermes_import import apply_import, describe, plan_import
from toolcrib.config.paths import find_hermes_home, find_home
from toolcrib.core.errors import UsageError


@click.command(name="hermes")
@click.option("--from", "source", metavar="DIR", type=click.Path(path_type=Path), help="Where it keeps its files.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
def command(source: Path | None, dry_run: bool, yes: bool) -> int:
    """Bring config, keys, skills and memories over from Hermes Agent.

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
    plan = plan_import(source, find_home())
    text = describe(plan)
    brought = sum(item.action == "bring" for item in plan.items)
    if not brought:
        print_line(text)
        return 0
    # The last paragraph says what to type to do it, and does not know the options that were given.
    print_line(text.rpartition("\n\n")[0])
    if dry_run:
        print_line(f"\nTo do this, type `{again}`.")
        return 0
    if not yes:
        if not person_present():
            raise UsageError(f"nothing was changed, because nobody can be asked; type `{again} --yes`")
        if not click.confirm("\nDo this?", err=True):
            note(f"Nothing was changed; type `{again}` to be asked again.")
            return 0
    problems = apply_import(plan)
    for problem in problems:
        error_line(problem)
    print_line()
    print_line(f"Brought {plural(brought, 'thing')} over; type `toolcrib doctor` to see what is set up now.")
    return 1 if problems else 0
