"""What the fuzzer kept, analysed again; `scripts/fuzz_approval.py` looks for more."""

from __future__ import annotations

import json
from pathlib import Path

from toolcrib.approval import analyse

CORPUS = Path(__file__).parent / "fuzz_corpus.jsonl"
COMMANDS = [json.loads(line)["command"] for line in CORPUS.read_text().splitlines()]


def test_every_kept_input_gets_a_verdict_with_a_reason() -> None:
    """No input raises, and what is not safe says why."""
    for command in COMMANDS:
        assessment = analyse(command, cwd="/work/project", home="/home/user")

        assert assessment.verdict in ("safe", "ask", "block"), command
        assert assessment.verdict == "safe" or assessment.findings or assessment.not_understood, command
