"""`toolcrib tools lint FILE`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from toolcrib.cli.output import note, one_line, plural, print_json, print_line, stdout_reserved
from toolcrib.core.errors import UsageError
from toolcrib.registry import discovery
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.lint import lint_source
from toolcrib.registry.lint_code import LintFinding
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.reload import findings_of


@click.command(name="lint")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(files: tuple[Path, ...], as_json: bool) -> int:
    """Check tool files against the checklist for authors.

    A file is read and then loaded, as a start of toolcrib would do; its tools are not called. Exit code 1 when there
    is an error; warnings alone are 0.

    \b
    Example:
      toolcrib tools lint ~/.toolcrib/tools/weather.py

    Each object of --json has the keys file, line (or null), severity (error or warning), rule and message.
    """
    for file in files:
        if file.is_dir():
            inside = f"{shlex.quote(str(file))}/*.py"
            raise UsageError(f"{str(file)!r} is a folder; name the files in it: `toolcrib tools lint {inside}`")
        if not file.is_file():
            raise UsageError(f"there is no file {str(file)!r}; `toolcrib tools new NAME` writes one to start from")
    checked = {file: lint_file(file) for file in files}
    found = [(file, finding) for file, (_, findings) in checked.items() for finding in findings]
    if as_json:
        print_json([_as_json(file, finding) for file, finding in found])
    else:
        for file, finding in found:
            place = f"{file}:{finding.line}" if finding.line else str(file)
            print_line(one_line(f"{place}: {finding.severity}: {finding.message} [{finding.rule}]"))
        _print_summary(checked)
    return 1 if any(finding.severity == "error" for _, finding in found) else 0


def lint_file(file: Path) -> tuple[list[str], list[LintFinding]]:
    """The tools that a file declares and what to change in it; it is loaded into a registry of its own."""
    findings = lint_source(file)
    if any(finding.rule == "parses" for finding in findings):
        return [], findings
    scratch = ToolRegistry(parent=default_registry)
    with stdout_reserved():
        discovery.load_builtin_tools()
        loaded = discovery.load_tool_file(file.absolute(), scratch)
    return loaded.tools, findings_of(file, loaded, scratch)


def _print_summary(checked: dict[Path, tuple[list[str], list[LintFinding]]]) -> None:
    severities = [finding.severity for _, findings in checked.values() for finding in findings]
    errors, warnings = severities.count("error"), severities.count("warning")
    if errors or warnings:
        names = " ".join(shlex.quote(str(file)) for file in checked)
        counts = f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"
        note(f"{counts}. Correct the file, then type `toolcrib tools lint {names}` again.")
        return
    for file, (tools, _) in checked.items():
        print_line(f"{file}: nothing to change in {plural(len(tools), 'tool')} ({', '.join(tools)})")
    tool = next((name for tools, _ in checked.values() for name in tools), "NAME")
    note(f"`toolcrib tools explain {tool}` shows how to call it.")


def _as_json(file: Path, finding: LintFinding) -> dict[str, object]:
    return {
        "file": str(file),
        "line": finding.line,
        "severity": finding.severity,
        "rule": finding.rule,
        "message": finding.message,
    }
