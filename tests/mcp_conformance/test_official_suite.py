"""The official conformance suite, for our client and our server, for both eras."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "mcp-conformance"
NOT_INSTALLED = 77
LIMIT_SECONDS = 720


def run_script() -> tuple[int, str, str]:
    """How it ended, and what it said; it is ended when it takes too long, and ends what it started."""
    with subprocess.Popen([SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
        try:
            said, complained = script.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            script.terminate()
            raise
    return script.returncode, said, complained


@pytest.mark.services
def test_every_required_scenario_passes() -> None:
    """The script ends with 0, a line for each scenario and a summary; where Node 24 cannot be had, it says so."""
    code, said, complained = run_script()
    if code == NOT_INSTALLED:
        pytest.skip(f"{complained.strip()[-500:]} {said.strip()}")

    *lines, summary = said.splitlines()
    required = [line for line in lines if "(required)" in line]
    missed = [line for line in required if not line.startswith("pass")]
    assert code == 0, "\n".join([*missed, summary, complained[-2000:]])
    assert not missed
    for side in ("client", "server"):
        for era in ("2025-11-25", "2026-07-28"):
            assert sum(f"  {side}  {era}  " in line for line in required) >= 15
    assert summary.startswith("mcp-conformance: passed")
