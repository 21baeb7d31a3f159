"""What all sessions together amount to."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from toolcrib.core.types import JsonObject

_TOTALS = """count(*), total(message_count), total(call_count), total(input_tokens), total(output_tokens),
    total(cached_tokens), sum(cost_usd)"""
_NAMES = ("sessions", "messages", "calls", "input_tokens", "output_tokens", "cached_tokens", "cost_usd")


def read_statistics(connection: sqlite3.Connection, path: Path | None) -> JsonObject:
    """Totals, totals by source and by model, calls by tool, and the bytes on disk."""
    first, last = connection.execute("SELECT min(created_at), max(updated_at) FROM sessions").fetchone()
    (totals,) = _totals(connection, "''").values()
    return {
        **totals,
        "first_at": first,
        "last_at": last,
        "by_source": _totals(connection, "source"),
        "by_model": _totals(connection, "model"),
        "by_tool": dict(
            connection.execute(
                "SELECT name, count(*) FROM messages WHERE role = 'tool' AND state <> 'undone' "
                "GROUP BY name ORDER BY 2 DESC, 1"
            ).fetchall()
        ),
        "size_bytes": 0
        if path is None
        else sum(_size(path.with_name(path.name + end)) for end in ("", "-wal", "-shm")),
    }


def _totals(connection: sqlite3.Connection, column: str) -> dict[str, JsonObject]:
    rows = connection.execute(
        f"SELECT {column}, {_TOTALS} FROM sessions GROUP BY {column} ORDER BY 2 DESC, 1"
    ).fetchall()
    if not rows and column == "''":
        rows = [("", 0, 0, 0, 0, 0, 0, None)]
    return {row[0]: {name: _whole(name, value) for name, value in zip(_NAMES, row[1:], strict=True)} for row in rows}


def _whole(name: str, value: float | None) -> float | int | None:
    return value if name == "cost_usd" or value is None else int(value)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
