"""Tokens and cost over days, models and tools."""

from __future__ import annotations

from typing import Any

from toolcrib.core.types import JsonObject
from toolcrib.sessions.store import SessionStore

_SPENT = """WITH spent AS (
    SELECT messages.created_at AS at, sessions.model AS model, usage
        FROM messages JOIN sessions ON sessions.number = messages.session
        WHERE usage IS NOT NULL AND sessions.owner = :owner AND messages.created_at >= :since
    UNION ALL SELECT side_usage.created_at, sessions.model, usage
        FROM side_usage JOIN sessions ON sessions.number = side_usage.session
        WHERE sessions.owner = :owner AND side_usage.created_at >= :since
)"""
_SUMS = """count(*), total(json_extract(usage, '$.input_tokens')), total(json_extract(usage, '$.output_tokens')),
    total(json_extract(usage, '$.cached_tokens')), sum(json_extract(usage, '$.cost_usd'))"""
_BY_DAY = f"{_SPENT} SELECT strftime('%Y-%m-%d', at, 'unixepoch', 'localtime') AS day, {_SUMS} FROM spent GROUP BY day"
_BY_MODEL = f"{_SPENT} SELECT model, {_SUMS} FROM spent GROUP BY model ORDER BY 3 DESC"
_TOTAL = f"{_SPENT} SELECT '', {_SUMS} FROM spent"
_BY_TOOL = """SELECT messages.name, count(*) FROM messages JOIN sessions ON sessions.number = messages.session
    WHERE role = 'tool' AND state <> 'undone' AND sessions.owner = :owner AND messages.created_at >= :since
    GROUP BY messages.name ORDER BY 2 DESC, 1"""
# Calls with effects are recorded with their times; the others take little.
_SECONDS = """SELECT tool, total(finished_at - started_at)
    FROM calls JOIN sessions ON sessions.number = calls.session
    WHERE sessions.owner = :owner AND started_at >= :since AND finished_at IS NOT NULL GROUP BY tool"""


def read_costs(store: SessionStore, owner: str, since: float) -> JsonObject:
    """What the sessions of an owner used since a moment: in all, by day, by model and by tool."""
    values = {"owner": owner, "since": since}
    with store.database.search() as connection:
        rows = {
            name: connection.execute(query, values).fetchall()
            for name, query in (("total", _TOTAL), ("days", _BY_DAY), ("models", _BY_MODEL), ("tools", _BY_TOOL))
        }
        seconds = dict(connection.execute(_SECONDS, values).fetchall())
    tools = [{"tool": tool, "calls": count, "seconds": seconds.get(tool, 0.0)} for tool, count in rows["tools"]]
    return {
        "since": since,
        "total": _sums(rows["total"][0]),
        "by_day": [{"day": row[0], **_sums(row)} for row in rows["days"]],
        "by_model": [{"model": row[0], **_sums(row)} for row in rows["models"]],
        "by_tool": tools,
    }


def _sums(row: tuple[Any, ...]) -> JsonObject:
    _, requests, read, written, cached, cost = row
    return {
        "requests": requests,
        "input_tokens": int(read),
        "output_tokens": int(written),
        "cached_tokens": int(cached),
        "cost_usd": cost,
    }
