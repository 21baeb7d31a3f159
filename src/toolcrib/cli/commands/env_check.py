"""`toolcrib env check`: the conformance suite for backends."""

from __future__ import annotations

import asyncio

import click

from toolcrib.cli.commands.env import BackendContext, backend_context, complete_backends
from toolcrib.cli.output import note, plural, print_json, print_line, print_table
from toolcrib.core.types import JsonObject
from toolcrib.environments.conformance import (
    CHECKS,
    BackendUnderTest,
    Capability,
    CheckResult,
    ConformanceReport,
    run_suite,
)


@click.command(name="check")
@click.argument("backend", required=False, shell_complete=complete_backends)
@click.option("--only", multiple=True, metavar="CHECK", help="Run only this check; repeatable.")
@click.option("--image", default="", help="The image, for backends that use one.")
@click.option("--no-pty", is_flag=True, help="The backend has no pseudo-terminals: skip those checks.")
@click.option("--list", "as_list", is_flag=True, help="List the checks and their rules without running them.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def check_backend(
    backend: str | None, only: tuple[str, ...], image: str, no_pty: bool, as_list: bool, as_json: bool
) -> int | None:
    """Run the conformance suite against a backend, built in or your own.

    BACKEND is a name from `toolcrib env list`, which includes backends of installed packages, or MODULE:FUNCTION for
    one that you are writing: a function that takes a spec and the settings and returns an Environment, an Engine or a
    BaseEnvironment. The default is the configured backend. Exit code 1 if a check fails.

    --json prints an object with the keys backend, ok, passed, failed, skipped and checks (each with name, rule, state,
    detail and seconds).

    \b
    Examples:
      toolcrib env check docker
      toolcrib env check mypackage.sandbox:make --only exit-codes --only quotes
    """
    if as_list:
        print_table(["check", "rule"], [[check.name, check.rule] for check in CHECKS])
        return None
    report = asyncio.run(_report(backend_context(), backend, only, image=image, no_pty=no_pty, quiet=as_json))
    if as_json:
        print_json(_as_json(report))
    else:
        _print_summary(report)
    return 0 if report.passed else 1


async def _report(
    found: BackendContext, backend: str | None, only: tuple[str, ...], *, image: str, no_pty: bool, quiet: bool
) -> ConformanceReport:
    name = backend or found.configured
    make = found.maker(name, image=image)
    secrets = found.secrets()
    can: set[Capability] = set() if no_pty else {"pty"}
    if secrets:
        can.add("secrets")
    # A backend that cannot be opened is one error, not one for each check.
    trial = make()
    await trial.open()
    await trial.close()
    if not quiet:
        note(f"Checking {name!r}: {plural(len(only) or len(CHECKS), 'check')} …")
    return await run_suite(
        BackendUnderTest(name=name, make=make, can=frozenset(can), secrets=secrets),
        only=only or None,
        on_result=(lambda _result: None) if quiet else _print_result,
    )


def _print_result(result: CheckResult) -> None:
    reason = f"  ({result.detail})" if result.state == "skipped" else ""
    print_line(f"{result.state:<8} {result.check.name:<30} {result.seconds:6.2f} s{reason}")
    if result.state == "failed":
        print_line(f"         {result.check.rule}")
    if result.detail and result.state != "skipped":
        print_line(f"         {result.detail}")


def _print_summary(report: ConformanceReport) -> None:
    counts = ", ".join(f"{report.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    verdict = "passes" if report.passed else "fails; see above"
    print_line(f"{report.subject}: {counts}. The backend {verdict}.")


def _as_json(report: ConformanceReport) -> JsonObject:
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
