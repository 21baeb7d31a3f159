"""`toolcrib import hermes`: what it says, asks and brings, sessions among it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tests.cli.cli_program import Program
from toolcrib.sessions.store import SessionStore

SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT, parent_session_id TEXT, started_at REAL NOT NULL,
    ended_at REAL, title TEXT, cwd TEXT
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT,
    tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL, active INTEGER NOT NULL DEFAULT 1
);
"""


@pytest.fixture
def hermes(toolcrib: Program) -> Path:
    """A home of Hermes Agent with two sessions."""
    root = toolcrib.root / "hermes"
    root.mkdir(parents=True)
    connection = sqlite3.connect(root / "state.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(SCHEMA)
    for number, id in enumerate(("20250101_000000_aaaaaa", "20250102_000000_bbbbbb")):
        connection.execute(
            "INSERT INTO sessions (id, source, started_at, title) VALUES (?, 'cli', ?, ?)",
            (id, number, f"Trip {number}"),
        )
        connection.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'To the lighthouse', 5)",
            (id,),
        )
    connection.commit()
    connection.close()
    return root


def break_a_session(hermes: Path) -> None:
    connection = sqlite3.connect(hermes / "state.db")
    connection.execute("INSERT INTO sessions (id, source, started_at) VALUES ('odd', 'cli', 9)")
    connection.execute(
        "INSERT INTO messages (session_id, role, tool_calls, timestamp) VALUES ('odd', 'assistant', '{', 9)"
    )
    connection.commit()
    connection.close()


def test_a_dry_run_counts_the_sessions_and_changes_nothing(toolcrib, hermes):
    """It says how many will be brought over, and writes to neither home."""
    before = {path.name: path.read_bytes() for path in hermes.iterdir()}

    outcome = toolcrib("import", "hermes", "--from", "hermes", "--dry-run")

    assert outcome.code == 0
    assert "To import:\n  sessions: 2 to import\n" in outcome.stdout
    assert outcome.stdout.endswith("To import this, run `toolcrib import hermes --from hermes`.\n")
    assert not (toolcrib.home / "sessions.db").exists()
    assert {path.name: path.read_bytes() for path in hermes.iterdir()} == before


def test_sessions_are_brought_beside_those_that_are_here(toolcrib, hermes):
    """Those that are here already are counted apart; afterwards the others are listed and found like our own."""
    store = SessionStore(toolcrib.home / "sessions.db")
    store.create(session_id="20250101_000000_aaaaaa", title="Mine")
    store.close()

    outcome = toolcrib("import", "hermes", "--from", "hermes", "--yes")

    assert (outcome.code, outcome.stderr) == (0, "")
    assert "  sessions: 1 to import, 1 is already here\n" in outcome.stdout
    assert "Imported 1 session; run `toolcrib doctor`" in outcome.stdout
    listed = toolcrib("sessions", "list").stdout
    assert "Mine" in listed
    assert "Trip 1" in listed
    assert "Trip 0" not in listed
    assert "lighthouse" in toolcrib("sessions", "show", "20250102").stdout


def test_importing_again_finds_nothing_to_do(toolcrib, hermes):
    """A second import asks nothing and says that all is here."""
    toolcrib("import", "hermes", "--from", "hermes", "--yes")

    outcome = toolcrib("import", "hermes", "--from", "hermes")

    assert outcome.code == 0
    assert "  sessions: 2 are already here\n" in outcome.stdout
    assert "There is nothing to import" in outcome.stdout


def test_a_session_that_cannot_be_read_is_named(toolcrib, hermes):
    """The dry run names it; the import brings the others, names it again and ends with 1."""
    break_a_session(hermes)

    planned = toolcrib("import", "hermes", "--from", "hermes", "--dry-run")
    done = toolcrib("import", "hermes", "--from", "hermes", "--yes")

    assert planned.code == 0
    assert "Not imported:\n  state.db: cannot import session 'odd'" in planned.stdout
    assert done.code == 1
    assert "session 'odd'" in done.stderr
    assert "Imported 2 sessions" in done.stdout


