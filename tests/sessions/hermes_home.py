"""Session databases as Hermes Agent writes them, for the import tests."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT, system_prompt TEXT,
    parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL, end_reason TEXT,
    message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0, cache_read_tokens INTEGER DEFAULT 0, cache_write_tokens INTEGER DEFAULT 0,
    reasoning_tokens INTEGER DEFAULT 0, cwd TEXT, estimated_cost_usd REAL, actual_cost_usd REAL, cost_status TEXT,
    title TEXT, rewind_count INTEGER NOT NULL DEFAULT 0, archived INTEGER NOT NULL DEFAULT 0,
    FOREIGN KEY (parent_session_id) REFERENCES sessions(id)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL,
    content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, effect_disposition TEXT, timestamp REAL NOT NULL,
    token_count INTEGER, finish_reason TEXT, reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT,
    observed INTEGER DEFAULT 0, active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0,
    api_content TEXT
);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL;
"""
OLD_SCHEMA = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT, started_at REAL NOT NULL);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT,
    tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL
);
"""


class HermesHome:
    """A folder with a `state.db`, as its program sees it."""

    def __init__(self, root: Path, schema: str = SCHEMA) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.connection = sqlite3.connect(root / "state.db", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.executescript(schema)

    def session(self, id: str = "20250101_101010_abc123", **fields: Any) -> str:
        self._insert("sessions", {"id": id, "source": "cli", "started_at": 1000.0, **fields})
        return id

    def message(self, session: str, role: str, content: Any = None, **fields: Any) -> None:
        self._insert(
            "messages", {"session_id": session, "role": role, "content": content, "timestamp": 1001.0} | fields
        )

    def close(self) -> None:
        self.connection.close()

    def _insert(self, table: str, fields: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(fields))
        self.connection.execute(f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({marks})", tuple(fields.values()))


def asks(*ids: str, name: str = "terminal") -> str:
    """The column of an assistant message that requests calls."""
    function = {"name": name, "arguments": '{"command": "ls"}'}
    return json.dumps([{"id": id, "type": "function", "function": function} for id in ids])
