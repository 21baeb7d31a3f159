"""Runs the official MCP conformance suite; started by scripts/mcp-conformance, which makes what it needs.

Every scenario runs in a process of the suite of its own: what the suite records of one would mix with that of another.
Scenarios for a server are played one after the other, against one server for each era; those for a client at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
SUITE = ROOT / ".services/mcp/suite/node_modules"
NODE = SUITE / ".bin/node"
PACKAGE = SUITE / "@modelcontextprotocol/conformance"
OURS = ROOT / "tests/mcp_conformance"
ERAS = ("2025-11-25", "2026-07-28")
SIDES: tuple[Side, ...] = ("client", "server")
TOTAL_SECONDS = 660.0
SCENARIO_SECONDS = 60.0
START_SECONDS, END_SECONDS = 60.0, 20.0

Side = Literal["client", "server"]
Verdict = Literal["pass", "FAIL", "skip"]


class Scenario(NamedTuple):
    """One scenario of one era."""

    side: Side
    era: str
    name: str
    unscored: str
    """Why the revision does not require it; empty when it does."""


class Outcome(NamedTuple):
    """What came of a scenario."""

    scenario: Scenario
    verdict: Verdict
    reason: str = ""

    def __str__(self) -> str:
        side, era, name, unscored = self.scenario
        weight = f"unscored: {unscored}" if unscored else "required"
        return f"{self.verdict}  {side}  {era}  {name}  ({weight})" + (f"  {self.reason}" if self.reason else "")


class Plan:
    """Which scenarios are played, and until when."""

    def __init__(self, scenarios: list[Scenario], output: Path) -> None:
        self.scenarios = scenarios
        self.output = output
        self.outcomes: list[Outcome] = []
        self._end = time.monotonic() + TOTAL_SECONDS
        self._slots = asyncio.Semaphore(max(2, os.cpu_count() or 2))

    def of(self, side: Side, era: str) -> list[Scenario]:
        return [one for one in self.scenarios if (one.side, one.era) == (side, era)]

    async def play_clients(self) -> None:
        command = shlex.join((sys.executable, str(OURS / "conformance_client.py")))
        chosen = [one for one in self.scenarios if one.side == "client"]
        await asyncio.gather(*(self._play(one, "--command", command) for one in chosen))

    async def play_server(self, era: str) -> None:
        chosen = self.of("server", era)
        if not chosen:
            return
        async with _serving(self.output / f"server-{era}.log") as url:
            for one in chosen:
                await self._play(one, "--url", url)

    async def _play(self, scenario: Scenario, *target: str) -> None:
        async with self._slots:
            folder = self.output / scenario.era / scenario.side / scenario.name.replace("/", "-")
            seconds = min(2 * SCENARIO_SECONDS, self._end - time.monotonic())
            code = await _run_suite(scenario, folder, seconds, target) if seconds > 0 else None
        outcome = Outcome(scenario, *_verdict(scenario, code, folder))
        self.outcomes.append(outcome)
        print(outcome, flush=True)


async def _run_suite(scenario: Scenario, folder: Path, seconds: float, target: tuple[str, ...]) -> int | None:
    """The exit code of the suite for one scenario; None when it was not done in time."""
    command = (
        *(str(NODE), str(PACKAGE / "dist/index.js"), scenario.side, *target),
        # An extension belongs to no revision, so it has to be forced upon one.
        *("--scenario", scenario.name, "--spec-version", scenario.era, "--force"),
        *("--timeout", str(round(SCENARIO_SECONDS * 1000)), "--output-dir", str(folder)),
    )
    with _new_log(folder) as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            async with asyncio.timeout(seconds):
                return await process.wait()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def _new_log(folder: Path) -> BinaryIO:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return (folder / "log.txt").open("wb")


def _verdict(scenario: Scenario, code: int | None, folder: Path) -> tuple[Verdict, str]:
    if code is None:
        return "FAIL", "it was not done in time"
    checks: list[dict[str, Any]] = [
        check for file in folder.rglob("checks.json") for check in json.loads(file.read_text())
    ]
    if code != 0:
        return "FAIL", _first_failure(checks, folder, code)
    if any(check["status"] == "SUCCESS" for check in checks):
        return "pass", ""
    # A scenario that checked nothing proves nothing.
    return ("skip", "nothing was checked") if scenario.unscored else ("FAIL", "nothing was checked")


def _first_failure(checks: list[dict[str, Any]], folder: Path, code: int) -> str:
    for check in checks:
        if check["status"] in ("FAILURE", "WARNING"):
            said = check.get("errorMessage") or check.get("description") or ""
            return f"{check['id']}: {' '.join(str(said).split())[:200]}"
    errors = [line for file in folder.rglob("stderr.txt") for line in file.read_text().splitlines() if line.strip()]
    return f"the suite ended with {code}: {errors[-1][:200] if errors else 'see its log'}"


@asynccontextmanager
async def _serving(log: Path) -> AsyncIterator[str]:
    """Our server, with what the suite wants to find on one; gives its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(OURS / "conformance_server.py"), "0"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            said = (await process.stderr.readline()).decode()
        if "http" not in said:
            raise SystemExit(f"mcp-conformance: our server did not start: {said.strip() or 'it said nothing'}")
        keeping = asyncio.create_task(_keep(process.stderr, log))
        yield said.split()[-1]
        process.terminate()
        await asyncio.wait_for(asyncio.gather(keeping, process.wait()), END_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _keep(reader: asyncio.StreamReader, log: Path) -> None:
    with log.open("wb") as kept:
        while chunk := await reader.read(65536):
            kept.write(chunk)


def scenarios_of(era: str) -> list[Scenario]:
    """All scenarios of a revision, as the suite has them written down."""
    told = YAML(typ="safe").load((PACKAGE / "requirements" / f"{era}.yaml").read_text())
    required = [Scenario(side, era, name, "") for side in SIDES for name in told[side]]
    return required + [Scenario(one["leg"], era, one["scenario"], one["reason"]) for one in told["not_scored"]]


def chosen_scenarios(options: argparse.Namespace) -> list[Scenario]:
    sides = [side for side in SIDES if getattr(options, side)] or SIDES
    found = [one for era in options.era or ERAS for one in scenarios_of(era) if one.side in sides]
    return [one for one in found if not options.scenario or one.name in options.scenario]


def summary(outcomes: list[Outcome], seconds: float) -> str:
    required = [one for one in outcomes if not one.scenario.unscored]
    others = [one for one in outcomes if one.scenario.unscored]
    passed, others_passed = (sum(one.verdict == "pass" for one in group) for group in (required, others))
    word = "passed" if passed == len(required) else "FAILED"
    return (
        f"mcp-conformance: {word}: {passed} of {len(required)} required scenarios passed, "
        f"{others_passed} of {len(others)} unscored ones, in {seconds:.0f} seconds"
    )


async def main(options: argparse.Namespace) -> int:
    scenarios = chosen_scenarios(options)
    if not scenarios:
        print("mcp-conformance: there is no such scenario; leave --scenario out to see all names")
        return 2
    playing = asyncio.current_task()
    assert playing is not None
    # Whoever is ended ends what he started.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(scenarios, options.output or Path(folder))
        await asyncio.gather(*(plan.play_server(era) for era in ERAS), plan.play_clients())
    print(summary(plan.outcomes, time.monotonic() - began))
    return int(any(one.verdict != "pass" for one in plan.outcomes if not one.scenario.unscored))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mcp-conformance", description="The official MCP conformance suite")
    parser.add_argument("--client", action="store_true", help="play only what tests the client")
    parser.add_argument("--server", action="store_true", help="play only what tests the server")
    parser.add_argument("--era", action="append", choices=ERAS, help="play only this revision")
    parser.add_argument("--scenario", action="append", help="play only this one; may be given several times")
    parser.add_argument("--output", type=Path, help="keep what the suite writes in this folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parsed())))