def test_settings_and_sessions_come_together(toolcrib, hermes):
    """What is brought is counted by kind."""
    (hermes / "config.yaml").write_text("toolsets: [web]\n")

    outcome = toolcrib("import", "hermes", "--from", "hermes", "--yes")

    assert outcome.code == 0
    assert "Imported 1 thing and 2 sessions" in outcome.stdout
    assert toolcrib("config", "get", "toolsets").stdout == '["web"]\n'


def test_nothing_is_brought_when_nobody_can_be_asked(toolcrib, hermes):
    """Without --yes and without a terminal, no session arrives."""
    outcome = toolcrib("import", "hermes", "--from", "hermes")

    assert outcome.code == 2
    assert "`toolcrib import hermes --from hermes --yes`" in outcome.stderr
    assert not (toolcrib.home / "sessions.db").exists()


def test_a_whole_home_arrives_and_the_second_import_has_nothing_to_do(toolcrib, hermes):
    """Jobs, soul, providers, keys of MCP servers: each arrives once, and no secret is printed."""
    (hermes / "cron").mkdir()
    (hermes / "cron/jobs.json").write_text(
        '{"jobs": [{"id": "a1", "name": "brief", "prompt": "News", "schedule": {"kind": "cron", "expr": "0 9 * * *"}}]}'
    )
    (hermes / "SOUL.md").write_text("You are a lighthouse keeper.")
    (hermes / "config.yaml").write_text(
        "custom_providers: [{name: attic, base_url: 'http://127.0.0.1:9/v1', api_key: attic-secret-value}]\n"
        "mcp_servers: {tides: {command: tides, env: {TIDES_TOKEN: tides-secret-value}}}\n"
        "plugins: {enabled: [notes]}\n"
    )

    first = toolcrib("import", "hermes", "--from", "hermes", "--yes")
    again = toolcrib("import", "hermes", "--from", "hermes", "--yes")

    assert (first.code, again.code) == (0, 0)
    assert "  cron: brief: pause it there, or both programs run it\n" in first.stdout
    assert "toolcrib asks you. To change that:" in first.stdout
    assert "`toolcrib plugins enable notes`" in first.stdout
    assert "brief" in toolcrib("cron", "list").stdout
    assert (toolcrib.home / "SOUL.md").read_text() == "You are a lighthouse keeper."
    assert "tides-secret-value" in (toolcrib.home / ".env").read_text()
    assert "secret-value" not in (toolcrib.home / "config.yaml").read_text() + first.stdout + again.stdout
    assert "There is nothing to import" in again.stdout


ENTRIES = ["config.yaml", ".env", "SOUL.md", "state.db", "skills", "memories", "plugins", "cron"]
FOLDERS = ("skills", "memories", "plugins", "cron")
KINDS = ["empty", "garbage", "folder", "link", "pipe"]
# Empty files and folders hold nothing to name, and any text is a soul.
NOT_NAMED = {"empty": ("config.yaml", ".env", "state.db"), "folder": FOLDERS}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_in_the_old_home_the_import_ends_and_names_it(toolcrib, kind: str):
    """No entry makes it crash or hang, and none is passed over in silence."""
    root = toolcrib.root / "hermes"
    root.mkdir()
    for name in ENTRIES:
        make_entry(root / name, kind)

    outcome = toolcrib("import", "hermes", "--from", "hermes", "--yes")

    assert "Traceback" not in outcome.stderr
    named = set(ENTRIES) - set(NOT_NAMED.get(kind, ()))
    assert [name for name in sorted(named) if f"\n  {name}" not in outcome.stdout] == []


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_file_of_jobs_is_the_import_ends_and_names_it(toolcrib, kind: str):
    """The same for the jobs."""
    (toolcrib.root / "hermes/cron").mkdir(parents=True)
    make_entry(toolcrib.root / "hermes/cron/jobs.json", kind)

    outcome = toolcrib("import", "hermes", "--from", "hermes", "--yes")

    assert "Traceback" not in outcome.stderr
    assert "\n  cron/jobs.json: " in outcome.stdout


def make_entry(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"" if kind == "empty" else b"\xff\x00{[: garbage")
