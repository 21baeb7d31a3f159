"""The labelled command lines of the tests: text to be judged, never to be run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"
CONTRACT_CLASSES = frozenset(
    (
        "recursive delete",
        "disk",
        "format",
        "sql",
        "database cli",
        "system config",
        "service",
        "remote code",
        "fork bomb",
        "kill",
        "system power",
        "permissions",
        "git history",
    )
)


@dataclass(frozen=True)
class Row:
    command: str
    label: str
    kind: str


def read_rows(name: str) -> list[Row]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [Row(row["command"], row["label"], row["class"]) for row in map(json.loads, lines)]


def tables() -> list[str]:
    return sorted(path.name for path in DATA.glob("*.jsonl"))
