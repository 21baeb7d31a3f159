"""`toolcrib env check [BACKEND]`."""

from __future__ import annotations

import asyncio

import click

from toolcrib.cli.commands.env import Here, complete_backends, here
from toolcrib.cli.output import note, plural, print_json, print_line, print_table
from toolcrib.core.types import JsonObject
from toolcrib.environments.conformance import CHECKS, Need, Report, Result, Subject, run_suite


@click.command(name="check")
@click.argument("backend", required=False, shell_complete=complete_backends)
@click.option("--only", multiple=True, metavar="CHECK", help="Run this check alone; may be given several times.")
@click.option("--image", default="", help="The image to use, where the backend has images.")
@click.option("--no-pty", is_flag=True, help="The backend has no terminals: leave out what needs one.")
@click.option("--list", "as_list", is_flag=True, help="List the checks and their rules, and run none.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def check_backend(
    backend: str | None, only: tuple[str, ...], image: str, no_pty: bool, as_list: bool, as_json: bool
) -> int | None:
    """Put a backend, ours or your own, to every promise that one has to keep.

    BACKEND is a name of `toolcrib env list`, also one that an installed package brings, or MODULE:FUNCTION for a
    backend that is being written: a function of a spec and the settings that gives an Environment, an Engine or a
    BaseEnvironment. Without BACKEND it is the one that the settings choose. Exit code 1 when a promise is broken.

    The object of --json has the keys backend, ok, passed, failed, skipped and checks (each with name, rule, state,
    detail and seconds).

    \b
    Examples:
      toolcrib env check docker
      toolcrib env check mypackage.sandbox:make --only exit-codes --only quotes
    """
    if as_list:
        print_table(["check", "rule"], [[check.name, check.rule] for check in CHECKS])
        return None
    report = asyncio.run(_report(here(), backend, only, image=image, no_pty=no_pty, quiet=as_json))
    if as_json:
        print_json(_as_json(report))
    else:
        _print_summary(report)
    return 0 if report.passed else 1


async def _report(
    found: Here, backend: str | None, only: tuple[str, ...], *, image: str, no_pty: bool, quiet: bool
) -> Report:
    name = backend or found.configured
    make = found.maker(name, image=image)
    secrets = found.secrets()
    can: set[Need] = set() if no_pty else {"pty"}
    if secrets:
        can.add("secrets")
    # A backend that cannot be opened at all is one error, not one for each check.
    trial = make()
    await trial.open()
    await trial.close()
    if not quiet:
        note(f"Checking {name!r}: {plural(len(only) or len(CHECKS), 'check')} …")
    return await run_suite(
        Subject(name=name, make=make, can=frozenset(can), secrets=secrets),
        only=only or None,
        on_result=(lambda _result: None) if quiet else _print_result,
    )


def _print_result(result: Result) -> None:
    reason = f"  ({result.detail})" if result.state == "skipped" else ""
    print_line(f"{result.state:<8} {result.check.name:<30} {result.seconds:6.2f} s{reason}")
    if result.state == "failed":
        print_line(f"         {result.check.rule}")
        print_line(f"         {result.detail}")


def _print_summary(report: Report) -> None:
    counts = ", ".join(f"{report.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    verdict = "keeps its promises" if report.passed else "breaks a promise; see above"
    print_line(f"{report.subject}: {counts}. It {verdict}.")


def _as_json(report: Report) -> JsonObject:
    return {
        "backend": report.subject,
        "ok": report.passed,
        "passed": report.count("passed"),
        "failed": report.count("failed"),
        "skipped": report.count("skipped"),
        "checks": [
            {
                "name": result.check.name,
                "rule": result.check.rule,
                "state": result.state,
                "detail": result.detail,
                "seconds": round(result.seconds, 3),
            }
            for result in report.results
        ],
    }
